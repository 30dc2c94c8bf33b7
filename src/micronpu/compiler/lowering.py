"""Lowering of core parts to the bytes of a program: one method, or several that share their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch.fx import GraphModule, Node

from micronpu.base.errors import UnsupportedError
from micronpu.compiler.clock import Clock
from micronpu.compiler.host import HostPart, host_part
from micronpu.compiler.quantized import Quantized
from micronpu.frontend.checks import hint_for
from micronpu.frontend.positions import counts_of, ranges_of
from micronpu.frontend.program import overload_name
from micronpu.frontend.tensors import held, hold, states_of
from micronpu.partition.device import Device
from micronpu.partition.host_block import place_of
from micronpu.partition.write import MethodInput, Written, without_kernel, written
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


def lowered(methods: Sequence[Staged], allow_missing_kernels: bool) -> tuple[Written, tuple[str, ...]]:
    """Lower the core parts around the NPU's to a program, and return notes of the report about its kernels.

    Raises:
        UnsupportedError: an operator on the core has no kernel.
    """
    named: dict[str, bytes] = {}
    for method in methods:
        named |= named_data_of(method)
    parts = {m.name or "forward": MethodInput(m.host.module, m.quantized.examples, m.quantized.names) for m in methods}
    made = written(parts, named)
    notes = (n for callers in made.callers.values() for n in _check_kernels(callers, allow_missing_kernels))
    return made, tuple(dict.fromkeys(notes))


def named_data_of(method: Staged) -> dict[str, bytes]:
    """Return the facts about inputs, outputs and states that the program stores as named data."""
    found, quantized = {}, method.quantized
    if quantized.integer_io is not None:
        found[IO_KEY] = pack_io(quantized.integer_io.inputs, quantized.integer_io.outputs)
    if ranges := ranges_of(quantized.module):
        found[RANGES_KEY] = pack_ranges(ranges)
    if counts := counts_of(quantized.module):
        found[COUNTS_KEY] = pack_counts(counts)
    if states := quantized.states:
        found[STATES_KEY] = pack_states(states)
    return {key_of(key, method.name): data for key, data in found.items()}


def _check_kernels(callers: Mapping[str, Node], allow: bool) -> tuple[str, ...]:
    """Return notes about operators without a kernel, if the user allows them.

    Args:
        callers: the first node that calls each operator of a method, by the operator's name.

    Raises:
        UnsupportedError: there are some, and the user does not allow them.
    """
    missing = without_kernel(callers)
    if missing and not allow:
        name = missing[0]
        rest = f" Nor has it {', '.join(missing[1:])}." if missing[1:] else ""
        raise UnsupportedError(
            f"ExecuTorch has no portable kernel for {name}, which {place_of(callers[name])} calls on the host, so that "
            f"the program cannot run.{rest}",
            hint=f"{hint_for(overload_name(callers[name]), 'other operators for it')}; or allow_missing_kernels=True "
            "where you register a kernel, here and on the board",
        )
    return tuple(
        f"ExecuTorch has no portable kernel for {name}, which the host part calls. Register one, here and on the "
        "device, or express the operator by others."
        for name in missing
    )
