"""Scores of a network that runs again and again, as events."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import ModelError


def topk(scores: npt.NDArray[Any], most: int) -> list[int]:
    """The places of the highest scores [N], the highest first; of equal ones that which comes first, NaN last.

    C: `micronpu_topk_int8`, `micronpu_topk_int16`, `micronpu_topk_float`.

    Raises:
        ModelError: scores of another type or rank, or a number below 0.
    """
    if scores.ndim != 1 or scores.dtype not in (np.int8, np.int16, np.float32) or most < 0:
        raise ModelError(
            "The scores are int8, int16 or float32 [N], and their number is not negative.", hint="y[0, -1]"
        )
    return [int(place) for place in np.argsort(-scores.astype(np.float64), kind="stable")[:most]]


class Smooth:
    """A word is heard where the mean of its last scores is the highest and high enough, once in a while.

    C: `micronpu_smooth`.

    Args:
        classes: scores of a call.
        window: calls over which the mean is taken.
        threshold: that the mean has to reach, in steps of the scores.
        rest: calls after an event in which there is none.
        ignore: classes from 0 on that are no words, such as silence.

    Raises:
        ModelError: a number that is 0, or above 255 for `window`.
    """

    def __init__(self, classes: int, *, window: int, threshold: int, rest: int = 0, ignore: int = 0) -> None:
        if classes < 1 or not 1 <= window <= 255 or rest < 0 or not 0 <= ignore < classes:
            raise ModelError("A window has 1 to 255 calls, of at least one class that counts.", hint="window=4")
        self.classes, self.threshold, self.rest, self.ignore = classes, threshold, rest, ignore
        self.window = window
        self._scores: deque[npt.NDArray[Any]] = deque(maxlen=window)
        self._wait = 0

    def push(self, scores: npt.NDArray[Any]) -> int:
        """The class that is heard with these scores, int8 [classes], or -1; of equal means the lower class.

        Raises:
            ModelError: another type or number of scores.
        """
        if scores.dtype != np.int8 or scores.shape != (self.classes,):
            raise ModelError(f"The scores are int8 [{self.classes}].", hint="scores[0]")
        self._scores.append(scores.astype(np.int64))
        if self._wait:
            self._wait -= 1
            return -1
        if len(self._scores) < self.window:
            return -1
        sums = np.sum(self._scores, 0)
        best = int(np.argmax(sums))
        if best < self.ignore or sums[best] < self.threshold * self.window:
            return -1
        self._wait = self.rest
        return best
