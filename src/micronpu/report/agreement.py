"""What a compiled program gave beside the quantized model, on some inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Agreement:
    """How close a program is to the quantized model that it was made of.

    Attributes:
        inputs: how many inputs both were run on.
        elements: of all results together.
        equal: share of the elements that are the same, 0 to 1.
        largest: largest difference, in steps of the result's grid, or in 1/127 of the largest value where it has none.
        bound: the largest that there may be: twice what quantization costs on these inputs, and four steps.
        hanging: results in which more than that differs, since roundings decide: the position of the largest of values
            that are almost equal, for one.  The quantized model itself gives these when it rounds otherwise.
        reason: why nothing was compared; "" where something was.
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
