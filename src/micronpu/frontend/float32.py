"""Conversion of models with other floats to float32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from micronpu.frontend.copies import copied, with_graph
from micronpu.frontend.program import qualified_name

_OTHER = (torch.float16, torch.bfloat16, torch.float64)


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of float16, bfloat16 or float64 as float32; any other unchanged."""
    return tensor.to(torch.float32) if tensor.dtype in _OTHER else tensor


def convert_to_float32(program: ExportedProgram) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Return a program that computes in float32 in place of float16, bfloat16 and float64.

    Qparams of a quantized program keep their dtype.

    Returns:
        The program, the same object if it has nothing to convert, and the names of the dtypes that it had.
    """
    graphs = [graph for graph in program.graph_module.modules() if isinstance(graph, GraphModule)]
    found = sorted({str(dtype).removeprefix("torch.") for graph in graphs for dtype in _other_dtypes(graph)})
    if not found:
        return program, ()
    module = copied(program.graph_module)
    qparams = {node.name for node in program.graph.nodes if _is_qparam(node)}
    for graph in module.modules():
        if isinstance(graph, GraphModule):
            _convert(graph)
    paths = {spec.target for spec in program.graph_signature.input_specs if spec.arg.name in qparams}

    def converted(tensors: dict[str, Any]) -> dict[str, Any]:
        return {path: value if path in paths else _argument(value) for path, value in tensors.items()}

    examples = partial(torch.fx.node.map_aggregate, fn=_argument)
    return with_graph(program, module, renamed=converted, examples=examples), tuple(found)  # `input` is now `input_1`


def _other_dtypes(module: GraphModule) -> Iterator[torch.dtype]:
    for node in module.graph.nodes:
        if not _is_qparam(node):
            values = node.meta.get("val")
            for value in values if isinstance(values, (tuple, list)) else (values,):
                if isinstance(value, torch.Tensor) and value.dtype in _OTHER:
                    yield value.dtype


def _is_qparam(node: Node) -> bool:
    is_given = node.op in ("get_attr", "placeholder") and bool(node.users)
    return is_given and all(
        qualified_name(reader).startswith("quantized_decomposed::") and node in reader.args[1:] for reader in node.users
    )


def _convert(module: GraphModule) -> None:
    for node in module.graph.nodes:
        if not _is_qparam(node):
            node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), _argument)
            if "val" in node.meta:
                node.meta["val"] = torch.fx.node.map_aggregate(node.meta["val"], _argument)
    module.recompile()


def _argument(value: Any) -> Any:
    if isinstance(value, nn.Parameter):
        return value if value.dtype not in _OTHER else nn.Parameter(in_float32(value.data), value.requires_grad)
    if isinstance(value, torch.Tensor):
        return in_float32(value)
    return torch.float32 if isinstance(value, torch.dtype) and value in _OTHER else value
