"""Data of `micronpu.evaluate` for a model with states; model and data of `micronpu.blame` and `micronpu.fix`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule

from micronpu.accuracy.layers import SideBySide
from micronpu.base.errors import ModelError, first_line
from micronpu.base.quiet import quiet
from micronpu.frontend.copies import copied
from micronpu.frontend.export import as_inputs
from micronpu.frontend.exported import exported
from micronpu.quantize.calibrate import calibrated, converted
from micronpu.quantize.data import calibration_batches, calibration_sequences
from micronpu.quantize.quantization import Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.report.metrics import Array
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for
from micronpu.upstream.session import one_thread

Row: TypeAlias = tuple[torch.Tensor, ...]


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


ProgressCallback: TypeAlias = Callable[[str, float], None]


@dataclass(frozen=True)
class Subject:
    """A model to quantize, its target, and the data to measure its error on.

    Attributes:
        model: as given by the user.
        data: inputs to measure on, as given by the user.
        calibration: inputs that choose the ranges, as given by the user; None to use ``data``.
        examples: inputs to export the model with.
        target, options: as for `micronpu.compile`.
        asked: name of the called function of micronpu, for errors.
    """

    model: Any
    data: Any
    calibration: Any
    examples: Row
    target: str
    options: Options | None
    asked: str = "blame"

    @classmethod
    def of(
        cls,
        model: Any,
        data: Any,
        target: str,
        calibration: Any,
        example_inputs: Any,
        options: Options | None,
        asked: str = "blame",
    ) -> Subject:
        """Create from the arguments of `micronpu.blame` or `micronpu.fix`.

        Raises:
            ModelError: there is no data.
        """
        return cls(model, data, calibration, examples_of(data, example_inputs, asked), target, options, asked)

    @property
    def has_int16(self) -> bool:
        """True if the target supports int16."""
        return device_for(self.target, self.options).capabilities.has_int16

    def quantizer(self, how: Quantization) -> StaticQuantizer:
        """Return the quantizer for the target.

        Raises:
            OptionError: the options or the quantization do not fit the target.
        """
        return how.quantizer_for(device_for(self.target, self.options).quantizer)

    @cached_property
    def module(self) -> GraphModule:
        """The float model as a graph, checked.

        Raises:
            ModelError: it cannot be exported, or is already quantized.
        """
        found = exported(self.model, self.examples)
        if not found.is_float:
            raise ModelError(
                "The model is quantized already, so that there is no float model to compare it with.",
                hint="the float model that it was made of",
            )
        if states := found.states.values:
            raise ModelError(
                f"The model keeps a state, `{states[0].name}`, from one call to the next, and {self.asked} compares "
                "single inputs.",
                hint="a model that takes its states as inputs and returns them",
            )
        return found.module

    @cached_property
    def rows(self) -> list[Row]:
        """The data, sample by sample, after the model's checks."""
        self.module  # noqa: B018  (report errors of the model first)
        return calibration_batches(self.data, self.examples, kind=self.asked)

    @cached_property
    def ranges(self) -> list[Row] | None:
        """The calibration data; None if `rows` choose the ranges."""
        return None if self.calibration is None else calibration_batches(self.calibration, self.examples)

    def measured(
        self,
        quantizer: StaticQuantizer,
        batches: Sequence[Row],
        rows: Iterable[Row],
        notify: ProgressCallback = lambda name, part: None,
        *,
        follow: bool = True,
    ) -> SideBySide:
        """Quantize a copy of the model and compare it with the float one on samples.

        Args:
            batches: choose the ranges.
            follow: compute each layer's contribution to the output, which takes most of the time.
        """
        listed = list(rows)
        own = copied(self.module)
        prepared = calibrated(own, [batches], quantizer, lambda done: notify("quantize", done / max(len(batches), 1)))
        exact = copied(prepared)
        for parameter in exact.parameters():
            parameter.requires_grad_(False)
        with quiet(), one_thread():
            found = SideBySide(exact, converted(prepared, batches, quantizer.settings.corrections))
            for number, row in enumerate(listed):
                notify("blame", number / len(listed))
                found.add(row, follow=follow)
            found.settle()
            notify("blame", 1.0)
        return found


def examples_of(data: Any, given: Sequence[Any] | torch.Tensor | None, asked: str) -> tuple[torch.Tensor, ...]:
    """Return the given example inputs, or the first of the data.

    Raises:
        ModelError: there is no data.
    """
    if data is None:
        raise ModelError(
            "There is no data to compare the quantized model with the float model on.",
            hint=f"{asked}(model, data) with a dozen typical inputs",
        )
    if given is not None:
        return as_inputs(given)
    if isinstance(data, dict) or not isinstance(data, Iterable | np.ndarray | torch.Tensor):
        raise ModelError(
            f"The data of {asked} is of type {type(data).__name__}, not a list of inputs.", hint="[x1, x2, ...]"
        )
    first = data[:1] if isinstance(data, np.ndarray | torch.Tensor) else next(iter(data), None)
    if first is None or (isinstance(first, np.ndarray | torch.Tensor) and not len(first)):
        raise ModelError(f"The data of {asked} is empty.", hint="pass a dozen typical inputs")
    values = first if isinstance(first, tuple | list) else (first,)
    try:
        tensors = [torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for v in values]
    except TypeError as error:
        raise ModelError(
            f"The data of {asked} is no numbers: {first_line(error)}.", hint="arrays of float32"
        ) from error
    return as_inputs(tensors)
