"""Calibration data of a model, and samples for its evaluation."""

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
from micronpu.quantize import thresholds
from micronpu.quantize.data import calibration_calls
from micronpu.quantize.digests import of_recording, of_rows
from micronpu.quantize.running import Row, run_recordings
from micronpu.report.accuracy import LEAST, LEAST_RECORDINGS
from micronpu.report.metrics import Array, Function, Metric, metric_of
from micronpu.upstream.torch import tree_leaves

Recording: TypeAlias = Sequence[Row]
"""Inputs of the calls from the initial state on; a sample of a model without states is a recording of one call."""


@dataclass(frozen=True)
class HeldOut:
    """The user's options for the evaluation samples.

    Attributes:
        count: number of held-out calibration samples; None for the default.
        data: separate samples instead of those; None for none.
        labels: of `data`, an entry for each call; None to use the float model's outputs.
        metric: name or function, see `metric_of`; None for none.
    """

    count: int | None = None
    data: Any = None
    labels: Any = None
    metric: str | Function | None = None


@dataclass(frozen=True)
class Trial:
    """Samples for the evaluation of a quantized model and its program.

    Attributes:
        recordings: inputs of the float model.
        numbers: numbers of these recordings in the calibration data; () for the example inputs.
        of: number of recordings in the calibration data.
        held_out: True if the recordings were held out from calibration.
        exact: results of the float model for each call of each recording; () if unknown.
        has_states: True if a call depends on those before it.
        runs: number of first calls that the program itself runs.
        seen: a few calibration samples, evenly spread; () for a model with states.
        metric: of the user's task, or None.
        labels: for the metric, a row for each call; None to use the float model's outputs.
        macs: of a call.
        others: calibration samples beside held-out ones, for a figure from more samples; None for none.
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
    others: Trial | None = None

    @property
    def rows(self) -> tuple[Row, ...]:
        """Calls that the program itself runs."""
        return tuple(itertools.islice(itertools.chain.from_iterable(self.recordings), self.runs))

    @property
    def rows_of_all(self) -> tuple[Row, ...]:
        """Calls of all recordings."""
        return tuple(itertools.chain.from_iterable(self.recordings))

    @property
    def exact_rows(self) -> tuple[Row, ...]:
        """Results of the float model for `rows`."""
        return tuple(itertools.islice(itertools.chain.from_iterable(self.exact), self.runs))


def check_held_out(wanted: Any) -> None:
    """Refuse an invalid number of samples; None is accepted.

    Raises:
        OptionError: it is invalid.
    """
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0):
        raise OptionError(
            f"`held_out` is {described(wanted)}; it is a number of calibration rows.", hint="held_out=8, or 0"
        )


def held_out_rows(count: int, wanted: int | None, *, are_recordings: bool = False) -> tuple[int, ...]:
    """Return numbers of the held-out calibration samples, evenly spread; () if all are needed.

    Args:
        count: number of samples.
        wanted: number to hold out; None for one in eight, or those beyond `ENOUGH_SAMPLES`, at most `MOST_HELD_OUT`, if
            there are `LEAST` or more.
        are_recordings: the samples are recordings of many calls, so that fewer suffice for calibration: one in four is
            held out, from `LEAST_RECORDINGS` on.

    Raises:
        OptionError: no sample would be left to calibrate with.
    """
    if wanted is None:
        least, part = (LEAST_RECORDINGS, 4) if are_recordings else (LEAST, 8)
        wanted = (
            min(thresholds.MOST_HELD_OUT, max(count // part, count - thresholds.ENOUGH_SAMPLES))
            if count >= least
            else 0
        )
    check_held_out(wanted)
    if wanted and wanted >= count:
        raise OptionError(
            f"`held_out` is {wanted}, but there are {count} rows of calibration data, of which some have to calibrate.",
            hint="a smaller number, or more rows",
        )
    return tuple((2 * i + 1) * count // (2 * wanted) for i in range(wanted))


def rows_run(module: GraphModule, most: int) -> int:
    """Return the number of samples that a program of a float module runs, at most ``most``; fewer if it is large."""
    return max(1, min(most, thresholds.PROGRAM_WORK // max(multiply_accumulates(module), 1)))


def affordable(exported: Exported, recordings: Sequence[Recording]) -> int:
    """Return the number of recordings for the evaluation, by their MACs and by the size of results."""
    states, output = exported.states, exported.module.graph.output_node()
    results = [n.meta.get("val") for n in tree_leaves(output.args[0]) if isinstance(n, Node)]
    own = results[: len(results) - len(states.values)]
    size = sum(r.numel() * r.element_size() for r in own if isinstance(r, torch.Tensor))
    each = multiply_accumulates(exported.module) + thresholds.CALL_WORK
    ends = itertools.accumulate(map(len, recordings))
    fits = (each * calls <= thresholds.EVALUATION_WORK and size * calls <= thresholds.RESULT_BYTES for calls in ends)
    return max(thresholds.FEWEST_EVALUATED, sum(fits))


def float_results(exported: Exported, recordings: Sequence[Recording]) -> list[list[Row]]:
    """Return the float model's results for each call of each recording; empty if it cannot be run."""
    try:
        return run_recordings(exported.module, recordings)
    except Exception:  # calibration reports errors of the model
        return []


@dataclass(frozen=True)
class CalibrationData:
    """The checked calibration data of a user.

    Attributes:
        sequences: sequences of calls for calibration, of one call each for a model without states.
        rows: the calls of the first sequence of a model with states, otherwise all calls.
        trial: samples for the evaluation: held-out ones, or the first ones if there are none; one sequence of a model
            with states.
        digests: digests of all samples, see `of_rows`.
        distinct: number of distinct sequences.
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
        """Convert the arguments of `micronpu.compile`.

        Args:
            float_too: run the float model on the recordings of the trial, before quantization consumes it.

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
        groups = list(alike.values())  # of equal sequences: a held-out sample must not calibrate under another number
        kept: tuple[int, ...] = ()
        most = thresholds.EXAMINED_AGAIN
        if asked.data is not None:
            judging = calibration_calls(asked.data, examples, in_turn=bool(states), kind="held-out")
            chosen = tuple(i for i, recording in enumerate(judging) if of_recording(recording) not in alike)
            if not chosen:
                raise ModelError(
                    "Every sample of `data` is also a calibration sample, so that none judges.",
                    hint="data= with samples that do not calibrate, or no data=, which holds out some that are given",
                )
        else:
            judging = everything
            kept = held_out_rows(len(groups), asked.count, are_recordings=bool(states))
            chosen = tuple(groups[i][0] for i in kept) or _spread(len(everything), most)
        is_held_out = bool(kept) or asked.data is not None
        labels = None if asked.labels is None else _labels(asked.labels, judging)
        count = affordable(exported, [judging[n] for n in chosen])
        chosen = tuple(chosen[i] for i in _spread(len(chosen), count))
        recordings = tuple(judging[n] for n in chosen)
        more = [own[0] for i, own in enumerate(groups) if kept and asked.count is None and i not in kept]
        count = affordable(exported, [*recordings, *(judging[n] for n in more)]) - len(recordings)
        every = (*recordings, *(judging[more[i]] for i in _spread(len(more), max(count, 0))))
        exact = float_results(exported, every) if float_too else []
        others = Trial(every[len(chosen) :], exact=exact[len(chosen) :]) if exact[len(chosen) :] else None
        runs = rows_run(exported.module, thresholds.PROGRAM_HELD_OUT if is_held_out else thresholds.PROGRAM_CALLS)
        gone = {i for number in kept for i in groups[number]}
        used = [sequence for i, sequence in enumerate(everything) if i not in gone]
        trial = Trial(
            recordings,
            chosen,
            len(judging),
            is_held_out,
            exact[: len(chosen)],
            bool(states),
            min(runs, len(recordings[0]) if states else len(recordings)),
            () if states else [calls[0] for calls in used[:: max(1, len(used) // most)][:most] if calls],
            None if asked.metric is None else metric_of(asked.metric),
            None if labels is None else np.concatenate([labels[n] for n in chosen]),
            multiply_accumulates(exported.module),
            others,
        )
        rows = [row for sequence in everything for row in sequence]
        return cls(used, tuple(everything[0] if states else rows), trial, of_rows(everything), len(groups))


def _labels(given: Any, recordings: Sequence[Recording]) -> list[Array]:
    """Return the labels of each recording, from an array or list for each, or from one label for each call.

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
    """Return at most so many of the first numbers, evenly spread, including the first."""
    most = min(count, most)
    return tuple(i * count // most for i in range(most))
