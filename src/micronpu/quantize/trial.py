"""What calibrates a model, and what the program made of it is tried on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.base.arguments import described
from micronpu.base.errors import OptionError
from micronpu.frontend.exported import Exported
from micronpu.frontend.work import multiply_accumulates
from micronpu.quantize.data import calibration_calls
from micronpu.quantize.digests import of_rows
from micronpu.quantize.recordings import run_recordings
from micronpu.quantize.running import Row
from micronpu.report.accuracy import LEAST
from micronpu.upstream.torch import tree_leaves

INPUTS = 2
"""Calls that the program itself runs where its samples calibrated, too."""
_LARGE = 30_000_000
"""MACs of all calls that the program runs: a tenth of a second in LiteRT's reference kernels."""
SEEN = 16
"""Samples that calibrated and are looked at once more, at most."""
HELD_OUT = 8
"""Calls that the program itself runs where they were held out, at most."""
ENOUGH, MOST = 32, 32
"""Samples that are enough to calibrate with, so that others are held out, and how many are held out at most."""
_WORK, _CALL = 10_000_000_000, 400_000
"""MACs that judging takes, about a second, and what a call takes beside its own MACs."""
_RESULTS = 1 << 26
"""Bytes of the results of all samples."""
_FEWEST = 4
"""Samples that are judged at any price."""

Recording: TypeAlias = Sequence[Row]
"""Inputs of the calls from the first state on; a sample of a model without states is a recording of one call."""


@dataclass(frozen=True)
class Trial:
    """What a quantized model is judged on, and the program made of it is tried on.

    Attributes:
        recordings: inputs of the float model.
        numbers: of these recordings in the calibration data; () for the example inputs.
        of: how many recordings the calibration data has.
        held_out: whether the recordings were held out from calibration.
        exact: results of the float model for each call of each recording; () where it is not known.
        has_states: whether a call depends on those before it.
        runs: how many calls of the first recordings the program itself runs.
        seen: samples that calibrated, evenly spread, few; () where the model has states.
    """

    recordings: tuple[Recording, ...]
    numbers: tuple[int, ...] = ()
    of: int = 0
    held_out: bool = False
    exact: Sequence[Sequence[Row]] = ()
    has_states: bool = False
    runs: int = 1
    seen: Sequence[Row] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The calls that the program itself runs."""
        return tuple(itertools.islice(itertools.chain.from_iterable(self.recordings), self.runs))

    @property
    def exact_rows(self) -> tuple[Row, ...]:
        """What the float model gives for these."""
        return tuple(itertools.islice(itertools.chain.from_iterable(self.exact), self.runs))


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
    """Numbers of the calibration samples that are held out, evenly spread; () where all are needed.

    Args:
        count: how many samples there are.
        wanted: how many to hold out; None for one in eight, and those beyond `ENOUGH` that calibrate, at most `MOST`
            of them, where there are 16 or more.

    Raises:
        OptionError: no sample would be left to calibrate with.
    """
    if wanted is None:
        wanted = min(MOST, max(count // 8, count - ENOUGH)) if count >= LEAST else 0
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


def affordable(exported: Exported, recordings: Sequence[Recording]) -> int:
    """How many recordings, of the first ones, the model is judged on: by their MACs and by the size of results."""
    states, output = exported.states, exported.module.graph.output_node()
    results = [n.meta.get("val") for n in tree_leaves(output.args[0]) if isinstance(n, Node)]
    own = results[: len(results) - len(states.values)]
    size = sum(r.numel() * r.element_size() for r in own if isinstance(r, torch.Tensor))
    each = multiply_accumulates(exported.module) + _CALL
    ends = itertools.accumulate(map(len, recordings))
    return max(_FEWEST, sum(each * calls <= _WORK and size * calls <= _RESULTS for calls in ends))


def float_results(exported: Exported, recordings: Sequence[Recording]) -> list[list[Row]]:
    """What a float model gives for each call of each recording; nothing where it cannot be run."""
    try:
        return run_recordings(exported.module, recordings)
    except Exception:  # what is wrong with the model is said where it is calibrated
        return []


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
        chosen = kept or _spread(len(everything), SEEN)
        count = affordable(exported, [everything[n] for n in chosen])
        chosen = tuple(chosen[i] for i in _spread(len(chosen), count))
        recordings = tuple(everything[n] for n in chosen)
        runs = rows_run(exported.module, HELD_OUT if kept else INPUTS)
        used = [sequence for i, sequence in enumerate(everything) if i not in kept]
        trial = Trial(
            recordings,
            chosen,
            len(everything),
            bool(kept),
            float_results(exported, recordings) if float_too else (),
            bool(states),
            min(runs, len(recordings[0]) if states else len(recordings)),
            () if states else [calls[0] for calls in used[:: max(1, len(used) // SEEN)][:SEEN] if calls],
        )
        rows = [row for sequence in everything for row in sequence]
        return cls(
            used,
            tuple(everything[0] if states else rows),
            trial,
            of_rows(everything),
        )


def _spread(count: int, most: int) -> tuple[int, ...]:
    """At most so many of the first numbers, evenly spread, the first among them."""
    most = min(count, most)
    return tuple(i * count // most for i in range(most))
