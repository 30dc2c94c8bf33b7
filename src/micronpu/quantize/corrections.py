"""What may be done about the errors of rounded values, between calibration and conversion."""

from __future__ import annotations

from dataclasses import dataclass, fields

from micronpu.base.arguments import check_switch


@dataclass(frozen=True)
class Corrections:
    """What is done to weights, biases and ranges beside rounding.

    Attributes:
        equalize: cross-layer equalization: layers in a row with a ReLU between them share their ranges, channel by
            channel.
        bias_correction: the mean error that rounded weights make of each channel is taken out of the bias.
        adaptive_rounding: weights are rounded up or down so that the error of the layer's result is small (AdaRound's
            aim), rather than each to the nearest step.
        fit_ranges: ranges of int8 activations, inputs among them, are those with which the error of the results is
            small, rather than that of each tensor; in the place of what an observer finds.
        projections: sqrt(a^2 + b^2) is computed as the largest of four projections of (a, b), at most 4 % off: without
            squares, whose range int8 does not hold.

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
        """Whether any of them looks at calibration rows."""
        return self.bias_correction or self.adaptive_rounding or self.fit_ranges

    def __post_init__(self) -> None:
        for field in fields(self):
            check_switch(field.name, getattr(self, field.name))
