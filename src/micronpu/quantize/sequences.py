"""Calibration data of a model with states: sequences of calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from micronpu.base.errors import ModelError
from micronpu.quantize.calibrate import calibration_batches

Row = tuple[torch.Tensor, ...]


def calibration_sequences(
    calibration: Any, examples: Sequence[torch.Tensor], kind: str = "calibration"
) -> list[list[Row]]:
    """Calibration data as a list of sequences, each the inputs of one call after the other.

    Args:
        calibration: a list of sequences. A sequence is a list of calls, as `calibration_batches` takes them, or a
            tensor or array with several rows for a model of batch 1. Calls that stand by themselves, tensors of one row
            or tuples, are together one sequence, in their order.
        examples: the example inputs.
        kind: what the data are for, in errors.

    Raises:
        ModelError: a sequence is empty, or an input does not fit.
    """
    if calibration is None or isinstance(calibration, dict) or not isinstance(calibration, Iterable):
        return [calibration_batches(calibration, examples, kind=kind)]
    found: list[list[Row]] = []
    open_one = False
    for number, item in enumerate(calibration):
        if isinstance(item, list):
            if not item:
                raise ModelError(
                    f"The {kind} sequence {number} is shorter than one call: it is empty.",
                    hint="a list of the inputs of the calls, one after the other",
                )
            found.append(calibration_batches(item, examples, kind=kind))
            open_one = False
            continue
        rows = calibration_batches([item], examples, kind=kind)
        if len(rows) > 1:
            found.append(rows)
            open_one = False
        elif open_one:
            found[-1] += rows
        else:
            found.append(rows)
            open_one = True
    return found or [calibration_batches([], examples, kind=kind)]
