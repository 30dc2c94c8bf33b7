"""The core part of a program, built around compiled delegate calls.

The operators of a partition are replaced by one call before ExecuTorch receives the program, so that its passes, which
traverse every node many times, never process them.  ExecuTorch lowers the rest as usual.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from micronpu.frontend.program import (
    ProgramView,
    arguments,
    calls_into,
    integer_type,
    is_compute,
    is_dequantize,
    is_index,
    is_quantize,
    leaves_channels_last,
    static_shape,
    value_of,
)
from micronpu.ops.calls import CLONE
from micronpu.ops.movement import TO_CHANNELS_LAST
from micronpu.partition.device import CompiledPartition
from micronpu.partition.order import PartitionCall, outlined_order
from micronpu.partition.partition import Partition
from micronpu.upstream.torch import codegen_of


class HostModule(GraphModule):
    """A module that generates its Python code when it is called: most modules are only written."""

    def recompile(self) -> Any:
        type(self).forward = HostModule.forward  # type: ignore[method-assign]

    def forward(self, *args: Any) -> Any:
        GraphModule.recompile(self)
        return type(self).forward(self, *args)


class DelegateCall(nn.Module):
    """A call of the NPU: it has the types of a partition's inputs and outputs, and computes nothing.

    Args:
        backend: name by which the runtime looks up the delegate.
        specs: keys and values of the compile specs.
        inputs, outputs: tensors with the shapes, dtypes and layouts of the call.
    """

    def __init__(
        self,
        backend: str,
        part: CompiledPartition,
        specs: Sequence[tuple[str, bytes]],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        super().__init__()
        self.backend = backend
        self.part = part
        self.specs = tuple(specs)
        self.examples = tuple(inputs)
        self.types = [(tuple(t.shape), t.dtype, _memory_format(t)) for t in outputs]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            inputs[0].new_zeros(shape, dtype=dtype).to(memory_format=layout) for shape, dtype, layout in self.types
        )


def _memory_format(tensor: torch.Tensor) -> torch.memory_format:
    return torch.contiguous_format if tensor.is_contiguous() else torch.channels_last


def boundary(partition: Partition, view: ProgramView) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return tensors with the types of a partition's inputs and outputs."""

    def empty(node: Node, channels_last: bool) -> torch.Tensor:
        shape = static_shape(node)
        assert shape is not None
        if node in partition.images:
            shape, channels_last = tuple(shape[i] for i in TO_CHANNELS_LAST), False
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return torch.zeros(shape, dtype=torch.int32 if is_index(node) else integer_type(node)).to(memory_format=layout)

    inputs = [empty(n, view.enters_channels_last(n)) for n in partition.inputs]
    return inputs, [empty(n, view.leaves_channels_last(n)) for n in partition.outputs]


def outline(module: GraphModule, parts: Sequence[PartitionCall], calls: Sequence[tuple[str, nn.Module]]) -> GraphModule:
    """Return a new module in which each partition is one call, without weights that only partitions read.

    Args:
        parts: inputs and outputs of the partitions.
        calls: name of each call, and its module: integers in, a tuple of integers out.
    """
    graph = Graph()
    root = nn.Module()
    copies: dict[Node, Node] = {}
    home = {output: (number, index) for number, p in enumerate(parts) for index, output in enumerate(p.outputs)}
    called: dict[int, Node] = {}
    for node in outlined_order(module.graph, parts):
        if node not in home:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            continue
        number, index = home[node]
        if number not in called:
            called[number] = graph.call_module(calls[number][0], tuple(copies[n] for n in parts[number].inputs))
        copies[node] = graph.call_function(operator.getitem, (called[number], index))
        copies[node].meta["val"] = _integers(node)
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    graph.output(torch.fx.node.map_arg(output.args[0], copies.__getitem__))
    graph.set_codegen(codegen_of(module.graph))
    for node in graph.nodes:
        if node.op == "get_attr":
            _share(module, root, str(node.target))
        elif node.op == "call_module" and node not in called.values():
            root.add_module(str(node.target), module.get_submodule(str(node.target)))
    for name, call in calls:
        root.add_module(name, call)
    return HostModule(root, graph)


def compute_contiguously(module: GraphModule) -> None:
    """Give operators on the core contiguous copies of program inputs in another order.

    x -> (quantize -> delegate, atan2)        x -> (quantize -> delegate, clone{contiguous} -> atan2)

    Results of partitions are contiguous, and ExecuTorch's kernels refuse operands and results in different orders.
    """
    for node in list(module.graph.nodes):
        source = node.args[0] if is_quantize(node) else node
        if not isinstance(source, Node) or source.op != "placeholder" or _is_in_order(node):
            continue
        readers = [n for n in node.users if is_dequantize(n) or (is_compute(n) and value_of(node).is_floating_point())]
        if not readers:
            continue
        with module.graph.inserting_after(node):
            clone = calls_into(module.graph)(CLONE, node, memory_format=torch.contiguous_format)
        for reader in readers:
            reader.replace_input_with(node, clone)
    module.recompile()


def _is_in_order(node: Node) -> bool:
    """Return True if ExecuTorch regards a value as contiguous, which includes the strides of axes of size 1."""
    value = value_of(node)
    return not isinstance(value, torch.Tensor) or value.stride() == torch.empty(value.shape, device="meta").stride()


def _integers(quantize: Node) -> torch.Tensor:
    """Return a tensor of the type that a call returns for a quantize."""
    shape = static_shape(quantize)
    assert shape is not None
    layout = torch.channels_last if leaves_channels_last(quantize) else torch.contiguous_format
    value: torch.Tensor = value_of(quantize)
    dtype = value.dtype if value.dtype in (torch.int8, torch.int16) else arguments(quantize)["dtype"]
    return torch.empty(shape, dtype=dtype, device="meta").to(memory_format=layout)


def _share(source: nn.Module, target: nn.Module, name: str) -> None:
    """Make an attribute ``a.b.c`` of one module available in another."""
    *path, last = name.split(".")
    value: Any = source
    for part in path:
        value = getattr(value, part)
        if not hasattr(target, part):
            target.add_module(part, nn.Module())
        target = getattr(target, part)
    value = getattr(value, last)
    if isinstance(value, nn.Parameter):
        target.register_parameter(last, value)
    elif isinstance(value, torch.Tensor):
        target.register_buffer(last, value)
    else:
        setattr(target, last, value)
