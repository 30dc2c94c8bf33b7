"""Lowering of core parts to the bytes of a program: one method, or several that share their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch

from micronpu.compiler.host import HostPart
from micronpu.compiler.kernels import check_kernels
from micronpu.frontend.integers import IntegerIO
from micronpu.frontend.positions import Count
from micronpu.frontend.states import State
from micronpu.partition.write import MethodInput, written
from micronpu.program.io import COUNTS_KEY, IO_KEY, RANGES_KEY, pack_counts, pack_io, pack_ranges
from micronpu.program.states import STATES_KEY, key_of, pack_states


@dataclass(frozen=True)
class MethodPart:
    """Input of a method.

    Attributes:
        host: with its states as buffers.
        examples: inputs.
        integer_io: meaning of integer inputs and outputs, or None.
        name: of the method; "" if the program has only one.
        ranges: number of positions of each input that is one, by the input's index.
        counts: use of states that are positions.
        names: of the inputs, if they were given in a dictionary.
    """

    host: HostPart
    examples: tuple[torch.Tensor, ...]
    integer_io: IntegerIO | None
    states: Sequence[State]
    name: str = ""
    ranges: Mapping[int, int] = field(default_factory=dict)
    counts: Sequence[Count] = ()
    names: tuple[str, ...] = ()


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


def lowered(methods: Sequence[MethodPart], allow_missing_kernels: bool) -> Lowered:
    """Lower the core parts around the NPU's to a program.

    Raises:
        UnsupportedError: an operator on the core has no kernel.
    """
    named: dict[str, bytes] = {}
    for method in methods:
        named |= named_data_of(method)
        if method.states:
            named[key_of(STATES_KEY, method.name)] = pack_states(method.states)
    made = written({m.name or "forward": MethodInput(m.host.module, m.examples, m.names) for m in methods}, named)
    notes = (n for callers in made.callers.values() for n in check_kernels(callers, allow_missing_kernels))
    return Lowered(made.buffer, tuple(dict.fromkeys(notes)), made.data_files, made.handles)


def named_data_of(method: MethodPart) -> dict[str, bytes]:
    """Return the facts about inputs and outputs that the program stores as named data."""
    found = {}
    if method.integer_io is not None:
        found[key_of(IO_KEY, method.name)] = pack_io(method.integer_io.inputs, method.integer_io.outputs)
    if method.ranges:
        found[key_of(RANGES_KEY, method.name)] = pack_ranges(method.ranges)
    if method.counts:
        found[key_of(COUNTS_KEY, method.name)] = pack_counts(method.counts)
    return found
