"""What `micronpu doctor` finds, and the other answers that need no model."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.cli.test_cli_help import micronpu as command
from typer.testing import CliRunner

import micronpu
from micronpu.base.installed import python_versions, requirements
from micronpu.chips import shipped_chips
from micronpu.cli import doctor
from micronpu.cli.doctor import examine, satisfies
from micronpu.cli.execute import RunResult
from micronpu.cli.main import app
from micronpu.targets.registry import all_targets, catalogue


@pytest.mark.sweep
def test_all_is_there_and_nothing_is_imported() -> None:
    done = command("doctor")
    assert done.returncode == 0
    assert done.stderr == "[]\n"
    for name in ("executorch", "torch", "ai-edge-litert", "C++ compiler"):
        assert any(line.startswith("ok") and f" {name} " in line for line in done.stdout.splitlines()), name


@pytest.mark.sweep
def test_what_is_missing_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name == "torchao":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.4.9" if name == "executorch" else found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    bad = {f.name: f for f in examine() if f.needed and not f.good}
    assert set(bad) == {"torchao", "executorch"}
    assert "torchao==0.18.*" in bad["torchao"].remedy
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "missing  torchao" in done.stdout and "pip install" in done.stdout


@pytest.mark.sweep
def test_a_cache_that_cannot_be_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Below a plain file, and where a link leads nowhere."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("file", "link"):
        monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / place / "cache"))
        done = CliRunner().invoke(app, ["doctor"])
        assert done.exit_code == 1
        line = next(x for x in done.output.splitlines() if "plug-in's cache" in x)
        assert line.startswith("missing") and f"{tmp_path / place} is no directory" in line
        assert "Try: set MICRONPU_CACHE_DIR" in line


@pytest.mark.sweep
def test_a_cache_of_answers_that_cannot_be_is_not_ok(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("MICRONPU_CACHE", str(place))
        (found,) = (f for f in examine() if f.name == "cache")
        assert not found.good and not found.found and "another MICRONPU_CACHE; " in found.remedy
    monkeypatch.setenv("MICRONPU_CACHE", str(tmp_path / "new" / "cache"))
    assert next(f for f in examine() if f.name == "cache").good and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("system", "processor", "version", "reported"),
    [
        ("Linux", "x86_64", "3.11.7", ""),
        ("Linux", "x86_64", "3.13.1", "a part of the fast tests"),
        ("Linux", "aarch64", "3.11.7", "in an emulator"),
        ("Darwin", "arm64", "3.12.1", "nothing was run"),
        ("Windows", "AMD64", "3.12.1", "use WSL"),
        ("FreeBSD", "amd64", "3.11.7", "nothing was run on such a system"),
    ],
)
def test_what_was_tested_here_is_said(
    monkeypatch: pytest.MonkeyPatch, system: str, processor: str, version: str, reported: str
) -> None:
    for name, value in (("system", system), ("machine", processor), ("python_version", version)):
        monkeypatch.setattr(f"platform.{name}", lambda value=value: value)
    monkeypatch.setattr("platform.python_version_tuple", lambda: tuple(version.split(".")))
    assert reported in doctor.tested_here() and bool(reported) == bool(doctor.tested_here())


@pytest.mark.sweep
def test_sources_on_the_path_know_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being installed: then no package says so."""
    installed = names(requirements())

    def none(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", none)
    monkeypatch.setattr(importlib.metadata, "metadata", none)
    assert names(requirements()) >= installed >= {("torch", False)}
    assert satisfies("3.11.7", python_versions()) and not satisfies("3.9", python_versions())
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


def names(found: Iterable[str]) -> set[tuple[str, bool]]:
    """Of packages, and whether an extra brings them: an environment may be older than the sources in other things."""
    return {(re.match(r"[\w-]+", text)[0], "extra" in text) for text in found if "micronpu" not in text}  # type: ignore[index]


@pytest.mark.sweep
def test_lists_are_data_for_programs() -> None:
    def reported(name: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, [name, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    findings = {f["name"]: f for f in reported("doctor")["findings"]}
    assert findings["executorch"]["good"] and findings["executorch"]["found"]
    assert {row["name"] for row in reported("targets")["targets"]} == set(all_targets())
    assert {(chip["title"], m["bytes"]) for chip in reported("targets")["chips"] for m in chip["memories"]} == {
        (chip.title, m.bytes) for chip in shipped_chips().values() for m in chip.memories
    }
    assert reported("passes") == catalogue()


@pytest.mark.parametrize(
    ("version", "limits", "expected"),
    [
        ("1.5.2", "==1.5.*", True),
        ("1.50", "==1.5.*", False),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.1", "==2.13.0", False),
        ("2.0", "<3,>=2.0", True),
        ("3.0.0", "<3,>=2.0", False),
        ("1.26.4", "<3,>=2.0", False),
        ("3.9.1", "<3.14,>=3.10", False),
        ("5", "", True),
    ],
)
def test_versions_are_held_to_their_limits(version: str, limits: str, expected: bool) -> None:
    assert satisfies(version, limits) is expected


def test_dir_lists_what_there_is() -> None:
    assert set(micronpu.__all__) <= set(dir(micronpu))


def test_the_report_on_standard_output_is_json_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef net():\n    return torch.nn.Conv2d(2, 4, 3).eval(), (torch.zeros(1, 2, 8, 8),)\n"
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["check", "-t", "imxrt700", "net.py:net", "--report-json", "-"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    assert "operator" in done.stderr
    assert not (tmp_path / "-").exists()


GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("name", [c.name or c.callback.__name__ for c in app.registered_commands if c.callback])
def test_every_command_can_be_quiet_and_give_json(name: str) -> None:
    """As a script meets it: the options are there, and --json goes with --report-json where both are."""
    done = CliRunner().invoke(app, [name, "--help-all"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    options = set(re.findall(r"--[a-z][a-z-]*", done.stdout))
    assert {"--quiet", "--json", "--debug"} <= options


@pytest.mark.sweep
@pytest.mark.parametrize(
    "command",
    [
        ["targets"],
        ["passes"],
        ["doctor"],
        ["inspect", "neutron.pte"],
        ["disassemble", "ethosu-litert.pte"],
        ["disassemble", "ethosu-litert.pte", "--diff", "ethosu-litert.pte"],
        ["diff", "neutron.pte", "neutron.pte"],
        ["run", "neutron.pte", "-i", "neutron.npz:input_0"],
    ],
    ids=" ".join,
)
def test_json_is_all_that_a_quiet_command_prints(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    done = CliRunner().invoke(app, [*command, "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) is not None and done.stderr == ""
    done = CliRunner().invoke(app, [*command, "-q"])
    assert done.exit_code == 0 and done.output == ""
    if command[0] == "run":
        (output,) = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["outputs"]
        expected = np.load("neutron.npz")["output_0"]
        assert output["shape"] == list(expected.shape) and output["dtype"] == expected.dtype.name
        assert np.array_equal(np.asarray(output["values"], expected.dtype), expected)


def test_numbers_that_json_has_not_are_texts() -> None:
    done = RunResult((np.array([[np.nan, -np.inf, 1.5]]), 2, None), (), ())
    assert done.to_dict()["outputs"][0]["values"] == [["nan", "-inf", 1.5]]
    assert json.loads(json.dumps(done.to_dict(), allow_nan=False))["outputs"][2] == {
        "dtype": "NoneType",
        "shape": None,
        "values": None,
    }


def test_a_quiet_command_still_says_what_is_wrong(tmp_path: Path) -> None:
    command = ["deploy", str(GOLDEN / "neutron.pte"), "-o", str(tmp_path / "firmware"), "--quiet"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and done.output == ""
    assert (tmp_path / "firmware" / "model.h").is_file()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1 and again.stderr.startswith("Error: ")
    twice = CliRunner().invoke(
        app, ["evaluate", "m.py:m", "p.pte", "--data", "x.npy", "--json", "--report-json", "r.json"]
    )
    assert twice.exit_code == 1 and "Try: one of them" in twice.stderr
    assert "imxrt700" in CliRunner().invoke(app, ["targets"]).stdout, "quiet is of one command"
