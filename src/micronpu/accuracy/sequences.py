"""Data of a model with states: sequences of calls, each of which starts with the initial states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from micronpu.base.errors import ModelError
from micronpu.quantize.data import calibration_sequences
from micronpu.report.metrics import Array

Row = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Sequences:
    """The calls of all sequences, concatenated.

    Attributes:
        rows: inputs of each call.
        lengths: calls of each sequence.
    """

    rows: list[Row]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, data: Any, examples: tuple[torch.Tensor, ...]) -> Sequences:
        """Parse data in the form of calibration data.

        Raises:
            ModelError: a sequence is empty, or an input does not fit.
        """
        found = calibration_sequences(data, examples, kind="evaluation")
        return cls([row for sequence in found for row in sequence], tuple(map(len, found)))

    @property
    def begins(self) -> frozenset[int]:
        """Indices of the calls that start a sequence."""
        return frozenset(int(n) for n in np.cumsum((0, *self.lengths[:-1])))

    def judged(self, labels: Any) -> tuple[Any, Array | None, str]:
        """Return labels of the evaluated calls, the indices of these calls (None for all), and a note.

        With one label per call, all calls are evaluated; with one per sequence, its last call.
        """
        given = list(labels) if isinstance(labels, (list, tuple)) else labels
        if isinstance(given, list) and given and all(hasattr(g, "__len__") for g in given):
            lengths = tuple(map(len, given))
            if lengths != self.lengths:
                raise ModelError(
                    f"The labels are for sequences of {list(lengths)} calls, the data for {list(self.lengths)}.",
                    hint="a label for each call, or one for each sequence",
                )
            given = [label for sequence in given for label in sequence]
        count, calls = len(self.lengths), len(self.rows)
        text = f"{calls:,} calls of {count:,} sequences, each from the initial state"
        if hasattr(given, "__len__") and len(given) == count != calls:
            return given, np.cumsum(self.lengths) - 1, f"{text}; judged is the last call of each."
        return given, None, f"{text}; intervals and p take every call for itself, though those of a sequence are alike."


@contextmanager
def begun_anew(module: Callable[..., Any]) -> Iterator[Callable[[], None]]:
    """Yield a function that resets the buffers of a module to their current values; reset them at the end too."""
    holders = list(module.modules()) if isinstance(module, nn.Module) else []
    first = [
        (m, name, b, b.clone()) for m in holders for name, b in m.named_buffers(recurse=False, remove_duplicate=False)
    ]

    def reset() -> None:
        for holder, name, _, value in first:
            setattr(holder, name, value.clone())

    try:
        yield reset
    finally:
        with torch.no_grad():
            for holder, name, own, value in first:
                setattr(holder, name, own.copy_(value))
