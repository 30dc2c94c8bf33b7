"""Kernels of the runtime: those of a core, as nodes of a graph call them, and how each kernel takes its operands."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from micronpu.partition.portable import portable_kernels
from micronpu.upstream.executorch import core_operator
from micronpu.upstream.pte import CORE_KERNELS
from micronpu.upstream.torch import OpOverload, overload_part, schema_of


@dataclass(frozen=True)
class CoreKernel:
    """A kernel of a core, called with all that its schema has, in this order; a node's ``val`` says what it gives.

    ExecuTorch's definition of the operators takes seconds to import, and is asked for where one is computed or traced.
    """

    name: str

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def qualified(self) -> str:
        """The name with that of its library, as a program has it."""
        return f"{CORE_KERNELS}{self.name}"

    def __call__(self, *operands: Any) -> Any:
        return core_operator(self.name)(*operands)


@dataclass(frozen=True)
class Signature:
    """A kernel that writes into memory planned before.

    Attributes:
        name, overload: ``aten::add`` and ``out``.
        arguments: names, types and defaults of what comes before the results, in order.
        results: how many it has; 1 also for a list of them.
    """

    name: str
    overload: str
    arguments: tuple[tuple[str, Any, Any], ...]
    results: int


_OPTIONS = {"dtype", "layout", "device", "pin_memory"}
"""What says of which kind a new tensor is; a kernel sees it of the tensor that it writes into."""


@functools.lru_cache(maxsize=4096)
def kernel_of(operator: OpOverload) -> Signature | None:
    """The kernel of an operator that gives new tensors; None where there is none that writes into given ones.

    Operators of which torch knows no such variant are looked up among the kernels that ExecuTorch ships.
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
            return Signature(schema.name, overload, _taken(a for a in other if not a.is_out), results)
    part = overload_part(operator)
    for overload in ("out",) if part == "default" else (f"{part}_out", f"{part.capitalize()}_out"):
        if f"{schema.name}.{overload}" in portable_kernels():
            return Signature(schema.name, overload, _taken(own), len(schema.returns))
    return None


def _taken(arguments: Any) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((a.name, a.type, a.default_value) for a in arguments)
