"""Programs for an NPU and its Cortex-M core, in the ExecuTorch runtime: the integer reference bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from benchmarks.combined import IntegerProgram
from examples.keyword_spotting import model as keyword_spotting
from executorch.exir._serialize._program import deserialize_pte_binary
from torch import nn
from torch.nn import functional as F

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.chips.core import Core, find_core
from micronpu.targets.neutron.device import NeutronDevice
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rewrites import REWRITES
from micronpu.targets.registry import device_for

TARGET = "imxrt700-neutron-cortexm"
CORE = "Cortex-M33 (CMSIS-NN)"
Tail = Callable[[torch.Tensor], torch.Tensor]


class Between(nn.Module):
    """Two convolutions with something between them, and a classifier with something behind it."""

    def __init__(self, between: Tail = torch.relu, behind: Tail = torch.relu) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 10, 3, padding=1)
        self.second = nn.Conv2d(10, 8, 3, stride=2)
        self.classes = nn.Linear(8, 10)
        self._between, self._behind = between, behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._between(self.first(x))
        x = F.adaptive_avg_pool2d(self.second(x), 1).flatten(1)
        return self._behind(self.classes(x))


def images(count: int, layout: torch.memory_format = torch.contiguous_format) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(1, 3, 14, 14, generator=generator).to(memory_format=layout) for _ in range(count)]


def options(*excluded: str, flavor: str = "latest") -> NeutronOptions:
    return NeutronOptions(
        silicon="imxrt700",
        converter_flavor=flavor,
        operators_not_to_delegate=tuple(f"aten.{name}" for name in excluded),
        disabled_passes=tuple(rewrite.name for rewrite in REWRITES),
    )


def compiled(
    model: nn.Module, chosen: NeutronOptions, layout: torch.memory_format = torch.contiguous_format
) -> micronpu.CompiledProgram:
    calibration = images(8, layout)
    return micronpu.compile(
        model.eval().to(memory_format=layout), (calibration[0],), TARGET, calibration=calibration, options=chosen
    )


def kernels(program: micronpu.CompiledProgram) -> list[str]:
    """What the program calls, in order; a delegate is "npu"."""
    (plan,) = deserialize_pte_binary(program.buffer).program.execution_plan
    calls = (instruction.instr_args for instruction in plan.chains[0].instructions)
    return [plan.operators[c.op_index].name if hasattr(c, "op_index") else "npu" for c in calls]


def check(program: micronpu.CompiledProgram, reference: IntegerProgram, inputs: list[torch.Tensor]) -> None:
    assert reference.floats_inside() == [] and reference.requantizing_pairs() == 0
    called = kernels(program)
    assert called[0].endswith("::quantize_per_tensor")
    assert called[-1].endswith("::dequantize_per_tensor")
    assert not any("quantize_per_tensor" in name for name in called[1:-1])
    for x in inputs:
        assert torch.equal(program.run(x), reference(x))


def scaled_sum(x: torch.Tensor) -> torch.Tensor:
    return x + x.mean((2, 3), keepdim=True)


def clipped(x: torch.Tensor) -> torch.Tensor:
    return torch.minimum(torch.maximum(x, -0.5 * x), x * x + 0.25)


REFUSALS = [
    pytest.param(torch.relu, lambda y: torch.softmax(y, -1), options(flavor="SDK_25_06"), id="softmax"),
    pytest.param(scaled_sum, torch.relu, options(flavor="SDK_25_06"), id="unequal_add"),
    pytest.param(clipped, torch.relu, options(flavor="SDK_25_06"), id="minimum_maximum"),
    pytest.param(F.hardswish, torch.relu, options("hardswish.default"), id="hard_swish"),
    pytest.param(
        lambda x: F.max_pool2d(x, 2), torch.sigmoid, options("max_pool2d.default", "sigmoid.default"), id="pool"
    ),
    pytest.param(
        lambda x: F.avg_pool2d(F.interpolate(torch.cat([x, x * 0.5], 1)[:, 5:15], scale_factor=2, mode="bilinear"), 2),
        lambda y: F.prelu(y, torch.linspace(-0.3, 0.9, y.shape[-1 if y.ndim == 2 else 1])),
        options("cat.default", "upsample_bilinear2d.vec", "prelu.default"),
        id="cat, resize, prelu",
    ),
    pytest.param(lambda x: F.pad(x, (1, 0, 0, 2)), torch.relu, options("pad.default"), id="pad"),
    pytest.param(
        lambda x: (
            (x.flatten(2).transpose(1, 2) @ x.flatten(2)).reshape(1, 1, 196, 196)[:, :, :10, :10].repeat(1, 10, 1, 1)
        ),
        torch.relu,
        options("matmul.default"),
        id="matmul",
    ),
    pytest.param(torch.relu, torch.relu, options("conv2d.default", "linear.default"), id="products"),
]


@pytest.mark.sweep
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(("between", "behind", "chosen"), REFUSALS)
def test_what_the_npu_refuses_runs_in_integers(
    between: Tail, behind: Tail, chosen: NeutronOptions, layout: torch.memory_format
) -> None:
    program = compiled(Between(between, behind), chosen, layout)
    left = [v for v in program.report.verdicts if not v.delegated]
    assert left and {v.core for v in left} == {CORE} and not program.report.in_float
    assert all(v.reasons for v in left)
    assert program.report.delegated
    check(program, IntegerProgram(program, device_for(TARGET, chosen)), images(4, layout))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
def test_images_between_npu_and_core_are_not_transposed(layout: torch.memory_format) -> None:
    program = compiled(Between(F.hardswish), options("hardswish.default"), layout)
    assert kernels(program)[1:-1] == ["npu", "cortex_m::quantized_activation", "npu"]
    pooled = compiled(Between(lambda x: F.avg_pool2d(x, 2)), options("avg_pool2d.default"), layout)
    assert kernels(pooled)[1:-1] == ["npu", "cortex_m::quantized_avg_pool2d_nhwc", "npu"]


def test_a_change_of_qparams_is_one_table() -> None:
    program = compiled(
        Between(lambda x: F.hardswish(F.leaky_relu(x))), options("hardswish.default", "leaky_relu.default")
    )
    assert kernels(program)[1:-1] == ["npu", "cortex_m::quantized_activation", "npu"]


def test_what_the_core_cannot_do_stays_float_with_both_reasons() -> None:
    resize = Between(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"))
    wanted = options("upsample_bilinear2d.vec")
    program = compiled(resize, replace(wanted, disabled_passes=(*wanted.disabled_passes, "bilinear_by_phases")))
    (verdict,) = program.report.in_float
    assert [r.rule for r in verdict.reasons] == ["is_wanted", "core_has_kernel"]
    assert "The core has an int8 kernel for the operator." in str(program.report)
    x = images(1)[0]
    assert (program.run(x) - program.quantized(x)).abs().max() < 0.05


def test_check_says_what_compile_does() -> None:
    chosen = options("hardswish.default")
    calibration = images(2)
    checked = micronpu.check(Between(F.hardswish).eval(), calibration[0], TARGET, options=chosen).report
    found = compiled(Between(F.hardswish), chosen).report
    assert [(v.node, v.partition, v.core) for v in checked.verdicts] == [
        (v.node, v.partition, v.core) for v in found.verdicts
    ]


def test_npu_only_target_computes_the_rest_in_float() -> None:
    x = images(1)
    program = micronpu.compile(
        Between(F.hardswish).eval(), (x[0],), "imxrt700-neutron", calibration=x, options=options("hardswish.default")
    )
    assert [v.operator for v in program.report.in_float] == ["hardswish.default"]
    assert "cortex_m" not in " ".join(kernels(program))


def test_a_contiguous_tensor_for_a_channels_last_program_is_refused() -> None:
    program = compiled(Between(F.hardswish), options("hardswish.default"), torch.channels_last)
    with pytest.raises(MicroNpuError, match="compiled for channels-last inputs"):
        program.run(images(1)[0])


@pytest.mark.sweep
@pytest.mark.parametrize("core", ["cortex-m0", "cortex-m33", "cortex-m55"])
def test_keyword_spotting_on_every_kind_of_core(core: str) -> None:
    """Nothing on the NPU: the whole DS-CNN in CMSIS-NN's arithmetic, in less than 10 ms per clip."""
    module, example = keyword_spotting.dscnn()
    clips, _, _ = keyword_spotting.test_rows()
    every = (
        "conv2d.default",
        "relu.default",
        "avg_pool2d.default",
        "pad.default",
        "flatten.using_ints",
        "linear.default",
    )
    device = NeutronDevice(options(*every, "adaptive_avg_pool2d.default"), "core-only", core=find_core(core))
    program = _compiled_for(device, module, example, [row for (row,) in keyword_spotting.calibration()][:50])
    assert program.report.delegated == 0 and not program.report.in_float
    check(program, IntegerProgram(program, device), [clips[i : i + 1] for i in range(3)])


def _compiled_for(
    device: NeutronDevice, module: nn.Module, example: tuple[torch.Tensor, ...], calibration: list[torch.Tensor]
) -> micronpu.CompiledProgram:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("micronpu.compiler.compile.device_for", lambda target, options: device)
        return micronpu.compile(module.eval(), example, "imxrt700", calibration=calibration)


def test_a_core_without_cmsis_nn_is_refused() -> None:
    with pytest.raises(MicroNpuError, match="CMSIS-NN does not run on the core 'cortex-a55'"):
        find_core("cortex-a55")
    assert isinstance(find_core("cortex-m85"), Core)
