"""The registry of all operators, and of the ATen overloads that become them.

The modules of `micronpu.ops` fill it when they are imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

from micronpu.base.errors import InternalError
from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.facts import Facts, keeps
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import LOWERINGS, Kind, Lowering, add_lowering, states
from micronpu.ir.op import Op, QuantizationRule

OpClass = TypeVar("OpClass", bound=type[Op])
Marked = TypeVar("Marked")
BuildFunction = Callable[[AtenNode], Tensor]


@dataclass(frozen=True)
class AtenImport(Lowering):
    """Import of one ATen overload as operators or a table."""

    # Makes the nodes and returns the result; raises `UnsupportedError` for a form that cannot be imported.
    build: BuildFunction
    # Annotation rule, or a function of the node that returns it.
    quantization: QuantizationRule | Callable[[AtenArguments], QuantizationRule]
    arguments: tuple[tuple[str, str], ...] = ()  # operand name to schema argument name, if they differ
    fuses: bool = False  # the operator can fuse a following clamp
    is_activation: bool = False  # this overload is such a clamp
    moves_only: bool = False  # the operator computes nothing, so it alone does not start a partition
    is_table: bool = False  # the operator is a table, used only on chips that support lookup tables

    @property
    def kind(self) -> Kind:
        return Kind.TABLE if self.is_table else Kind.OPERATOR

    def rule_for(self, node: AtenArguments) -> QuantizationRule:
        return self.quantization(node) if callable(self.quantization) else self.quantization


class _Imports(Mapping[str, AtenImport]):
    """The operators and tables of the registry of lowerings, by overload."""

    def __getitem__(self, overload: str) -> AtenImport:
        for lowering in LOWERINGS.get(overload, ()):
            if isinstance(lowering, AtenImport):
                return lowering
        raise KeyError(overload)

    def __iter__(self) -> Iterator[str]:
        return (name for name, lowerings in LOWERINGS.items() if any(isinstance(w, AtenImport) for w in lowerings))

    def __len__(self) -> int:
        return sum(1 for _ in self)


MOVES = Facts(moves=True, range=keeps, degree=1.0)
"""Facts of operators that only move or select elements of their operand."""

OPERATORS: dict[str, type[Op]] = {}
ATEN_IMPORTS: Mapping[str, AtenImport] = _Imports()
"""A view of the registry of lowerings: its operators and tables."""


@dataclass_transform(frozen_default=True)
def operator(name: str) -> Callable[[OpClass], OpClass]:
    """Make a class a frozen dataclass and register it under ``name``."""

    def register(cls: OpClass) -> OpClass:
        if name in OPERATORS:
            raise InternalError(f"Two operators are called {name}.")
        made: Any = dataclass(frozen=True)(cls)
        made.__str__ = Op.__str__
        made.name = name
        made.operand_names = tuple(inspect.signature(made.infer).parameters)[1:]
        OPERATORS[name] = made
        for member in vars(cls).values():
            function = getattr(member, "__func__", member)
            for pending in getattr(function, "_aten_imports", ()):
                _register_import(pending, made, member)
        for pending in vars(cls).get("_aten_imports", ()):
            _register_import(pending, made, inspect.getattr_static(made, "build"))
        return made  # type: ignore[no-any-return]

    return register


def _register_import(pending: tuple[Any, ...], cls: type[Op], member: Any) -> None:
    overloads, quantization, facts, options = pending
    if cls.is_elementwise:
        facts = replace(facts or Facts(), elementwise=True)
    build = member.__get__(None, cls)
    for overload in overloads:
        rule = quantization or cls.quantization
        add_lowering(AtenImport(overload, build, rule, **options))
    states(*overloads, facts=facts)


def from_aten(
    *overloads: str,
    quantization: QuantizationRule | Callable[[AtenArguments], QuantizationRule] | None = None,
    fuses: bool = False,
    is_activation: bool = False,
    moves_only: bool = False,
    facts: Facts | None = None,
    **arguments: str,
) -> Callable[[Marked], Marked]:
    """Mark a class method ``build(cls, node)``, or a class whose base has one, as the importer of ATen overloads.

    Args:
        facts: of the overloads; by default those of operators that only move elements, if it is one.
        arguments: operand name = schema argument name, if they differ (``x="self"`` is the default).
    """

    def mark(method: Marked) -> Marked:
        function = getattr(method, "__func__", method)
        names = tuple(({"x": "self"} | arguments).items())
        pending = vars(function).get("_aten_imports", [])
        options = {"fuses": fuses, "is_activation": is_activation, "moves_only": moves_only}
        pending.append(
            (overloads, quantization, facts or (MOVES if moves_only else None), {"arguments": names, **options})
        )
        setattr(function, "_aten_imports", pending)  # noqa: B010  (a class has no attributes that `vars` could set)
        return method

    return mark


def imports(
    *overloads: str,
    quantization: QuantizationRule | Callable[[AtenArguments], QuantizationRule],
    moves_only: bool = True,
    fuses: bool = False,
    is_table: bool = False,
    facts: Facts | None = None,
    **arguments: str,
) -> Callable[[BuildFunction], BuildFunction]:
    """Mark a function as the importer of ATen overloads that become several operators; arguments as in `from_aten`."""

    def mark(build: BuildFunction) -> BuildFunction:
        for overload in overloads:
            names = tuple(({"x": "self"} | arguments).items())
            add_lowering(AtenImport(overload, build, quantization, names, fuses, False, moves_only, is_table))
        states(*overloads, facts=facts or (MOVES if moves_only else None))
        return build

    return mark


def all_operators() -> Iterator[type[Op]]:
    """Every operator class, sorted by name."""
    return (OPERATORS[name] for name in sorted(OPERATORS))
