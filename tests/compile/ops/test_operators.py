"""Single operators from PyTorch to the `.pte`: one partition, one step from eager mode at most, the reference exactly.

Rows are compiled together, side by side in one model, since most of the time of a compilation does not depend on what
is in it.  Every row has inputs and an output of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import micronpu
from micronpu.compiler.compile import check_model
from micronpu.compiler.program import CompiledProgram
from micronpu.ir import interpret
from micronpu.runtime import RunOptions

Call = Callable[..., torch.Tensor]
Size = tuple[int, ...]

IMAGE: Size = (1, 8, 7, 5)


@dataclass(frozen=True)
class Row:
    """One operator.

    Attributes:
        make: makes a module, or is a function of the inputs.
        shapes: of the inputs.
    """

    name: str
    make: Callable[[], nn.Module] | Call
    shapes: tuple[Size, ...]
    is_module: bool

    def module(self) -> nn.Module:
        if not self.is_module:
            return Function(self.make)
        torch.manual_seed(len(self.name))
        made = self.make()
        for part in made.modules():
            if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d):
                for values in (part.running_mean, part.weight, part.bias):
                    if values is not None:
                        nn.init.normal_(values, 0.3, 0.5)
                nn.init.uniform_(part.running_var, 0.2, 3.0)
        return made


class Function(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(*inputs)


def layer(name: str, make: Callable[[], nn.Module], *shapes: Size) -> Row:
    return Row(name, make, shapes or (IMAGE,), True)


def function(name: str, call: Call, *shapes: Size) -> Row:
    return Row(name, call, shapes or (IMAGE,), False)


def seq(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


CONVOLUTIONS = [
    layer("3x3", lambda: nn.Conv2d(8, 4, 3)),
    layer("without bias", lambda: nn.Conv2d(8, 4, 3, bias=False)),
    layer("odd channels", lambda: nn.Conv2d(9, 17, (3, 2)), (2, 9, 7, 5)),
    layer("one channel", lambda: nn.Conv2d(1, 1, 1), (1, 1, 5, 4)),
    layer("stride, padding", lambda: nn.Conv2d(8, 4, (3, 5), stride=(2, 1), padding=(1, 2))),
    layer("padding that LiteRT has no word for", lambda: nn.Conv2d(8, 4, 3, stride=2, padding=(2, 3))),
    layer("padding='same'", lambda: nn.Conv2d(8, 4, (3, 2), padding="same")),
    layer("padding='valid'", lambda: nn.Conv2d(8, 4, 3, padding="valid")),
    layer("padding='same', dilated", lambda: nn.Conv2d(8, 4, 3, padding="same", dilation=2)),
    layer("dilated", lambda: nn.Conv2d(8, 4, 3, dilation=(3, 2), padding=1)),
    layer("depthwise", lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1)),
    layer("depthwise, 2 results each", lambda: nn.Conv2d(8, 16, 3, groups=8)),
    layer("depthwise, dilated", lambda: nn.Conv2d(8, 8, 3, groups=8, dilation=2)),
    layer("2 groups", lambda: nn.Conv2d(8, 6, 3, groups=2)),
    layer("batch norm", lambda: seq(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))),
    layer("batch norm, relu", lambda: seq(nn.Conv2d(8, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())),
    layer("depthwise, batch norm", lambda: seq(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU6())),
    layer("batch norm without affine", lambda: seq(nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4, affine=False))),
    layer("relu", lambda: seq(nn.Conv2d(8, 4, 3), nn.ReLU())),
    layer("relu in place", lambda: seq(nn.Conv2d(8, 4, 3), nn.ReLU(inplace=True))),
    layer("relu6", lambda: seq(nn.Conv2d(8, 4, 3), nn.ReLU6())),
    layer("hardtanh", lambda: seq(nn.Conv2d(8, 4, 3), nn.Hardtanh())),
    layer("clamp to other bounds", lambda: seq(nn.Conv2d(8, 4, 3), nn.Hardtanh(-0.7, 0.4))),
]
LINEAR = [
    layer("linear", lambda: nn.Linear(10, 4), (3, 10)),
    layer("linear without bias", lambda: nn.Linear(10, 4, bias=False), (3, 10)),
    layer("linear of rank 1", lambda: nn.Linear(9, 17), (9,)),
    layer("linear of rank 3", lambda: nn.Linear(9, 7), (2, 3, 9)),
    layer("linear of rank 5", lambda: nn.Linear(8, 1), (1, 2, 1, 3, 8)),
    layer("linear relu", lambda: seq(nn.Linear(10, 4), nn.ReLU()), (3, 10)),
    layer("linear relu6", lambda: seq(nn.Linear(10, 4), nn.ReLU6()), (3, 10)),
    layer("linear hardtanh", lambda: seq(nn.Linear(10, 4), nn.Hardtanh()), (3, 10)),
    layer("linear batch norm", lambda: seq(nn.Linear(10, 4), nn.BatchNorm1d(4)), (3, 10)),
    layer("linear batch norm relu", lambda: seq(nn.Linear(10, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()), (3, 10)),
    layer("addmm", lambda: Weighted(lambda x, w, b: torch.addmm(b, x, w), (10, 4), (4,)), (3, 10)),
    layer("mm", lambda: Weighted(lambda x, w: torch.mm(x, w), (10, 4)), (3, 10)),
    layer("mm of a transposed weight", lambda: Weighted(lambda x, w: torch.mm(x, w.t()), (4, 10)), (3, 10)),
]
ELEMENTWISE = [
    function("add", lambda x, y: x + y, IMAGE, IMAGE),
    function("add of itself", lambda x: x + x),
    function("add in place", lambda x, y: (x + 0.0).add_(y), IMAGE, IMAGE),
    function("add number", lambda x: x + 1.5),
    function("add number first", lambda x: 2 + x),
    function("add broadcast", lambda x, y: x + y, IMAGE, (8, 1, 1)),
    function("add of another rank", lambda x, y: x + y, (5,), (2, 3, 5)),
    layer("add constant", lambda: Weighted(lambda x, w: x + w, (8, 1, 1))),
    function("add relu", lambda x, y: F.relu(x + y), IMAGE, IMAGE),
    function("add relu6", lambda x, y: F.relu6(x + y), IMAGE, IMAGE),
    function("add alpha", lambda x, y: torch.add(x, y, alpha=2), IMAGE, IMAGE),
    function("relu", F.relu),
    function("relu_", lambda x: F.relu_(x + 0.0)),
    function("relu6", F.relu6),
    function("hardtanh", F.hardtanh),
    function("hardtanh 0 to 1", lambda x: F.hardtanh(x, 0.0, 1.0)),
    function("hardtanh other", lambda x: F.hardtanh(x, -0.3, 2.1)),
    function("clamp", lambda x: torch.clamp(x, -1.0, 1.0)),
    function("clamp other", lambda x: torch.clamp(x, -0.25, 0.6)),
    function("clamp from below", lambda x: torch.clamp(x, min=-0.5)),
    function("clamp from above", lambda x: torch.clamp(x, max=0.5)),
    function("clamp at zero", lambda x: torch.clamp(x, min=0.0)),
    function("sigmoid", torch.sigmoid),
    function("tanh", torch.tanh),
    *(function(f"softmax dim {d}", lambda x, d=d: torch.softmax(x, d), (2, 3, 4, 5)) for d in (0, 1, 2, 3, -1)),
    function("softmax of rank 1", lambda x: torch.softmax(x, 0), (7,)),
    layer("batch norm", lambda: nn.BatchNorm2d(8)),
    layer("batch norm behind relu", lambda: seq(nn.ReLU(), nn.BatchNorm2d(8))),
    layer("dropout", lambda: seq(nn.Conv2d(8, 4, 1), nn.Dropout(0.5), nn.ReLU())),
    layer("dropout alone", lambda: seq(nn.Dropout(0.5), nn.Sigmoid())),
]
POOLS = [
    function("avg_pool2d without stride", lambda x: F.avg_pool2d(x, 2)),
    function("avg_pool2d with stride", lambda x: F.avg_pool2d(x, (3, 2), (2, 1))),
    function("avg_pool2d padded", lambda x: F.avg_pool2d(x, 3, 1, 1)),
    function("avg_pool2d padded, stride", lambda x: F.avg_pool2d(x, 3, 2, 1), (1, 8, 8, 6)),
    function("avg_pool2d ceil", lambda x: F.avg_pool2d(x, 2, ceil_mode=True)),
    function("avg_pool2d not counted", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (1, 8, 8, 6)),
    function("avg_pool2d same, not counted", lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
    function("adaptive_avg_pool2d 1", lambda x: F.adaptive_avg_pool2d(x, 1)),
    function("adaptive_avg_pool2d 3", lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (2, 9, 6, 4)),
    function("max_pool2d without stride", lambda x: F.max_pool2d(x, 2)),
    function("max_pool2d with stride", lambda x: F.max_pool2d(x, (3, 2), (2, 1))),
    function("max_pool2d padded", lambda x: F.max_pool2d(x, 3, 2, 1)),
    function("max_pool2d of negative numbers, padded", lambda x: F.max_pool2d(F.relu(x) * 0.0 + x - 9.0, 3, 1, 1)),
    function("mean of height and width", lambda x: x.mean((2, 3))),
    function("mean, keepdim", lambda x: x.mean((2, 3), keepdim=True)),
    function("mean of the last", lambda x: x.mean(-1)),
    function("mean of channels", lambda x: x.mean(1, keepdim=True)),
    function("mean of rank 2", lambda x: x.mean(0), (6, 5)),
    function("mean of three", lambda x: x.mean((0, 1, 3)), (2, 3, 4, 5)),
]
# Moving values alone is no reason to start a partition, hence the clamp.
MOVEMENT = [
    function("view", lambda x: F.relu(x).view(1, 56, 5)),
    function("reshape", lambda x: F.relu(x.reshape(-1, 5))),
    function("flatten", lambda x: F.relu(x).flatten(1)),
    function("flatten all", lambda x: F.relu(torch.flatten(x))),
    function("squeeze", lambda x: F.relu(x).squeeze(), (1, 3, 1, 5)),
    function("squeeze dim", lambda x: F.relu(x).squeeze(0), (1, 3, 1, 5)),
    function("squeeze dims", lambda x: F.relu(x).squeeze((0, 2)), (1, 3, 1, 5)),
    function("unsqueeze", lambda x: F.relu(x).unsqueeze(1), (3, 5)),
    function("permute", lambda x: F.relu(x).permute(0, 2, 3, 1)),
    function("permute of rank 5", lambda x: F.relu(x).permute(4, 0, 3, 1, 2), (1, 2, 3, 2, 5)),
    function("transpose", lambda x: F.relu(x).transpose(1, -1)),
    function("t", lambda x: F.relu(x).t(), (3, 5)),
    function("pad", lambda x: F.pad(F.relu(x), (1, 2, 0, 3))),
    function("pad with a number", lambda x: F.pad(F.relu(x), (1, 0), value=1.5)),
    function("pad channels", lambda x: F.pad(F.relu(x), (0, 0, 0, 0, 1, 2))),
    function("pad that removes", lambda x: F.pad(F.relu(x), (1, -2, -1, 0))),
    function("pad, then pool", lambda x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-4.0), 2)),
    function("contiguous and clone", lambda x: F.relu(x).permute(0, 2, 3, 1).contiguous().clone()),
]
CONCATENATIONS = [
    function("cat", lambda x, y: torch.cat([x, y], 1), IMAGE, IMAGE),
    function("cat of relus", lambda x, y: torch.cat([F.relu(x), y], 1), IMAGE, (1, 3, 7, 5)),
    function("cat last", lambda x, y: F.relu(torch.cat([x, y], -1)), (2, 3), (2, 4)),
    function("cat first", lambda x, y: F.relu(torch.cat([x, y])), (2, 3), (1, 3)),
    function("cat of three", lambda x, y, z: torch.cat([F.relu(x), y, torch.tanh(z)], 1), IMAGE, IMAGE, IMAGE),
    function("cat of a sigmoid", lambda x, y: torch.cat([torch.sigmoid(x), y], 1), IMAGE, IMAGE),
    function("cat of the same", lambda x: torch.cat([x, F.relu(x), x], 1)),
    function("cat of one", lambda x: F.relu(torch.cat([x], 1))),
]


class Weighted(nn.Module):
    """A function whose further arguments are parameters."""

    def __init__(self, call: Call, *shapes: Size) -> None:
        super().__init__()
        self.call = call
        self.values = nn.ParameterList([nn.Parameter(torch.randn(s)) for s in shapes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, *self.values)


class TrainingDropout(nn.Module):
    """Dropout that drops in evaluation mode too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, training=True)


class SideBySide(nn.Module):
    """Rows that have nothing to do with each other."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self.counts = [len(r.shapes) for r in rows]
        self.parts = nn.ModuleList([r.module() for r in rows])

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results, start = [], 0
        for part, count in zip(self.parts, self.counts, strict=True):
            results.append(part(*inputs[start : start + count]))
            start += count
        return tuple(results)


def inputs_for(shapes: Sequence[Size], seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(s, generator=generator) * 1.5 for s in shapes)


def compiled(model: nn.Module, shapes: Sequence[Size], **options: Any) -> CompiledProgram:
    calibration = [inputs_for(shapes, seed) for seed in range(1, 5)]
    return micronpu.compile(
        model.eval(), inputs_for(shapes, 0), **{"target": "imxrt700", "calibration": calibration} | options
    )


def output_qparams(program: CompiledProgram) -> list[float]:
    """The step of every output."""
    (output,) = (n for n in program.quantized.graph.nodes if n.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    return [float(node.args[1]) for node in results]


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def quantized_inputs(program: CompiledProgram, inputs: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """The integers that the partition gets."""
    graph = program.partitions[0].graph
    assert len(graph.inputs) == len(inputs)
    arrays = []
    for position, (tensor, value) in enumerate(zip(graph.inputs, inputs, strict=True)):
        x = torch.ops.quantized_decomposed.quantize_per_tensor(
            value, tensor.type.scale, tensor.type.zero_point, -128, 127, torch.int8
        ).numpy()
        arrays.append(np.moveaxis(x, 1, -1).copy() if position in graph.channels_last_inputs else x)
    return arrays


def check(program: CompiledProgram, names: Sequence[str], inputs: tuple[torch.Tensor, ...]) -> None:
    """The three ways: `.pte`, eager mode, reference interpreter."""
    left = [f"{v.operator} ({v.origin.module}): {v.reasons}" for v in program.report.verdicts if not v.delegated]
    assert not left, "\n".join(left)
    assert program.report.partitions == 1
    got, eager = as_tuple(program.run(*inputs)), as_tuple(program.quantized(*inputs))
    graph = program.partitions[0].graph
    reference = interpret(graph, quantized_inputs(program, inputs))
    problems = []
    rows = zip(names, got, eager, reference, graph.outputs, output_qparams(program), strict=True)
    for position, (name, result, expected, integers, tensor, step) in enumerate(rows):
        if result.shape != expected.shape:
            problems.append(f"{name}: {list(result.shape)} instead of {list(expected.shape)}")
            continue
        distance = float((result - expected).abs().max()) / step
        if distance > 1.01:
            problems.append(f"{name}: {distance:.2f} steps from the quantized model")
        if position in graph.channels_last_outputs:
            integers = np.moveaxis(integers, -1, 1)
        real = torch.from_numpy(integers.astype(np.float32) - tensor.type.zero_point) * np.float32(tensor.type.scale)
        if not torch.equal(real, result):
            wrong = int((real != result).sum())
            problems.append(f"{name}: {wrong} of {result.numel()} elements are not the reference's")
    assert not problems, "\n".join(problems)


GROUPS = {
    "convolutions": CONVOLUTIONS,
    "linear": LINEAR,
    "elementwise": ELEMENTWISE,
    "pools": POOLS,
    "movement": MOVEMENT,
    "concatenations": CONCATENATIONS,
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("group", "per_channel"),
    [*((g, True) for g in GROUPS), ("convolutions", False), ("linear", False)],
    ids=lambda value: value if isinstance(value, str) else ("per channel" if value else "per tensor"),
)
def test_rows(group: str, per_channel: bool):
    rows = GROUPS[group]
    shapes = [s for r in rows for s in r.shapes]
    program = compiled(SideBySide(rows), shapes, quantization=micronpu.Quantization(per_channel=per_channel))
    for seed in (0, 7):
        check(program, [r.name for r in rows], inputs_for(shapes, seed))
    weights = [n.inputs[1].type.qparams for n in program.partitions[0].graph.nodes if n.op.quantization.weight]
    if group in ("convolutions", "linear"):
        assert weights
        assert all(q is not None and q.is_per_tensor != per_channel for q in weights)


def test_the_steps_are_counted():
    """A result that is two steps off, or off the reference by one, must be found; else the rows could not fail."""
    program = compiled(Function(F.relu), [IMAGE])
    (x,) = inputs_for([IMAGE], 0)
    step = output_qparams(program)[0]
    result = program.run(x)
    program._host.clear()

    class Off:
        def __init__(self, steps: float) -> None:
            self.steps = steps

        def run_in_order(self, *inputs: torch.Tensor, method: str) -> list[torch.Tensor]:
            return [result + self.steps * step]

    program._host[RunOptions(), "forward"] = Off(0)  # type: ignore[assignment]
    check(program, ["relu"], (x,))
    program._host[RunOptions(), "forward"] = Off(1)  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="elements are not the reference's"):
        check(program, ["relu"], (x,))
    program._host[RunOptions(), "forward"] = Off(2)  # type: ignore[assignment]
    with pytest.raises(AssertionError, match=r"relu: 2\.00 steps from the quantized model"):
        check(program, ["relu"], (x,))


# ---------------------------------------------------------------- what a shared grid must not do


class Joined(nn.Module):
    """Small numbers beside large ones, and an output of both apart."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.sigmoid(x), y], 1)


class ThreeBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(8, n, 1) for n in (3, 5, 9)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small, middle, large = (c(x) for c in self.convolutions)
        return torch.cat([small * 0.1, F.relu(middle), 10 * large], 1)


@pytest.mark.parametrize(("model", "inputs"), [(Joined(), 2), (ThreeBranches(), 1)], ids=["sigmoid", "three"])
def test_concatenation_clips_nothing(model: nn.Module, inputs: int):
    """The grid of the result covers all parts, though one of them has a fixed range or a smaller one."""
    shapes = [IMAGE] * inputs
    torch.manual_seed(0)
    program = compiled(model, shapes)
    x = inputs_for(shapes, 1)
    check(program, ["cat"], x)
    with torch.no_grad():
        expected = model(*x)
    step = output_qparams(program)[0]
    assert step * 255 >= float(expected.max() - expected.min()) * 0.98
    # The parts are rounded to grids of their own before, which are no coarser, and calibration clips outliers a little.
    assert float((program.run(*x) - expected).abs().max()) <= 4 * step


def test_a_sigmoid_with_two_readers_keeps_its_own_qparams():
    """Fixed parameters are LiteRT's condition for the operator, so that the join needs a requantization."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            s = torch.sigmoid(x)
            return s, torch.cat([s, y], 1)

    program = compiled(Model(), [IMAGE, IMAGE])
    graph = program.partitions[0].graph
    (sigmoid,) = (n for n in graph.nodes if n.op.name == "sigmoid")
    (concat,) = (n for n in graph.nodes if n.op.name == "concat")
    assert (sigmoid.output.type.scale, sigmoid.output.type.zero_point) == (1 / 256, -128)
    assert len({t.type.qparams for t in concat.inputs}) == 1
    assert concat.output.type.scale > 4 / 256
    check(program, ["sigmoid", "cat"], inputs_for([IMAGE, IMAGE], 1))


# ---------------------------------------------------------------- clamps


@pytest.mark.parametrize(
    ("clamp", "operators"),
    [
        (nn.ReLU(), ["conv2d{activation=relu}"]),
        (nn.ReLU6(), ["conv2d{activation=relu6}"]),
        (nn.Hardtanh(), ["conv2d{activation=relu_n1_to_1}"]),
        (nn.Hardtanh(0.0, 1.0), ["conv2d"]),  # on a grid that ends where the clamp does
        (nn.Hardtanh(-0.5, 0.25), ["conv2d"]),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_clamps_are_fused_where_litert_has_a_code_or_the_range_ends_there(clamp: nn.Module, operators: list[str]):
    torch.manual_seed(0)
    program = compiled(seq(nn.Conv2d(8, 4, 3), clamp), [IMAGE])
    nodes = program.partitions[0].graph.nodes
    assert [str(n.op) for n in nodes if n.op.name not in ("transpose", "reshape")] == operators
    x = inputs_for([IMAGE], 1)
    result, expected, step = program.run(*x), program.quantized(*x), output_qparams(program)[0]
    # A step of the convolution's own grid may be worth several of the result's.
    coarsest = max(n.output.type.scale for n in nodes if n.op.name == "conv2d")
    assert float((result - expected).abs().max()) <= max(coarsest, step) * 1.01


# ---------------------------------------------------------------- weights that are not as usual


class SharedConvolution(nn.Module):
    """One convolution, read by two batch norms through two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 3, bias=False)
        self.first, self.second = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.first(self.conv(x)), self.second(self.conv(y)), self.conv(x)


def test_batch_norms_do_not_change_weights_that_others_read():
    torch.manual_seed(3)
    model = SharedConvolution().eval()
    for norm, factor in ((model.first, 5.0), (model.second, 0.2)):
        nn.init.constant_(norm.weight, factor)
        nn.init.normal_(norm.running_mean)
        nn.init.normal_(norm.bias)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    program = compiled(model, [IMAGE, IMAGE])
    x = inputs_for([IMAGE, IMAGE], 1)
    check(program, ["first", "second", "plain"], x)
    with torch.no_grad():
        for result, expected, step in zip(program.run(*x), model(*x), output_qparams(program), strict=True):
            # What 8 bits of input and weights leave, over 72 products.
            assert float((result - expected).abs().max()) <= 8 * step
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"compiling changed the user's {name}"


@pytest.mark.parametrize("per_channel", [True, False])
def test_channels_without_weights_keep_their_bias(per_channel: bool):
    """A scale made for weights of zero would be so fine that a bias of 5 overflows 32 bits."""
    torch.manual_seed(0)
    model = nn.Conv2d(8, 4, 3)
    with torch.no_grad():
        model.weight[1:3] = 0.0
        model.weight[3] *= 1e-9
        model.bias[:] = torch.tensor([0.1, 5.0, -5.0, 3.0])
    program = compiled(model, [IMAGE], quantization=micronpu.Quantization(per_channel=per_channel))
    x = inputs_for([IMAGE], 1)
    check(program, ["conv2d"], x)
    result, step = program.run(*x), output_qparams(program)[0]
    for channel, bias in ((1, 5.0), (2, -5.0), (3, 3.0)):
        assert float((result[:, channel] - bias).abs().max()) <= step


@pytest.mark.parametrize("name", ["conv2d", "linear", "depthwise"])
def test_a_model_of_zeros(name: str):
    model = {
        "conv2d": lambda: nn.Conv2d(8, 4, 3),
        "linear": lambda: nn.Linear(5, 3),
        "depthwise": lambda: nn.Conv2d(8, 8, 3, groups=8),
    }[name]()
    for value in model.parameters():
        nn.init.zeros_(value)
    program = compiled(model, [IMAGE])
    x = inputs_for([IMAGE], 1)
    check(program, [name], x)
    assert not program.run(*x).any()


# ---------------------------------------------------------------- what is refused


def refusal(model: nn.Module, *shapes: Size) -> str:
    """Why the one operator of a model stays on the host."""
    report = check_model(model.eval(), inputs_for(shapes, 0), "imxrt700", calibration=[inputs_for(shapes, 1)]).report
    reasons = [r for v in report.verdicts for r in v.reasons]
    assert reasons, f"everything is delegated: {report}"
    return " ".join(f"{r.sentence} {r.detail} {r.hint}" for r in reasons)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (layer("training mode", lambda: seq(nn.Conv2d(8, 4, 1), TrainingDropout())), ["dropout", "training"]),
        (function("softmax of many", lambda x: torch.softmax(x, -1), (1, 2048)), ["2040", "2048 channels"]),
        (function("softmax of none", lambda x: torch.softmax(x.mean((0, 1, 2, 3)), 0)), ["`softmax`", "without axes"]),
        (function("unknown", lambda x: torch.erfinv(x)), ["No operator of micronpu imports erfinv.default"]),
        (function("both broadcast", lambda x, y: x + y, (3, 1), (1, 4)), ["[3, 1] and [1, 4]", "expand one operand"]),
        (function("8 axes", lambda x: F.relu(x), (1,) * 7 + (2,)), ["at most 7 axes", "8 axes"]),
    ],
    ids=lambda value: value.name if isinstance(value, Row) else None,
)
def test_refused_forms_say_why(row: Row, words: list[str]):
    sentence = refusal(row.module(), *row.shapes)
    for word in words:
        assert word in sentence
