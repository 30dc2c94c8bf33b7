"""Every n-th element along an axis: strided slices, in a form that every target supports."""

from __future__ import annotations

from micronpu.ir.aten import AtenNode, axis_of
from micronpu.ir.graph import Tensor
from micronpu.ir.registry import imports
from micronpu.ops.movement import Pad, channels_first, channels_last, reshaped
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.slicing import SLICES, Slice, sliced


@imports(*SLICES, quantization=Slice.quantization)
def _slice(node: AtenNode) -> Tensor:
    x = node.tensor("x")
    axis = axis_of(node, "dim", len(x.shape))
    size = x.shape[axis]
    # Python clips bounds and counts negative ones from the end; torch supports positive steps only.
    start, stop, step = slice(node.value("start"), node.value("end"), node.value("step")).indices(size)
    return strided(node, x, axis, start, stop, step)


def strided(node: AtenNode, x: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    """Every ``step``-th element from ``start`` up to ``stop`` along an axis, without a strided slice.

    Height and width of an image: a max pool with a window of 1x1 and this stride. Any other axis is split into pieces
        of ``step`` elements, and one of each is selected:

    x [.., n, ..] -> slice [.., count * step, ..] -> reshape [.., count, step, ..]
                  -> slice [.., count, 1, ..] -> reshape [.., count, ..]
    """
    if step == 1 or stop - start <= step:
        return sliced(node, x, axis, start, stop if step == 1 else min(stop, start + 1))
    if len(x.shape) == 4 and axis >= 2:
        part = channels_last(node, sliced(node, x, axis, start, stop))
        stride = (step, 1) if axis == 2 else (1, step)
        return channels_first(node, node.emit(MaxPool2d((1, 1), stride), part))
    count = -(-(stop - start) // step)
    shape = list(x.shape)
    length = count * step
    if length > shape[axis]:
        after = tuple(length - n if i == axis else 0 for i, n in enumerate(shape))
        x = node.emit(Pad((0,) * len(shape), after), x)
        shape[axis] = length
    # The pieces may start before `start`, which is then not their first element.
    first = min(start, shape[axis] - length)
    x = sliced(node, x, axis, first, first + length)
    before, behind = tuple(shape[:axis]), tuple(shape[axis + 1 :])
    pieces = reshaped(node, x, (*before, count, step, *behind))
    return reshaped(node, sliced(node, pieces, axis + 1, start - first, start - first + 1), (*before, count, *behind))
