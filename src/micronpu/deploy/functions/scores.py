"""Detection of events in the scores of a network that runs repeatedly."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import ModelError


def topk(scores: npt.NDArray[Any], most: int) -> list[int]:
    """Return the indices of the highest scores [N], highest first; equal ones in order, NaN last.

    C: `micronpu_topk_int8`, `micronpu_topk_int16`, `micronpu_topk_float`.

    Raises:
        ModelError: wrong type or rank of the scores, or a negative number.
    """
    if scores.ndim != 1 or scores.dtype not in (np.int8, np.int16, np.float32) or most < 0:
        raise ModelError(
            "The scores are int8, int16 or float32 [N], and their number is not negative.", hint="y[0, -1]"
        )
    return [int(place) for place in np.argsort(-scores.astype(np.float64), kind="stable")[:most]]


class Smooth:
    """Reports a class if the mean of its last scores is the highest and reaches a threshold, followed by a pause.

    C: `micronpu_smooth`.

    Args:
        classes: number of scores of a call.
        window: number of calls for the mean.
        threshold: minimum mean, in LSB of the scores.
        rest: number of calls after an event without another one.
        ignore: number of first classes that are never reported, such as silence.

    Raises:
        ModelError: a number is 0, or `window` is above 255.
    """

    def __init__(self, classes: int, *, window: int, threshold: int, rest: int = 0, ignore: int = 0) -> None:
        if classes < 1 or not 1 <= window <= 255 or rest < 0 or not 0 <= ignore < classes:
            raise ModelError("A window has 1 to 255 calls, of at least one class that counts.", hint="window=4")
        self.classes, self.threshold, self.rest, self.ignore = classes, threshold, rest, ignore
        self.window = window
        self._scores: deque[npt.NDArray[Any]] = deque(maxlen=window)
        self._wait = 0

    def push(self, scores: npt.NDArray[Any]) -> int:
        """Return the class that is detected with these scores, int8 [classes], or -1; for equal means the lower class.

        Raises:
            ModelError: wrong type or number of scores.
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
