"""Commands that hints name: the line printed below a hint, and that it runs."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import micronpu
from micronpu.cli import hints
from micronpu.cli.main import app

NET = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(512, 64)).eval(), (torch.rand(1, 2, 16, 16),)
"""


def _context(line: str):
    """Return the parsed context of a command line, whose command is not run."""
    root = get_command(app)
    parent = root.make_context("micronpu", words := shlex.split(line)[1:], resilient_parsing=True)
    _, command, rest = root.resolve_command(parent, words)
    return command.make_context(command.name, rest, parent=parent)


def test_each_command_that_a_message_names_exists():
    root = _context("micronpu check net.py:net")
    texts = [path.read_text() for path in Path(micronpu.__file__).parent.rglob("*.py")]
    named = {" ".join(found.split()) for text in texts for found in hints.NAMED.findall(text)}
    assert "advise" in named
    for name in named:
        group = root.find_root().command
        for word in name.split():
            assert word in group.list_commands(root), name
            group = group.get_command(root, word)


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        (
            "compile net.onnx -t imxrt700 --calibration 'a b.npz:x' --weights sram",
            "advise",
            "net.onnx --calibration 'a b.npz:x' --target imxrt700 --weights sram",
        ),
        (
            "compile net.py:net -t mcxn947 --images png --normalize -1..1 --library ops.py -q",
            "blame",
            "net.py:net --images png --normalize -1..1 --target mcxn947 --library ops.py",
        ),
        (
            "compile net.py:net -t mcxn947 --calibration c.npy --quantization int16,equalize -o o.pte --top 3",
            "fix",
            "net.py:net --data c.npy --target mcxn947 --quantization int16,equalize",
        ),
        (
            "compile net.py:net -t mcxn947 --calibration c.npy --data d.npy --labels l.npy -o o.pte",
            "evaluate",
            "net.py:net o.pte --data d.npy --labels l.npy",
        ),
        ("blame net.py:net -t mcxn947 --data d.npy", "advise", "net.py:net --calibration d.npy --target mcxn947"),
        ("compile net.py:net -t mcxn947 --calibration c.npy", "compare", "net.py:net --calibration c.npy"),
        ("check net.py:net -t mcxn947 --io int8", "check", "net.py:net --target mcxn947 --io int8"),
        ("run net.pte -i x.npy --fast", "inspect", "net.pte"),
    ],
)
def test_a_line_has_the_arguments_of_the_run(line: str, name: str, expected: str):
    (found,) = hints.lines(f"Try: `micronpu\n{name}`, or `micronpu targets`.", _context(f"micronpu {line}"))
    assert found == f"micronpu {name} {expected}"
    _context(found)  # which parses it


def test_no_line_without_all_arguments():
    assert not list(hints.lines("`micronpu evaluate`, `micronpu nothing`", _context("micronpu check net.py:net -t x")))
    assert not list(hints.lines("`micronpu advise`", _context("micronpu run net.pte")))


def test_a_command_that_fails_hands_on_no_settings():
    context = _context("micronpu compile net.py:net -t imxrt700 --operators-not-to-delegate x --calibration c.npy")
    (line,) = hints.lines("`micronpu check` prints the names", context, failed=True)
    assert line == "micronpu check net.py:net --target imxrt700"


def test_the_line_below_a_report_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    np.save("data.npy", np.random.default_rng(0).random((8, 2, 16, 16), np.float32))
    done = CliRunner().invoke(app, ["compile", "net.py:net", "-t", "corstone300", "--calibration", "data.npy"])
    assert not re.search(" +$", done.stdout, re.MULTILINE)
    (line,) = re.findall(r"^In full: micronpu (.*)$", done.stdout, re.MULTILINE)
    again = CliRunner().invoke(app, shlex.split(line))
    assert line.startswith("advise ") and again.exit_code == 0, again.output
