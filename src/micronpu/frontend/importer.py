"""Import of quantized ATen nodes as graph nodes.

The program consists of quantize, dequantize and float operators.  The graph has only integers: a value of the graph is
the tensor between a quantize and its dequantizes, and an operator maps integers to integers.

    x8 ── dq ── conv2d ── relu ── q ── y8         x8 ── conv2d{activation=relu} ── y8
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.frontend.checks import hint_for
from micronpu.frontend.facts import IN_FLOAT, KEEPS_INTEGERS, SETTING
from micronpu.frontend.graphs import Node, calls
from micronpu.frontend.program import (
    Edge,
    ProgramView,
    arguments,
    integers_behind,
    is_any_dequantize,
    is_float_cast,
    is_getitem,
    is_index,
    origin_of,
    overload_name,
    quantized_from,
    shifted_bytes,
    static_shape,
    value_of,
)
from micronpu.frontend.run import WrittenFunction, written_function
from micronpu.ir.graph import Graph, GraphBuilder, Origin, Tensor
from micronpu.ir.graph import Node as GraphNode
from micronpu.ir.op import Op
from micronpu.ir.registry import AtenImport
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import Activation
from micronpu.ops import ATEN_IMPORTS
from micronpu.ops.clamps import clamp_bounds
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, TRANSPOSES, Transpose, order_of
from micronpu.ops.quantization import Requantize
from micronpu.ops.tables.table import look_up


def known_import(node: Node) -> AtenImport | None:
    return ATEN_IMPORTS.get(overload_name(node))


def clamp_behind(node: Node) -> Node | None:
    """Return the clamp that is fused into ``node``: its only reader, without quantization between them, or None."""
    entry = known_import(node)
    if entry is None or not entry.fuses or len(node.users) != 1:
        return None
    (user,) = node.users
    following = known_import(user)
    return user if following is not None and following.is_activation else None


def fused_kind(node: Node) -> str:
    """Name of the fused-activation code of a clamp node, such as "relu6"."""
    kind = Activation.of_bounds(*clamp_bounds(NodeArguments(node)))
    if kind is None or not kind.can_fuse:
        raise UnsupportedError(
            f"`{node.name}` clamps the result of an operator to bounds that cannot be fused, with no quantization "
            "before it.",
            hint="quantize the result of the operator before the clamp",
        )
    return kind.name.lower()


def can_fuse(clamp: Node) -> bool:
    """Return True if a node is a clamp that can be fused into operators."""
    if (entry := known_import(clamp)) is None or not entry.is_activation:
        return False
    try:
        fused_kind(clamp)
    except UnsupportedError:
        return False
    return True


@dataclass(frozen=True)
class Body:
    """The operators that compute a float."""

    nodes: Sequence[Node]  # operator, fused clamp and unpacking, or the operators of a function, in execution order
    head: Node  # the operator, of a function the last one
    clamp: Node | None = None  # that is fused into the operator, or None
    function: WrittenFunction | None = None  # of one element, or None

    @classmethod
    def of(cls, view: ProgramView, result: Node) -> Body:
        is_unpacked = is_getitem(result) or is_float_cast(result)
        nodes, clamp = [result.all_input_nodes[0], result] if is_unpacked else [result], None
        previous = nodes[0].args[0] if nodes[0].args else None
        if isinstance(previous, Node) and clamp_behind(previous) is nodes[0]:
            clamp = nodes[0]
            nodes.insert(0, previous)
        is_apart = clamp is result and not can_fuse(clamp)
        written = written_function(view, result, result if is_apart else nodes[0])
        return cls(nodes, nodes[0], clamp) if written is None else cls(written.nodes, result, None, written)


def path_to_constant(view: ProgramView, source: object) -> list[Node]:
    """Return a float operand and the nodes behind it to the constant that dequantize and transposes make it of.

    The constant is the last one; without a constant the list is empty.
    """
    path = []
    while isinstance(source, Node):
        path.append(source)
        if view.constant(source) is not None:
            return path
        if not (is_any_dequantize(source) or overload_name(source) in TRANSPOSES):
            return []
        source = source.args[0]
    return []


def known_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of a result; raise `UnsupportedError` if a size is only known at run time."""
    if (shape := static_shape(node)) is None:
        what = f"The shape of `{node.name}` is only known at run time."
        raise UnsupportedError(what, hint="export the model with static shapes")
    return shape


class NodeArguments:
    """The plain arguments of an FX node; the part of `AtenNode` that needs no quantization."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._arguments: dict[str, Any] | None = None

    @property
    def overload(self) -> str:
        return overload_name(self.node)

    @property
    def arguments(self) -> dict[str, Any]:
        if self._arguments is None:
            self._arguments = arguments(self.node)
        return self._arguments

    def value(self, argument: str) -> Any:
        given = self.arguments.get(argument)
        if isinstance(given, Node):
            raise UnsupportedError(f"`{argument}` of {self.overload} is computed at run time.")
        return list(given) if isinstance(given, (list, tuple)) else given


class QuantizedNode(NodeArguments):
    """An FX node whose tensors are quantized, as seen by importers (`micronpu.ir.aten.AtenNode`)."""

    def __init__(
        self, importer: Importer, node: Node, entry: AtenImport | None, output: Edge, clamp: Node | None = None
    ) -> None:
        super().__init__(node)
        self._importer = importer
        self._names = dict(entry.arguments) if entry is not None else {}
        self._output = output
        self._clamp = clamp
        self.origin = origin_of(node).joined(origin_of(clamp)) if clamp is not None else origin_of(node)

    @property
    def shape(self) -> tuple[int, ...]:
        return known_shape(self.node)

    @property
    def output(self) -> QParams:
        return self._output.qparams

    @property
    def output_dtype(self) -> DType:
        return self._output.dtype

    @property
    def activation(self) -> str:
        if self._clamp is None:
            return ""
        kind = fused_kind(self._clamp)
        return "" if kind == "none" else kind

    @property
    def keeps_integers(self) -> bool:
        return KEEPS_INTEGERS.of(self.node)

    def _given(self, operand: str) -> Any:
        return self.arguments.get(self._names.get(operand, operand))

    def tensor(self, operand: str) -> Tensor:
        return self.activation_of(self._given(operand))

    def tensors(self, operand: str) -> list[Tensor]:
        return [self.activation_of(n) for n in self._given(operand)]

    def activation_of(self, source: object) -> Tensor:
        """Return an operand. All operands and the result have the same dtype."""
        tensor = self._importer.activation(source, self.node)
        if tensor.type.dtype is not self._output.dtype:
            raise UnsupportedError(
                f"`{self.node.name}` makes {self._output.dtype.value} of {tensor.type.dtype.value}.",
                hint="quantize its operands and its result alike; the quantizer of the target does",
            )
        return tensor

    def integers(self, operand: str) -> Tensor:
        return self._importer.integers(self._given(operand), self.node)

    def has(self, operand: str) -> bool:
        return self._given(operand) is not None

    def is_quantized(self, operand: str) -> bool:
        given = self._given(operand)
        return integers_behind(given) is not given

    def is_constant(self, operand: str) -> bool:
        return bool(path_to_constant(self._importer.view, self._given(operand)))

    def weight(self, operand: str) -> tuple[Array, QParams]:
        return self._importer.weight(self._given(operand), self.node)

    def float_constant(self, operand: str) -> Array:
        return self._importer.float_constant(self._given(operand), self.node)

    def emit(self, op: Op, *inputs: Tensor, qparams: QParams | None = None) -> Tensor:
        return self._importer.builder.emit(op, *inputs, qparams=qparams, origin=self.origin)

    def constant(self, data: npt.ArrayLike, type: TensorType) -> Tensor:
        return self._importer.builder.constant(data, type)


class Importer:
    """Builds one graph from nodes of a program."""

    def __init__(self, view: ProgramView) -> None:
        self.view = view
        self.builder = GraphBuilder(Graph())
        self.values: dict[Node, Tensor] = {}

    # -- interface for importers of operators

    def activation(self, source: object, reader: Node) -> Tensor:
        """Return the integer tensor of a float operand."""
        if not isinstance(source, Node):
            raise UnsupportedError(
                f"`{reader.name}` takes the number {source!r} where a quantized tensor is expected.",
                hint="quantize the model with the quantizer of the target, which turns numbers into constants",
            )
        if (integers := integers_behind(source)) is source:
            dtype = getattr(value_of(source), "dtype", torch.float32)
            if not dtype.is_floating_point:
                raise UnsupportedError(
                    f"The operand `{source.name}` of `{reader.name}` is {str(dtype).removeprefix('torch.')}, and only "
                    "floats are quantized.",
                    hint="leave it to the host, or compute with real numbers in float32",
                )
            if IN_FLOAT.of(reader):
                what = f"`{reader.name}` scales features of `{source.name}` that are too unlike for one scale of int8."
                raise UnsupportedError(what)
            if IN_FLOAT.of(source) or SETTING.of(source) == (None,):
                raise UnsupportedError(f"The operand `{source.name}` of `{reader.name}` stays in float.")
            raise UnsupportedError(
                f"The operand `{source.name}` of `{reader.name}` is not quantized: no dequantize stands between.",
                hint="quantize the model, or check why the quantizer left this operator in float",
            )
        edge = self._edge(source, shifts=shifted_bytes(reader) is not None)
        if integers in self.values:
            return self.values[integers]
        constant = self.view.constant(integers)
        shape = known_shape(source) if constant is None else tuple(constant.shape)
        type = TensorType(shape, edge.dtype, edge.qparams)
        if constant is not None:
            self.values[integers] = self.builder.constant(self.view.array(integers), type)
        else:
            self.values[integers] = self.builder.input(type)
        return self.values[integers]

    def integers(self, source: object, reader: Node) -> Tensor:
        """Return an int32 operand that is no activation; a list with one element means that element."""
        if isinstance(source, (list, tuple)) and len(source) == 1:
            (source,) = source
        if not isinstance(source, Node) or not is_index(source):
            raise UnsupportedError(f"`{reader.name}` takes indices that are not int32.", hint="indices.int()")
        if source not in self.values:
            type, is_known = TensorType(known_shape(source), DType.INT32), self.view.constant(source) is not None
            self.values[source] = (
                self.builder.constant(self.view.array(source), type) if is_known else self.builder.input(type)
            )
        return self.values[source]

    def weight(self, source: object, reader: Node) -> tuple[Array, QParams]:
        """Return the int8 constant of an operand; transposes between them are applied."""
        if not (path := path_to_constant(self.view, source)):
            what = f"The weights of `{reader.name}` are computed at run time."
            raise UnsupportedError(what, hint="only constant weights can be compiled")
        *transposes, dequantize, constant = path if len(path) > 1 else path * 2
        if not is_any_dequantize(dequantize):
            what = f"The weights of `{reader.name}` are not quantized."
            raise UnsupportedError(what, hint="quantize the model with the quantizer of the target")
        data, qparams = self.view.array(constant), self._constant_qparams(dequantize)
        if data.dtype != np.int8:
            raise UnsupportedError(f"The weights of `{reader.name}` are {data.dtype}, not int8.")
        for transpose in reversed(transposes):
            order = order_of(arguments(transpose), data.ndim)
            axis = None if qparams.axis is None else order.index(qparams.axis)
            data, qparams = data.transpose(order), QParams(qparams.scale, qparams.zero_point, axis)
        return data, qparams

    def float_constant(self, source: object, reader: Node) -> Array:
        """Return a constant operand: float32, or float64 for int32 numbers, which float32 would round."""
        path = path_to_constant(self.view, source)[:2]
        if len(path) == 1:
            return self.view.array(path[0]).astype(np.float32)
        if not path or not is_any_dequantize(path[0]) or self.view.constant(path[1]) is None:
            raise UnsupportedError(f"A constant operand of `{reader.name}` is computed at run time.")
        dequantize, integers = path[0], self.view.array(path[1])
        qparams, data = self._constant_qparams(dequantize), integers.astype(np.float64)
        shape = [1] * data.ndim
        if qparams.axis is not None:
            shape[qparams.axis] = -1
        scale, zero = np.array(qparams.scale).reshape(shape), np.array(qparams.zero_point).reshape(shape)
        if integers.dtype == np.int32:  # parameters are kept as float32, with 24 bits
            given = arguments(dequantize)
            scale = self.view.array(given["scales"]).reshape(shape) if "scales" in given else given["scale"]
            return np.asarray((data - zero) * np.asarray(scale, np.float64))
        return np.asarray((data - zero) * scale, np.float32)

    # -- the walk

    def add(self, node: Node) -> None:
        """Import a node; fused operators and unpackings need no import."""
        if (source := quantized_from(node)) is node:
            return
        edge = self._edge(node, shifts=shifted_bytes(node) is not None)
        if integers_behind(source) is not source:
            self.values[node] = self._with_qparams(self.activation(source, node), edge, node)
        else:
            self.values[node] = self._compute(source, edge, node)

    def _with_qparams(self, x: Tensor, edge: Edge, node: Node) -> Tensor:
        if x.type.qparams == edge.qparams and x.type.dtype is edge.dtype:
            return x
        return self.builder.emit(Requantize(edge.dtype), x, qparams=edge.qparams, origin=origin_of(node))

    def _compute(self, source: Node, edge: Edge, reader: Node) -> Tensor:
        if source in self.values:  # quantized again, with other parameters
            return self._with_qparams(self.values[source], edge, reader)
        if is_getitem(source) and source.args[1] != 0:
            raise UnsupportedError(f"`{source.name}` reads a second result, which is not imported.")
        body = Body.of(self.view, source)
        if (written := body.function) is not None:
            given = QuantizedNode(self, source, None, edge)
            given.origin = functools.reduce(Origin.joined, map(origin_of, body.nodes))
            y = look_up(given, given.activation_of(written.reads[0]), written.function, edge.qparams)
        else:
            entry = import_of(body.head)
            y = entry.build(QuantizedNode(self, body.head, entry, edge, body.clamp))
        self.values[source] = y = self._with_qparams(y, edge, reader)
        return y

    def _constant_qparams(self, dequantize: Node) -> QParams:
        """Return the qparams of a constant, whose integers may use any part of their range: weights use [-127, 127]."""
        edge = self.view.edge(dequantize)
        qparams = edge.qparams if edge is not None else self.view.channel_edge(dequantize)
        if qparams is None:
            raise UnsupportedError(f"The quantization parameters of `{dequantize.name}` are computed at run time.")
        return qparams

    def _edge(self, node: Node, *, shifts: bool = False) -> Edge:
        """Return the parameters of a quantize or dequantize node."""
        edge = self.view.edge(node)
        if edge is None:
            raise UnsupportedError(f"The quantization parameters of `{node.name}` are computed at run time.")
        if edge.dtype is DType.UINT8 and shifts:
            return edge
        if edge.dtype not in (DType.INT8, DType.INT16) or edge.limits != edge.dtype.limits:
            raise UnsupportedError(
                f"`{node.name}` quantizes to {edge.dtype.value} in {list(edge.limits)}; activations are int8 in "
                "[-128, 127] or int16 in [-32768, 32767]."
            )
        if edge.dtype is DType.INT16 and edge.zero_point:
            what = f"`{node.name}` quantizes to int16 with zero point {edge.zero_point}; int16 is symmetric."
            raise UnsupportedError(what, hint="quantize int16 activations with zero point 0")
        return edge


def import_of(node: Node) -> AtenImport:
    """Return the import of a compute node; raise `UnsupportedError` if there is none."""
    entry = known_import(node)
    if entry is None:
        name = overload_name(node)
        raise UnsupportedError(f"No operator of micronpu imports {name or node.target}.", hint=hint_for(name))
    return entry


@dataclass(frozen=True)
class GraphPiece:
    """A graph of some nodes of a program, imported separately; `assemble` joins several."""

    nodes: tuple[GraphNode, ...]  # in execution order
    # The tensor of each integer node of the program that the piece reads or computes, operands first.
    values: Mapping[Node, Tensor]


def import_piece(view: ProgramView, nodes: Iterable[Node]) -> GraphPiece:
    """Import nodes of a program as a graph from integers to integers.

    Args:
        nodes: in execution order; a quantize represents the operator before it.
    """
    importer = Importer(view)
    for node in nodes:
        importer.add(node)
    return GraphPiece(tuple(importer.builder.graph.nodes), importer.values)


Instead = Mapping[GraphNode, Sequence[GraphNode]]
"""Nodes that replace a node of a piece."""


@dataclass
class _Joined:
    """Pieces that share the tensors of the program's nodes."""

    values: dict[Node, Tensor]  # the tensor of a node; at first only those of the inputs
    moved: dict[Tensor, Tensor] = field(default_factory=dict)  # the new tensor by that of a piece
    originals: dict[GraphNode, GraphNode] = field(default_factory=dict)  # the original node by its copy

    def copied(self, node: GraphNode) -> GraphNode:
        return GraphNode(node.op, [self.moved.get(t, t) for t in node.inputs], list(node.outputs), node.origin)

    def add(self, piece: GraphPiece) -> None:
        made = {t for n in piece.nodes for t in n.outputs}
        for node, tensor in piece.values.items():
            known = self.values.setdefault(node, self.moved.get(tensor, tensor))
            if known.type != tensor.type:
                raise UnsupportedError(
                    f"`{node.name}` is made as {known.type} and read as {tensor.type}.",
                    hint="a dequantize with the scale and the zero point of the quantize before it",
                )
            if known is tensor and tensor not in made and not tensor.is_constant:
                raise InternalError(f"The group reads `{node.name}` from outside, which is not among its inputs.")
            self.moved.setdefault(tensor, known)
        self.originals |= {self.copied(node): node for node in piece.nodes}


def _type_of(node: Node, pieces: Sequence[GraphPiece]) -> TensorType:
    type = next((p.values[node].type for p in pieces if node in p.values), None)
    if type is None:
        raise InternalError(f"No operator of the group dequantizes its input `{node.name}`.")
    return type


def assemble(
    view: ProgramView,
    pieces: Sequence[GraphPiece],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    images: Collection[Node] = (),
    instead: Instead | None = None,
) -> Graph:
    """Join pieces into one graph; the pieces are not changed.

    Args:
        inputs: integer nodes that the pieces read, in the order of the graph's inputs.
        outputs: quantize nodes of the pieces whose integers are read outside.
        images: integer nodes that are passed as [N, H, W, C].

    Returns:
        The graph.  Inputs and outputs that the program keeps channels-last in memory have that shape, so that the bytes
        of the program are the bytes of the graph.

    Raises:
        UnsupportedError: a value is read with other parameters than it was made with.
    """
    builder = GraphBuilder()
    joined = _Joined({})
    for node in inputs:
        as_image = node in images or view.enters_channels_last(node)
        joined.values[node] = _input(builder, _type_of(node, pieces), as_image)
    for piece in pieces:
        joined.add(piece)
    values, copied, originals = joined.values, joined.copied, joined.originals
    missing = [n.name for n in outputs if n not in values]
    if missing:
        raise InternalError(f"The group does not compute its outputs {missing}.")
    entering, builder.graph.nodes = builder.graph.nodes, []

    def result(n: Node) -> Tensor:
        if n not in images and not view.leaves_channels_last(n):
            return values[n]
        return builder.emit(Transpose(TO_CHANNELS_LAST), values[n], origin=origin_of(n))

    results = [result(n) for n in outputs]
    graph = builder.finish(*results)
    graph.nodes = [*entering, *originals, *graph.nodes]
    taken, left = ([n not in images for n in side] for side in (inputs, outputs))
    graph.channels_last_inputs = {i for i, n in enumerate(inputs) if taken[i] and view.enters_channels_last(n)}
    graph.channels_last_outputs = {i for i, n in enumerate(outputs) if left[i] and view.leaves_channels_last(n)}
    graph.nodes = [
        made
        for node in _in_order_of_need(graph)
        for made in (map(copied, instead[originals[node]]) if instead and originals.get(node) in instead else (node,))
    ]
    return graph.clone()


def import_nodes(
    view: ProgramView,
    nodes: Iterable[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    images: Collection[Node] = (),
) -> Graph:
    """One graph for nodes of a program; see `import_piece` and `assemble`."""
    return assemble(view, [import_piece(view, nodes)], inputs, outputs, images)


def _in_order_of_need(graph: Graph) -> list[GraphNode]:
    """Return the nodes in the order in which the outputs need them."""
    # ExecuTorch sorts a program again whenever it cuts out a partition; this order makes equal partitions have equal
    # bytes.
    producer = graph.producers()
    order: dict[GraphNode, None] = {}
    waiting = [producer[t] for t in reversed(graph.outputs) if t in producer]
    while waiting:
        needed = [producer[t] for t in waiting[-1].inputs if t in producer and producer[t] not in order]
        if needed:
            waiting += reversed(needed)
        else:
            order[waiting.pop()] = None
    return list(order)


def _input(builder: GraphBuilder, type: TensorType, channels_last: bool) -> Tensor:
    """Add a graph input in the order of the program's axes, as importers of operators expect it."""
    if not channels_last:
        return builder.input(type)
    physical = builder.input(type.with_shape([type.shape[i] for i in TO_CHANNELS_LAST]))
    return builder.emit(Transpose(TO_CHANNELS_FIRST), physical)


def import_program(view: ProgramView) -> Graph:
    """Return the graph of a whole program with integer inputs and outputs, as a delegate receives it."""
    output: Any = view.graph.output_node()
    results = [n for n in output.args[0] if isinstance(n, Node)]
    return import_nodes(view, calls(view), list(view.inputs), results)
