"""What calibrates a model, and what the program made of it is tried on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.fx import GraphModule, Node

from micronpu.base.arguments import described
from micronpu.base.errors import ModelError, OptionError
from micronpu.frontend.exported import Exported
from micronpu.frontend.work import multiply_accumulates
from micronpu.quantize.data import calibration_calls
from micronpu.quantize.digests import of_recording, of_rows
from micronpu.quantize.recordings import run_recordings
from micronpu.quantize.running import Row
from micronpu.report.accuracy import LEAST, LEAST_RECORDINGS
from micronpu.report.metrics import Array, Function, Metric, metric_of
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
class HeldOut:
    """What a user says about the samples that a model is judged on.

    Attributes:
        count: how many samples of the calibration data are held out; None for the default.
        data: samples that do not calibrate, in the place of those; None for none.
        labels: of `data`, an entry for each call; None where the float model's outputs stand for them.
        metric: name or function, see `metric_of`; None for none.
    """

    count: int | None = None
    data: Any = None
    labels: Any = None
    metric: str | Function | None = None


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
        metric: of the user's task; None where there is none.
        labels: for the metric, a row for each call; None where the float model's outputs stand for them.
        macs: of a call.
    """

    recordings: tuple[Recording, ...]
    numbers: tuple[int, ...] = ()
    of: int = 0
    held_out: bool = False
    exact: Sequence[Sequence[Row]] = ()
    has_states: bool = False
    runs: int = 1
    seen: Sequence[Row] = ()
    metric: Metric | None = None
    labels: Array | None = None
    macs: int = 0

    @property
    def rows(self) -> tuple[Row, ...]:
        """The calls that the program itself runs."""
        return tuple(itertools.islice(itertools.chain.from_iterable(self.recordings), self.runs))

    @property
    def rows_of_all(self) -> tuple[Row, ...]:
        """The calls of all recordings."""
        return tuple(itertools.chain.from_iterable(self.recordings))

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


def rows_kept_back(count: int, wanted: int | None, *, are_recordings: bool = False) -> tuple[int, ...]:
    """Numbers of the calibration samples that are held out, evenly spread; () where all are needed.

    Args:
        count: how many samples there are.
        wanted: how many to hold out; None for one in eight, and those beyond `ENOUGH` that calibrate, at most `MOST`
            of them, where there are `LEAST` or more.
        are_recordings: of many calls each, so that fewer calibrate well, and few of one in eight tell little: one in
            four, from `LEAST_RECORDINGS` on.

    Raises:
        OptionError: no sample would be left to calibrate with.
    """
    if wanted is None:
        least, part = (LEAST_RECORDINGS, 4) if are_recordings else (LEAST, 8)
        wanted = min(MOST, max(count // part, count - ENOUGH)) if count >= least else 0
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
        distinct: how many of the sequences differ from each other.
    """

    sequences: list[list[Row]]
    rows: tuple[Row, ...]
    trial: Trial
    digests: Mapping[str, str]
    distinct: int

    @classmethod
    def of(
        cls, exported: Exported, calibration: Any, held_out: HeldOut | int | None, *, float_too: bool = True
    ) -> CalibrationData:
        """From the arguments of `micronpu.compile`.

        Args:
            float_too: run the float model on the recordings of the trial, while there is one: quantizing it uses it up.

        Raises:
            ModelError: an input does not fit the model, or all of the held-out data also calibrate.
            OptionError: nothing would be left to calibrate with.
        """
        states, examples = exported.states, exported.examples
        asked = held_out if isinstance(held_out, HeldOut) else HeldOut(held_out)
        everything = calibration_calls(calibration, examples, in_turn=bool(states))
        alike: dict[str, list[int]] = {}
        for number, sequence in enumerate(everything):
            alike.setdefault(of_recording(sequence), []).append(number)
        groups = list(alike.values())  # of equal sequences: what is held out must not calibrate under another number
        kept: tuple[int, ...] = ()
        if asked.data is not None:
            judging = calibration_calls(asked.data, examples, in_turn=bool(states), kind="held-out")
            chosen = tuple(i for i, recording in enumerate(judging) if of_recording(recording) not in alike)
            if not chosen:
                raise ModelError(
                    "Every held-out sample is one of the calibration data, too, so that none tells of other inputs.",
                    hint="data= with samples that do not calibrate, or no data=, which holds out some that are given",
                )
        else:
            judging = everything
            kept = rows_kept_back(len(groups), asked.count, are_recordings=bool(states))
            chosen = tuple(groups[i][0] for i in kept) or _spread(len(everything), SEEN)
        is_held_out = bool(kept) or asked.data is not None
        labels = None if asked.labels is None else _labels(asked.labels, judging)
        count = affordable(exported, [judging[n] for n in chosen])
        chosen = tuple(chosen[i] for i in _spread(len(chosen), count))
        recordings = tuple(judging[n] for n in chosen)
        runs = rows_run(exported.module, HELD_OUT if is_held_out else INPUTS)
        gone = {i for number in kept for i in groups[number]}
        used = [sequence for i, sequence in enumerate(everything) if i not in gone]
        trial = Trial(
            recordings,
            chosen,
            len(judging),
            is_held_out,
            float_results(exported, recordings) if float_too else (),
            bool(states),
            min(runs, len(recordings[0]) if states else len(recordings)),
            () if states else [calls[0] for calls in used[:: max(1, len(used) // SEEN)][:SEEN] if calls],
            None if asked.metric is None else metric_of(asked.metric),
            None if labels is None else np.concatenate([labels[n] for n in chosen]),
            multiply_accumulates(exported.module),
        )
        rows = [row for sequence in everything for row in sequence]
        return cls(
            used,
            tuple(everything[0] if states else rows),
            trial,
            of_rows(everything),
            len(groups),
        )


def _labels(given: Any, recordings: Sequence[Recording]) -> list[Array]:
    """The labels of each recording: a list of one array or list for each, or one label for each call of all.

    Raises:
        ModelError: there are more or fewer.
    """
    lengths = [len(recording) for recording in recordings]
    if isinstance(given, list | tuple) and all(hasattr(own, "__len__") for own in given) and max(lengths) > 1:
        found = [np.asarray(own) for own in given]
        if [len(own) for own in found] == lengths:
            return found
        given = [label for own in given for label in own]
    array = np.asarray(given)
    if array.ndim == 0 or len(array) != sum(lengths):
        raise ModelError(
            f"There are {len(array) if array.ndim else 0} labels and {sum(lengths)} "
            f"{'calls of held-out recordings' if max(lengths) > 1 else 'held-out samples'}.",
            hint="a label for each, in the same order",
        )
    return np.split(array, np.cumsum(lengths)[:-1])


def _spread(count: int, most: int) -> tuple[int, ...]:
    """At most so many of the first numbers, evenly spread, the first among them."""
    most = min(count, most)
    return tuple(i * count // most for i in range(most))
