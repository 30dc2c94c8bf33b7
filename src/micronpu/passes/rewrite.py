"""Rewrites of one operator: base classes, a builder of chains, and the search for the cheapest supported chain."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar, cast, get_args, get_origin

import numpy as np
import numpy.typing as npt

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Op
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.movement import Pad, Reshape
from micronpu.ops.slicing import Concat, Slice
from micronpu.ops.tiling import ReflectPad


class Rewrite(ABC):
    """Replaces one node by several; its docstring shows both and states the cost.

    Attributes:
        name: by which users disable it.
        max_steps: maximum change of a result in LSB; 0 for an exact rewrite, None if it depends on the values, as
            stated in the docstring.
    """

    name: ClassVar[str]
    max_steps: ClassVar[int | None] = 0

    @abstractmethod
    def apply(self, node: Node) -> list[Node] | None:
        """Return nodes that compute the node's result, or None if the rewrite does not apply."""

    def offers(self, node: Node, before: Node | None = None) -> Iterator[list[Node]]:
        """Yield every replacement of the node, for a rewrite with several.

        Args:
            before: a transpose that only this node reads; a replacement may read the transpose's operand instead.
        """
        nodes = self.apply(node)
        if nodes:
            yield nodes


Kind = TypeVar("Kind", bound=Op)


class RewriteOf(Rewrite, Generic[Kind]):
    """A rewrite of the operators that its type argument names, such as `RewriteOf[Conv2d | DepthwiseConv2d]`."""

    _operators: ClassVar[tuple[type[Op], ...]]

    def __init_subclass__(cls) -> None:
        (kind,) = (get_args(base)[0] for base in vars(cls)["__orig_bases__"] if get_origin(base) is RewriteOf)
        cls._operators = get_args(kind) or (kind,)

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, self._operators):
            return None
        return self.replaced(node, cast(Kind, node.op), Chain(self.name, node))

    @abstractmethod
    def replaced(self, node: Node, op: Kind, chain: Chain) -> list[Node] | None:
        """See `apply`; the operator is the node's, and the chain is empty."""


class Chain:
    """A sequence of nodes, each marked as made by the rewrite."""

    def __init__(self, name: str, node: Node) -> None:
        self.nodes: list[Node] = []
        self._origin = node.origin.through(name)

    def add(self, op: Op, *inputs: Tensor, qparams: QParams | None = None) -> Tensor:
        self.nodes.append(Node.of(op, list(inputs), self._origin, qparams))
        return self.nodes[-1].output

    def constant(self, data: npt.NDArray[np.generic], type: TensorType) -> Tensor:
        return Tensor("constant", type, np.ascontiguousarray(data.astype(type.dtype.numpy).reshape(type.shape)))

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        """x with another shape; x itself if it has that shape."""
        if x.shape == shape:
            return x
        if x.data is not None:
            return Tensor(x.name, x.type.with_shape(shape), x.data.reshape(shape))
        return self.add(Reshape(shape), x)

    def widened(self, x: Tensor, lanes: int) -> Tensor:
        """x with its last axis padded to a multiple of ``lanes`` with its lowest value."""
        missing = -x.type.channels % lanes
        return self.padded(x, x.type.rank - 1, 0, missing, -math.inf) if missing else x

    def padded(self, x: Tensor, axis: int, before: int, after: int, value: float = 0.0) -> Tensor:
        """Pad x along one axis.

        For chips that pad only height and width, x is reshaped to an image of one channel, whose width is the axis and
        all axes after it.
        """
        outer, size, inner = block(x.shape, axis)
        shape = (*x.shape[:axis], before + size + after, *x.shape[axis + 1 :])
        if x.data is not None:
            widths = [(before, after) if i == axis else (0, 0) for i in range(len(x.shape))]
            filling = Pad((0,), (0,), value).integer(x.type)
            return Tensor(x.name, x.type.with_shape(shape), np.pad(x.data, widths, constant_values=filling))
        picture = self.reshape(x, 1, 1, outer, size * inner)
        pad = Pad((0, 0, 0, before * inner), (0, 0, 0, after * inner), value)
        return self.reshape(self.add(pad, picture), *shape)

    def cut(self, x: Tensor, axis: int, begin: int, size: int) -> Tensor:
        """Some elements of an axis; x itself if they are all of them."""
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        begins = tuple(begin if i == axis else 0 for i in range(len(shape)))
        return x if shape == x.shape else self.add(Slice(begins, shape), x)

    def finish(self, op: Op, x: Tensor, result: Tensor) -> list[Node]:
        """Append the last operator, which computes the tensor that the replaced node computed."""
        self.nodes.append(Node(op, [x], [result], self._origin))
        return self.nodes

    def result(self, y: Tensor, result: Tensor) -> list[Node]:
        """Return the nodes; the last one, which computes y, computes the replaced node's tensor instead."""
        if y.shape != result.shape or not self.nodes or self.nodes[-1].output is not y:
            return self.finish(Reshape(result.shape), y, result)
        self.nodes[-1].outputs = [result]
        return self.nodes


class ReflectBySlices(RewriteOf[ReflectPad]):
    """A mirrored border as slices of single rows, joined.  Exact.

    x[1,8,5,8] -> reflect_pad(h 2/1) -> y        x -> slice 2, slice 1, x, slice 3 -> concat -> y

    Args:
        most: rows of the border; wider ones stay.
    """

    name = "reflect_by_slices"

    def __init__(self, most: float = math.inf) -> None:
        self._most = most

    def replaced(self, node: Node, op: ReflectPad, chain: Chain) -> list[Node] | None:
        x = node.inputs[0]
        if sum(op.before) + sum(op.after) > self._most:
            return None
        for axis, (before, after) in enumerate(zip(op.before, op.after, strict=True)):
            size = x.shape[axis]
            left = [chain.cut(x, axis, i, 1) for i in range(before, 0, -1)]
            right = [chain.cut(x, axis, size - 2 - i, 1) for i in range(after)]
            if left or right:
                x = chain.add(Concat(axis), *left, x, *right)
        return chain.result(x, node.output)


def block(shape: tuple[int, ...], first: int, last: int | None = None) -> tuple[int, int, int]:
    """Number of elements before, along, and after the axes from ``first`` to ``last``."""
    last = first if last is None else last
    return math.prod(shape[:first]), math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :])


def run(axes: tuple[int, ...]) -> tuple[int, int] | None:
    """First and last of consecutive axes, or None if they are not consecutive."""
    if not axes or tuple(axes) != tuple(range(axes[0], axes[-1] + 1)):
        return None
    return axes[0], axes[-1]


def mirrored(qparams: QParams) -> QParams:
    """Return the qparams in which the negative of a value q is ``-1 - q``."""
    return QParams.per_tensor(qparams.scale[0], -1 - qparams.zero_point[0])


DEPTH = 3
"""Maximum number of nested rewrites."""

Accepts = Callable[[Node], bool]
Estimate = Callable[[Sequence[Node], Node], float | None]
"""Cost of nodes that replace another node; None if they cannot replace it."""


@dataclass(frozen=True)
class Choice:
    """An implementation of a node."""

    nodes: tuple[Node, ...]  # in execution order; the node itself if nothing is rewritten
    rewrites: tuple[str, ...] = ()  # their names, in order of application
    cost: float = 0.0  # of the nodes, in the unit of the estimate; 0 if nothing had to be estimated
    offer: int = 0  # index of the first rewrite's offer


def choose(
    node: Node,
    accepts: Accepts,
    estimate: Estimate,
    rewrites: Sequence[Rewrite],
    *,
    disabled: Collection[str] = (),
    depth: int = DEPTH,
    least_gain: float | None = None,
    before: Node | None = None,
) -> Choice | None:
    """Return the cheapest accepted nodes that compute the result of a node; None if there are none.

    Args:
        accepts: returns True if a node can run unchanged.
        estimate: cost of nodes.
        rewrites: candidates; on equal cost the first one wins.
        disabled: names of rewrites to skip.
        depth: maximum number of nested rewrites.
        least_gain: minimum saving, as a fraction of the cost, to replace an accepted node; None keeps such a node.
        before: see `Rewrite.offers`.
    """

    def accepted(name: str, nodes: Sequence[Node]) -> Choice | None:
        """Return a rewrite's nodes after rewriting those that cannot run; None if one of them cannot be replaced."""
        names, made, fitting, cost = {name: None}, list[Node](), list[Node](), 0.0
        for part in nodes:
            if accepts(part):
                made.append(part)
                fitting.append(part)
                continue
            inner = choose(part, accepts, estimate, rewrites, disabled=disabled, depth=depth - 1)
            if inner is None:
                return None
            names |= dict.fromkeys(inner.rewrites)
            made += inner.nodes
            cost += inner.cost
        own = estimate(fitting, node) if fitting else 0.0
        return None if own is None else Choice(tuple(made), tuple(names), cost + own)

    best, least = None, math.inf
    if accepts(node):
        best = Choice((node,))
        if least_gain is None:
            return best
    if depth == 0:
        return best
    offers = [
        (r.name, i, nodes) for r in rewrites if r.name not in disabled for i, nodes in enumerate(r.offers(node, before))
    ]
    if best is not None and offers:
        own = estimate((node,), node)
        if own is None:
            return best
        least = own * (1 - (least_gain or 0.0))
    for name, index, nodes in offers:
        found = accepted(name, nodes)
        if found is not None and found.cost < least:
            best, least = replace(found, offer=index), found.cost
    return best


def rewritten(graph: Graph, decide: Callable[[Node], Choice | None]) -> bool:
    """Replace the nodes of a graph by the chosen ones; return True if anything changed."""
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        choice = decide(node)
        changed |= choice is not None and bool(choice.rewrites)
        nodes += choice.nodes if choice is not None else (node,)
    graph.nodes = nodes
    return changed


def no_cost(nodes: Iterable[Node], node: Node) -> float:
    """Cost function that considers all accepted nodes equal."""
    return 0.0
