"""What the simulator refuses of an Ethos-U85: streams of Vela, each with one command changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.tosa_rows import ROWS

from micronpu.emit.litert import to_litert
from micronpu.ir import DType, GraphBuilder, QParams, TensorType
from micronpu.ops.pooling import MaxPool2d
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, NotModelledError, SimulationError, TooEarlyError
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import EthosUPayload, pack, parse
from micronpu.targets.ethosu.vela.compiler import compile_flatbuffer

TARGET = "ethos-u85-256"
FIRST = 8
"""Words of driver actions before the commands."""
VALUE = 0x4000
"""Bit of commands that a word follows."""
STOP, CONV, DMA_START, DMA_WAIT, KERNEL_WAIT = 0x000, 0x002, 0x010, 0x011, 0x012
IFM_PRECISION, IFM_REGION, OFM_PRECISION, ACTIVATION, BLOCKDEP, DMA0_SIZE0 = 0x105, 0x10F, 0x114, 0x125, 0x12F, 0x132
IFM_BASE0, OFM_BASE0, WEIGHT_LENGTH, SCALE_LENGTH, OFM_SCALE = 0x000, 0x010, 0x021, 0x023, 0x024

Words = list[int]
Change = Callable[[Words], None]


@cache
def payload(name: str) -> EthosUPayload:
    """A row of the TOSA operators, or two max pools one after the other."""
    if name == "pools":
        builder = GraphBuilder()
        x = builder.input(TensorType((1, 8, 8, 32), DType.INT8, QParams.per_tensor(0.1, 0)))
        y = builder.emit(MaxPool2d((3, 3)), builder.emit(MaxPool2d((3, 3)), x))
        model = bytes(to_litert(builder.finish(y)).data)
    else:
        (row,) = (row for row in ROWS if row.name == name)
        model = row.model()
    return parse(pack(compile_flatbuffer(model, EthosUOptions(TARGET))))


def run(name: str, change: Change | None = None) -> list[np.ndarray]:  # type: ignore[type-arg]
    """The results, or what the simulator says, for inputs of zeros."""
    original = payload(name)
    words = list(struct.unpack(f"<{len(original.commands) // 4}I", original.commands))
    head, body = words[:FIRST], words[FIRST:]
    if change is not None:
        change(body)
    head[-1] = (head[-1] & 0xFF) | (len(body) & 0xFFFF) << 16 | len(body) >> 16 << 8
    commands = struct.pack(f"<{len(head) + len(body)}I", *head, *body)
    inputs = [np.zeros(i.shape, f"<i{i.element_size}") for i in original.inputs]
    return EthosUSimulator(TARGET).run(replace(original, commands=commands), inputs)


def positions(words: Words, code: int, *, value: bool = False) -> list[int]:
    """Where a command stands."""
    found, i = [], 0
    while i < len(words):
        if words[i] & 0xFFFF == code | (VALUE if value else 0):
            found.append(i)
        i += 2 if words[i] & VALUE else 1
    return found


def set_all(code: int, parameter: int) -> Change:
    """Gives a register of 16 bits this value everywhere."""

    def change(words: Words) -> None:
        for i in positions(words, code):
            words[i] = code | parameter << 16

    return change


def set_value(code: int, value: int) -> Change:
    """Gives a register of 32 bits this value everywhere."""

    def change(words: Words) -> None:
        for i in positions(words, code, value=True):
            words[i + 1] = value

    return change


def drop(code: int, *, value: bool = False) -> Change:
    def change(words: Words) -> None:
        for i in reversed(positions(words, code, value=value)):
            del words[i : i + (2 if value else 1)]

    return change


@pytest.mark.parametrize("name", ["conv_INT8_1x1", "table", "gather_INT8", "pools"])
def test_streams_of_vela_run(name: str) -> None:
    assert run(name)


REFUSED: list[tuple[str, Change, str]] = [
    ("conv_INT8_1x1", lambda words: words.insert(0, 0x10D), "there is no command 0x10d on this NPU"),
    ("conv_INT8_1x1", drop(STOP), "ends without NPU_OP_STOP"),
    ("conv_INT8_1x1", drop(OFM_PRECISION), "NPU_SET_OFM_PRECISION was never set"),
    ("conv_INT8_1x1", drop(SCALE_LENGTH, value=True), "NPU_SET_SCALE_LENGTH was never set"),
    ("conv_INT8_1x1", set_value(SCALE_LENGTH, 16), "NPU_SET_SCALE_LENGTH is 16, but 40 channels need 400 bytes"),
    ("conv_INT8_1x1", set_value(WEIGHT_LENGTH, 48), "weight"),
    ("conv_INT8_1x1", set_value(IFM_BASE0, 1 << 20), "the IFM needs bytes 0x100000"),
    ("conv_INT16_1x1", set_value(OFM_BASE0, 1), "NPU_SET_OFM_BASE0 is 0x1, not a multiple of 2"),
    ("conv_INT8_1x1", set_all(IFM_REGION, 2), "nobody has written|which has"),
    ("table", drop(DMA_WAIT), "a wait is missing between them"),
    ("table", set_all(ACTIVATION, 4 | 3 << 5), "the table reads .* of the table memory"),
    ("gather_INT8", set_all(DMA0_SIZE0, 40), "the list of indices"),
]
TOO_EARLY: list[tuple[str, Change, str]] = [("pools", set_all(BLOCKDEP, 7), "NPU_SET_BLOCKDEP = 7 lets job")]
NOT_MODELLED: list[tuple[str, Change, str]] = [
    ("conv_INT8_1x1", set_all(IFM_PRECISION, 0x4001), "NPU_SET_IFM_PRECISION is 0x4001: tiles of 3x1"),
    ("conv_INT8_1x1", set_all(OFM_PRECISION, 0x101), "NPU_SET_OFM_PRECISION is 0x101: one scale for all channels"),
    ("table", set_all(ACTIVATION, 2), "NPU_SET_ACTIVATION is 0x2: its function is unknown"),
]


@pytest.mark.parametrize(
    ("error", "name", "change", "sentence"),
    [
        (error, *row)
        for error, rows in ((SimulationError, REFUSED), (TooEarlyError, TOO_EARLY), (NotModelledError, NOT_MODELLED))
        for row in rows
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_streams_are_refused_with_a_sentence(
    error: type[SimulationError], name: str, change: Change, sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        run(name, change)
    assert type(caught.value) is error


def test_a_stream_for_another_size_is_refused() -> None:
    original = payload("conv_INT8_1x1")
    inputs = [np.zeros(i.shape, np.int8) for i in original.inputs]
    with pytest.raises(SimulationError, match="MACs"):
        EthosUSimulator("ethos-u85-512").run(original, inputs)
