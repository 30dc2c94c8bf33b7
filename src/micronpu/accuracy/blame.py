"""`micronpu.blame`: which layer costs the accuracy, and what to try."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from micronpu.accuracy.layers import Layer, SideBySide, step_of
from micronpu.compiler.compile import DEFAULT_TARGET
from micronpu.compiler.quantized import exported_module, quantizer_for
from micronpu.errors import ModelError, first_line
from micronpu.frontend.checks import check_listener
from micronpu.frontend.export import as_inputs
from micronpu.frontend.program import arguments, origin_of, overload_name
from micronpu.frontend.states import states_of
from micronpu.ir.types import DType
from micronpu.ir.way import Capabilities
from micronpu.quantize.calibrate import calibrated, calibration_batches, converted, in_turn, one_thread
from micronpu.quantize.config import Activations
from micronpu.quantize.converted import is_float
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.settings_file import Quantization
from micronpu.quiet import quiet
from micronpu.report.accuracy import decibels
from micronpu.report.blame import Blame, LayerError, Sort
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for

Row: TypeAlias = tuple[torch.Tensor, ...]
Listener: TypeAlias = Callable[[str, float], None]

_ENOUGH = 45.0
"""dB: a layer's own error below this is nothing to work on."""
_PEAKED = 20.0
"""Largest value over root mean square from which a few large values cost the others their steps."""


def blame(
    model: nn.Module | ExportedProgram,
    data: Any,
    *,
    target: str = DEFAULT_TARGET,
    calibration: Any = None,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    per_channel: bool = True,
    activations: Activations = "int8",
    quantizer: StaticQuantizer | None = None,
    quantization: Quantization | None = None,
    options: Options | None = None,
    sort: Sort = "output",
    listener: Listener | None = None,
) -> Blame:
    """Compares the quantized network with the float one, layer by layer, on real data.

    Args:
        model: a float module in evaluation mode, or an exported program of one.
        data: inputs to measure on: an array with a row per input, or a list of inputs as for calibration. A dozen rows
            are enough.
        target: decides what is quantized how; see ``micronpu targets``.
        calibration: inputs that choose the ranges; those of ``data`` unless given, which the result says.
        example_inputs: the first of ``data`` unless given.
        per_channel, activations, quantizer, quantization, options: as for `micronpu.compile`.
        sort: worst first by "output" (the part of the output's error that the layer adds), "own" or "total".
        listener: hears about progress.

    Raises:
        ModelError: there is no data, it does not fit the model, or the model is quantized already.
        OptionError: an option does not fit the target, or there is no such order.
    """
    check_listener(listener)
    tell = listener or (lambda name, part: None)
    if isinstance(data, Iterator):
        data = list(in_turn(data, "blame"))
    examples = examples_of(data, example_inputs)
    device = device_for(target, options)
    chosen = quantizer_for(device, quantizer, False, per_channel, activations, None, quantization)
    tell("export", 0.0)
    module = float_module(model, examples)
    rows = calibration_batches(data, examples, kind="blame")
    batches = rows if calibration is None else calibration_batches(calibration, examples)
    tell("export", 1.0)
    found = measure(module, chosen, batches, rows, tell)
    names = {n.name for n in module.graph.nodes}
    layers = tuple(
        _told(layer, found, names, _Choices(per_channel, device.capabilities)) for layer in found.layers if layer.adds
    )
    return Blame(
        target=target,
        rows=len(rows),
        calibration_rows=len(batches),
        calibrated_on_them=calibration is None,
        sqnr=decibels(found.signal, found.noise),
        layers=layers,
    ).sorted(sort)


def examples_of(data: Any, given: Sequence[Any] | torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Example inputs: those given, or the first of the data.

    Raises:
        ModelError: there is no data.
    """
    if data is None:
        raise ModelError(
            "There is no data to compare the quantized model with the float model on.",
            hint="blame(model, data) with a dozen typical inputs",
        )
    if given is not None:
        return as_inputs(given)
    if isinstance(data, dict) or not isinstance(data, Iterable | np.ndarray | torch.Tensor):
        raise ModelError(
            f"The blame data is of type {type(data).__name__}, not a list of inputs.", hint="[x1, x2, ...]"
        )
    first = data[:1] if isinstance(data, np.ndarray | torch.Tensor) else next(iter(data), None)
    if first is None or (isinstance(first, np.ndarray | torch.Tensor) and not len(first)):
        raise ModelError("The blame data is empty.", hint="pass a dozen typical inputs")
    values = first if isinstance(first, tuple | list) else (first,)
    try:
        tensors = [torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for v in values]
    except TypeError as error:
        raise ModelError(f"The blame data is no numbers: {first_line(error)}.", hint="arrays of float32") from error
    return as_inputs(tensors)


def float_module(model: Any, examples: tuple[torch.Tensor, ...]) -> GraphModule:
    """The float model as a graph, checked.

    Raises:
        ModelError: it cannot be exported, or is quantized already.
    """
    module = exported_module(model, examples)
    if not is_float(module):
        raise ModelError(
            "The model is quantized already, so that there is no float model to compare it with.",
            hint="the float model that it was made of",
        )
    states = states_of(module).values
    if states:
        raise ModelError(
            f"The model keeps a state, `{states[0].name}`, from one call to the next, and blame compares single "
            "inputs.",
            hint="a model that takes its states as inputs and returns them",
        )
    return module


def measure(
    module: GraphModule,
    quantizer: StaticQuantizer,
    batches: Sequence[Row],
    rows: Iterable[Row],
    tell: Listener = lambda name, part: None,
    *,
    follow: bool = True,
) -> SideBySide:
    """Quantizes a copy of a float module and compares it on rows.

    Args:
        batches: choose the ranges.
        follow: whether each layer's error is followed to the output, which takes most of the time.
    """
    listed = list(rows)
    with quiet():  # torch warns of its own copying
        own = copy.deepcopy(module)
    prepared = calibrated(own, [batches], quantizer, lambda done: tell("quantize", done / max(len(batches), 1)))
    with quiet():
        exact = copy.deepcopy(prepared)
    for parameter in exact.parameters():
        parameter.requires_grad_(False)
    with quiet(), one_thread():
        found = SideBySide(exact, converted(prepared, batches, quantizer.settings.corrections))
        for number, row in enumerate(listed):
            tell("blame", number / len(listed))
            found.add(row, follow=follow)
        tell("blame", 1.0)
    return found


# ---------------------------------------------------------------- what is said of a layer


@dataclass(frozen=True)
class _Choices:
    per_channel: bool
    capabilities: Capabilities

    @property
    def has_int16(self) -> bool:
        return DType.INT16 in self.capabilities.activations


def _told(layer: Layer, found: SideBySide, names: set[str], choices: _Choices) -> LayerError:
    origin = origin_of(layer.first)
    node = layer.first.name
    moved = sum(other.moved for other in found.layers)
    step = step_of(layer.quantize)
    dtype = str(arguments(layer.quantize)["dtype"]).removeprefix("torch.")
    return LayerError(
        node=node,
        operator=_operator(layer),
        module=origin.module,
        source=origin.source,
        dtype=dtype,
        shape=layer.shape,
        setting="node" if node in names and layer.first.op == "call_function" else "module" if origin.module else "",
        share=layer.moved / moved if layer.followed and moved > 0 else None,
        sqnr=decibels(layer.signal, layer.total),
        own=decibels(layer.signal, layer.own),
        inherited=decibels(layer.signal, layer.inherited),
        weights=decibels(layer.signal, layer.weights),
        grid=decibels(layer.signal, layer.grid),
        largest=layer.largest,
        steps=layer.largest / step if step else 0.0,
        clipped=layer.clipped / layer.elements if layer.elements else 0.0,
        advice=_advice(layer, dtype, choices),
    )


def _operator(layer: Layer) -> str:
    if layer.first.op == "placeholder":
        return "input"
    names = []
    node: Node = layer.first
    while True:
        names.append(overload_name(node).split(".")[0].rstrip("_") or "requantize")
        if node is layer.result:
            return " + ".join(names)
        (node,) = node.users


def _advice(layer: Layer, dtype: str, choices: _Choices) -> str:
    """What to try for a layer, by what makes most of its own error."""
    if layer.own <= 0 or decibels(layer.signal, layer.own) > _ENOUGH:
        return ""
    int16 = ['activations="int16" for it'] if choices.has_int16 and dtype == "int8" else []
    tries: list[str] = []
    if layer.weight is not None and layer.weights > layer.grid:
        tries += [] if choices.per_channel else ["per_channel=True"]
        tries += ['weight_observer="mse"', "adaptive rounding", "quantization-aware training"]
    elif layer.clipping > layer.grid / 2:
        tries += ['activation_observer="minmax"', *int16]
    else:
        mean_square = layer.signal / max(layer.elements, 1)
        if layer.peak > _PEAKED * mean_square**0.5:
            tries += ['activation_observer="mse" or "percentile"']
        tries += [*int16, "equalization", "quantization-aware training"]
    return ", ".join(tries)
