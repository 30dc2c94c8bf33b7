"""The limits of every rule set of Neutron by ATen operator, the page `docs/support-neutron.md`.

The page is generated. An overload's row names the LiteRT operators that it is lowered to, found in the code of its
lowerings and of their operators, and the rules for them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any

from micronpu.ir.lowering import LOWERINGS
from micronpu.ir.op import Op
from micronpu.ops import OPERATORS
from micronpu.report.verdict import Rule
from micronpu.targets.neutron.rules import RULES, is_supported
from micronpu.targets.neutron.target_spec import FLAVORS, LATEST
from tests.support_outcomes import COMMAND, markdown_row, operators_of

PATH = Path("docs/support-neutron.md")

_TITLE = f"""\
# The limits of Neutron

Made by `{COMMAND}`; not edited by hand. [What runs where](support-table.md) says where each operator ends.

One row per ATen operator that micronpu knows, with the limits of each rule set: `latest` is the converter of SDK
3.1.2 and newer, the others are chosen by `NeutronTargetSpec(target, converter_flavor=...)`. An operator that breaks a
limit is rewritten if a rewrite makes it fit, and stays on the host otherwise; then the delegation report gives the
sentence below, what was found, and what to try. Limits of every LiteRT operator that the ATen operator may become are
given; not every form of it needs them all.
"""


def published_rules(flavor: str) -> list[Rule]:
    """The rules of a flavor, in the order in which they are checked."""
    return [rule for rule in RULES if not rule.flavors or flavor in rule.flavors]


def limits_table() -> str:
    """Return the page as Markdown."""
    groups = list(_groups())
    general = [f"- {r.sentence}" for r in published_rules(LATEST) if not r.operators]
    head = ["ATen operator", "LiteRT operators", *(", ".join(flavors) for flavors in groups)]
    lines = [_TITLE, "Every operator:", "", *general, "", markdown_row(head), markdown_row(["---"] * len(head))]
    for overload in sorted(LOWERINGS):
        if overload.split(".")[0].endswith("_"):
            continue
        operators = operators_of(overload)
        names = sorted({name for operator in operators for name in litert_names(operator)})
        cells = [_limits(operators, flavors[0]) for flavors in groups]
        lines.append(markdown_row([f"`aten.{overload}`", ", ".join(names) or "none, nothing is left of it", *cells]))
    return "\n".join(lines) + "\n"


def _groups() -> Iterator[tuple[str, ...]]:
    """Groups of flavors with equal rules and operators, newest first."""
    seen: dict[Any, list[str]] = {}
    for flavor in reversed(FLAVORS):
        rules = tuple(r.name for r in published_rules(flavor))
        seen.setdefault((rules, tuple(o for o in OPERATORS if is_supported(o, flavor))), []).append(flavor)
    return (tuple(reversed(flavors)) for flavors in seen.values())


def _limits(operators: list[type[Op]], flavor: str) -> str:
    """The rules for operators, or a remark that Neutron has none of them."""
    missing = [o.name for o in operators if not is_supported(o.name, flavor)]
    if operators and missing == [o.name for o in operators]:
        return "no such operator"
    present = [o.name for o in operators if o.name not in missing]
    sentences = [r.sentence for r in published_rules(flavor) if any(o in r.operators for o in present)]
    if missing:
        sentences.append(f"There is no {', no '.join(f'`{m}`' for m in missing)}, which some forms need.")
    return "<br>".join(dict.fromkeys(sentences)) or "no others"


# ---------------------------------------------------------------- names in LiteRT


def litert_names(operator: type[Op]) -> set[str]:
    """The LiteRT operators that a class emits, found in its code and its attributes."""
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
