"""Facts of operators hold for what ATen computes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import operator_facts
from tests.operator_facts import check_facts
from tests.support_rows import Inputs, Row, batches, overloads

from micronpu.base.errors import InternalError
from micronpu.ir.facts import QUESTIONS, Amplifier, Facts, Form, keeps
from micronpu.ir.lowering import FACTS, LOWERINGS, Decomposition, facts_of, states
from micronpu.ops import facts
from micronpu.upstream.torch import schema_of

X = torch.linspace(0.15, 3.7, 24).reshape(2, 12)


def called(overload: str, *args: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """What an operator gives, and its arguments by the names of the schema."""
    name, form = overload.split(".")
    operator = getattr(getattr(torch.ops.aten, name), form)
    schema = schema_of(operator).arguments
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    return operator(*args), given | dict(zip((a.name for a in schema), args, strict=False))


# ---------------------------------------------------------------- facts that are stated


class _Recorded:
    """An operator that keeps the arguments of its calls."""

    def __init__(self, operator: Any) -> None:
        self.operator, self.arguments = operator, list[Any]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        schema = schema_of(self.operator).arguments
        given = dict(zip((a.name for a in schema), args, strict=False)) | kwargs
        self.arguments = [given.get(a.name, a.default_value if a.has_default_value() else None) for a in schema]
        return self.operator(*args, **kwargs)


def row_of(overload: str) -> tuple[Any, list[Any]]:
    """An operator, and the arguments of its call in the support tables."""
    row, (x, y, image, volume, positions) = Row(overload), batches(1)[0]
    recorded = _Recorded(row.target)
    row.call(
        recorded,
        Inputs(x, y, x[0], y[0], image, volume, positions, x.abs() + 0.5, x.abs() + 1.5, x.clamp(-0.9, 0.9)),
    )
    arguments = recorded.arguments[:1] if overload == "logit.default" else recorded.arguments  # without bounds
    return row.target, arguments


def is_gone(overload: str) -> bool:
    """Whether an overload is replaced before anything asks for facts, and states none."""
    return overload not in FACTS and all(isinstance(w, Decomposition) and w.early for w in LOWERINGS[overload])


@pytest.mark.sweep
@pytest.mark.parametrize("overload", [n for n in overloads() if not is_gone(n) and "cudnn" not in n])
def test_the_facts_of_every_operator(overload: str) -> None:
    """ATen contradicts none that is stated, and suggests none that is not."""
    if "dim_order" in overload:
        importlib.import_module("executorch.exir.dialects._ops")
    operator, arguments = row_of(overload)
    assert not [str(finding) for finding in check_facts(operator, *arguments)]


@pytest.mark.parametrize("overload", [name for name in overloads() if name in FACTS])
def test_facts_in_place_are_the_same(overload: str) -> None:
    name, form = overload.split(".")
    assert facts_of(f"{name}_.{form}") is facts_of(overload) or f"{name}_.{form}" in FACTS


def test_facts_are_stated_once_and_about_questions() -> None:
    with pytest.raises(InternalError, match=r"sin.default are stated twice"):
        states("sin.default", facts=Facts())
    with pytest.raises(TypeError, match="`sine` is no question"):
        Facts(unknown={"sine": "it is not known"})
    with pytest.raises(TypeError, match="has no reason"):
        Facts(unknown={"range": ""})


@pytest.fixture(scope="module")
def others() -> Any:
    """Operators of another package."""
    library = torch.library.Library("facts_of_others", "DEF")
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "wave": lambda x: 2 * x.sin(),
        "steps": lambda x: (x / 3).round(),
        "size": torch.abs,
        "inverse": lambda x: 1 / x,
        "bent": lambda x: x.tanh() + 1,
        "turned": lambda x: x.flip(-1),
        "mixed": lambda x: x + x.flip(-1),
        "arc": torch.asin,
        "halved": lambda x: x / 2 + 1,
    }
    for name, function in functions.items():
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, function, "CPU")
    yield torch.ops.facts_of_others
    library._destroy()


@pytest.mark.parametrize(
    ("name", "stated", "question"),
    [
        ("wave", Facts(elementwise=True, range=(-1.0, 1.0)), "range"),
        ("wave", Facts(elementwise=True, range=keeps), "range"),
        ("steps", Facts(elementwise=True, whole=True, jumps=frozenset({(0.5, 1.0)})), "jumps"),
        ("size", Facts(elementwise=True, range=(0.0, math.inf), degree=2.0), "degree"),
        ("size", Facts(elementwise=True, range=(0.0, math.inf), power=1.0), "power"),
        ("inverse", Facts(elementwise=True, form=Form.RECIPROCAL, power=-2.0), "power"),
        ("inverse", Facts(elementwise=True, form=Form.ROOT, power=-1.0), "form"),
        ("bent", Facts(elementwise=True, range=(0.0, 2.0), tail=lambda y: -math.log(y)), "tail"),
        ("bent", Facts(elementwise=True, range=(0.0, 2.0), whole=True), "whole"),
        ("bent", Facts(elementwise=True, range=(0.0, 2.0), singular=True), "singular"),
        ("bent", Facts(elementwise=True, range=(0.0, 2.0), is_bounded=True), "is_bounded"),
        ("bent", Facts(elementwise=True, range=(0.0, 2.0), by_channel=True), "by_channel"),
        ("turned", Facts(elementwise=True, range=keeps, degree=1.0), "elementwise"),
        ("mixed", Facts(moves=True, degree=1.0), "moves"),
        ("wave", Facts(elementwise=True, range=(-2.0, 2.0), affine_in=("x",)), "affine_in"),
        ("wave", Facts(elementwise=True, range=(-2.0, 2.0), adds=True), "adds"),
        ("inverse", Facts(elementwise=True, power=-1.0, amplifier=Amplifier(math.log, math.exp)), "amplifier"),
    ],
)
def test_a_wrong_fact_of_another_package_is_named(others: Any, name: str, stated: Facts, question: str) -> None:
    found = check_facts(getattr(others, name).default, X.reshape(2, 3, 4), facts=stated)
    assert question in {f.question for f in found}
    named = next(str(f) for f in found if f.question == question)
    assert named.startswith(f"{name}.default: `{question}` is ") and ", but " in named


@pytest.mark.parametrize(
    ("name", "questions"),
    [
        ("wave", {"elementwise", "range"}),
        ("steps", {"elementwise", "whole"}),
        ("size", {"elementwise", "range", "degree"}),
        ("inverse", {"elementwise", "degree", "form"}),
        ("bent", {"elementwise", "range"}),
        ("arc", {"elementwise", "range"}),
    ],
)
def test_a_fact_that_nobody_states_is_named(others: Any, name: str, questions: set[str]) -> None:
    operator = getattr(others, name).default
    found = check_facts(operator, X)
    assert {f.question for f in found} == questions
    assert all(f"nothing is said about `{f.question}`" in str(f) for f in found)
    # What only functions of one element are asked.
    further = check_facts(operator, X, facts=Facts(elementwise=True))
    more = {"inverse": {"power", "singular", "jumps", "tail"}, "steps": {"jumps"}, "bent": set(), "arc": {"is_bounded"}}
    assert {f.question for f in further} >= (questions | more.get(name, set())) - {"elementwise", "degree", "tail"}
    assert not check_facts(operator, X, facts=Facts(unknown=dict.fromkeys(QUESTIONS, "it is not known")))


def test_every_question_has_a_check() -> None:
    assert set(QUESTIONS) == set(operator_facts._QUESTIONS)
    assert set(operator_facts._FORMS) == set(Form)


# ---------------------------------------------------------------- what follows from them


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
    [("view.default", ([-1],)), ("expand.default", ([2, 12],)), ("unsqueeze.default", (0,)), ("clone.default", ())]
    + [("to.dtype", (torch.int32,)), ("flatten.using_ints", ()), ("contiguous.default", ())],
)
def test_numbers_that_are_handed_on(overload: str, args: tuple[Any, ...]) -> None:
    x = torch.arange(24).reshape(2, 12)
    assert overload in facts.HANDING_ON and torch.equal(called(overload, x, *args)[0].flatten(), x.flatten().long())


def test_indices() -> None:
    table, index = torch.arange(12.0).reshape(3, 4), torch.tensor([2, 0])
    for overload, args in (("index_select.default", (table, 0, index)), ("embedding.default", (table, index))):
        result, given = called(overload, *args)
        ((found, at, axis),) = facts.indices_of(overload, given)
        assert found is table and at is index and torch.equal(result, table.index_select(axis, at))
    assert facts.indices_of("index.Tensor", {"self": table, "indices": [None, index]})[1] == (table, index, 1)


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
