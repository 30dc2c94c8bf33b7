"""The solver on values that tables state: no model, no export, no calibration."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.layers import SOURCE, nodes

from micronpu.base.errors import ModelError
from micronpu.ir.facts import Form
from micronpu.ir.lowering import Capabilities
from micronpu.ir.op import NewValues, OutputQuantization, QuantizationRule, fixed_qparams, own_qparams, shares_qparams
from micronpu.ir.types import DType
from micronpu.ops.softmax import HIDDEN, MASKED
from micronpu.quantize.config import FINER, SHARES, QuantizationConfig
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.solver.groups import PartObserver, leave_selected, observers_of
from micronpu.quantize.solver.neighbours import observe_for_neighbours, share_states
from micronpu.quantize.solver.requirements import known_rules, requirements
from micronpu.quantize.solver.values import Place, State, Value, Values
from micronpu.quantize.specs import SharedQuantizationSpec

INT8 = QuantizationConfig(activation_observer="minmax")
INT16 = QuantizationConfig(activations="int16")
CLIPPED = QuantizationConfig()
OWN, MOVE = own_qparams(), shares_qparams()
JOIN = QuantizationRule(("xs",), OutputQuantization.SHARED)
CLAMP = shares_qparams(new_values=NewValues.ANY)
FIXED = fixed_qparams(1 / 256, -128)
TRUTH = fixed_qparams(1.0, 0)
WIDE = Capabilities(activations=(DType.INT8, DType.INT16))


class Table:
    """Values of a program in their order, by name."""

    def __init__(self, states: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.by_name: dict[str, Value] = {}
        self.states = states or {}

    def input(self, name: str = "x", **facts: Any) -> Value:
        return self._add(Value(name, len(self.by_name), is_input=True, shape=(1, 8), **facts))

    def constant(self, name: str, data: Any = 1.0) -> Value:
        value = self._add(Value(name, len(self.by_name), is_constant=True, is_stored=True, shape=(1, 8)))
        value.numbers = lambda: np.asarray(data, np.float64)
        return value

    def op(self, name: str, *operands: Value, rule: QuantizationRule | None = OWN, **facts: Any) -> Value:
        known = rule is not None
        value = Value(name, len(self.by_name), operands, rule=rule, is_known=known, is_supported=known, shape=(1, 8))
        value.first, value.second = (*operands, None, None)[:2]
        value.quantized, value.result = list(operands), value
        for fact, answer in facts.items():
            setattr(value, fact, answer)
        if value.is_clamp:
            value.reads_within = value.clamps_to
        return self._add(value)

    def end(self, *results: Value) -> Values:
        output = self._add(Value("output", len(self.by_name), results, is_output=True, is_float=False))
        of = self.by_name
        states = [State(name, of[old], of[new]) for name, (old, new) in self.states.items()]
        return Values([*of.values()], [r for r in results if all(r is not s.new for s in states)] or [output], states)

    def _add(self, value: Value) -> Value:
        self.by_name[value.name] = value
        return value


def described(spec: Any) -> str:
    """A spec in a word or two."""
    if spec is None:
        return "-"
    if isinstance(spec, SharedQuantizationSpec):
        place = spec.edge_or_node
        return f"as {place}" if isinstance(place, Value) else f"as {place[0]} in {place[1]}"
    if hasattr(spec, "scale"):
        return f"{spec.scale:g} from {spec.zero_point}"
    kind = spec.observer + (" symmetric" if spec.qscheme == torch.per_tensor_symmetric else "")
    return kind if spec.dtype is torch.int8 else f"{kind} int16"


def solved(
    values: Values,
    config: Callable[[Value], QuantizationConfig | None] = lambda value: INT8,
    able: Capabilities = WIDE,
    **more: Any,
) -> dict[str, str]:
    """What is found: specs of results by name, and of operands by ``operand > reader``."""
    found = {}
    for value, note in requirements(values, config, able, **more).items():
        found |= {f"{operand} > {value}": described(spec) for operand, spec in note.input_qspec_map.items()}
        if note.output_qspec is not None:
            found[value.name] = described(note.output_qspec)
    return found


def own(t: Table) -> Values:
    return t.end(t.op("y", t.input()))


def moved(t: Table) -> Values:
    return t.end(t.op("z", t.op("y", t.input()), rule=MOVE, moves=True))


def fixed(t: Table) -> Values:
    return t.end(t.op("z", t.op("y", t.input(), rule=FIXED), rule=OWN))


def joined(t: Table) -> Values:
    x, z = t.input(), t.input("z")
    return t.end(t.op("y", z, x, rule=JOIN))


def symmetric(t: Table) -> Values:
    q, k = t.op("q", t.input()), t.op("k", t.by_name["x"])
    rule = replace(own_qparams("x", "z"), symmetric=True)
    return t.end(t.op("y", q, t.op("turned", k, rule=MOVE, moves=True), rule=rule))


def symmetric_for_one(t: Table) -> Values:
    q = t.op("q", t.input())
    y = t.op("y", q, rule=replace(OWN, symmetric=True))
    return t.end(t.op("z", q), y)


def weighted(t: Table) -> Values:
    w = t.constant("w")
    return t.end(t.op("y", t.input(), rule=QuantizationRule(weight="w"), weights=w))


def weights_are_computed(t: Table) -> Values:
    w = t.op("w", t.input("v"), rule=None)
    return t.end(t.op("y", t.input(), rule=QuantizationRule(weight="w"), weights=w))


def fused(t: Table) -> Values:
    y = t.op("y", t.input(), fuses=True)
    return t.end(t.op("relu", y, rule=CLAMP, is_clamp=True, is_fusible=True, clamps_to=(0.0, math.inf)))


def long_rows(t: Table) -> Values:
    return t.end(t.op("y", t.input(), rule=FIXED, softmax_axis=1, has_long_rows=True))


def selected(t: Table) -> Values:
    hit = t.op("hit", t.input(), rule=TRUTH)
    return t.end(t.op("z", t.op("y", hit, t.op("rows", t.input("v")), is_kept_or_zero=True), rule=OWN))


def finer(t: Table) -> Values:
    return t.end(t.op("y", t.op("x1", t.input()), rule=shares_qparams(new_values=NewValues.BETWEEN, finer=(2.0, 8.0))))


ROWS: list[tuple[Callable[[Table], Values], dict[str, str]]] = [
    (own, {"x": "minmax", "x > y": "minmax", "y": "minmax"}),
    (moved, {"x": "minmax", "x > y": "minmax", "y": "minmax", "y > z": "as y", "z": "as y"}),
    (fixed, {"x": "minmax", "x > y": "minmax", "y": "0.00390625 from -128", "y > z": "0.00390625 from -128"}),
    (joined, {"x > y": "minmax", "z > y": "as x in y", "y": "as x in y"}),
    (symmetric, {"q": "minmax symmetric", "k": "minmax symmetric", "turned > y": "minmax symmetric"}),
    (symmetric_for_one, {"q": "minmax", "q > y": "minmax symmetric", "q > z": "minmax"}),
    (weighted, {"w > y": "minmax", "x > y": "minmax", "y": "minmax"}),
    (fused, {"x > y": "minmax", "relu": "minmax"}),
    (long_rows, {"y": SHARES}),
    (selected, {"rows > y": "as rows", "y": "as rows", "hit": "1 from 0", "hit > y": "minmax"}),
    (finer, {"x1 > y": "as x1", "y": FINER}),
]


@pytest.mark.parametrize(("program", "wanted"), ROWS, ids=lambda row: getattr(row, "__name__", ""))
def test_requirements(program: Callable[[Table], Values], wanted: dict[str, str]) -> None:
    found = solved(program(Table()))
    assert {name: found.get(name) for name in wanted} == wanted


def test_computed_weights_leave_an_operator_in_float() -> None:
    assert solved(weights_are_computed(Table())) == {}


def test_what_is_left_in_float_is_not_annotated() -> None:
    values = moved(Table())
    assert solved(values, lambda value: None if value.name == "y" else INT8) == {"y > z": "minmax", "z": "as y in z"}


def test_a_device_that_cannot_compute_an_operator_leaves_it_in_float() -> None:
    t = Table()
    values = t.end(t.op("y", t.input(), is_supported=False))
    assert solved(values) == {}


def test_results_are_not_clipped() -> None:
    """If two scores were clipped, they would be equal."""
    t = Table()
    found = solved(t.end(t.op("z", t.op("y", t.input()), rule=OWN)), lambda value: CLIPPED)
    assert found["y"] == "histogram" and found["z"] == found["x"] == "minmax"


def test_inputs_and_outputs_by_choice() -> None:
    found = solved(fixed(Table()), io=INT16)
    assert found["x"] == "beyond symmetric int16" and found["z > output"] == "beyond symmetric int16"
    t = Table()
    assert solved(t.end(t.op("y", t.input(), rule=FIXED)), io=INT8)["y > output"] == "0.00390625 from -128"


def test_annotations_of_others_stay() -> None:
    t = Table()
    values = moved(t)
    other = requirements(values, lambda value: INT16, WIDE)[t.by_name["y"]]
    found = requirements(values, lambda value: INT8, WIDE, known={t.by_name["y"]: other})
    assert found[t.by_name["y"]] is other
    assert described(found[t.by_name["z"]].output_qspec) == "as y"


@pytest.mark.parametrize(("first", "then"), [(INT8, INT16), (INT16, INT8)])
def test_an_operator_and_its_operand_of_two_types(first: QuantizationConfig, then: QuantizationConfig) -> None:
    """Values that an operator adds, as a pad does, would have the scale of the operand; it has one type."""
    t = Table()
    values = t.end(t.op("z", t.op("moved", t.op("y", t.input()), rule=MOVE), rule=CLAMP))
    found = solved(values, lambda value: then if value.name == "z" else first)
    wide = "beyond symmetric int16"
    assert found["moved > z"] == (wide if then is INT16 else "minmax") and found["z"] == "as moved in z"
    assert found["y"] == (wide if first is INT16 else "minmax") and found["moved"] == "as y"


def test_states_have_one_pair_of_qparams_that_is_not_clipped() -> None:
    t = Table({"h": ("h", "y")})
    y = t.op("y", t.input(), t.input("h"))
    values = t.end(y)
    found = solved(values, lambda value: CLIPPED)
    assert found["h"] == found["y"] == "minmax"
    places = observers_of(requirements(values, lambda value: CLIPPED, WIDE))
    assert places[t.by_name["h"]] is not places[y]
    share_states(values, places)
    assert places[t.by_name["h"]] is places[y]


def test_a_state_of_two_types() -> None:
    t = Table({"h": ("h", "y")})
    y = t.op("y", t.input(), t.input("h"))
    values = t.end(y)
    places: dict[Place, Any] = {t.by_name["h"]: observer(torch.int16), y: observer()}
    with pytest.raises(ModelError, match=r"`h` cannot have one pair of qparams: it is int16 in and int8 out"):
        share_states(values, places)


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize(
    ("addend", "wanted"), [(0.0, True), ([0.0, MASKED], True), ([0.0, 1.0], False), ([MASKED / 2], False)]
)
def test_a_sum_of_masks_is_a_mask(addend: Any, wanted: bool) -> None:
    t = Table()
    mask = t.op("mask", t.input(), rewrite_rule=HIDDEN)
    total = t.op("sum", mask, t.constant("c", addend), form=Form.SUM)
    view = t.op("view", total, rule=MOVE, moves=True)
    assert (known_rules(t.by_name.values())[view] == HIDDEN) is wanted


def masked(t: Table) -> tuple[Values, Value]:
    mask = t.op("mask", t.input("m"), rewrite_rule=HIDDEN)
    scores = t.op("scores", t.op("products", t.input()), mask, form=Form.SUM)
    return t.end(t.op("y", scores, rule=FIXED, softmax_axis=1)), scores


def test_masked_scores_do_not_widen_the_range() -> None:
    values, scores = masked(Table())
    places = observers_of(requirements(values, lambda value: INT8, WIDE))
    observe_for_neighbours(values, places)
    places[scores](torch.tensor([[1.0, -2.0, MASKED, MASKED, 0.0, 0.0, 0.0, 0.0]]))
    low = float(places[scores].min_val)  # type: ignore[union-attr]
    assert -40 < low < -2


def test_scores_with_another_reader_keep_their_range() -> None:
    t = Table()
    values, scores = masked(t)
    t.op("other", scores)
    places = observers_of(requirements(values, lambda value: INT8, WIDE))
    observe_for_neighbours(values, places)
    places[scores](torch.tensor([[1.0, MASKED]]))
    assert float(places[scores].min_val) == MASKED  # type: ignore[union-attr]


# ---------------------------------------------------------------- what readers need


def observer(dtype: torch.dtype = torch.int8) -> RangeObserver:
    limits = torch.iinfo(dtype)
    return RangeObserver(dtype, limits.min, limits.max, torch.per_tensor_affine)


def observers_after(values: Values, left_out: Sequence[str] = ()) -> dict[Value, RangeObserver]:
    """Observers of the values, one each, after their neighbours have spoken."""
    places = {v: observer() for v in values.all if not v.is_output and v.name not in left_out}
    observe_for_neighbours(values, dict[Place, Any](places))
    return places


def observed(values: Values) -> dict[str, RangeObserver]:
    return {value.name: found for value, found in observers_after(values).items()}


def test_a_threshold_reaches_values_before_a_linear_function() -> None:
    t = Table()
    y = t.op("y", t.op("x1", t.input()))
    y.line = t.by_name["x1"], 2.0, 1.0
    found = observed(t.end(t.op("is_more", y, jumps=frozenset({(2.0, 0.0)}))))
    assert found["y"].thresholds.rows == {(2.0, 0.0)} and found["x1"].thresholds.rows == {(0.5, 0.0)}
    assert not found["x"].thresholds.rows


def clamped(t: Table, *more: str) -> Values:
    y = t.op("y", t.input())
    clamp = t.op("clamp", t.op("view", y, rule=MOVE, moves=True), rule=CLAMP, is_clamp=True, clamps_to=(0.0, 6.0))
    return t.end(clamp, *(t.op(name, y) for name in more))


def test_a_range_ends_with_the_clamps_that_read_it() -> None:
    assert observed(clamped(Table()))["y"].within == (0.0, 6.0)
    assert observed(clamped(Table(), "other"))["y"].within == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("reads", "wanted"),
    [
        ({}, math.inf),
        ({"weights": True}, 0),
        ({"moves": True}, 0),
        ({"softmax_axis": 1}, 0),
        ({"form": Form.SUM}, 0),
        ({"form": Form.ROW_MEAN}, math.inf),
        ({"form": Form.QUOTIENT}, math.inf),
    ],
)
def test_the_extremes_of_sums_are_exceeded_if_readers_count_all_errors_alike(
    reads: dict[str, Any], wanted: float
) -> None:
    t = Table()
    kernel = t.constant("kernel")
    y = t.op("y", t.input(), weights=kernel)
    values = t.end(t.op("z", y, **reads | ({"weights": kernel} if "weights" in reads else {})))
    found = observed(values)
    assert found["y"].exceeded_from == wanted
    assert found["x"].exceeded_from == 600
    shared = observer()
    observe_for_neighbours(values, {t.by_name["x"]: shared, y: shared})
    assert shared.exceeded_from == max(wanted, 600), "as the one value that the other is made of"


def clamped_together(t: Table, last: tuple[float, float], *, reads_it: str = "clamp") -> Values:
    """A value of 0..3, an unlimited one, and the larger of both joined, of which a clamp reads only a part."""
    low = t.op("low", t.input(), rule=CLAMP, is_clamp=True, clamps_to=(0.0, 3.0))
    any_ = t.op("any", t.by_name["x"])
    largest = t.op("largest", low, any_, rule=JOIN)
    y = t.op("y", largest, any_, rule=None, moves=True, is_known=True)
    return t.end(t.op(reads_it, y, rule=CLAMP, is_clamp=reads_it == "clamp", clamps_to=last))


def test_a_group_ends_with_the_clamps_that_read_what_is_joined() -> None:
    def within(values: Values) -> tuple[float, float]:
        shared = observer()
        observe_for_neighbours(
            values, {value: shared for value in values.all if not (value.is_input or value.is_output)}
        )
        return shared.within

    assert within(clamped_together(Table(), (0.5, 6.0))) == (0.5, 6.0)
    assert within(clamped_together(Table(), (-9.0, math.inf))) == (-math.inf, math.inf)
    assert within(clamped_together(Table(), (0.0, 6.0), reads_it="other")) == (-math.inf, math.inf)
    one_of_many = clamped_together(Table(), (0.5, 6.0))
    one_of_many.all[0].readers[0].readers.append(Value("elsewhere"))
    assert within(one_of_many) == (0.0, 6.0), "it is between its own limits for any reader"


def test_a_range_contains_the_constant_of_a_pad() -> None:
    t = Table()
    low = t.op("low", t.input(), rule=CLAMP, is_clamp=True, clamps_to=(0.0, 6.0))
    padded, shared = t.op("pad", low, rule=replace(MOVE, padding=-5.0)), observer()
    values = t.end(t.op("clamp", padded, rule=CLAMP, is_clamp=True, clamps_to=(-9.0, 9.0)))
    observe_for_neighbours(values, {low: shared, padded: shared})
    assert shared.within == (-5.0, 6.0)


def read_through_sums(t: Table, *more: str) -> Values:
    """x1 + y1 + z1, joined parts of which are clamped at -6 and 6, as where a sigmoid and a tanh saturate."""
    x1, y1, z1 = (t.op(f"{name}1", t.input(name)) for name in "xyz")
    added = t.op("added", t.op("view", x1, rule=MOVE, moves=True), y1, form=Form.SUM)
    total = t.op("total", added, z1, form=Form.SUM)
    parts = [t.op(name, total, rule=MOVE, moves=True) for name in ("low", "high")]
    clamps = [t.op(f"clamp_{part}", part, rule=CLAMP, is_clamp=True, clamps_to=(-6.0, 6.0)) for part in parts]
    return t.end(*clamps, *(t.op(name, x1) for name in more))


def ends_of(found: RangeObserver) -> list[float]:
    scale, zero_point = (float(number) for number in found.calculate_qparams())
    return [(found.quant_min - zero_point) * scale, (found.quant_max - zero_point) * scale]


def test_the_terms_of_a_sum_end_where_no_other_term_can_bring_it_back_from_saturation() -> None:
    found = observed(read_through_sums(Table()))
    for name, numbers in {"x1": (-650.0, 300.0), "y1": (-4.0, 3.0), "z1": (0.0, 2.0)}.items():
        found[name](torch.tensor(numbers))
    assert found["total"].within == (-6.0, 6.0)
    assert ends_of(found["x1"]) == pytest.approx([-6.0 - 3.0 - 2.0, 6.0 + 4.0], abs=0.1)
    assert ends_of(found["y1"]) == pytest.approx([-4.0, 3.0], abs=0.1), "it is not widened"
    assert found["x1"].extremes is None and found["x"].saturation is None, "inputs are the application's"


@pytest.mark.parametrize("change", ["other reader", "no clamp behind", "no observer", "itself"])
def test_the_terms_of_a_sum_keep_their_range_if_a_reader_does_not_saturate(change: str) -> None:
    values = read_through_sums(Table(), *(["other"] if change == "other reader" else []))
    by_name = {value.name: value for value in values.all}
    if change == "no clamp behind":
        by_name["high"].readers.append(Value("elsewhere"))
    if change == "itself":
        by_name["total"].operands = [by_name["added"]]
    left_out = ["y1"] if change == "no observer" else []
    assert observers_after(values, left_out)[by_name["x1"]].saturation is None


def test_sums_of_sums_are_followed_up_to_a_limit() -> None:
    """A value that two readers double and add has twice as many sums as each sum, 2 ** 40 after 40 blocks."""
    t = Table()
    values = [t.op("first", t.input("x"))]
    for block in range(40):
        twice = [t.op(f"{name}{block}", values[-1], rule=MOVE, moves=True) for name in "ab"]
        values.append(t.op(f"sum{block}", *twice, form=Form.SUM))
    values.append(t.op("clamp", values[-1], rule=CLAMP, is_clamp=True, clamps_to=(-6.0, 6.0)))
    by_value = observers_after(t.end(values[-1]))
    limited = [
        v for v in values[:-1] if by_value[v].saturation is not None or by_value[v].within != (-math.inf, math.inf)
    ]
    assert values[-2] in limited and values[-3] in limited and values[0] not in limited


@pytest.mark.parametrize("is_step", [False, True])
def test_inputs_keep_their_range_except_those_of_a_step(is_step: bool) -> None:
    t = Table({"state": ("h", "clamp_h")})
    bias, clamps = t.constant("bias"), []
    for operand in (x := t.input("x"), h := t.input("h")):
        total = t.op(f"total_{operand}", operand, bias, form=Form.SUM)
        clamps.append(t.op(f"clamp_{operand}", total, rule=CLAMP, is_clamp=True, clamps_to=(-1.0, 1.0)))
    values = t.end(*clamps)
    values.is_step = is_step
    found = observers_after(values)
    assert (found[x].saturation is not None) is is_step
    assert found[h].saturation is None, "a state that is clipped is clipped in every call"


def test_a_sign_needs_a_part_of_the_range() -> None:
    t = Table()
    found = observed(t.end(t.op("z", t.op("y", t.input(), sign_counts=True))))
    assert found["y"].part < 1.0 and found["z"].part == 1.0


def test_a_singularity_ends_one_step_from_zero() -> None:
    t = Table()
    found = observed(t.end(t.op("y", t.op("x1", t.input()), power=-0.5)))
    found["x1"](torch.tensor([0.0, 255.0]))
    found["y"](torch.tensor([1000.0, 1.0]))
    scale = float(found["x1"].calculate_qparams()[0])
    assert float(found["y"].calculate_qparams()[0]) * 255 == pytest.approx(scale**-0.5)
    assert observed(t.end(t.by_name["x1"]))["x1"].singularity is None


def test_a_power_by_logarithm_and_exponential() -> None:
    t = Table()
    log = t.op("log", t.op("x1", t.input()), form=Form.LOGARITHM)
    scaled = t.op("scaled", log)
    scaled.line = log, -0.5, 0.0
    found = observed(t.end(t.op("y", scaled, form=Form.EXPONENTIAL)))
    for name, is_log in (("log", True), ("scaled", True), ("y", False)):
        near = found[name].singularity
        assert near.operand is found["x1"] and near.is_log is is_log
        assert near.factor == (1.0 if name == "log" else -0.5)


# ---------------------------------------------------------------- groups


def joined_twice(t: Table, *more: str) -> Values:
    small, large = t.op("small", t.input()), t.op("large", t.by_name["x"])
    y = t.op("y", small, large, rule=JOIN)
    return t.end(y, *(t.op(name, small) for name in more))


def test_operands_of_a_concatenation_have_one_observer() -> None:
    t = Table()
    values = joined_twice(t)
    places = observers_of(requirements(values, lambda value: INT8, WIDE))
    assert len({id(places[t.by_name[name]]) for name in ("small", "large", "y")}) == 1


def test_an_int16_concatenation_of_a_concatenation_in_int8() -> None:
    t = Table()
    values = t.end(t.op("z", joined_twice(t).returned[0], t.op("other", t.by_name["x"]), rule=JOIN))
    places = observers_of(requirements(values, lambda value: INT16 if value.name == "z" else INT8, WIDE))
    types = [places[t.by_name[name]].dtype for name in ("small", "large", "y", "other", "z")]
    assert types == [torch.int8, torch.int8, torch.int8, torch.int8, torch.int16]


def test_an_operand_with_another_reader_may_have_its_own_qparams() -> None:
    t = Table()
    values = joined_twice(t, "other")
    places = observers_of(requirements(values, lambda value: INT8, WIDE))
    part, whole = places[t.by_name["small"]], places[t.by_name["large"]]
    assert isinstance(part, PartObserver) and part.group is whole
    part(torch.tensor([0.0, 1.0]))
    whole(torch.tensor([0.0, 2.0]))
    assert not part.is_fine  # half as large: a requantize would cost more than the bit
    whole(torch.tensor([0.0, 64.0]))
    assert part.is_fine and float(part.calculate_qparams()[0]) == pytest.approx(1 / 255)


@pytest.mark.parametrize("other", [None, "x", "moved"])
def test_a_maximum_is_observed_instead_of_what_it_selects_from(other: str | None) -> None:
    table = Table()
    of = {"x": table.op("x", table.input("in"))}
    of["moved"] = table.op("moved", of["x"], rule=MOVE, moves=True)
    largest = table.op("largest", of["moved"], rule=MOVE, picks=True)
    values = table.end(*[table.op("other", of[other])] if other else [], table.op("y", largest))
    observers = observers_of(requirements(values, lambda value: CLIPPED, WIDE))
    leave_selected(observers)
    unseen = [v.name for v in values.all if isinstance(o := observers.get(v), PartObserver) and not o.learners()]
    assert unseen == {None: ["x", "moved"], "x": ["moved"], "moved": []}[other]
    group = observers[largest]
    assert all(observers[v].group is group for v in values.all if v.name in unseen)


def test_the_smaller_of_two_may_saturate() -> None:
    t = Table()
    y = t.op("y", t.op("small", t.input()), t.op("large", t.by_name["x"]), rule=JOIN, is_one_of=True)
    places = observers_of(requirements(t.end(y), lambda value: INT8, WIDE))
    assert isinstance(places[y], PartObserver)


def test_the_solver_knows_no_graph_of_torch() -> None:
    """So that it works on any graph that states the facts of its values."""
    for path in (SOURCE / "quantize" / "solver").glob("*.py"):
        for node in nodes(path):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else [module]
            assert not any(name.startswith(("torch.fx", "micronpu.frontend")) for name in names), path


def test_a_misspelt_fact_is_refused() -> None:
    with pytest.raises(TypeError, match="is_clmap"):
        Value("x", is_clmap=True)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="is_clmap"):
        Value("x").is_clmap = True  # type: ignore[attr-defined]
