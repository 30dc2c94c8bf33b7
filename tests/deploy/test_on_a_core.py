"""Deployed folders in ExecuTorch's runtime on an emulated Cortex-M55, built by the commands of their READMEs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.board.logs import NPU, read_log
from micronpu.board.npu import Npu
from micronpu.board.printed import read_printed
from micronpu.compiler.program import CompiledProgram
from micronpu.deploy.deployment import Source, deploy_together
from tests.compile.small import Small, batches, conv, image
from tests.deploy import programs, runner
from tests.deploy.test_shared import plain

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runner.need()
    return runner.installed(tmp_path_factory.mktemp("executorch"))


def source(program: CompiledProgram, name: str) -> Source:
    return Source(program.buffer, name, rows=[tuple(t.detach().numpy() for t in row) for row in program.rows])


def two_parts() -> CompiledProgram:
    """The NPU, a kernel of the core, and the NPU again."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        z: torch.Tensor = self.second(torch.atan2(y, x))  # of two values, which no table holds
        return z

    torch.manual_seed(0)
    network = Small(forward, first=conv(8, 8), second=conv(8, 8))
    return micronpu.compile(network, (image(),), "corstone300", calibration=batches((image(),), 6))


def _check_stack(output: str, vectors: int, what: str) -> None:
    """PASS, and a stack as deep as the page says."""
    depth = re.fullmatch(rf"PASS: {vectors} vectors, 0 elements differ\nstack: (\d+) bytes\n", output)
    assert depth is not None, output
    page = (Path(__file__).parents[2] / "docs" / "firmware.md").read_text(encoding="utf-8")
    reported = re.search(rf"{what} takes ([\d,]+) bytes".replace(" ", r"\s+"), page)
    assert reported is not None, what
    assert int(reported[1].replace(",", "")) - 256 <= int(depth[1]) <= int(reported[1].replace(",", ""))


CLOCK = 0x140
"""A register of the NPU that nobody writes but the clock of the test."""


class Notes(nn.Module):
    """Keeps a running sum of what it was given."""

    sum: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.ones(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, 8] -> [1, 8], from the sum after it"""
        self.sum.copy_(self.sum * 0.5 + x)
        return self.sum * 2.0

    def peek(self, x: torch.Tensor) -> torch.Tensor:
        """Only reads the sum."""
        return self.sum + x


def test_from_the_folder_to_pass(installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the stack, which is not above what the page says, the clock of the NPU, and another NPU than is wanted."""
    folder = tmp_path / "firmware"
    programs.program("ethosu_int8").deploy(folder, target="corstone300")
    clock = f"*(volatile uint32_t *)(0x48102000 + {CLOCK}) = static_cast<uint32_t>(is_on);"
    with (folder / "main.cpp").open("a") as file:
        file.write(f'extern "C" void micronpu_npu_power(std::size_t, int is_on) {{ {clock} }}\n')
    runner.build(folder, installation, "-DMICRONPU_BOARD_STACK=ON")
    used: list[str] = []
    load, store = Npu.load, Npu.store

    def logged_load(npu: Npu, offset: int, width: int = 4) -> int:
        used.append("load")
        return load(npu, offset, width)

    def logged_store(npu: Npu, offset: int, value: int, width: int = 4) -> None:
        used.append(("off", "on")[value] if offset == CLOCK else "store")
        store(npu, offset, value, width)

    with monkeypatch.context() as patch:
        patch.setattr(Npu, "load", logged_load)
        patch.setattr(Npu, "store", logged_store)
        done = runner.run(folder)
    # Once to start it and once a vector, and nobody touches it while its clock rests.
    rejected = re.fullmatch(r"(on( load| store)+ off ?){5}", " ".join(used))
    assert rejected is not None, used
    _check_stack(done.output, 4, "a program of the NPU")
    assert done.status == 0 and len(done.runs) == 4
    done = runner.run(folder, npu="ethos-u55-256")
    assert "the NPU is an Ethos-U55 with 256 MACs a cycle, but the program is for ethos-u55-128\n" in done.output
    assert done.status == 1 and not done.runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", ["-mcpu=cortex-m55 -mfloat-abi=hard", "-mcpu=cortex-m33 -mfloat-abi=hard -mfpu=fpv5-sp-d16"]
)
def test_three_programs_in_one_image(installation: Path, tmp_path: Path, flags: str) -> None:
    """NPU alone, NPU and kernels, a state; also with code for a Cortex-M33, which this core runs."""
    folder = tmp_path / "firmware"
    kinds = ("ethosu", "ethosu_int8", "state_int8")
    deploy_together([source(programs.program(k), f"p_{k}") for k in kinds], folder, target="corstone300")
    toolchain = folder / "board" / "toolchain.cmake"
    text = toolchain.read_text()
    assert "-mcpu=cortex-m55 -mfloat-abi=hard" in text
    toolchain.write_text(text.replace("-mcpu=cortex-m55 -mfloat-abi=hard", flags))
    runner.build(folder, installation)
    done = runner.run(folder)
    assert (done.output, done.status, len(done.runs)) == ("PASS: 12 vectors, 0 elements differ\n", 0, 12)


@pytest.mark.slow
def test_kernels_of_the_core_between_two_parts(installation: Path, tmp_path: Path) -> None:
    """And a number that is wrong, and the cycles of every instruction."""
    folder = tmp_path / "firmware"
    deploy_together([source(two_parts(), "both")], folder, target="corstone300")
    vectors = folder / "both_vectors.c"
    text = vectors.read_text()
    runner.build(folder, installation, "-DMICRONPU_PROFILE=ON")
    done = runner.run(folder)
    printed = done.output.splitlines()
    cycles = [line.split() for line in printed if line.startswith("micronpu-cycles ")]
    counted = [line.split() for line in printed if line.startswith("micronpu-npu-cycles ")]
    started = [line for line in printed if re.fullmatch(r"micronpu-program both [0-9a-f]{64}", line)]
    assert len(started) == 4 and len(set(started)) == 1
    others = [line for line in printed if line.startswith(("micronpu-chip ", "micronpu-npu-beats "))]
    assert len(printed) == len(started) + len(cycles) + len(counted) + len(others) + 1
    assert done.status == 0 and printed[-1] == "PASS: 4 vectors, 0 elements differ" and len(done.runs) == 8
    assert {tuple(words[:2]) for words in cycles} == {("micronpu-cycles", "both")}
    numbers = [int(words[2]) for words in cycles]
    assert len(numbers) % 4 == 0 and numbers == [*range(len(numbers) // 4)] * 4
    assert [int(words[3]) for words in counted] == [run.cycles for run in done.runs]
    assert {tuple(words[:3]) for words in counted} < {("micronpu-npu-cycles", *words[1:3]) for words in cycles}
    output = re.search(r"float output_0_0\[.*?\{\s*(-?[\w.+-]+)", text, re.S)
    assert output is not None
    vectors.write_text(text[: output.start(1)] + "123.0f" + text[output.end(1) :])
    runner.build(folder, installation, "-DMICRONPU_PROFILE=OFF")
    done = runner.run(folder)
    assert done.status == 1 and done.output.endswith("FAIL: 4 vectors, 1 elements differ\n"), done.output
    assert "vector 0, output 0, element 0: expected float 0x42f60000" in done.output


OS = """
#include "micronpu_npu.h"
uint32_t micronpu_milliseconds() { return 0; } /* a limit wants a clock; here the semaphores of the RTOS have it */
namespace {
volatile int counts[8], made, taken;
void* create() { return const_cast<int*>(&counts[made++]); }
int take(void* semaphore, uint32_t milliseconds) {
  auto* count = static_cast<volatile int*>(semaphore);
  for (uint32_t turn = 0; *count == 0; ++turn) {
    if (milliseconds != 0 && turn > 1000 * milliseconds) { return -1; }
  }
  __asm volatile("cpsid i" ::: "memory");
  *count = *count - 1;
  __asm volatile("cpsie i" ::: "memory");
  taken = taken + 1;
  if (taken == 9) { std::printf("%d semaphores\\n", made); }
  return 0;
}
int give(void* semaphore) {
  auto* count = static_cast<volatile int*>(semaphore);
  *count = *count + 1;
  return 0;
}
const micronpu_os os = {create, take, give};
__attribute__((constructor)) void begin() { micronpu_use_os(&os); }
} // namespace
"""


@pytest.mark.slow
def test_semaphores_of_an_rtos(installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arm's driver waits in them, and a run that never ends is given up."""
    folder = tmp_path / "firmware"
    programs.program("ethosu_int8").deploy(folder, target="corstone300")
    with (folder / "main.cpp").open("a") as file:
        file.write(OS)
    monkeypatch.setenv("CFLAGS", "-DMICRONPU_NPU_MILLISECONDS=50u")
    runner.build(folder, installation)
    done = runner.run(folder)
    assert re.fullmatch(r"[3-5] semaphores\nPASS: 4 vectors, 0 elements differ\n", done.output), done.output
    done = runner.run(folder, fault="hang")
    assert "FAIL: model: the NPU was not done within the time limit" in done.output and done.status == 1
    assert "ethos-u55-128: still running" in done.line()
    done = runner.run(folder, fault="bus")
    assert done.status == 1 and "ethos-u55-128: bus abort" in done.line(), done.output


@pytest.mark.slow
def test_runs_outputs_and_values(installation: Path, tmp_path: Path) -> None:
    """Every vector three times, with the NPU's cycles of each run; its outputs; and what each call computes."""
    folder = tmp_path / "firmware"
    program = two_parts()
    deploy_together([source(program, "both")], folder, target="corstone300")
    prints = ("-DMICRONPU_PRINT_OUTPUTS=ON", "-DMICRONPU_PRINT_VALUES=ON")
    runner.build(folder, installation, "-DMICRONPU_RUNS=3", *prints)
    done = runner.run(folder)
    assert done.status == 0 and done.output.endswith("\nPASS: 4 vectors, 0 elements differ\n")
    counted = re.findall(r"^micronpu-npu-run both (\d) (\d) (\d+)$", done.output, re.M)
    assert [row[:2] for row in counted] == [(str(v), str(r)) for r in range(3) for v in range(4)]
    twice = [run.cycles for run in done.runs]  # the NPU is called twice a run
    assert [int(row[2]) for row in counted] == [a + b for a, b in zip(twice[::2], twice[1::2], strict=True)]
    found = read_printed(done.output.encode(), "log")
    (output,) = found.outputs_of("both").values()
    for row, got in zip(program.rows[:4], output, strict=True):
        np.testing.assert_array_equal(got, program.run(*row).numpy())
    # The kernel in between has two numbers from the NPU, in either order, and its result is the third.
    values = [rows for _, rows in sorted(found.values.items())]
    floats = [np.stack(rows) for rows in values if rows[0].dtype == np.float32]
    assert all(len(rows) == 12 for rows in values) and len(floats) >= 4
    wanted = [np.arctan2(floats[i].astype(np.float64), floats[1 - i].astype(np.float64)) for i in (0, 1)]
    assert any(np.allclose(floats[2], rows, atol=1e-6) for rows in wanted)
    log = read_log(done.output.encode(), "log")
    (rows,) = log.of(NPU)
    assert (rows.times, rows.ticks) == (12, twice[0] + twice[1]) and log.chip == "corstone300"
    # Weights are whole beats; of feature maps the board counts the least, and the report partial beats as well.
    assert log.beats["AXI1_RD_DATA_BEAT_RECEIVED"] == program.report.bus["AXI1"].read_beats > 0
    assert 0 < log.beats["AXI0_WR_DATA_BEAT_WRITTEN"] <= program.report.bus["AXI0"].written_beats


@pytest.mark.slow
def test_two_methods_that_share_a_state(installation: Path, tmp_path: Path) -> None:
    """One program with two methods on the NPU, one of which writes what the other reads."""
    own, x = Notes().eval(), torch.zeros(1, 8)
    rows = [torch.full((1, 8), i * 0.25) for i in range(6)]
    program = micronpu.compile(
        {"forward": (own, (x,)), "peek": (own.peek, (x,))},
        target="corstone300",
        calibration={"forward": [rows, rows[::-1]], "peek": [rows[:2]]},
        quantization=micronpu.Quantization(io="int8"),
    )
    folder = tmp_path / "firmware"
    done = program.deploy(folder, target="corstone300")
    runner.build(folder, installation, "-DMICRONPU_RUNS=2")  # each from the first states on
    printed = runner.run(folder)
    lines = [line for line in printed.output.splitlines() if not line.startswith("micronpu-")]
    assert lines == [f"PASS: {done.vectors} vectors, 0 elements differ"] and done.vectors > 4
    assert printed.output.count("micronpu-run ") == 2 * done.vectors


@pytest.mark.slow
def test_a_chip_whose_npu_is_elsewhere(installation: Path, tmp_path: Path) -> None:
    """The board's NPU is used, not the address of the chip."""
    x = (image(),)
    program = micronpu.compile(conv(8, 8).eval(), x, "alif-e7", calibration=batches(x, 6))
    folder = tmp_path / "firmware"
    program.deploy(folder, target="alif-e7")
    assert "0x48102000" not in (folder / "micronpu_npu.c").read_text()
    runner.build(folder, installation)
    done = runner.run(folder)
    assert done.output == "PASS: 4 vectors, 0 elements differ\n" and len(done.runs) == 4


@pytest.mark.slow
def test_programs_without_an_npu(installation: Path, tmp_path: Path) -> None:
    """Of ExecuTorch's own making, in portable kernels, one with a state."""
    folder = tmp_path / "firmware"
    deploy_together([Source(plain(kind), f"p_{kind}") for kind in ("mean", "two")], folder, target="corstone300")
    runner.build(folder, installation, "-DMICRONPU_BOARD_STACK=ON")
    _check_stack(runner.run(folder).output, 8, "a program of portable float kernels")
