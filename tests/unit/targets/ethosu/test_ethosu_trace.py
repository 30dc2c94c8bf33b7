"""The names of a stream's operations that travel with a program."""

from __future__ import annotations

import pytest

from micronpu.base.errors import PayloadError
from micronpu.container.trace import StreamTrace, key_of, trace_of, traced

TRACE = StreamTrace((traced("Conv2d", "/home/me/model.py:12"), traced("Add", "")), (-1, 0, 0, 1))
PAYLOAD = b"a payload"


def test_what_is_packed_is_read() -> None:
    packed = TRACE.pack()
    assert trace_of(PAYLOAD, {key_of(PAYLOAD, packed): packed}) == TRACE
    assert str(TRACE.of(1)) == "Conv2d model.py:12" and str(TRACE.of(3)) == "Add"
    assert TRACE.of(0) is None and TRACE.of(4) is None
    assert b"home" not in packed


def test_equal_payloads_from_two_places() -> None:
    """ExecuTorch refuses two contents under one key."""
    other = StreamTrace((traced("Conv2d", "model.py:13"), TRACE.operators[1]), TRACE.sources).pack()
    named = {key_of(PAYLOAD, packed): packed for packed in (TRACE.pack(), other)}
    assert len(named) == 2 and trace_of(PAYLOAD, named) is not None
    assert trace_of(b"another", named) is None


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        TRACE.pack()[:-9],
        StreamTrace(TRACE.operators, (2,)).pack(),
        StreamTrace(TRACE.operators, (-2,)).pack(),
    ],
)
def test_damage_is_a_sentence(packed: bytes) -> None:
    with pytest.raises(PayloadError, match="names of the operations that travel with the program are damaged"):
        trace_of(PAYLOAD, {key_of(PAYLOAD, packed): packed})
