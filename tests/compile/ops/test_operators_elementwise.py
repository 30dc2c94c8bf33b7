"""Arithmetic from a torch module to the finished program: everything on the NPU, as eager mode computes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.cases import i8
from tests.compile.small import outputs
from torch import nn

import micronpu
from micronpu.ir import GraphBuilder, QParams
from micronpu.ir.lowering import Capabilities
from micronpu.ops import Op
from micronpu.ops.bounds import never_negative
from micronpu.ops.elementwise import Add, Maximum, Minimum, Mul, Sub, collapsed_shapes
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.tables.functions import GELU_SLOPE
from micronpu.ops.tables.table import LookupTable
from micronpu.quantize.decompose import decompose
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.writer import GraphWriter
from micronpu.targets.neutron.rules import check_node
from micronpu.targets.neutron.target_spec import NeutronTargetSpec

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One function of one or two inputs [2, 4, 8].

    Attributes:
        sqnr: decibels that the finished program reaches at least against the float function.
        steps: how far an element may be from the quantized model in eager mode, in steps of its grid.  More than 1
            only where a step of an intermediate value is worth several of the result, as behind a logarithm.
    """

    name: str
    function: Function
    sqnr: float = 34.0
    steps: int = 1


SINGLE = [
    Row("sub", lambda x, y: x - y),
    Row("sub relu", lambda x, y: F.relu(x - y)),
    Row("sub alpha", lambda x, y: torch.sub(x, y, alpha=0.5)),
    Row("add alpha", lambda x, y: torch.add(x, y, alpha=2)),
    Row("add alpha number", lambda x, y: torch.add(x, 1.5, alpha=2)),
    Row("rsub", lambda x, y: 1 - x),
    Row("rsub tensor", lambda x, y: torch.rsub(x, y, alpha=2)),
    Row("sub number", lambda x, y: x - 1),
    Row("add integers", lambda x, y: x + torch.ones(8, dtype=torch.int64)),
    Row("mul", lambda x, y: x * y),
    Row("mul relu6", lambda x, y: F.relu6(x * y)),
    Row("mul large", lambda x, y: (x * 100) * (y * 100)),
    Row("mul number", lambda x, y: x * 2.5),
    Row("mul integer", lambda x, y: x * 2),
    Row("mul constant", lambda x, y: x * torch.linspace(-3, 3, 8)),
    Row("mul broadcast", lambda x, y: x * y.amax(-1, keepdim=True)),
    Row("square", lambda x, y: x * x),
    Row("div number", lambda x, y: x / 3),
    Row("div constant", lambda x, y: x / torch.linspace(1, 3, 8)),
    Row("minimum", lambda x, y: torch.minimum(x, y)),
    Row("maximum", lambda x, y: torch.max(x, y)),
    Row("minimum constant", lambda x, y: torch.minimum(x, torch.tensor(0.5))),
    Row("maximum constant", lambda x, y: torch.maximum(x, torch.linspace(-1, 1, 8))),
    Row("clamp_min", lambda x, y: torch.clamp_min(x, -0.3)),
    Row("clamp_max", lambda x, y: torch.clamp_max(x, 0.7)),
    Row("abs", lambda x, y: x.abs()),
    Row("neg", lambda x, y: -x),
    Row("exp", lambda x, y: (x * 0.5).exp(), sqnr=32),
    Row("leaky_relu", lambda x, y: F.leaky_relu(x, 0.1)),
    Row("leaky_relu negative", lambda x, y: F.leaky_relu(x, -0.2)),
    Row("hardswish", lambda x, y: F.hardswish(x)),
    Row("relu", lambda x, y: F.relu(x)),
    Row("prelu", lambda x, y: F.prelu(x, torch.tensor([0.3, -0.1, 0.0, 2.0]))),
    Row("prelu one", lambda x, y: F.prelu(x, torch.tensor([0.3]))),
    Row("sum", lambda x, y: x.sum()),
    Row("sum axis", lambda x, y: x.sum(1)),
    Row("sum first axis", lambda x, y: x.sum(0)),
    Row("sum axes", lambda x, y: x.sum((0, -1), keepdim=True)),
    Row("sum of one", lambda x, y: x[:, :1].sum(1)),
    Row("mean", lambda x, y: x.mean((1, 2)), sqnr=20),
    Row("mean all", lambda x, y: x.mean(), sqnr=20),
    Row("mean of positive", lambda x, y: F.relu(x).mean(-1)),
    Row("amax", lambda x, y: x.amax(-1)),
    Row("amax axes", lambda x, y: x.amax((1, 2), keepdim=True)),
    Row("amin", lambda x, y: x.amin(())),
    Row("max all", lambda x, y: x.max()),
    Row("min dim", lambda x, y: x.min(dim=1)[0]),
    Row("max dim", lambda x, y: x.max(dim=-1, keepdim=True).values),
    Row("bmm", lambda x, y: torch.bmm(x, y.transpose(1, 2)), sqnr=33),
    Row("matmul", lambda x, y: x @ y.transpose(-1, -2), sqnr=33),
    Row("matmul rank 4", lambda x, y: x.reshape(1, 2, 4, 8) @ y.reshape(1, 2, 8, 4), sqnr=33),
    Row("matmul many by one", lambda x, y: x @ y[0].t(), sqnr=33),
    Row("matmul one by many", lambda x, y: x[0] @ y.transpose(1, 2), sqnr=33),
    Row("matmul some by many", lambda x, y: x.reshape(2, 4, 1, 8) @ y.reshape(1, 4, 8, 2), sqnr=33),
    Row("matmul many by some", lambda x, y: x.reshape(4, 1, 2, 8) @ y.reshape(4, 2, 8, 1), sqnr=33),
    Row("matmul some by some", lambda x, y: x.reshape(1, 2, 4, 8) @ y.reshape(2, 1, 8, 4), sqnr=33),
    Row("matmul vector", lambda x, y: x @ y[0, 0], sqnr=33),
    Row("matmul of vectors", lambda x, y: x[0, 0] @ y[0, 0], sqnr=33),
    Row("matmul constant", lambda x, y: x @ torch.linspace(-1, 1, 24).reshape(8, 3)),
    Row("mm", lambda x, y: torch.mm(x[0], y[1].t()), sqnr=33),
    Row("baddbmm", lambda x, y: torch.baddbmm(x[:, :, :4], x, y.transpose(1, 2), alpha=0.5, beta=2), sqnr=32),
    Row("linear of computed weights", lambda x, y: F.linear(x, y[0], y[1, :, 0]), sqnr=32),
]

DECOMPOSED = [
    Row("silu", lambda x, y: F.silu(x)),
    Row("gelu", lambda x, y: F.gelu(x)),
    Row("gelu tanh", lambda x, y: F.gelu(x, approximate="tanh")),
    Row("hardsigmoid", lambda x, y: F.hardsigmoid(x)),
    Row("elu", lambda x, y: F.elu(x)),
    Row("elu alpha", lambda x, y: F.elu(x, 0.5)),
    Row("celu", lambda x, y: F.celu(x, 2.0)),
    Row("selu", lambda x, y: F.selu(x)),
    Row("softplus", lambda x, y: F.softplus(x)),
    Row("softplus beta", lambda x, y: F.softplus(x, beta=2)),
    Row("mish", lambda x, y: F.mish(x)),
    Row("log_sigmoid", lambda x, y: F.logsigmoid(x)),
    Row("softsign", lambda x, y: F.softsign(x), steps=2, sqnr=30),
    Row("glu", lambda x, y: F.glu(x)),
    Row("log", lambda x, y: (x.abs() + 0.5).log(), sqnr=28),
    Row("log1p", lambda x, y: torch.log1p(F.relu(x)), sqnr=30),
    Row("expm1", lambda x, y: torch.expm1(x * 0.25)),
    Row("logit", lambda x, y: torch.logit(x.sigmoid(), 0.05), sqnr=26),
    Row("rsqrt", lambda x, y: (x.abs() + 0.5).rsqrt(), sqnr=28),
    Row("sqrt", lambda x, y: x.abs().sqrt(), steps=2),
    Row("pow 2", lambda x, y: x**2),
    Row("pow 3", lambda x, y: x**3, sqnr=30),
    Row("pow 1/2", lambda x, y: F.relu(x) ** 0.5, steps=2),
    Row("reciprocal", lambda x, y: (x.abs() + 0.5).reciprocal(), steps=2, sqnr=30),
    Row("div by what may be negative", lambda x, y: x / (y.tanh() - 1.1), steps=2, sqnr=26),
    Row("div by computed", lambda x, y: x / (1 + y.abs()), steps=2, sqnr=31),
    Row("number by computed", lambda x, y: 2 / (1 + y.abs()), steps=2, sqnr=30),
    Row("log_softmax", lambda x, y: F.log_softmax(x, -1)),
    Row("var", lambda x, y: x.var(-1), sqnr=28),
    Row("std", lambda x, y: x.std(-1), steps=16, sqnr=28),
    Row("normalize", lambda x, y: F.normalize(x, dim=-1), steps=3, sqnr=30),
]


class Many(nn.Module):
    """All functions of some rows at once, so that one export and one compilation serve them all."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(row.function(x, y) for row in self.rows)


def inputs(count: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(5)
    return [tuple(torch.randn(2, 4, 8, generator=random) * 1.5 for _ in range(2)) for _ in range(count)]  # type: ignore[misc]


def output_scales(quantized: Any) -> list[float]:
    """Step of every output of a quantized module."""
    (output,) = (n for n in quantized.graph.nodes if n.op == "output")
    return [float(node.args[1]) for node in torch.utils._pytree.tree_leaves(output.args)]


ALONE = [pytest.param([row], id=row.name, marks=pytest.mark.alone) for row in (*SINGLE, *DECOMPOSED)]
"""Each row as a program of its own, for whoever looks for what is wrong with one."""


@pytest.mark.sweep
@pytest.mark.parametrize("rows", [pytest.param(SINGLE, id="single"), pytest.param(DECOMPOSED, id="decomposed"), *ALONE])
def test_program_is_the_quantized_model(rows: list[Row], monkeypatch: pytest.MonkeyPatch):
    # Judged by the rows that calibrated, of which some results are one number each: no others are to be expected.
    monkeypatch.setattr(RangeObserver, "widens", False)
    data = inputs()
    program = micronpu.compile(
        Many(rows).eval(), data[0], "imxrt700", calibration=data, verify=micronpu.Verification(held_out=0)
    )
    left = [f"{v.operator}: {[str(r) for r in v.reasons]}" for v in program.report.verdicts if v.partition is None]
    assert not left, "\n".join(left)
    assert len(program.partitions) == 1
    scales = output_scales(program.quantized)
    noise, signal, steps = ([0.0] * len(rows) for _ in range(3))
    for batch in data[:8]:
        results, expected, exact = (outputs(c(*batch)) for c in (program.run, program.quantized, Many(rows)))
        for i, (result, eager, real) in enumerate(zip(results, expected, exact, strict=True)):
            assert result.shape == real.shape, rows[i].name
            steps[i] = max(steps[i], float((result - eager).abs().max()) / scales[i])
            noise[i] += float((result - real).square().sum())
            signal[i] += float(real.square().sum())
    sqnr = [10 * math.log10(s / max(n, 1e-30)) for s, n in zip(signal, noise, strict=True)]
    problems = [f"{r.name}: {n:.1f} steps" for r, n in zip(rows, steps, strict=True) if n > r.steps + 0.01]
    problems += [f"{r.name}: {d:.1f} dB" for r, d in zip(rows, sqnr, strict=True) if d < r.sqnr]
    assert not problems, "\n".join(problems)


REWRITTEN = [*DECOMPOSED, *(r for r in SINGLE if r.name not in ("linear of computed weights",))]


@pytest.mark.parametrize("rows", [REWRITTEN])
def test_rewrites_keep_the_float_result(rows: list[Row]):
    """The rewritten float program computes what the original does; `gelu` as closely as it states."""
    x = torch.linspace(-9, 9, 64).reshape(2, 4, 8)
    y = torch.linspace(-3, 5, 64).reshape(2, 4, 8).flip(1)
    module: Any = torch.export.export(Many(rows).eval(), (x, y)).module(check_guards=False)
    before = str(module.graph)
    decompose(module, Capabilities())
    assert str(module.graph) != before
    problems = []
    for row, new, old in zip(rows, module(x, y), Many(rows)(x, y), strict=True):
        largest = float((new - old).abs().max() / old.abs().max().clamp(min=1.0))
        allowed = 0.0204 if row.name.startswith("gelu") else 2e-5
        if row.name in ("sqrt", "pow 1/2", "normalize"):
            allowed = 2.0**-8  # the root of the smallest number that counts
        if new.shape != old.shape or not largest <= allowed:
            problems.append(f"{row.name}: {largest}")
    assert not problems, problems


def test_gelu_error_is_the_stated_one():
    x = torch.linspace(-12, 12, 100001, dtype=torch.float64)
    error = (x * torch.sigmoid(GELU_SLOPE * x) - F.gelu(x)).abs().max()
    assert 0.02 < error <= 0.0204


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x + y
        z.mul_(2).sub_(y).abs_()
        z = F.hardswish(z - 1, inplace=True) + F.silu(z, inplace=True)
        return F.leaky_relu_(z.neg_(), 0.2).div_(3)


def test_operators_in_place():
    data = inputs()
    kept = [tuple(t.clone() for t in batch) for batch in data]
    program = micronpu.compile(InPlace().eval(), data[0], "imxrt700", calibration=data)
    assert all(v.partition == 0 for v in program.report.verdicts)
    assert all(
        torch.equal(a, b) for batch, copy in zip(data, kept, strict=True) for a, b in zip(batch, copy, strict=True)
    )
    (scale,) = output_scales(program.quantized)
    for batch in data[:4]:
        assert float((program.run(*batch) - program.quantized(*batch)).abs().max()) <= 2.01 * scale
        assert float((program.run(*batch) - InPlace()(*batch)).abs().max()) <= 8 * scale


class Linears(nn.Module):
    """Linear layers of rank 1 to 4, and every way to write one with constant weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.bare = nn.Linear(8, 5), nn.Linear(8, 5, bias=False)
        self.register_buffer("row", torch.randn(1, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = self.layer.weight.t()
        return (
            self.layer(x[0, 0]),
            self.layer(x[0]),
            self.layer(x),
            self.layer(x.reshape(1, 2, 4, 8)),
            self.bare(x),
            self.bare(x) + self.row,
            self.layer(y) - 0.5,
            torch.addmm(self.layer.bias, x[0], weight),
            torch.addmm(self.row, x[0], weight, alpha=0.5, beta=2),
            torch.mm(x[1], weight),
            y @ weight,
        )


@torch.no_grad()
def test_linear_forms():
    data = inputs()
    model = Linears().eval()
    program = micronpu.compile(model, data[0], "imxrt700", calibration=data)
    assert all(v.partition == 0 for v in program.report.verdicts)
    names = {node.op.name for node in program.partitions[0].graph.nodes}
    assert "fully_connected" in names and not names & {"add", "sub", "mul", "batch_matmul"}
    scales = output_scales(program.quantized)
    for batch in data[:4]:
        for result, eager, real, step in zip(
            program.run(*batch), program.quantized(*batch), model(*batch), scales, strict=True
        ):
            assert result.shape == real.shape
            assert float((result - eager).abs().max()) <= 1.01 * step
            assert float((result - real).abs().max()) <= 6 * step


class HighRank(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x.reshape(2, 1, 2, 2, 1, 2, 4), y.reshape(2, 1, 2, 2, 1, 2, 4)[:1, :, :, :, :, :, :1]
        return a * b, a - b


def test_broadcast_between_seven_axes():
    data = inputs()
    program = micronpu.compile(HighRank().eval(), data[0], "imxrt700", calibration=data)
    operations = [n for n in program.partitions[0].graph.nodes if n.op.name in ("mul", "sub")]
    assert len(operations) == 2
    assert all(n.output.type.rank <= 6 for n in operations)
    for result, eager, step in zip(
        program.run(*data[1]), program.quantized(*data[1]), output_scales(program.quantized), strict=True
    ):
        assert float((result - eager).abs().max()) <= 1.01 * step


@pytest.mark.parametrize(
    ("x", "z", "expected"),
    [
        ((2, 3, 4, 5), (1, 1, 4, 5), ((6, 20), (1, 20))),
        ((2, 3), (), ((6,), (1,))),
        ((1, 1), (1,), ((1,), (1,))),
        ((2, 1, 3), (1, 4, 3), ((2, 1, 3), (1, 4, 3))),
        ((5, 1, 1, 7), (5, 1, 6, 1), ((5, 1, 7), (5, 6, 1))),
    ],
)
def test_collapsed_shapes(x: tuple[int, ...], z: tuple[int, ...], expected: tuple[tuple[int, ...], ...]):
    assert collapsed_shapes(x, z) == expected


class Leftover(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y)


@pytest.mark.parametrize(
    ("function", "operator", "text"),
    [
        (lambda x, y: torch.div(x, y + 9, rounding_mode="floor"), "div.Tensor_mode", "a table for rounding"),
        (lambda x, y: (x * 1e4 + 3) - (x * 1e4 + 3), "sub.Tensor", "times finer than its operands'"),
        (lambda x, y: F.hardswish(x * 1e3 - 9e4), "hardswish.default", "times finer than its operand's"),
    ],
)
def test_what_stays_on_the_host_has_a_reason(function: Function, operator: str, text: str):
    data = inputs(4)
    verdicts = micronpu.check(Leftover(function).eval(), data[0], "imxrt700", calibration=data).report.verdicts
    (verdict,) = (v for v in verdicts if v.operator == operator and v.partition is None)
    assert any(text in str(reason) for reason in verdict.reasons), [str(r) for r in verdict.reasons]


def reasons(op: Op, *types: Any, out: QParams | None = None) -> list[str]:
    builder = GraphBuilder()
    builder.emit(op, *(builder.input(t) for t in types), qparams=out or QParams.per_tensor(0.1, 0))
    return [r.rule for r in check_node(builder.graph.nodes[-1], NeutronTargetSpec("imxrt700"))]


@pytest.mark.parametrize("op", [Add(), Sub(), Mul(), Minimum(), Maximum()], ids=lambda op: op.name)
def test_rule_broadcast_goes_one_way(op: Op):
    assert reasons(op, i8(5, 4), i8(1, 4)) == []
    assert reasons(op, i8(1), i8(5, 4)) == []
    assert reasons(op, i8(5, 1), i8(1, 4)) == ["broadcast_goes_one_way"]


def test_what_neutron_lacks_reads_as_a_lack():
    builder = GraphBuilder()
    builder.emit(LookupTable((0,) * 256), builder.input(i8(1, 4)), qparams=QParams.per_tensor(0.1, 0))
    (reason,) = check_node(builder.graph.nodes[-1], NeutronTargetSpec("imxrt700"))
    assert "one that Neutron has. Found: `table` (any function of one element), which Neutron has not." in str(reason)
    assert "compile the float model" in reason.hint
    builder.emit(Sub(), builder.input(i8(8)), builder.input(i8(8)), qparams=QParams.per_tensor(0.1, 0))
    (reason,) = check_node(builder.graph.nodes[-1], NeutronTargetSpec("imxrt700", "SDK_25_12"))
    assert "`sub`, which the converter of SDK_25_12 has not" in str(reason)


def test_rule_matrices_are_symmetric():
    assert reasons(BatchMatmul(), i8(2, 3, 4), i8(2, 4, 5)) == []
    assert reasons(BatchMatmul(), i8(2, 3, 4, zero=1), i8(2, 4, 5)) == ["matrices_are_symmetric"]
    assert reasons(BatchMatmul(), i8(2, 3, 4), i8(2, 4, 5, zero=-128)) == ["matrices_are_symmetric"]


def test_products_of_matrices_are_quantized_once():
    """A value that only a product reads is symmetric where it is computed, with no change of grid between."""
    data = inputs()
    program = micronpu.compile(
        Leftover(lambda x, y: (x + y) @ (x - y).transpose(1, 2)).eval(), data[0], "imxrt700", calibration=data
    )
    graph = program.partitions[0].graph
    assert not [n for n in graph.nodes if n.op.name == "requantize"]
    (product,) = (n for n in graph.nodes if n.op.name == "batch_matmul")
    assert [t.type.zero_point for t in product.inputs] == [0, 0]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.relu(x), True),
        (lambda x: x * x + 1, True),
        (lambda x: x.abs().mean(-1).clamp(max=3), True),
        (lambda x: x.abs().mean(-1).clamp(max=-3), False),
        (lambda x: F.elu(x) + 1, True),
        (lambda x: 1.1 - x.tanh() ** 2, True),
        (lambda x: 0.9 - x.tanh() * x.tanh(), False),
        (lambda x: x - x.relu(), False),
        (lambda x: (x.relu() * x.sigmoid().cumsum(1)).sum(1) / (x.exp() + 1).sum(1), True),
        (lambda x: torch.cat([x.relu(), x.cos() + 1], 1), True),
        (lambda x: torch.cat([x.relu(), x], 1), False),
        (lambda x: x.relu() @ x.exp().transpose(1, 2), True),
        (lambda x: x.relu() @ x.transpose(1, 2), False),
        (lambda x: (x.abs() + 1).reshape(64), True),
        (lambda x: x + 1, False),
        (lambda x: x.abs() - 1, False),
        (lambda x: x.clamp(0.1, 2), True),
        (lambda x: F.softmax(x, -1) * 2, True),
        (lambda x: F.softmax(x, -1) * -2, False),
        (lambda x: x**2, True),
        (lambda x: x**3, False),
    ],
)
def test_never_negative(function: Function, expected: bool):
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    module: Any = torch.export.export(Model().eval(), (torch.randn(2, 4, 8),)).module(check_guards=False)
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    (result,) = output.all_input_nodes
    assert never_negative(GraphWriter(module, result, Capabilities()), result) is expected
