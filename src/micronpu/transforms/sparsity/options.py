"""What a user may choose about sparse weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from micronpu.base.arguments import check_switch
from micronpu.base.errors import OptionError

PATTERNS = ("2:4",)


@dataclass(frozen=True, kw_only=True)
class SparsityOptions:
    """How a network is made sparse.

    Attributes:
        pattern: "2:4", two zeros in every four weights along the input channels.
        max_loss: what may be lost at most, 0 to 1: the share of the inputs kept back whose answer is another one than
            that of the float network; without limit unless given.  With a score of one's own, in its units.
        max_cycles: of the NPU for the network; up to 1.0 a part of the dense network's.  Where both limits are given,
            the fewest cycles within ``max_loss`` are chosen, and it is said whether they are few enough.
        points: steps from the dense network to the sparsest, each with more sparse layers than the one before.
        steps: of training without labels, all points together; 0 for none.
        rate: of learning, as a part of the size of the values that are learnt.
        batch: rows of a step.
        held_back: part of the calibration inputs that nothing is learnt from and that points are judged with.
        damping: part of the mean second moment that is added to each, so that few inputs do not mislead.
        least_samples: inputs of a layer as a part of its columns, below which the second order would guess and the
            layer stays dense.
        least_gain: part of its cycles that a layer has to save to become sparse.
        dense: layers that stay as they are, by the path of the submodule or the name of the operator.
        corrections: whether every point is also quantized with corrections (ranges by results and biases), and what is
            nearest to the float network kept; not where a quantizer has corrections of its own.
        seed: of the training; the same seed gives the same weights on a machine with as many threads.

    Raises:
        OptionError: a value that does not fit.
    """

    pattern: str = "2:4"
    max_loss: float | None = None
    max_cycles: float | None = None
    points: int = 4
    steps: int = 800
    rate: float = 8e-3
    batch: int = 32
    held_back: float = 0.2
    damping: float = 0.01
    least_samples: float = 0.25
    least_gain: float = 0.02
    dense: tuple[str, ...] = ()
    corrections: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise OptionError(f"There is no sparsity pattern {self.pattern!r}.", hint=f"one of {', '.join(PATTERNS)}")
        for name, low, high in (("max_loss", 0, math.inf), ("max_cycles", 0, math.inf)):
            if getattr(self, name) is not None:
                self._number(name, low, high)
        self._number("rate", 0, 1)
        self._number("damping", 0, 10)
        self._number("held_back", 0, 0.9)
        self._number("least_samples", 0, 100)
        self._number("least_gain", 0, 1)
        for name, least in (("points", 1), ("steps", 0), ("batch", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(
                    f"`{name}` is {value!r}; it is a whole number from {least} on.", hint=f"{name}={least}"
                )
        check_switch("corrections", self.corrections)
        names = self.dense
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise OptionError(f"`dense` is {names!r}; it is a list of names of layers.", hint='dense=("classifier",)')
        object.__setattr__(self, "dense", tuple(names))

    def _number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            upper = f" to {high:g}" if high < math.inf else " on"
            raise OptionError(f"`{name}` is {value!r}; it is a number from {low:g}{upper}.", hint=f"{name}={low:g}")


def sparsity_options(given: Any) -> SparsityOptions | None:
    """The options of what a user gives: None, the name of a pattern, or the options themselves.

    Raises:
        OptionError: something else.
    """
    if given is None or isinstance(given, SparsityOptions):
        return given
    if isinstance(given, str):
        return SparsityOptions(pattern=given)
    raise OptionError(
        f"`sparsity` is of type {type(given).__name__}.", hint='sparsity="2:4", or SparsityOptions(max_loss=0.01)'
    )
