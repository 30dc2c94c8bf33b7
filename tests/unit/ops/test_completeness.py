"""Every operator has every facet: the registry is walked, and what an operator lacks is named.

No list of operators is kept here, or anywhere: a new operator is checked from the moment it is registered.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir.dialects._ops import ops as _edge_ops  # noqa: F401  (registers dim_order_ops)
from tests.cases import Case, all_cases, case, i8, q, w8
from tests.layers import SOURCE, tree

from micronpu.ir.lowering import LOWERINGS, add_lowering
from micronpu.ir.op import Op, OutputQuantization, QuantizationRule, own_qparams, weighted
from micronpu.ir.registry import AtenImport, from_aten, operator
from micronpu.ops import ATEN_IMPORTS, OPERATORS, Work, all_operators

FEWEST_ROWS = 3
# Rooms that make operators: importers, passes, cures, and the operators' own modules.
MAKERS = ("ops", "passes", "frontend", "quantize", "targets")
NAMESPACES = ("aten", "dim_order_ops")


# ---------------------------------------------------------------- what a complete operator has


def lacks(cls: type[Op], rows: list[Case], makers: set[str]) -> Iterator[str]:
    """What an operator lacks, one clause each."""
    yield from _lacks_facets(cls)
    if not any(_built_by(entry, cls) for entry in ATEN_IMPORTS.values()) and cls.__name__ not in makers:
        yield "a maker: no ATen operator is imported to it, and no importer or pass creates it"
    if len(rows) < FEWEST_ROWS:
        yield f"rows: {len(rows)} in tests/cases/*.py, where at least {FEWEST_ROWS} are wanted"
    if not inspect.isabstract(cls) and isinstance(getattr(cls, "quantization", None), QuantizationRule):
        for row in rows[:FEWEST_ROWS]:
            yield from _lacks_work(row)


def _lacks_facets(cls: type[Op]) -> Iterator[str]:
    doc = vars(cls).get("__doc__") or ""
    # A dataclass without a doc-string gets its signature as one.
    if doc.startswith(f"{cls.__name__}(") or "->" not in doc or not doc.split("\n")[0].endswith("."):
        yield "a doc-string: a sentence, then the shapes as `x [..] -> y [..]`"
    for facet in ("infer", "reference", "to_litert", "to_tosa"):
        if getattr(getattr(cls, facet), "__isabstractmethod__", False):
            yield f"`{facet}`"
    rule = getattr(cls, "quantization", None)
    if not isinstance(rule, QuantizationRule):
        yield "a quantization rule"
        return
    for name in _operands(rule):
        if name not in cls.operand_names and "infer" not in cls.__abstractmethods__:  # its parameters are the operands
            yield f"an operand `{name}`, which its quantization rule names"
    if (rule.output is OutputQuantization.FIXED) != (rule.fixed is not None):
        yield "fixed parameters where the rule says so, and only there"


def _lacks_work(row: Case) -> Iterator[str]:
    (node,) = row.graph().nodes
    constant = tuple(t.is_constant for t in node.inputs)
    work = node.op.work(node.output.type, *node.input_types, constant=constant)
    if not work.bytes_read or not work.bytes_written:
        yield f"bytes read and written by `{row}`"
    weighted = bool(node.op.quantization.weight)
    if weighted and not work.macs:
        yield f"multiply-accumulate operations of `{row}`"
    if weighted and not work.constant_bytes:
        yield f"bytes of weights read by `{row}`"


def _operands(rule: QuantizationRule) -> tuple[str, ...]:
    return tuple(n for n in (*rule.activations, rule.weight, rule.bias) if n)


def _built_by(entry: AtenImport, cls: type[Op]) -> bool:
    return getattr(entry.build, "__self__", None) is cls


@functools.cache
def made_somewhere() -> set[str]:
    """Names of classes that some function of the package uses otherwise than to ask about a type."""
    names: set[str] = set()
    for room in MAKERS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            names |= _used(tree(path), "")
    return names


def _used(tree: ast.AST, owner: str) -> set[str]:
    """Names that are read below ``tree``, apart from annotations, `isinstance`, patterns, and a class's own body."""
    names: set[str] = set()
    for item in ast.iter_child_nodes(tree):
        if isinstance(item, ast.ClassDef):
            names |= {n for part in item.body for n in _used(part, item.name)}
        elif isinstance(item, (ast.arg, ast.pattern)) or (
            isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == "isinstance"
        ):
            continue
        elif isinstance(item, ast.AnnAssign):
            names |= _used(ast.Expression(item.value), owner) if item.value else set()
        elif isinstance(item, ast.FunctionDef):
            names |= {n for part in item.body for n in _used(part, owner)}
        elif isinstance(item, ast.Name) and item.id != owner:
            names.add(item.id)
        else:
            names |= _used(item, owner)
    return names


def problems_of_import(entry: AtenImport) -> Iterator[str]:
    """What is wrong with the import of an ATen overload."""
    schema = schema_of(entry.overload)
    if schema is None:
        yield "torch has no such overload"
        return
    known = {a.name for a in schema.arguments}
    names = dict(entry.arguments)
    if isinstance(entry.quantization, QuantizationRule):
        wanted = _operands(entry.quantization)
    else:  # the rule depends on the node; every operand but the default that all have
        wanted = tuple(n for n in names if n != "x" or names[n] != "self")
    for operand in wanted:
        argument = names.get(operand, operand)
        if argument not in known and operand not in ("bias",):
            yield f"`{operand}` is read from `{argument}`, but the arguments are {', '.join(sorted(known))}"


def schema_of(overload: str) -> Any:
    """torch's schema of an overload such as ``conv2d.default``, or None."""
    packet, name = overload.split(".")
    for namespace in NAMESPACES:
        found = getattr(getattr(getattr(torch.ops, namespace), packet, None), name, None)
        if isinstance(found, torch._ops.OpOverload):
            return found._schema
    return None


def all_problems(rows: list[Case]) -> list[str]:
    makers = made_somewhere()
    found = [
        f"{cls.name} lacks {what}"
        for cls in all_operators()
        for what in lacks(cls, [r for r in rows if type(r.op) is cls], makers)
    ]
    found += [f"{name}: {what}" for name, entry in sorted(ATEN_IMPORTS.items()) for what in problems_of_import(entry)]
    return found


# ---------------------------------------------------------------- the walk

ROWS = all_cases()


def test_every_operator_is_complete():
    problems = all_problems(ROWS)
    assert not problems, "\n".join(problems)


def test_every_row_is_one_operator_of_the_registry():
    strangers = {type(r.op).__name__ for r in ROWS} - {c.__name__ for c in OPERATORS.values()}
    assert not strangers
    assert len({r.name for r in ROWS}) == len(ROWS)


def test_importers_ask_for_arguments_that_exist():
    """A misspelt argument is None, which is also what an absent one is: nobody would notice."""
    known: dict[str, set[str]] = {}
    for entry in ATEN_IMPORTS.values():
        arguments = {a.name for a in getattr(schema_of(entry.overload), "arguments", ())}
        known.setdefault(entry.build.__module__, set()).update(arguments)
    problems = []
    for module, arguments in known.items():
        source = Path(inspect.getsourcefile(importlib.import_module(module)) or "").read_text()
        problems += [f"{module} asks for `{name}`" for name in sorted(asked_for(source) - arguments)]
    assert not problems, "\n".join(problems)


def asked_for(source: str) -> set[str]:
    """Names in ``node.value("name")``, ``pair(node, "name")`` and ``axis_of(node, "name", ..)``."""
    names = set()
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in ("value", "pair", "axis_of") and texts:
            names.add(texts[0])
    return names


def test_the_argument_check_sees_a_misspelt_name():
    assert asked_for("def f(node):\n    return pair(node, 'strid'), node.value('dim')") == {"strid", "dim"}


# ---------------------------------------------------------------- this test can fail


@pytest.fixture
def registry() -> Iterator[None]:
    """Lets a test register operators and imports, which are gone afterwards."""
    saved = [(table, dict(table)) for table in (OPERATORS, LOWERINGS)]
    yield
    for table, before in saved:
        table.clear()
        table.update(before)  # type: ignore[arg-type]


def importer(**options: Any) -> Any:
    """A class method that imports an overload which micronpu does not have."""

    def build(cls: type[Op], node: Any) -> Any:
        return node.emit(cls(), node.tensor("x"))

    return from_aten("lgamma.default", **options)(classmethod(build))


def half(**changes: Any) -> type[Op]:
    """Registers a complete operator, with some members replaced, or left out where they are None."""

    members = {
        "__doc__": "Half of x.\n\nx int8 [any]  ->  y int8 [same].",
        "quantization": own_qparams(),
        "infer": lambda self, x: x,
        "reference": lambda self, y, x: x.data // 2,
        "to_litert": lambda self, emit: emit.add("ABS"),
        "to_tosa": lambda self, emit: emit.input(0),
        "build": importer(),
    }
    chosen = {name: member for name, member in (members | changes).items() if member is not None}
    return operator("half")(type(Op)("Half", (Op,), chosen))


def rows_of(cls: type[Op], count: int = FEWEST_ROWS) -> list[Case]:
    return [] if inspect.isabstract(cls) else [case(cls(), x=i8(2, 3)) for _ in range(count)]


def test_a_complete_operator_passes(registry: None):
    before = all_problems(ROWS)
    assert all_problems([*ROWS, *rows_of(half())]) == before


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"__doc__": None}, "a doc-string"),
        ({"__doc__": "Half of x."}, "a doc-string"),
        (
            {"quantization": None, "build": importer(quantization=own_qparams())},
            "a quantization rule",
        ),
        ({"quantization": own_qparams("z")}, "an operand `z`, which its quantization rule names"),
        ({"quantization": QuantizationRule(output=OutputQuantization.FIXED)}, "fixed parameters"),
        ({"infer": None}, "`infer`"),
        ({"reference": None}, "`reference`"),
        ({"to_litert": None}, "`to_litert`"),
        ({"to_tosa": None}, "`to_tosa`"),
        ({"build": None}, "a maker"),
        ({"work": lambda self, y, *x, constant=(): Work()}, "bytes read and written by"),
        (
            {
                "quantization": weighted(),
                "infer": lambda self, x, weight, bias: x.with_qparams(None),
            },
            "multiply-accumulate",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_incomplete_operator_is_named(registry: None, changes: dict[str, Any], complaint: str):
    cls = half(**changes)
    if "weight" in cls.operand_names:
        rows = [case(cls(), x=i8(2, 3), weight=w8(3, 3), out=q(0.1)) for _ in range(FEWEST_ROWS)]
    else:
        rows = rows_of(cls)
    found = list(lacks(cls, rows, made_somewhere()))
    # An abstract class cannot have rows.
    others = [p for p in found if not p.startswith((complaint, "rows: 0"))]
    assert any(p.startswith(complaint) for p in found), found
    assert not others


def test_too_few_rows_are_named(registry: None):
    found = all_problems([*ROWS, *rows_of(half(), FEWEST_ROWS - 1)])
    assert "half lacks rows: 2 in tests/cases/*.py, where at least 3 are wanted" in found


def test_the_walk_fails_for_an_incomplete_operator(registry: None):
    """The test of the registry itself, and not only what it is made of."""
    half(to_litert=None)
    with pytest.raises(AssertionError, match="half lacks `to_litert`"):
        test_every_operator_is_complete()


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (AtenImport("frobnicate.default", lambda node: node.tensor("x"), own_qparams()), "torch has no such overload"),
        (AtenImport("digamma.wrong", lambda node: node.tensor("x"), own_qparams()), "torch has no such overload"),
        (
            AtenImport("digamma.default", lambda node: node.tensor("x"), own_qparams(), (("x", "input"),)),
            "`x` is read from `input`, but the arguments are self",
        ),
        (
            AtenImport("digamma.default", lambda node: node.tensor("x"), lambda node: own_qparams(), (("z", "other"),)),
            "`z` is read from `other`, but the arguments are self",
        ),
    ],
    ids=["unknown operator", "unknown overload", "wrong argument", "wrong argument behind a function"],
)
def test_a_wrong_import_is_named(registry: None, entry: AtenImport, complaint: str):
    add_lowering(entry)
    assert f"{entry.overload}: {complaint}" in all_problems(ROWS)
    with pytest.raises(AssertionError, match=entry.overload):
        test_every_operator_is_complete()
