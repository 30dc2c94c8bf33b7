"""Programs with thousands of successive operators, and with values that many sums share: work grows as the program."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.quantize.test_solver import FIXED, INT8, INT16, JOIN, MOVE, WIDE, Table, described, observer

from micronpu.ir.facts import Form
from micronpu.ops.softmax import HIDDEN, MASKED
from micronpu.quantize.solver.neighbours import observe_for_neighbours
from micronpu.quantize.solver.requirements import requirements
from micronpu.quantize.solver.values import Place, Value, Values


def chain(t: Table, x: Value, i: int) -> Value:
    return t.op(f"y{i}", x)


def residual(t: Table, x: Value, i: int) -> Value:
    return t.op(f"sum{i}", x, t.op(f"y{i}", x), form=Form.SUM)


def dense(t: Table, x: Value, i: int) -> Value:
    return t.op(f"cat{i}", x, t.op(f"y{i}", x), rule=JOIN, moves=True)


def sums(t: Table, x: Value, i: int) -> Value:
    before = t.by_name.get(f"sum{i - 2}", t.by_name["x"])
    return t.op(f"sum{i}", before, x, form=Form.SUM)


def masks(t: Table, x: Value, i: int) -> Value:
    mask = t.by_name.get("mask") or t.op("mask", t.by_name["x"], rewrite_rule=HIDDEN)
    return t.op(f"sum{i}", x if i else mask, t.by_name.get(f"sum{i - 2}", mask), form=Form.SUM)


def moved(t: Table, x: Value, i: int) -> Value:
    return t.op(f"move{i}", x, rule=MOVE, moves=True, axis_before=lambda operand, axis: axis)


def moved_and_joined(t: Table, x: Value, i: int) -> Value:
    one = t.op(f"a{i}", x, rule=MOVE, moves=True, axis_before=lambda operand, axis: axis)
    return t.op(f"cat{i}", one, x, rule=JOIN, moves=True, axis_before=lambda operand, axis: axis)


def exponentials(t: Table, x: Value, i: int) -> Value:
    return t.op(f"exp{i}", x, form=Form.EXPONENTIAL)


def fixed(t: Table, x: Value, i: int) -> Value:
    return moved(t, x if i else t.op("fixed", x, rule=FIXED), i)


def program(block: Callable[[Table, Value, int], Value], count: int) -> Values:
    """Return blocks in a row, and a softmax."""
    t = Table()
    x = t.input()
    for i in range(count):
        x = block(t, x, i)
    return t.end(t.op("softmax", x, rule=FIXED, softmax_axis=1))


def calls(function: Callable[[], Any]) -> int:
    """Return the number of calls, of functions in C too, that a function makes."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


SHAPES = [chain, residual, dense, sums, masks, moved, moved_and_joined, exponentials, fixed]


@pytest.mark.sweep
@pytest.mark.parametrize("block", SHAPES)
@pytest.mark.parametrize("config", [INT8, INT16], ids=["int8", "int16"])
def test_requirements_grow_as_the_program(block: Callable[[Table, Value, int], Value], config: Any) -> None:
    small, large = program(block, 500), program(block, 2000)
    once = calls(lambda: requirements(small, lambda value: config, WIDE))
    assert calls(lambda: requirements(large, lambda value: config, WIDE)) < 4.2 * once


@pytest.mark.parametrize("block", SHAPES)
def test_observers_of_neighbours_grow_as_the_program(block: Callable[[Table, Value, int], Value]) -> None:
    counts = []
    for count in (500, 2000):
        values = program(block, count)
        common = observer()  # all values share one, as after moves
        places: dict[Place, Any] = {value: common for value in values.all if not value.is_output}
        counts.append(calls(lambda values=values, places=places: observe_for_neighbours(values, places)))
    assert counts[1] < 4.2 * counts[0]


def test_a_long_sum_of_masks_is_a_mask() -> None:
    values = program(masks, 2000)
    places: dict[Place, Any] = {value: observer() for value in values.all if not value.is_output}
    observe_for_neighbours(values, places)
    scores = places[next(value for value in values.all if value.name == "sum1999")]
    scores(torch.tensor([[1.0, MASKED]]))
    assert math.isfinite(scores.min_val) and scores.min_val > MASKED


def test_fixed_qparams_reach_the_end_of_a_long_move() -> None:
    values = program(fixed, 2000)
    note = requirements(values, lambda value: INT8, WIDE)[values.all[-2]]
    assert [described(spec) for spec in note.input_qspec_map.values()] == [f"{1 / 256} from -128"]
