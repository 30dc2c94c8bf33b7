"""The exceptions that users see: each message is a sentence with what, where, why and what to try."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ENDLESS = re.compile(r"\S{301,}")


def _one_line(text: str) -> str:
    """The text without line breaks and what no terminal prints, with the middle of endless words left out.

    Names of files, operators and options come from users, and stand in sentences as they are.
    """
    text = _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    return _ENDLESS.sub(lambda found: f"{found.group()[:150]}...{found.group()[-100:]}", text)


class MicroNpuError(Exception):
    """Base of every error raised for something the user can change.

    Args:
        what: one sentence that says what is wrong, where, and why.
        hint: what to try, as a clause without a full stop; printed after "Try:".
    """

    exit_code = 1
    """Of the command that ends with it."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what = _one_line(what)
        self.hint = _one_line(hint)
        super().__init__(f"{self.what} Try: {self.hint}." if hint else self.what)


def first_line(error: BaseException) -> str:
    """What somebody else's exception says, without a full stop; "" where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


class ModelError(MicroNpuError, ValueError):
    """The model, its example inputs or its calibration data cannot be used as given."""


class UnsupportedError(MicroNpuError):
    """An operator, option or number format that the chosen target cannot handle."""


class OptionError(MicroNpuError, ValueError):
    """An option has an unknown name or an impossible value; a ValueError, which scripts for other back ends catch."""


class FileError(MicroNpuError):
    """A file cannot be read or written."""


class PayloadError(MicroNpuError):
    """A compiled program or delegate payload is truncated, corrupted or of another version."""


class NotOnHostError(PayloadError):
    """A program that is whole, and not for this machine: it holds microcode, or calls for kernels that are not here."""


class ConverterError(MicroNpuError):
    """A vendor's converter is missing, crashed, did not end, or gave something that cannot be right.

    Args:
        log: what it had printed until then.
    """

    def __init__(self, what: str, *, hint: str = "", log: str = "") -> None:
        super().__init__(what, hint=hint)
        self.log = log


class NothingLeftError(ConverterError):
    """A vendor's converter found nothing to compute in a partition, which then stays on the host."""


class RuntimeUnavailableError(MicroNpuError):
    """The host runtime plug-in, or the process that Vela runs in, cannot be had on this machine."""


class WrongResultError(MicroNpuError):
    """A compiled program gives something else than the quantized model that it was made of."""


class BudgetError(MicroNpuError):
    """A program takes more time or memory than it may, or is less accurate than it must be."""

    exit_code = 3


class MovedError(MicroNpuError, ImportError):
    """A public name of an earlier version, which has another name or place now."""


class PassError(MicroNpuError):
    """A pass of the user's own fails, or leaves a graph that is none; the message names the pass and the node."""


class InternalError(MicroNpuError):
    """An invariant of the compiler is broken: a defect of micronpu, not of the model."""


class UpstreamError(MicroNpuError):
    """The installed torch, torchao or ExecuTorch has no such name as micronpu needs, see `micronpu.upstream`."""
