"""The graph that every stage between import and emission works on, and its invariants at each stage.

A `Graph` is a list of `Node` in execution order over `Tensor` values. A node applies one operator of `micronpu.ops` to
tensors and records its `Origin`, the model's source that it implements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError
from micronpu.ir.op import Op, OutputQuantization
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.window import litert_padding

Kind = TypeVar("Kind", bound=Op)


@dataclass(frozen=True)
class Origin:
    """Source of a node in the user's model, for reports, whose schema describes the fields as here.

    Attributes:
        nodes: names of the nodes of the exported program, several when operators were fused.
        source: ``file:line`` of the user's model, or "".
        module: path of the submodule, such as ``block1.conv``, or "".
        debug_handles: ExecuTorch's handles of these nodes, for the delegate's debug map.
        passes: names of the passes that made or changed the node, oldest first.
    """

    nodes: tuple[str, ...] = ()
    source: str = ""
    module: str = ""
    debug_handles: tuple[int, ...] = ()
    passes: tuple[str, ...] = ()

    @property
    def at(self) -> str:
        """The source in parentheses behind a space; "" if it is unknown."""
        return f" ({self.source})" if self.source else ""

    def through(self, pass_name: str) -> Origin:
        """Return this origin with ``pass_name`` added."""
        return self if self.passes[-1:] == (pass_name,) else replace(self, passes=(*self.passes, pass_name))

    def joined(self, other: Origin) -> Origin:
        """Return the origin of a node that replaces both."""
        return Origin(
            nodes=tuple(dict.fromkeys((*self.nodes, *other.nodes))),
            source=self.source or other.source,
            module=self.module or other.module,
            debug_handles=tuple(dict.fromkeys((*self.debug_handles, *other.debug_handles))),
            passes=tuple(dict.fromkeys((*self.passes, *other.passes))),
        )


@dataclass(eq=False)
class Tensor:
    """A value: a graph input, the result of a node, or a constant that holds its data.

    Tensors are compared by identity.  ``data`` of a constant has exactly ``type.shape`` and ``type.dtype``.
    """

    name: str
    type: TensorType
    data: Array | None = None

    def __post_init__(self) -> None:
        if self.data is not None and (self.data.shape != self.type.shape or self.data.dtype != self.type.dtype.numpy):
            raise InternalError(
                f"Constant {self.name} holds {self.data.dtype}{list(self.data.shape)} but is declared {self.type}."
            )

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(eq=False)
class Node:
    """One operator applied to tensors."""

    op: Op
    inputs: list[Tensor]
    outputs: list[Tensor]
    origin: Origin = field(default_factory=Origin)

    @classmethod
    def of(cls, op: Op, inputs: list[Tensor], origin: Origin, qparams: QParams | None = None, name: str = "") -> Node:
        """Return a node with a result of the inferred type.

        Args:
            qparams: quantization of the result where the operator does not dictate it.
            name: of the result; without one, the operator's.
        """
        type = op.infer(*(t.type for t in inputs))
        if type.qparams is None:
            type = type.with_qparams(qparams)
        return cls(op, inputs, [Tensor(name or op.name, type)], origin)

    @property
    def output(self) -> Tensor:
        """The result of an operator that has exactly one."""
        (only,) = self.outputs
        return only

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(t.type for t in self.inputs)

    def __str__(self) -> str:
        results = ", ".join(map(str, self.outputs))
        operands = ", ".join(map(str, self.inputs))
        return f"{results} = {self.op}({operands})"


@dataclass(eq=False)
class Graph:
    """Nodes in execution order; every input of a node is a graph input, a constant, or an earlier result.

    Attributes:
        channels_last_inputs: positions of inputs that are [N, H, W, C] here and [N, C, H, W] in the program.
        channels_last_outputs: the same for outputs.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    channels_last_inputs: set[int] = field(default_factory=set)
    channels_last_outputs: set[int] = field(default_factory=set)

    def producers(self) -> dict[Tensor, Node]:
        return {output: node for node in self.nodes for output in node.outputs}

    def users(self) -> dict[Tensor, list[Node]]:
        """Map every tensor to the nodes that read it; a node occurs once per operand."""
        readers: dict[Tensor, list[Node]] = {}
        for node in self.nodes:
            for tensor in node.inputs:
                readers.setdefault(tensor, []).append(node)
        return readers

    def first_operator(self) -> str:
        """Name of the first operator of the program in the graph, as part of a file name."""
        origins = [name for node in self.nodes for name in node.origin.nodes]
        return re.sub(r"[^A-Za-z0-9_.-]", "_", origins[0]) if origins else "partition"

    def constants(self) -> list[Tensor]:
        """Constants in the order in which they are first read."""
        found = dict.fromkeys(t for node in self.nodes for t in node.inputs if t.is_constant)
        found.update(dict.fromkeys(t for t in self.outputs if t.is_constant))
        return list(found)

    def replace_uses(self, old: Tensor, new: Tensor) -> None:
        """Replace ``old`` by ``new`` in every reader, including the graph's outputs."""
        for node in self.nodes:
            if old in node.inputs:
                node.inputs = [new if t is old else t for t in node.inputs]
        self.outputs = [new if t is old else t for t in self.outputs]

    def remove_dead(self) -> bool:
        """Remove nodes whose results are unused. Return True if any was removed."""
        live: set[Tensor] = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if any(t in live for t in node.outputs):
                live.update(node.inputs)
                kept.append(node)
        changed = len(kept) != len(self.nodes)
        self.nodes = kept[::-1]
        return changed

    def of(self, *kinds: type[Kind]) -> list[tuple[Node, Kind]]:
        """Return the nodes with an operator of these classes, and the operators."""
        return [(node, node.op) for node in self.nodes if isinstance(node.op, kinds)]

    def rename(self) -> None:
        """Name tensors by the graph's structure alone, so that equal graphs serialize to equal bytes."""
        for index, tensor in enumerate(self.inputs):
            tensor.name = f"input_{index}"
        counts: dict[str, int] = {}
        for node in self.nodes:
            base = node.op.name
            number = counts.get(base, 0)
            counts[base] = number + 1
            roles = node.op.operand_names
            for position, tensor in enumerate(node.inputs):
                if tensor.is_constant:
                    role = roles[position] if position < len(roles) else str(position)
                    tensor.name = f"{base}_{number}.{role}"
            for position, tensor in enumerate(node.outputs):
                tensor.name = f"{base}_{number}" if len(node.outputs) == 1 else f"{base}_{number}:{position}"

    def clone(self) -> Graph:
        """Copy nodes and tensors; constants share their data."""
        copies: dict[Tensor, Tensor] = {}

        def copy(tensor: Tensor) -> Tensor:
            if tensor not in copies:
                copies[tensor] = Tensor(tensor.name, tensor.type, tensor.data)
            return copies[tensor]

        return Graph(
            [copy(t) for t in self.inputs],
            [copy(t) for t in self.outputs],
            [Node(n.op, [copy(t) for t in n.inputs], [copy(t) for t in n.outputs], n.origin) for n in self.nodes],
            set(self.channels_last_inputs),
            set(self.channels_last_outputs),
        )

    def __str__(self) -> str:
        """Return the graph with types, constants by shape only, and the source of each node as a comment."""
        names = names_of(self)

        def operand(tensor: Tensor) -> str:
            return declared(tensor) if tensor.is_constant else f"%{names[tensor]}"

        def declared(tensor: Tensor) -> str:
            return f"%{names[tensor]}: {tensor.type}"

        lines = [f"graph({', '.join(map(declared, self.inputs))}) {{"]
        for node in self.nodes:
            operands = ", ".join(map(operand, node.inputs))
            results = ", ".join(map(declared, node.outputs))
            where = node.origin.source or ", ".join(node.origin.nodes)
            lines.append(f"  {results} = {node.op}({operands})" + (f"  # {where}" if where else ""))
        lines.append(f"  return {', '.join(map(operand, self.outputs))}".rstrip())
        return "\n".join([*lines, "}"])


def names_of(graph: Graph) -> dict[Tensor, str]:
    """Unique name of every tensor in the printed text: its own, with a number if an earlier tensor has the same."""
    names: dict[Tensor, str] = {}
    taken: set[str] = set()
    for tensor in _tensors(graph):
        if tensor in names:
            continue
        name, number = tensor.name, 2
        while name in taken:
            name, number = f"{tensor.name}~{number}", number + 1
        names[tensor] = name
        taken.add(name)
    return names


def _tensors(graph: Graph) -> Iterator[Tensor]:
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.inputs
        yield from node.outputs
    yield from graph.outputs


class GraphBuilder:
    """Appends nodes to a graph, inferring the type of each result."""

    def __init__(self, graph: Graph | None = None, origin: Origin | None = None) -> None:
        self.graph = graph if graph is not None else Graph()
        self.origin = origin or Origin()
        self._count = 0

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"

    def input(self, type: TensorType, name: str = "") -> Tensor:
        tensor = Tensor(name or self._fresh("input"), type)
        self.graph.inputs.append(tensor)
        return tensor

    def constant(self, data: npt.ArrayLike, type: TensorType, name: str = "") -> Tensor:
        array = np.array(data, dtype=type.dtype.numpy).reshape(type.shape)
        return Tensor(name or self._fresh("constant"), type, array)

    def emit(self, op: Op, *inputs: Tensor, qparams: Any = None, origin: Origin | None = None) -> Tensor:
        """Appends ``op`` and returns its result.

        Args:
            inputs: operands in the order of ``op.operand_names``.
            qparams: quantization of the result where the operator does not dictate it.
        """
        node = Node.of(op, list(inputs), origin or self.origin, qparams, self._fresh(op.name))
        self.graph.nodes.append(node)
        return node.output

    def finish(self, *outputs: Tensor) -> Graph:
        self.graph.outputs = list(outputs)
        return self.graph


class Stage(Enum):
    """Stages of a graph, in order; each allows less than the previous one."""

    IMPORTED = "imported"
    LITERT = "litert"


def verify(graph: Graph, stage: Stage = Stage.IMPORTED) -> None:
    """Raise `InternalError` with the offending node if the graph is not legal at ``stage``.

    Every stage: nodes are in execution order, each tensor has one producer, results have the type that the operator
    infers, activations are quantized per tensor, and tensors that must share parameters do.
    LITERT: paddings are expressible in LiteRT, no node is unused, and no tensor is output twice.
    """
    defined: set[Tensor] = set()
    for tensor in graph.inputs:
        if tensor.is_constant:
            raise InternalError(f"Graph input {tensor.name} is a constant.")
        if tensor in defined:
            raise InternalError(f"{tensor.name} is an input of the graph twice.")
        defined.add(tensor)
    for node in graph.nodes:
        for tensor in node.inputs:
            if not tensor.is_constant and tensor not in defined:
                raise InternalError(f"`{node}` reads {tensor} before it is computed.")
        _verify_types(node)
        for tensor in node.outputs:
            if tensor in defined:
                raise InternalError(f"`{node}` computes {tensor}, which exists already.")
            defined.add(tensor)
    for tensor in graph.outputs:
        if not tensor.is_constant and tensor not in defined:
            raise InternalError(f"Graph output {tensor} is never computed.")
    if stage is Stage.LITERT:
        _verify_litert(graph)


def _verify_types(node: Node) -> None:
    expected = node.op.infer(*node.input_types)
    result = node.output.type
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        raise InternalError(f"`{node}` makes {expected}, but its result is declared {result}.")
    if expected.qparams is not None and expected.qparams != result.qparams:
        raise InternalError(f"`{node}` dictates {expected.qparams}, but its result is declared {result.qparams}.")
    if result.dtype in (DType.INT8, DType.INT16) and (result.qparams is None or not result.qparams.is_per_tensor):
        raise InternalError(f"`{node}` has a result without parameters per tensor: {result}.")
    rule = node.op.quantization
    if rule.output is OutputQuantization.SHARED and rule.activations == ("tensors",):
        different = [t.type for t in node.inputs if t.type.qparams != result.qparams]
        if different:
            raise InternalError(f"`{node}` joins {different[0]} into {result}, which has other qparams.")


def _verify_litert(graph: Graph) -> None:
    read, own = graph.users().keys() | set(graph.outputs), set(graph.producers())
    for tensor in graph.outputs:
        if tensor not in own:
            raise InternalError(f"Graph output {tensor} is an input, a constant, or an output twice.")
        own.remove(tensor)
    for node in graph.nodes:
        if not any(t in read for t in node.outputs):
            raise InternalError(f"No operator reads the result of `{node}`.")
        padding = getattr(node.op, "padding", None)
        if padding is None:
            continue
        kernel = node.op.kernel(node.inputs[1].type) if len(node.inputs) > 1 else node.op.kernel  # type: ignore[attr-defined]
        dilation = getattr(node.op, "dilation", (1, 1))
        stride = node.op.stride  # type: ignore[attr-defined]
        if litert_padding(node.inputs[0].shape[1:3], kernel, stride, padding, dilation) is None:
            raise InternalError(f"`{node}` has a padding that LiteRT cannot express.")
