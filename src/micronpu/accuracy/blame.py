"""`micronpu.blame`: find the layers that cost accuracy, and what to try."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import torch
from torch import nn
from torch.export import ExportedProgram

from micronpu.accuracy.subject import LayerErrors, ProgressCallback, SideBySide, Subject
from micronpu.frontend.checks import check_callback
from micronpu.frontend.graphs import by_name
from micronpu.frontend.program import origin_of, overload_name
from micronpu.quantize.loops import loops_of
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.report.accuracy import decibels
from micronpu.report.diagnosis import Blame, LayerError, Sort
from micronpu.targets.options import Options
from micronpu.targets.registry import target_required
from micronpu.upstream.session import exclusive

_ENOUGH = 45.0
"""dB: signal-to-noise ratio of a layer's own error above which no advice is given."""
_HALF = 0.5
"""Maximum fraction of the output's error that another range would leave, for a layer's range to be blamed."""
_RESULTS = 24_000
"""Maximum number of results of layers that are compared, beyond those of a dozen samples: about five seconds."""
_DOZEN = 12
_PEAKED = 20.0
"""Minimum ratio of the largest value to the root mean square at which outliers cost the other values precision."""


@target_required
@exclusive()
def blame(
    model: nn.Module | ExportedProgram | str | os.PathLike[str],
    data: object,
    target: str,
    *,
    calibration: object = None,
    example_inputs: Sequence[object] | torch.Tensor | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    sort: Sort = "output",
    callback: ProgressCallback | None = None,
) -> Blame:
    """Compare the quantized network with the float one, layer by layer, on real data.

    Args:
        model: a float module in evaluation mode, an exported program of one, or the path of an .onnx or .tflite.
        data: samples to measure on: an array with a row per input, or a list of inputs as for calibration. A dozen are
            enough; of many, some are measured for a large network, evenly spread. With labels and a metric:
            ``micronpu.Verification(data=x, labels=y, metric="top1")``.
        target: decides the quantization; see ``micronpu targets``.
        calibration: samples that choose the ranges; default: ``data``, which the result states.
        example_inputs: default: the first of ``data``.
        quantization, options: as for `micronpu.compile`.
        sort: worst first by "output" (the layer's contribution to the output's error), "own" or "total".
        callback: progress callback.

    Raises:
        ModelError: there is no data, it does not fit the model, or the model is already quantized.
        OptionError: an option does not fit the target, or there is no such order.
    """
    check_callback(callback)
    notify = callback or (lambda name, part: None)
    subject = Subject.of("blame", model, data, calibration, example_inputs, target, options)
    how = Quantization.of(quantization)
    chosen = subject.quantizer(how)
    notify("export", 0.0)
    rows = subject.rows
    batches = rows if subject.ranges is None else subject.ranges
    notify("export", 1.0)
    found = subject.measured(chosen, batches, rows, notify, most=_measured)
    names = by_name(subject.module)
    layers = tuple(
        _layer_error(layer, found, names, how.per_channel, subject.has_int16) for layer in found.layers if layer.adds
    )
    return Blame(
        target=target,
        rows=found.rows,
        given_rows=len(rows),
        calibration_rows=len(batches),
        calibrated_on_them=calibration is None,
        sqnr=decibels(found.signal, found.noise),
        layers=layers,
        metric=subject.metric_of(slice(None, None, -(-len(rows) // found.rows)), *zip(*found.results, strict=True))
        if found.results
        else None,
        activations="int16" if how.activations == "int16" else "int8",
    ).sorted(sort)


def _measured(layers: int) -> int:
    """Return the maximum number of samples that a network with so many layers is measured on."""
    return max(_DOZEN, _RESULTS // max(layers, 1))


# ---------------------------------------------------------------- results of a layer


def _layer_error(
    layer: LayerErrors, found: SideBySide, names: Collection[str], per_channel: bool, has_int16: bool
) -> LayerError:
    origin = origin_of(layer.first)
    node = layer.first.name
    moved = max(sum(other.moved for other in found.layers), found.noise if any(loops_of(found.converted)) else 0.0)
    step, dtype = layer.edge.scale, layer.edge.dtype.value
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
        grid=decibels(layer.signal, layer.rounding),
        largest=layer.largest,
        steps=layer.largest / step if step else 0.0,
        clipped=layer.clipped / layer.elements if layer.elements else 0.0,
        range_gain=None if layer.range_left is None else decibels(1.0, layer.range_left),
        advice=_advice(layer, dtype, per_channel, has_int16),
    )


def _operator(layer: LayerErrors) -> str:
    if layer.first.op == "placeholder":
        return "input"
    names = []
    node = layer.first
    while True:
        names.append(overload_name(node).split(".")[0].rstrip("_") or "requantize")
        if node is layer.result:
            return " + ".join(names)
        (node,) = node.users


_TRAIN = "quantization-aware training (micronpu.compile with train=...)"


def _advice(layer: LayerErrors, dtype: str, per_channel: bool, has_int16: bool) -> str:
    """Advice for a layer, by the largest part of the layer's error."""
    if layer.own <= 0 or decibels(layer.signal, layer.own) > _ENOUGH:
        return ""
    int16 = ['activations="int16"'] if has_int16 and dtype == "int8" else []
    if layer.weight is not None and layer.weights > layer.rounding:
        first = [] if per_channel else ["per_channel=True"]
        return ", ".join([*first, 'weight_observer="mse"', "adaptive_rounding=True", _TRAIN])
    tries: list[str] = []
    if layer.range_left is not None:  # derivatives predict better than statistics of the values
        tries = ["fit_ranges=True"] if layer.range_left <= _HALF else []
    elif layer.clipping > layer.rounding / 2:
        tries = ['activation_observer="minmax"']
    elif layer.peak > _PEAKED * (layer.signal / max(layer.elements, 1)) ** 0.5:
        tries = ['activation_observer="mse"', 'activation_observer="percentile"']
    tries += [*int16, "equalize=True", _TRAIN]
    return ", ".join(tries)
