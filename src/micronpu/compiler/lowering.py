"""Lowering of core parts to the bytes of a program: one method, or several that share their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from torch.fx import GraphModule

from micronpu.compiler.clock import Clock
from micronpu.compiler.host import HostPart, host_part
from micronpu.compiler.kernels import check_kernels
from micronpu.compiler.quantized import Quantized
from micronpu.frontend.positions import counts_of, ranges_of
from micronpu.frontend.states import held, hold, states_of
from micronpu.partition.device import Device
from micronpu.partition.write import MethodInput, written
from micronpu.program.io import COUNTS_KEY, IO_KEY, RANGES_KEY, pack_counts, pack_io, pack_ranges
from micronpu.program.states import STATES_KEY, key_of, pack_states
from micronpu.verify.program import Expected
from micronpu.verify.verification import Verification


@dataclass(frozen=True)
class Staged:
    """A method whose NPU parts are compiled, before the file is written.

    Attributes:
        host: its core part, with its states as buffers.
        name: of the method; "" if the program has only one.
        expected: expected results; None if it is not run.
    """

    quantized: Quantized
    host: HostPart
    name: str = ""
    expected: Expected | None = None

    @classmethod
    def of(cls, quantized: Quantized, device: Device, clock: Clock, checks: Verification, *, name: str = "") -> Staged:
        """Run the quantized module if the program is to be compared with it, and compile the NPU's parts."""
        expected: Expected | None = None
        if checks.run:
            with clock.early("verify"):
                expected = Expected.of(
                    quantized.module,
                    quantized.trial,
                    quantized.integer_io,
                    quantized.results,
                    proposal=quantized.proposal,
                )
        host = host_part(quantized.module, device, clock, quantized.integer_io, name)
        hold(host.module, states_of(quantized.module))
        return cls(quantized, host, name, expected)

    @cached_property
    def whole(self) -> GraphModule:
        """The quantized module with its states as buffers."""
        return held(self.quantized.module)


class Lowered(NamedTuple):
    """A program.

    Attributes:
        buffer: its bytes.
        notes: notes of the report about its kernels.
        data_files: files beside the program, by name.
        handles: for each method, the debug handles of the core's instructions, by index.
    """

    buffer: bytes
    notes: tuple[str, ...] = ()
    data_files: Mapping[str, bytes] = MappingProxyType({})
    handles: Mapping[str, Mapping[int, tuple[int, ...]]] = MappingProxyType({})


def lowered(methods: Sequence[Staged], allow_missing_kernels: bool) -> Lowered:
    """Lower the core parts around the NPU's to a program.

    Raises:
        UnsupportedError: an operator on the core has no kernel.
    """
    named: dict[str, bytes] = {}
    for method in methods:
        named |= named_data_of(method)
        if states := method.quantized.states:
            named[key_of(STATES_KEY, method.name)] = pack_states(states)
    parts = {m.name or "forward": MethodInput(m.host.module, m.quantized.examples, m.quantized.names) for m in methods}
    made = written(parts, named)
    notes = (n for callers in made.callers.values() for n in check_kernels(callers, allow_missing_kernels))
    return Lowered(made.buffer, tuple(dict.fromkeys(notes)), made.data_files, made.handles)


def named_data_of(method: Staged) -> dict[str, bytes]:
    """Return the facts about inputs and outputs that the program stores as named data."""
    found, quantized = {}, method.quantized
    if quantized.integer_io is not None:
        found[key_of(IO_KEY, method.name)] = pack_io(quantized.integer_io.inputs, quantized.integer_io.outputs)
    if ranges := ranges_of(quantized.module):
        found[key_of(RANGES_KEY, method.name)] = pack_ranges(ranges)
    if counts := counts_of(quantized.module):
        found[key_of(COUNTS_KEY, method.name)] = pack_counts(counts)
    return found
