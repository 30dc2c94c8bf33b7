"""Corrections of quantization errors, between calibration and conversion."""

from __future__ import annotations

from dataclasses import dataclass, fields

from micronpu.base.arguments import check_switch


@dataclass(frozen=True)
class Corrections:
    """Corrections of weights, biases and ranges.

    Attributes:
        equalize: cross-layer equalization: successive layers with a ReLU between them equalize their ranges, channel by
            channel.
        bias_correction: subtract the mean error of each channel by rounded weights from the bias.
        adaptive_rounding: weights are rounded up or down so that the error of the layer's result is small (AdaRound's
            aim), instead of to the nearest value.
        fit_ranges: ranges of int8 activations, inputs among them, minimize the error of the results instead of that of
            each tensor; they replace the observers' ranges.
        projections: sqrt(a^2 + b^2) is computed as the largest of four projections of (a, b), with an error of at most
            4 %, since int8 cannot represent the range of squares.

    Raises:
        OptionError: a value is of another type.
    """

    equalize: bool = False
    bias_correction: bool = False
    adaptive_rounding: bool = False
    fit_ranges: bool = False
    projections: bool = False

    @property
    def need_data(self) -> bool:
        """True if any of them needs calibration samples."""
        return self.bias_correction or self.adaptive_rounding or self.fit_ranges

    def __post_init__(self) -> None:
        for field in fields(self):
            check_switch(field.name, getattr(self, field.name))
