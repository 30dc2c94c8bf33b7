"""Kernels of the runtime and of a core, with their signatures."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from micronpu.partition.portable import portable_kernels
from micronpu.upstream.executorch import core_operator
from micronpu.upstream.pte import CORE_KERNELS
from micronpu.upstream.torch import OpOverload, schema_of


@dataclass(frozen=True)
class CoreKernel:
    """A kernel of a core, called with all arguments of its schema in order; the ``val`` of a node describes its result.

    ExecuTorch's definition of the operators takes seconds to import, and is only imported to compute or trace one.

    Attributes:
        keeps_order: True if the order of axes in memory is the first operand's and not that of ``val``.
    """

    name: str
    keeps_order: bool = False

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def qualified(self) -> str:
        """The name with its namespace, as in a program."""
        return f"{CORE_KERNELS}{self.name}"

    def __call__(self, *operands: Any) -> Any:
        return core_operator(self.name)(*operands)


@dataclass(frozen=True)
class OutKernel:
    """A kernel that writes into preallocated memory.

    Attributes:
        name, overload: ``aten::add`` and ``out``.
        arguments: names, types and defaults of the arguments before the results, in order.
        results: number of results; 1 also for a list.
    """

    name: str
    overload: str
    arguments: tuple[tuple[str, Any, Any], ...]
    results: int


_OPTIONS = {"dtype", "layout", "device", "pin_memory"}
"""Arguments that describe a new tensor; a kernel takes these from the tensor that it writes into."""


@functools.lru_cache(maxsize=4096)
def kernel_of(operator: OpOverload) -> OutKernel | None:
    """Return the kernel of a functional operator; None if no kernel writes into given tensors.

    Operators without such a variant in torch are looked up among ExecuTorch's kernels.
    """
    schema = schema_of(operator)
    own = [argument for argument in schema.arguments if not argument.is_out]
    if {argument.name for argument in own} >= _OPTIONS:
        own = [argument for argument in own if argument.name not in _OPTIONS]
    wanted = [(argument.name, str(argument.type)) for argument in own]
    packet = operator.overloadpacket
    for overload in packet.overloads():
        other = schema_of(getattr(packet, overload)).arguments
        results = sum(argument.is_out for argument in other)
        if results and [(a.name, str(a.type)) for a in other if not a.is_out] == wanted:
            return OutKernel(schema.name, overload, _taken(a for a in other if not a.is_out), results)
    part = str(operator).rpartition(".")[2]
    for overload in ("out",) if part == "default" else (f"{part}_out", f"{part.capitalize()}_out"):
        if f"{schema.name}.{overload}" in portable_kernels():
            return OutKernel(schema.name, overload, _taken(own), len(schema.returns))
    return None


def _taken(arguments: Any) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((a.name, a.type, a.default_value) for a in arguments)
