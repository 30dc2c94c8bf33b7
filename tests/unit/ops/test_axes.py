"""Axes that an operator keeps apart, found again by changing one index of its operand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from micronpu.frontend.program import overload_of
from micronpu.ops.activation import RECTIFIERS
from micronpu.ops.facts import axis_behind
from micronpu.ops.movement import TRANSPOSES, order_of
from micronpu.upstream.torch import schema_of

SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 3, 4, 5, generator=SEED)
WEIGHT = torch.randn(3, 2, 1, 3, generator=SEED)

CASES: list[tuple[str, tuple[Any, ...], dict[int, int]]] = [
    ("permute.default", ([0, 2, 1, 3],), {0: 0, 1: 2, 2: 1, 3: 3}),
    ("transpose.int", (1, -1), {0: 0, 1: 3, 2: 2, 3: 1}),
    ("unsqueeze.default", (2,), {0: 0, 1: 1, 2: 3, 3: 4}),
    ("repeat.default", ([1, 2, 1, 1],), {0: 0, 2: 2, 3: 3}),
    ("softmax.int", (1,), {0: 0, 2: 2, 3: 3}),
    ("cumsum.default", (3,), {0: 0, 1: 1, 2: 2}),
    ("mean.dim", ([1, 3],), {0: 0, 2: 1}),
    ("mean.dim", ([1, 3], True), {0: 0, 2: 2}),
    ("amax.default", ([0],), {1: 0, 2: 1, 3: 2}),
    ("unbind.int", (1,), {0: 0, 2: 1, 3: 2}),
    ("layer_norm.default", ([4, 5],), {0: 0, 1: 1}),
    ("linear.default", (torch.randn(6, 5, generator=SEED),), {0: 0, 1: 1, 2: 2}),
    ("matmul.default", (torch.randn(5, 6, generator=SEED),), {0: 0, 1: 1, 2: 2}),
    ("prelu.default", (torch.tensor([0.1, 0.2, 0.3]),), {0: 0, 2: 2, 3: 3}),
    ("upsample_nearest2d.default", ([4, 10],), {0: 0, 1: 1, 2: 2}),
    ("conv_transpose2d.input", (WEIGHT, None, [1, 2]), {2: 2}),
]


def called(overload: str, *args: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The (first) result of an operator, and its arguments by the names of the schema."""
    operator = overload_of(overload)
    schema = schema_of(operator).arguments
    given = dict(zip((a.name for a in schema), args, strict=False))
    result = operator(*args)
    return result[0] if isinstance(result, (tuple, list)) else result, {
        a.name: given.get(a.name, a.default_value) for a in schema if a.name in given or a.has_default_value()
    }


@pytest.mark.parametrize(("overload", "args", "wanted"), CASES)
def test_an_index_of_the_result_depends_on_one_of_the_operand(
    overload: str, args: tuple[Any, ...], wanted: dict[int, int]
) -> None:
    y, given = called(overload, X, *args)
    found = {axis: axis_behind(overload, given, [X], axis, y.shape, lambda t: t.shape) for axis in range(X.dim())}
    assert {axis: behind for axis, behind in found.items() if behind is not None} == wanted
    for axis, behind in wanted.items():
        other = X.clone()
        other.select(axis, 1).add_(10.0)
        given = {name: other if value is X else value for name, value in given.items()}
        changed = (called(overload, other, *args)[0] - y).abs().movedim(behind, 0).flatten(1).amax(1)
        assert (changed > 1e-5).nonzero().flatten().tolist() in ([1], [])  # a norm may remove it


def test_an_operator_that_is_not_known_combines_all_indices() -> None:
    y, given = called("cross.default", X, X + 1, 1)
    assert all(axis_behind("cross.default", given, [X], a, y.shape, lambda t: t.shape) is None for a in range(4))


@pytest.mark.parametrize("overload", TRANSPOSES)
def test_the_order_of_transposed_axes(overload: str) -> None:
    x = torch.zeros(2, 3) if overload.startswith("t") and "transpose" not in overload else X
    args = {"transpose": (0, -2), "permute": ([3, 0, -2, 1],)}
    y, given = called(overload, x, *args.get(overload.split(".")[0].removesuffix("_copy"), ()))
    assert [x.shape[axis] for axis in order_of(given, x.dim())] == list(y.shape)


@pytest.mark.parametrize("overload", RECTIFIERS)
def test_rectifiers_are_near_relu(overload: str) -> None:
    """Of 100 and -100, up to the scale of selu."""
    large, negative = called(overload, torch.tensor([100.0, -100.0]))[0].tolist()
    assert large == pytest.approx(100.0, rel=0.06) and -2.0 < negative < 1e-6
