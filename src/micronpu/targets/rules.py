"""The limits of a backend: one function per limit, whose docstring is shown to users."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from micronpu.ir.graph import Node
from micronpu.ir.op import Op
from micronpu.report.verdict import Finding, Reason, Rule

_Check = TypeVar("_Check", bound=Callable[..., Finding | None])
Checks = tuple[tuple[str, Callable[[Any], bool]], ...]
"""The user's own checks: names, and functions of a node of the program that return False if they refuse it."""


def name_of(node: Node) -> str:
    """Name of an operator in reasons."""
    return node.origin.nodes[0] if node.origin.nodes else node.output.name


def refusal(node: Any, checks: Checks) -> Reason | None:
    """Return the reason if one of the user's checks refuses a node of the program."""
    from micronpu.frontend.program import is_compute  # imports torch
    from micronpu.partition.policy import reason_at

    name = next((name for name, accepts in checks if is_compute(node) and not accepts(node)), None)
    sentence = "The user's own checks accept the operator."
    return None if name is None else reason_at(node, "additional_check", sentence, f"{name} refuses it")


class Rules(list[Rule]):
    """The limits of a backend, in the order in which they are checked."""

    def limit(self, *operators: type[Op], flavors: tuple[str, ...] = ()) -> Callable[[_Check], _Check]:
        """Register a check for operators, or for all of them, in some rule sets, or in all of them."""

        def register(check: _Check) -> _Check:
            sentence = inspect.getdoc(check)
            assert sentence, "a rule's doc-string is what users read"
            self.append(Rule(check.__name__, sentence.split("\n")[0], check, tuple(o.name for o in operators), flavors))
            return check

        return register

    def violated(self, node: Node, *arguments: Any, flavor: str = "") -> list[Reason]:
        """Return every limit that an operator violates; empty if it satisfies all.

        Args:
            arguments: of the checks.
            flavor: rule set to check.
        """
        reasons = []
        for rule in self:
            finding = rule.check(*arguments) if rule.applies(node.op.name, flavor) else None
            if finding is not None:
                source = node.origin.source
                reasons.append(Reason(rule.name, rule.sentence, finding.detail, name_of(node), source, finding.hint))
        return reasons
