"""Cores and chips without an NPU: CMSIS-NN in int8, nothing delegated."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from executorch.export import ExportRecipe
from executorch.export import export as export_session
from torch import nn

import micronpu
from micronpu.base.errors import OptionError
from micronpu.chips import Chip, shipped_chips
from micronpu.chips.core import CORES
from micronpu.cli.inspection import inspect_pte
from micronpu.neutron import NeutronOptions
from micronpu.program.plan import read_plan
from micronpu.recipes import CortexMRecipeType
from micronpu.report.views.html import page
from micronpu.runtime import HostProgram
from micronpu.targets.cortexm.options import CortexMOptions
from micronpu.targets.registry import BACKENDS, all_targets, chip_targets, device_for, find_target

ALONE = ("stm32f746", "rp2350", "nrf5340")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, groups=8)
        self.last = nn.Linear(8 * 9, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.second(torch.relu(self.first(x))))
        return torch.softmax(self.last(nn.functional.avg_pool2d(x, 2).flatten(1)), 1)


class Wide(nn.Module):
    """Has an operator that a core computes in float."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(x), 1) + 1.0


torch.manual_seed(3)
MODEL = Network().eval()
INPUTS = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)),) for i in range(8)]


@functools.cache
def compiled(target: str, **options: object) -> micronpu.CompiledProgram:
    return micronpu.compile(MODEL, INPUTS[0], target, calibration=INPUTS, **options)


def operators(program: bytes) -> list[str]:
    found = inspect_pte(program)
    assert not found.delegates
    return [name for names in found.operators.values() for name in names]


@pytest.fixture(scope="module")
def program() -> micronpu.CompiledProgram:
    return compiled("cortex-m55")


def test_nothing_but_operators_of_the_core(program):
    names = operators(program.buffer)
    assert names and all(name.startswith("cortex_m::") for name in names), names
    assert {"cortex_m::quantize_per_tensor.out", "cortex_m::dequantize_per_tensor.out"} <= set(names)
    (calls,) = inspect_pte(program.buffer).calls.values()  # with the numbers of a board's log
    assert list(calls) == [call.operator for call in read_plan(program.buffer)[0].calls]
    worst = max((program.run(*x) - MODEL(*x)).abs().max() for x in INPUTS)
    assert worst < 0.01
    # Bit for bit what the quantized model says, up to the last step of softmax.
    assert (program.run(*INPUTS[1]) - program.quantized(*INPUTS[1])).abs().max() <= 1 / 256 + 1e-6


def test_the_report_speaks_of_a_core(program):
    report = program.report
    count = len(report.verdicts)
    assert report.summary() == f"{count} of {count} operators in int8 on cortex-m55"
    assert (report.share, report.left_over, report.partitions, report.has_npu) == (1.0, (), 0, False)
    assert {v.core for v in report.verdicts} == {"Cortex-M55 (CMSIS-NN)"}
    text = str(report)
    assert "NPU" not in text and "On the core" not in text, text


def test_a_report_as_a_page_speaks_of_a_core(program):
    assert "on the NPU" not in page(program.report, graph=False)


def test_integers_in_and_out():
    program = compiled("cortex-m33", quantization=micronpu.Quantization(io="int8"))
    assert not [name for name in operators(program.buffer) if "quantize_per_tensor" in name]
    result = program.run(*program.integer_io.quantize(INPUTS[1]))
    (back,) = program.integer_io.dequantize([result])
    assert (back - MODEL(*INPUTS[1])).abs().max() < 0.01


def test_what_no_kernel_takes_stays_in_float():
    x = (torch.randn(1, 600, generator=torch.Generator().manual_seed(0)),)
    program = micronpu.compile(Wide().eval(), x, "cortex-m4", calibration=[x])
    (left,) = program.report.left_over
    assert [r.rule for r in left.reasons] == ["core_softmax_sum_fits"]
    assert "aten::_softmax.out" in operators(program.buffer)
    assert program.report.summary().endswith("operators in int8 on cortex-m4")
    assert len(micronpu.check(Wide().eval(), x, "cortex-m4").report.left_over) == 1
    assert (program.run(*x) - Wide()(*x)).abs().max() < 0.1


@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "cortex-m85"])
def test_every_core_is_a_target(core):
    device = device_for(core)
    assert (device.target, device.core.name, device.backend) == (core, core, "")
    report = micronpu.check(MODEL, INPUTS[0], core).report
    assert report.share == 1.0 and {v.core for v in report.verdicts} == {device.core.title}


def test_every_core_that_cmsis_nn_runs_on_is_listed():
    bare = {name for name, target in all_targets().items() if target.backend == "cortex-m" and target.chip is None}
    assert bare == set(CORES)


@pytest.mark.parametrize("name", ALONE)
def test_a_chip_without_an_npu(name):
    chip = shipped_chips()[name]
    (target,) = chip_targets(chip)
    assert chip.npu is None and find_target(name) == target and target.silicon == chip.core
    assert (device_for(name).target, device_for(name).core.name) == (target.name, chip.core)


def test_a_chip_makes_the_program_of_its_core():
    assert compiled("rp2350").buffer == compiled("cortex-m33").buffer


@pytest.mark.sweep
@pytest.mark.parametrize(
    "recipe",
    [
        lambda: ExportRecipe.get_recipe(CortexMRecipeType.INT8, silicon="cortex-m33", calibration=INPUTS),
        lambda: micronpu.get_chip_recipe("rp2350", calibration=INPUTS),
    ],
    ids=["family", "chip"],
)
def test_a_recipe_makes_the_program_of_compile(recipe, tmp_path):
    made = recipe()
    session = export_session(copy.deepcopy(MODEL), INPUTS, made)
    expected = compiled("cortex-m33")
    assert sorted(operators(bytes(session.get_pte_buffer()))) == sorted(operators(expected.buffer))
    ran = HostProgram(bytes(session.get_pte_buffer())).run(*INPUTS[1])[0]
    assert torch.equal(ran, expected.run(*INPUTS[1]))
    (partitioner,) = made.lowering_recipe.partitioners
    assert partitioner.report.share == 1.0


def chip_file(tmp_path, core: str) -> str:
    path = tmp_path / "board.toml"
    path.write_text(
        f'name = "board"\ntitle = "Board"\nsource = "me"\ncore = {{ name = "{core}", clock_mhz = 80 }}\n'
        'target = [{ name = "board-core", title = "core" }]\n'
    )
    return str(path)


def test_a_chip_file_without_an_npu(tmp_path):
    assert find_target(chip_file(tmp_path, "cortex-m4")).silicon == "cortex-m4"
    assert device_for(chip_file(tmp_path, "cortex-m4")).target == "board-core"


def test_passes_can_be_left_out():
    without = ("sink_transposes", "merge_transposes", "lift_transposes", "gather_transposes")
    program = compiled("cortex-m33", options=CortexMOptions(disabled_passes=without))
    assert program.buffer != compiled("cortex-m33").buffer
    assert (program.run(*INPUTS[1]) - MODEL(*INPUTS[1])).abs().max() < 0.01


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_name_of_nothing_cannot_be_left_out(backend):
    with pytest.raises(OptionError, match=r"'no_such_thing'.*Try: one of \d+, such as .*`micronpu passes` lists all"):
        backend.options(backend.usual, disabled_passes=("no_such_thing",))


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_every_rewrite_can_be_left_out_or_says_why_not(backend):
    for rewrite in (*backend.options.switchable_rewrites, *backend.options.needed_rewrites):
        given = {"silicon": backend.usual, "disabled_passes": (rewrite.name,)}
        if rewrite in backend.options.switchable_rewrites:
            assert backend.options(**given).disabled_node_rewrites == (rewrite.name,)
        elif rewrite.name not in {other.name for other in backend.options.switchable_rewrites}:
            with pytest.raises(OptionError, match=f"The rewrite '{rewrite.name}' cannot be left out, because programs"):
                backend.options(**given)


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"CMSIS-NN does not run on the core 'cortex-a55'\. Try: one of cortex-m0,"):
        find_target(chip_file(tmp_path, "cortex-a55"))
    with pytest.raises(OptionError, match="cortex-m4 takes CortexMOptions, but the options are of type NeutronOptions"):
        compiled("cortex-m4", options=NeutronOptions())
    with pytest.raises(OptionError, match="quantizes activations to int8"):
        compiled("cortex-m4", quantization="int16")
    with pytest.raises(OptionError, match="does not run on the core 'cortex-m99'"):
        BACKENDS["cortex-m"].options(silicon="cortex-m99")
    assert isinstance(shipped_chips()["rp2350"], Chip)
