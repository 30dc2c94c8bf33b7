"""What the support tables say about limits is what the rules give."""

from __future__ import annotations

import functools

from tests.neutron_limits import limits_table, litert_names
from tests.support_outcomes import Outcome, becomes, in_place, operators_of

from micronpu.ir.lowering import LOWERINGS, Capabilities
from micronpu.ops import OPERATORS
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.targets.neutron.rules import RULES

table = functools.cache(limits_table)


def rows() -> dict[str, list[str]]:
    """Cells behind the ATen name, by name."""
    lines = [line.split(" | ") for line in table().splitlines() if line.startswith("| `aten.")]
    return {cells[0].strip("|` ").removeprefix("aten."): cells[1:] for cells in lines}


def names(overload: str, capabilities: Capabilities | None = None) -> list[str]:
    return [o.name for o in operators_of(overload, capabilities)]


def test_every_overload_has_a_row_and_every_rule_a_place():
    assert set(rows()) == {name for name in LOWERINGS if not name.split(".")[0].endswith("_")}
    for rule in RULES:
        assert rule.sentence in table(), f"no ATen operator leads to what {rule.name} is about"


def test_operators_are_found_in_the_importers():
    assert {Conv2d, DepthwiseConv2d} <= set(operators_of("conv2d.default"))
    assert operators_of("hardtanh.default") == [Clamp, Relu]
    assert names("clone.default") == []
    assert names("view.default") == ["reshape"]
    assert names("sigmoid.default") == ["sigmoid"]


def test_operators_are_found_in_the_decompositions():
    assert names("silu.default") == ["mul", "sigmoid"]
    assert "table" in names("silu.default", Capabilities(tables=True))
    assert "table" in names("sin.default")
    assert {"batch_matmul", "softmax"} <= set(names("scaled_dot_product_attention.default"))
    assert {"tanh", "sigmoid", "fully_connected", "concat", "slice"} <= set(names("gru.input"))
    assert "conv2d" in names("batch_norm.default")


def test_the_ways_of_an_overload_in_words():
    assert becomes("relu.default") == "operator"
    assert becomes("silu.default") == "table; written: silu(x) -> x * sigmoid(x)"
    assert becomes("sin.default") == "table"
    assert in_place("relu.default") == ["relu_.default"]
    assert in_place("pow.Tensor_Scalar") == ["pow_.Scalar"]
    assert in_place("conv2d.default") == []


def test_an_outcome_in_words():
    assert [str(o) for o in (Outcome(2), Outcome(), Outcome(0, ("a",)), Outcome(1, ("a", "b")))] == [
        "yes",
        "gone",
        "no",
        "in part; not `a`, `b`",
    ]
    assert str(Outcome(2, rewrites=("pad",))) == "yes, by `pad`"
    assert str(Outcome(2, ("a",), ("pad", "cut"))) == "in part, by `pad`, `cut`; not `a`"


def test_every_operator_has_a_litert_name():
    assert litert_names(Relu) == {"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"}
    assert litert_names(Conv2d) == {"CONV_2D"}
    for operator in OPERATORS.values():
        assert litert_names(operator), operator.name


def test_a_row_distinguishes_the_flavors():
    _, latest, published = (c.strip("| ") for c in rows()["sub.Tensor"])
    assert "There is no `sub`" in published and "There is no" not in latest
    assert "multiple of 8" in rows()["softmax.int"][2] and "multiple of 8" not in rows()["softmax.int"][1]
