"""Kernels of the runtime and of a core, with their signatures, and the decomposition of operators into these."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from micronpu.frontend.graphs import Graph, calls
from micronpu.frontend.program import overload_of
from micronpu.ops.reduction import VECTOR_NORMS
from micronpu.upstream.executorch import core_operator
from micronpu.upstream.pte import CORE_KERNELS
from micronpu.upstream.torch import OpOverload, as_exported, decomposition_table, schema_of, tree_leaves, tree_map


@dataclass(frozen=True)
class CoreKernel:
    """A kernel of a core, called with all arguments of its schema in order; the ``val`` of a node describes its result.

    ExecuTorch's definition of the operators takes seconds to import, and is only imported to compute or trace one.
    """

    name: str
    keeps_order: bool = False  # True if the order of axes in memory is the first operand's and not that of ``val``

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def qualified(self) -> str:
        """The name with its namespace, as in a program."""
        return f"{CORE_KERNELS}{self.name}"

    def __call__(self, *operands: object) -> Any:
        return core_operator(self.name)(*operands)


@functools.lru_cache(maxsize=1)
def portable_kernels() -> frozenset[str]:
    """Return names of the operators with a portable kernel, from ExecuTorch's lists."""
    texts = [
        resources.files(f"executorch.kernels.{package}").joinpath(name).read_text(encoding="utf-8")
        for package, name in (
            ("portable", "functions.yaml"),
            ("portable", "custom_ops.yaml"),
            ("quantized", "quantized.yaml"),
        )
    ]
    found = (name for text in texts for name in re.findall(r"^- (?:op|func): ([\w:.]+)", text, re.MULTILINE))
    return frozenset(name if "::" in name else f"aten::{name}" for name in found)


@functools.lru_cache(maxsize=1)
def _packets() -> frozenset[str]:
    return frozenset(name.partition("::")[2].split(".")[0] for name in portable_kernels())


def has_some_kernel(packet: str) -> bool:
    """Return True if ExecuTorch has a portable kernel of any overload of an operator, such as "add"."""
    return packet in _packets()


@dataclass(frozen=True)
class OutKernel:
    """A kernel that writes into preallocated memory."""

    name: str  # ``aten::add``
    overload: str  # ``out``
    arguments: tuple[tuple[str, Any, Any], ...]  # names, types and defaults of those before the results, in order


_OPTIONS = {"dtype", "layout", "device", "pin_memory"}
"""Arguments that describe a new tensor; a kernel takes these from the tensor that it writes into."""


@functools.lru_cache(maxsize=4096)
def kernel_of(operator: OpOverload) -> OutKernel | None:
    """Return the kernel of a functional operator; None if no kernel writes into given tensors."""
    # Operators without such a variant in torch are looked up among ExecuTorch's kernels.
    schema = schema_of(operator)
    own = [argument for argument in schema.arguments if not argument.is_out]
    if {argument.name for argument in own} >= _OPTIONS:
        own = [argument for argument in own if argument.name not in _OPTIONS]
    wanted = [(argument.name, str(argument.type)) for argument in own]
    packet = operator.overloadpacket
    for overload in packet.overloads():
        every = schema_of(getattr(packet, overload)).arguments
        other = [argument for argument in every if not argument.is_out]
        if len(other) < len(every) and [(a.name, str(a.type)) for a in other] == wanted:
            return OutKernel(schema.name, overload, _taken(other))
    part = str(operator).rpartition(".")[2]
    for overload in ("out",) if part == "default" else (f"{part}_out", f"{part.capitalize()}_out"):
        if f"{schema.name}.{overload}" in portable_kernels():
            return OutKernel(schema.name, overload, _taken(own))
    return None


def _taken(arguments: Any) -> tuple[tuple[str, Any, Any], ...]:
    return tuple((a.name, a.type, a.default_value) for a in arguments)


@functools.lru_cache(maxsize=1)
def _table() -> Mapping[OpOverload, Any]:
    return decomposition_table([overload_of(name) for name in VECTOR_NORMS])


def is_composite(operator: Any) -> bool:
    """Return True if torch computes an operator by calling others, on any device."""
    return bool(operator.has_kernel_for_dispatch_key("CompositeImplicitAutograd"))


def promotes(operator: OpOverload) -> bool:
    """Return True if an operator converts two tensors to a common dtype first, which not all kernels do."""
    tensors = {a.name for a in schema_of(operator).arguments if isinstance(a.type, torch.TensorType)}
    return torch.Tag.pointwise in operator.tags and tensors == {"self", "other"}


def is_decomposed(operator: OpOverload) -> bool:
    """Return True if torch decomposes an operator into others of its core set."""
    # An operator of this set with a kernel is kept, also a copy of a view, without making the decomposition table.
    is_core = torch.Tag.core in operator.tags
    if is_core or schema_of(operator).name.endswith("_copy"):
        signature = kernel_of(operator)
        if signature is not None and f"{signature.name}.{signature.overload}" in portable_kernels():
            return False
    return operator in _table() or (is_composite(operator) and not is_core)


def decomposed(
    operator: OpOverload, args: object, kwargs: Mapping[str, object]
) -> tuple[Graph, Mapping[str, torch.Tensor]]:
    """Return the decomposition of a call of an operator.

    Args:
        args, kwargs: operands, with a tensor of the right shape for each.

    Returns:
        A graph whose inputs are the tensors among the operands, in order, and the tensors of its ``get_attr`` nodes.
    """
    examples = [value for value in tree_leaves((args, dict(kwargs))) if isinstance(value, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        own, named = tree_map(lambda v: next(given) if isinstance(v, torch.Tensor) else v, (args, dict(kwargs)))
        return operator(*own, **named)

    table = dict(_table())
    with as_exported():
        made = make_fx(call, decomposition_table=table, tracing_mode="fake")(*examples)
    # Mutations of temporary tensors become functions, which takes a second trace.
    if any(isinstance(n.target, OpOverload) and schema_of(n.target).is_mutable for n in calls(made)):
        functional = torch.func.functionalize(made, remove="mutations")
        made = make_fx(functional, decomposition_table=table, tracing_mode="fake")(*examples)
    made.graph.eliminate_dead_code()
    names = [str(node.target) for node in made.graph.find_nodes(op="get_attr")]
    return made.graph, {name: getattr(made, name) for name in names}
