"""How accurate a program is: on a few rows at every compilation, and on a user's data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from micronpu.report.codec import named

Array = npt.NDArray[Any]


def decibels(signal: float, noise: float) -> float:
    """Signal-to-noise ratio of two powers; inf without noise, -inf without signal or with endless noise (1 / 0)."""
    if noise <= 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0.0 and noise < math.inf else -math.inf


def decibel_text(value: float) -> str:
    """``28.6 dB``."""
    return "no difference" if value == math.inf else f"{value:.1f} dB"


@dataclass(frozen=True)
class Comparison:
    """How close some results are to others, over all rows.

    Attributes:
        rows: how many.
        sqnr: signal-to-quantization-noise ratio in dB: the power of the wanted results over that of the difference;
            inf where nothing differs.
        largest: largest difference, in the unit of the result.
        relative: the same as a share of the largest wanted value, 0 to 1 and above.
        agreeing: rows in which the same element is the largest; None where the result is no vector of scores.
    """

    rows: int
    sqnr: float
    largest: float
    relative: float
    agreeing: int | None = None

    @classmethod
    def of(cls, found: Sequence[Array], wanted: Sequence[Array]) -> Comparison:
        """Compares the results of each row, [1, ...] arrays or whatever shape the output has.

        Values that are not finite in what is wanted are left out; where only what was found is not, the noise is
        endless.
        """
        signal = noise = largest = peak = 0.0
        agreeing: int | None = 0
        for y, x in zip(found, wanted, strict=True):
            y, x = np.asarray(y, np.float64), np.asarray(x, np.float64)
            known = np.isfinite(x)
            error = np.abs(y[known] - x[known])
            error[np.isnan(error)] = math.inf
            signal += float(np.square(x[known]).sum())
            noise += float(np.square(error).sum())
            largest = max(largest, float(error.max(initial=0.0)))
            peak = max(peak, float(np.abs(x[known]).max(initial=0.0)))
            scores = x.ndim == 2 and x.shape[1] > 1 and bool(known.all())
            agreeing = agreeing + int((y.argmax(1) == x.argmax(1)).all()) if scores and agreeing is not None else None
        relative = largest / peak if peak else (math.inf if largest else 0.0)
        return cls(len(wanted), decibels(signal, noise), largest, relative, agreeing)

    @property
    def agreement(self) -> float | None:
        """`agreeing` as a share of the rows, 0 to 1."""
        return None if self.agreeing is None or not self.rows else self.agreeing / self.rows

    def against(self, what: str) -> str:
        """``28.6 dB against float, the same largest element in 8 of 8``."""
        same = f", the same largest element in {self.agreeing} of {self.rows}" if self.agreeing is not None else ""
        return f"{decibel_text(self.sqnr)} against {what}{same}"


@dataclass(frozen=True)
class OutputAccuracy:
    """One output of a program.

    Attributes:
        output: its number.
        float_model: against the float model; None where that is not known.
        quantized: against the quantized model.
    """

    output: int
    float_model: Comparison | None = field(metadata=named("float"))
    quantized: Comparison


@dataclass(frozen=True)
class ProgramAccuracy:
    """What a compilation says about the accuracy of its program, on a few rows.

    Attributes:
        rows: numbers of the calibration rows that it was measured on; () for the example inputs.
        of: how many calibration rows there were.
        held_out: whether these rows were kept back from calibration; otherwise they calibrated, too.
        outputs: one for each output that is a float.
        integers: of the elements of outputs that are integers, such as positions, the share that the float model gives,
            too, 0 to 1; None where there are none.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("sqnr", "agreement")

    rows: tuple[int, ...]
    of: int = field(metadata=named("calibration_rows"))
    held_out: bool
    outputs: tuple[OutputAccuracy, ...]
    integers: float | None = None

    @property
    def agreement(self) -> float | None:
        """The worst output's share of rows with the float model's answer: the largest score, or integers.

        None where no output is a vector of scores or of integers.
        """
        known = [o.float_model.agreement for o in self.outputs if o.float_model is not None]
        shares = [share for share in (*known, self.integers) if share is not None]
        return min(shares) if shares else None

    @property
    def sqnr(self) -> float | None:
        """The worst output's ratio against float in dB; None where the float model is not known."""
        known = [o.float_model.sqnr for o in self.outputs if o.float_model is not None]
        return min(known) if known else None

    @property
    def measured_on(self) -> str:
        """Which rows, as a clause."""
        if not self.rows:
            return "on the example inputs"
        count = f"{len(self.rows)} row{'' if len(self.rows) == 1 else 's'}"
        numbers = ", ".join(map(str, self.rows))
        if self.held_out:
            return f"on {count} kept back from calibration ({numbers} of {self.of})"
        return f"on {count} that also calibrated ({numbers} of {self.of}; give 16 or more to have some kept back)"

    def __str__(self) -> str:
        parts = []
        for output in self.outputs:
            name = f"output {output.output}: " if len(self.outputs) > 1 else ""
            against = [output.float_model.against("float")] if output.float_model is not None else []
            parts.append(name + "; ".join([*against, output.quantized.against("the quantized model")]))
        if self.integers is not None:
            parts.append(f"{self.integers:.1%} of the integers are those of the float model")
        return f"Accuracy {self.measured_on}: {'. '.join(parts)}."
