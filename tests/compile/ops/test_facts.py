"""Facts of operators hold for what ATen computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support_rows import Inputs, Row, batches, is_in_place

from micronpu.ops import ATEN_IMPORTS, facts
from micronpu.upstream.torch import schema_of

X = torch.linspace(0.15, 3.7, 24).reshape(2, 12)


def called(overload: str, *args: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """What an operator gives, and its arguments by the names of the schema."""
    name, form = overload.split(".")
    operator = getattr(getattr(torch.ops.aten, name), form)
    schema = schema_of(operator).arguments
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    return operator(*args), given | dict(zip((a.name for a in schema), args, strict=False))


def inputs_of(x: torch.Tensor) -> Inputs:
    _, y, image, volume, positions = batches(1)[0]
    return Inputs(x, y, x[0], y[0], image, volume, positions, x.abs() + 0.5, x.abs() + 1.5, x.clamp(-0.9, 0.9))


def is_function_of_one_element(overload: str) -> bool:
    """Whether a result of ATen's operator depends on the element of its only operand in its place, and on no other."""
    row, x = Row(overload), batches(1)[0][0]
    if sum(str(a.type) in ("Tensor", "Optional[Tensor]", "List[Tensor]") for a in schema_of(row.target).arguments) != 1:
        return False
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))
    try:
        result = row(inputs_of(x))
        other = row(inputs_of(x.flatten()[order].reshape(x.shape)))
    except (RuntimeError, IndexError):
        return False  # of another shape
    if not isinstance(result, torch.Tensor) or result.numel() != x.numel():
        return False
    return torch.equal(result.flatten()[order].nan_to_num(), other.flatten().nan_to_num())


@pytest.mark.parametrize("overload", [name for name in ATEN_IMPORTS if not is_in_place(name)])
def test_functions_of_one_element(overload: str) -> None:
    """What ATen computes element by element is stated, apart from what only moves elements; and nothing else is."""
    entry = ATEN_IMPORTS[overload]
    assert entry.elementwise or not is_function_of_one_element(overload) or entry.moves_only
    assert not entry.elementwise or is_function_of_one_element(overload)


@pytest.mark.parametrize(
    ("overload", "args"),
    [("square.default", ()), ("sqrt.default", ()), ("rsqrt.default", ()), ("reciprocal.default", ())]
    + [("pow.Tensor_Scalar", (c,)) for c in (2, 0.5, -1.5, 3)]
    + [("mul.Tensor", (X,))],
)
def test_a_power(overload: str, args: tuple[Any, ...]) -> None:
    result, given = called(overload, X, *args)
    power = facts.power_of(overload, given)
    assert power is not None
    torch.testing.assert_close(result, X**power)
    assert facts.is_singular(overload, given) == (power < 1)
    assert facts.degree_of(overload, given) == power


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        *(("mean.dim", ([-1], True)), ("sum.dim_IntList", ([-1], True)), ("var.correction", ([-1],))),
        *(("linalg_vector_norm.default", (2, [-1], True)), ("std.correction", ([-1],))),
        *(("expand.default", ([3, 2, 12],)), ("expand_as.default", (X,)), ("neg.default", ()), ("abs.default", ())),
    ],
)
def test_a_degree(overload: str, args: tuple[Any, ...]) -> None:
    result, given = called(overload, X, *args)
    degree = facts.degree_of(overload, given)
    assert degree is not None
    torch.testing.assert_close(called(overload, 4 * X, *args)[0], 4**degree * result)


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        *(("mul.Tensor", (X, 3.0)), ("div.Tensor", (X, 4.0)), ("add.Tensor", (X, 0.5)), ("add.Tensor", (0.5, X))),
        *(("sub.Tensor", (X, 0.5)), ("sub.Tensor", (0.5, X)), ("rsub.Scalar", (X, 0.5)), ("neg.default", (X,))),
    ],
)
def test_a_line(overload: str, args: tuple[Any, ...]) -> None:
    tensors = [torch.tensor(a) if overload == "sub.Tensor" and isinstance(a, float) else a for a in args]
    result, _ = called(
        overload, *[torch.tensor(a) if i == 0 and isinstance(a, float) else a for i, a in enumerate(tensors)]
    )
    given = dict(zip(("self", "other"), args, strict=False))
    line = facts.line_of(overload, given, lambda a: a if isinstance(a, float) else None)
    assert line is not None and line[0] is X
    torch.testing.assert_close(result, line[1] * X + line[2])


@pytest.mark.parametrize(
    ("overload", "args"), [("mul.Tensor", (X, X)), ("mul.Tensor", (X, 0.0)), ("div.Tensor", (1.0, X))]
)
def test_no_line(overload: str, args: tuple[Any, ...]) -> None:
    given = dict(zip(("self", "other"), args, strict=False))
    assert facts.line_of(overload, given, lambda a: a if isinstance(a, float) else None) is None


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        *(("gt.Scalar", (0.3,)), ("le.Scalar", (-0.7,)), ("threshold.default", (0.25, -1.0))),
        *(("hardshrink.default", (0.4,)), ("round.default", ())),
    ],
)
def test_jumps(overload: str, args: tuple[Any, ...]) -> None:
    """The result jumps at each number, and nowhere else between -1 and 1."""
    x = torch.linspace(-1, 1, 2001, dtype=torch.float64) + 1e-5
    result, given = called(overload, x, *args)
    found = x[:-1][(result.double().diff().abs() > 0.2)].tolist()
    wanted = sorted(
        first + n * distance
        for first, distance in facts.jumps_of(overload, given)
        for n in (range(-2, 2) if distance else (0,))
        if abs(first + n * distance) < 1
    )
    assert found == pytest.approx(wanted, abs=2e-3)


def test_what_jumps_nowhere_that_is_known() -> None:
    assert not facts.jumps_of("gt.Scalar", {"other": float("inf")})
    assert not facts.jumps_of("eq.Scalar", {"other": 0.3})


@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc"])
def test_whole_numbers(name: str) -> None:
    result, _ = called(f"{name}.default", X)
    assert f"{name}.default" in facts.WHOLE and torch.equal(result, result.round())


@pytest.mark.parametrize(
    ("overload", "args"),
    [("view.default", ([-1],)), ("expand.default", ([2, 12],)), ("unsqueeze.default", (0,)), ("clone.default", ())]
    + [("to.dtype", (torch.int32,)), ("flatten.using_ints", ()), ("contiguous.default", ())],
)
def test_numbers_that_are_handed_on(overload: str, args: tuple[Any, ...]) -> None:
    x = torch.arange(24).reshape(2, 12)
    assert overload in facts.HANDING_ON and torch.equal(called(overload, x, *args)[0].flatten(), x.flatten().long())


@pytest.mark.parametrize("name", facts.AMPLIFIERS)
def test_functions_that_amplify_small_operands(name: str) -> None:
    found = facts.AMPLIFIERS[name]
    x = torch.tensor([0.25], dtype=torch.float64)
    result = 1 / x if name == "div" else getattr(torch, name)(x)
    assert math.isclose(found.of(0.25), float(result))
    assert math.isclose(found.smallest(*((-1.0, float(result)) if found.divides else (float(result), 9.0))), 0.25)


def test_indices() -> None:
    table, index = torch.arange(12.0).reshape(3, 4), torch.tensor([2, 0])
    for overload, args in (("index_select.default", (table, 0, index)), ("embedding.default", (table, index))):
        result, given = called(overload, *args)
        ((found, at, axis),) = facts.indices_of(overload, given)
        assert found is table and at is index and torch.equal(result, table.index_select(axis, at))
    assert facts.indices_of("index.Tensor", {"self": table, "indices": [None, index]})[1] == (table, index, 1)


@pytest.mark.parametrize("overload", ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "batch_norm.default"])
def test_affine_operands(overload: str) -> None:
    """In each operand that is declared, and in no other tensor, equal steps change the result equally."""
    is_norm = overload == "batch_norm.default"
    args: list[Any] = [X, *[X[0] + 1] * 4, False, 0.1, 1e-5, False] if is_norm else [X, X + 1]
    operator = getattr(torch.ops.aten, overload.split(".")[0])
    names = [a.name for a in schema_of(getattr(operator, overload.split(".")[1])).arguments]
    found = []
    for place in range(1 if is_norm else 2):
        steps = [called(overload, *args[:place], args[place] + n, *args[place + 1 :])[0] for n in range(3)]
        if torch.allclose(steps[1] - steps[0], steps[2] - steps[1], atol=1e-4):
            found.append(place)
    assert [names.index(name) for name in facts.AFFINE[overload]] == found


FORMS: dict[facts.Form, Callable[..., Any]] = {
    facts.Form.SUM: lambda a, b: a + b,
    facts.Form.DIFFERENCE: lambda a, b: a - b,
    facts.Form.PRODUCT: lambda a, b: a * b,
    facts.Form.QUOTIENT: lambda a, b: a / b,
    facts.Form.NEGATIVE: lambda a: -a,
    facts.Form.EXPONENTIAL: torch.exp,
    facts.Form.LOGARITHM: torch.log,
    facts.Form.LOGARITHM_OF_MORE: lambda a: torch.log(1 + a),
    facts.Form.RECIPROCAL: lambda a: 1 / a,
    facts.Form.ROOT: torch.sqrt,
    facts.Form.MAGNITUDE: torch.hypot,
    facts.Form.SIGMOID: lambda a: 1 / (1 + torch.exp(-a)),
    facts.Form.ROW_SUM: lambda a, axes: a.sum(axes),
    facts.Form.ROW_MEAN: lambda a, axes: a.mean(axes),
    facts.Form.ROW_MAXIMUM: lambda a, axes: a.amax(axes),
    facts.Form.MAXIMUM_AND_POSITION: lambda a, axis: a.max(axis),
}


@pytest.mark.parametrize("overload", facts.FORMS)
def test_a_form(overload: str) -> None:
    form = facts.FORMS[overload]
    assert form is not None
    axes = {facts.Form.MAXIMUM_AND_POSITION: 1}.get(form, [1])
    more = (
        (X.flip(1),) if "b" in form.value.split() else (axes,) if "axes" in form.value or "axis" in form.value else ()
    )
    torch.testing.assert_close(called(overload, X, *more)[0], FORMS[form](X, *more))


def test_every_form_has_an_overload() -> None:
    assert {*facts.FORMS.values()} == {*FORMS} == {*facts.Form}


@pytest.mark.parametrize(("overload", "args"), [("clamp_min.default", (1.0,)), ("clamp.default", (1.0, None))])
def test_the_least_of_a_clamp(overload: str, args: tuple[Any, ...]) -> None:
    result, given = called(overload, X, *args)
    assert facts.least_of(overload, given) == result.min() == 1.0
    assert facts.least_of("clamp.default", called("clamp.default", X, 1.0, 2.0)[1]) is None


@pytest.mark.parametrize(
    ("overload", "args"), [("add.Tensor", (X,)), ("baddbmm.default", (torch.ones(3, 2, 5), torch.ones(3, 5, 12)))]
)
def test_addends(overload: str, args: tuple[Any, ...]) -> None:
    x = X.expand(3, 2, 12)
    result, given = called(overload, x, *args)
    first, *_ = facts.addends_of(overload, given)
    torch.testing.assert_close(called(overload, x + 1, *args)[0], result + 1)
    assert first is x


@pytest.mark.parametrize(
    ("overload", "args"),
    [("index_copy.default", (1, torch.tensor([3]))), ("index_put.default", ([None, torch.tensor([3])],))],
)
def test_replaced_rows(overload: str, args: tuple[Any, ...]) -> None:
    result, given = called(overload, X, *args, torch.full((2, 1), 7.0))
    replaced = facts.replaced_in(overload, given)
    assert replaced is not None
    ((axis, index),), new = replaced
    assert torch.equal(result.index_select(axis, index), new)
    assert facts.replaced_in(overload, given | {"accumulate": True}) is None or overload == "index_copy.default"


@pytest.mark.parametrize("margin", [0.5 / 256, 0.5 / 128, 0.5 / 32768])
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_a_saturation(name: str, margin: float) -> None:
    end = facts.saturates_from(f"{name}.default", margin)
    assert end is not None
    beyond = torch.linspace(end + 1e-5, 50, 1000, dtype=torch.float64)
    limits = getattr(torch.ops.aten, name).default(torch.tensor([-60.0, 60.0], dtype=torch.float64))
    low, high = (called(f"{name}.default", sign * beyond)[0] for sign in (-1, 1))
    assert (low - limits[0]).abs().max() <= margin
    assert (high - limits[1]).abs().max() <= margin
    assert float((called(f"{name}.default", 0.99 * beyond[:1])[0] - limits[1]).abs()) > margin
    assert facts.saturates_from("relu.default", 2.0) is None
