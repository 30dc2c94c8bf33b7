"""Limits of what reading one model file may cost, and the message for everything that a reader did not expect.

A small file can ask for much: objects that share a table, constants that are computed from others, many operators.
The cost is counted over the whole file, before it is spent.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from micronpu.base.errors import ErrorsAs, FileError, ModelError, first_line, reason
from micronpu.upstream.torch import watched_calls


class Cost(Enum):
    """A cost of a file: its name in messages, and the limit for one file."""

    OPERATORS = "operators and the steps that they become", 20_000
    ENTRIES = "entries of its lists, of which a tensor or operator is ten", 2_000_000
    CONSTANTS = "elements of constants, stored and computed", 1 << 28
    FOLDING = "operations to compute its constants", 1 << 32


class Budget:
    """Sums of the costs of one file so far, in ``spent``."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(Cost, 0)

    def spend(self, cost: Cost, amount: int, where: str) -> None:
        """Count an amount before it is spent; raise `ModelError`, beginning with ``where``, if it is too much."""
        what, most = cost.value
        self.spent[cost] += amount
        if self.spent[cost] > most:
            raise ModelError(
                f"{where} is too much: with it, the file has {self.spent[cost]:,} {what}; at most {most:,} are read.",
                hint="a model that fits a microcontroller",
            )

    def spend_on(self, where: str, compute: Callable[[], object]) -> Any:
        """Compute on tensors without data, and `spend` the operations that it takes with data."""

        def watch(overload: Any, args: Any, kwargs: Any, result: Any) -> None:
            results = result if isinstance(result, (tuple, list)) else (result,)
            made = sum(r.numel() for r in results if isinstance(r, torch.Tensor))
            count = flop_registry.get(overload.overloadpacket)
            products = 0 if count is None else count(*args, **kwargs, out_val=result)
            self.spend(Cost.FOLDING, made + products, where)

        with watched_calls(watch):
            return compute()


def reading(
    place: object,
    what: str = "has options or operands that do not fit",
    hint: str = "copy the file again, or write it again with the converter that made it",
) -> ErrorsAs:
    """Context that raises `ModelError`, beginning with ``place``, instead of exceptions that are no message."""

    def message(error: Exception) -> Exception:
        if isinstance(error, RecursionError):
            return ModelError(f"{place} is nested too deeply.", hint="fewer branches inside of branches")
        if isinstance(error, OSError):  # of the machine: torch wants a temporary folder
            room = "room for temporary files, or another folder for them in TMPDIR"
            return FileError(f"{place} cannot be read: {first_line(error)}.", hint=room)
        return ModelError(f"{place} {what}: {reason(error)}.", hint=hint)

    return ErrorsAs(message)
