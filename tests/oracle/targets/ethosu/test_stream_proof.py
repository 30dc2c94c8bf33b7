"""A stream beside its graph: equal, different, or not to be told."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from tests.cases import case, i8, i16, q, w8

from micronpu.emit.litert import to_litert
from micronpu.ir.graph import Graph, GraphBuilder
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Padding2d
from micronpu.ops.activation import LeakyRelu
from micronpu.ops.convolution import Conv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.slicing import Slice
from micronpu.ops.unary import Abs
from micronpu.passes import run_passes
from micronpu.targets.ethosu.host import proof
from micronpu.targets.ethosu.host.proof import MOST_ROWS, ROWS, ProofOutcome, compare, random_integers
from micronpu.targets.ethosu.host.prove import checked
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, NotModelledError
from micronpu.targets.ethosu.legalize import to_tosa
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import checksum, pack, parse
from micronpu.targets.ethosu.stream import made_to_wait, words_of
from micronpu.targets.ethosu.vela.compiler import compile_flatbuffer

BLOCKDEP = 0x12F
FINE = QParams.per_tensor(0.001, 0)


def made(
    target: str, emit: object = to_litert, scale: float = 0.1
) -> tuple[bytes, bytes, list[tuple[tuple[int, ...], str]]]:
    graph: Graph = case(Conv2d(), x=i8(1, 8, 8, 16), weight=w8(8, 3, 3, 16), out=q(scale)).graph()
    run_passes(graph)
    model = emit(graph).data  # type: ignore[operator]
    payload = pack(compile_flatbuffer(model, EthosUOptions(target)))
    return payload, model, [(t.shape, t.type.dtype.value) for t in graph.inputs]


@pytest.mark.parametrize("emit", [to_litert, to_tosa])
@pytest.mark.parametrize("target", ["ethos-u55-64", "ethos-u65-256", "ethos-u85-512"])
def test_equal(target: str, emit: object) -> None:
    payload, model, inputs = made(target, emit)
    assert compare(parse(payload), target, model, inputs).outcome is ProofOutcome.EQUAL


@pytest.mark.parametrize("target", ["ethos-u55-256", "ethos-u85-256"])
def test_a_sum_of_two_scales_in_tosa_rounds_its_operands_once(target: str) -> None:
    """Of results in int16 it is one of 100,000 where a second rounding shows."""
    shape = (1, 64, 64, 64)
    graph = case(Add(), x=i16(*shape, scale=0.00013), z=i16(*shape, scale=0.000043), out=q(0.00014)).graph()
    run_passes(graph)
    model = to_tosa(graph).data
    payload = pack(compile_flatbuffer(model, EthosUOptions(target)))
    assert compare(parse(payload), target, model, [(shape, "int16")] * 2).outcome is ProofOutcome.EQUAL


def test_a_stream_of_another_network_is_seen() -> None:
    payload, _, inputs = made("ethos-u55-64")
    _, other, _ = made("ethos-u55-64", scale=0.11)
    found = compare(parse(payload), "ethos-u55-64", other, inputs)
    assert found.outcome is ProofOutcome.DIFFERENT
    assert "values of output 0 differ, by up to" in found.detail


def test_a_stream_that_breaks_a_rule_is_seen() -> None:
    payload, model, inputs = made("ethos-u55-64")
    at = payload.index(b"scratch_size") + 32
    short = payload[:at] + (64).to_bytes(4, "little") + payload[at + 4 :]
    found = compare(parse(short), "ethos-u55-64", model, inputs)
    assert found.outcome is ProofOutcome.DIFFERENT and "scratch" in found.detail


def test_what_the_simulator_does_not_model_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise NotModelledError("The stream sets the register 0x1ff.")

    monkeypatch.setattr(EthosUSimulator, "run", unknown)
    payload, model, inputs = made("ethos-u55-64")
    assert compare(parse(payload), "ethos-u55-64", model, inputs).outcome is ProofOutcome.UNKNOWN


def test_random_integers_have_their_ends() -> None:
    values = random_integers((40, 40), np.int8, 1)
    assert (values == -128).sum() > 40 and (values == 127).sum() > 40 and len(np.unique(values)) > 200
    assert not random_integers((5,), np.int32, 1).any()
    assert sorted(random_integers((5,), np.int32, 1, count=5)) == [0, 1, 2, 3, 4]
    near = random_integers((40, 40), np.int16, 1, near=True)
    assert 3000 < near.std() < 5000 and not (np.abs(near.astype(int)) == 32767).any()


def test_what_is_read_from_a_wrong_place_shows_where_little_saturates() -> None:
    """On U55 Vela's stream of a slice of int16 numbers in front of a leaky rectifier reads the first number of all."""
    builder = GraphBuilder()
    x = builder.emit(Abs(), builder.input(TensorType((1, 8), DType.INT16, QParams.per_tensor(0.008, 0))), qparams=FINE)
    last = builder.emit(Slice((0, 7), (1, 1)), x)
    graph = builder.finish(builder.emit(LeakyRelu(0.25), last, qparams=FINE))
    model, inputs = to_tosa(graph).data, [((1, 8), "int16")]
    program = compile_flatbuffer(model, EthosUOptions("ethos-u55-32"))
    seed = checksum(program)
    assert seed == zlib.crc32(pack(program))
    assert compare(program, "ethos-u55-32", model, inputs, 1, most=1, seed=seed).outcome is ProofOutcome.EQUAL
    assert compare(program, "ethos-u55-32", model, inputs, seed=seed).outcome is ProofOutcome.DIFFERENT


def test_one_result_that_mostly_saturates_takes_more_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two networks whose only results are at the same end of their range a run or two tell nothing."""
    seen, target = [], "ethos-u55-64"
    monkeypatch.setattr(proof, "random_integers", lambda *a, **k: seen.append(0) or random_integers(*a, **k))

    def network(scale: float) -> bytes:
        graph = case(Conv2d(), x=i8(1, 1, 1, 8), weight=w8(1, 1, 1, 8), out=q(scale)).graph()
        run_passes(graph)
        return to_litert(graph).data

    model, inputs = network(0.02), [((1, 1, 1, 8), "int8")]
    payload = pack(compile_flatbuffer(model, EthosUOptions(target)))
    content, seed = parse(payload), zlib.crc32(payload)
    assert compare(content, target, network(0.021), inputs, most=ROWS, seed=seed).outcome is ProofOutcome.EQUAL
    assert compare(content, target, network(0.021), inputs, seed=seed).outcome is ProofOutcome.DIFFERENT
    seen.clear()
    assert compare(content, target, model, inputs, seed=seed).outcome is ProofOutcome.EQUAL
    assert ROWS + 1 < len(seen) <= MOST_ROWS


@pytest.mark.parametrize("target", ["ethos-u55-64", "ethos-u85-512"])
def test_operations_that_begin_too_early_are_made_to_wait(target: str) -> None:
    builder = GraphBuilder()
    x = builder.input(i8(1, 8, 8, 16))
    for _ in range(3):
        x = builder.emit(MaxPool2d((3, 3), (1, 1), Padding2d.symmetric(1, 1)), x)
    graph, spec = builder.finish(x), EthosUOptions(target)
    emitted = to_litert(graph)
    program = compile_flatbuffer(emitted.data, spec)
    words, changed = words_of(program.commands), program.commands
    start = changed.index(struct.pack(f"<{len(words)}I", *words))
    for at, word in enumerate(words):
        if word & 0xFFFF == BLOCKDEP:  # no value of this stream looks like it
            changed = changed[: start + 4 * at] + struct.pack("<I", 3 << 16 | word) + changed[start + 4 * at + 4 :]
    early = replace(program, commands=changed)
    found = compare(early, target, emitted.data, [((1, 8, 8, 16), "int8")])
    assert found.outcome is ProofOutcome.DIFFERENT and found.early is not None
    waiting = checked(graph, emitted, early, spec)
    assert not waiting.objection and not waiting.unproved and waiting.waiting
    assert made_to_wait(waiting.program.commands, found.early) is None
    untouched = checked(graph, emitted, program, spec)
    assert untouched.program is program and not untouched.waiting
