"""What calibrates a model, and what the program made of it is tried on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from micronpu.base.arguments import described
from micronpu.base.errors import OptionError
from micronpu.base.quiet import quiet
from micronpu.frontend.exported import Exported
from micronpu.frontend.work import multiply_accumulates
from micronpu.quantize.data import calibration_calls
from micronpu.quantize.digests import of_rows
from micronpu.quantize.running import Row, one_thread, run_sequence
from micronpu.upstream.torch import tree_leaves

INPUTS = 2
"""How many inputs are run where they calibrated, too."""
_LARGE = 30_000_000
"""Multiply-accumulates of all inputs, from which one is run: a tenth of a second in LiteRT's reference kernels."""
SEEN = 16
"""How many of the rows that calibrated can be looked at once more, at most."""
HELD_OUT = 8
"""How many rows are kept back from calibration, at most: one in eight, where there are sixteen or more."""


@dataclass(frozen=True)
class Trial:
    """What a program is tried on.

    Attributes:
        rows: inputs of the float model, each a tuple: as many as the program is run on.
        numbers: of these rows in the calibration data; () for the example inputs.
        of: how many rows the calibration data has.
        held_out: whether the rows were kept back from calibration.
        exact: what the float model gives for each, where that is known.
        seen: inputs that calibrated, evenly spread, few; () where the model has states.
    """

    rows: tuple[Row, ...]
    numbers: tuple[int, ...] = ()
    of: int = 0
    held_out: bool = False
    exact: Sequence[Row] = ()
    seen: Sequence[Row] = ()


def check_held_out(wanted: Any) -> None:
    """Refuses what is no number of rows; None is none.

    Raises:
        OptionError: it is not.
    """
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0):
        raise OptionError(
            f"`held_out` is {described(wanted)}; it is a number of calibration rows.", hint="held_out=8, or 0"
        )


def rows_kept_back(count: int, wanted: int | None) -> tuple[int, ...]:
    """Numbers of the calibration rows that are kept back, evenly spread; () where all are needed.

    Args:
        count: how many rows there are.
        wanted: how many to keep back; None for one in eight, at most `HELD_OUT`, where there are 16 or more.

    Raises:
        OptionError: no row would be left to calibrate with.
    """
    if wanted is None:
        wanted = min(count // 8, HELD_OUT) if count >= 2 * HELD_OUT else 0
    check_held_out(wanted)
    if wanted and wanted >= count:
        raise OptionError(
            f"`held_out` is {wanted}, but there are {count} rows of calibration data, of which some have to calibrate.",
            hint="a smaller number, or more rows",
        )
    return tuple((2 * i + 1) * count // (2 * wanted) for i in range(wanted))


def rows_run(module: GraphModule, most: int) -> int:
    """How many rows a program of a float module is run on, of at most so many: a large network says it with one."""
    return max(1, min(most, _LARGE // max(multiply_accumulates(module), 1)))


def float_results(exported: Exported, rows: Sequence[Row]) -> list[Row]:
    """What a float model gives for the rows that will be run; nothing where it cannot."""
    with torch.no_grad(), quiet(), one_thread():
        try:
            return [tensors_of(results) for results in run_sequence(exported.module, exported.states, rows)]
        except Exception:  # what is wrong with the model is said where it is calibrated
            return []


def tensors_of(results: Any) -> Row:
    """The tensors among what a program returns."""
    return tuple(r for r in tree_leaves(results) if isinstance(r, torch.Tensor))


@dataclass(frozen=True)
class CalibrationData:
    """A user's calibration data, checked.

    Attributes:
        sequences: of calls that calibrate, of one call each for a model without states.
        rows: the calls of the first sequence of a model with states, or else all of them.
        trial: what the program is tried on: rows that are kept back, or the first ones where none are; of a model with
            states those of one sequence.
        digests: of all rows, see `of_rows`.
    """

    sequences: list[list[Row]]
    rows: tuple[Row, ...]
    trial: Trial
    digests: Mapping[str, str]

    @classmethod
    def of(
        cls, exported: Exported, calibration: Any, held_out: int | None, *, float_too: bool = True
    ) -> CalibrationData:
        """From the arguments of `micronpu.compile`.

        Args:
            float_too: run the float model on the rows of the trial, while there is one: quantizing it uses it up.

        Raises:
            ModelError: an input does not fit the model.
            OptionError: nothing would be left to calibrate with.
        """
        states, examples = exported.states, exported.examples
        everything = calibration_calls(calibration, examples, in_turn=bool(states))
        kept = rows_kept_back(len(everything), held_out)
        ends = list(itertools.accumulate(map(len, everything)))
        chosen = list(kept) or list(range(min(len(everything), INPUTS)))
        places = [i for n in (chosen[:1] if states else chosen) for i in range(ends[n] - len(everything[n]), ends[n])]
        most = (HELD_OUT if kept else INPUTS) if states else len(places)
        places = places[: rows_run(exported.module, most)]
        rows = [row for sequence in everything for row in sequence]
        tried = tuple(rows[i] for i in places)
        exact = float_results(exported, tried) if float_too else ()
        used = [sequence for i, sequence in enumerate(everything) if i not in kept]
        seen = [] if states else [sequence[0] for sequence in used[:: max(1, len(used) // SEEN)][:SEEN] if sequence]
        trial = Trial(tried, tuple(places), len(rows), bool(kept), exact, seen)
        return cls(
            used,
            tuple(everything[0] if states else rows),
            trial,
            of_rows(everything),
        )
