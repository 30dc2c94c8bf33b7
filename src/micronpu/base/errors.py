"""The exceptions that users see: each message states what, where, why and what to try."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

Found = TypeVar("Found")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ENDLESS = re.compile(r"\S{301,}")
_MOST_NAMES = 12
"""Maximum in one message."""


def _one_line(text: str) -> str:
    """Escape line breaks and unprintable characters, and shorten very long words in the middle.

    Names of files, operators and options come from users and are part of messages.
    """
    text = _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    return _ENDLESS.sub(lambda found: f"{found.group()[:150]}...{found.group()[-100:]}", text)


class MicroNpuError(Exception):
    """Base class of errors caused by something that the user can change.

    Args:
        what: one sentence with what is wrong, where, and why.
        hint: what to try, as a clause without a full stop; printed after "Try:".
    """

    exit_code = 1
    """Exit code of a command that ends with this error."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what = _one_line(what)
        self.hint = _one_line(hint)
        super().__init__(f"{self.what} Try: {self.hint}." if hint else self.what)


def first_line(error: BaseException) -> str:
    """First line of a foreign exception's message without a full stop; "" if it is empty."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


def reason(error: BaseException) -> str:
    """First line of a foreign exception's message, or the name of its class."""
    return first_line(error) or type(error).__name__


class ErrorsAs:
    """Context that raises an error of this package in place of any other: foreign code raises many kinds.

    Args:
        make: returns the error for an exception.
        own: errors that are raised unchanged.
    """

    def __init__(
        self, make: Callable[[Exception], Exception], own: type[Exception] | tuple[()] = MicroNpuError
    ) -> None:
        self._make, self._own = make, own

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, self._own):
            raise self._make(error) from error


def attempted(call: Callable[[], Found]) -> Found | None:
    """Return what foreign code returns; None if it raises any exception, which other stages report if it matters."""
    try:
        return call()
    except Exception:  # torch and user code raise many kinds
        return None


def one_of(names: Iterable[str], given: str, where: str) -> str:
    """The hint "one of ..." for a name that there is not: of many names those most like it, and what lists all of
    them."""
    known = list(dict.fromkeys(names))
    if len(known) <= _MOST_NAMES:
        return f"one of {', '.join(known)}"
    near = difflib.get_close_matches(given, known, 5, 0.5) or known[:5]
    return f"one of {len(known)}, such as {', '.join(near)}; {where} lists all"


class ModelError(MicroNpuError, ValueError):
    """The model, its example inputs or its calibration data cannot be used as given."""


class UnsupportedError(MicroNpuError):
    """An operator, option or number format that the chosen target cannot handle."""


class ImportMismatchError(ModelError):
    """A model file was read, and its own runtime computes other results."""


class OptionError(MicroNpuError, ValueError):
    """An option has an unknown name or an invalid value; a ValueError, which scripts for other backends catch."""


class FileError(MicroNpuError):
    """A file cannot be read or written."""


class PayloadError(MicroNpuError):
    """A compiled program or delegate payload is truncated, corrupted or of another version."""


class NotOnHostError(PayloadError):
    """A valid program that is not for this machine: it has microcode, or what it needs is missing here."""


class ConverterError(MicroNpuError):
    """A vendor's converter is missing, crashed, timed out, or returned an invalid result.

    Args:
        log: its output up to then.
    """

    def __init__(self, what: str, *, hint: str = "", log: str = "") -> None:
        super().__init__(what, hint=hint)
        self.log = log


class NothingLeftError(ConverterError):
    """A vendor's converter found nothing to compute in a partition, which then runs on the core."""


class RuntimeUnavailableError(MicroNpuError):
    """The host runtime plug-in, or Vela's process, is not available on this machine."""


class WrongResultError(MicroNpuError):
    """A compiled program fails, or computes different results than the quantized model it was compiled from."""


class BudgetError(MicroNpuError):
    """A program exceeds a limit of time or memory, or misses one of accuracy."""

    exit_code = 3


class MovedError(MicroNpuError, ImportError):
    """A name of ExecuTorch that this package has elsewhere."""


class PassError(MicroNpuError):
    """A user-defined pass fails, or returns an invalid graph; the message names the pass and the node."""


class InternalError(MicroNpuError):
    """An invariant of the compiler is broken: a defect of micronpu, not of the model."""


class UpstreamError(MicroNpuError):
    """The installed torch, torchao or ExecuTorch lacks a name that micronpu needs, see `micronpu.upstream`."""
