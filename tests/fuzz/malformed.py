"""Malformed calls of everything public: each ends in a `MicroNpuError` of one sentence.

    python -m tests.fuzz.malformed                    every call, in two minutes
    python -m tests.fuzz.malformed compile.target     those of one name or parameter

For every public name there is one good call, in `tests/fuzz/public_calls.py`.  In each of its parameters in turn a
value is put that does not fit: of a type that the annotation does not have, and, of the right type, names that nobody
knows, files that are not there, numbers out of range.  What is new in an `__all__` has no good call and fails the test.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from micronpu.base.errors import MicroNpuError


def broken_iterator() -> Iterator[Any]:
    """Raises at its first item."""
    raise RuntimeError("the disk is gone")
    yield


class _Strange:
    """Raises whatever one asks."""

    def __repr__(self) -> str:
        return "<strange>"

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


# Of which kind, and how it is shown.
VALUES: tuple[tuple[str, str, Callable[[], Any]], ...] = (
    ("none", "None", lambda: None),
    ("bool", "True", lambda: True),
    ("int", "0", lambda: 0),
    ("int", "-1", lambda: -1),
    ("int", "10**30", lambda: 10**30),
    ("float", "0.5", lambda: 0.5),
    ("float", "nan", lambda: math.nan),
    ("float", "-inf", lambda: -math.inf),
    ("text", "''", lambda: ""),
    ("text", "'no such thing'", lambda: "no such thing"),
    ("text", "'\\0'", lambda: "a\0b"),
    ("text", "'x' * 5000", lambda: "x" * 5000),
    ("text", "a line break", lambda: "a\nb"),
    ("text", "a lone surrogate", lambda: "\udce4"),
    ("bytes", "b'abc'", lambda: b"abc"),
    ("path", "Path('no/such/file')", lambda: Path("no/such/file")),
    ("path", "Path('\\0')", lambda: Path("a\0b")),
    ("sequence", "[]", lambda: []),
    ("sequence", "[None]", lambda: [None]),
    ("sequence", "[object()]", lambda: [object()]),
    ("sequence", "[[]]", lambda: [[]]),
    ("sequence", "[nan]", lambda: [math.nan]),
    ("sequence", "['no such thing']", lambda: ["no such thing"]),
    ("sequence", "a tuple of itself", lambda: (("a", ("b",)),)),
    ("iterator", "broken_iterator()", broken_iterator),
    ("mapping", "{}", dict),
    ("mapping", "{1: 2}", lambda: {1: 2}),
    ("set", "{'a'}", lambda: {"a"}),
    ("callable", "len", lambda: len),
    ("class", "int", lambda: int),
    ("object", "object()", object),
    ("object", "something strange", _Strange),
    ("object", "a module", lambda: json),
    ("tensor", "tensor(nan)", lambda: torch.tensor(math.nan)),
    ("tensor", "an empty tensor", lambda: torch.empty(0)),
    ("array", "an array of objects", lambda: np.array([object()])),
)

_FITS = {
    "str": {"text"},
    "bool": {"bool"},
    "int": {"int"},
    "float": {"int", "float"},
    "None": {"none"},
    "bytes": {"bytes"},
    "_Bytes": {"bytes"},
    "Path": {"path"},
    "PathLike": {"path"},
    "Sequence": {"sequence", "text"},
    "Iterable": {"sequence", "iterator", "text", "mapping", "set"},
    "tuple": {"sequence"},
    "list": {"sequence"},
    "Mapping": {"mapping"},
    "dict": {"mapping"},
    "Callable": {"callable", "class"},
    "Train": {"callable", "class"},
    "ProgressCallback": {"callable", "class"},
    "type": {"class"},
    "Activations": {"text"},
    "ActivationObserver": {"text"},
    "Sort": {"text"},
    "Function": {"callable", "class"},
    "Quantization": {"text"},
    "Any": {kind for kind, _, _ in VALUES},
    "object": {kind for kind, _, _ in VALUES},
}


def fits(annotation: str) -> set[str]:
    """The kinds of values that an annotation takes; none for a class of ours."""
    depth, parts = 0, [""]
    annotation = re.sub(r"^InitVar\[(.*)\]$", r"\1", annotation.strip("'\""))
    for letter in annotation:
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    heads = [re.sub(r"\[.*", "", part.strip(), flags=re.DOTALL).split(".")[-1] for part in parts]
    return set().union(*(_FITS.get(head, set()) for head in heads))


@dataclass(frozen=True)
class Call:
    """A good call of something public.

    Attributes:
        name: in messages.
        function: what is called.
        good: arguments by name with which it succeeds, made anew for each call; variadic ones as ``*inputs``.
        wrong: further values that a parameter must refuse, though their type fits.
        any: parameters that take every value of a type that fits.
        empty: parameters of which an empty value is the default.
        further: parameters that the signature does not show, with their annotations.
    """

    name: str
    function: Callable[..., Any]
    good: Callable[[], Mapping[str, Any]] = dict
    wrong: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    any: Sequence[str] = ()
    empty: Sequence[str] = ()
    further: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Malformed:
    """One malformed call."""

    call: Call
    parameter: str
    shown: str
    value: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.call.name}({self.parameter}={self.shown})"

    def wrong(self) -> str:
        """What is wrong with what comes of it, or ""."""
        arguments = dict(self.call.good())
        arguments[self.parameter] = self.value()
        variadic = arguments.pop("*inputs", None)
        silence = io.StringIO()
        try:
            with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
                self.call.function(*(variadic if variadic is not None else ()), **arguments)
        except MicroNpuError as error:
            return _form(error)
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            place = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))
            return f"{type(error).__name__}: {str(error)[:150]!r} at {place}"
        return "is accepted"


def _form(error: MicroNpuError) -> str:
    text = str(error)
    if "\n" in text or not text.isprintable():
        return f"more than a line, or not printable: {text!r}"
    if type(error).__name__ == "InternalError":
        return f"an internal error: {text}"
    if len(text) > 500:
        return f"{len(text)} characters: {text[:200]}"
    if error.what[-1:] not in (".", "?"):
        return f"no sentence: {text!r}"
    return ""


def malformed(calls: Sequence[Call]) -> Iterator[Malformed]:
    """Every malformed call of the calls."""
    for call in calls:
        annotations = {
            name: str(p.annotation) if p.annotation is not inspect.Parameter.empty else "Any"
            for name, p in inspect.signature(call.function).parameters.items()
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        } | dict(call.further)
        for name, annotation in annotations.items():
            kinds = fits(annotation)
            for kind, shown, make in VALUES:
                unfit = kind not in kinds
                is_known = kind in kinds and name not in call.any and not re.search("Any|object", annotation)
                unknown, missing = kind == "text" and is_known, kind == "path" and is_known
                if name in call.empty and shown in ("''", "[]", "{}"):
                    continue
                if unfit or unknown or missing:
                    yield Malformed(call, name, shown, make)
            for number, value in enumerate(call.wrong.get(name, ())):
                yield Malformed(call, name, _shown(value, number), lambda value=value: value)
        for name in call.wrong:
            if name not in annotations:
                for number, value in enumerate(call.wrong[name]):
                    yield Malformed(call, name, _shown(value, number), lambda value=value: value)


def _shown(value: Any, number: int) -> str:
    text = re.sub(r"\s+", " ", repr(value))
    return text if len(text) < 60 else f"wrong value {number}"


def main() -> int:
    """Prints what is wrong, and how many calls there were."""
    from tests.fuzz.public_calls import CALLS

    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    count = failures = 0
    for each in malformed(CALLS):
        if wanted and not f"{each.call.name}.{each.parameter}".startswith(wanted):
            continue
        count += 1
        if found := each.wrong():
            failures += 1
            print(f"{each}: {found}", flush=True)
    print(f"{count} malformed calls, {failures} of them without a sentence")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
