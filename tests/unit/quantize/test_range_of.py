"""Ranges and qparams as a pure function of statistics and of facts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from micronpu.quantize.range_of import Needs, Statistics, Thresholds, qparams_of, range_of
from micronpu.quantize.thresholds import EXTREMES


def statistics(rows: Any) -> Statistics:
    """What an observer of all extremes collects of rows [calls, values]."""
    rows = np.asarray(rows, np.float64)
    sides = [sorted(((float(end), call) for call, end in enumerate(ends)), reverse=True) for ends in _ends(rows)]
    low, high = np.float32(rows.min()), np.float32(rows.max())
    return Statistics(low, high, len(rows), rows.size, [side[:EXTREMES] for side in sides])  # type: ignore[arg-type]


def _ends(rows: Any) -> tuple[Any, Any]:
    return -rows.min(1), rows.max(1)


def margins(rows: Any, **needs: Any) -> tuple[float, float]:
    """Margins of a range in its size, downwards and upwards."""
    seen = statistics(rows)
    low, high = range_of(seen, Needs(**needs))
    reach = float(max(seen.high, 0) - min(seen.low, 0))
    return float(seen.low - low) / reach, float(high - seen.high) / reach


def rounded(x: Any, low: float, high: float) -> Any:
    scale, zero_point = qparams_of(Statistics(np.float32(low), np.float32(high)), Needs())  # type: ignore[arg-type]
    return (np.clip(np.rint(x / scale) + zero_point, -128, 127) - zero_point) * scale


def gain(kind: Any, calls: int, values: int, seed: int) -> float:
    """Decibels by which the margin makes other samples more exact."""
    rng = np.random.default_rng(seed)
    seen, others = statistics(kind(rng, calls, values)), kind(rng, 200, values)
    ranges = [range_of(seen, Needs(has_margin=has)) for has in (False, True)]
    noise = [np.square(rounded(others, *map(float, ends)) - others).sum() for ends in ranges]
    return float(10 * np.log10(noise[0] / noise[1]))


def normal(rng: Any, *shape: int) -> Any:
    return rng.normal(size=shape)


def few_large(rng: Any, calls: int, values: int) -> Any:
    """One row of ten is eight times larger."""
    return rng.normal(size=(calls, values)) * np.where(rng.uniform(size=(calls, 1)) < 0.1, 8.0, 1.0)


def uniform(rng: Any, *shape: int) -> Any:
    return rng.uniform(-1.0, 1.0, shape)


@pytest.mark.parametrize(
    ("kind", "calls", "values", "mean", "worst"),
    [
        (normal, 21, 32, 4.5, -3.5),
        (normal, 42, 96, 0.4, -1.5),
        (normal, 21, 768, -0.1, -0.5),
        (normal, 21, 4, 12.0, 0.0),
        (few_large, 42, 96, 0.5, -1.6),
        (few_large, 21, 768, -0.1, -0.5),
        (uniform, 42, 96, -0.1, -0.5),
        (uniform, 21, 768, -0.01, -0.1),
    ],
)
def test_a_margin_is_worth_its_rounding(kind: Any, calls: int, values: int, mean: float, worst: float) -> None:
    gains = [gain(kind, calls, values, seed) for seed in range(20)]
    assert np.mean(gains) > mean and min(gains) > worst


def test_only_extremes_of_samples_get_a_margin() -> None:
    rows = np.random.default_rng(0).normal(size=(24, 32))
    low, high = margins(rows)
    assert low > 0.05 and high > 0.05
    assert margins(rows, has_margin=False) == margins(rows, is_whole=True) == (0.0, 0.0)
    assert margins(rows[:5]) == (0.0, 0.0), "too few calls to tell"
    assert margins(rows.clip(-0.5, 0.5)) == (0.0, 0.0), "every row has the same ends, as a clamp or a pad"
    assert margins(np.abs(rows))[0] == 0.0 < margins(np.abs(rows))[1]
    least, most = float(rows.min()), float(rows.max())
    assert margins(rows, bounds=(least, most)) == margins(rows, within=(least, most)) == (0.0, 0.0)
    limited = range_of(statistics(rows), Needs(bounds=(least - 0.01, most + 0.02)))
    assert np.allclose(limited, (least - 0.01, most + 0.02))
    seen = statistics(rows)
    clipped = Statistics(seen.low / 2, seen.high / 2, seen.calls, seen.values, seen.farthest)
    assert range_of(clipped, Needs()) == (clipped.low, clipped.high), "its observer clips"


def test_pixels_and_counts_keep_their_integers() -> None:
    pixels = np.random.default_rng(0).integers(1, 255, (24, 20)) / 255
    pixels[3, 0], pixels[4, 0] = 1.0, 0.0
    assert margins(pixels) == (0.0, 0.0)
    scale, _ = qparams_of(statistics(pixels), Needs())
    assert float(scale[0]) == pytest.approx(1 / 255)
    counts = np.random.default_rng(1).integers(0, 90, (24, 20))
    scale, _ = qparams_of(statistics(counts), Needs(is_whole=True))
    assert float(scale[0]) == 0.5


def test_a_range_without_a_call_ends_at_the_other_calls() -> None:
    rows = np.random.default_rng(0).normal(size=(24, 32))
    seen, call = statistics(rows), int(rows.max(1).argmax())
    others = np.delete(rows, call, 0)
    without = range_of(seen.without([call]), Needs(has_margin=False))
    assert np.allclose(without, (others.min(), others.max()))
    assert range_of(seen.without([call]), Needs())[1] < range_of(seen, Needs())[1]


def test_qparams_follow_from_the_needs() -> None:
    seen = Statistics(np.float32(-1.0), np.float32(1.55))  # type: ignore[arg-type]

    def scale(**needs: Any) -> float:
        return float(qparams_of(seen, Needs(**needs))[0][0])

    assert scale() == pytest.approx(0.01)
    assert scale(part=0.5) == pytest.approx(0.005) and scale(part=2.0) == pytest.approx(0.02)
    assert scale(singular=(-1.0, 0.275)) == pytest.approx(1.275 / 255)
    assert scale(within=(-2.0, 2.0), part=0.5) == pytest.approx(0.01), "what is within limits counts"
    threshold = 0.3
    between = scale(thresholds=Thresholds(frozenset({(threshold, 0.0)})))
    assert between > 0.01 and threshold / between % 1.0 == pytest.approx(0.5, abs=0.01)
    channels = Statistics(np.array([-1.0, 0.0], np.float32), np.array([0.5, 0.0], np.float32))
    symmetric, zeros = qparams_of(channels, Needs(limits=(-127, 127), symmetric=True))
    assert symmetric.tolist() == pytest.approx([1 / 127, 2**-24]) and not zeros.any()


def test_each_rule_is_the_same_for_the_negative_values() -> None:
    for seed, (calls, values) in itertools.product(range(5), ((12, 6), (24, 32), (40, 100))):
        rows = np.random.default_rng(seed).normal(size=(calls, values)) ** 3
        assert margins(-rows) == pytest.approx(margins(rows)[::-1])
