"""Explanations of failures of torch.export: the construct, the source line of the user, and what to write instead."""

from __future__ import annotations

import sysconfig
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils.rnn import PackedSequence

_OTHERS = tuple(f"{home.resolve()}/" for home in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_STANDARD = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"


@dataclass(frozen=True)
class _Failure:
    """Facts about an exception.

    Attributes:
        kind: name of its class.
        text: its message.
        packed: True if a function in its traceback had a packed sequence.
    """

    kind: str
    text: str
    packed: bool


_MOST_OF_TORCH = 160
"""Maximum number of characters of torch's own message that are quoted with the construct."""
_DEPENDS_ON_VALUES = "GuardOnDataDependentSymNode"
_KNOWN: tuple[tuple[Callable[[_Failure], bool], str, str], ...] = (
    (
        lambda f: f.kind == _DEPENDS_ON_VALUES and "Eq(u" in f.text,
        "Python branches on the value of a tensor",
        "torch.where, which computes both sides, or torch.cond",
    ),
    (
        lambda f: f.kind == _DEPENDS_ON_VALUES,
        "a number is taken out of a tensor",
        "the tensor itself instead of `.item()`, `float()` or `int()`; sizes that depend on values cannot be compiled",
    ),
    (
        lambda f: f.packed,
        "packed sequences cannot be exported",
        "run the layer over all steps, and pick the last one of each sequence by an index or a mask",
    ),
    (
        lambda f: ".numpy() is not supported" in f.text,
        "NumPy computes with a tensor of the model",
        "the function of torch that computes the same",
    ),
    (
        lambda f: "which is not a known type" in f.text,
        "the model returns an object that torch does not know",
        "return tensors, or a tuple, list or dictionary of tensors",
    ),
    (
        lambda f: "is not linked with support for" in f.text,
        "a tensor is moved to a device that this machine does not have",
        "x.to(other.device), or no device at all",
    ),
    (
        lambda f: "does not require grad" in f.text,
        "forward computes a gradient, and programs have none",
        "the derivative written as operators",
    ),
    (
        lambda f: "Cannot access data pointer" in f.text,
        "a tensor is copied by Python, or given to a kernel that torch does not know",
        "x.clone() instead of copy.deepcopy(x); torch.library.custom_op for a kernel",
    ),
    (
        lambda f: any(
            words in f.text for words in ("required argument", "required positional", "positional arguments")
        ),
        "forward takes another number of inputs",
        "one example input for each argument of forward that has no default",
    ),
)


def explain(error: BaseException) -> tuple[str, str]:
    """Return what failed in the user's code, and what to try.

    Args:
        error: as torch.export raised it.

    Returns:
        A clause with the source line where one is known, and a hint.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, SystemExit):
        lines = [f"its forward calls sys.exit({error.code!r})"]
    what = lines[0].rstrip(".") if lines else type(error).__name__
    hint = "check shapes and dtypes of the example inputs; torch.export.export(model, inputs) tells more"
    packed = any(isinstance(value, PackedSequence) for frame, _ in frames for value in frame.f_locals.values())
    failure = _Failure(type(error).__name__, str(error), packed)
    for matches, construct, advice in _KNOWN:
        if matches(failure):
            said = textwrap.shorten(what, _MOST_OF_TORCH, placeholder=" ...")
            what, hint = construct if failure.kind == _DEPENDS_ON_VALUES else f"{construct} ({said})", advice
            break
    own = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames if _is_of_user(frame.f_code.co_filename)]
    return f"{what}{f', at {own[-1]}' if own else ''}", hint


def _is_of_user(file: str) -> bool:
    path = str(Path(file).resolve())
    is_standard = path.startswith(_STANDARD) and "site-packages" not in path
    return not (file.startswith("<") or is_standard or path.startswith(_OTHERS))
