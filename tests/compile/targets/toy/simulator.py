"""What the toy computes: each byte of the input is looked up."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np
from tests.compile.targets.toy import MAGIC

from micronpu.host.litert_executor import Buffer, OperatorTrace


class Simulator:
    """One payload, ready to run.

    Attributes:
        runs: of all, since the process began.
    """

    runs = 0

    def __init__(self, payload: bytes) -> None:
        self._table = np.frombuffer(payload, np.int8, offset=len(MAGIC))

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        (x,), (y,) = inputs, outputs
        given, made = (np.frombuffer((ctypes.c_int8 * b.size).from_address(b.address), np.int8) for b in (x, y))
        made[:] = self._table[given.astype(np.int16) + 128]
        Simulator.runs += 1

    def run_traced(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], sink: Callable[[OperatorTrace], None]
    ) -> None:
        start = time.perf_counter_ns()
        self.run(inputs, outputs)
        (y,) = outputs
        value = np.frombuffer(ctypes.string_at(y.address, y.size), np.int8)
        sink(OperatorTrace(0, "table", time.perf_counter_ns() - start, (value,)))
