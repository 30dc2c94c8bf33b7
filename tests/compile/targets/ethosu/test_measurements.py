"""Times that rest on a board's measurements: of the same program, unless the measured chip is the target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.compile.small import batches, conv, image
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import OptionError
from micronpu.chips.chip import text_of
from micronpu.chips.edit import with_numbers
from micronpu.cli.compare import _measured
from micronpu.cli.main import app
from micronpu.cli.workers import Task, Worker
from micronpu.targets.registry import find_target, options_for

TARGET = "alif-e7"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chip file as `micronpu calibrate` writes it: an MRAM that is slower by four."""
    chip = find_target(TARGET).chip
    assert chip is not None
    numbers = {("memory", "mram", "bandwidth"): 0.1e9, ("npu", "", "band"): (0.8, 1.25), ("npu", "", "measured"): 3}
    text = with_numbers(text_of(chip).replace(f'name = "{chip.name}"', 'name = "mine"', 1), numbers, "a test")
    path = tmp_path_factory.mktemp("chip") / "mine.toml"
    path.write_text(text)
    return path


def compiled(target: str = TARGET, measurements: str = "") -> micronpu.CompiledProgram:
    torch.manual_seed(0)
    options = options_for(find_target(target), given={"measurements": measurements})
    x = (image(),)
    return micronpu.compile(
        conv(8, 8).eval(), x, target, calibration=batches(x, 4), quantization="int8", options=options
    )


def test_measurements_change_the_time_and_no_byte(measured: Path) -> None:
    before, after = compiled(), compiled(measurements=str(measured))
    assert before.buffer == after.buffer
    (npu, *_), (slower, *_) = before.report.latency, after.report.latency
    assert slower.cycles > 2 * npu.cycles and (slower.low, slower.high) == (0.8, 1.25)
    assert slower.source.endswith("measured on your board, 3 networks") and "measured" not in npu.source
    flash, own = (
        sum(o.cost.memory_cycles.get("mram", 0) for o in p.report.operations if o.cost is not None)
        for p in (before, after)
    )
    assert own > 3 * flash
    assert before.report.hashes == after.report.hashes
    assert compiled(str(measured)).report.latency[0] == slower  # as the target it decides the plan, too


def test_measurements_of_another_chip_are_refused(measured: Path, tmp_path: Path) -> None:
    for target in ("ra8p1", "ethos-u55-256", "alif-e8"):
        with pytest.raises(OptionError, match="of another chip than"):
            options_for(find_target(target), given={"measurements": str(measured)})
    with pytest.raises(OptionError, match="has no option `measurements`"):
        options_for(find_target("imxrt700"), given={"measurements": str(measured)})
    slow = tmp_path / "slow.toml"
    slow.write_text(measured.read_text().replace("clock_mhz = 400", "clock_mhz = 200"))
    with pytest.raises(OptionError, match="or of another clock"):
        options_for(find_target(TARGET), given={"measurements": str(slow)})


def test_compare_and_advise_say_it(measured: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\ndef net():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.SiLU()).eval(), (torch.randn(1, 8, 8, 8),)\n"
        "def calibration():\n    return [torch.randn(1, 8, 8, 8) for _ in range(4)]\n"
    )
    call = CliRunner().invoke
    done = call(app, ["compare", f"{model}:net", "-t", "ra8p1", "--measurements", str(measured)])
    assert done.exit_code == 1 and "are of none of the targets" in done.output
    name = find_target(TARGET).name
    task = Task(f"{model}:net", measurements=(_measured(measured, [name]),))
    assert task.measurements == ((name, str(measured)),)
    threads = torch.get_num_threads()
    rows = [Worker(task).run((target, "int8")) for target in (TARGET, "ra8p1")]
    torch.set_num_threads(threads)
    assert ["measured on your board, 3 networks" in row.what for row in rows] == [True, False], rows
    done = call(
        app, ["advise", f"{model}:net", "-t", TARGET, "--measurements", str(measured), "--quantization", "int8"]
    )
    assert done.exit_code == 0, done.output
    assert "measured on your board, 3 networks" in " ".join(done.output.split())
