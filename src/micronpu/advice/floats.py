"""The float model that a quantized one amounts to: changes of an architecture are tried in float."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import add_constant
from micronpu.frontend.copies import copied
from micronpu.frontend.exported import finished, is_float
from micronpu.frontend.program import ProgramView, is_dequantize, is_dequantize_channel, is_quantize

Tensors = tuple[torch.Tensor, ...]
_KEPT = ("val", "stack_trace", "nn_module_stack")


def in_floats(quantized: GraphModule, examples: Tensors) -> tuple[GraphModule, Tensors] | None:
    """A quantized module without its rounding of activations, with dequantized weights.

        x8 -> dequantize -> conv(.., dequantize(w8)) -> quantize -> y8        x -> conv(.., w) -> y

    Returns:
        The module and its inputs as floats; None where integers are computed with in another way.
    """
    module = copied(quantized)
    view, graph, inputs = ProgramView(module), module.graph, list(examples)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node in list(graph.nodes):
        if not is_dequantize(node) and not is_dequantize_channel(node):
            continue
        source = node.args[0]
        assert isinstance(source, Node)
        if is_quantize(source):
            node.replace_all_uses_with(source.all_input_nodes[0])
        elif source in placeholders and (edge := view.edge(node)) is not None:
            i = placeholders.index(source)
            if not inputs[i].is_floating_point():
                zero, scale = edge.qparams.zero_point[0], edge.qparams.scale[0]
                inputs[i] = (inputs[i].to(torch.float32) - zero) * scale
            node.replace_all_uses_with(source)
        elif all(n.op == "get_attr" for n in node.all_input_nodes):
            values = {n: view.constant(n) for n in node.all_input_nodes}
            args = torch.fx.map_arg(node.args, values.__getitem__)
            with torch.no_grad():
                value = node.target(*args, **node.kwargs)
            node.replace_all_uses_with(add_constant(module, node, value, "weight"))
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if is_quantize(node):  # of a result
            node.replace_all_uses_with(node.all_input_nodes[0])
    graph.eliminate_dead_code()
    for node in graph.nodes:  # without what the first quantization noted
        node.meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
    module.recompile()
    return (finished(module, tuple(inputs)), tuple(inputs)) if is_float(module) else None
