"""The base installation, without an extra: `.ci/run` compares the bytes of programs made with and without."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.default_install import EXTRA
from tests.layers import SOURCE, tree

from micronpu.base.installed import requirements
from micronpu.cli.doctor import examine
from micronpu.upstream.executorch import SOFTMAX_QPARAMS

NAMED_OTHERWISE = {
    "ai_edge_litert": "ai-edge-litert",
    "ethosu": "ethos-u-vela",
    "markupsafe": "jinja2",  # which needs it
    "typing_extensions": "torch",  # which needs it
}
"""Modules whose distribution has another name."""
OPTIONAL = {
    "PIL",
    "cryptography",
    "eiq_neutron_sdk",
    "onnx",
    "onnxruntime",
    "pyocd",
    "ray",
    "serial",
    "timm",
    "torchvision",
}
"""Modules of extras, or of the user's; what they do has no part in the bytes of a program."""


@pytest.mark.sweep
def test_what_is_imported_comes_with_the_package() -> None:
    """A module that only a development environment has would make other programs there."""
    needed = {re.split(r"[ ;<>=!~]", text)[0] for text in requirements() if "extra ==" not in text}
    imported: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported.update({name.partition(".")[0]: path.name for name in names})
    others = imported.keys() - sys.stdlib_module_names - {"micronpu", *OPTIONAL}
    strangers = {name for name in others if NAMED_OTHERWISE.get(name, name) not in needed}
    assert not strangers, {name: imported[name] for name in strangers}


@pytest.mark.sweep
def test_doctor_asks_for_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    required = ["torch==2.13.0", 'ray>=2.40; extra == "ray"', 'tosa-tools==2026.8.*; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    found = {f.name: f for f in examine() if not f.good}
    assert found["torch"].needed
    assert "ray" not in found and "tosa-tools" not in found


@pytest.mark.slow  # `.ci/run` does the same for every kind of target where nothing is installed that would be hidden
def test_a_process_of_its_own_compiles_for_each_backend() -> None:
    """This one has imported what is hidden."""
    targets = ["imxrt700-neutron-cortexm", "ethos-u55-128", "alif-e8-u85-ethosu-cortexm", "cortex-m33"]
    command = [sys.executable, "-m", "tests.default_install", "--hide-extras", *targets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(targets)} of {len(targets)} kinds of targets" in done.stdout


def test_operators_of_the_core_are_those_of_executorch() -> None:
    """The two numbers that stand in for a module of ExecuTorch's are that module's, which stays importable."""
    assert EXTRA[0] not in {name for name, module in sys.modules.items() if module is None}
    configs = importlib.import_module("executorch.backends.cortex_m.quantizer.quantization_configs")
    assert {name: getattr(configs, name) for name in SOFTMAX_QPARAMS} == SOFTMAX_QPARAMS
