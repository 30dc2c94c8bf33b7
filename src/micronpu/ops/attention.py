"""Attention as a composition of products and a softmax.

Exact up to float rounding, except that a masked key keeps a small weight (see `MASKED`).  `torch.nn.MultiheadAttention`
needs no composition of its own: export shows its projections and either the operator here or the products themselves.
What int8 makes of the results is tested in `tests/compile/ops/test_attention.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.ir.types import DType
from micronpu.ir.way import Float, Writer, composes
from micronpu.ops.elementwise import scaled

MASKED = -16.0
"""What stands for minus infinity in a mask: the grid of the scores has to reach down to it, so that a lower number
costs steps.  A masked key weighs at most exp(-16) = 1.1e-7 times exp(its score - the largest one that is not masked);
the weights of a softmax on int8 are multiples of 1/256."""

_SOFTMAX = ("softmax.int", "_softmax.default")
_ATTENTION = "scaled_dot_product_attention.default"


@composes("scaled_dot_product_attention.default")
def _attention(write: Writer) -> Float:
    """attention(q, k, v) -> softmax((q * scale) @ k' + mask) @ v

    The scale goes to q, where the next grid takes it up without any rounding of the values.  A mask of numbers that
    the program computes is added as it is, one of booleans as `MASKED` where it hides the key.
    """
    given = write.given
    query, key, value = given["query"], given["key"], given["value"]
    if given["dropout_p"]:
        return None
    rows, width = write.shape(query)[-2:]
    columns = write.shape(key)[-2]
    mask = given["attn_mask"]
    if given["is_causal"]:
        mask = np.tril(np.ones((rows, columns), bool))
    elif mask is not None:
        known = write.stored(mask)
        if known is None and write.dtype(mask) not in (DType.FLOAT32, DType.BOOL):
            return None
        mask = mask if known is None else known
    if given.get("enable_gqa"):
        key, value = (_repeated_heads(write, x, write.shape(query)[-3]) for x in (key, value))
    scale = given.get("scale")
    query = scaled(write, query, 1.0 / math.sqrt(width) if scale is None else float(scale))
    scores = write("matmul.default", query, write("transpose.int", key, -2, -1))
    if mask is not None:
        addend = write.constant(_additive(mask)) if isinstance(mask, np.ndarray) else mask
        if not isinstance(mask, np.ndarray) and write.dtype(mask) is DType.BOOL:
            shown = write("mul.Tensor", write("to.dtype", mask, DType.FLOAT32), -MASKED)
            addend = write("add.Tensor", shown, MASKED)
        scores = write("add.Tensor", scores, addend)
    return write("matmul.default", write("softmax.int", scores, -1), value)


def _additive(mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A mask as numbers to add, none below `MASKED`; in one of booleans, False hides the key."""
    if mask.dtype == np.bool_:
        return np.where(mask, 0.0, MASKED).astype(np.float32)
    return np.maximum(mask.astype(np.float32), np.float32(MASKED))


def _repeated_heads(write: Writer, x: Float, heads: int) -> Float:
    """[.., G, S, E] with every head repeated: [.., heads, S, E]."""
    shape = list(write.shape(x))
    groups = shape[-3]
    if groups == heads:
        return x
    wide = write("unsqueeze.default", x, -3)
    wide = write("expand.default", wide, [*shape[:-2], heads // groups, *shape[-2:]])
    return write("reshape.default", wide, [*shape[:-3], heads, *shape[-2:]])


@composes("masked_fill.Scalar", "masked_fill_.Scalar")
def _masked_scores(write: Writer) -> Float:
    """softmax(masked_fill(x, mask, -inf)) -> softmax(x + mask'), where nothing but attention or a softmax reads it.

    A mask that the program is given or computes becomes ``MASKED`` times its truth values.  It may be moved, and added
    to others, on its way: `torch.nn.MultiheadAttention` makes zeros with infinities of its `key_padding_mask`.
    """
    x, hidden = write.given["self"], write.given["mask"]
    if float(write.given["value"]) > -1e3 or not write.ends() <= {*_SOFTMAX, _ATTENTION}:
        return None
    mask = write.stored(hidden)
    if mask is not None:
        return write("add.Tensor", x, write.constant(_additive(~mask)))
    addend = write("mul.Tensor", write("to.dtype", hidden, DType.FLOAT32), MASKED)
    made = write.call(x)
    if made is not None and made.overload.startswith(("zeros", "new_zeros")) and write.shape(addend) == write.shape():
        return addend
    return write("add.Tensor", x, addend)
