"""Errors per layer, and what to try."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from micronpu.base.errors import OptionError
from micronpu.report.accuracy import decibel_text
from micronpu.report.saved import JsonReport

Sort = Literal["output", "own", "total"]


def check_sort(by: Any) -> Sort:
    """Check an order of layers.

    Raises:
        OptionError: there is no such order.
    """
    if by not in get_args(Sort):
        raise OptionError(f"Layers cannot be sorted by {by!r}.", hint=f"one of {', '.join(get_args(Sort))}")
    return by  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LayerError:
    """Error of one layer's result by quantization. Ratios are in dB, of the float result to the error.

    Attributes:
        node: the layer's operator, by its name in the exported program.
        operator: "conv2d + relu" and the like, or "input".
        module: path of the module in the model.
        source: the user's file and line.
        dtype: of its result.
        setting: the kind of quantization setting that selects it: "node" or "module", or "" if none selects it alone.
        share: share of the error at the output that the layer adds, 0 to 1; None without a gradient to the output.
        sqnr: ratio for the total error: the quantized network against the float one.
        own: ratio for the layer alone: its quantized operator on float operands that are quantized.
        inherited: ratio for the error of the layers before it.
        weights: ratio for the part of `own` by rounded weights; inf without weights.
        grid: ratio for the part of `own` by rounding and clipping of the result.
        largest: largest error of an element, in the unit of the result.
        steps: `largest` in LSB of the result.
        clipped: share of the result's elements outside of its range.
        range_gain: gain in dB at the output that another range of its result would bring, by derivatives on at most
            eight samples; None if the range is given, as that of an output is.
        advice: what to try, as a clause; "" for nothing.
    """

    node: str
    operator: str
    module: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    setting: str
    share: float | None
    sqnr: float
    own: float
    inherited: float
    weights: float
    grid: float
    largest: float
    steps: float
    clipped: float
    range_gain: float | None = None
    advice: str = ""


@dataclass(frozen=True, repr=False)
class Blame(JsonReport):
    """Result of `micronpu.blame`.

    Attributes:
        target: name of the target.
        rows: number of samples that were measured.
        calibration_rows: number of samples that chose the ranges.
        calibrated_on_them: True if these are the same samples.
        sqnr: of all outputs together, in dB.
        layers: worst first.
        sort: order of the layers: by the share of the error at the output ("output"), the layer's own error ("own"), or
            its total error ("total").
    """

    FORMAT = "micronpu blame"

    target: str
    rows: int
    calibration_rows: int
    calibrated_on_them: bool
    sqnr: float
    layers: tuple[LayerError, ...]
    sort: Sort = "output"

    def sorted(self, by: Sort) -> Blame:
        """Return the result with the layers in another order.

        Raises:
            OptionError: there is no such order.
        """
        return replace(self, layers=tuple(sorted(self.layers, key=_ORDERS[check_sort(by)])), sort=by)

    @property
    def summary(self) -> str:
        """Return a sentence with the accuracy at the output."""
        rows = f"{self.rows} row{'' if self.rows == 1 else 's'}"
        where = "that also calibrated" if self.calibrated_on_them else f"beside {self.calibration_rows} of calibration"
        return f"{decibel_text(self.sqnr)} at the output of the quantized model against float, on {rows} {where}."

    def __str__(self) -> str:
        lines = [self.summary]
        for layer in self.layers:
            share = f"{layer.share:.0%} of the error, " if layer.share is not None else ""
            where = f" ({layer.source})" if layer.source else ""
            hint = f" Try: {layer.advice}." if layer.advice else ""
            lines.append(
                f"  - `{layer.node}`{where}: {share}own {decibel_text(layer.own)}, inherited "
                f"{decibel_text(layer.inherited)}.{hint}"
            )
        return "\n".join(lines)


_ORDERS: dict[str, Callable[[LayerError], float]] = {
    "output": lambda layer: -layer.share if layer.share is not None else math.inf,
    "own": lambda layer: layer.own,
    "total": lambda layer: layer.sqnr,
}
