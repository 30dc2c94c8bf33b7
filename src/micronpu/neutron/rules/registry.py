"""The registry of limits, and the check of one operator against it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from micronpu.ir.graph import Node
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.ops.base import Op
from micronpu.partition.verdict import Finding, Reason, Rule

RULES: list[Rule] = []
SUPPORTED: set[str] = set()

SUPPORTED_RULE = "operator_exists"
SUPPORTED_SENTENCE = "Neutron has the operator."


def supports(*operators: type[Op]) -> None:
    """Declares that Neutron has operators; whatever is not declared stays on the host."""
    SUPPORTED.update(o.name for o in operators)


def limits(*operators: type[Op], flavors: tuple[str, ...] = ()) -> Callable[[Callable[..., Finding | None]], Any]:
    """Registers a rule ``check(op, target, *operand types)`` for operators, or for all of them."""

    def register(check: Callable[..., Finding | None]) -> Any:
        sentence = inspect.getdoc(check)
        assert sentence, "a rule's doc-string is what users read"
        RULES.append(Rule(check.__name__, sentence.split("\n")[0], check, tuple(o.name for o in operators), flavors))
        return check

    return register


def check_node(node: Node, target: NeutronTargetSpec) -> list[Reason]:
    """Every limit that an operator of the graph breaks, empty where Neutron can run it."""
    name = node.origin.nodes[0] if node.origin.nodes else node.output.name
    if node.op.name not in SUPPORTED:
        return [Reason(SUPPORTED_RULE, SUPPORTED_SENTENCE, f"`{node.op.name}`", name, node.origin.source)]
    reasons = []
    for rule in RULES:
        if not rule.applies(node.op.name, target.converter_flavor):
            continue
        finding = rule.check(node.op, target, *node.input_types)
        if finding is not None:
            reasons.append(Reason(rule.name, rule.sentence, finding.detail, name, node.origin.source, finding.hint))
    return reasons


def published_rules(flavor: str) -> list[Rule]:
    """The rules of a flavor, in the order in which they are checked."""
    return [rule for rule in RULES if not rule.flavors or flavor in rule.flavors]
