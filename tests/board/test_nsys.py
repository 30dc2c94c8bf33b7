"""Neutron programs for silicon in NXP's simulator, with a stand-in of ExecuTorch's runner that computes by a twin.

The stand-in takes the runner's flags and files as the published source reads and writes them. NXP's own was not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import ModelError, OptionError, PayloadError, UnsupportedError
from micronpu.board.gdb import BoardError
from micronpu.board.nsys import NsysBoard, check_same_io, read_program, read_silicon
from micronpu.board.nsys_tools import chips, examine
from micronpu.cli.main import app
from micronpu.compiler.program import CompiledProgram
from micronpu.neutron import NeutronOptions
from tests.deploy import programs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.skipif(os.name == "nt", reason="a shell")]
TESTS = Path(__file__).parents[1]
STAND_IN_SDK, STAND_IN = TESTS / "stand_in_sdk", TESTS / "stand_in_nsys" / "nxp_executor_runner"


class Two(torch.nn.Module):
    """Two inputs and two outputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x + y), x * y


def pair(model: torch.nn.Module, *x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[CompiledProgram, ...]:
    """A program for silicon, and its twin for this machine."""
    monkeypatch.syspath_prepend(STAND_IN_SDK)
    rows = [tuple(torch.randn_like(t) for t in x) for _ in range(3)]
    return tuple(
        micronpu.compile(
            model, x, "imxrt700-neutron", calibration=rows, options=NeutronOptions(converter=converter),
            quantization=micronpu.Quantization(io="int8"),
        )
        for converter in ("sdk", "reference")
    )  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The stand-ins in their places; sets the twin that the runner computes by."""
    nsys, firmware = tmp_path / "bin" / "nsys", tmp_path / "NeutronFirmware.elf"
    nsys.parent.mkdir()
    nsys.write_text("#!/bin/sh\n")
    nsys.chmod(0o755)
    firmware.write_bytes(b"\x7fELF")
    monkeypatch.setenv("PATH", f"{nsys.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NSYS_FIRMWARE_PATH", str(firmware))
    monkeypatch.setenv("NXP_RUNNER_PATH", str(STAND_IN))
    monkeypatch.setenv("STAND_IN_PYTHON", sys.executable)
    monkeypatch.delenv("STAND_IN_MOOD", raising=False)

    def twin(program: CompiledProgram) -> Path:
        path = tmp_path / "twin.pte"
        path.write_bytes(program.buffer)
        monkeypatch.setenv("STAND_IN_TWIN", str(path))
        return path

    return twin


@pytest.fixture(scope="module")
def compiled() -> Iterator[tuple[CompiledProgram, ...]]:
    """A program for silicon, and its twin; no test changes them."""
    programs.program("neutron_int8")  # other tests have it, too: it must not be made by the stand-in
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    with pytest.MonkeyPatch.context() as patch:
        yield pair(network, torch.randn(1, 8), monkeypatch=patch)


@pytest.fixture
def linear(here, compiled, monkeypatch):
    """(program for silicon, its twin, the twin's file)"""
    monkeypatch.syspath_prepend(STAND_IN_SDK)
    silicon, twin = compiled
    return silicon, twin, here(twin)


def rows_of(model, count: int = 3) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(-128, 128, b.tensor.shape).astype(np.int8) for b in model.inputs) for _ in range(count)]


@pytest.mark.sweep
def test_rows_of_one_input_and_of_two(here, linear, monkeypatch) -> None:
    silicon, twin, _ = linear
    two = pair(Two().eval(), torch.randn(2, 8), torch.randn(2, 8), monkeypatch=monkeypatch)
    for program, reference in ((silicon, twin), two):
        here(reference)
        model = read_silicon(program.buffer)
        rows = rows_of(model)
        with NsysBoard(model, "imxrt700", seconds=60) as board:
            found = board.run_rows(rows)
            assert len(found) == 3 and "Finished..." in board.output
        for row, outputs in zip(rows, found, strict=True):
            wanted = reference.run(*(torch.from_numpy(a) for a in row))
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            assert all(np.array_equal(a, b.numpy()) for a, b in zip(outputs, wanted, strict=True))


def test_a_program_for_silicon_runs_where_the_simulator_is(linear, monkeypatch) -> None:
    silicon, twin, _ = linear
    x = torch.randint(-128, 128, (1, 8), dtype=torch.int8)
    assert torch.equal(silicon.run(x), twin.run(x))
    assert torch.equal(silicon.run(x, on="imxrt700"), twin.run(x))
    with pytest.raises(UnsupportedError, match="is a reference program for this machine"):
        twin.run(x, on="imxrt700")
    with pytest.raises(PayloadError, match="host cannot execute"):
        silicon.run(x, fast=True)
    monkeypatch.delenv("NXP_RUNNER_PATH")
    with pytest.raises(PayloadError, match="host cannot execute"):
        silicon.run(x)


@pytest.mark.sweep
def test_the_command(linear, tmp_path: Path, monkeypatch) -> None:
    silicon, twin, reference = linear
    path = tmp_path / "model.pte"
    path.write_bytes(silicon.buffer)

    def call(*more: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["board", "run", str(path), "--board", "imxrt700", *more])
        return done.exit_code, done.output

    code, said = call("--reference", str(reference))
    assert code == 0 and "PASS" in said and "4 vectors, 0 of 32 elements differ" in said and "simulator" in said
    code, said = call()
    assert code != 0 and "--reference FILE.pte" in said
    x = rows_of(read_silicon(silicon.buffer))
    wanted = np.concatenate([twin.run(torch.from_numpy(row[0])).numpy() for row in x])[:, None]
    np.savez(tmp_path / "rows.npz", input_0=np.stack([row[0] for row in x]), output_0=wanted)
    code, said = call("--vectors", str(tmp_path / "rows.npz"), "--json")
    assert code == 0 and json.loads(said)["elements"] == 24 and json.loads(said)["equal"]
    monkeypatch.setenv("STAND_IN_MOOD", "wrong")
    code, said = call("--reference", str(reference))
    assert code == 1 and "FAIL" in said and "first difference: vector 2, output 0, element 3" in said
    assert call("--trace", "--reference", str(reference))[0] != 0
    done = CliRunner().invoke(app, ["board", "run", str(path), "--reference", str(reference)])
    assert done.exit_code != 0 and "--board imxrt700" in done.output


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("mood", "sentence"),
    [
        ("crash", "nxp_executor_runner crashed with SIGSEGV"),
        ("fails", r"ended with code 255. Its last words: .Internal Neutron NPU driver error 7 in init!"),
        ("short", r"Output 0 of row 000000.bin has 7 bytes where the program says 8"),
        ("silent", "has left no output 0 of row 000000.bin"),
    ],
)
def test_a_runner_that_goes_wrong(linear, monkeypatch, mood: str, sentence: str) -> None:
    model = read_silicon(linear[0].buffer)
    monkeypatch.setenv("STAND_IN_MOOD", mood)
    with NsysBoard(model, "imxrt700", seconds=60) as board, pytest.raises(BoardError, match=sentence):
        board.run(*rows_of(model)[0])


def test_a_runner_that_hangs_is_ended_with_what_it_has_started(linear, tmp_path: Path, monkeypatch) -> None:
    model = read_silicon(linear[0].buffer)
    alive = tmp_path / "alive"
    monkeypatch.setenv("STAND_IN_MOOD", "hang")
    monkeypatch.setenv("STAND_IN_ALIVE", str(alive))
    board = NsysBoard(model, "imxrt700", seconds=2)
    with pytest.raises(BoardError, match="did not finish within 2 seconds and was ended"):
        board.run(*rows_of(model)[0])
    assert not alive.exists(), "it was waited for until it ended by itself, which takes it a minute"
    while _runs(str(alive)):  # a process that was killed is there until the system has taken it away
        assert not alive.exists(), "what it had started ended by itself"


def _runs(word: str) -> bool:
    """Whether there is a process with a word in its command."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in file.read_bytes():
                return True
    return False


@pytest.mark.sweep
def test_what_is_missing_is_named(linear, monkeypatch) -> None:
    model = read_silicon(linear[0].buffer)
    with pytest.raises(ModelError, match="Input 0 of the model must be int8"):
        NsysBoard(model, "imxrt700").run(np.zeros((1, 8), np.float32))
    with pytest.raises(OptionError, match="no programs for 'himax-we2'"):
        NsysBoard(model, "himax-we2")
    with pytest.raises(PayloadError, match=r"inputs of the program are not those of the model"):
        check_same_io(model, read_program(programs.program("neutron_int8").buffer))
    with pytest.raises(UnsupportedError, match=r"no part for a Neutron but one for another NPU .* -t imxrt700 "):
        read_silicon(programs.program("ethosu_int8").buffer)
    monkeypatch.delenv("NSYS_FIRMWARE_PATH")
    monkeypatch.setenv("NXP_RUNNER_PATH", "/no/such/runner")
    assert [f.path is None for f in examine("imxrt700")] == [True, False, True]
    with pytest.raises(
        BoardError, match=r"there is no nxp_executor_runner, no NeutronFirmware\.elf\..*NXP_RUNNER_PATH"
    ):
        NsysBoard(model, "imxrt700")
    said = CliRunner().invoke(app, ["doctor"]).output
    assert "nxp_executor_runner" in said and "NeutronFirmware.elf" in said
    assert "imxrt700" in chips() and "imx93" not in chips()
