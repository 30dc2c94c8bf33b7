"""From host parts to the bytes of a program: one method, or several that share their states."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch

from micronpu.compiler.host import HostPart
from micronpu.frontend.integers import IntegerBorders
from micronpu.frontend.positions import Count
from micronpu.frontend.states import State
from micronpu.partition.direct import program_of
from micronpu.program.border import BORDERS_KEY, COUNTS_KEY, RANGES_KEY, pack_borders, pack_counts, pack_ranges
from micronpu.program.states import STATES_KEY, key_of, pack_states
from micronpu.upstream.executorch import add_named_data, data_files

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager


@dataclass(frozen=True)
class MethodPart:
    """What becomes a method.

    Attributes:
        host: with its states as buffers.
        examples: inputs.
        borders: what inputs and outputs mean where they are integers.
        name: of the method, where the program has several; "" for the only one.
        ranges: of the inputs that are positions, by number, how many positions there are.
        counts: what the method does with states that are positions.
    """

    host: HostPart
    examples: tuple[torch.Tensor, ...]
    borders: IntegerBorders | None
    states: Sequence[State]
    name: str = ""
    ranges: Mapping[int, int] = field(default_factory=dict)
    counts: Sequence[Count] = ()


class Lowered(NamedTuple):
    """The program's bytes, what the report says about its kernels, and data files by name."""

    buffer: bytes
    notes: tuple[str, ...] = ()
    data_files: Mapping[str, bytes] = MappingProxyType({})


def lowered(methods: Sequence[MethodPart], allow_missing_kernels: bool) -> Lowered:
    """The host parts round the NPU's as a program; through ExecuTorch's compiler where it has anything to do."""
    named = {key: data for method in methods for key, data in _told(method).items()}
    if len(methods) == 1:
        direct = program_of(methods[0].host.module, methods[0].examples, named)
        if direct is not None:
            return Lowered(direct)
    from micronpu.compiler.kernels import check_kernels, out_variants
    from micronpu.partition.lower import lower

    with contextlib.ExitStack() as stack:
        for method in methods:
            stack.enter_context(out_variants(method.host.module))
        modules = {method.name or "forward": (method.host.module, method.examples) for method in methods}
        program = lower(modules, lambda edge: finish(edge, methods))
        notes: dict[str, None] = {}
        for method in methods:
            own = check_kernels(program, method.host.module, allow_missing_kernels, method.name or "forward")
            notes |= dict.fromkeys(own)
        return Lowered(bytes(program.buffer), tuple(notes), data_files(program))


def finish(edge: EdgeProgramManager, methods: Sequence[MethodPart]) -> None:
    """What is done to the host parts between ExecuTorch's lowering to edge operators and the end.

    What the program's integers mean, so that `micronpu deploy` finds it in the file alone, is written once, also where
    a partition brings it along.
    """
    for done in dict.fromkeys(method.host.finish for method in methods if method.host.finish is not None):
        done(edge)
    for method in methods:
        for key, data in _told(method).items():
            add_named_data(edge, key, data)
        if method.states:
            add_named_data(edge, key_of(STATES_KEY, method.name), pack_states(method.states))


def _told(method: MethodPart) -> dict[str, bytes]:
    """What the program says of its inputs and outputs, as named data."""
    found = {}
    if method.borders is not None:
        found[key_of(BORDERS_KEY, method.name)] = pack_borders(method.borders.inputs, method.borders.outputs)
    if method.ranges:
        found[key_of(RANGES_KEY, method.name)] = pack_ranges(method.ranges)
    if method.counts:
        found[key_of(COUNTS_KEY, method.name)] = pack_counts(method.counts)
    return found
