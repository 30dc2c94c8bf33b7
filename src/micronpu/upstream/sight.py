"""What torch.export finds the long way, and what can be seen at once.

It computes with tensors that have nothing but shapes.  For a batch norm it computes every step of it so, six
milliseconds for what has the shape of its operand: a quarter of the export of a MobileNetV2.  For every node it looks
at the whole stack for the lines of the model, and it asks every tensor for each order that it might have in memory.
What is not as plain as a float tensor in order is left to torch, which also says what is wrong with operands.  The
program is the same, which tests compare.
"""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from micronpu.upstream.door import declared, optional
from micronpu.upstream.replaced import Replaced, calling
from micronpu.upstream.torch import FakeTensor

_DISPATCH = declared(
    "torch._subclasses.fake_tensor:FakeTensorMode._dispatch_impl",
    "shapes that are seen at once are computed step by step",
    parameters=("self", "func", "types", "args", "kwargs"),
)
_SYMBOLS = declared(
    "torch:Tensor._has_symbolic_sizes_strides", "shapes that are seen at once are not told from those that are symbols"
)
_ALIASED = declared(
    "torch._subclasses.fake_tensor:in_kernel_invocation_manager",
    "views that are seen at once are computed step by step",
    parameters=("fake_mode",),
)
_STACKS = declared("torch.fx.proxy:CapturedTraceback", "lines of a model are looked for in every frame")
_ANCHORS = declared("torch.fx.proxy:_STACK_TRACE_ANCHORS", "lines of a model are looked for in every frame")
_ORDERS = declared(
    "torch.fx.passes.shape_prop:is_contiguous_for_memory_format_or_false",
    "tensors are asked for every order that they might have",
    parameters=("a", "memory_format"),
)

# ---------------------------------------------------------------- shapes


def _is_plain(tensor: Any, mode: Any, shape: Sequence[int] | None = None) -> bool:
    """Whether a tensor is a float one of a mode, in order in memory, of which nothing but the shape is known."""
    return (
        type(tensor) is FakeTensor
        and tensor.fake_mode is mode
        and tensor.dtype is torch.float32
        and tensor.layout is torch.strided
        and tensor.fake_device.type == "cpu"
        and tensor.constant is None
        and (shape is None or tuple(tensor.shape) == tuple(shape))
        and _is_in_order(tensor)
    )


def _is_in_order(tensor: torch.Tensor) -> bool:
    """Whether strides are numbers, and those of a new tensor; those of axes of one element included."""
    if tensor._has_symbolic_sizes_strides:
        return False
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _made(mode: Any, *shapes: Sequence[int]) -> tuple[Any, ...]:
    return tuple(FakeTensor(mode, torch.empty(s, device="meta"), torch.device("cpu")) for s in shapes)


def _batch_norm(mode: Any, args: Sequence[Any]) -> Any:
    """x [N, C, ...], weight, bias, mean and variance [C] -> y like x, and two tensors of nothing."""
    if len(args) != 7 or not _is_plain(args[0], mode) or args[0].dim() < 2:
        return None
    x, weight, bias, mean, variance = args[:5]
    of_channels = [mean, variance, *(t for t in (weight, bias) if t is not None)]
    if not all(_is_plain(t, mode, (x.shape[1],)) for t in of_channels):
        return None
    return _made(mode, x.shape, (0,), (0,))


def _of_each(mode: Any, args: Sequence[Any]) -> Any:
    """x, numbers -> y like x."""
    x, *rest = args
    if not _is_plain(x, mode) or not all(type(number) in (int, float) for number in rest):
        return None
    return _made(mode, x.shape)[0]


def _view(mode: Any, args: Sequence[Any]) -> Any:
    """x, sizes -> x of other sizes."""
    x, sizes = args
    if not _is_plain(x, mode) or not all(type(size) is int and size > 0 for size in sizes):
        return None
    if math.prod(sizes) != x.numel():
        return None
    from torch._subclasses.fake_tensor import in_kernel_invocation_manager

    with in_kernel_invocation_manager(mode):
        seen = torch.ops.aten.view.default(x, sizes)
    return FakeTensor(mode, seen, x.fake_device)


_AT_SIGHT: dict[Any, Callable[[Any, Sequence[Any]], Any]] = {
    torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm,
    torch.ops.aten.hardtanh.default: _of_each,
    torch.ops.aten.hardswish.default: _of_each,
    torch.ops.aten.hardsigmoid.default: _of_each,
    torch.ops.aten.view.default: _view,
}
"""By operator, what is called with mode and operands; it gives the result, or None where torch is to find it."""


def _dispatched(usual: Any, mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    seen = _AT_SIGHT.get(func)
    if seen is not None and not kwargs and not mode.propagate_real_tensors:
        result = seen(mode, args)
        if result is not None:
            return result
    return usual(mode, func, types, args, kwargs)


# ---------------------------------------------------------------- lines and orders


class _Stack:
    """The frames of a model's lines, as torch picks them, without those that it leaves out."""

    def __init__(self, frame: FrameType | None) -> None:
        self._frame = frame

    def summary(self) -> traceback.StackSummary:
        from torch.fx.proxy import _STACK_TRACE_ANCHORS

        found, frame = [], self._frame
        while frame is not None:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if name == "forward" or file.endswith("torch/__init__.py") or (file, name) in _STACK_TRACE_ANCHORS:
                found.append(traceback.FrameSummary(file, frame.f_lineno, name))
            frame = frame.f_back
        return traceback.StackSummary.from_list(found[::-1])


class _Stacks:
    """In the place of `CapturedTraceback`, of which torch.fx wants the lines of the model and nothing else."""

    def __init__(self, usual: Any, is_asked_for: Callable[[], bool]) -> None:
        self._usual, self._is_asked_for = usual, is_asked_for

    def extract(self, **options: Any) -> Any:
        return self._usual.extract(**options) if options or not self._is_asked_for() else _Stack(sys._getframe(1))


def _is_ordered(usual: Any, a: torch.Tensor, *, memory_format: torch.memory_format) -> bool:
    """Whether a tensor is in an order."""
    if memory_format is torch.contiguous_format and _is_in_order(a):
        return True
    return bool(usual(a, memory_format=memory_format))


_EXPORT = (
    Replaced(_DISPATCH, calling(_dispatched)),
    Replaced(_STACKS, _Stacks),
    Replaced(_ORDERS, calling(_is_ordered)),
)


@contextlib.contextmanager
@optional(_DISPATCH, _SYMBOLS, _ALIASED, _STACKS, _ANCHORS, _ORDERS)
def exports_at_sight() -> Iterator[None]:
    """While it lasts, torch.export takes less long in this thread, and gives the same."""
    with contextlib.ExitStack() as stack:
        for replaced in _EXPORT:
            stack.enter_context(replaced.meanwhile())
        yield
