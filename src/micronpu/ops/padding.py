"""Padding by values of the tensor itself, and the ATen operators for all kinds of padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.op import NewValues, QuantizationRule, Value, shares_qparams
from micronpu.ir.registry import imports, operator
from micronpu.ir.types import TensorType
from micronpu.ops.concat import Concat
from micronpu.ops.movement import Pad, Padding
from micronpu.ops.slicing import sliced

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


@operator("reflect_pad")
class ReflectPad(Padding):
    """Extends each axis by its mirror image, without repeating the edge elements.

    x [any]  ->  y [x.shape + before + after], type of x. An axis of n elements can be padded by at most n - 1 on each
    side.
    """

    def infer(self, x: TensorType) -> TensorType:
        y = super().infer(x)
        if any(not 0 <= side < n for sides, n in zip(self.sides, x.shape, strict=True) for side in sides):
            raise InternalError(f"{self} needs more elements than {list(x.shape)} has to mirror.")
        return y

    def reference(self, y: TensorType, x: Value) -> npt.NDArray[Any]:
        return np.pad(x.data, self.sides, mode="reflect")

    def to_litert(self, emit: LiteRtEmitter) -> None:
        amounts = emit.int32(self.sides)
        # Mode 0 is REFLECT.
        emit.add("MIRROR_PAD", options="MirrorPadOptions", fields={"mode": 0}, inputs=[0, amounts], version=2)

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """Axis by axis: concatenate all elements with the reversed elements next to each edge."""
        x = emit.input(0)
        for axis, (before, after) in enumerate(zip(self.before, self.after, strict=True)):
            count = x.shape[axis]
            left = [_element(emit, x, axis, i) for i in range(before, 0, -1)]
            right = [_element(emit, x, axis, count - 2 - i) for i in range(after)]
            x = emit.concat([*left, x, *right], axis)
        return x


def _element(emit: TosaEmitter, x: TosaTensor, axis: int, index: int) -> TosaTensor:
    """One index of an axis, which keeps size 1."""
    begin, size = [0] * x.rank, list(x.shape)
    begin[axis], size[axis] = index, 1
    return emit.slice(x, begin, size)


def _pad_quantization(node: AtenArguments) -> QuantizationRule:
    """The padding value may not be a whole number, while some operands represent whole numbers only."""
    constant = node.overload.startswith("constant") or node.overload == "pad.default"
    value = float(node.value("value") or 0.0) if constant else 0.0
    return shares_qparams(new_values=NewValues.NONE if value.is_integer() else NewValues.ANY)


PADS = ("pad.default", "constant_pad_nd.default")
"""Overloads that pad with a constant, the first one possibly with others."""


@imports(
    *PADS,
    *(f"{kind}_pad{n}d.default" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    "_pad_circular.default",
    quantization=_pad_quantization,
)
def build_pad(node: AtenNode) -> Tensor:
    """All modes of padding; negative amounts remove elements."""
    x = node.tensor("x")
    name = node.overload.split(".")[0]
    amounts = [int(v) for v in node.value("pad" if node.value("pad") is not None else "padding")]
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for position in range(len(amounts) // 2):
        before[rank - 1 - position], after[rank - 1 - position] = amounts[2 * position : 2 * position + 2]
    for axis in range(rank):
        cut = max(-before[axis], 0), x.shape[axis] - max(-after[axis], 0)
        x = sliced(node, x, axis, *cut)
    low, high = [max(b, 0) for b in before], [max(a, 0) for a in after]
    if not any((*low, *high)):
        return x
    mode = {"pad": node.value("mode"), "constant_pad_nd": "constant", "_pad_circular": "circular"}.get(name)
    mode = mode or ("reflect" if name.startswith("reflection") else "replicate")
    if mode == "constant":
        return node.emit(Pad(tuple(low), tuple(high), float(node.value("value") or 0.0)), x)
    if mode == "reflect":
        return node.emit(ReflectPad(tuple(low), tuple(high)), x)
    if mode not in ("replicate", "circular"):
        raise UnsupportedError(f"`{name}` with mode {mode!r} is not imported.")
    for axis in range(rank):
        x = _continued(node, x, axis, low[axis], high[axis], circular=mode == "circular")
    return x


def _continued(node: AtenNode, x: Tensor, axis: int, before: int, after: int, *, circular: bool) -> Tensor:
    """Extend x on both sides of an axis by copies of its slices.

    replicate: x -> concat(first, first, x, last)
    circular:  x -> concat(end of x, x, beginning of x)
    """
    size = x.shape[axis]
    parts = [x]
    if circular:
        if before:
            parts.insert(0, sliced(node, x, axis, size - before, size))
        if after:
            parts.append(sliced(node, x, axis, 0, after))
    else:
        if before:
            parts[:0] = [sliced(node, x, axis, 0, 1)] * before
        if after:
            parts += [sliced(node, x, axis, size - 1, size)] * after
    return node.emit(Concat(axis), *parts) if len(parts) > 1 else x
