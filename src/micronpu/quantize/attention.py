"""Rewrites of normalization over the values themselves and of attention into operators that an NPU has.

Registered with the rewrites of `micronpu.quantize.decompose`, and run with them: before annotation, so that the mean,
the centred values, their variance and its root have an observer, and thus a grid, of their own.  All keep the result up
to float rounding, except that a masked key keeps a small weight (see `MASKED`).  `torch.nn.MultiheadAttention` needs
no rewrite of its own: export shows its projections and either the operator here or the products themselves.

What int8 makes of the results is tested in `tests/compile/test_attention.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from micronpu.frontend.program import overload_name
from micronpu.quantize.decompose import Writer, rewrites
from micronpu.quantize.transforms import attribute, is_trained

aten = torch.ops.aten

MASKED = -16.0
"""What stands for minus infinity in a mask: the grid of the scores has to reach down to it, so that a lower number
costs steps.  A masked key weighs at most exp(-16) = 1.1e-7 times exp(its score - the largest one that is not masked);
the weights of a softmax on int8 are multiples of 1/256."""

_LONGEST_MEAN = 1 << 15
"""Elements of a mean as a product with 1/n: 2**15 * 127 * 255 < 2**30, half of what an accumulator holds."""

_SOFTMAX = ("softmax.int", "_softmax.default")


# ---------------------------------------------------------------- normalization


@rewrites("layer_norm.default", "rms_norm.default")
def _layer_norm(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """layer_norm(x) -> c * rsqrt(mean(c * c) + eps) * w + b, c = x - mean(x); rms_norm(x) has c = x and no b."""
    x = given["input"]
    axes = range(-len(given["normalized_shape"]), 0)
    centred = overload_name(node).startswith("layer")
    eps = torch.finfo(torch.float32).eps if given["eps"] is None else float(given["eps"])
    normalized = _normalized(write, x, axes, eps, centred)
    return _affine(write, normalized, given.get("weight"), given.get("bias"), None)


@rewrites("group_norm.default", "instance_norm.default")
def _group_norm(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """As `layer_norm` over groups of channels; an instance norm is one with a group per channel.

    x [N, C, H, W] -> reshape [N, G, C * H * W / G] -> normalized over the last axis -> reshape -> * w + b -> y

    An instance norm by running statistics is a product and a sum with constants.
    """
    x = given["input"]
    shape = list(x.meta["val"].shape)
    channels = [shape[1], *[1] * (len(shape) - 2)]
    if given.get("use_input_stats") is False:
        mean, variance = write.known(given["running_mean"]), write.known(given["running_var"])
        if mean is None or variance is None:
            return None
        scale = (variance + given["eps"]).rsqrt()
        product = write(aten.mul.Tensor, x, write.constant(scale.float().reshape(channels)))
        normalized = write(aten.sub.Tensor, product, write.constant((mean * scale).float().reshape(channels)))
    else:
        groups = given.get("num_groups", shape[1])
        rows = write(aten.reshape.default, x, [shape[0], groups, -1])
        rows = _normalized(write, rows, (-1,), float(given["eps"]), True)
        normalized = write(aten.reshape.default, rows, shape)
    return _affine(write, normalized, given["weight"], given["bias"], channels)


def _normalized(write: Writer, x: Node, axes: Sequence[int], eps: float, centred: bool) -> Node:
    """x over its root mean square, or the same of x - mean(x).

    The variance comes from the centred values: mean(x^2) - mean(x)^2 is a small difference of large numbers on coarse
    grids.  Its grid is finer than that of the squares, as the accumulator is rounded once, behind the mean.
    """
    if centred:
        x = write(aten.sub.Tensor, x, _mean(write, x, axes))
    variance = _mean(write, write(aten.mul.Tensor, x, x), axes, eps)
    return write(aten.mul.Tensor, x, write(aten.rsqrt.default, variance))


def _mean(write: Writer, x: Node, axes: Sequence[int], shift: float = 0.0) -> Node:
    """mean(x) + shift over axes, which stay with size 1, on a grid of its own; `mean` has that of x.

    x [.., n] -> linear(w [1, n] = 1 / n, b = shift) -> y [.., 1]; over several axes or many elements a sum, scaled
    """
    shape = x.meta["val"].shape
    count = math.prod(shape[a] for a in axes)
    if count == 1:
        return x if shift == 0 else write(aten.add.Tensor, x, write.constant(shift))
    if len(axes) == 1 and count <= _LONGEST_MEAN and axes[0] in (-1, len(shape) - 1):
        weight = write.constant(torch.full((1, count), 1.0 / count))
        return write(aten.linear.default, x, weight, write.constant(shift) if shift else None)
    mean = write.scaled(write(aten.sum.dim_IntList, x, list(axes), True), 1.0 / count)
    return write(aten.add.Tensor, mean, write.constant(shift)) if shift else mean


def _affine(write: Writer, x: Node, weight: Any, bias: Any, shape: list[int] | None) -> Node:
    """x * weight + bias, both of them reshaped where a shape is given."""
    for target, operand in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if operand is not None:
            x = write(target, x, operand if shape is None else _reshaped(write, operand, shape))
    return x


def _reshaped(write: Writer, operand: Node, shape: list[int]) -> Node:
    """A constant of another shape; a parameter stays one while it is trained."""
    value = attribute(write.model, operand)
    if value is None or is_trained(write.model, operand):
        return write(aten.reshape.default, operand, shape)
    return write.constant(value.detach().reshape(shape))


# ---------------------------------------------------------------- attention


@rewrites("scaled_dot_product_attention.default")
def _attention(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """attention(q, k, v) -> softmax((q * scale) @ k' + mask) @ v

    The scale goes to q, where the next grid takes it up without any rounding of the values.  A mask of booleans has
    to be a constant; one that the program computes is added as it is.
    """
    query, key, value = given["query"], given["key"], given["value"]
    if given["dropout_p"]:
        return None
    rows, width = query.meta["val"].shape[-2:]
    columns = key.meta["val"].shape[-2]
    mask = given["attn_mask"]
    if given["is_causal"]:
        mask = torch.ones(rows, columns, dtype=torch.bool).tril()
    elif mask is not None:
        known = attribute(write.model, mask)
        if known is None and mask.meta["val"].dtype != torch.float32:
            return None
        mask = mask if known is None else known.detach()
    if given.get("enable_gqa"):
        key, value = (_repeated_heads(write, x, query.meta["val"].shape[-3]) for x in (key, value))
    scale = given.get("scale")
    query = write.scaled(query, 1.0 / math.sqrt(width) if scale is None else float(scale))
    scores = write(aten.matmul.default, query, write(aten.transpose.int, key, -2, -1))
    if mask is not None:
        addend = write.constant(_additive(mask)) if isinstance(mask, torch.Tensor) else mask
        scores = write(aten.add.Tensor, scores, addend)
    return write(aten.matmul.default, write(aten.softmax.int, scores, -1), value)


def _additive(mask: torch.Tensor) -> torch.Tensor:
    """A mask as numbers to add, none below `MASKED`; in one of booleans, False hides the key."""
    if mask.dtype == torch.bool:
        return torch.where(mask, 0.0, MASKED)
    return mask.float().clamp(min=MASKED)


def _repeated_heads(write: Writer, x: Node, heads: int) -> Node:
    """[.., G, S, E] with every head repeated: [.., heads, S, E]."""
    shape = list(x.meta["val"].shape)
    groups = shape[-3]
    if groups == heads:
        return x
    wide = write(aten.unsqueeze.default, x, -3)
    wide = write(aten.expand.default, wide, [*shape[:-2], heads // groups, *shape[-2:]])
    return write(aten.reshape.default, wide, [*shape[:-3], heads, *shape[-2:]])


@rewrites("masked_fill.Scalar", "masked_fill_.Scalar")
def _masked_scores(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """softmax(masked_fill(x, mask, -inf)) -> softmax(x + mask'), for a constant mask and no other reader."""
    mask = attribute(write.model, given["mask"])
    if mask is None or float(given["value"]) > -1e3 or any(overload_name(u) not in _SOFTMAX for u in node.users):
        return None
    return write(aten.add.Tensor, given["self"], write.constant(_additive(~mask)))


# ---------------------------------------------------------------- einsum


@rewrites("einsum.default")
def _einsum(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """A sum of products of two operands as a product of matrices.

    einsum("bhid,bhjd->bhij", x, z) -> matmul(x, z')        [batch, M, K] x [batch, K, N], between reshapes

    Axes of one operand that the result lacks are summed before.  Ellipses and repeated axes are passed over.
    """
    equation, operands = str(given["equation"]).replace(" ", ""), list(given["tensors"])
    if "->" not in equation or "." in equation or len(operands) != 2:
        return None
    terms, result = equation.split("->")
    labels = terms.split(",")
    if any(len(set(term)) != len(term) for term in (*labels, result)):
        return None
    for i in (0, 1):
        alone = [a for a, label in enumerate(labels[i]) if label not in labels[1 - i] and label not in result]
        if alone:
            operands[i] = write(aten.sum.dim_IntList, operands[i], alone)
            labels[i] = "".join(label for a, label in enumerate(labels[i]) if a not in alone)
    first, second = labels
    sizes = {
        label: size
        for term, x in zip(labels, operands, strict=True)
        for label, size in zip(term, x.meta["val"].shape, strict=True)
    }
    if any(
        sizes[label] != n
        for t, x in zip(labels, operands, strict=True)
        for label, n in zip(t, x.meta["val"].shape, strict=True)
    ):
        return None  # an axis of size 1 against a longer one
    batch = [c for c in first if c in second and c in result]
    inner = [c for c in first if c in second and c not in result]
    rows, columns = ([c for c in term if c not in other] for term, other in ((first, second), (second, first)))

    def matrix(x: Node, term: str, *groups: list[str]) -> Node:
        order = [term.index(c) for group in groups for c in group]
        if order != list(range(len(order))):
            x = write(aten.permute.default, x, order)
        return write(aten.reshape.default, x, [math.prod(sizes[c] for c in group) for group in groups])

    x, z = matrix(operands[0], first, batch, rows, inner), matrix(operands[1], second, batch, inner, columns)
    found = [*batch, *rows, *columns]
    y = write(aten.reshape.default, write(aten.matmul.default, x, z), [sizes[c] for c in found])
    order = [found.index(c) for c in result]
    return y if order == list(range(len(order))) else write(aten.permute.default, y, order)
