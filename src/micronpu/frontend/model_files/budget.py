"""Limits of what reading one model file may cost, counted over the whole file.

A small file can ask for much: objects that share a table, constants that are computed from others, many operators.
"""

from __future__ import annotations

from enum import Enum

from micronpu.base.errors import ModelError


class Cost(Enum):
    """What a file spends: its name in messages, and how much of it one file may spend."""

    OPERATORS = "operators", 10_000
    OBJECTS = "tensors, operators, and entries of their lists", 1_000_000
    CONSTANTS = "elements of constants, stored and computed", 1 << 28
    FOLDING = "multiplications and elements to compute its constants", 1 << 36


class Budget:
    """What one file has spent."""

    def __init__(self) -> None:
        self._spent = dict.fromkeys(Cost, 0)

    def spend(self, cost: Cost, amount: int, where: str) -> None:
        """Count an amount, before it is spent.

        Args:
            where: beginning of the message, such as "Node `x` (Add) of net.onnx".

        Raises:
            ModelError: the file spends more than `Cost` allows.
        """
        _, most = cost.value
        self._spent[cost] += amount
        if self._spent[cost] > most:
            what = cost.value[0]
            raise ModelError(
                f"{where} is too much: with it, the file has {self._spent[cost]:,} {what}; at most {most:,} are read.",
                hint="a model that fits a microcontroller",
            )
