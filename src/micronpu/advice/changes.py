"""Changes of an exported float module that may make it faster, in place.

Each returns the nodes that it changed. A change computes another function, or the same one in another form; it reuses
the weights as far as they fit, since cycles do not depend on them.

Channels change to a multiple of 16 in a whole network: weights are cropped, or padded with zeros. Nodes that must have
equal channels form a group: operands and result of an element-wise operator, a pool, a depthwise convolution or an
addition. A group keeps its channels if anything else reads or writes them: an input or output of the network, or an
unknown operator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from micronpu.frontend.graphs import GraphModule, Node, calls, nodes_where, operand
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import arguments, overload_name, value_of
from micronpu.frontend.tensors import add_constant, attribute
from micronpu.ir.lowering import Capabilities, Decompose
from micronpu.ops.activation import RECTIFIERS, rectified
from micronpu.ops.convolution import CONVOLUTIONS_2D
from micronpu.ops.facts import ROW_SUMS
from micronpu.ops.matmul import LINEAR
from micronpu.ops.movement import DROPOUTS, VIEWS
from micronpu.ops.normalization import BATCH_NORMS, BY_CHANNEL, with_fixed_statistics
from micronpu.ops.pooling import POOLS
from micronpu.ops.resize import BILINEAR, to_nearest, to_transposed_convolution
from micronpu.ops.slicing import CONCATENATIONS
from micronpu.ops.softmax import SOFTMAX
from micronpu.quantize.writer import GraphWriter
from micronpu.report.alternatives import NEAR, SAME, TRAIN

MULTIPLE = 16
"""Number of channels that an array of multipliers processes at once."""

_SAME = frozenset(
    f"{name}.{overload}"
    for names, overloads in (
        ("relu relu_ relu6 hardtanh silu gelu hardswish hardsigmoid sigmoid tanh elu leaky_relu mish", "default"),
        ("dropout max_pool2d avg_pool2d adaptive_avg_pool2d alias clone batch_norm", "default"),
        ("upsample_nearest2d upsample_bilinear2d", "vec"),
        ("add add_ sub mul mul_ div maximum minimum", "Tensor default"),
    )
    for name in names.split()
    for overload in overloads.split()
)
"""Operators whose result has its operands' channels, each computed from the same channel."""

Index = list[int]
"""Index of the old channel for each new one, or -1 for zeros."""


def narrowed(module: GraphModule) -> Sequence[Node]:
    """Decrease channels to a multiple of 16, in layers of more than 16."""
    return _resized(module, lambda count: count // MULTIPLE * MULTIPLE if count > MULTIPLE else count)


def widened(module: GraphModule) -> Sequence[Node]:
    """Increase channels to a multiple of 16."""
    return _resized(module, lambda count: -(-count // MULTIPLE) * MULTIPLE)


def _resized(module: GraphModule, size: Callable[[int], int]) -> Sequence[Node]:
    groups = _Groups(module)
    indices: dict[Node, Index] = {}
    changed = []
    for node in list(module.graph.nodes):
        count = _channels(node)
        if node.op == "get_attr" or count is None:
            continue
        if not groups.is_free(node):
            indices[node] = list(range(count))
        elif _is_mixing(node):
            wanted = size(count)
            indices[node] = [i if i < count else -1 for i in range(wanted)]
            changed += [node] if wanted != count else []
        else:
            indices[node] = _handed_on(node, count, [indices[n] for n in node.all_input_nodes if n in indices])
        _adapt(module, node, indices)
    return changed


def _handed_on(node: Node, count: int, operands: Sequence[Index]) -> Index:
    """Channels of the result of an operator that mixes none, from those of its operands."""
    if overload_name(node) in CONCATENATIONS:
        sizes = [_channels(n) or 0 for n in node.all_input_nodes]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [i if i < 0 else i + s for s, index in zip(starts, operands, strict=True) for i in index]
    if _is_flatten(node):
        each = count // (_channels(node.all_input_nodes[0]) or 1)
        return [i if i < 0 else i * each + k for i in operands[0] for k in range(each)]
    return next(index for index in operands if len(index) > 1 or count == 1)


def _adapt(module: GraphModule, node: Node, indices: dict[Node, Index]) -> None:
    """Give a node weights for its new input and output channels."""
    own = indices[node]
    name = overload_name(node)
    args = list(node.args)
    if _is_mixing(node):
        read = indices[operand(node)]
        args[1] = _taken(module, node, args[1], {0: own, 1: read})
        args[2:3] = [_taken(module, node, bias, {0: own}) for bias in args[2:3]]
    elif _is_depthwise(node):
        args[1] = _taken(module, node, args[1], {0: own})
        args[2:3] = [_taken(module, node, bias, {0: own}) for bias in args[2:3]]
        args[6] = len(own)
    elif name in BATCH_NORMS:
        args[1:5] = [_taken(module, node, parameter, {0: own}) for parameter in args[1:5]]
    elif name in _SAME:
        rank = len(value_of(node).shape)
        args = [_taken(module, node, a, {1 - rank: own}) for a in args]
    elif _is_flatten(node) and isinstance(args[-1], (list, tuple)):
        args[1] = [_shape(node)[0], len(own)]
    node.args = tuple(args)


def _taken(module: GraphModule, reader: Node, source: object, axes: dict[int, Index]) -> Any:
    """Select channels of a constant along some axes; return anything else, or a constant of one channel, unchanged."""
    value = attribute(module, source)
    if value is None:
        return source
    result = value.detach()
    for axis, index in axes.items():
        if axis < -result.dim() or result.dim() == 0 or result.shape[axis] == 1:
            continue
        zeros = torch.zeros_like(result.narrow(axis, 0, 1))
        filled = torch.cat([result, zeros], axis)  # index -1 selects the last one
        result = filled.index_select(axis, torch.tensor([i % filled.shape[axis] for i in index]))
    if result is value or result.shape == value.shape:
        return source
    return add_constant(module, reader, result.contiguous(), "advised")


class _Groups:
    """Groups of nodes with equal channels, and whether they may change."""

    def __init__(self, module: GraphModule) -> None:
        self._parent: dict[Node, Node] = {}
        nodes = nodes_where(module, lambda n: n.op != "get_attr")
        derived = dict.fromkeys(n for n in nodes if overload_name(n) in CONCATENATIONS or _is_flatten(n))
        fixed = {other for node in nodes if node not in derived for other in self._join_operands(node)}
        self._fixed = {self._find(node) for node in fixed}
        makers = Counter(self._find(n) for n in nodes if n in derived or _is_mixing(n))
        while True:  # only a convolution or a linear layer can follow the changed parts of a concatenation
            more: set[Node] = set()
            for node in derived:
                if not self.is_free(node) or makers[self._find(node)] > 1:
                    more |= {self._find(n) for n in (node, *node.all_input_nodes)}
            if more <= self._fixed:
                break
            self._fixed |= more

    def _join_operands(self, node: Node) -> set[Node]:
        """Group a node with the operands that have its channels; return nodes whose channels must stay."""
        operands = [n for n in node.all_input_nodes if n.op != "get_attr"]
        if not _is_depthwise(node) and not _is_alike(node):
            return set() if _is_mixing(node) else {node, *operands}
        others = [n for n in operands if _channels(n) != _channels(node)]
        for other in (n for n in operands if n not in others):
            self._join(node, other)
        return {node, *others} if others else set()

    def is_free(self, node: Node) -> bool:
        """True if the channels of a node may change."""
        return self._find(node) not in self._fixed

    def _find(self, node: Node) -> Node:
        while node in self._parent:
            node = self._parent[node]
        return node

    def _join(self, one: Node, other: Node) -> None:
        a, b = self._find(one), self._find(other)
        if a is not b:
            self._parent[a] = b


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(getattr(value_of(node), "shape", ()))


def _channels(node: Node) -> int | None:
    """Size of axis 1 of a tensor of rank 2 or 4; None otherwise."""
    shape = _shape(node)
    return shape[1] if len(shape) in (2, 4) else None


def _is_mixing(node: Node) -> bool:
    """True if every output channel depends on all input channels."""
    name = overload_name(node)
    if name not in (*CONVOLUTIONS_2D, *LINEAR) or _channels(node) is None:
        return False
    return _reads_constants(node) and node.args[6:] in ((), (1,))


def _is_depthwise(node: Node) -> bool:
    if overload_name(node) not in CONVOLUTIONS_2D or len(node.args) < 7 or not _reads_constants(node):
        return False
    return node.args[6] == _channels(node) == _channels(operand(node))


def _reads_constants(node: Node) -> bool:
    return all(n.op == "get_attr" for n in node.all_input_nodes[1:])


def _is_alike(node: Node) -> bool:
    """True if each output channel depends on the same channel of the operands."""
    name = overload_name(node)
    if name in ROW_SUMS:
        return set(arguments(node)["dim"] or (0,)) <= {2, 3, -1, -2} and len(_shape(operand(node))) == 4
    return name in _SAME and _channels(node) is not None


def _is_flatten(node: Node) -> bool:
    """True if the node merges all axes but the first."""
    if overload_name(node) not in VIEWS or not isinstance(node.args[0], Node):
        return False
    before, after = _shape(node.args[0]), _shape(node)
    return len(before) == 4 and after == (before[0], math.prod(before[1:]))


Edit = Callable[[GraphModule], Sequence[Node]]
"""Changes a module in place; returns the changed nodes, none if it does not apply."""


@dataclass(frozen=True)
class Change:
    """One idea.

    Attributes:
        name: new and old form.
        how: what to write in PyTorch.
        results: effect on the network's results, as in `report.advice.Idea`.
        edit: makes the change.
    """

    name: str
    how: str
    results: str
    edit: Edit


def rewritten(overloads: Sequence[str], decompose: Decompose) -> Edit:
    """Replace operators by what a decomposition writes."""

    def edit(module: GraphModule) -> Sequence[Node]:
        changed = []
        for node in calls(module, *overloads):
            if (made := decompose(GraphWriter(module, node, Capabilities()))) is not None:
                node.replace_all_uses_with(made)
                module.graph.erase_node(node)
                changed.append(made)
        return changed

    return edit


def kernels_of_three(module: GraphModule) -> Sequence[Node]:
    """Replace each larger kernel of odd size by its central 3 x 3."""
    changed = []
    for node in calls(module, *CONVOLUTIONS_2D):
        given = arguments(node)
        padding, dilation = _pair(given["padding"]), _pair(given["dilation"])
        weight = attribute(module, given["weight"])
        if weight is None or padding is None or dilation is None:
            continue
        size = tuple(weight.shape[2:])
        less = [(n - 3) // 2 if n > 3 and n % 2 else 0 for n in size]
        if not any(less) or any(p < d * n for p, d, n in zip(padding, dilation, less, strict=True)):
            continue
        part = weight.detach()[:, :, less[0] : size[0] - less[0], less[1] : size[1] - less[1]]
        given["weight"] = add_constant(module, node, part.contiguous().clone(), "advised")
        given["padding"] = [p - d * n for p, d, n in zip(padding, dilation, less, strict=True)]
        node.args, node.kwargs = tuple(given.values()), {}
        changed.append(node)
    return changed


_UNARY = {*BATCH_NORMS, *DROPOUTS, *RECTIFIERS}


def stride_for_pool(module: GraphModule) -> Sequence[Node]:
    """Replace a convolution of stride 1 before a pool of 2 x 2 by a convolution of stride 2."""
    changed = []
    for pool in calls(module, *POOLS):
        window = arguments(pool)
        kernel, stride = _pair(window["kernel_size"]), _pair(window["stride"] or window["kernel_size"])
        if kernel != (2, 2) or stride != (2, 2) or any(_pair(window["padding"]) or ()):
            continue
        node = pool.args[0]
        while isinstance(node, Node) and len(node.users) == 1 and _is_unary(node):
            node = node.args[0]
        if not isinstance(node, Node) or overload_name(node) not in CONVOLUTIONS_2D or len(node.users) != 1:
            continue
        given = arguments(node)
        if _pair(given["stride"]) != (1, 1) or _pair(given["padding"]) is None:
            continue
        if any(n % 2 for n in value_of(window["self"]).shape[2:]):
            continue
        node.args, node.kwargs = tuple((given | {"stride": [2, 2]}).values()), {}
        pool.replace_all_uses_with(pool.all_input_nodes[0])
        module.graph.erase_node(pool)
        changed.append(node)
    return changed


def scores_for_softmax(module: GraphModule) -> Sequence[Node]:
    """Return the scores in place of a softmax of them that is only an output of the network."""
    changed = []
    for node in calls(module, *SOFTMAX):
        scores = node.all_input_nodes[0]
        if scores.op != "placeholder" and all(user.op == "output" for user in node.users):
            node.replace_all_uses_with(scores)
            module.graph.erase_node(node)
            changed.append(scores)
    return changed


_MODULES = {name.lower(): name for name in torch.nn.modules.activation.__all__}
_RECTIFIERS = {overload: _MODULES[overload.split(".")[0].replace("_", "")] for overload in RECTIFIERS}
"""Name of the class in `torch.nn` of each activation."""

CHANGES: tuple[Change, ...] = (
    *(
        Change(
            f"ReLU for {name}", f"torch.nn.ReLU() where torch.nn.{name} is.", TRAIN, rewritten([overload], rectified)
        )
        for overload, name in _RECTIFIERS.items()
    ),
    Change(
        "nearest for bilinear",
        'torch.nn.Upsample(mode="nearest"), or interpolate(mode="nearest").',
        TRAIN,
        rewritten(BILINEAR, to_nearest),
    ),
    Change(
        "transposed convolution for bilinear",
        "torch.nn.ConvTranspose2d(C, C, 4, stride=2, padding=1, groups=C) with the weights of the resize; the "
        "outermost pixels differ.",
        NEAR,
        rewritten(BILINEAR, to_transposed_convolution),
    ),
    Change("stride 2 for a pool", "Conv2d(..., stride=2), and no pool behind it.", TRAIN, stride_for_pool),
    Change(
        "no softmax at the output",
        "Return the scores; the application computes the softmax, if it needs more than the largest.",
        SAME,
        scores_for_softmax,
    ),
    Change("3 x 3 for larger kernels", "Conv2d(..., kernel_size=3, padding=1).", TRAIN, kernels_of_three),
    Change(
        "batch norm for layer or group norm",
        "torch.nn.BatchNorm: its statistics are fixed.",
        TRAIN,
        rewritten(BY_CHANNEL, with_fixed_statistics),
    ),
    Change("channels down to multiples of 16", "Fewer channels, a multiple of 16 in each layer.", TRAIN, narrowed),
    Change(
        "channels up to multiples of 16",
        "More channels, a multiple of 16 in each layer, which fills the lanes of the multiplier array.",
        SAME,
        widened,
    ),
)
"""All ideas; each determines whether it applies to a network."""


def _is_unary(node: Node) -> bool:
    entry = known_import(node)
    return overload_name(node) in _UNARY or (entry is not None and entry.is_activation)


def _pair(value: object) -> tuple[int, int] | None:
    """A size that may be one number for both axes; None if it is not a size."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, list | tuple) and all(isinstance(n, int) for n in value) and value:
        return (value[0], value[-1])
    return None
