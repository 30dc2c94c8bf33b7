"""Inputs and results by name: ``{"input_ids": ids, "cache_position": place}``, and ``{"logits": logits}``."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import nn

from micronpu.base.arguments import described
from micronpu.base.errors import ModelError


def called_by_name(model: Any, examples: Mapping[str, Any]) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a module that takes the same inputs in order, and these inputs.

    Raises:
        ModelError: it is no module, or its forward has no such argument.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"The example inputs are by name, and the model is {described(model)}, whose inputs have an order.",
            hint="a tuple of tensors",
        )
    names = tuple(examples)
    try:
        inspect.signature(model.forward).bind(**examples)
    except TypeError as error:
        raise ModelError(
            f"The forward of {type(model).__name__} does not take the example inputs {', '.join(map(repr, names))}: "
            f"{error}.",
            hint="the names of its arguments",
        ) from error
    forward = type(model).forward

    def ordered(self: nn.Module, *given: Any) -> Any:
        return forward(self, **dict(zip(names, given, strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD  # torch.export names the inputs of the program by it
    ordered.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in ("self", *names)])  # type: ignore[attr-defined]
    ordered.input_names = names  # type: ignore[attr-defined]
    return with_forward(model, ordered), tuple(examples.values())


def input_names(model: Any) -> tuple[str, ...]:
    """Return the names of the inputs of a module that `called_by_name` made; () for another model."""
    names: tuple[str, ...] = getattr(getattr(type(model), "forward", None), "input_names", ())
    return names


def results_by_name(results: Any) -> Any:
    """Return a model's results with dictionaries instead of other mappings, dataclasses and named tuples."""
    if isinstance(results, Mapping):
        return {key: results_by_name(value) for key, value in results.items()}
    if isinstance(results, tuple) and hasattr(results, "_fields"):
        return results_by_name(dict(zip(results._fields, results, strict=True)))
    if is_dataclass(results) and not isinstance(results, type):
        return {field.name: results_by_name(getattr(results, field.name)) for field in fields(results)}
    return type(results)(map(results_by_name, results)) if type(results) in (tuple, list) else results


def with_forward(model: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """Return a shallow copy of the user's module with another forward; parameters and names of buffers are the same."""
    owner = copy.copy(model)
    owner.__dict__ = dict(model.__dict__)
    own = type(owner)
    owner.__class__ = types.new_class(own.__name__, (own,), {}, lambda space: space.update(forward=forward))
    return owner


def rows_in_order(data: Any, names: Iterable[str]) -> Any:
    """Return calibration data with inputs by name put in the order of the inputs; other data unchanged.

    Raises:
        ModelError: a call has other names.
    """
    names = tuple(names)

    def row(value: Any) -> Any:
        if isinstance(value, list):
            return [row(one) for one in value]
        if not isinstance(value, Mapping):
            return value
        if set(value) != set(names):
            raise ModelError(
                f"A call has the inputs {', '.join(map(repr, value)) or 'none'}, and the example inputs are "
                f"{', '.join(map(repr, names))}.",
                hint="the same names in each",
            )
        return tuple(value[name] for name in names)

    if data is None or isinstance(data, Mapping) or not isinstance(data, Iterable) or hasattr(data, "dtype"):
        return row(data)
    return row(data) if isinstance(data, (list, tuple)) else (row(one) for one in data)
