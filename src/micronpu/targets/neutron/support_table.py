"""The support table in `docs/support-table.md`, made from the operators and the rules.

    python -m micronpu.targets.neutron.support_table            writes docs/support-table.md
    python -m micronpu.targets.neutron.support_table --check    fails where the file is not what this would write

Nothing in it is kept by hand.  An ATen overload's row names the LiteRT operators that it becomes, found in the code of
its importer and of the operators that this makes, and the sentences of the rules about them.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from micronpu.files import write_file
from micronpu.ir.op import AtenImport, Op
from micronpu.ops import ATEN_IMPORTS, OPERATORS
from micronpu.targets.neutron.rules import published_rules
from micronpu.targets.neutron.rules.registry import is_supported
from micronpu.targets.neutron.target_spec import FLAVORS, LATEST

PATH = Path("docs/support-table.md")

_TITLE = """\
# What Neutron runs

Made by `python -m micronpu.targets.neutron.support_table`; not edited by hand.

One row per ATen operator that micronpu imports, with the limits of each rule set: `latest` is the converter of SDK
3.1.2 and newer, the others are chosen by `NeutronTargetSpec(target, converter_flavor=...)`. An operator that breaks a
limit stays on the host, and the delegation report gives the sentence below, what was found, and what to try. Limits of
every LiteRT operator that the ATen operator may become are given; not every form of it needs them all.
"""


def support_table() -> str:
    """The page as Markdown."""
    groups = list(_groups())
    general = [f"- {r.sentence}" for r in published_rules(LATEST) if not r.operators]
    head = ["ATen operator", "LiteRT operators", *(", ".join(flavors) for flavors in groups)]
    lines = [_TITLE, "Every operator:", "", *general, "", _row(head), _row(["---"] * len(head))]
    for overload, entry in sorted(ATEN_IMPORTS.items()):
        operators = operators_of(entry)
        names = sorted({name for operator in operators for name in litert_names(operator)})
        cells = [_limits(operators, flavors[0]) for flavors in groups]
        lines.append(_row([f"`aten.{overload}`", ", ".join(names) or "none, nothing is left of it", *cells]))
    return "\n".join(lines) + "\n"


def _groups() -> Iterator[tuple[str, ...]]:
    """Flavors that have the same rules and operators, the newest first."""
    seen: dict[Any, list[str]] = {}
    for flavor in reversed(FLAVORS):
        rules = tuple(r.name for r in published_rules(flavor))
        seen.setdefault((rules, tuple(o for o in OPERATORS if is_supported(o, flavor))), []).append(flavor)
    return (tuple(reversed(flavors)) for flavors in seen.values())


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _limits(operators: list[type[Op]], flavor: str) -> str:
    """The rules about operators, or that Neutron has none of them."""
    missing = [o.name for o in operators if not is_supported(o.name, flavor)]
    if operators and missing == [o.name for o in operators]:
        return "not on the NPU"
    present = [o.name for o in operators if o.name not in missing]
    sentences = [r.sentence for r in published_rules(flavor) if any(o in r.operators for o in present)]
    if missing:
        sentences.append(f"Forms that need {', '.join(f'`{m}`' for m in missing)} are not on the NPU.")
    return "<br>".join(dict.fromkeys(sentences)) or "no others"


# ---------------------------------------------------------------- what the code makes


def operators_of(entry: AtenImport) -> list[type[Op]]:
    """The operator classes that an importer makes, sorted by name, without those that only change the layout.

    Found in the code: the class that the importer belongs to, every operator class that it or the functions of
    `micronpu.ops` that it calls name.
    """
    owner = getattr(entry.build, "__self__", None)
    function: Any = getattr(entry.build, "__func__", entry.build)
    found: set[type[Op]] = set()
    if isinstance(owner, type) and issubclass(owner, Op) and _uses_class(function):
        found.add(owner)
    _collect(function, found, set())
    layout = {OPERATORS["transpose"], OPERATORS["reshape"]}
    real = found - layout
    return sorted(real or found, key=lambda o: o.name)


def _uses_class(function: FunctionType) -> bool:
    return bool(re.search(r"\bcls\b", inspect.getsource(function).partition("(cls")[2]))


def _collect(function: FunctionType, found: set[type[Op]], seen: set[FunctionType]) -> None:
    if function in seen:
        return
    seen.add(function)
    for name in _global_names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, type) and issubclass(value, Op) and value.__dict__.get("name") in OPERATORS:
            found.add(value)
        elif isinstance(value, FunctionType) and value.__module__.startswith("micronpu.ops."):
            _collect(value, found, seen)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def litert_names(operator: type[Op]) -> set[str]:
    """The LiteRT operators that a class writes itself as, found in its code and its attributes."""
    builtin = _builtin_names()
    source = "".join(
        inspect.getsource(vars(base)["to_litert"]) for base in operator.__mro__[:-1] if "to_litert" in vars(base)
    )
    names = {word for word in re.findall(r'"([A-Z][A-Z0-9_]*)"', source) if word in builtin}
    for attribute in re.findall(r"self\.(\w+)", source):
        value = getattr(operator, attribute, None)
        if isinstance(value, str) and value in builtin:
            names.add(value)
    for field in fields(operator):  # type: ignore[arg-type]
        if isinstance(field.default, Enum) and field.default is not MISSING and f"self.{field.name}.name" in source:
            names |= {member.name for member in type(field.default) if member.name in builtin}
    return names


@functools.lru_cache(maxsize=1)
def _builtin_names() -> frozenset[str]:
    from ai_edge_litert import schema_py_generated as schema

    return frozenset(k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int) and not k.startswith("_"))


def main(arguments: list[str]) -> int:
    """Writes or checks the file in the current checkout; returns the exit code."""
    table = support_table()
    if "--check" not in arguments:
        print(f"{write_file(PATH, table.encode())}: {len(ATEN_IMPORTS)} operators")
        return 0
    current = PATH.is_file() and PATH.read_text(encoding="utf-8") == table
    print(
        f"{PATH} is current."
        if current
        else f"{PATH} is out of date. Try: python -m micronpu.targets.neutron.support_table."
    )
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
