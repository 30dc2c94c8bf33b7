"""View of a quantized program: an exported program, an edge program or a converted module.

Importers see only ATen overloads: edge operators are unwrapped, and weights are found behind placeholders (exported
programs) and ``get_attr`` nodes (modules).
"""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import NodeSource

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError, UnsupportedError
from micronpu.ir.graph import Origin
from micronpu.ir.types import DType, QParams
from micronpu.ops import calls, movement
from micronpu.upstream.executorch import operator_behind
from micronpu.upstream.torch import FakeTensor, OpOverload, schema_of

_QUANTIZE = "quantized_decomposed::quantize_per_tensor"
_DEQUANTIZE = "quantized_decomposed::dequantize_per_tensor"
_DEQUANTIZE_CHANNEL = "quantized_decomposed::dequantize_per_channel"

_DTYPES = {
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int16: DType.INT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
    torch.float32: DType.FLOAT32,
    torch.bool: DType.BOOL,
}


def aten_overload(node: Node) -> OpOverload | None:
    """Return the ATen overload that a node calls, unwrapped from an edge operator; None for any other node."""
    if node.op != "call_function":
        return None
    target = operator_behind(node.target)
    return target if isinstance(target, OpOverload) else None


@functools.lru_cache(maxsize=4096)
def _names(overload: OpOverload) -> tuple[str, str]:
    """Return names such as ("aten::conv2d", "conv2d.default")."""
    return schema_of(overload).name, short_name(overload)


def short_name(overload: OpOverload) -> str:
    """Return ``add.Tensor`` of ``torch.ops.aten.add.Tensor``."""
    return str(overload).partition(".")[2]


def overload_of(name: str) -> OpOverload:
    """Return ``torch.ops.aten.add.Tensor`` of ``add.Tensor``."""
    packet, _, form = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, packet), form)
    return found


def in_torch(argument: object) -> Any:
    """Return torch's dtype of an element type, or any other argument of an operator unchanged."""
    return getattr(torch, argument.value) if isinstance(argument, DType) else argument


def calls_into(graph: Graph) -> Callable[..., Node]:
    """Return a function that appends operators to a graph by the names of their overloads, for `micronpu.ops`."""

    def call(overload: str, *args: object, **named: object) -> Node:
        given = tuple(map(in_torch, args)), {name: in_torch(value) for name, value in named.items()}
        return graph.call_function(overload_of(overload), *given)

    return call


def qualified_name(node: Node) -> str:
    """Return a name such as ``aten::conv2d``, or ""."""
    overload = aten_overload(node)
    return _names(overload)[0] if overload is not None else ""


def overload_name(node: Node) -> str:
    """Return a name such as ``conv2d.default``, or "" for a node that is no operator."""
    overload = aten_overload(node)
    return _names(overload)[1] if overload is not None else ""


def node_sources(node: Node) -> Iterator[NodeSource]:
    """Yield what a node was made of, and that of what, the nearest first."""
    sources = list(node.meta.get("from_node") or ())
    while sources:
        yield (source := sources.pop())
        sources += source.from_node


def written_names(node: Node) -> set[str]:
    """Return the overload of an operator, and those of the operators that it was decomposed from.

    The set is empty for quantization nodes, which are no operators of the model.
    """
    if not is_compute(node):
        return set()
    names = {overload_name(node)} - {""}
    written = {str(source.target) for source in node_sources(node)}
    return names | {name.removeprefix("aten.") for name in written if name.startswith("aten.")}


def only_checks(operator: OpOverload) -> bool:
    """Return True if an operator has no result and changes nothing: it can only raise an error."""
    schema = schema_of(operator)
    return not schema.returns and not schema.is_mutable


def is_quantize(node: Node) -> bool:
    return qualified_name(node) == _QUANTIZE


def is_dequantize(node: Node) -> bool:
    """Return True if the node converts integers with one scale per tensor to floats."""
    return qualified_name(node) == _DEQUANTIZE


def is_conversion(node: Node) -> bool:
    """Return True if the node quantizes or dequantizes with one scale per tensor."""
    return qualified_name(node) in (_QUANTIZE, _DEQUANTIZE)


def is_dequantize_channel(node: Node) -> bool:
    return qualified_name(node) == _DEQUANTIZE_CHANNEL


def is_any_dequantize(node: Node) -> bool:
    return qualified_name(node) == _DEQUANTIZE or is_dequantize_channel(node)


def float_behind(node: Node) -> Node:
    """Return the value that a chain of quantize and dequantize nodes represents: the node itself without any."""
    while is_conversion(node):
        node = node.all_input_nodes[0]
    return node


def quantizes_of(node: Node) -> list[Node]:
    """Return the readers of a value that quantize it."""
    return [user for user in node.users if is_quantize(user)]


def dequantizes_of(integers: Node) -> list[Node]:
    """Return the readers of integers that dequantize them."""
    return [user for user in integers.users if is_dequantize(user)]


def readers_of(integers: Node) -> set[Node]:
    """Return what reads integers, or dequantizes of them."""
    floats = dict.fromkeys(dequantizes_of(integers))
    return {r for user in integers.users for r in (user.users if user in floats else (user,))}


def substitute(node: Node, made: Node) -> None:
    """Make all readers of a node read another value, and erase the node."""
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def place_behind(value: Node) -> Node:
    """Return the first node behind a value that is not an input of the program: inputs come first."""
    place = value.next
    while place.op == "placeholder":
        place = place.next
    return place


def add_quantize(x: Node, qparams: Sequence[Any]) -> Node:
    """Add a node that quantizes a value with a scale, a zero point, limits and a dtype, where the graph inserts."""
    return _conversion(torch.ops.quantized_decomposed.quantize_per_tensor.default, x, qparams, qparams[-1])


def add_dequantize(x: Node, qparams: Sequence[object]) -> Node:
    """Add a node that dequantizes a value; see `add_quantize`."""
    return _conversion(torch.ops.quantized_decomposed.dequantize_per_tensor.default, x, qparams, torch.float32)


def _conversion(overload: OpOverload, x: Node, qparams: Sequence[Any], dtype: torch.dtype) -> Node:
    made, value = x.graph.call_function(overload, (x, *qparams)), value_of(x)
    made.meta = {k: x.meta[k] for k in ("stack_trace", "nn_module_stack", "from_node") if k in x.meta}
    if isinstance(value, torch.Tensor):
        made.meta["val"] = value.to(dtype)
    return made


BYTE_SHIFT = 128
"""Difference between a uint8 number and the int8 number with the same meaning."""


def shifted_bytes(node: Node) -> Node | None:
    """Return the operand of a conversion between uint8 and int8 numbers of the same meaning.

    xu8 -> dequantize -> quantize -> x8        y8 -> dequantize -> quantize -> yu8

    Returns:
        The integers that are dequantized; None if the node is no such quantize.
    """
    source = quantized_from(node)
    if source is node or (integers := integers_behind(source)) is source:
        return None
    made, given = Edge.of(node), Edge.of(source)
    if made is None or given is None:
        return None
    types = {made.torch_dtype: made, given.torch_dtype: given}
    signed, unsigned = types.get(torch.int8), types.get(torch.uint8)
    if signed is None or unsigned is None or signed.scale != unsigned.scale:
        return None
    is_whole = (signed.limits, unsigned.limits) == ((-128, 127), (0, 255))
    return integers if is_whole and signed.zero_point + BYTE_SHIFT == unsigned.zero_point else None


def is_getitem(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


CASTS = (*movement.CASTS, "_to_dim_order_copy.default")


def is_float_cast(node: Node) -> bool:
    """Return True if the node converts a computed boolean or integer to float32."""
    if overload_name(node) not in CASTS or not isinstance(node.args[0], Node):
        return False
    source, own = (getattr(value_of(n), "dtype", None) for n in (node.args[0], node))
    computed = node.args[0].op == "call_function"
    return own is torch.float32 and isinstance(source, torch.dtype) and not source.is_floating_point and computed


def is_index(node: Node) -> bool:
    """Return True if the node's result is an int32 tensor, which an NPU accepts."""
    return getattr(value_of(node), "dtype", None) is torch.int32


def is_compute(node: Node) -> bool:
    """Return True if the node is an operator of the model: neither quantization nor the unpacking of a tuple."""
    is_called = node.op == "call_function" and not is_getitem(node)
    return is_called and not qualified_name(node).startswith("quantized_decomposed::")


def arguments(node: Node) -> dict[str, Any]:
    """Return arguments by their names in the schema and in its order, with defaults."""
    names, defaults, lists = _names_and_defaults(aten_overload(node))
    given = defaults | {n: [*v] for n, v in lists.items()} | dict(zip(names, node.args, strict=False)) | node.kwargs
    return {name: given[name] for name in names if name in given}


@functools.lru_cache(maxsize=4096)
def _names_and_defaults(overload: OpOverload) -> tuple[tuple[str, ...], dict[str, object], dict[str, list[object]]]:
    """Return the names of an operator's arguments, their defaults, and those of these that are lists, to be copied."""
    schema = schema_of(overload).arguments
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return tuple(a.name for a in schema), defaults, {n: v for n, v in defaults.items() if isinstance(v, list)}


def value_of(node: Node) -> Any:
    """Return the fake tensor (or tuple of them) of the result.

    Quantize and dequantize nodes of `convert_pt2e` have none; they have the shape of their operand.
    """
    while "val" not in node.meta and qualified_name(node).startswith("quantized_decomposed::"):
        (node,) = node.all_input_nodes[:1]
    value = node.meta.get("val")
    return value[0] if isinstance(value, (tuple, list)) and value else value


def is_float32(node: Node) -> bool:
    """Return whether the result of a node, or the first of several, is a float32 tensor."""
    value = value_of(node)
    is_parameter = value is None and node.op == "get_attr"
    return is_parameter or (isinstance(value, torch.Tensor) and value.dtype == torch.float32)


def is_random(node: Node) -> bool:
    """Return whether the result differs from call to call: it is drawn, or is memory that nothing was written to."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return overload_name(node) in calls.ALL_UNINITIALIZED
    given = arguments(node)
    return bool(given.get("train", given.get("training", given.get("dropout_p", True))))


def static_shape(node: Node) -> tuple[int, ...] | None:
    """Return the shape of the result, or None if a size is only known at run time."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor) or not all(isinstance(s, int) for s in value.shape):
        return None
    return tuple(value.shape)


def integer_type(node: Node) -> torch.dtype:
    """Return the dtype of a quantize node's integers, or of an input of the program."""
    dtype: torch.dtype = arguments(node)["dtype"] if is_quantize(node) else value_of(node).dtype
    return dtype


def quantized_from(node: Node) -> Any:
    """Return the float operand of a quantize; any other node itself."""
    return node.args[0] if is_quantize(node) else node


def integers_behind(node: object) -> Any:
    """Return the integer operand of a dequantize; anything else itself."""
    return node.args[0] if isinstance(node, Node) and is_dequantize(node) else node


def is_channels_last(node: Node) -> bool:
    """Return True if the program keeps the 4-D result of a node in channels-last order in memory."""
    value = value_of(node)
    is_image = isinstance(value, torch.Tensor) and value.dim() == 4 and not value.is_contiguous()
    return is_image and value.is_contiguous(memory_format=torch.channels_last)


def enters_channels_last(node: Node) -> bool:
    """Return True if a partition receives ``node`` in channels-last order.

    This holds only for inputs of the program.  Results that the core computes from contiguous results of partitions are
    contiguous, in contrast to their order before partitioning.
    """
    source = shifted_bytes(node) or quantized_from(node)
    return is_channels_last(node) and isinstance(source, Node) and source.op == "placeholder"


def leaves_channels_last(node: Node) -> bool:
    """Return True if a partition returns its result ``node`` in channels-last order.

    This holds only for outputs of the program: ExecuTorch's kernels refuse operands and results in different orders,
    and the results of operators on the core are often contiguous.
    """
    readers = {r for reader in readers_of(node) for r in (reader.users if shifted_bytes(reader) is node else (reader,))}
    return is_channels_last(node) and all(r.op == "output" for r in readers)


CHANNELS_LAST = (0, 2, 3, 1)


def axes_in_memory(value: torch.Tensor) -> tuple[int, ...]:
    """Return the order of the axes as ExecuTorch reads it from the strides, including axes of size 1."""
    # Torch's own `dim_order` gives the same result for a tensor, and another for a fake tensor.
    strides: list[int] = list(value.stride())
    return tuple(sorted(range(value.dim()), key=lambda axis: -strides[axis]))


def _is_kept_channels_last(node: Node) -> bool:
    """Return `is_channels_last` for a value that keeps its order; raise if a payload cannot express it."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return False
    order = axes_in_memory(value)
    if order in (CHANNELS_LAST, tuple(range(value.dim()))):
        return order == CHANNELS_LAST
    raise UnsupportedError(
        f"`{node.name}`, at the boundary of a partition, has its axes in the order {value.dim_order()} in memory; "
        "contiguous and channels-last are possible.",
        hint="micronpu.compile, which reorders it, or contiguous example inputs",
    )


_FRAME = re.compile(r'File "([^"]*)", line (.+?)(?:, in \S+)?')
"""A file, with the number of a line, or the name that a model file gives to the node."""
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(m.__file__)) for m in (torch,) if m.__file__)


@functools.lru_cache(maxsize=4096)
def _user_line(stack_trace: str) -> str:
    line = ""
    for found in filter(None, map(_FRAME.fullmatch, map(str.strip, stack_trace.splitlines()))):
        # Code that torch generates has no file: "<eval_with_key>.5".
        if not found[1].startswith(("<", *_LIBRARIES)) and "site-packages" not in found[1]:
            line = f"{found[1]}:{found[2]}"
    return line


def origin_of(node: Node) -> Origin:
    """Return the origin of a node in the user's code."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(list(stack.values())[-1][0]) if stack else ""
    handle = node.meta.get("debug_handle")
    return Origin(
        nodes=(node.name,),
        source=_user_line(node.meta.get("stack_trace") or ""),
        module=path.removeprefix("L['self'].").removeprefix("L['self']"),
        debug_handles=(handle,) if isinstance(handle, int) else (),
    )


def named(node: Node) -> str:
    """Return a text such as `sort` (model.py:12)."""
    return f"`{node.name}`{origin_of(node).at}"


@functools.lru_cache(maxsize=4096)
def _qparams(scale: float, zero_point: int) -> QParams:
    return QParams.per_tensor(scale, zero_point)


class Edge(NamedTuple):
    """Arguments of a quantize or dequantize node behind its operand: ``real = scale * (integer - zero_point)``."""

    scale: float
    zero_point: int
    low: int
    high: int
    torch_dtype: torch.dtype

    @classmethod
    def of(cls, node: Node, constant: Callable[[Any], torch.Tensor | None] = lambda node: None) -> Edge | None:
        """Return those of a node, whose arguments may be constants; None if they are computed, or of another node."""
        if not is_conversion(node):
            return None
        given = arguments(node)
        scale, zero_point = given["scale"], given["zero_point"]
        if isinstance(scale, Node) or isinstance(zero_point, Node):
            scale, zero_point = constant(scale), constant(zero_point)
            if scale is None or zero_point is None or scale.numel() != 1:
                return None
        return cls(float(scale), int(zero_point), int(given["quant_min"]), int(given["quant_max"]), given["dtype"])

    @property
    def dtype(self) -> DType:
        return _DTYPES[self.torch_dtype]

    @property
    def limits(self) -> tuple[int, int]:
        return self.low, self.high

    @property
    def qparams(self) -> QParams:
        """Return scale and zero point, the scale as float32."""
        return _qparams(self.scale, self.zero_point)

    @property
    def range(self) -> tuple[float, float]:
        """Return the smallest and the largest real number."""
        return (self.low - self.zero_point) * self.scale, (self.high - self.zero_point) * self.scale

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        """Return real numbers that are quantized and dequantized."""
        steps = (value / self.scale).round_()
        return steps.clamp_(self.low - self.zero_point, self.high - self.zero_point).mul_(self.scale)

    def dequantized(self, value: torch.Tensor) -> torch.Tensor:
        """Return integers as real numbers; real numbers unchanged."""
        if value.is_floating_point():
            return value
        scale, zero_point = self.qparams.scale[0], self.zero_point
        return (value.to(torch.float32) - zero_point) * scale


def common_edge(edges: Iterable[Edge | None]) -> Edge | None:
    """Return the qparams that all have; None if they differ, or if one has none."""
    found = set(edges)
    return found.pop() if len(found) == 1 else None


class ProgramView:
    """A program's graph with the constants that it reads.

    Args:
        weights: values, by name in the state dictionary, for parameters and buffers of which the program has only
            shapes.
    """

    def __init__(
        self, program: ExportedProgram | GraphModule, weights: Mapping[str, torch.Tensor] = MappingProxyType({})
    ) -> None:
        self.program = program
        self._weights = weights
        self.graph = program.graph
        self._constants: dict[Node, torch.Tensor] = {}
        self._edges: dict[Node, Edge | None] = {}
        self.inputs: list[Node] = []
        self._keeps_order = isinstance(program, ExportedProgram)
        if isinstance(program, ExportedProgram):
            self._read_exported(program)
        else:
            self._read_module(program)

    def _read_exported(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        changed = set(signature.buffers_to_mutate.values())
        state = {**program.state_dict, **self._weights}
        for node in self.graph.find_nodes(op="placeholder"):
            name = node.name
            if name in signature.inputs_to_parameters:
                self._constants[node] = state[signature.inputs_to_parameters[name]]
            elif signature.inputs_to_buffers.get(name) in changed:
                self.inputs.append(node)  # a state, which has another value in every call
            elif name in signature.inputs_to_buffers:
                target = signature.inputs_to_buffers[name]
                table = program.constants if target in signature.non_persistent_buffers else state
                self._constants[node] = table[target]
            elif name in signature.inputs_to_lifted_tensor_constants:
                self._constants[node] = program.constants[signature.inputs_to_lifted_tensor_constants[name]]
            else:
                self.inputs.append(node)

    def _read_module(self, module: GraphModule) -> None:
        self.inputs += self.graph.find_nodes(op="placeholder")
        for node in self.graph.find_nodes(op="get_attr"):
            value = operator.attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                self._constants[node] = value

    def enters_channels_last(self, node: Node) -> bool:
        """Return True if a partition receives ``node`` in channels-last order; an edge program keeps its own order."""
        return _is_kept_channels_last(node) if self._keeps_order else enters_channels_last(node)

    def leaves_channels_last(self, node: Node) -> bool:
        """Return True if a partition returns its result ``node`` in channels-last order."""
        return _is_kept_channels_last(node) if self._keeps_order else leaves_channels_last(node)

    def constant(self, node: object) -> torch.Tensor | None:
        return self._constants.get(node) if isinstance(node, Node) else None

    def array(self, node: Node) -> Array:
        """Return the value of a constant node as NumPy array."""
        value = self._constants.get(node)
        if value is None:
            what = f"`{node.name}` is not a constant."
            raise ModelError(what, hint="a model with weights that forward does not compute")
        if isinstance(value, FakeTensor):
            # ExecuTorch shows a partitioner shapes instead of weights, so the values are not needed.
            return np.zeros(tuple(value.shape), _DTYPES[value.dtype].numpy)
        return np.asarray(value.detach().cpu().numpy())

    def edge(self, node: Node) -> Edge | None:
        """Return the parameters of a quantize or dequantize node; None if they are no constants, or of others.

        Scales are rounded to float32, so that those which differ less are equal.
        """
        if node not in self._edges:
            edge = Edge.of(node, self.constant)
            if edge is not None:
                edge = edge._replace(scale=edge.qparams.scale[0]) if edge.torch_dtype in _DTYPES else None
            self._edges[node] = edge
        return self._edges[node]

    def result_qparams(self, node: Node) -> Edge | None:
        """Return the parameters of a quantize node; None for others."""
        return self.edge(node) if is_quantize(node) else None

    def read_qparams(self, node: Node) -> Edge | None:
        """Return the parameters of a dequantize node; None for others."""
        return self.edge(node) if is_dequantize(node) else None

    def edge_after(self, node: Node) -> Edge | None:
        """Return the parameters with which all quantizes read a value; None without any, or with several."""
        return common_edge(map(self.edge, quantizes_of(node)))

    def channel_edge(self, node: Node) -> QParams | None:
        """Return the qparams of a per-channel dequantize node; None if they are computed, or for another node."""
        if not is_dequantize_channel(node):
            return None
        values = arguments(node)
        scales, zeros = self.constant(values["scales"]), self.constant(values["zero_points"])
        if scales is None:
            return None
        if isinstance(scales, FakeTensor):
            return QParams.per_channel([1.0] * scales.numel(), int(values["axis"]))
        zero_list = [0] * scales.numel() if zeros is None else [int(z) for z in zeros.reshape(-1).tolist()]
        return QParams.per_channel(scales.reshape(-1).tolist(), int(values["axis"]), zero_list)
