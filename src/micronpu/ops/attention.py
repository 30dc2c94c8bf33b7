"""Decomposition of attention into products and a softmax.

Exact up to float rounding: the replacement of minus infinity is so far below every score (see `MASKED`) that its weight
is zero. `torch.nn.MultiheadAttention` needs no separate decomposition: its exported form has the projections and either
the operator decomposed here or the products themselves. The int8 results are tested in
`tests/compile/ops/test_attention.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.ir.lowering import Float, Writer, decomposes
from micronpu.ir.op import fixed_qparams
from micronpu.ir.types import DType
from micronpu.ops.elementwise import scaled
from micronpu.ops.softmax import SOFTMAX
from micronpu.ops.truths import number_of, opposite_of

MASKED = -8192.0
"""Replacement of minus infinity in a mask. The sum of score and mask saturates at the end of its range, which
calibration does not extend for it (`micronpu.quantize.solver.neighbours`)."""
HIDDEN = fixed_qparams(-MASKED / 128, 0, int16_scale=-MASKED / 2**15)
"""Qparams for `MASKED` and zero: calibration without masked keys must not exclude masks in later inputs."""
_ATTENTION = "scaled_dot_product_attention.default"


@decomposes("scaled_dot_product_attention.default")
def _attention(write: Writer) -> Float:
    """attention(q, k, v) -> softmax((q * scale) @ k' + mask) @ v

    The scale is applied to q, where the next qparams absorb it without rounding. A mask of numbers computed by the
    program is added as it is; a mask of booleans becomes `MASKED` at masked keys.
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
        is_boolean = not isinstance(mask, np.ndarray) and write.dtype(mask) is DType.BOOL  # False masks the key
        addend = _hiding(write, opposite_of(write, mask)) if is_boolean else mask
        if addend is None:
            return None
        scores = _masked(write, scores, addend)
    return write("matmul.default", write("softmax.int", scores, -1), value)


def _hiding(write: Writer, hidden: Float | None, sign: int = -1) -> Float:
    """`MASKED` where the number of a truth value is 1, and zero elsewhere; None without a truth value."""
    return None if hidden is None else write.with_qparams(write("mul.Tensor", hidden, -sign * MASKED), HIDDEN)


def _masked(write: Writer, scores: Float, mask: Float | npt.NDArray[Any], sign: int = -1) -> Float:
    """Add a mask to scores; a constant mask that also has other numbers is added in two parts.

    The scale of `MASKED` is too large for other numbers.

    Args:
        sign: of the infinity that masks.
    """
    if not isinstance(mask, np.ndarray):
        return write("add.Tensor", scores, mask)
    if mask.dtype == np.bool_:
        hidden, rest = ~mask, np.zeros(mask.shape, np.float32)
    else:
        hidden = mask < MASKED
        rest = np.where(hidden, 0.0, mask).astype(np.float32)
    if rest.any() or not hidden.any():
        scores = write("add.Tensor", scores, write.constant(rest))
    if hidden.any():
        addend = write.constant(np.where(hidden, -sign * MASKED, 0.0).astype(np.float32))
        scores = write("add.Tensor", scores, write.with_qparams(addend, HIDDEN))
    return scores


def _repeated_heads(write: Writer, x: Float, heads: int) -> Float:
    """Repeat every head of [.., G, S, E]: [.., heads, S, E]."""
    shape = list(write.shape(x))
    groups = shape[-3]
    if groups == heads:
        return x
    wide = write("unsqueeze.default", x, -3)
    wide = write("expand.default", wide, [*shape[:-2], heads // groups, *shape[-2:]])
    return write("reshape.default", wide, [*shape[:-3], heads, *shape[-2:]])


@decomposes("masked_fill.Scalar", "masked_fill_.Scalar")
def _masked_scores(write: Writer) -> Float:
    """softmax(masked_fill(x, mask, -inf)) -> softmax(x + mask'), where nothing but attention, a softmax, a logsumexp
    or a maximum reads it

    A mask that is given or computed by the program becomes `MASKED` times its truth values. It may be moved, and added
    to others, before its readers: `torch.nn.MultiheadAttention` converts its `key_padding_mask` to zeros and
    infinities. The same holds for a minimum, with plus infinity.
    """
    x, hidden = write.given["self"], write.given["mask"]
    sign = _hides(write, float(write.given["value"]))
    if not sign:
        return None
    mask = write.stored(hidden)
    if mask is not None:
        return _masked(write, x, ~mask, sign)
    addend = _hiding(write, number_of(write, hidden), sign)
    if addend is None:
        return None
    made = write.call(x)
    if made is not None and made.overload.startswith(("zeros", "new_zeros")) and write.shape(addend) == write.shape():
        return addend
    return write("add.Tensor", x, addend)


def chosen_scores(write: Writer) -> Float:
    """softmax(where(mask, x, -inf)) -> softmax(x + mask'), like `masked_fill`; None if it has other readers."""
    mask, yes, no = (write.given[name] for name in ("condition", "self", "other"))
    known = write.stored(mask)
    if known is None and write.dtype(mask) is not DType.BOOL:
        return None
    for scores, other, shows in ((yes, no, True), (no, yes, False)):
        if isinstance(scores, (int, float)) or write.dtype(scores) is not DType.FLOAT32:
            continue
        sign = _hides(write, *_ends_of(write, other))
        if not sign:
            continue
        if known is not None:
            return _masked(write, scores, known if shows else ~known, sign)
        addend = _hiding(write, opposite_of(write, mask) if shows else number_of(write, mask), sign)
        return None if addend is None else write("add.Tensor", scores, addend)
    return None


@decomposes("add.Tensor", "add_.Tensor")
def _added_mask(write: Writer) -> Float:
    """softmax(x + mask) -> softmax(x + mask'), for a constant mask with values that represent minus infinity"""
    x, z = write.given["self"], write.given["other"]
    if write.given["alpha"] != 1:
        return None
    for scores, mask in ((x, z), (z, x)):
        known = None if isinstance(mask, (int, float)) or write.is_trained(mask) else write.stored(mask)
        if known is None or known.dtype.kind != "f" or not (known < MASKED).any() or isinstance(scores, (int, float)):
            continue
        if write.dtype(scores) is DType.FLOAT32 and write.stored(scores) is None and _is_for_softmax(write):
            return _masked(write, scores, known)
    return None


_FAR = -1e3
"""Constants up to this value before a softmax represent minus infinity."""


MAXIMA = (
    *("amax.default", "argmax.default", "max.default", "max.dim"),
    *(f"max_pool{n}d{form}.default" for n in (1, 2) for form in ("", "_with_indices")),
)
"""Overloads that compute the largest of some values."""
MINIMA = ("amin.default", "argmin.default", "min.default", "min.dim")
"""Overloads that compute the smallest of some values."""


def _is_for_softmax(write: Writer) -> bool:
    return write.ends() <= {*SOFTMAX, _ATTENTION, "logsumexp.default"}


def _hides(write: Writer, least: float, most: float | None = None) -> int:
    """Sign of the infinity that constants represent, if the readers of the result only depend on that; else 0.

    Args:
        most: the largest of several constants, of which ``least`` is the smallest.
    """
    most = least if most is None else most
    if most <= _FAR:
        return -1 if _is_for_softmax(write) or write.ends(added=False) <= {*SOFTMAX, *MAXIMA} else 0
    return 1 if least >= -_FAR and write.ends(added=False) <= {*MINIMA} else 0


def _ends_of(write: Writer, x: Float) -> tuple[float, float]:
    """The smallest and the largest value of a constant; two zeros for other values."""
    if isinstance(x, (int, float)):
        return float(x), float(x)
    known = None if write.is_trained(x) else write.stored(x)
    if known is None or known.dtype.kind != "f" or not known.size:
        return 0.0, 0.0
    return float(known.min()), float(known.max())
