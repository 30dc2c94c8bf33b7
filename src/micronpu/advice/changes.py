"""Changes of an exported float module that may make it faster, in place.

Each returns the nodes that it changed. A change computes another function, or the same one in another form; it reuses
the weights as far as they fit, since cycles do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.advice.widths import narrowed, widened
from micronpu.frontend.constants import add_constant, attribute
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import arguments, overload_name, value_of
from micronpu.ir.lowering import Capabilities, Decompose
from micronpu.ops.activation import RECTIFIERS, rectified
from micronpu.ops.convolution import CONVOLUTIONS_2D
from micronpu.ops.movement import DROPOUTS
from micronpu.ops.normalization import BATCH_NORMS, BY_CHANNEL, with_fixed_statistics
from micronpu.ops.pooling import POOLS
from micronpu.ops.resize import BILINEAR, to_nearest, to_transposed_convolution
from micronpu.quantize.writer import GraphWriter
from micronpu.report.alternatives import NEAR, SAME, TRAIN

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
        for node in _calls(module, overloads):
            made = decompose(GraphWriter(module, node, Capabilities()))
            if made is not None:
                node.replace_all_uses_with(made)
                module.graph.erase_node(node)
                changed.append(made)
        return changed

    return edit


def kernels_of_three(module: GraphModule) -> Sequence[Node]:
    """Replace each larger kernel of odd size by its central 3 x 3."""
    changed = []
    for node in _calls(module, CONVOLUTIONS_2D):
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
    for pool in _calls(module, POOLS):
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


_MODULES = {name.lower(): name for name in torch.nn.modules.activation.__all__}


def _module(overload: str) -> str:
    """Return the name of the class in `torch.nn` of an activation."""
    return _MODULES[overload.split(".")[0].replace("_", "")]


CHANGES: tuple[Change, ...] = (
    *(
        Change(
            f"ReLU for {_module(overload)}",
            f"torch.nn.ReLU() where torch.nn.{_module(overload)} is.",
            TRAIN,
            rewritten([overload], rectified),
        )
        for overload in RECTIFIERS
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


def _calls(module: GraphModule, overloads: Collection[str]) -> list[Node]:
    return [node for node in module.graph.nodes if overload_name(node) in overloads]


def _is_unary(node: Node) -> bool:
    entry = known_import(node)
    return overload_name(node) in _UNARY or (entry is not None and entry.is_activation)


def _pair(value: Any) -> tuple[int, int] | None:
    """A size that may be one number for both axes; None if it is not a size."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, list | tuple) and all(isinstance(n, int) for n in value) and value:
        return (value[0], value[-1])
    return None
