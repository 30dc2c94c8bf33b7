"""Graphs as text, one node a line."""

from __future__ import annotations

from micronpu.ir.graph import Graph


def print_graph(graph: Graph) -> str:
    """The graph with types, constants by shape only, and the source of each node as a comment."""
    lines = [f"graph({', '.join(f'{t}: {t.type}' for t in graph.inputs)}) {{"]
    for node in graph.nodes:
        operands = ", ".join(f"{t}: {t.type}" if t.is_constant else str(t) for t in node.inputs)
        results = ", ".join(f"{t}: {t.type}" for t in node.outputs)
        where = node.origin.source or ", ".join(node.origin.nodes)
        lines.append(f"  {results} = {node.op}({operands})" + (f"  # {where}" if where else ""))
    lines.append(f"  return {', '.join(map(str, graph.outputs))}")
    return "\n".join([*lines, "}"])
