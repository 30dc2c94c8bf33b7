"""What LiteRT would believe of a graph is checked before it is asked: every row passes, and damage is a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flatbuffers
import pytest
from ai_edge_litert import schema_py_generated as schema
from tests.cases import all_cases
from tests.oracle.ops.test_operators import legal
from tests.runtime import neutron_programs as programs

from micronpu.base.errors import PayloadError
from micronpu.emit.litert import to_litert
from micronpu.host.litert_check import _POSITIVE, check_litert


@pytest.mark.parametrize("family", sorted({row.family for row in all_cases()}))
def test_graphs_that_are_whole_pass(family):
    for row in (row for row in all_cases() if row.family == family):
        check_litert(bytes(to_litert(legal(row.graph())).data))


def _changed(change: Callable[[Any], object]) -> bytes:
    whole = schema.ModelT.InitFromPackedBuf(bytearray(programs.conv_model()), 0)
    change(whole)
    builder = flatbuffers.Builder(0)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _operator(whole: Any) -> Any:
    return whole.subgraphs[0].operators[0]


def _tensor(whole: Any, number: int) -> Any:
    return whole.subgraphs[0].tensors[_operator(whole).inputs[number]]


def _set(path: Callable[[Any], Any], name: str, value: object) -> Callable[[Any], object]:
    return lambda whole: setattr(path(whole), name, value)


DAMAGE = {
    "nothing": (lambda whole: None, ""),
    "made twice": (lambda w: w.subgraphs[0].operators.append(_operator(w)), "makes tensor .* which is there already"),
    "made by nothing": (lambda w: w.subgraphs[0].operators.clear(), "is made by nothing"),
    "reads its own result": (
        lambda w: _operator(w).inputs.__setitem__(0, _operator(w).outputs[0]),
        "which nothing has made",
    ),
    "reads what is not there": (lambda w: _operator(w).inputs.__setitem__(0, 99), "names tensor 99 of"),
    "no inputs": (_set(_operator, "inputs", []), "reads or makes nothing"),
    "kind": (_set(_operator, "opcodeIndex", 9), "has kind 9 of"),
    "side of 0": (_set(lambda w: _tensor(w, 1), "shape", [6, 1, 1, 0]), "has the shape"),
    "too few weights": (_set(lambda w: _tensor(w, 1), "shape", [6, 9, 9, 3]), "has a constant of"),
    "scale": (lambda w: setattr(_tensor(w, 0).quantization, "scale", [float("nan")]), "has the scale nan"),
    "scales": (lambda w: setattr(_tensor(w, 0).quantization, "scale", [1.0, 1.0]), "has 2 scales"),
    "zero point": (lambda w: setattr(_tensor(w, 0).quantization, "zeroPoint", [200]), "has the zero point 200"),
    "two graphs": (lambda w: w.subgraphs.append(w.subgraphs[0]), "has 2 graphs"),
    "activation": (lambda w: setattr(_operator(w).builtinOptions, "fusedActivationFunction", 77), "Activation.* 77"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_a_sentence(case):
    change, sentence = DAMAGE[case]
    model = _changed(change)
    if not sentence:
        check_litert(model)
        return
    with pytest.raises(PayloadError, match=rf"^The LiteRT program of the NPU partition is damaged: .*{sentence}"):
        check_litert(model)


def test_every_option_that_divides_is_looked_at():
    """Also of operators that we do not write: the schema says which numbers are strides and windows."""
    options = schema.Conv2DOptionsT()
    names = [name for name in vars(options) if _POSITIVE.search(name[0].upper() + name[1:])]
    assert names == ["strideW", "strideH", "dilationWFactor", "dilationHFactor"]
    for name in names:
        for value in (0, -1, 1 << 20):
            with pytest.raises(PayloadError, match=rf"CONV_2D. has the {name[0].upper() + name[1:]} {value}"):
                check_litert(_changed(lambda w, n=name, v=value: setattr(_operator(w).builtinOptions, n, v)))
