"""Backends, commands and passes of other installed packages, which `tests/extension/acme.py` is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ACME = Path(__file__).parents[2] / "extension" / "acme.py"
USE = """
import torch
import micronpu
import micronpu.recipes
from micronpu.targets.registry import BACKENDS

class Twice(torch.nn.Module):
    def forward(self, x):
        x = torch.sigmoid(x)
        return torch.maximum(x, x)

x = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
rows = [x * k for k in (0.5, 1.0, 2.0)]
own = micronpu.compile(Twice().eval(), x, "acme-x1", calibration=rows)
core = micronpu.compile(Twice().eval(), x, "cortex-m55", calibration=rows)
assert (own.report.target, core.report.target) == ("acme-x1", "cortex-m55")
assert torch.equal(own.run(x), core.run(x))
pipeline = micronpu.Pipeline().before("merge_reshapes", "acme_merge")
less = micronpu.compile(Twice().eval(), x, "imxrt700-neutron", calibration=rows, transforms=pipeline)
assert "acme_merge" in str(pipeline) and not any("maximum" in row.name for row in less.report.operations)
try:
    micronpu.Pipeline().before("merge_reshapes", "acme_merg")
except micronpu.OptionError as error:
    assert "one of: acme_merge" in str(error)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with Acme's, as pip installs it."""
    folder = tmp_path / "site"
    information = folder / "acme-1.2.dist-info"
    information.mkdir(parents=True)
    text = ACME.read_text()
    (folder / "acme.py").write_text(text)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text(text.partition('ENTRY_POINTS = """')[2].partition('"""')[0])
    return folder


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.sweep
def test_an_installed_package_extends_micronpu(site: Path) -> None:
    done = python(site, "-c", USE)
    assert done.returncode == 0, done.stderr
    command = ("-m", "micronpu.cli")
    listed = python(site, *command, "--help").stdout
    assert "acme-hello" in listed and "Greet somebody" in listed and "acme-tools" in listed
    assert python(site, *command, "acme-hello", "Ada").stdout == "hello Ada\n"
    assert python(site, *command, "acme-tools", "second").stdout == "2\n"
    refused = python(site, *command, "acme-hello", "nobody")
    assert refused.returncode == 1 and "Error: There is nobody. Try: a name." in refused.stderr
    assert "acme_merge  acme 1.2" in python(site, *command, "passes").stdout


@pytest.mark.sweep
def test_a_package_that_is_broken_harms_nobody_else(site: Path) -> None:
    (site / "acme.py").write_text("import no_such_module\n")
    command = ("-m", "micronpu.cli")
    why = (
        "of the package acme 1.2, an entry point in micronpu.{}, cannot be loaded: ModuleNotFoundError: No module named"
    )
    assert python(site, *command, "targets").returncode == 0
    done = python(site, *command, "check", "m.py:net", "-t", "acme-x1")
    assert done.returncode == 1 and why.format("backends") in done.stderr and "Traceback" not in done.stderr
    done = python(site, *command, "acme-hello")
    assert done.returncode == 1 and why.format("commands") in done.stderr and "Traceback" not in done.stderr
    assert "pip uninstall acme" in python(site, *command, "doctor").stdout
