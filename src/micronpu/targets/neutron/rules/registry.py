"""The registry of limits, and the check of one operator against it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from micronpu.ir.graph import Node
from micronpu.ir.op import Op
from micronpu.report.verdict import Finding, Reason, Rule
from micronpu.targets.neutron.target_spec import NeutronTargetSpec

RULES: list[Rule] = []
SUPPORTED: set[str] = set()
FLAVOR_OPERATORS: dict[str, frozenset[str]] = {}
"""Flavors that support only some of the `SUPPORTED` operators."""

SUPPORTED_RULE = "operator_exists"
SUPPORTED_SENTENCE = "The operator is one that Neutron has."


def supports(*operators: type[Op]) -> None:
    """Declare operators that Neutron supports; all others are not delegated."""
    SUPPORTED.update(o.name for o in operators)


def supports_only(*operators: str, flavors: tuple[str, ...]) -> None:
    """Declare that the converters of some flavors support these operators only."""
    for flavor in flavors:
        FLAVOR_OPERATORS[flavor] = frozenset(operators)


def is_supported(operator: str, flavor: str) -> bool:
    """True if the converters of a flavor support an operator in some form."""
    return operator in SUPPORTED and operator in FLAVOR_OPERATORS.get(flavor, SUPPORTED)


def limits(*operators: type[Op], flavors: tuple[str, ...] = ()) -> Callable[[Callable[..., Finding | None]], Any]:
    """Register a rule ``check(op, target, *operand types)`` for operators, or for all of them."""

    def register(check: Callable[..., Finding | None]) -> Any:
        sentence = inspect.getdoc(check)
        assert sentence, "a rule's doc-string is what users read"
        RULES.append(Rule(check.__name__, sentence.split("\n")[0], check, tuple(o.name for o in operators), flavors))
        return check

    return register


def check_node(node: Node, target: NeutronTargetSpec) -> list[Reason]:
    """Return every limit that an operator violates; empty if Neutron can run it."""
    name = node.origin.nodes[0] if node.origin.nodes else node.output.name
    flavor = target.converter_flavor
    if not is_supported(node.op.name, flavor):
        newer = node.op.name in SUPPORTED
        meaning = (inspect.getdoc(type(node.op)) or "").split("\n")[0]
        detail = f"`{node.op.name}`, which the converter of {flavor} has not"
        hint = 'converter_flavor="latest", if the converter is SDK 3.1.2 or newer'
        if not newer:
            detail = f"`{node.op.name}` ({meaning[:1].lower()}{meaning[1:].rstrip('.')}), which Neutron has not"
            hint = "leave it to the core; NeutronQuantizer writes a function as operators of Neutron, where any do"
            hint = hint if node.op.name == "table" else ""
        return [Reason(SUPPORTED_RULE, SUPPORTED_SENTENCE, detail, name, node.origin.source, hint)]
    reasons = []
    for rule in RULES:
        if not rule.applies(node.op.name, flavor):
            continue
        finding = rule.check(node.op, target, *node.input_types)
        if finding is not None:
            reasons.append(Reason(rule.name, rule.sentence, finding.detail, name, node.origin.source, finding.hint))
    return reasons


def published_rules(flavor: str) -> list[Rule]:
    """The rules of a flavor, in the order in which they are checked."""
    return [rule for rule in RULES if not rule.flavors or flavor in rule.flavors]
