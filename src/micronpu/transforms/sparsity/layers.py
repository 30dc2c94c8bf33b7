"""Layers of a float program whose weights can have 2:4 sparsity, as matrices.

A layer is an operator with its weights: a convolution, a linear layer, or all steps of a recurrent layer. A matrix has
a row per output and a column per weight of the row, in the NPU's order: kernel positions, then channels, four of which
form a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, origin_of, overload_name
from micronpu.ir.pattern import GROUP, KEPT, is_made_two_in_four
from micronpu.ops.convolution import CONVOLUTIONS, TRANSPOSED
from micronpu.ops.matmul import LINEAR
from micronpu.ops.movement import COPIES, DROPOUTS, VIEWS
from micronpu.ops.recurrent import RECURRENT
from micronpu.ops.volumes import CONVOLUTIONS_3D

_DENSE_ONLY = (*TRANSPOSED, *CONVOLUTIONS_3D)
_FLATTENS = (*VIEWS, *DROPOUTS, *COPIES)


@dataclass(eq=False)
class Matrix:
    """Weights of a layer as [outputs, columns].

    Attributes:
        attribute: name of the tensor in the module.
        shape: of that tensor.
        channels: number of adjacent input channels.
        order: for each column, its index in the tensor's row, if it differs from the order of the stream, such as
            after a flattened image; None if they are equal.
    """

    attribute: str
    shape: tuple[int, ...]
    channels: int
    order: Tensor | None = None

    @property
    def columns(self) -> int:
        return self.shape[1] * _product(self.shape[2:])

    @property
    def groups(self) -> list[tuple[int, int]]:
        """First column and size of each group."""
        found = []
        for start in range(0, self.columns, self.channels):
            found += [(start + c, min(GROUP, self.channels - c)) for c in range(0, self.channels, GROUP)]
        return found

    def rows(self, weight: Tensor) -> Tensor:
        """Return a tensor with the shape of the weights as [outputs, columns]."""
        flat = weight.movedim(1, -1).reshape(self.shape[0], -1)
        return flat if self.order is None else flat[:, self.order]

    def weights(self, rows: Tensor) -> Tensor:
        """Return a matrix as a tensor with the shape of the weights."""
        if self.order is not None:
            rows = torch.empty_like(rows).index_copy_(1, self.order, rows)
        inner = self.shape[2:]
        return rows.reshape(self.shape[0], *inner, self.shape[1]).movedim(-1, 1).contiguous()

    def is_sparse(self, weight: Tensor) -> bool:
        """True if a tensor has the pattern."""
        rows = self.rows(weight.detach()).reshape(self.shape[0], -1, self.channels)
        return is_made_two_in_four(rows.cpu().numpy())


@dataclass(eq=False)
class PrunableLayer:
    """An operator that can have sparse weights.

    Attributes:
        name: of its node, or of the first one that reads the weights.
        title: path of the submodule if this is its only layer, else the node's name.
        module: path of the submodule, or "".
        source: ``file:line`` of the user's model, or "".
        nodes: names of the nodes that read the weights.
        matrices: one, or several for a recurrent layer.
    """

    name: str
    title: str
    module: str
    source: str
    nodes: list[str]
    matrices: list[Matrix] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """Number of columns of the largest matrix."""
        return max(m.columns for m in self.matrices)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrices[0].shape

    def is_sparse(self, model: GraphModule) -> bool:
        """True if all its weights have the pattern."""
        return all(m.is_sparse(tensor_of(model, m.attribute)) for m in self.matrices)


@dataclass(frozen=True)
class LeftDense:
    """An operator whose weights cannot have the pattern, with the reason."""

    name: str
    title: str
    source: str
    shape: tuple[int, ...]
    why: str


def tensor_of(model: GraphModule, name: str) -> Tensor:
    """A parameter or buffer by its path."""
    value: Any = model
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, Tensor)
    return value


def find_layers(model: GraphModule, turned: Sequence[str] = ()) -> tuple[list[PrunableLayer], list[LeftDense]]:
    """Return all layers with weights, in execution order, and those that cannot be sparse.

    Args:
        turned: names of linear layers whose flattened image is read channels first, like in the program; the others are
            read channels last, like on the NPU.
    """
    found: dict[tuple[str, ...], PrunableLayer] = {}
    left: list[LeftDense] = []
    titles: set[str] = set()
    names = {node: overload_name(node) for node in model.graph.nodes}
    flattens = {node for node, name in names.items() if name in _FLATTENS}
    for node, name in names.items():
        if name not in (*CONVOLUTIONS, *LINEAR, *RECURRENT, *_DENSE_ONLY):
            continue
        origin = origin_of(node)
        title = origin.module if origin.module and origin.module not in titles else node.name
        given = arguments(node)
        weights = list(_weight_nodes(given, name))
        shape = tuple(_tensor(weights[0]).shape) if weights else ()
        why = _objection(given, name, weights)
        if why:
            titles.add(title)
            left.append(LeftDense(node.name, title, origin.source, shape, why))
            continue
        key = tuple(str(w.target) for w in weights)
        if key in found:
            found[key].nodes.append(node.name)
            continue
        picture = _picture(given, flattens) if name in LINEAR and node.name not in turned else ()
        order = _channels_last(picture) if picture else None
        matrices = [Matrix(str(w.target), tuple(_tensor(w).shape), int(_tensor(w).shape[1]), order) for w in weights]
        if order is not None:
            matrices[0].channels = picture[0]
        titles.add(title)
        found[key] = PrunableLayer(node.name, title, origin.module, origin.source, [node.name], matrices)
    return list(found.values()), left


def _weight_nodes(given: Mapping[str, Any], name: str) -> Iterator[Node]:
    """The constants that are weights of an operator, without its biases."""
    candidates = given["params"] if name in RECURRENT else [given["weight"]]
    for weight in candidates:
        if isinstance(weight, Node) and weight.op == "get_attr" and _tensor(weight).dim() > 1:
            yield weight


def _tensor(node: Node) -> Tensor:
    owner = node.graph.owning_module
    assert isinstance(owner, GraphModule)
    return tensor_of(owner, str(node.target))


def _objection(given: Mapping[str, Any], name: str, weights: Sequence[Node]) -> str:
    """Reason why an operator's weights cannot have the pattern, or ""."""
    if name in _DENSE_ONLY:
        return "only convolutions of one and two dimensions and linear layers can be sparse"
    if not weights:
        return "its weights are computed by the program"
    shape = _tensor(weights[0]).shape
    if name in CONVOLUTIONS and shape[1] == 1 and given["groups"] > 1:
        return "a depthwise convolution has no sum over channels"
    if all(_tensor(w).shape[1] <= KEPT for w in weights):
        return f"{shape[1]} input channel{' fills' if shape[1] == 1 else 's fill'} no group of four"
    return ""


def _picture(given: Mapping[str, Any], flattens: Set[Node]) -> tuple[int, ...]:
    """Sizes [C, ...] of the image that a linear layer reads flattened, or ()."""
    source, columns = given["input"], _tensor(given["weight"]).shape[1]
    while source in flattens:
        source = source.all_input_nodes[0]
        value = source.meta.get("val")
        if isinstance(value, Tensor) and value.dim() > 2:
            sizes = tuple(value.shape[1:])
            fits = all(isinstance(s, int) for s in sizes) and _product(sizes) == columns
            return sizes if fits and _product(sizes[1:]) > 1 else ()
    return ()


def _channels_last(picture: tuple[int, ...]) -> Tensor:
    """The order of the columns of a flattened image [C, ...] in channels-last order."""
    return torch.arange(_product(picture)).reshape(picture).movedim(0, -1).reshape(-1)


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result
