"""The `micronpu` command on small models: what it computes is what the Python interface computes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.cli import console
from micronpu.cli.main import app
from micronpu.report.views.html import page
from micronpu.runtime import HostProgram
from micronpu.targets.neutron.options import NeutronOptions

MODELS = '''
"""Models for the tests of the command; `helper` is a neighbour of this file."""
import torch
from torch import nn

from helper import SEED


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


class Two(nn.Module):
    """Two inputs; the sort of the second stays on the host, a number is returned as it is."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, a, b):
        return self.fc(a), torch.topk(b, 4)[0], 7


def net(batch=1):
    torch.manual_seed(SEED)
    return Net().eval(), (torch.randn(batch, 2, 6, 6),)


def pair():
    return net(2)


def two():
    torch.manual_seed(SEED)
    return Two().eval(), (torch.randn(1, 4), torch.randn(1, 4))


def rows():
    torch.manual_seed(SEED + 1)
    for _ in range(6):
        yield (torch.randn(1, 2, 6, 6),)


def say_and_fail():
    print("said by the model")
    raise ValueError("[no] weights here")


data = [torch.ones(1, 2, 6, 6), -torch.ones(1, 2, 6, 6)]
'''


def line_of(text: str) -> int:
    """Number of the line of `MODELS` that begins with a text."""
    (number,) = [n for n, line in enumerate(MODELS.splitlines(), 1) if line.strip().startswith(text)]
    return number


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with models, calibration data and inputs."""
    path = tmp_path_factory.mktemp("cli")
    (path / "helper.py").write_text("SEED = 3\n")
    (path / "nets.py").write_text(MODELS)
    (path / "own.py").write_text("from nets import net, rows as calibration\n")
    return path


@pytest.fixture(scope="module")
def nets(folder):
    sys.path.insert(0, str(folder))
    try:
        import nets

        yield nets
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def run(*arguments: object, code: int = 0) -> str:
    """Standard output of the command."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout


@pytest.fixture(scope="module")
def rows(nets) -> np.ndarray:
    """The calibration data of `nets.rows` as one array."""
    return torch.cat([x for (x,) in nets.rows()]).numpy()


@pytest.fixture(scope="module")
def program(nets):
    return micronpu.compile(*nets.net(), target="imxrt700", calibration=list(nets.rows()))


@pytest.fixture(scope="module")
def pte(folder, program) -> Path:
    return program.save(folder / "net.saved.pte")


# --- compile ------------------------------------------------------------------------------------------------------


def test_sparse_weights_are_an_option(folder):
    text = run("compile", "nets.py:net", "--calibration", "nets.py:rows", "-t", "ethos-u55-128", "--sparse", "2:4")
    said = " ".join(text.split())
    assert "Ethos-U55 takes as many cycles for weights that are zero" in said and "The network stays as it is" in said
    for given, sentence in (
        (["--sparse", "max_loss=0.1"], "--sparse 2:4,..."),
        (["-t", "ethos-u85-256", "--sparse", "1:2"], "no sparsity pattern '1:2'"),
    ):
        result = CliRunner().invoke(app, ["compile", "-t", "imxrt700", "nets.py:net", *given])
        assert result.exit_code == 1 and sentence in result.stderr


def test_compile_is_the_python_interface(program, folder):
    text = run("compile", "-t", "imxrt700", "nets.py:net", "--calibration", "nets.py:rows")
    assert (folder / "net.pte").read_bytes() == program.buffer
    assert text.startswith("\n".join(program.report.headline.lines[:3]))
    assert "conv2d + relu" in text
    assert f"nets.py:{line_of('return self.fc(torch.relu')}" in text
    assert all(f"{step} " in text for step in ("export", "quantize", "partition", "compile", "lower"))
    assert "Calibrated with `rows` of nets.py: 6 inputs.\n" in text
    assert f"Wrote net.pte: {program.report.summary()}.\n" in text
    assert "Next, the firmware folder: micronpu deploy net.pte -o net-firmware --for imxrt700\n" in text


def test_calibration_in_every_form(program, rows, tmp_path):
    np.save("rows.npy", rows)
    np.savez("one.npz", rows=rows)
    np.savez("several.npz", labels=np.arange(6), rows=rows.astype(">f4"))
    for data in ("rows.npy", "one.npz", "several.npz:rows", "nets.py:rows"):
        run("compile", "-t", "imxrt700", "nets.py:net", "--calibration", data, "-o", tmp_path / "a.pte")
        assert (tmp_path / "a.pte").read_bytes() == program.buffer, data


def test_calibration_of_the_model_file_is_used_and_named(program, tmp_path):
    text = run("compile", "-t", "imxrt700", "own.py:net", "-o", tmp_path / "a.pte")
    assert "Calibrated with `calibration` of own.py: 6 inputs.\n" in text
    assert (tmp_path / "a.pte").read_bytes() == program.buffer


def test_calibration_may_be_a_value(nets, tmp_path):
    run("compile", "-t", "imxrt700", "nets.py:net", "--calibration", "nets.py:data", "-o", tmp_path / "a.pte")
    assert (tmp_path / "a.pte").read_bytes() == micronpu.compile(
        *nets.net(), target="imxrt700", calibration=nets.data
    ).buffer


def test_rows_are_joined_to_batches(nets, rows, tmp_path):
    np.save("rows.npy", rows)
    run("compile", "-t", "imxrt700", "nets.py:pair", "--calibration", "rows.npy", "-o", tmp_path / "a.pte")
    batches = list(torch.from_numpy(rows).split(2))
    assert (tmp_path / "a.pte").read_bytes() == micronpu.compile(
        *nets.pair(), target="imxrt700", calibration=batches
    ).buffer


def test_arrays_of_two_inputs_are_taken_in_order(nets, tmp_path):
    a, b = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    np.savez("ab.npz", b=b, a=a)
    run("compile", "-t", "imxrt700", "nets.py:two", "--calibration", "ab.npz:a,b", "-o", tmp_path / "a.pte")
    items = [(torch.from_numpy(x)[None], torch.from_numpy(z)[None]) for x, z in zip(a, b, strict=True)]
    assert (tmp_path / "a.pte").read_bytes() == micronpu.compile(
        *nets.two(), target="imxrt700", calibration=items
    ).buffer


def test_per_tensor(nets, program, tmp_path):
    run("compile", "-t", "imxrt700", "own.py:net", "--quantization", "per_channel=false", "-o", tmp_path / "a.pte")
    expected = micronpu.compile(
        *nets.net(),
        target="imxrt700",
        calibration=list(nets.rows()),
        quantization=micronpu.Quantization(per_channel=False),
    ).buffer
    assert (tmp_path / "a.pte").read_bytes() == expected != program.buffer


def test_saved_programs_float_and_quantized(nets, program, rows, tmp_path):
    model, inputs = nets.net()
    torch.export.save(torch.export.export(model, inputs), tmp_path / "float.pt2")
    torch.export.save(torch.export.export(program.quantized, inputs), tmp_path / "int8.pt2")
    np.save("rows.npy", rows)
    run("compile", "-t", "imxrt700", tmp_path / "float.pt2", "--calibration", "rows.npy", "-o", tmp_path / "a.pte")
    text = run("compile", "-t", "imxrt700", tmp_path / "int8.pt2")
    assert "Calibrated" not in text
    x = torch.from_numpy(rows[:1])
    for path in (tmp_path / "a.pte", Path("int8.pte")):
        (y,) = HostProgram(path).run(x)
        assert torch.equal(y, program.run(x))


VALUES = {
    "extra_flags": (["--extra-flags=--a=1,2", "--extra-flags", "-v"], ("--a=1,2", "-v")),
    "operators_not_to_delegate": (
        ["--operators-not-to-delegate", "aten.relu.default,linear.default", "--operators-not-to-delegate=mul.Tensor"],
        ("aten.relu.default", "aten.linear.default", "aten.mul.Tensor"),
    ),
    "excluded_graph_passes": (["--excluded-graph-passes", "MergeTranspose"], ("MergeTranspose",)),
    "use_neutron_for_format_conversion": (["--no-use-neutron-for-format-conversion"], False),
    "fetch_constants_to_sram": (["--fetch-constants-to-sram"], True),
    "dump_kernel_selection_code": (["--dump-kernel-selection-code"], True),
    "profiling": (["--profiling"], True),
    "intermediates_dir": (["--intermediates-dir", "parts"], "parts"),
    "converter": (["--converter", "reference"], "reference"),
    "converter_flavor": (["--converter-flavor", "SDK_25_12"], "SDK_25_12"),
    "converter_timeout": (["--converter-timeout", "7.5"], 7.5),
    "sdk_version": (["--sdk-version", "3.1.2"], "3.1.2"),
    "disabled_passes": (["--disabled-passes", "fold_pads, merge_reshapes"], ("fold_pads", "merge_reshapes")),
}


@pytest.mark.parametrize("command", ["compile", "check"])
def test_options_arrive(command, monkeypatch):
    """Every field of the options, set to something that is not its default, and what is said of quantization."""
    fields = {f.name for f in dataclasses.fields(NeutronOptions)} - {"silicon"}
    assert set(VALUES) == fields, "a row for each field"
    given, said = [], []

    class ReachedError(Exception):
        pass

    def spy(*arguments, options, quantization, **others):
        given.append(options)
        said.append(quantization)
        raise ReachedError

    monkeypatch.setattr(f"micronpu.compiler.compile.{command}_model", spy)
    arguments = [a for values, _ in VALUES.values() for a in values]
    arguments += ["--quantization", "weight_observer=mse", "--quantization", "equalize"]
    for chosen in (["--target", "imx95", *arguments], ["--target", "imxrt700"]):
        result = CliRunner().invoke(app, [command, "nets.py:net", *chosen])
        assert "ReachedError" in result.stderr
    expected = NeutronOptions(silicon="imx95", **{name: value for name, (_, value) in VALUES.items()})
    assert given == [expected, NeutronOptions()]
    settings = {"default": {"weight_observer": "mse"}, "equalize": True}
    assert said == [micronpu.Quantization(settings=settings), micronpu.Quantization()]
    assert all(getattr(expected, name) != getattr(given[1], name) for name in fields)


def test_fused_clamp_can_be_kept_on_the_host(tmp_path):
    """Alone: the convolution that would compute it along goes to the NPU without it."""
    arguments = ("--operators-not-to-delegate", "relu.default", "--report-json", "kept.json")
    run("check", "-t", "imxrt700", "nets.py:net", *arguments)
    verdicts = {v["operator"]: v for v in json.loads(Path("kept.json").read_text())["verdicts"]}
    assert [r["rule"] for r in verdicts["relu.default"]["reasons"]] == ["is_wanted"]
    assert verdicts["relu.default"]["partition"] is None
    assert {verdicts[name]["partition"] for name in ("conv2d.default", "linear.default")} == {0, 1}


def test_reports_are_written(program, tmp_path):
    files = ["--report-html", tmp_path / "r.html", "--report-json", tmp_path / "r.json", "-o", tmp_path / "a.pte"]
    text = run("compile", "-t", "imxrt700", "own.py:net", *files)
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page(program.report)
    assert json.loads((tmp_path / "r.json").read_text()) == program.report.to_dict()
    assert f"Wrote {tmp_path}/r.html.\nWrote {tmp_path}/r.json.\nWrote {tmp_path}/a.pte" in text


# --- check --------------------------------------------------------------------------------------------------------


def test_check_says_what_would_be_delegated_and_why_not(tmp_path):
    text = run("check", "-t", "imxrt700", "nets.py:two", "--report-html", tmp_path / "r.html")
    assert text.startswith("Operators: 1 of 2 on the NPU of imxrt700-neutron-cortexm in 1 partition\n")
    assert "Partition 0: 1 operator, 16 MACs" in text
    assert f"topk.default  1×4  topk  nets.py:{line_of('return self.fc(a)')}" in text
    assert "Found: No operator of micronpu imports topk.default." in text
    assert "topk.default" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert not list(Path().glob("two*"))


def test_require_full():
    assert "On the core" in run("check", "-t", "imxrt700", "nets.py:two", "--require-full", code=1)
    assert "On the core" not in run("check", "-t", "imxrt700", "nets.py:net", "--require-full")


# --- run ----------------------------------------------------------------------------------------------------------


def test_run_is_the_python_interface(pte, program, rows, tmp_path):
    np.save("x.npy", rows[:1])
    text = run("run", pte, "--input", "x.npy", "--output", tmp_path)
    expected = program.run(torch.from_numpy(rows[:1])).numpy()
    assert np.array_equal(np.load(tmp_path / "output_0.npy"), expected)
    assert [p.name for p in tmp_path.iterdir()] == ["output_0.npy"]
    assert text.startswith(f"output 0: float32[1, 4]\n{np.array2string(expected, precision=6)}\n")
    assert text.endswith(f"Wrote {tmp_path}/output_0.npy.\n")


def test_run_row_by_row(pte, program, rows, tmp_path):
    np.save("x.npy", rows)
    run("run", pte, "-i", "x.npy", "--rows", "-o", tmp_path)
    expected = np.concatenate([program.run(x[None]).numpy() for x in torch.from_numpy(rows)])
    assert np.array_equal(np.load(tmp_path / "output_0.npy"), expected)
    without = CliRunner().invoke(app, ["run", str(pte), "-i", "x.npy"])
    assert (
        without.exit_code == 1
        and f"holds {len(rows)} samples, and the program takes one. Try: --rows" in without.stderr
    )


def test_run_fast(pte, program, rows, tmp_path):
    np.save("x.npy", rows[:1])
    run("run", pte, "-i", "x.npy", "--fast", "-o", tmp_path)
    expected = program.run(torch.from_numpy(rows[:1]), fast=True).numpy()
    assert np.array_equal(np.load(tmp_path / "output_0.npy"), expected)


def test_run_with_several_inputs_and_outputs(nets, tmp_path):
    a, b = np.random.default_rng(1).normal(size=(2, 1, 4)).astype(np.float32)
    np.savez("ab.npz", b=b, a=a)
    np.save("a.npy", a)
    np.save("b.npy", b)
    program = micronpu.compile(*nets.two(), target="imxrt700", calibration=[(torch.from_numpy(a), torch.from_numpy(b))])
    program.save("two.pte")
    expected = program.run(torch.from_numpy(a), torch.from_numpy(b))
    for inputs in (["-i", "a.npy", "-i", "b.npy"], ["-i", "ab.npz:a,b"]):
        text = run("run", "two.pte", *inputs, "-o", tmp_path)
        assert "output 2: 7\n" in text
        for number, value in enumerate(expected):
            assert np.array_equal(np.load(tmp_path / f"output_{number}.npy"), np.asarray(value))


# --- errors, terminals, processes ---------------------------------------------------------------------------------


def test_error_in_the_users_code_names_its_line():
    result = CliRunner().invoke(app, ["compile", "-t", "imxrt700", "nets.py:say_and_fail"])
    line = line_of("raise ValueError")
    assert result.exit_code == 1
    assert result.stdout == "said by the model\n"
    assert result.stderr == (
        f"Error: `say_and_fail` of nets.py raised an error in line {line}: ValueError: [no] weights here. "
        "Try: --debug, which shows the traceback.\n"
    )
    debug = CliRunner().invoke(app, ["compile", "-t", "imxrt700", "nets.py:say_and_fail", "--debug"])
    assert debug.exit_code == 1
    assert debug.stderr.startswith("Traceback")
    assert 'raise ValueError("[no] weights here")' in debug.stderr
    assert debug.stderr.endswith(result.stderr)


def test_unexpected_error_asks_for_debug(monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr("micronpu.compiler.compile.compile_model", broken)
    result = CliRunner().invoke(app, ["compile", "-t", "imxrt700", "nets.py:net"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: micronpu ended with an error that it did not expect: ZeroDivisionError: deep inside. "
        "Try: the same command with --debug, which shows where it happened.\n"
    )
    assert "in broken" in CliRunner().invoke(app, ["compile", "-t", "imxrt700", "nets.py:net", "--debug"]).stderr


def test_progress_on_a_terminal(monkeypatch, tmp_path):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(console, "errors", lambda: terminal)
    run("compile", "-t", "imxrt700", "own.py:net", "-o", tmp_path / "a.pte")
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    for step in ("Loading the model", "Exporting", "Calibrating and quantizing", "Compiling for the NPU"):
        assert step in shown


def test_whole_way_in_processes_of_their_own(program, rows, tmp_path):
    """Compile and run as a user does, on no terminal: nothing on stderr, nothing but the report on stdout."""
    np.save("x.npy", rows[:1])

    def process(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "micronpu.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"},
            timeout=300,
        )
        said = re.sub(r"^[A-Z][\w ]+: \d+%\n", "", done.stderr, flags=re.MULTILINE)  # progress, on a busy machine
        assert (done.returncode, said) == (0, "")
        return done.stdout

    text = process("compile", "-t", "imxrt700", "own.py:net", "-o", tmp_path / "a.pte")
    assert text.startswith("\n".join(program.report.headline.lines[:3]))
    assert (tmp_path / "a.pte").read_bytes() == program.buffer
    text = process("run", tmp_path / "a.pte", "-i", "x.npy", "-o", tmp_path)
    assert text.startswith("output 0: float32[1, 4]\n[[")
    assert np.array_equal(np.load(tmp_path / "output_0.npy"), program.run(torch.from_numpy(rows[:1])).numpy())
    torch.export.save(torch.export.export(program.quantized, (torch.from_numpy(rows[:1]),)), tmp_path / "int8.pt2")
    assert "Partition 0" in process(
        "check", "-t", "imxrt700", tmp_path / "int8.pt2"
    )  # nothing else registers its operators here


def test_the_spies_would_see_a_difference(program, nets):
    """Other weights give other bytes; otherwise the comparisons above could not fail."""
    model, inputs = nets.net()
    nn.init.ones_(model.fc.weight)
    assert micronpu.compile(model, inputs, "imxrt700", calibration=list(nets.rows())).buffer != program.buffer
