"""Changes of an exported float module that may make it faster, in place.

Each returns the nodes that it changed. A change computes another function, or the same one in another form; it reuses
the weights as far as they fit, since cycles do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.advice.widths import narrowed, widened
from micronpu.frontend.constants import add_constant, attribute
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import overload_name, value_of
from micronpu.ops.movement import DROPOUTS
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.ops.pooling import POOLS
from micronpu.report.alternatives import NEAR, SAME, TRAIN

aten = torch.ops.aten

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


_CURVES = {
    "silu.default": "SiLU",
    "hardswish.default": "Hardswish",
    "gelu.default": "GELU",
    "elu.default": "ELU",
    "selu.default": "SELU",
    "mish.default": "Mish",
    "softplus.default": "Softplus",
    "leaky_relu.default": "LeakyReLU",
}


def relu_for(overload: str) -> Edit:
    """Replace another activation by ReLU."""

    def edit(module: GraphModule) -> Sequence[Node]:
        found = _calls(module, overload)
        for node in found:
            node.target, node.args, node.kwargs = aten.relu.default, (node.args[0],), {}
        return found

    return edit


def nearest(module: GraphModule) -> Sequence[Node]:
    """Replace a bilinear resize by nearest neighbour."""
    found = _calls(module, "upsample_bilinear2d.vec")
    for node in found:
        x, size, _, factors = _arguments(node, ("input", "output_size", "align_corners", "scale_factors"))
        node.target, node.args, node.kwargs = aten.upsample_nearest2d.vec, (x, size, factors), {}
    return found


def doubled_by_convolution(module: GraphModule) -> Sequence[Node]:
    """Replace a bilinear resize by 2 by a depthwise transposed convolution; only the outermost pixels differ."""
    changed = []
    for node in _calls(module, "upsample_bilinear2d.vec"):
        x, _, aligned, _ = _arguments(node, ("input", "output_size", "align_corners", "scale_factors"))
        before, after = _shape(x), _shape(node)
        if aligned or after[2:] != tuple(2 * n for n in before[2:]):
            continue
        row = torch.tensor([0.25, 0.75, 0.75, 0.25])
        kernel = torch.outer(row, row).expand(before[1], 1, 4, 4).contiguous()
        weight = add_constant(module, node, kernel, "advised")
        node.target = aten.conv_transpose2d.input
        node.args, node.kwargs = (x, weight, None, [2, 2], [1, 1], [0, 0], before[1]), {}
        changed.append(node)
    return changed


def kernels_of_three(module: GraphModule) -> Sequence[Node]:
    """Replace each larger kernel of odd size by its central 3 x 3."""
    changed = []
    for node in _calls(module, "conv2d.default"):
        weight, padding = attribute(module, node.args[1]), _pair(_at(node, 4, 0))
        if weight is None or padding is None:
            continue
        size = tuple(weight.shape[2:])
        less = [(n - 3) // 2 if n > 3 and n % 2 else 0 for n in size]
        dilation = _pair(_at(node, 5, 1)) or (1, 1)
        if not any(less) or any(p < d * n for p, d, n in zip(padding, dilation, less, strict=True)):
            continue
        part = weight.detach()[:, :, less[0] : size[0] - less[0], less[1] : size[1] - less[1]]
        kernel = add_constant(module, node, part.contiguous().clone(), "advised")
        args = _padded_args(node)
        args[1] = kernel
        args[4] = [p - d * n for p, d, n in zip(padding, dilation, less, strict=True)]
        node.args = tuple(args)
        changed.append(node)
    return changed


_UNARY = {*BATCH_NORMS, *DROPOUTS, *_CURVES}


def stride_for_pool(module: GraphModule) -> Sequence[Node]:
    """Replace a convolution of stride 1 before a pool of 2 x 2 by a convolution of stride 2."""
    changed = []
    for pool in _calls(module, *POOLS):
        kernel, stride = _pair(pool.args[1]), _pair(_at(pool, 2, None) or pool.args[1])
        if kernel != (2, 2) or stride != (2, 2) or any(_pair(_at(pool, 3, 0)) or ()):
            continue
        node = pool.args[0]
        while isinstance(node, Node) and len(node.users) == 1 and _is_unary(node):
            node = node.args[0]
        if not isinstance(node, Node) or overload_name(node) != "conv2d.default" or len(node.users) != 1:
            continue
        if _pair(_at(node, 3, 1)) != (1, 1) or any(n % 2 for n in _shape(pool.args[0])[2:]):
            continue
        args = _padded_args(node)
        args[3] = [2, 2]
        node.args = tuple(args)
        pool.replace_all_uses_with(pool.all_input_nodes[0])
        module.graph.erase_node(pool)
        changed.append(node)
    return changed


def fixed_statistics(module: GraphModule) -> Sequence[Node]:
    """Replace a norm that measures each input by a factor and a summand per channel, like a folded batch norm."""
    changed = []
    for node in _calls(module, "layer_norm.default", "group_norm.default"):
        shape = _shape(node.args[0])
        is_layer = overload_name(node).startswith("layer")
        size = tuple(node.args[1]) if is_layer else (shape[1], *(1 for _ in shape[2:]))  # type: ignore[arg-type]
        given = [attribute(module, _at(node, i, None)) for i in (2, 3)]
        factor, summand = (
            (default(size) if t is None else t.detach().reshape(size)).clone()
            for t, default in zip(given, (torch.ones, torch.zeros), strict=True)
        )
        scale = add_constant(module, node, factor, "advised")
        shift = add_constant(module, node, summand, "advised")
        with module.graph.inserting_before(node):
            product = module.graph.call_function(aten.mul.Tensor, (node.args[0], scale))
        product.meta = dict(node.meta)
        node.target, node.args, node.kwargs = aten.add.Tensor, (product, shift), {}
        changed.append(node)
    return changed


CHANGES: tuple[Change, ...] = (
    *(
        Change(f"ReLU for {name}", f"torch.nn.ReLU() where torch.nn.{name} is.", TRAIN, relu_for(overload))
        for overload, name in _CURVES.items()
    ),
    Change(
        "nearest for bilinear",
        'torch.nn.Upsample(mode="nearest"), or interpolate(mode="nearest").',
        TRAIN,
        nearest,
    ),
    Change(
        "transposed convolution for bilinear",
        "torch.nn.ConvTranspose2d(C, C, 4, stride=2, padding=1, groups=C) with the weights of the resize; the "
        "outermost pixels differ.",
        NEAR,
        doubled_by_convolution,
    ),
    Change("stride 2 for a pool", "Conv2d(..., stride=2), and no pool behind it.", TRAIN, stride_for_pool),
    Change("3 x 3 for larger kernels", "Conv2d(..., kernel_size=3, padding=1).", TRAIN, kernels_of_three),
    Change(
        "batch norm for layer or group norm", "torch.nn.BatchNorm: its statistics are fixed.", TRAIN, fixed_statistics
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


def _calls(module: GraphModule, *overloads: str) -> list[Node]:
    return [node for node in module.graph.nodes if overload_name(node) in overloads]


def _is_unary(node: Node) -> bool:
    entry = known_import(node)
    return overload_name(node) in _UNARY or (entry is not None and entry.is_activation)


def _at(node: Node, position: int, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else default


def _arguments(node: Node, names: tuple[str, ...]) -> list[Any]:
    return [_at(node, i, node.kwargs.get(name)) for i, name in enumerate(names)]


_CONVOLUTION = (None, None, None, (1, 1), (0, 0), (1, 1), 1)
"""Defaults of the arguments of `conv2d`: input, weight, bias, stride, padding, dilation, groups."""


def _padded_args(node: Node) -> list[Any]:
    return [*node.args, *_CONVOLUTION[len(node.args) :]]


def _pair(value: Any) -> tuple[int, int] | None:
    """A size that may be one number for both axes; None if it is not a size."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, list | tuple) and all(isinstance(n, int) for n in value) and value:
        return (value[0], value[-1])
    return None


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(value_of(node).shape)
