"""Decomposition of operators on the core into torch's core set, for which ExecuTorch has kernels."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

from micronpu.frontend.program import overload_of
from micronpu.ops.reduction import VECTOR_NORMS
from micronpu.partition.kernels import kernel_of
from micronpu.partition.portable import portable_kernels
from micronpu.upstream.torch import OpOverload, as_exported, decomposition_table, schema_of, tree_leaves, tree_map


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
    """Return True if torch decomposes an operator into others of its core set.

    An operator of this set with a kernel is kept, also a copy of a view, without making the decomposition table.
    """
    is_core = torch.Tag.core in operator.tags
    if is_core or schema_of(operator).name.endswith("_copy"):
        signature = kernel_of(operator)
        if signature is not None and f"{signature.name}.{signature.overload}" in portable_kernels():
            return False
    return operator in _table() or (is_composite(operator) and not is_core)


def decomposed(operator: OpOverload, args: Any, kwargs: Mapping[str, Any]) -> tuple[Graph, Mapping[str, torch.Tensor]]:
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
    if any(isinstance(n.target, OpOverload) and schema_of(n.target).is_mutable for n in made.graph.nodes):
        functional = torch.func.functionalize(made, remove="mutations")
        made = make_fx(functional, decomposition_table=table, tracing_mode="fake")(*examples)
    made.graph.eliminate_dead_code()
    names = [str(node.target) for node in made.graph.nodes if node.op == "get_attr"]
    return made.graph, {name: getattr(made, name) for name in names}
