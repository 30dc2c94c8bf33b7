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
from micronpu.base.flatbuffer import root
from micronpu.emit.litert import to_litert
from micronpu.host.litert_check import _POSITIVE, OPERATORS, check_litert


@pytest.mark.sweep
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
    "operator": (
        lambda w: [setattr(c, "builtinCode", 16) or setattr(c, "deprecatedBuiltinCode", 16) for c in w.operatorCodes],
        r"operator 0 \(LSTM\) is in no program that micronpu writes",
    ),
    "no scale": (lambda w: setattr(_tensor(w, 0), "quantization", None), "has integers without a scale"),
    "no text": (lambda w: setattr(_tensor(w, 0), "name", b"\xff\xfe"), "has a name that is no text"),
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


def test_only_operators_that_the_fuzzer_damages_are_let_through():
    """The rows are its seeds: an operator without a row would be one that nobody has tried to break."""
    seen = set()
    for row in all_cases():
        program = root(bytes(to_litert(legal(row.graph())).data), b"TFL3")
        seen.update(max(t.integer(0, "<b"), t.integer(3)) for t in program.vector(1).tables())
    names = {value: name for name, value in vars(schema.BuiltinOperator).items()}
    assert {names[code] for code in seen} == OPERATORS


def _scaled(family: str, name: str, number: int, scale: float, **options: float) -> bytes:
    """The smallest row of an operator, with another scale of one of its tensors."""
    rows = [row for row in all_cases() if (row.family, row.op.name) == (family, name)]
    model = min((bytes(to_litert(legal(row.graph())).data) for row in rows), key=len)
    whole = schema.ModelT.InitFromPackedBuf(bytearray(model), 0)
    operator = _operator(whole)
    tensors = [*operator.inputs, *operator.outputs]
    whole.subgraphs[0].tensors[tensors[number]].quantization.scale = [scale]
    for option, value in options.items():
        setattr(operator.builtinOptions, option, value)
    builder = flatbuffers.Builder(0)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize(
    ("family", "name", "number", "scale", "options"),
    [
        ("elementwise", "add", 0, 1e9, {}),
        ("elementwise", "add", -1, 1e-9, {}),
        ("elementwise", "sub", 1, 1e9, {}),
        ("softmax", "softmax", 0, 1e-12, {}),
        ("softmax", "softmax", 0, 0.1, {"beta": 1e-12}),
        ("softmax", "softmax", 0, 0.1, {"beta": -1.0}),
    ],
)
def test_factors_that_kernels_end_the_process_over(family, name, number, scale, options):
    with pytest.raises(PayloadError, match=r"operator 0 \((ADD|SUB|SOFTMAX)\) has the scales"):
        check_litert(_scaled(family, name, number, scale, **options))
    check_litert(_scaled(family, name, number, 0.1, **dict.fromkeys(options, 1.0)))
