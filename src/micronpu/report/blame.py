"""Which layer costs the accuracy: errors per layer, and what to try."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from micronpu.base.errors import OptionError
from micronpu.report.accuracy import decibel_text
from micronpu.report.codec import encode
from micronpu.report.shown import rendered, short

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT, VERSION = "micronpu blame", 1
"""Of the JSON form."""
Sort = Literal["output", "own", "total"]


def check_sort(by: Any) -> Sort:
    """An order of layers.

    Raises:
        OptionError: there is no such order.
    """
    if by not in get_args(Sort):
        raise OptionError(f"Layers cannot be sorted by {by!r}.", hint=f"one of {', '.join(get_args(Sort))}")
    return by  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LayerError:
    """What quantization does to the result of one layer. Ratios are in dB, of the float result to the error.

    Attributes:
        node: the layer's operator, by its name in the exported program.
        operator: "conv2d + relu" and the like, or "input".
        module: path of the module in the model.
        source: the user's file and line.
        dtype: of its result.
        shape: of its result.
        setting: how a quantization setting names it: "node" or "module", or "" where none reaches it alone.
        share: of the error at the output, the part that the layer adds, 0 to 1; None where no gradient leads there.
        sqnr: all of the error: the quantized network against the float one.
        own: the layer alone: its quantized operator on float operands that are rounded to their grids.
        inherited: what the layers before it have brought in.
        weights: of its own error, what its rounded weights do; inf without weights.
        grid: of its own error, what rounding and clipping to the grid of its result do.
        largest: largest error of an element, in the unit of the result.
        steps: the same in steps of the result's grid.
        clipped: share of the result's elements that the grid does not reach.
        range_gain: by how many dB another range of its result would lessen what rounding and clipping do to the output,
            by derivatives on eight rows at most; None where the range is given, as that of an output is.
        advice: what to try, as a clause; "" where nothing is to be gained.
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


@short
@dataclass(frozen=True)
class Blame:
    """What `micronpu.blame` returns.

    Attributes:
        target: what the model was quantized for.
        rows: how many were measured.
        calibration_rows: how many chose the ranges.
        calibrated_on_them: whether these are the same rows.
        sqnr: of the outputs together.
        layers: worst first.
        sort: what that means: the share of the error at the output ("output"), the layer's own error ("own"), or all of
            its error ("total").
    """

    target: str
    rows: int
    calibration_rows: int
    calibrated_on_them: bool
    sqnr: float
    layers: tuple[LayerError, ...]
    sort: Sort = "output"

    def sorted(self, by: Sort) -> Blame:
        """The same in another order.

        Raises:
            OptionError: there is no such order.
        """
        return replace(self, layers=tuple(sorted(self.layers, key=_ORDERS[check_sort(by)])), sort=by)

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes; docs/accuracy.md says what it means."""
        return {"format": FORMAT, "version": VERSION, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """The whole as JSON, for other programs."""
        return json.dumps(self.to_dict(), indent=indent)

    @property
    def summary(self) -> str:
        """One sentence."""
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

    def __rich__(self) -> RenderableType:
        return rendered(self)


_ORDERS: dict[str, Callable[[LayerError], float]] = {
    "output": lambda layer: -layer.share if layer.share is not None else math.inf,
    "own": lambda layer: layer.own,
    "total": lambda layer: layer.sqnr,
}
