"""Names of a method's inputs and outputs, which a `.pte` holds as the containers of the exported model's results.

Source: `treespec_dumps` of `torch/utils/_pytree.py`, protocol 1, read here without torch: tuples, lists and
dictionaries. Results in any other container have an order only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from micronpu.base.errors import ModelError
from micronpu.base.parsing import parse_json

_DICTIONARIES = ("builtins.dict", "collections.OrderedDict")
_SEQUENCES = {"builtins.tuple": tuple, "builtins.list": list}


@dataclass(frozen=True)
class Names:
    """Names of a method's inputs and outputs.

    Attributes:
        inputs: of a model that was called with a dictionary; () if they have an order only.
        containers: dictionaries that the model returns, with the positions of the outputs; None if it returns none.
    """

    inputs: tuple[str, ...] = ()
    containers: Any = None

    @classmethod
    def of(cls, taken: str, given: str, inputs: int, outputs: int) -> Names:
        """Read the two specifications of a method with so many inputs and outputs."""
        arguments = containers_of(taken, inputs)
        found = arguments[1] if isinstance(arguments, tuple) and arguments[:1] == ((),) and len(arguments) == 2 else {}
        flat = isinstance(found, dict) and list(found.values()) == list(range(inputs))
        return cls(tuple(map(str, found)) if flat else (), containers_of(given, outputs))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, such as "boxes.0"; () if they have an order only."""
        return () if self.containers is None else tuple(names_of(self.containers))

    def in_order(self, inputs: Sequence[Any], also: Sequence[str] = ()) -> Sequence[Any]:
        """Return inputs in the program's order, of which one dictionary by these names, or others, may be given
        instead."""
        if len(inputs) != 1 or not isinstance(inputs[0], Mapping):
            return inputs
        (given,) = inputs
        known = [names for names in (self.inputs, also) if names]
        for names in known:
            if set(names) == set(given):
                return [given[name] for name in names]
        if not known:
            raise ModelError("The inputs of the program have no names.", hint="its inputs in order, run(a, b)")
        raise ModelError(
            f"The inputs {', '.join(map(repr, given)) or 'none'} were given, and the program takes "
            f"{', '.join(map(repr, known[0]))}.",
            hint="a dictionary with these names",
        )

    def named(self, results: Sequence[object]) -> Any:
        """Return the outputs in the dictionaries that the model returns; unchanged if it returns none."""
        return results if self.containers is None else filled(self.containers, results)


def containers_of(text: str, count: int) -> object:
    """Return nested tuples, lists and dictionaries whose leaves are the positions of the values, or None.

    Args:
        text: specification in torch's notation, from an untrusted file.
        count: number of values.

    Returns:
        None if no value has a name, or if the text does not describe so many values.
    """
    positions = iter(range(count))
    try:
        protocol, spec = parse_json(text)
        found = _read(spec, positions) if protocol == 1 else None
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration):
        return None
    return found if next(positions, None) is None and _has_names(found) else None


def names_of(containers: object, prefix: str = "") -> Iterator[str]:
    """Yield the name of each value, such as "boxes.0", in order."""
    if not isinstance(containers, (dict, tuple, list)):
        yield prefix
        return
    for key, value in containers.items() if isinstance(containers, dict) else enumerate(containers):
        yield from names_of(value, f"{prefix}.{key}" if prefix else str(key))


def filled(containers: Any, values: Sequence[Any]) -> object:
    """Return the containers with values instead of their positions."""
    if isinstance(containers, dict):
        return {key: filled(inner, values) for key, inner in containers.items()}
    if isinstance(containers, (tuple, list)):
        return type(containers)(filled(inner, values) for inner in containers)
    return values[containers]


def _read(spec: Any, positions: Iterator[int]) -> Any:
    kind, children = spec["type"], spec["children_spec"]
    if kind is None:
        return next(positions)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_read(child, positions) for child in children])
    if kind not in _DICTIONARIES:
        raise ValueError(f"a container {kind!r}")
    return {key: _read(child, positions) for key, child in zip(parse_json(spec["context"]), children, strict=True)}


def _has_names(containers: object) -> bool:
    if isinstance(containers, dict):
        return True
    return isinstance(containers, (tuple, list)) and any(map(_has_names, containers))
