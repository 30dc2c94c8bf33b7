"""Every decomposition computes in float what ATen computes: at random shapes, near zero and far from it.

What a device computes of them is tested with the operators; here a wrong one is seen by itself, before any grid.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support_rows import CUBES, Inputs, Rows, overloads

from micronpu.frontend.export import export
from micronpu.ir.lowering import LOWERINGS, Capabilities, Decomposition
from micronpu.ir.types import DType
from micronpu.quantize.decompose import decompose
from micronpu.quantize.writer import GraphWriter

PLAIN = Capabilities()
RICH = Capabilities(
    tables=True, index_types=(DType.INT32,), lookups=True, positions=True, resizes=True, resizes_by_axis=True
)
DECOMPOSED = [name for name in overloads() if any(isinstance(lowering, Decomposition) for lowering in LOWERINGS[name])]
SHAPES = [((1, 6, 8), (2, 8, 5, 7), (2, 2, 3, 5, 4)), ((1, 8, 8), (1, 8, 8, 8), (1, 2, 4, 6, 6))]
"""Of x, image and volume; a row is called on the first that ATen takes, beside the constants that it has."""
REACHES = {"near": 1.0, "far": 40.0}
"""Standard deviations of the inputs; exp overflows in the latter unless the largest value is taken off first."""
NEAR = {"gelu.default": 0.0204}
"""Overloads whose decompositions are approximations, as users read, with the error that is said of them."""
aten = torch.ops.aten
FORMS: dict[str, Callable[[Inputs], Any]] = {
    "averaged_by_products": lambda i: aten.adaptive_avg_pool2d(i.image, [11, 13]),
    "avg_pool_by_number": lambda i: aten.avg_pool2d(i.image, [2, 2], [2, 2], [0, 0], False, True, 5),
    "convolution_in_groups": lambda i: aten.conv3d(i.volume, CUBES[:, :1], None, [1, 1, 1], [0, 0, 0], [1, 1, 1], 2),
    "number_in_arithmetic": lambda i: aten.mul.Tensor(i.y, aten.gt.Tensor(i.x, i.y)),
    "count": lambda i: aten.sum.dim_IntList(aten.gt.Tensor(i.x, i.y), [-1]),
    "added_mask": lambda i: aten.softmax.int(aten.add.Tensor(i.x, HIDDEN), -1),
    "queries_side_by_side": lambda i: aten.matmul(
        i.image, aten.repeat_interleave.self_int(i.image[:, :4], 2, 1).transpose(-1, -2)
    ),
    "slice_of_parts": lambda i: aten.slice.Tensor(aten.cat([i.x, i.y], 1), 1, 0, 3),
    "computed_weights": lambda i: aten.conv2d(i.image, i.image[:1, :, :3, :3]),
    "select_to_rows": lambda i: aten.index_select(i.x, 1, i.positions[:, 0]),
    "index_to_rows": lambda i: aten.index.Tensor(i.image, [None, None, i.positions[:, 0], i.positions[:, 1]]),
    "gather_to_rows": lambda i: aten.gather(i.matrix[:3, :2], 0, i.positions.remainder(3)),
    "put_to_rows": lambda i: aten.index_put(i.matrix, [torch.tensor([1, 2]) + i.positions[0, 0] * 0], i.other[:2]),
    "copy_to_rows": lambda i: aten.index_copy(i.x, 1, torch.tensor([4, 1]) + i.positions[0, 0] * 0, i.y[:, :2]),
}
"""Calls in which decompositions are written that need more than one operator, or other arguments than the rows have."""
HIDDEN = torch.where(torch.arange(8) % 3 == 1, -torch.inf, 0.0)
Values = tuple[torch.Tensor, ...]


def values(shapes: tuple[tuple[int, ...], ...], reach: float) -> Values:
    """Inputs of `Rows`."""
    random = torch.Generator().manual_seed(11)
    x, image, volume = shapes
    given = [reach * torch.randn(shape, generator=random) for shape in (x, x, image, volume)]
    return (*given, torch.randint(0, 5, (3, 2), generator=random))


class Forms(torch.nn.Module):
    """As `Rows`, of `FORMS`."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, *others: torch.Tensor) -> list[Any]:
        given = Inputs(x, y, x[0], y[0], *others, x, x, x)
        return [call(given) for call in FORMS.values()]


def called(name: str, given: Values) -> bool:
    """Whether ATen takes a row's call."""
    try:
        Rows([name])(*given)
    except (RuntimeError, IndexError):
        return False
    return True


def programs() -> Iterator[tuple[torch.nn.Module, Sequence[str], int]]:
    """Rows and forms, their names, and the number of the shapes that they are called on."""
    found = defaultdict(list)
    for name in DECOMPOSED:
        found[next(i for i, shapes in enumerate(SHAPES) if called(name, values(shapes, 1.0)))].append(name)
    yield from ((Rows(names), names, number) for number, names in found.items())
    yield Forms().eval(), tuple(FORMS), 0


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the decompositions that were written."""
    found: set[str] = set()
    usual = Capabilities.decompositions

    def noted(lowering: Decomposition) -> Callable[[Any], Any]:
        def write(writer: Any) -> Any:
            made = lowering.decompose(writer)
            if made is not None:
                found.add(lowering.name)
            return made

        return write

    monkeypatch.setattr(
        Capabilities,
        "decompositions",
        lambda self, overload: tuple(
            replace(lowering, decompose=noted(lowering)) for lowering in usual(self, overload)
        ),
    )
    return found


def tensors(value: Any) -> list[torch.Tensor]:
    """Those of a result."""
    return [value] if isinstance(value, torch.Tensor) else [tensor for part in value for tensor in tensors(part)]


def far_from(wanted: Any, found: Any) -> float:
    """The largest difference of two results beside what rounding may make; infinite for other shapes."""
    worst = 0.0
    for one, other in zip(tensors(wanted), tensors(found), strict=True):
        if one.shape != other.shape:
            return math.inf
        one, other = one.double(), other.double()
        beyond = (one - other).abs() - 1e-5 - 1e-4 * one.abs()
        beyond[(one == other) | (one.isnan() & other.isnan())] = 0
        worst = max(worst, float(beyond.nan_to_num(nan=math.inf).max()))
    return worst


def differences() -> dict[tuple[str, str], float]:
    """By overload and inputs, how far a decomposition is from ATen where it is."""
    found: dict[tuple[str, str], float] = {}
    for module, names, number in programs():
        inputs = {reach: values(SHAPES[number], size) for reach, size in REACHES.items()}
        program = export(module, inputs["near"])
        plain = program.module(check_guards=False)
        wanted = {reach: plain(*given) for reach, given in inputs.items()}
        for capabilities in (PLAIN, RICH):
            decomposed = program.module(check_guards=False)
            decompose(decomposed, capabilities)
            for reach, given in inputs.items():
                pairs = zip(names, wanted[reach], decomposed(*given), strict=True)
                far = {(name, reach): far_from(one, other) for name, one, other in pairs}
                found |= {key: max(found.get(key, 0.0), value) for key, value in far.items() if value}
    return found


@pytest.mark.sweep
def test_decompositions_compute_what_aten_computes(written: set[str]) -> None:
    found = differences()
    assert {key: value for key, value in found.items() if value > NEAR.get(key[0], 0.0)} == {}
    assert {name for name, _ in found} == NEAR.keys()
    assert written == {
        lowering.name for name in DECOMPOSED for lowering in LOWERINGS[name] if isinstance(lowering, Decomposition)
    }


@pytest.mark.parametrize(
    ("overload", "right", "wrong"),
    [
        ("logsumexp.default", "amax.default", "amin.default"),
        ("clamp.Tensor", "maximum.default", "minimum.default"),
        ("mish.default", "tanh.default", "sigmoid.default"),
        ("var.correction", "sub.Tensor", "add.Tensor"),
    ],
)
def test_a_wrong_operator_is_seen(overload: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = GraphWriter.__call__
    monkeypatch.setattr(
        GraphWriter, "__call__", lambda self, name, *given: usual(self, wrong if name == right else name, *given)
    )
    monkeypatch.setattr(f"{__name__}.DECOMPOSED", [overload])
    monkeypatch.setattr(f"{__name__}.FORMS", {})
    assert any(name == overload for name, _ in differences())


class Drawn(torch.nn.Module):
    """Adds noise in the shape of a constant, which no input changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.full((4,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(self.level) + torch.dropout(self.level, 0.5, False)


def test_what_is_drawn_is_computed_in_each_call() -> None:
    module = export(Drawn().eval(), (torch.zeros(4),)).module(check_guards=False)
    decompose(module, PLAIN)
    assert not torch.equal(module(torch.zeros(4)), module(torch.zeros(4)))
    assert "dropout" not in module.code
