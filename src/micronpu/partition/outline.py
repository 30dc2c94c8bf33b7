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

from micronpu.frontend.graphs import Graph, GraphModule, Node, findings, map_arg, operand, place_of, returned
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import (
    BYTE_SHIFT,
    CASTS,
    Edge,
    ProgramView,
    arguments,
    calls_into,
    common_edge,
    dequantizes_of,
    integer_type,
    integers_behind,
    is_compute,
    is_conversion,
    is_dequantize,
    is_float_cast,
    is_index,
    is_quantize,
    leaves_channels_last,
    overload_name,
    quantized_from,
    quantizes_of,
    shifted_bytes,
    static_shape,
    substitute,
    value_of,
)
from micronpu.frontend.tensors import attribute, clean, put, read, replace_each, states_of
from micronpu.ir.types import DType
from micronpu.ops.calls import CLONE, CONVERSION, FLIPPED_BITS
from micronpu.ops.indices import MOST_POSITIONS, POSITIONS
from micronpu.ops.movement import TO_CHANNELS_LAST
from micronpu.partition.device import CompiledPartition
from micronpu.partition.partition import Partition, outlined_order
from micronpu.upstream.torch import codegen_of


class HostModule(GraphModule):
    """A module that generates its Python code when it is called: most modules are only written."""

    def recompile(self) -> Any:
        type(self).forward = HostModule.forward  # type: ignore[method-assign]

    def forward(self, *args: object) -> Any:
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
        self.types = [(tuple(t.shape), t.dtype, memory_format_of(t)) for t in outputs]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            inputs[0].new_zeros(shape, dtype=dtype).to(memory_format=layout) for shape, dtype, layout in self.types
        )


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    channels_last = tensor.dim() == 4 and not tensor.is_contiguous()
    return torch.channels_last if channels_last else torch.contiguous_format


def boundary(partition: Partition, view: ProgramView) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return tensors with the types of a partition's inputs and outputs."""

    def empty(node: Node, channels_last: bool) -> torch.Tensor:
        value = _zeros(node, channels_last)
        return value.permute(TO_CHANNELS_LAST).contiguous() if node in partition.images else value

    inputs = [empty(n, view.enters_channels_last(n)) for n in partition.inputs]
    return inputs, [empty(n, view.leaves_channels_last(n)) for n in partition.outputs]


def _zeros(node: Node, channels_last: bool, device: str = "cpu") -> torch.Tensor:
    shape, dtype = static_shape(node), torch.int32 if is_index(node) else integer_type(node)
    assert shape is not None
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.zeros(shape, dtype=dtype, device=device).to(memory_format=layout)


def outline(module: GraphModule, parts: Sequence[Partition], calls: Sequence[tuple[str, nn.Module]]) -> GraphModule:
    """Return a new module in which each partition is one call, without weights that only partitions read."""
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
        copies[node].meta["val"] = _zeros(node, leaves_channels_last(node), "meta")
    output = module.graph.output_node()
    graph.output(map_arg(output.args[0], copies.__getitem__))
    graph.set_codegen(codegen_of(module.graph))
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module") and node not in called.values():
            put(root, str(node.target), read(module, node))
    for name, call in calls:
        root.add_module(name, call)
    return HostModule(root, graph)


def compute_contiguously(module: GraphModule) -> None:
    """Give operators on the core contiguous copies of program inputs in another order.

    x -> (quantize -> delegate, atan2)        x -> (quantize -> delegate, clone{contiguous} -> atan2)

    Results of partitions are contiguous, and ExecuTorch's kernels refuse operands and results in different orders.
    """
    for node, source in findings(module, quantized_from).items():
        if not isinstance(source, Node) or source.op != "placeholder" or _is_in_order(node):
            continue
        computed = [n for n in node.users if is_compute(n)] if value_of(node).is_floating_point() else []
        readers = [*dequantizes_of(node), *computed]
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


# ---------------------------------------------------------------- integers that the core only moves or decides


def move_integers(module: GraphModule) -> bool:
    """Move integers on the core instead of dequantizing, moving and quantizing with the same qparams, in place.

    c8 -> dequantize -> index_copy(x8 -> dequantize) -> quantize -> y8        index_copy(c8, x8) -> y8
    """
    chosen: dict[Node, Edge] = {}
    for node in reversed(module.graph.nodes):
        qparams = _read_on(node, chosen)
        if qparams is not None and _moves(node):
            chosen[node] = qparams
    while dropped := [
        n for n, qparams in chosen.items() if not _given_on(n, qparams, chosen) or _read_on(n, chosen) != qparams
    ]:
        for node in dropped:
            del chosen[node]
    for node, qparams in chosen.items():
        for before in node.all_input_nodes:
            if before not in chosen:
                node.replace_input_with(before, integers_behind(before))
        node.meta["val"] = value_of(node).to(qparams.torch_dtype)
        for reader in quantizes_of(node):
            substitute(reader, node)
    clean(module, bool(chosen))
    return bool(chosen)


def pass_on_integers(module: GraphModule) -> None:
    """Compute on the core with integers what quantization only carries, in place.

        c8 -> dequantize -> index_copy(x8 -> dequantize) -> quantize -> y8        index_copy(c8, x8) -> y8
        xu8 -> dequantize -> quantize -> x8        xu8 -> to(int8) -> bitwise_xor(-128) -> x8
        y8 -> dequantize -> quantize -> yu8        y8 -> bitwise_xor(-128) -> to(uint8) -> yu8
        x -> argmax -> to(float32) -> quantize -> dequantize -> to(int64) -> y        x -> argmax -> y

    Shifts are exact: both sides have the same scale and zero points 128 apart, the cast keeps the bits, and adding 128
    flips the highest bit.
    """
    move_integers(module)
    clean(module, any([replace_each(module, find) for find in (_shifted, _decision)]))


def _shifted(node: Node) -> Node | None:
    """Write the shift of bytes that a quantize computes; return None for other nodes."""
    x = shifted_bytes(node)
    if x is None:
        return None
    call = calls_into(node.graph)
    y, dtype = value_of(node), arguments(node)["dtype"]  # `y` may be a float value that a quantized one replaced
    is_signed = dtype is torch.int8
    with node.graph.inserting_before(node):
        first = call(CONVERSION, x, DType.INT8) if is_signed else call(FLIPPED_BITS, x, -BYTE_SHIFT)
        made = call(FLIPPED_BITS, first, -BYTE_SHIFT) if is_signed else call(CONVERSION, first, DType.UINT8)
    first.meta["val"], made.meta["val"] = y.to(torch.int8), y.to(dtype)
    return made


def _decision(node: Node) -> Node | None:
    """Return the decision on the core that a node restores from a number; None for other nodes."""
    if overload_name(node) not in CASTS:
        return None
    steps = [node]
    for wanted in (is_dequantize, is_quantize, is_float_cast):
        before = steps[-1].args[0]
        if not isinstance(before, Node) or not wanted(before):
            return None
        steps.append(before)
    source = operand(steps[-1])
    dtype, qparams = value_of(node).dtype, Edge.of(steps[1])
    if value_of(source).dtype is not dtype or qparams is None or qparams != Edge.of(steps[2]):
        return None
    scale, zero_point, low, high, _ = qparams
    largest = 1 if dtype is torch.bool else MOST_POSITIONS - 1
    if scale != 1.0 or not low <= zero_point <= high - largest:
        return None
    # Qparams for positions are only made for positions up to 255.
    return source if dtype is torch.bool or overload_name(source) in POSITIONS else None


def _moves(node: Node) -> bool:
    entry = known_import(node)
    if entry is None or not entry.moves_only or arguments(node).get("accumulate"):
        return False
    if any(isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values())):
        return False  # for integers, a cast to float32 would change the result
    return _is_float(node)


def _read_on(node: Node, chosen: dict[Node, Edge]) -> Edge | None:
    """Return the qparams that all readers of a value share, or None."""
    return common_edge(Edge.of(user) or chosen.get(user) for user in node.users)


def _given_on(node: Node, qparams: Edge, chosen: dict[Node, Edge]) -> bool:
    """Return True if all floats that a node reads are integers with these qparams; False if it reads none."""
    floats = [n for n in node.all_input_nodes if _is_float(n) or is_conversion(n)]
    return bool(floats) and all(qparams in (chosen.get(n), Edge.of(n)) for n in floats)


def _is_float(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.is_floating_point()


# ---------------------------------------------------------------- loops


def scan(module: GraphModule, node: Node, step: GraphModule, body: GraphModule) -> None:
    """Replace the call of a `micronpu.quantize.loops.Loop` by ExecuTorch's loop, in place.

    y, h = loop(x, h0)        h, y = scan(step, [h0], [x], constants)
    """
    count = len(states_of(body).values)
    name = f"{node.target}_step"
    made_step, constants = _states_first(step, count)
    module.add_submodule(name, made_step)
    graph = module.graph
    with graph.inserting_before(node):
        called = graph.get_attr(name)
        given = []
        for number, value in enumerate(constants):
            module.register_buffer(f"{name}_constant_{number}", value)
            given.append(graph.get_attr(f"{name}_constant_{number}"))
        made = graph.call_function(
            torch.ops.higher_order.scan, (called, list(node.args[1:]), [node.args[0]], tuple(given))
        )
    for reader in list(node.users):
        index = place_of(reader)
        reader.args = (made, count if index == 0 else index - 1)
        if index == 0:
            _copy_for_views(module, reader)
    graph.erase_node(node)
    module.delete_submodule(str(node.target))
    module.recompile()


def _copy_for_views(module: GraphModule, source: Node) -> None:
    """Insert copies of loop results and step inputs before ATen operators and core kernels."""
    # ExecuTorch treats the length of a sequence as dynamic, and has no views of dynamic tensors. It also plans a view
    # of a step's input as if the step owned its memory, which it does not.
    readers = [n for n in source.users if getattr(n.target, "namespace", "") == "aten" or _is_core(module, n)]
    if readers:
        with source.graph.inserting_after(source):
            copy = calls_into(source.graph)(CLONE, source)
        copy.meta = dict(source.meta)
        for reader in readers:
            reader.replace_input_with(source, copy)


def _is_core(module: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and not isinstance(module.get_submodule(str(node.target)), DelegateCall)


def _states_first(step: GraphModule, count: int) -> tuple[GraphModule, list[torch.Tensor]]:
    """Return the step with its inputs and outputs in the order of a scan, and its constants, which become its last
    inputs.

    No output is another one, or an input.  The core's kernels are inlined into the step.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    constants: list[torch.Tensor] = []
    x, *states = step.graph.find_nodes(op="placeholder")
    for node in (*states, x):
        copies[node] = graph.node_copy(node)
    first = graph.call_function(len, ((),))  # marks where constants are inserted
    results: list[Node] = []

    def copy_nodes(source: GraphModule) -> None:
        for node in source.graph.nodes:
            if (value := attribute(source, node)) is not None:
                with graph.inserting_before(first):
                    copies[node] = graph.placeholder(f"constant_{len(constants)}")
                constants.append(value)
            elif node.op == "call_module" and isinstance(part := source.get_submodule(str(node.target)), GraphModule):
                inside = part.graph.find_nodes(op="placeholder")
                copies.update(zip(inside, (copies[n] for n in node.args), strict=True))
                copy_nodes(part)
                for reader in node.users:  # each takes one result
                    copies[reader] = copies[returned(part)[place_of(reader)]]
            elif node.op not in ("placeholder", "output") and node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)

    copy_nodes(step)
    result, *carried = returned(step)
    for value in (*carried, result):
        own = copies[value]
        if own in results or own.op == "placeholder":
            own = calls_into(graph)(CLONE, own)
        results.append(own)
    graph.erase_node(first)
    assert len(results) == count + 1
    graph.output(tuple(results))
    for given in graph.find_nodes(op="placeholder"):
        _copy_for_views(step, given)
    return GraphModule(step, graph), constants
