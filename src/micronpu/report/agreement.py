"""Comparison of a compiled program with the quantized model on some inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """Agreement of a program with the quantized model that it was compiled from.

    Attributes:
        inputs: number of inputs that both ran on.
        elements: number of elements of all results.
        equal: share of the elements that are the same, 0 to 1.
        largest: largest difference, in LSB of the result, or in 1/127 of the largest value of a float result.
        bound: largest expected difference: twice the quantization error on these inputs, plus four LSB.
        hanging: results that differ by more because of rounding, such as the position of the largest of nearly equal
            values.  The quantized model itself returns these values with other rounding.
        reason: reason why nothing was compared, or "".
    """

    inputs: int = 0
    elements: int = 0
    equal: float = 1.0
    largest: float = 0.0
    bound: float = 0.0
    hanging: tuple[int, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"The program was not compared with the quantized model: {self.reason}."
        inputs = f"{self.inputs} input{'' if self.inputs == 1 else 's'}"
        if self.equal == 1.0:
            return f"Against the quantized model, on {inputs}: all of {self.elements:,} outputs equal."
        text = (
            f"Against the quantized model, on {inputs}: {self.equal:.1%} of {self.elements:,} outputs equal, at most "
            f"{self.largest:.3g} LSB off ({self.bound:.3g} expected)."
        )
        if self.hanging:
            results = f"result{'' if len(self.hanging) == 1 else 's'} {', '.join(map(str, self.hanging))}"
            text += (
                f" Not counted: values of {results} that depend on rounding, such as positions or comparisons of "
                "almost equal values."
            )
        return text
