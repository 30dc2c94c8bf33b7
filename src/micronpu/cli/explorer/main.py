"""Model Explorer's extension: opens programs and reports of micronpu.

model-explorer model.pte --extensions=micronpu.cli.explorer
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_explorer import Adapter, AdapterMetadata, graph_builder

from micronpu.base.files import read_file
from micronpu.cli.explorer.graph import GraphNode, ProgramGraph, program_graphs, report_graph
from micronpu.report.delegation import DelegationReport

IDENTIFIER = "micronpu"
"""Identifier of the adapter."""


class ProgramAdapter(Adapter):
    """ExecuTorch programs with the inside of their delegates, and the operators of a report."""

    metadata = AdapterMetadata(
        id=IDENTIFIER,
        name="micronpu",
        description="ExecuTorch programs for the NPUs of microcontrollers, with the inside of their delegates",
        fileExts=["pte"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the graphs of a program or a report."""
        if Path(model_path).suffix == ".pte":
            found = program_graphs(read_file(model_path), model_path)
        else:
            found = (report_graph(DelegationReport.load(model_path)),)
        return {"graphs": [_graph(graph) for graph in found]}


def _graph(graph: ProgramGraph) -> Any:
    return graph_builder.Graph(id=graph.id, nodes=[_node(node) for node in graph.nodes])


def _node(node: GraphNode) -> Any:
    edges = [
        graph_builder.IncomingEdge(sourceNodeId=source, sourceNodeOutputId=str(output), targetNodeInputId=str(number))
        for number, (source, output) in enumerate(node.reads)
    ]
    return graph_builder.GraphNode(
        id=node.id,
        label=node.label,
        namespace=node.namespace,
        subgraphIds=[node.subgraph] if node.subgraph else [],
        attrs=_pairs(node.attributes),
        incomingEdges=edges,
        outputsMetadata=[
            graph_builder.MetadataItem(id=str(number), attrs=_pairs(pairs)) for number, pairs in enumerate(node.outputs)
        ],
    )


def _pairs(pairs: tuple[tuple[str, str], ...]) -> list[Any]:
    return [graph_builder.KeyValue(key=key, value=value) for key, value in pairs]
