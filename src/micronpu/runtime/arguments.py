"""Check the inputs of a program and convert them to the layout that the runtime reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from micronpu.base.errors import ModelError
from micronpu.base.texts import plural
from micronpu.program.pte import MethodSummary, TensorValue


@dataclass(frozen=True)
class TensorSignature:
    """One input or output of a program.

    Attributes:
        dtype: torch's name of the element type, such as "int8".
        shape: sizes; upper bounds when `dynamic`.
        dynamic: True if a call may have smaller sizes.
    """

    dtype: str
    shape: tuple[int, ...]
    dynamic: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def signature_of(value: TensorValue | None) -> TensorSignature | None:
    """Signature of an input or output; None if it is not a tensor."""
    return None if value is None else TensorSignature(value.dtype, value.shape, value.dynamic)


def check_count(program: str, inputs: Sequence[object], method: MethodSummary) -> None:
    """Refuse a wrong number of inputs."""
    expected = method.inputs
    if len(inputs) != len(expected):
        signature = ", ".join(map(str, map(signature_of, expected))) or "none"
        raise ModelError(
            f"{program} takes {plural(len(expected), 'input')} ({signature}), but {len(inputs)} were given.",
            hint="pass the inputs as separate arguments, run(a, b) and not run((a, b))",
        )


def argument(program: str, position: int, given: object, wanted: TensorValue) -> Any:
    """Return an input for the runtime: checked, and in the memory layout of the program."""
    import torch

    if (
        type(given) is torch.Tensor
        and not wanted.dynamic
        and given.shape == wanted.shape
        and given.stride() == wanted.strides
        and given.dtype is getattr(torch, wanted.dtype, None)
        and given.device.type == "cpu"
        and not given.requires_grad
        and not given.is_neg()
    ):
        return given  # fast path: a microsecond instead of ten
    from micronpu.frontend.export import from_numpy

    signature = signature_of(wanted)
    where = f"Input {position} of {program}"
    given = from_numpy(given)
    if not isinstance(given, torch.Tensor):
        raise ModelError(
            f"{where} must be a tensor {signature}, but a {type(given).__name__} was given.",
            hint="torch.as_tensor(...)",
        )
    if given.device.type != "cpu" or given.layout != torch.strided:
        raise ModelError(
            f"{where} must be a dense tensor on the CPU, but a {given.layout} one on {given.device} was given.",
            hint="tensor.cpu()",
        )
    if given.dtype is torch.float64 and wanted.dtype == "float32":
        given = given.float()
    dtype = str(given.dtype).removeprefix("torch.")
    check_type(where, dtype, tuple(given.shape), wanted, f"tensor.to(torch.{wanted.dtype})")
    order = wanted.dim_order
    if (other := other_layout(given, order)) is not None:
        described, hint = other
        what = f"{where} has another memory layout than the program, which was compiled for {described}."
        raise ModelError(what, hint=hint)
    # The runtime reads memory in the program's order of axes and does not rearrange its inputs.
    physical = given.detach().resolve_neg().permute(order).contiguous()
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return physical.permute(inverse)


def check_array(program: str, position: int, array: object, wanted: TensorValue) -> None:
    """Refuse what is no array of an input's element type and shape."""
    where = f"Input {position} of {program}"
    if not isinstance(array, np.ndarray):
        raise ModelError(
            f"{where} must be an array, but a {type(array).__name__} was given.", hint="numpy.asarray(...)"
        )
    check_type(where, array.dtype.name, array.shape, wanted, f"array.astype(numpy.{wanted.dtype})")


def check_type(where: str, dtype: str, shape: tuple[int, ...], wanted: TensorValue, convert: str) -> None:
    """Refuse an input of another element type or shape.

    Args:
        where: name of the input, the beginning of the message.
        convert: hint if only the type is wrong.
    """
    fits = shape == wanted.shape
    if wanted.dynamic and len(shape) == len(wanted.shape):
        fits = all(have <= most for have, most in zip(shape, wanted.shape, strict=True))
    scaled = "float" in dtype and "int" in wanted.dtype
    if "int" in dtype and "float" in wanted.dtype:
        convert += " of numbers as in training; integers with a scale are for a program of --io int8"
    if dtype != wanted.dtype or not fits:
        raise ModelError(
            f"{where} must be {signature_of(wanted)}, but {TensorSignature(dtype, shape)} was given.",
            hint=("the integers of the numbers: `micronpu inspect` shows what they mean" if scaled else convert)
            if fits
            else _reshaped(shape, wanted.shape) or "the shape of the example inputs that the program was compiled with",
        )


def _reshaped(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return the expression that gives a tensor the required shape without mixing its axes; "" if there is none."""
    own, others = ([size for size in of if size != 1] for of in (shape, wanted))
    if own == others or (math.prod(shape) == math.prod(wanted) and min(len(own), len(others)) < 2):
        return f"tensor.reshape{wanted}"
    if sorted(own) != sorted(others):
        return ""
    if len(shape) > 2 and (*shape[:1], shape[-1], *shape[1:-1]) == wanted:
        return "tensor.movedim(-1, 1)"
    waiting, order = list(range(len(shape))), list[int]()
    for size in wanted if len(wanted) == len(shape) else [*[1] * shape.count(1), *others]:
        order.append(next(axis for axis in waiting if shape[axis] == size))
        waiting.remove(order[-1])
    return f"tensor.permute{tuple(order)}" + ("" if len(wanted) == len(shape) else f".reshape{wanted}")


def other_layout(given: Any, order: tuple[int, ...]) -> tuple[str, str] | None:
    """Return the required layout and how to convert to it, if a 4-D tensor clearly has the other one.

    A size of 1 can make a tensor both; a view with gaps is neither and is copied into the right order.
    """
    import torch

    if given.dim() != 4:
        return None
    contiguous = given.is_contiguous()
    channels_last = given.is_contiguous(memory_format=torch.channels_last)
    if order == (0, 2, 3, 1) and contiguous and not channels_last:
        return "channels-last inputs", "x.to(memory_format=torch.channels_last)"
    if order == (0, 1, 2, 3) and channels_last and not contiguous:
        return "contiguous inputs", "x.contiguous()"
    return None
