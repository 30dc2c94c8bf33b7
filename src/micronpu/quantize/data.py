"""Checks of a user's data against the example inputs: samples, and sequences of calls of a model with states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule

from micronpu.base.errors import MicroNpuError, ModelError, first_line
from micronpu.frontend.checks import all_finite
from micronpu.frontend.float32 import in_float32
from micronpu.frontend.states import States, is_write

Row = tuple[torch.Tensor, ...]


def calibration_sequences(
    calibration: Any, examples: Sequence[torch.Tensor], kind: str = "calibration"
) -> list[list[Row]]:
    """Calibration data as a list of sequences, each the inputs of one call after the other.

    Args:
        calibration: a list of sequences. A sequence is a list of calls, as `calibration_batches` takes them, or a
            tensor or array with several rows for a model of batch 1. Separate calls, tensors of one row or tuples, form
            one sequence, in their order.
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


def calibration_calls(
    calibration: Any, examples: Sequence[torch.Tensor], *, in_turn: bool, kind: str = "calibration"
) -> list[list[Row]]:
    """Calibration data as sequences of calls; for a model without states each call is a sequence.

    Args:
        in_turn: the model has states, so that the order of calls counts.
        kind: what the data are for, in errors.

    Raises:
        ModelError: as for `calibration_sequences` and `calibration_batches`.
    """
    if in_turn:
        return calibration_sequences(calibration, examples, kind)
    return [[row] for row in calibration_batches(calibration, examples, kind=kind)]


def calibration_batches(
    calibration: Any, examples: Sequence[torch.Tensor], *, kind: str = "calibration"
) -> list[tuple[torch.Tensor, ...]]:
    """Calibration data as a list of input tuples, each checked against the example inputs.

    Args:
        calibration: an iterable of inputs.  An item is a tuple of tensors, or a tensor where the model has one
            input; NumPy arrays will do.  An item that holds several rows of a batch-1 model is cut into rows.
        examples: the example inputs.
        kind: what the data is for, as messages call it.

    Raises:
        ModelError: there is none, or an item has another number of inputs, shape, dtype, or holds NaN or infinity.
    """
    if calibration is None:
        raise ModelError(
            "A float model needs calibration data to choose the ranges of its quantized tensors.",
            hint="calibration=[...] with some dozens of typical inputs, or a model that is quantized already",
        )
    if isinstance(calibration, dict) or not isinstance(calibration, (Iterable, np.ndarray, torch.Tensor)):
        raise ModelError(
            f"{kind.capitalize()} data is of type {type(calibration).__name__}, not a list of inputs.",
            hint="[x1, x2, ...]",
        )
    batches: list[tuple[torch.Tensor, ...]] = []
    for number, item in enumerate(in_turn(calibration, kind)):
        where = f"{kind.capitalize()} item {number}"
        batches += _rows(_checked(where, item, examples), examples)
    if not batches:
        raise ModelError(f"The {kind} data is empty.", hint="pass some dozens of typical inputs")
    return batches


def in_turn(data: Iterable[Any], kind: str) -> Iterator[Any]:
    """The items of a user's data.

    Raises:
        ModelError: the user's code fails.
    """
    number = 0
    try:
        for item in data:
            yield item
            number += 1
    except MicroNpuError:
        raise
    except Exception as error:
        raise ModelError(
            f"The {kind} data breaks off at item {number}: {type(error).__name__}: {first_line(error)}.",
            hint="list(...) of it, which fails alike",
        ) from error


def _checked(where: str, item: Any, examples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    values = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if len(values) != len(examples):
        raise ModelError(
            f"{where} has {len(values)} inputs, the model has {len(examples)}.",
            hint="give one tuple of inputs per item, without labels",
        )
    return tuple(
        _checked_input(f"{where}, input {position}", value, example)
        for position, (value, example) in enumerate(zip(values, examples, strict=True))
    )


def _checked_input(where: str, value: Any, example: torch.Tensor) -> torch.Tensor:
    tensor = _tensor(where, value)
    if example.dtype is torch.float32:
        tensor = in_float32(tensor)
    if tensor.dtype != example.dtype:
        raise ModelError(
            f"{where} has dtype {_name(tensor.dtype)}, the model takes {_name(example.dtype)}.",
            hint="convert the data as the model's inputs are converted",
        )
    if tensor.dim() == example.dim() - 1 and example.shape[0] == 1 and tensor.shape == example.shape[1:]:
        tensor = tensor.unsqueeze(0)
    several = example.dim() > 0 and example.shape[0] == 1 and tensor.dim() == example.dim()
    if tensor.shape != example.shape and not (several and tensor.shape[1:] == example.shape[1:]):
        raise ModelError(
            f"{where} has shape {list(tensor.shape)}, the model takes {list(example.shape)}.",
            hint="shape the data as the example inputs",
        )
    if tensor.is_floating_point() and not all_finite(tensor):
        raise ModelError(
            f"{where} holds NaN or infinity, from which no range can be learnt.",
            hint="look for missing values or a division by zero in the preprocessing",
        )
    return tensor.detach()


def _tensor(where: str, value: Any) -> torch.Tensor:
    """Return a user's value as a dense tensor on the CPU."""
    tensor = _from_numpy(value) if isinstance(value, np.ndarray) else value
    if not isinstance(tensor, torch.Tensor):
        kind = f"a NumPy array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise ModelError(
            f"{where} is {kind}, not a tensor.", hint="give tensors or NumPy arrays, one per input of the model"
        )
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        where_it_is = tensor.device if tensor.layout is torch.strided else tensor.layout
        raise ModelError(
            f"{where} is a tensor on {str(where_it_is).removeprefix('torch.')}, from which no range can be learnt.",
            hint="dense tensors on the CPU",
        )
    return tensor


def _rows(item: tuple[torch.Tensor, ...], examples: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    if all(t.shape == e.shape for t, e in zip(item, examples, strict=True)):
        return [item]
    counts = {t.shape[0] for t, e in zip(item, examples, strict=True) if t.shape != e.shape}
    if len(counts) != 1 or 0 in counts:
        if counts == {0}:
            return []
        raise ModelError(
            f"The inputs of one calibration item have different numbers of rows: {sorted(counts)}.",
            hint="one row of each input per item",
        )
    (count,) = counts
    return [
        tuple(t if t.shape == e.shape else t[i : i + 1] for t, e in zip(item, examples, strict=True))
        for i in range(count)
    ]


def _from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """Return the array as a tensor; None if torch has no such dtype."""
    # Copy if torch cannot share the memory: foreign byte order, negative strides, read-only.
    native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    try:
        return torch.from_numpy(native)
    except TypeError:
        return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_stateless(states: States) -> None:
    """Raise `ModelError` if a model for training has a state."""
    if states:
        raise ModelError(
            f"The model keeps a state, `{states.values[0].name}`, from one call to the next, and quantization-aware "
            "training shows it single inputs.",
            hint="calibration with sequences, or a model to train that takes its states and returns them",
        )


def check_lifted(model: GraphModule) -> None:
    """Raise `ModelError` if a model still writes into its buffers, so that only their initial values would be
    calibrated."""
    written = next((n for n in model.graph.nodes if is_write(n)), None)
    if written is not None:
        raise ModelError(
            f"The model keeps a state, `{written.args[0].target}`, from one call to the next, and `prepare_pt2e` knows "
            "no sequences of calls.",
            hint="micronpu.compile, or calibrate_and_quantize with the exported program",
        )
