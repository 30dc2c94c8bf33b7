"""What was once computed wrongly, or not at all, without a word."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import micronpu
from micronpu.ir.op import QuantizationRule
from micronpu.ops import ATEN_IMPORTS

BACKENDS = ("imxrt700", "corstone300")


class Net(nn.Module):
    """A function of tensors with the modules that it calls."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


# --- integer borders ----------------------------------------------------------------------------------------------

IO_DESCRIPTIONS = {
    "softmax": (nn.Softmax(-1), "int8", 1 / 256, -128),
    "sigmoid": (nn.Sigmoid(), "int8", 1 / 256, -128),
    "tanh": (nn.Tanh(), "int8", 1 / 128, 0),
    "moved": (Net(lambda m, x: torch.softmax(x, -1).reshape(2, 5).transpose(0, 1)), "int8", 1 / 256, -128),
    "pooled": (Net(lambda m, x: F.max_pool1d(torch.sigmoid(x)[None], 2)), "int8", 1 / 256, -128),
}


@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("name", IO_DESCRIPTIONS)
def test_integer_outputs_take_the_qparams_that_an_operator_dictates(name, target):
    """Calibration sees weak answers only; the program must be able to give strong ones, and does so in one rounding."""
    model, io, scale, zero_point = IO_DESCRIPTIONS[name]
    weak = [torch.linspace(-0.4, 0.4, 10).roll(i)[None] for i in range(4)]
    program = micronpu.compile(
        model.eval(),
        weak[0],
        target,
        calibration=[*weak, torch.eye(10)[:1] * 6],
        quantization=micronpu.Quantization(io=io),
    )
    (border,) = program.integer_io.outputs
    assert (border.scale, border.zero_point) == (scale, zero_point)
    strong = torch.zeros(1, 10)
    strong[0, 3] = 6.0
    got = program.integer_io.dequantize((program.run(*program.integer_io.quantize((strong,))),))[0]
    assert float((got - model(strong)).abs().max()) <= 1.5 * scale


# --- in place -----------------------------------------------------------------------------------------------------


def _add_in_place(m: nn.Module, x: Tensor) -> Tensor:
    x += 1.0
    return F.relu(x)


def _write_row(m: nn.Module, x: Tensor) -> Tensor:
    x[:, 0] = 0.5
    return x * 2


IN_PLACE: dict[str, nn.Module] = {
    "first relu": nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3)),
    "only": Net(lambda m, x: F.hardtanh(x, inplace=True)),
    "twice": Net(lambda m, x: F.relu(F.hardtanh(x, inplace=True), inplace=True)),
    "both returned": Net(lambda m, x: (x.relu_(), x)),
    "add": Net(_add_in_place),
    "row": Net(_write_row),
}


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_into_the_input(name, target):
    model, x = IN_PLACE[name].eval(), torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    program = micronpu.compile(model, x, target, calibration=[x])
    assert program.report.delegated
    got = program.run(x)
    assert torch.equal(x, kept)  # neither the calibration data nor what the program runs on is changed
    with torch.no_grad():
        wanted = model(x.clone())
    for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, wanted)), strict=True):
        assert float((g - w).abs().max()) <= 0.05


# --- nothing to compute -------------------------------------------------------------------------------------------

NO_OPS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "add 0": (Net(lambda m, x: x + 0), (1, 3, 8, 8)),
    "0 add, sub 0": (Net(lambda m, x: 0 + x - 0), (1, 3, 8, 8)),
    "mul 1": (Net(lambda m, x: x * 1), (1, 3, 8, 8)),
    "sum of one": (Net(lambda m, x: x.sum(1, keepdim=True)), (1, 1, 8, 8)),
    "resize to its size": (Net(lambda m, x: F.interpolate(x, scale_factor=1.0)), (1, 3, 8, 8)),
    "bilinear to its size": (Net(lambda m, x: F.interpolate(x, size=(8, 8), mode="bilinear")), (1, 3, 8, 8)),
}


@pytest.mark.parametrize("target", ["imxrt700-neutron", "corstone300"])
@pytest.mark.parametrize("name", NO_OPS)
def test_what_computes_nothing_stays_on_the_host(name, target):
    model, shape = NO_OPS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    report = micronpu.check(model, x, target, calibration=[x]).report
    assert not report.delegated, report.verdicts
    assert all(v.reasons[0].rule == "computes" for v in report.host)


@pytest.mark.parametrize("target", ["imxrt700-neutron", "corstone300"])
def test_what_computes_nothing_goes_along_with_others(target):
    conv = nn.Conv2d(3, 3, 3, padding=1)
    model = Net(lambda m, x: (m.conv(x + 0) * 1, x + 0, F.interpolate(m.conv(x), scale_factor=1.0) - 0), conv=conv)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    program = micronpu.compile(model, x, target, calibration=[x])
    assert {v.operator for v in program.report.verdicts if v.delegated} >= {"conv2d.default"}
    for got, wanted in zip(program.run(x), program.quantized(x), strict=True):
        assert float((got - wanted).abs().max()) < 0.03


# --- quantization-aware training ----------------------------------------------------------------------------------


def matrix() -> nn.ParameterList:
    """A matrix [8, 5] and an addend [5]."""
    generator = torch.Generator().manual_seed(0)
    return nn.ParameterList([torch.randn(8, 5, generator=generator), torch.randn(5, generator=generator)])


PER_CHANNEL: dict[str, tuple[tuple[str, ...], nn.Module, tuple[int, ...]]] = {
    "conv1d": (("conv1d.default",), nn.Conv1d(4, 6, 3), (1, 4, 8)),
    "conv1d same": (("conv1d.padding",), nn.Conv1d(4, 6, 3, padding="same"), (1, 4, 8)),
    "conv2d": (("conv2d.default",), nn.Conv2d(4, 6, 3, groups=2), (1, 4, 8, 8)),
    "conv2d same": (("conv2d.padding",), nn.Conv2d(4, 4, 3, groups=4, padding="same"), (1, 4, 8, 8)),
    "conv3d": (("conv3d.default",), nn.Conv3d(4, 6, 2), (1, 4, 3, 5, 5)),
    "linear": (("linear.default",), nn.Linear(8, 5), (1, 8)),
    "mm": (("mm.default",), Net(lambda m, x: torch.mm(x, m.own[0]), own=matrix()), (1, 8)),
    "addmm": (("addmm.default",), Net(lambda m, x: torch.addmm(m.own[1], x, m.own[0]), own=matrix()), (1, 8)),
    "transposed 1d": (("conv_transpose1d.default",), nn.ConvTranspose1d(4, 6, 3, 2), (1, 4, 8)),
    "transposed 1d, batch norm": (
        ("conv_transpose1d.default",),
        nn.Sequential(nn.ConvTranspose1d(4, 6, 3, 2), nn.BatchNorm1d(6, momentum=0.0)),
        (1, 4, 8),
    ),
    "transposed 2d": (("conv_transpose2d.input",), nn.ConvTranspose2d(4, 6, 3, 2), (1, 4, 8, 8)),
    "transposed 2d, batch norm": (
        ("conv_transpose2d.input",),
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2), nn.BatchNorm2d(6, momentum=0.0), nn.ReLU()),
        (1, 4, 8, 8),
    ),
    "transposed 2d, depthwise": (("conv_transpose2d.input",), nn.ConvTranspose2d(4, 4, 3, groups=4), (1, 4, 8, 8)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("name", PER_CHANNEL)
def test_weights_per_channel_are_delegated_after_training(name, target):
    _, model, shape = PER_CHANNEL[name]
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(shape, generator=generator) for _ in range(4)]

    def train(module: nn.Module) -> None:
        for x in data:
            module(x)

    program = micronpu.compile(model.eval(), data[0], target, train=train)
    assert not program.report.host, program.report.host[0].reasons
    got, float_module = program.run(data[0]), model(data[0]).detach()
    assert float((got - program.quantized(data[0])).abs().max()) <= 1.01 * program_step(program)
    assert float((got - float_module).abs().max()) < 0.06 * float(float_module.abs().max())


def program_step(program: micronpu.CompiledProgram) -> float:
    """The scale of the one output."""
    (scale,) = program.partitions[-1].graph.outputs[0].type.qparams.scale
    return float(scale)


def test_every_operator_with_weights_has_a_row():
    weighted = {
        name
        for name, entry in ATEN_IMPORTS.items()
        if isinstance(entry.quantization, QuantizationRule) and entry.quantization.weight
    }
    assert weighted <= {name for names, *_ in PER_CHANNEL.values() for name in names}


# --- masks of truth values ----------------------------------------------------------------------------------------


def _attention() -> nn.MultiheadAttention:
    """With the same weights whatever was drawn before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.MultiheadAttention(8, 2, batch_first=True)


MASKS: dict[str, nn.Module] = {
    "key padding": Net(
        lambda m, x, hidden: m.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0],
        attention=_attention(),
    ),
    "attention": Net(lambda m, x, hidden: F.scaled_dot_product_attention(x, x, x, attn_mask=~hidden[:, None, :])),
    "scores": Net(
        lambda m, x, hidden: torch.softmax((x @ x.mT / 3).masked_fill(hidden[:, None, :], float("-inf")), -1) @ x
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_truth_values_are_finite_before_ranges_are_observed(name, target):
    generator = torch.Generator().manual_seed(0)

    def sample() -> tuple[Tensor, Tensor]:
        hidden = torch.rand(1, 5, generator=generator) > 0.6
        hidden[0, 0] = False
        return torch.randn(1, 5, 8, generator=generator), hidden

    data = [sample() for _ in range(8)]
    program = micronpu.compile(MASKS[name], data[0], target, calibration=data)
    assert not {"softmax.int", "matmul.default"} & {v.operator for v in program.report.host}
    for inputs in data[:4]:
        wanted = MASKS[name](*inputs).detach()
        assert float((program.run(*inputs) - wanted).abs().max()) < 0.08 * float(wanted.abs().max())
        other = inputs[0].clone()
        other[inputs[1]] += 1.0  # what is hidden has no say in what the others become
        changed = program.run(other, inputs[1])[~inputs[1]] - program.run(*inputs)[~inputs[1]]
        assert float(changed.abs().max()) < 0.02 * float(wanted.abs().max())


def test_a_softmax_over_very_long_rows_is_said_to_be_coarse():
    for size in (256, 1152):
        x = torch.randn(1, size, generator=torch.Generator().manual_seed(0))
        notes = " ".join(micronpu.compile(nn.Softmax(-1).eval(), x, "imxrt700-neutron", calibration=[x]).report.notes)
        assert ("rows of 1,152 values in int8, with a scale of 1/256" in notes) == (size == 1152)


@pytest.mark.parametrize("io", [None, "int8"])
@pytest.mark.parametrize(("factor", "scale"), [(1.0, None), (4.0, 1 / 256)])
def test_a_softmax_over_very_long_rows_is_finer_where_int16_is_there(io: Any, factor: float, scale: float) -> None:
    """Where no value is near to one; elsewhere it has the grid that every softmax has."""

    def sample(seed: int) -> Tensor:
        return torch.randn(1, 1152, generator=torch.Generator().manual_seed(seed)) * factor

    rows = [sample(seed) for seed in range(4)]
    program = micronpu.compile(
        nn.Softmax(-1).eval(), rows[0], "ethos-u55-128", calibration=rows, quantization=micronpu.Quantization(io=io)
    )
    assert (not program.report.host and program.integer_io is None) or io
    (graph,) = (part.graph for part in program.partitions)
    (y,) = graph.outputs
    assert [n.op.name for n in graph.nodes if n.op.name == "softmax"] == (["softmax"] if scale else [])
    assert y.type.scale == scale if scale else y.type.scale < 1 / 1024
    x = sample(9)
    integers = program.integer_io.quantize((x,)) if io else (x,)
    found = program.run(*integers)
    found = program.integer_io.dequantize((found,))[0] if io else found
    error = float((found - x.softmax(-1)).square().sum() / x.softmax(-1).square().sum())
    assert -10 * math.log10(error) > 20


@pytest.mark.parametrize("bits", [8, 4])
def test_channels_that_one_scale_leaves_hardly_a_step_are_named(bits: int) -> None:
    """Also after training, which cannot mend it; and not where each channel has its own scale."""
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 8, 3)
    with torch.no_grad():
        layer.weight[:4] *= 0.02
    x = torch.randn(1, 4, 6, 6)
    for per_channel in (True, False):
        settings = {"default": {"weight_bits": bits, "per_channel": per_channel}}
        program = micronpu.compile(
            layer.eval(), x, "imxrt700-neutron", calibration=[x], quantization=settings, verify=False
        )
        notes = " ".join(program.report.notes)
        assert ("no weight above 3 of its steps: `conv2d`. Training does not mend that." in notes) != per_channel


# --- casts on the host --------------------------------------------------------------------------------------------


def test_a_cast_to_float_between_two_qparams_moves_no_integers():
    """`to(float32)` only moves floats, but of the integers themselves it makes other numbers."""
    model = Net(lambda m, x: F.hardswish(F.one_hot(x.argmax(1), 8).float()).to(torch.float32))
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(1, 8, 8, generator=generator) for _ in range(8)]
    program = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data)
    assert {"to.dtype", "hardswish.default"} <= {v.operator for v in program.report.host}
    assert float((program.run(data[1]) - model(data[1])).abs().max()) < 0.01
