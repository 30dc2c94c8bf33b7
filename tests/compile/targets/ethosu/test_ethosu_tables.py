"""Unary functions, comparisons, choices and positions on Ethos-U: from a torch module to the integer graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests import support_rows
from tests.compile.small import Small, find
from tests.support_rows import is_in_place
from torch.fx import GraphModule

import micronpu
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView, overload_name
from micronpu.ir import Graph, interpret
from micronpu.neutron import calibrate_and_quantize
from micronpu.ops import ATEN_IMPORTS
from micronpu.targets.ethosu.compat import EthosUQuantizer
from micronpu.targets.ethosu.device import EthosUDevice
from micronpu.targets.ethosu.options import EthosUOptions

SPEC = EthosUOptions("ethos-u55-128")
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Row:
    """A function of inputs [2, 4, 8] that lie evenly between two numbers.

    Attributes:
        overload: ATen operator that it is traced to.
    """

    overload: str
    function: Function
    low: float = -3.0
    high: float = 3.0
    name: str = ""


OWN = [
    Row("hardsigmoid.default", F.hardsigmoid, -5, 5),
    Row("gelu.default", F.gelu),
    Row("gelu.default", lambda x: F.gelu(x, approximate="tanh"), name="gelu tanh"),
    Row("softplus.default", F.softplus, -8, 8),
    Row("softplus.default", lambda x: F.softplus(x, beta=3, threshold=2), name="softplus beta"),
    Row("elu.default", lambda x: F.elu(x, 0.7)),
    Row("celu.default", lambda x: F.celu(x, 0.7)),
    Row("sqrt.default", torch.sqrt, 0.0, 5.0),
    Row("reciprocal.default", torch.reciprocal, 0.5, 4.0),
    Row("pow.Tensor_Scalar", lambda x: x**3),
    Row("pow.Tensor_Scalar", lambda x: x**-1.5, 0.5, 4.0, name="pow -1.5"),
    Row("pow.Scalar", lambda x: 2.5**x),
    Row("threshold.default", lambda x: F.threshold(x, 0.4, -1.5)),
    Row("remainder.Scalar", lambda x: torch.remainder(x, 0.7)),
    Row("fmod.Scalar", lambda x: torch.fmod(x, 0.7)),
    *(
        Row(f"{name}.Scalar", lambda x, name=name: getattr(torch, name)(x, 0.5).float())
        for name in ("gt", "ge", "lt", "le", "eq", "ne")
    ),
]
"""Functions with more forms than one, or with another range."""

RANGES = {"x": (-3.0, 3.0), "positive": (0.5, 4.0), "large": (1.5, 4.0), "unit": (-0.9, 0.9)}


class Given:
    """Stands for `tests.support_rows.Inputs` of one value, and knows which of its kinds was asked for."""

    def __init__(self, value: Any) -> None:
        self.value, self.asked = value, ""

    def __getattr__(self, name: str) -> Any:
        self.asked = name
        return self.value


def row_of(overload: str) -> Row:
    """The call that the support tables are made with."""
    row, given = support_rows.Row(overload), Given(None)
    row.call(lambda *arguments: None, given)
    return Row(overload, lambda x: row.call(row.target, Given(x)), *RANGES[given.asked])


TABLES = {name for name, entry in ATEN_IMPORTS.items() if entry.is_table and not is_in_place(name)}
TENSORS = {f"{name}.Tensor" for name in ("gt", "ge", "lt", "le", "eq", "ne")}
UNARY = [*OWN, *map(row_of, sorted(TABLES - TENSORS - {row.overload for row in OWN}))]


def spread(row: Row) -> torch.Tensor:
    return torch.linspace(row.low, row.high, 64).reshape(2, 4, 8)


def ethosu_quantized(function: Function, *inputs: torch.Tensor, quantizer: Any = None) -> GraphModule:
    model = Small(lambda self, *given: function(*given))
    exported = torch.export.export(model, inputs)
    return calibrate_and_quantize(exported, [inputs], quantizer or EthosUQuantizer(SPEC))


def only_graph(quantized: GraphModule, spec: EthosUOptions = SPEC) -> tuple[ProgramView, Any, Graph]:
    """The graph of a program that is one partition as a whole, apart from changes of the element type."""
    view = ProgramView(quantized)
    partitioning = EthosUDevice(spec).partition(view)
    left = [v for v in partitioning.report.host if v.operator != "to.dtype"]
    assert not left, left
    (group,) = partitioning.partitions
    return view, group, import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))


class Values(torch.fx.Interpreter):
    """Every value of a module."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.of: dict[torch.fx.Node, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.of[n] = super().run_node(n)
        return self.of[n]


def steps(quantized: GraphModule, *inputs: torch.Tensor, spec: EthosUOptions = SPEC) -> int:
    """How far the graph is from the quantized module in eager mode."""
    _, group, graph = only_graph(quantized, spec)
    values = Values(quantized)
    values.run(*inputs)
    results = interpret(graph, [values.of[n].numpy() for n in group.inputs])
    differences = [
        np.abs(result.astype(np.int64) - values.of[n].numpy()).max()
        for n, result in zip(group.outputs, results, strict=True)
    ]
    return int(max(differences))


@pytest.mark.sweep
@pytest.mark.parametrize("row", UNARY, ids=lambda row: row.name or row.overload)
def test_a_unary_function_is_one_table(row: Row):
    x = spread(row)
    quantized = ethosu_quantized(row.function, x)
    find(quantized, row.overload)
    _, _, graph = only_graph(quantized)
    assert [n.op.name for n in graph.nodes] == ["table"]
    assert steps(quantized, x) == 0
    dequantized = quantized(x)
    expected = row.function(x).float()
    span = float(expected.max() - expected.min())
    near = torch.isclose(dequantized, expected, atol=0.03 * span + 1e-6)
    jumps = row.overload.split(".")[0] in ("floor", "ceil", "round", "trunc", "frac", "remainder", "fmod", "threshold")
    assert near.float().mean() >= (0.8 if jumps or row.overload.endswith("Scalar") else 1.0)


def test_a_chip_without_tables_keeps_its_composites():
    x = torch.randn(1, 16)
    program = micronpu.compile(Small(lambda self, x: F.silu(x)), x, "imxrt700", calibration=[(x,)])
    assert not any(o.name == "table" for o in program.report.operations)


# ---------------------------------------------------------------- truth values, choices, positions

PAIRS = {
    "gt": torch.gt,
    "ge": torch.ge,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
}


def two(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    x, z = torch.rand(shape, generator=random) * 2 - 1, torch.rand(shape, generator=random) * 2 - 1
    return x, z


@pytest.mark.parametrize("name", PAIRS)
def test_comparison_of_tensors(name: str):
    """Grids of both sides are the same here, and elements of both are equal: the answer has to be exact."""
    x, z = two(4, 8, 8)
    x[0, 0, :2] = z[0, 0, :2] = torch.tensor([-1.0, 1.0])
    x[1] = z[1]
    quantized = ethosu_quantized(PAIRS[name], x, z)
    assert steps(quantized, x, z) == 0
    result = quantized(x, z)
    assert result.dtype == torch.bool
    assert (result == PAIRS[name](x, z)).float().mean() > 0.97


@pytest.mark.parametrize(
    "function",
    [
        lambda x, z: torch.where(x > 0, x, z),
        lambda x, z: torch.where(x > z, x, 0.25),
        lambda x, z: torch.where(x > z, torch.zeros(8), z),
        lambda x, z: x.masked_fill(x > 0.5, 0.0) + z,
        lambda x, z: x.masked_fill(x < z, -1.0),
        lambda x, z: (x > z).float() * z,
        lambda x, z: torch.where(x[:1] > 0.1, x, z),
    ],
)
def test_choices_are_arithmetic(function: Function):
    x, z = two(4, 8, 8)
    quantized = ethosu_quantized(function, x, z)
    assert steps(quantized, x, z) <= 1
    expected, got = function(x, z), quantized(x, z)
    assert expected.shape == got.shape
    assert (torch.isclose(got, expected, atol=0.03)).float().mean() > 0.97


def test_a_choice_with_infinity_stays_on_the_host():
    x, z = two(4, 8)
    quantized = ethosu_quantized(lambda x, z: (x + z).masked_fill(x > 0.5, float("-inf")), x, z)
    left = {v.operator for v in EthosUDevice(SPEC).partition(ProgramView(quantized)).report.host}
    assert "masked_fill.Scalar" in left
    assert torch.equal(torch.isinf(quantized(x, z)), x > 0.5)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    ("shape", "axis", "keep"), [((1, 12, 5, 4), 1, False), ((1, 7, 10), -1, True), ((9, 40), 0, False)]
)
def test_position_of_the_extreme(name: str, shape: tuple[int, ...], axis: int, keep: bool):
    x = torch.randperm(int(np.prod(shape)), generator=torch.Generator().manual_seed(5)).reshape(shape).float() / 10
    quantized = ethosu_quantized(lambda x: getattr(torch, name)(x, axis, keepdim=keep), x)
    spec = EthosUOptions("ethos-u85-256")
    assert steps(quantized, x, spec=spec) == 0
    result = quantized(x)
    assert result.dtype == torch.int64
    assert result.shape == getattr(torch, name)(x, axis, keepdim=keep).shape


def test_an_axis_of_more_positions_than_int8_stays_as_it_is():
    quantized = ethosu_quantized(lambda x: x.argmax(-1), torch.randn(2, 257))
    assert not any(overload_name(n) == "to.dtype" for n in quantized.graph.nodes)


def test_embedding_reads_int32():
    table = torch.nn.Embedding(30, 12)
    ids = torch.randint(0, 30, (2, 5))
    model = Small(lambda self, ids: self.table(ids), table=table)
    quantized = calibrate_and_quantize(torch.export.export(model, (ids,)), [(ids,)], EthosUQuantizer(SPEC))
    big = EthosUOptions("ethos-u85-256")
    assert steps(quantized, ids, spec=big) == 0
    assert torch.allclose(quantized(ids), table(ids), atol=0.03)
    reasons = [r.detail for v in EthosUDevice(SPEC).partition(ProgramView(quantized)).report.host for r in v.reasons]
    assert any("Gather" in detail for detail in reasons)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gather(1, torch.zeros(2, 1, 3, dtype=torch.long)),
        lambda x: x.gather(2, torch.tensor([[[0, 2, 4, 6], [1, 1, 1, 1]]])),
        lambda x: torch.take_along_dim(x, torch.tensor([[[3]], [[0]]]), 1),
    ],
)
def test_gather_by_constants_is_slices(function: Function):
    x = torch.randn(2, 4, 8)
    quantized = ethosu_quantized(function, x)
    assert steps(quantized, x) == 0
    assert torch.allclose(quantized(x), function(x), atol=0.05)


def test_too_many_picks_stay():
    x = torch.randn(1, 512)
    index = torch.randperm(512, generator=torch.Generator().manual_seed(0))[None]
    quantized = ethosu_quantized(lambda x: x.gather(1, index), x)
    assert find(quantized, "gather.default")


# ---------------------------------------------------------------- operators that become others


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.cumsum(-1), (2, 4, 8)),
        (lambda x: x.cumsum(1), (2, 4, 8)),
        (lambda x: x.cumsum(0), (5,)),
        (lambda x: F.max_pool2d(x, 2, 1, 0, 2), (1, 4, 8, 7)),
        (lambda x: F.max_pool2d(x, (3, 2), (2, 3), (1, 1), (2, 3)), (2, 3, 11, 9)),
        (lambda x: F.max_pool2d(x, 2, 2, 1, 3, ceil_mode=True), (1, 3, 10, 9)),
        (lambda x: F.max_pool1d(x, 3, 1, 1, 2), (1, 4, 12)),
    ],
)
def test_composites(function: Function, shape: tuple[int, ...]):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(2)) * 2 - 1
    quantized = ethosu_quantized(function, x)
    assert steps(quantized, x) == 0
    assert torch.allclose(quantized(x), function(x), atol=0.06)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"padding": (0, 1, 2), "dilation": (2, 1, 1)}])
def test_convolution_over_depth(options: dict[str, Any]):
    torch.manual_seed(0)
    layer = torch.nn.Conv3d(3, 5, (3, 3, 2), **options)
    x = torch.rand(2, 3, 6, 7, 5) * 2 - 1
    model = Small(lambda self, x: F.relu(self.layer(x)), layer=layer)
    quantized = calibrate_and_quantize(torch.export.export(model, (x,)), [(x,)], EthosUQuantizer(SPEC))
    assert steps(quantized, x) <= 1
    assert torch.allclose(quantized(x), model(x), atol=0.03)


def test_grouped_convolution_over_depth():
    layer = torch.nn.Conv3d(4, 4, 3, groups=2)
    x = torch.rand(1, 4, 5, 5, 5)
    model = Small(lambda self, x: self.layer(x), layer=layer)
    quantized = calibrate_and_quantize(torch.export.export(model, (x,)), [(x,)], EthosUQuantizer(SPEC))
    assert not EthosUDevice(SPEC).partition(ProgramView(quantized)).report.host


def test_long_running_sums_stay():
    quantized = ethosu_quantized(lambda x: x.cumsum(-1), torch.rand(1, 513))
    (verdict,) = EthosUDevice(SPEC).partition(ProgramView(quantized)).report.host
    assert "513 elements" in verdict.reasons[0].detail


def test_a_program_that_only_reshapes_is_no_partition():
    """A reshape leaves nothing to run; a transpose or a concatenation does."""
    x = torch.rand(1, 4, 3)
    assert not EthosUDevice(SPEC).partition(ProgramView(ethosu_quantized(lambda x: x.reshape(4, 3), x))).partitions
    for function in (lambda x: x.transpose(1, 2), lambda x: torch.cat([x, x], 1), lambda x: F.pad(x, (1, 1))):
        assert len(EthosUDevice(SPEC).partition(ProgramView(ethosu_quantized(function, x))).partitions) == 1


def test_a_clamp_that_changes_nothing_is_a_program_all_the_same():
    x = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
    program = micronpu.compile(Small(lambda self, x: F.hardtanh(x)), x, target="ethos-u55-128", calibration=[(x,)])
    assert not program.report.host
    assert torch.allclose(program.run(x), x, atol=0.01)
