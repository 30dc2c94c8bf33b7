"""Base classes of all backends: options, as key-value pairs for ExecuTorch too, disabled passes, and limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from typing_extensions import Self

from micronpu.base.docstrings import docstring
from micronpu.base.errors import OptionError
from micronpu.base.parsing import parse_json
from micronpu.ir.graph import Node
from micronpu.ir.op import Op
from micronpu.passes import pipeline
from micronpu.passes.rewrite import Rewrite
from micronpu.report.verdict import Finding, Reason, Rule

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec


@dataclass(frozen=True)
class Options:
    """Options of a compilation; each backend has a frozen dataclass derived from it.

    Attributes:
        of_this_machine: fields that do not affect the program and must not be stored in it.
        files: those of them that are paths of files whose content affects the program.
        only_where_given: fields that compile specs omit if they have their default.
        maker: example of how to make compile specs, for hints.
        silicon_key: key of the silicon in compile specs and programs, which never changes; it was also the name of the
            field.
        silicon: what is compiled for, a field of all backends.
    """

    of_this_machine: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    only_where_given: ClassVar[tuple[str, ...]] = ()
    maker: ClassVar[str]
    silicon_key: ClassVar[str] = "silicon"

    silicon: str

    def __new__(cls, *_: object, **given: object) -> Self:
        if cls.silicon_key in given.keys() - {"silicon"}:
            raise OptionError(
                f"`{cls.__name__}` has no option `{cls.silicon_key}` any more.",
                hint=f"silicon={given[cls.silicon_key]!r}",
            )
        return super().__new__(cls)

    @classmethod
    def _keys(cls) -> dict[str, str]:
        return {f.name: cls.silicon_key if f.name == "silicon" else f.name for f in fields(cls)}

    def program_values(self) -> dict[str, Any]:
        """Fields and values to store in a finished program, without those of the compiling machine."""
        values: dict[str, object] = asdict(self)
        return {key: value for key, value in values.items() if key not in self.of_this_machine}

    def to_specs(self) -> list[CompileSpec]:
        """Return key-value pairs in ExecuTorch's form."""
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        return [CompileSpec(key, value) for key, value in self.to_pairs()]

    def to_pairs(self, *, for_program: bool = False) -> list[tuple[str, bytes]]:
        """Return key-value pairs, values as JSON; those of a program omit what only concerns the compiling machine."""
        values = self.program_values() if for_program else asdict(self)
        defaults = {field.name: field.default for field in fields(self)}
        for name in self.only_where_given:
            if name in values and values[name] == defaults[name]:
                del values[name]
        keys = self._keys()
        return [(keys[name], json.dumps(value).encode()) for name, value in values.items()]

    @classmethod
    def owns(cls, specs: Iterable[CompileSpec]) -> bool:
        """True if key-value pairs may be these options, and not those of another backend of the same name."""
        known = set(cls._keys().values())
        return all(spec.key in known for spec in specs)

    @classmethod
    def from_specs(cls, specs: Iterable[CompileSpec]) -> Self:
        """Parse options from key-value pairs; missing keys get their defaults."""
        keys = cls._keys()
        known = {keys[f.name]: f for f in fields(cls)}
        values: dict[str, Any] = {}
        for spec in specs:
            if spec.key not in known:
                raise OptionError(f"There is no compile spec {spec.key!r}.", hint=f"one of {', '.join(sorted(known))}")
            if known[spec.key].name in values:
                raise OptionError(f"The compile spec {spec.key!r} is given twice.", hint="once")
            try:
                value = parse_json(bytes(spec.value))
            except ValueError as error:
                raise OptionError(
                    f"The compile spec {spec.key!r} holds {bytes(spec.value)!r}, which is not JSON.",
                    hint=f"make the list with {cls.maker}",
                ) from error
            values[known[spec.key].name] = tuple(value) if isinstance(value, list) else value
        for key, field in known.items():
            if field.name not in values and field.default is MISSING:
                raise OptionError(f"The compile spec has no `{key}`.", hint=cls.maker)
        return cls(**values)


class Switches:
    """Options with a field `disabled_passes`.

    Attributes:
        disabled_passes: names of passes and rewrites to skip.
        switchable_rewrites: optional rewrites of single operators of a graph.
        needed_rewrites: required ones.
    """

    disabled_passes: tuple[str, ...]
    switchable_rewrites: ClassVar[tuple[Rewrite, ...]] = ()
    needed_rewrites: ClassVar[tuple[Rewrite, ...]] = ()

    @property
    def disabled_graph_passes(self) -> tuple[str, ...]:
        """The disabled passes that work on a whole graph."""
        return tuple(name for name in self.disabled_passes if name in pipeline.switchable_passes())

    def passes_of(self, passes: pipeline.Pipeline) -> pipeline.Pipeline:
        return passes.without(*(name for name in self.disabled_graph_passes if name in passes.names))

    @property
    def disabled_node_rewrites(self) -> tuple[str, ...]:
        """The disabled passes that rewrite one operator of a graph."""
        known = {rewrite.name for rewrite in self.switchable_rewrites}
        return tuple(name for name in self.disabled_passes if name in known)

    @property
    def disabled_rewrites(self) -> tuple[str, ...]:
        """The disabled passes that work on the float program, for the quantizer."""
        return tuple(name for name in self.disabled_passes if name in _float_rewrites()) if self.disabled_passes else ()

    def check_switches(self) -> None:
        """Refuse names that are no pass or rewrite, or a required one."""
        names = tuple(rewrite.name for rewrite in self.switchable_rewrites)
        if set(self.disabled_passes).difference(pipeline.switchable_passes(), names):
            needed = {rewrite.name for rewrite in self.needed_rewrites}.difference(names)
            pipeline.check_disabled(self.disabled_passes, (*names, *_float_rewrites()), needed)


def _float_rewrites() -> dict[str, str]:
    # Imported here because these modules import torch, which reading options must not wait for.
    from micronpu.quantize.writer import float_rewrites

    return float_rewrites()


_Check = TypeVar("_Check", bound=Callable[..., Finding | None])
Checks = tuple[tuple[str, Callable[[Any], bool]], ...]
"""The user's own checks: names, and functions of a node of the program that return False if they refuse it."""


def name_of(node: Node) -> str:
    return node.origin.nodes[0] if node.origin.nodes else node.output.name


def refusal(node: Any, checks: Checks) -> Reason | None:
    """Return the reason if one of the user's checks refuses a node of the program."""
    from micronpu.frontend.program import is_compute  # imports torch
    from micronpu.partition.partition import reason_at

    name = next((name for name, accepts in checks if is_compute(node) and not accepts(node)), None)
    sentence = "The user's own checks accept the operator."
    return None if name is None else reason_at(node, "additional_check", sentence, f"{name} refuses it")


class Rules(list[Rule]):
    """The limits of a backend, in the order in which they are checked."""

    def limit(self, *operators: type[Op], flavors: tuple[str, ...] = ()) -> Callable[[_Check], _Check]:
        """Register a check for operators, or for all of them, in some rule sets, or in all of them."""

        def register(check: _Check) -> _Check:
            sentence = docstring(check)
            assert sentence, "a rule's doc-string is what users read"
            self.append(Rule(check.__name__, sentence.split("\n")[0], check, tuple(o.name for o in operators), flavors))
            return check

        return register

    def violated(self, node: Node, *arguments: object, flavor: str = "") -> list[Reason]:
        """Return every limit of a rule set that an operator violates; empty if it satisfies all."""
        reasons = []
        for rule in self:
            finding = rule.check(*arguments) if rule.applies(node.op.name, flavor) else None
            if finding is not None:
                source = node.origin.source
                reasons.append(Reason(rule.name, rule.sentence, finding.detail, name_of(node), source, finding.hint))
        return reasons
