"""What the command answers at once: without torch, in a process of its own, on no terminal."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner, Result

from micronpu import __version__
from micronpu.cli.main import app
from micronpu.cli.options import MOST, PANELS, USUAL
from micronpu.cli.settings import ACCURACY, NAMES
from micronpu.report.budgets import Budgets
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.registry import BACKENDS, all_targets, find_target, target_examples

# After the command, on stderr: which of the heavy libraries it has imported.
LOADED = """
import sys
from micronpu.cli.main import app
try:
    app(prog_name="micronpu")
finally:
    print([m for m in ("torch", "executorch", "numpy") if m in sys.modules], file=sys.stderr)
"""


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, 120 columns wide; its stderr ends with the list of heavy libraries."""
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True,
        text=True,
        env=variables | {"COLUMNS": "120", "PYTHONIOENCODING": "utf-8"} | environment,
        timeout=900,
    )


micronpu = functools.cache(started)
"""As `started`; what several tests ask is asked once."""


@functools.cache
def inside(*arguments: str, columns: int = 120) -> Result:
    """The command in this process, for tests of what it prints: a process takes 0.4 CPU seconds to begin."""
    return CliRunner().invoke(app, arguments, prog_name="micronpu", env={"COLUMNS": str(columns)})


def test_help_is_the_same_inside_and_in_a_process():
    assert inside("compile", "--help").stdout == micronpu("compile", "--help").stdout


def test_an_option_without_its_value_takes_no_other_option():
    done = inside("deploy", "kws.pte", "--for", "-o", "folder")
    assert done.exit_code == 2 and "Option '--for' requires an argument, and '-o' follows." in done.output


def test_a_file_that_is_missing_is_refused_before_the_model_is_read(tmp_path):
    for command, option in (("compile", "--calibration"), ("evaluate", "--data"), ("fix", "--data")):
        program = [str(tmp_path / "a.pte")] if command == "evaluate" else ["-t", "imxrt700"]
        done = inside(command, str(tmp_path / "net.py:net"), *program, option, str(tmp_path / "x.npz:x"))
        assert (
            done.exit_code == 1 and f"There is no file {tmp_path / 'x.npz'}. Try: check the path; a .npy" in done.output
        )


@pytest.mark.sweep
@pytest.mark.parametrize("arguments", [["--help"], ["targets"], ["--version"], ["run", "--help"]])
def test_answers_without_heavy_libraries(arguments):
    done = micronpu(*arguments)
    assert done.returncode == 0
    assert done.stderr == "[]\n"


def test_help_lists_the_commands():
    text = micronpu("--help").stdout
    assert "PyTorch models on the NPUs of microcontrollers." in text
    for command in ("compile", "check", "run", "targets", "--version"):
        assert f" {command} " in text


def test_help_imports_little():
    """Modules are counted, and not the time, which a busy machine stretches: there are 444, and 72 are ours."""
    done = started("--help", PYTHONPROFILEIMPORTTIME="1")
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "micronpu.cli.main" in imported and len(imported) < 500
    assert len([name for name in imported if name.startswith("micronpu")]) < 76


@pytest.mark.parametrize("command", ["compile", "check"])
def test_every_option_of_the_back_end_is_on_the_command_line(command):
    done = micronpu(command, "--help-all")
    assert done.returncode == 0
    assert done.stderr == "['numpy']\n"
    options = (*dataclasses.fields(NeutronOptions), *dataclasses.fields(EthosUOptions))
    names = {f.name for f in options} - {"config", "silicon"}
    assert names
    missing = [n for n in names if f"-{n.replace('_', '-')} " not in " ".join(done.stdout.split())]
    assert not missing


def test_compile_explains_model_and_calibration():
    text = " ".join(micronpu("compile", "--help").stdout.split())
    assert "file.py:function, which returns (torch.nn.Module, example inputs)" in text
    assert "FILE.npz (an array per input, a row per sample" in text
    assert "(required)" in text


def test_targets_are_those_of_the_chip_files():
    lines = micronpu("targets").stdout.splitlines()
    for name, target in all_targets().items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert target.silicon in line if target.chip is None else target.chip.title in line
        assert all(alias in line for alias in target.entry.aliases)


@pytest.mark.parametrize("command", ["compile", "check", "blame", "advise", "new"])
def test_without_a_target_one_of_each_kind_is_named(command):
    done = inside(command, "model.py:net")
    assert done.exit_code == 1 and "No target is given" in done.stderr
    names = target_examples()
    assert all(f"{name} (" in done.stderr for name in names)
    kinds = {(t.backend, t.chip is None) for t in map(find_target, (n for n in names if not n.endswith(".toml")))}
    assert kinds == {(t.backend, t.chip is None) for t in all_targets().values()}
    assert all(any(backend.title in what for what in names.values()) for backend in BACKENDS.values())


def test_version():
    assert micronpu("--version").stdout == f"micronpu {__version__}\n"


@pytest.mark.sweep
@pytest.mark.parametrize("arguments", [["--help"], ["run", "missing.pte"]])
def test_color_only_where_it_is_wanted(arguments):
    plain, asked, both = (
        micronpu(*arguments),
        micronpu(*arguments, FORCE_COLOR="1"),
        micronpu(*arguments, FORCE_COLOR="1", NO_COLOR="1"),
    )
    assert "\x1b[" not in plain.stdout + plain.stderr
    assert "\x1b[" in asked.stdout + asked.stderr
    assert not any(f"\x1b[{code}m" in both.stdout + both.stderr for code in ("31", "36"))


def test_unknown_command_and_option():
    for arguments in (["compil"], ["compile", "model.py:f", "--no-such-option"]):
        done = inside(*arguments)
        assert done.exit_code == 2
        assert "No such" in done.stderr
        assert "Traceback" not in done.stderr


def test_no_option_is_cut_in_a_narrow_terminal():
    """The longest is 38 characters wide."""
    done = inside("compile", "--help-all", columns=80)
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    options = (*dataclasses.fields(NeutronOptions), *dataclasses.fields(EthosUOptions))
    names = {f.name.replace("_", "-") for f in options} - {"config", "silicon"} | {"no-verify", "allow-missing-kernels"}
    missing = [n for n in names if f"-{n} " not in " ".join(done.stdout.split())]
    assert not missing


def completed(*words: str) -> list[str]:
    """What bash is offered after the words, the last of which is not finished."""
    line = {"COMP_WORDS": " ".join(("micronpu", *words)), "COMP_CWORD": str(len(words))}
    done = micronpu(_MICRONPU_COMPLETE="complete_bash", **line)
    assert done.returncode == 0
    assert "torch" not in done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("command", [("compile", "model.py:f", "-t"), ("deploy", "model.pte", "--for")])
def test_targets_and_chips_are_completed(command):
    known = {n for t in all_targets().values() for n in (t.name, *t.entry.aliases)}
    wanted = {n for n in known if n.startswith("imx")}
    assert wanted
    assert set(completed(*command, "imx")) == wanted


def test_panels_name_options_that_there_are():
    """Each name of the lists is an option of some command, and stands in one panel."""
    commands = typer.main.get_command(app).commands.values()
    there = {p.name for command in commands for p in command.params} | {"help"}
    named = [name for names in PANELS.values() for name in names]
    assert len(named) == len(set(named)) and set(named) <= there and set(USUAL) <= there


def all_commands() -> list[tuple[str, ...]]:
    groups = {(): typer.main.get_command(app)}
    groups[("board",)] = groups[()].commands["board"]
    return [(*path, name) for path, group in groups.items() for name in sorted(group.commands)]


@pytest.mark.parametrize("command", all_commands(), ids=" ".join)
def test_help_is_one_screen(command):
    """Of 80 columns and 50 lines."""
    lines = inside(*command, "--help", columns=80).stdout.splitlines()
    assert 0 < len(lines) <= 50 and max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", ["compile", "compare", "evaluate", "advise", "blame", "fix"])
def test_data_are_given_alike(command):
    """Each takes --data and --calibration, and the first that its help shows names all forms of data."""
    text = " ".join(inside(command, "--help-all", columns=240).stdout.split())
    forms = text.partition(" DATA ")[2].partition(": ")[2]
    assert forms.startswith("FILE.npy, FILE.npz (an array per input, a row per sample; FILE.npz:name,... picks arrays)")
    assert "--data" in text and "--calibration" in text and "--images DIR" in text


def test_paragraphs_of_help_are_as_wide_as_the_terminal():
    """The source's line ends do not end lines of the help."""
    text = inside("diff", "--help", columns=240).stdout
    assert "bytes, moved operators and changed NPU operations." in text


def shown(*arguments: str) -> set[str]:
    """The long options that the help of a command lists; that of a group of commands has boxes."""
    text = inside(*arguments, columns=240).stdout
    return set(re.findall(r"^(?:  |│[* ]+)(?:-\w, )?(--[a-z][a-z-]+)(?=[\s,])(?! shows)", text, re.MULTILINE))


@pytest.mark.parametrize("command", sorted(typer.main.get_command(app).commands))
def test_help_shows_the_usual_options(command):
    usual = shown(command, "--help")
    assert 0 < len(usual) <= MOST and "--help" in usual


def test_help_with_a_target_shows_the_options_of_its_npu():
    usual, ethosu, every = (shown("compile", *more) for more in (["--help"], ["--help", "-t", "imx93"], ["--help-all"]))
    names = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(EthosUOptions)}
    assert usual < ethosu < every and {"--memory-mode", "--max-sram-bytes"} <= ethosu - usual <= every
    assert "--converter" not in ethosu and "--converter" in every and len(ethosu - usual) >= len(names) - 6
    assert shown("compile", "--help", "-t", "no-such-chip") == usual


def test_budgets_are_those_of_python():
    assert [name for name in NAMES.values() if name != ACCURACY] == [f.name for f in dataclasses.fields(Budgets)]
