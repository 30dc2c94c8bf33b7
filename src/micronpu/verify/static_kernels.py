"""Static check of the operators on the core before compilation."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from micronpu.base.errors import UnsupportedError
from micronpu.base.quiet import quiet
from micronpu.frontend.hints import hint_for
from micronpu.frontend.program import overload_name
from micronpu.partition.portable import has_some_kernel
from micronpu.partition.write import MethodInput, without_kernel, written
from micronpu.report.verdict import Verdict
from micronpu.report.warnings import NO_KERNEL, WARNING, ReportWarning


def of_host(module: GraphModule, verdicts: Sequence[Verdict]) -> tuple[ReportWarning, ...]:
    """Return a warning for each kind of operator that `compile` would refuse because ExecuTorch has no kernel for it.

    Operators with kernels of the same name pass; each other kind is lowered separately.

    Args:
        module: the quantized program.
        verdicts: of its operators.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    found: dict[str, ReportWarning] = {}
    seen: set[str] = set()
    for verdict in verdicts:
        node = nodes.get(verdict.node)
        if verdict.delegated or verdict.core or node is None or verdict.operator in seen:
            continue
        seen.add(verdict.operator)
        if has_some_kernel(verdict.operator.split(".")[0]):
            continue
        lacking = _lacking(node, module)
        if lacking:
            hint = hint_for(overload_name(node), "write it with operators of docs/support-table.md")
            found.setdefault(lacking, _warning(verdict, lacking, hint))
    return tuple(found.values())


def _warning(verdict: Verdict, lacking: str, hint: str) -> ReportWarning:
    where = f" ({verdict.origin.source})" if verdict.origin.source else ""
    return ReportWarning(
        level=WARNING,
        rule=NO_KERNEL,
        what=(
            f"The program cannot run: `{verdict.node}`{where} is left to the host, and ExecuTorch has no kernel for "
            f"{lacking}."
        ),
        hint=hint,
        node=verdict.node,
        operator=verdict.operator.split(".")[0],
        module=verdict.origin.module,
        source=verdict.origin.source,
    )


def _lacking(node: Node, module: GraphModule) -> str:
    """Return names of missing kernels in the decomposition of an operator, or ""."""
    with quiet():
        alone = _alone(node, module)
        if alone is None:
            return ""
        try:
            return ", ".join(without_kernel(written({"forward": MethodInput(*alone)}).callers["forward"]))
        except UnsupportedError:
            return str(overload_name(node))
        except Exception:  # it cannot be lowered without its program: unknown
            return ""


def _alone(node: Node, module: GraphModule) -> tuple[GraphModule, tuple[torch.Tensor, ...]] | None:
    """Return the operator as a program, with inputs of its shapes; None if a shape is unknown."""
    graph = Graph()
    inputs: list[torch.Tensor] = []
    copies: dict[Node, Any] = {}
    for operand in node.all_input_nodes:
        value = _value(operand, module)
        if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
            return None
        copies[operand] = graph.placeholder(f"operand_{len(inputs)}")
        inputs.append(torch.zeros(tuple(value.shape), dtype=value.dtype))
    result = graph.node_copy(node, lambda operand: copies[operand])
    graph.output((result,))
    return GraphModule(torch.nn.Module(), graph), tuple(inputs)


def _value(node: Node, module: GraphModule) -> Any:
    """Return a tensor with the node's shape and dtype; None if unknown."""
    if "val" in node.meta:
        return node.meta["val"]
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(module)
    if "quantize_per" in str(node.target):  # a dequantize returns the shape of its operand
        return _value(node.all_input_nodes[0], module)
    return None
