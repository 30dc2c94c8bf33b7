"""Rows of the support tables: what an overload becomes, where its operators ran, and the page as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from micronpu.base.arguments import is_class
from micronpu.ir.lowering import LOWERINGS, Capabilities, Decomposition
from micronpu.ir.op import Op
from micronpu.ir.registry import AtenImport
from micronpu.ops import ATEN_IMPORTS, OPERATORS
from micronpu.ops.softmax import of_wide_rows
from micronpu.ops.tables.table import look_up
from micronpu.report.verdict import Verdict

PATH = Path("docs/support-table.md")
COMMAND = "python -m tests.support_tables"

_TITLE = f"""\
# What runs where

Made by `{COMMAND}`; not edited by hand.

One row per ATen operator that micronpu knows: what it becomes, and where a program of it, quantized for the target,
ended when it was compiled. An operator has ways: it is an *operator* of the chip, a *table* of a function of one
element on chips that look results up, or *written* as other operators, which happens before quantization so that every
intermediate value gets its own qparams. Other shapes and arguments than the row's may break a limit; the delegation
report then gives the limit, what was found, and what to try.

- **yes**: all of it is on the NPU, or in int8 on the core; **by** a rewrite that `micronpu passes` lists where the
  operator as it is breaks a limit.
- **in part**: what is named after it runs in float on the host, the rest on the NPU or in int8.
- **no**: it runs in float on the host.
- **gone**: nothing is left of it when the program is compiled.
"""


@dataclass(frozen=True)
class Outcome:
    """Execution of the operators of a row.

    Attributes:
        inside: number of operators on the NPU, or in int8 on the core.
        outside: names of the other ones.
        rewrites: names of the rewrites that increase the former.
    """

    inside: int = 0
    outside: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Outcome:
        left = [v.operator for v in verdicts if not v.delegated and not v.core]
        rewrites = dict.fromkeys(name for v in verdicts for name in v.rewrites)
        return cls(len(verdicts) - len(left), tuple(dict.fromkeys(left)), tuple(rewrites))

    def __str__(self) -> str:
        if not self.inside:
            return "no" if self.outside else "gone"
        by = f", by {_quoted(self.rewrites)}" if self.rewrites else ""
        return f"in part{by}; not {_quoted(self.outside)}" if self.outside else f"yes{by}"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


Column = Mapping[str, Outcome]
"""Outcome of every row for a device, by overload."""


def support_table(columns: Mapping[str, Column], notes: Mapping[str, Sequence[str]]) -> str:
    """Return the page as Markdown.

    Args:
        columns: by title.
        notes: rules for all operators of some columns, sentences under headings.
    """
    lines = [_TITLE]
    for heading, sentences in notes.items():
        lines += [f"{heading}:", "", *(f"- {sentence}" for sentence in sentences), ""]
    rows = sorted(next(iter(columns.values())))
    whole = {title: sum(not outcome.outside for outcome in column.values()) for title, column in columns.items()}
    counts = ", ".join(f"{title} {count}" for title, count in whole.items())
    lines += [f"Rows with **yes** or **gone**, of {len(rows)}: {counts}.", ""]
    lines += [markdown_row(["ATen operator", "becomes", *columns]), markdown_row(["---"] * (len(columns) + 2))]
    for overload in rows:
        names = [f"`aten.{overload}`", *(f"`{name}`" for name in in_place(overload))]
        cells = [str(column[overload]) for column in columns.values()]
        lines.append(markdown_row([", ".join(names), becomes(overload), *cells]))
    return "\n".join(lines) + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def in_place(overload: str) -> list[str]:
    """In-place forms of an overload that have their own lowering."""
    packet, form = overload.split(".")
    forms = [f"{packet}_.{form}", f"{packet}_.{form.removeprefix('Tensor_')}"]
    forms += [f"{packet}_.default"] if form == "int" else []  # transpose_.default is transpose.int
    return sorted({name for name in forms if name in LOWERINGS})


def becomes(overload: str) -> str:
    """The lowerings of an overload, in order of preference."""
    return "; ".join(
        f"written: {lowering.sentence.rstrip('.')}" if isinstance(lowering, Decomposition) else lowering.kind.value
        for lowering in LOWERINGS[overload]
    )


# ---------------------------------------------------------------- what the code makes


def operators_of(overload: str, capabilities: Capabilities | None = None) -> list[type[Op]]:
    """Operator classes that an overload may become, sorted by name, without those that only change the layout.

    Found in the code: the class of an importer, and every operator class that it, or the functions of `micronpu.ops`
    that it calls, names; for a decomposition, the classes of the overloads that it names.

    Args:
        capabilities: of the device; default: without tables.
    """
    found: set[type[Op]] = set()
    _collect_lowerings(overload, capabilities or Capabilities(), found, set(), nested=False)
    layout = {OPERATORS["transpose"], OPERATORS["reshape"]}
    return sorted(found - layout or found, key=lambda o: o.name)


def _collect_lowerings(
    overload: str, capabilities: Capabilities, found: set[type[Op]], seen: set[Any], *, nested: bool = True
) -> None:
    """Collect the classes that an overload may become.

    Args:
        nested: a decomposition names it; prefer its operator form if there is one.
    """
    if overload in seen:
        return
    seen.add(overload)
    entry, decompositions = ATEN_IMPORTS.get(overload), capabilities.decompositions(overload)
    is_operator = entry is not None and (not decompositions or not entry.is_table or capabilities.tables)
    if is_operator and entry is not None:
        _collect_import(entry, capabilities, found, seen)
    if not (nested and is_operator):
        for decomposition in decompositions:
            _collect(decomposition.decompose, capabilities, found, seen)


def _collect_import(entry: AtenImport, capabilities: Capabilities, found: set[type[Op]], seen: set[Any]) -> None:
    owner = getattr(entry.build, "__self__", None)
    function: Any = getattr(entry.build, "__func__", entry.build)
    if is_class(owner, Op) and _uses_class(function):  # type: ignore[type-abstract]
        found.add(owner)
    # Only devices with tables have the operators for int16 numbers.
    wide = set() if entry.is_table or capabilities.tables else {look_up, of_wide_rows}
    _collect(function, capabilities, found, seen | wide if wide else seen)


def _uses_class(function: FunctionType) -> bool:
    return bool(re.search(r"\bcls\b", inspect.getsource(function).partition("(cls")[2]))


def _collect(function: Any, capabilities: Capabilities, found: set[type[Op]], seen: set[Any]) -> None:
    if function in seen:
        return
    seen.add(function)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if is_class(value, Op) and value.__dict__.get("name") in OPERATORS:  # type: ignore[type-abstract]
            found.add(value)
        elif is_class(value) and value.__module__.startswith("micronpu.ops."):
            for member in vars(value).values():
                if isinstance(member, FunctionType):
                    _collect(member, capabilities, found, seen)
        elif isinstance(value, FunctionType) and value.__module__.startswith("micronpu.ops."):
            _collect(value, capabilities, found, seen)
        elif name in LOWERINGS:
            _collect_lowerings(name, capabilities, found, seen)


def _names(code: CodeType) -> Iterator[str]:
    """The global names and the overloads in a function's code."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant
