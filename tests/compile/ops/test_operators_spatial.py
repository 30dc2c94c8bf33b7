"""Windows and movement from PyTorch to the running program: all on the NPU, in one call, and as the quantized model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.cases import Case, case, i8, q, w8
from torch import nn

import micronpu
from micronpu.compiler.compile import check_model
from micronpu.ir.window import Padding2d
from micronpu.ops import Op
from micronpu.ops.convolution import TransposeConv2d
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rules import check_node
from micronpu.targets.neutron.target_spec import NeutronTargetSpec


@dataclass(frozen=True)
class Row:
    """A piece of a network.

    Attributes:
        make: makes a module or is a function of one tensor.
        shape: of the input.
    """

    name: str
    make: Callable[..., Any]
    shape: tuple[int, ...]
    module: bool = False


IMAGE, ODD, SIGNAL = (1, 8, 6, 6), (1, 12, 7, 9), (1, 8, 12)


def layer(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE) -> Row:
    return Row(name, make, shape, module=True)


def function(name: str, call: Callable[[torch.Tensor], Any], shape: tuple[int, ...] = IMAGE) -> Row:
    return Row(name, call, shape)


def norm(channels: int, spatial: int = 2) -> nn.Module:
    """A batch norm that has seen data."""
    made = nn.BatchNorm1d(channels) if spatial == 1 else nn.BatchNorm2d(channels)
    made.running_mean = torch.linspace(-1.0, 1.0, channels)
    made.running_var = torch.linspace(0.3, 3.0, channels)
    return made


ROWS = [
    # convolutions
    layer("conv2d dilated", lambda: nn.Conv2d(8, 4, 3, dilation=2, padding=1)),
    layer("conv2d without bias", lambda: nn.Conv2d(8, 4, 3, bias=False)),
    layer("conv2d in 2 groups", lambda: nn.Sequential(nn.Conv2d(8, 6, 3, groups=2), nn.ReLU())),
    layer("conv2d in 6 groups", lambda: nn.Conv2d(12, 18, 3, stride=2, padding=1, groups=6), ODD),
    layer("depthwise", lambda: nn.Conv2d(8, 8, 3, groups=8)),
    layer("depthwise with 3 results each", lambda: nn.Conv2d(8, 24, 3, groups=8)),
    layer("conv2d padded by reflection", lambda: nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect")),
    layer("conv2d same", lambda: nn.Conv2d(8, 4, (3, 2), padding="same")),
    layer("conv2d without a batch", lambda: nn.Conv2d(8, 4, 3), (8, 6, 6)),
    layer("conv1d", lambda: nn.Conv1d(8, 6, 3, 2, 1), SIGNAL),
    layer("conv1d same dilated", lambda: nn.Conv1d(8, 6, 3, padding="same", dilation=2), SIGNAL),
    layer("conv1d relu conv1d", lambda: nn.Sequential(nn.Conv1d(8, 6, 3), nn.ReLU6(), nn.Conv1d(6, 5, 3)), SIGNAL),
    layer("conv1d depthwise", lambda: nn.Conv1d(8, 16, 3, groups=8), SIGNAL),
    layer("conv1d in 4 groups", lambda: nn.Conv1d(8, 12, 3, groups=4), SIGNAL),
    # transposed convolutions
    layer("transposed 3/2/1/1", lambda: nn.ConvTranspose2d(8, 4, 3, 2, 1, 1)),
    layer("transposed 4/2/1", lambda: nn.Sequential(nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ReLU())),
    layer("transposed 2/2", lambda: nn.ConvTranspose2d(8, 4, 2, 2)),
    layer("transposed 3/1/1", lambda: nn.ConvTranspose2d(8, 4, 3, 1, 1, bias=False)),
    layer("transposed, results beyond every input", lambda: nn.ConvTranspose2d(8, 4, 3, 2, 0, 1)),
    layer("transposed, uneven", lambda: nn.ConvTranspose2d(12, 4, (4, 3), (2, 1), (2, 0), (1, 0)), ODD),
    layer("transposed in groups", lambda: nn.ConvTranspose2d(8, 6, 3, 2, 1, groups=2)),
    layer("transposed depthwise", lambda: nn.ConvTranspose2d(12, 12, 4, 2, 1, groups=12, bias=False), ODD),
    layer("transposed 1d", lambda: nn.ConvTranspose1d(8, 4, 3, 2, 1, 1), SIGNAL),
    layer("transposed 1d 4/2/1", lambda: nn.ConvTranspose1d(8, 4, 4, 2, 1), SIGNAL),
    layer("transposed with batch norm", lambda: nn.Sequential(nn.ConvTranspose2d(8, 6, 3, 2, groups=2), norm(6))),
    layer("transposed 1d with batch norm", lambda: nn.Sequential(nn.ConvTranspose1d(8, 6, 3), norm(6, 1)), SIGNAL),
    # pools
    function("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), SIGNAL),
    function("max_pool1d ceil", lambda x: F.max_pool1d(x, 5, 3, ceil_mode=True), SIGNAL),
    function("avg_pool1d", lambda x: F.avg_pool1d(x, 2), SIGNAL),
    function("avg_pool1d padded", lambda x: F.avg_pool1d(x, 3, 2, 1), SIGNAL),
    function("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 4), SIGNAL),
    function("adaptive_avg_pool1d uneven", lambda x: F.adaptive_avg_pool1d(x, 5), SIGNAL),
    function("adaptive_max_pool1d uneven", lambda x: F.adaptive_max_pool1d(x, 5), SIGNAL),
    function("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1)),
    function("max_pool2d ceil", lambda x: F.max_pool2d(x, (3, 2), (2, 2), ceil_mode=True), ODD),
    function("max_pool2d with indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0]),
    function("max_pool2d without a batch", lambda x: F.max_pool2d(x, 2), (8, 6, 6)),
    function("avg_pool2d without a batch", lambda x: F.avg_pool2d(x, 2), (8, 6, 6)),
    function("avg_pool2d padded", lambda x: F.avg_pool2d(x, 3, 1, 1)),
    function("avg_pool2d ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    function("avg_pool2d uncounted", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    function("avg_pool2d uncounted ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), ODD),
    function("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 1))),
    function("adaptive_avg_pool2d uneven", lambda x: F.adaptive_avg_pool2d(x, (4, 5)), ODD),
    function("adaptive_avg_pool2d larger", lambda x: F.adaptive_avg_pool2d(x[:, :, :2, :1], (3, 2))),
    function("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 2))),
    function("adaptive_max_pool2d uneven", lambda x: F.adaptive_max_pool2d(x, (4, 5)), ODD),
    # resizes
    function("nearest 2", lambda x: F.interpolate(x, scale_factor=2)),
    function("nearest 4 x 1", lambda x: F.interpolate(x, scale_factor=(4, 1))),
    function("nearest 2.05, which torch takes for 2", lambda x: F.interpolate(x, scale_factor=2.05)),
    function("nearest to a size", lambda x: F.interpolate(x, size=(12, 48))),
    function("nearest exact", lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact")),
    function("nearest 1d", lambda x: F.interpolate(x, scale_factor=4), SIGNAL),
    function("bilinear 2", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    function("bilinear 8 x 4", lambda x: F.interpolate(x, scale_factor=(8, 4), mode="bilinear")),
    function("bilinear aligned", lambda x: F.interpolate(x, size=(11, 21), mode="bilinear", align_corners=True)),
    function("linear 1d", lambda x: F.interpolate(x, scale_factor=2, mode="linear"), SIGNAL),
    layer("nn.Upsample", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)),
    # padding
    function("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=-1.0)),
    function("pad of channels", lambda x: F.pad(x, (0, 0, 0, 0, 1, 2))),
    function("pad negative", lambda x: F.pad(x, (2, -1, 0, -3))),
    function("pad reflect", lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect")),
    function("pad replicate", lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate")),
    function("pad circular", lambda x: F.pad(x, (2, 1, 1, 3), mode="circular")),
    layer("ReflectionPad1d", lambda: nn.ReflectionPad1d((2, 1)), SIGNAL),
    layer("ReplicationPad1d", lambda: nn.ReplicationPad1d(2), SIGNAL),
    layer("ZeroPad2d", lambda: nn.ZeroPad2d((1, 0, 2, 0))),
    # parts
    function("slice", lambda x: x[:, 1:5, 2:, :-1]),
    function("slice from the end", lambda x: x[:, -3:, ..., -2:]),
    function("slice with steps", lambda x: x[:, :, ::2, 1::3]),
    function("slice channels with steps", lambda x: x[:, 1::3]),
    function("slice all but one", lambda x: x[:, :7:4]),
    function("slice of 6 axes", lambda x: x.reshape(1, 2, 4, 2, 3, 6)[:, :, 1:3, :, 1:]),
    function("select", lambda x: x[:, -1]),
    function("select twice", lambda x: x[0, 3]),
    function("narrow", lambda x: x.narrow(1, 2, 3)),
    function("split", lambda x: (lambda a, b, c: a + b)(*torch.split(x[:, :6], 2, 1))),
    function("split by sizes", lambda x: x.split([3, 5], 1)[1]),
    function("chunk", lambda x: (lambda a, b: b - a)(*x.chunk(2, 3))),
    function("tensor_split", lambda x: torch.tensor_split(x, 3, 1)[2]),
    function("tensor_split at", lambda x: torch.tensor_split(x, (1, 4), 2)[1]),
    function("unbind", lambda x: (lambda parts: parts[1] + parts[5])(x.unbind(2))),
    function("all parts are results", lambda x: torch.split(x, [1, 7], 1)),
    function("index_select", lambda x: torch.index_select(x, 1, torch.tensor([0, 1, 2, 7, 3, 5]))),
    function("index", lambda x: x[:, :, [5, 0, 2, 4]]),
    function("unfold along an axis", lambda x: x.unfold(3, 3, 2)),
    layer("Unfold", lambda: nn.Unfold((2, 3), stride=(2, 1), padding=1, dilation=(2, 1))),
    # copies and order
    function("stack", lambda x: torch.stack([x, x], 2)),
    function("hstack", lambda x: torch.hstack([x, x])),
    function("vstack", lambda x: torch.vstack([x, x])),
    function("dstack", lambda x: torch.dstack([x, x])),
    function("expand", lambda x: x[:, :, :1].expand(3, -1, 40, -1)),
    function("expand_as", lambda x: x[:, :1].expand_as(x)),
    function("broadcast_to", lambda x: torch.broadcast_to(x[:, :, :1, :1], (2, 8, 5, 3))),
    function("repeat", lambda x: x.repeat(2, 1, 2, 3)),
    function("tile", lambda x: x.tile(2)),
    function("repeat_interleave", lambda x: x.repeat_interleave(3, 1)),
    function("flip", lambda x: x.flip(-1, 2)),
    function("roll", lambda x: x.roll((1, -2), (2, 3))),
    function("roll flat", lambda x: x.roll(7)),
    function("permute", lambda x: x.permute(0, 2, 1, 3)),
    function("movedim", lambda x: x.movedim((1, 2), (3, 1))),
    function("swapaxes", lambda x: x.swapaxes(1, -1)),
    function("transposes", lambda x: x[0, 0].T + x.mT[0, 0] + x[0, 0].t()),
    function("unflatten", lambda x: x.unflatten(1, (2, -1)).flatten(2)),
    function("squeeze", lambda x: x.squeeze().unsqueeze(1).squeeze(1)),
    function("view_as", lambda x: x.view_as(torch.empty(16, 18))),
    function("conversions", lambda x: (x + x).float().to("cpu").contiguous().clone().type_as(x)),
    layer("PixelShuffle", lambda: nn.PixelShuffle(2)),
    layer("PixelUnshuffle", lambda: nn.PixelUnshuffle(3)),
    layer("ChannelShuffle", lambda: nn.ChannelShuffle(4)),
    function("channel shuffle by hand", lambda x: x.view(1, 2, 4, 6, 6).transpose(1, 2).reshape(1, 8, 6, 6)),
    function("softmax of channels", lambda x: F.softmax(x, 1)),
]


class Side(nn.Module):
    """Rows side by side, so that they share an export and a program."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        made = [row.make() if row.module else row.make for row in rows]
        self.calls = made
        self.layers = nn.ModuleList(m for m in made if isinstance(m, nn.Module))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = [x * 0.5]  # a partition computes something
        for call in self.calls:
            result = call(x)
            results += result if isinstance(result, (tuple, list)) else [result]
        return tuple(results)


def steps(quantized: torch.fx.GraphModule) -> list[float]:
    """Scale of every output."""
    (output,) = (n for n in quantized.graph.nodes if n.op == "output")
    return [float(n.args[1]) for n in output.args[0]]


def noise(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Error in parts of the magnitude."""
    return float((got - expected).norm() / expected.norm()) if expected.shape == got.shape else math.inf


SHAPES = list(dict.fromkeys(row.shape for row in ROWS))
GROUPS = [
    pytest.param(rows[start : start + 16], id=f"{'x'.join(map(str, shape))}-{start}")
    for shape in SHAPES
    for rows in [[row for row in ROWS if row.shape == shape]]
    for start in range(0, len(rows), 16)
]


@pytest.mark.sweep
@pytest.mark.parametrize("rows", GROUPS)
def test_rows_run_on_the_npu(rows: list[Row]):
    torch.manual_seed(0)
    model = Side(rows).eval()
    batches = [torch.randn(rows[0].shape) * (1.0 + i) for i in range(3)]
    program = micronpu.compile(model, (batches[0],), "imxrt700", calibration=batches)
    left = [f"{v.operator} {v.node}: {r}" for v in program.report.verdicts for r in v.reasons]
    assert not left
    assert len(program.partitions) == 1
    scales = steps(program.quantized)
    problems = []
    for batch in batches:
        results, expected, real = program.run(batch), program.quantized(batch), model(batch)
        assert len(results) == len(expected) == len(scales)
        for number, (got, want, scale) in enumerate(zip(results, expected, scales, strict=True)):
            worst = float((got - want).abs().max()) / scale
            if got.shape != want.shape or worst > 1.01:
                problems.append(f"output {number}: {worst:.2f} steps, {list(got.shape)}")
            # The quantized program has been rewritten, too: the float model says whether it computes the same at all.
            if noise(real[number].detach(), got) > 0.15:
                problems.append(f"output {number}: {noise(real[number], got):.3f} of the float model's magnitude")
    assert not problems, [row.name for row in rows]


FACTORS = [{"size": (11, 21), "align_corners": True}, {"scale_factor": (2, 4)}, {"scale_factor": (1, 8)}]


@pytest.mark.sweep
@pytest.mark.parametrize("options", FACTORS, ids=str)
def test_a_resize_with_a_factor_for_each_axis_is_one_operator(options: dict[str, Any]):
    torch.manual_seed(0)
    model = Side([function("resize", lambda x: F.interpolate(x, mode="bilinear", **options))]).eval()
    x = torch.randn(IMAGE)
    program = micronpu.compile(model, (x,), "imxrt700", calibration=[(x,)])
    (part,) = program.partitions
    assert {n.op.name for n in part.graph.nodes} <= {"resize_bilinear", "transpose", "mul"}
    far = (program.run(x)[1] - model(x)[1]).abs() / steps(program.quantized)[1]
    assert float(far.max()) <= 1.01  # half a step for x, and half a one for the result
    published = NeutronOptions(converter_flavor="SDK_25_12")
    program = micronpu.compile(model, (x,), "imxrt700-neutron", calibration=[(x,)], options=published)
    assert not any(n.op.name == "resize_bilinear" for p in program.partitions for n in p.graph.nodes)


# ---------------------------------------------------------------- what stays on the host says why

REFUSED = [
    (lambda x: F.max_pool2d(x, 2, return_indices=True), "is_imported", "max_pool2d_with_indices"),
    (lambda x: F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3), "is_imported", "divisor_override"),
    (lambda x: x.repeat(1, 1, 12, 12).flip(2), "is_imported", "72 elements"),
    (nn.ConvTranspose2d(8, 4, 1, 2), "transposed_stride_is_small", "kernel [1, 1]"),
]


@pytest.mark.parametrize(("call", "rule", "detail"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_refused_with_a_reason(call: Callable[[torch.Tensor], Any], rule: str, detail: str):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.call = call

        def forward(self, x: torch.Tensor) -> Any:
            return self.call(x)

    report = check_model(Model().eval(), torch.randn(1, 8, 6, 6), "imxrt700").report
    reasons = [r for v in report.verdicts for r in v.reasons]
    assert any(r.rule == rule and detail in str(r) for r in reasons), [str(r) for r in reasons]


def reasons(row: Case) -> list[str]:
    """Names of the rules that the operator of a row breaks."""
    (node,) = row.graph().nodes
    return [r.rule for r in check_node(node, NeutronTargetSpec("imxrt700"))]


def upscaled(op: Op, height: int = 3) -> Case:
    return case(op, x=i8(1, height, 3, 2))


def transposed(op: TransposeConv2d, kernel: tuple[int, int] = (3, 3)) -> Case:
    return case(op, x=i8(1, 3, 3, 2), weight=w8(4, *kernel, 2), out=q(0.1))


LIMITS = [
    ("resize_factor_is_a_power_of_two", upscaled(ResizeNearest((24, 3))), upscaled(ResizeNearest((48, 3)))),
    ("resize_factor_is_a_power_of_two", upscaled(ResizeBilinear((12, 6))), upscaled(ResizeBilinear((9, 6)))),
    (
        "resize_factor_is_a_power_of_two",
        upscaled(ResizeBilinear((5, 17), True)),
        upscaled(ResizeBilinear((6, 6), True)),
    ),
    (
        "resize_factor_is_a_power_of_two",
        upscaled(ResizeBilinear((3, 3), True)),
        upscaled(ResizeBilinear((1, 3), True), 1),
    ),
    ("transposed_stride_is_small", transposed(TransposeConv2d((2, 2))), transposed(TransposeConv2d((2, 3)))),
    (
        "transposed_stride_is_small",
        transposed(TransposeConv2d((1, 1)), (1, 1)),
        transposed(TransposeConv2d((1, 2)), (3, 1)),
    ),
    ("transposed_kernel_is_small", transposed(TransposeConv2d(), (4096, 1)), transposed(TransposeConv2d(), (4097, 1))),
    (
        "transposed_crop_is_small",
        transposed(TransposeConv2d(crop=Padding2d(2, 1, 0, 0))),
        transposed(TransposeConv2d(crop=Padding2d(3, 0, 0, 0))),
    ),
    (
        "average_padding_is_split",
        case(AvgPool2d((7, 7), (3, 3), Padding2d.symmetric(3, 3)), x=i8(1, 30, 30, 2)),
        case(AvgPool2d((19, 19), (2, 2), Padding2d.symmetric(9, 9)), x=i8(1, 30, 30, 2)),
    ),
    (
        "average_padding_is_split",
        case(AvgPool2d((19, 19), padding=Padding2d.symmetric(9, 9)), x=i8(1, 30, 30, 2)),  # SAME
        case(AvgPool2d((19, 19), padding=Padding2d.symmetric(8, 8)), x=i8(1, 30, 30, 2)),
    ),
    (
        "average_padding_is_split",
        case(AvgPool2d((9, 9), padding=Padding2d(4, 3, 4, 3)), x=i8(1, 30, 30, 2)),  # 8 x 8 pools
        case(AvgPool2d((9, 9), padding=Padding2d(4, 3, 4, 4)), x=i8(1, 30, 30, 2)),
    ),
    (
        "resize_factor_is_a_power_of_two",
        case(ResizeNearest((2, 2)), x=i8(1, 1, 1, 8)),
        case(ResizeNearest((3, 3)), x=i8(1, 1, 1, 8)),
    ),
    (
        "max_pool_stride_is_small",
        case(MaxPool2d((1, 1), (4096, 1)), x=i8(1, 1, 1, 1)),
        case(MaxPool2d((1, 1), (4097, 1)), x=i8(1, 1, 1, 1)),
    ),
]


@pytest.mark.parametrize(("rule", "inside", "outside"), LIMITS)
def test_both_sides_of_a_limit(rule: str, inside: Case, outside: Case):
    assert reasons(inside) == []
    assert reasons(outside) == [rule]


# ---------------------------------------------------------------- layout


def operators(model: nn.Module, *shape: int) -> list[str]:
    """Operators of the one partition of a network, which runs as the quantized model does."""
    torch.manual_seed(1)
    batches = [torch.randn(shape) for _ in range(3)]
    program = micronpu.compile(model.eval(), (batches[0],), "imxrt700", calibration=batches)
    assert program.report.share == 1.0
    (partition,) = program.partitions
    (scale,) = steps(program.quantized)
    difference = (program.run(batches[1]) - program.quantized(batches[1])).abs() / scale
    # Roundings of inner operators differ by a step here and there, and convolutions weigh them.
    assert float(difference.max()) < 2.01 and float(difference.mean()) < 0.1
    return [node.op.name for node in partition.graph.nodes]


class UNet(nn.Module):
    """Down, up by resize and by transposed convolution, cropped skips."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(24, 8, 2, 2), nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.first(x))
        b = F.relu(self.second(F.max_pool2d(a, 2)))
        c = F.interpolate(F.relu(self.middle(F.pad(F.avg_pool2d(b, 2), (1, 1, 1, 1), mode="reflect"))), scale_factor=2)
        c = torch.cat([c[:, :8, 2:-2, 2:-2], b], 1)
        return self.last(torch.cat([self.up(c), a], 1))


def test_unet_transposes_at_its_boundary_only():
    names = operators(UNet(), 1, 3, 16, 16)
    assert names.count("transpose") == 2
    assert names[0] == names[-1] == "transpose"
    assert names.count("slice") == 1
    assert {"reflect_pad", "resize_nearest", "transpose_conv2d", "concat"} <= set(names)


class Shuffle(nn.Module):
    """Two units of ShuffleNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)) for _ in range(2)
        )
        self.stem = nn.Conv2d(3, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for branch in self.branches:
            left, right = x.chunk(2, 1)
            x = torch.cat([left, branch(right)], 1)
            n, c, h, w = x.shape
            x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return x


def test_channel_shuffle_costs_one_transpose():
    names = operators(Shuffle(), 1, 3, 10, 10)
    # One at the border and one in each shuffle; the last shuffle's is one with that of the other border.
    assert names.count("transpose") == 3


def test_group_convolution_is_cut_behind_one_transpose():
    names = operators(nn.Conv2d(8, 8, 3, groups=4), 1, 8, 6, 6)
    assert names == ["transpose", *["slice", "conv2d"] * 4, "concat", "transpose"]


def test_steps_in_both_directions_are_one_pool():
    class Focus(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x[..., ::2, ::2])

    assert operators(Focus(), 1, 4, 6, 6).count("max_pool2d") == 1
