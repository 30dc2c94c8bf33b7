"""How far a quantized model is from the float model, measured on samples that did not calibrate it.

The one measurement that the report, its warnings, budgets and the choice of precisions go by.  The quantized module
runs in torch on all samples, or on whole recordings of a model with states; that the program computes the same is
checked on a few of them, see `micronpu.compiler.verify`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.fx import GraphModule

from micronpu.frontend.integers import IntegerBorders
from micronpu.quantize.recordings import run_recordings
from micronpu.quantize.running import Row
from micronpu.quantize.trial import Trial
from micronpu.report.accuracy import Array, Comparison, OutputAccuracy, ProgramAccuracy, decibels

_QUARTERS = 4


@dataclass(frozen=True)
class Judgement:
    """What a quantized model gives for the samples of a trial.

    Attributes:
        results: of each call of each recording, as floats where the float model gives floats.
        accuracy: against the float model; None where that is not known, or gives nothing that can be compared.
    """

    results: list[list[Row]]
    accuracy: ProgramAccuracy | None


def judge(module: GraphModule, trial: Trial, borders: IntegerBorders | None = None) -> Judgement:
    """Run a quantized module on all samples of a trial, and compare it with the float model.

    Args:
        module: as quantizing makes it: its states, if it has any, are its last inputs and outputs.
        trial: the samples with what the float model gives for them.
        borders: what the module's inputs and outputs mean where they are integers.

    Returns:
        Figures that are the same each time on the same machine: time plays no part in them.
    """
    recordings = trial.recordings
    if borders is not None:
        recordings = tuple([borders.quantize(row) for row in recording] for recording in recordings)
    results = run_recordings(module, recordings)
    if borders is not None:
        results = [[borders.dequantize(row) for row in own] for own in results]
    return Judgement(results, compared(results, trial) if trial.exact else None)


def compared(results: Sequence[Sequence[Row]], trial: Trial) -> ProgramAccuracy | None:
    """The accuracy of some results of all samples; None where there is nothing to compare."""
    found, wanted = (list(itertools.chain.from_iterable(of)) for of in (results, trial.exact))
    lengths = [len(recording) for recording in trial.recordings]
    outputs = [
        _output(number, [row[number] for row in found], [row[number] for row in wanted], lengths, trial)
        for number, first in enumerate(wanted[0] if wanted else ())
        if first.is_floating_point() and number < len(found[0]) and found[0][number].shape == first.shape
    ]
    integers = _equal_integers(found, wanted)
    if not outputs and integers is None:
        return None
    calls = sum(lengths) if trial.has_states else 0
    return ProgramAccuracy(trial.numbers, trial.of, trial.held_out, tuple(outputs), integers, calls)


def _output(
    number: int, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], lengths: Sequence[int], trial: Trial
) -> OutputAccuracy:
    ys, xs = ([tensor.double().numpy() for tensor in of] for of in (found, wanted))
    against = Comparison.of(ys, xs, lengths if trial.has_states else None)
    return OutputAccuracy(number, against, over_calls=_over_calls(ys, xs, lengths) if trial.has_states else ())


def _over_calls(found: Sequence[Array], wanted: Sequence[Array], lengths: Sequence[int]) -> tuple[float, ...]:
    """dB in each quarter of the recordings; () where these have fewer calls than quarters."""
    signal, noise = np.zeros(_QUARTERS), np.zeros(_QUARTERS)
    first = 0
    for length in lengths:
        if length >= _QUARTERS:
            for call in range(length):
                y, x = found[first + call], wanted[first + call]
                known = np.isfinite(x)
                signal[call * _QUARTERS // length] += np.square(x[known]).sum()
                noise[call * _QUARTERS // length] += np.square(y[known] - x[known]).sum()
        first += length
    return tuple(decibels(float(s), float(n)) for s, n in zip(signal, noise, strict=True)) if signal.any() else ()


def _equal_integers(results: Sequence[Row], exact: Sequence[Row]) -> float | None:
    """Share of the elements of integer outputs that are those of the float model; None without any."""
    equal = elements = 0
    for ours, floats in zip(results, exact, strict=True):
        for y, x in zip(ours, floats, strict=False):
            if not x.is_floating_point() and not y.is_floating_point() and x.shape == y.shape:
                equal, elements = equal + int((x == y).sum()), elements + x.numel()
    return equal / elements if elements else None
