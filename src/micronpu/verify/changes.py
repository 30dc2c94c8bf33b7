"""Decisions that the noise of a program is expected to change: largest scores, and sides of one half."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from micronpu.base.arrays import Array
from micronpu.quantize.data import Trial
from micronpu.quantize.running import Row
from micronpu.report.accuracy import are_probabilities, are_scores
from micronpu.verify import thresholds as at
from micronpu.verify.judge import ElementSources, joined


def expected_changes(
    results: Sequence[Sequence[Row]], trial: Trial, sources: Sequence[ElementSources | None] = ()
) -> tuple[float, float]:
    """Return the expected shares of changed decisions of the worst output, by largest scores and by probabilities.

    The first is the share of samples whose largest score is another one than in float.  The second is that of elements
    from 0 to 1 on the other side of 1/2 than in float, where both sides occur: relative to the number of those on the
    rarer side in float and in the results, as 1 - F1 is, or to the number of samples if there are more.

    Few decisions are close, so that a count of changes says little.  Here each one, of `trial.others` too, counts with
    the probability that normal noise exceeds its distance: from 1/2, or between the two largest scores.

    Args:
        sources: of the elements of each output, see `sources_of`: each is a probability or none.
    """
    more = trial.others.exact if trial.others is not None else ()
    rows = (itertools.chain.from_iterable(of) for of in (results, trial.exact, [*trial.exact, *more]))
    columns = zip(*([joined(column) for column in zip(*of, strict=True)] for of in rows), strict=True)
    scores, sides = [0.0], [0.0]
    for number, (y, x, every) in enumerate(columns):
        flat = [of.reshape(len(of), -1).astype(np.float64) for of in (x, y, every)]
        if x.dtype.kind != "f":
            continue
        if are_scores([x]):
            first = np.argsort(flat[0], 1, kind="stable")[:, -2:]
            exact, found = (np.diff(np.take_along_axis(of, first, 1)) for of in flat[:2])
            scores.append(_expected(exact, found, np.diff(np.sort(flat[2], 1)[:, -2:])) / len(every))
        elif (likely := _probabilities(flat[2], sources[number] if number < len(sources) else None)) is not None:
            chosen, rarer = likely
            sides.append(_expected(*(of[:, chosen] - 0.5 for of in flat)) / max(2 * rarer, len(every)))
    return max(scores), max(sides)


def _expected(exact: Array, found: Array, every: Array) -> float:
    """Return the expected number of `every` whose sign normal noise changes."""
    # Noise depends on the value, since a softmax saturates; it is that of the nearest values of `exact`.
    order = np.argsort(exact, None, kind="stable")
    known, noise = exact.ravel()[order], (found - exact).ravel()[order]
    count = min(at.NEAREST, len(known))
    first = np.clip(np.searchsorted(known, every.ravel()) - count // 2, 0, len(known) - count)
    total = np.concatenate([[0.0], np.cumsum(np.square(noise))])
    deviation = np.sqrt(2 * np.maximum(total[first + count] - total[first], 0.0) / count)
    ratio = np.abs(every.ravel()) / deviation.clip(np.finfo(np.float64).tiny)
    return float(torch.special.erfc(torch.from_numpy(ratio)).sum()) / 2


def _probabilities(every: Array, sources: ElementSources | None) -> tuple[Array, int] | None:
    """Return the elements that are probabilities, and how many of all samples lie on the rarer side of 1/2; or None.

    Args:
        every: of the float model, [samples, elements].
    """
    place = np.zeros(every.shape[1], np.int64) if sources is None else sources.number.ravel()
    if len(place) != every.shape[1]:
        return None
    low, high, above, count = (np.zeros(int(place.max(initial=0)) + 1) for _ in range(4))
    known = place >= 0
    np.minimum.at(low, place[known], every.min(0)[known])
    np.maximum.at(high, place[known], every.max(0)[known])
    np.add.at(above, place[known], (every > 0.5).sum(0)[known])
    np.add.at(count, place[known], len(every))
    rarer = np.where(are_probabilities(low, high), np.minimum(above, count - above), 0)
    chosen = known & (rarer[place] > 0)
    return (chosen, int(rarer.sum())) if chosen.any() else None
