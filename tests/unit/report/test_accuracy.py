"""How results are compared, against the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from micronpu.report.accuracy import Comparison, OutputAccuracy, ProgramAccuracy, are_scores
from micronpu.report.codec import encode


def test_a_comparison_is_over_all_rows():
    wanted = [np.array([[1.0, 2.0]]), np.array([[3.0, -4.0]])]
    found = [np.array([[1.0, 2.5]]), np.array([[-1.0, -4.0]])]
    got = Comparison.of(found, wanted)
    assert got.sqnr == pytest.approx(10 * math.log10((1 + 4 + 9 + 16) / (0.25 + 16)))
    assert (got.largest, got.relative, got.agreeing, got.rows) == (4.0, 1.0, 2, 2)
    assert Comparison.of([np.array([[5.0, 2.0]])], [np.array([[1.0, 2.0]])]).agreeing == 0


def test_what_is_no_vector_of_scores_agrees_in_nothing():
    images = [np.ones((1, 2, 2, 2))]
    got = Comparison.of(images, images)
    assert got.sqnr == math.inf and got.agreeing is None
    assert encode(got)["sqnr"] == "inf"
    assert got.against("float") == "no difference against float"


def test_the_largest_of_landmarks_is_no_decision():
    random = np.random.default_rng(0)
    face, places = random.uniform(20, 170, 200), random.normal(0, 4, (32, 1)) + random.normal(0, 1, (32, 200))
    landmarks = [(face + place)[None] for place in places]
    found = [points + random.normal(0, 0.5, points.shape) for points in landmarks]
    assert len({int(points.argmax()) for points in landmarks}) > 1
    got = Comparison.of(found, landmarks)
    assert got.sqnr > 40 and got.agreeing is None and "top-1" not in got.against("float")


def test_the_largest_of_scores_is_a_decision():
    random = np.random.default_rng(0)
    noise = random.normal(0, 1, (32, 10))
    classes = 4 * np.eye(10)[random.integers(0, 10, 32)] + noise
    one_class = 20 * np.eye(10)[[3] * 32] + noise
    rare = np.where(np.arange(64)[:, None] == 9, [-2.0, 2.0], [3.0, -3.0]) + random.normal(0, 0.3, (64, 2))
    nearly_equal = np.full((32, 10), 0.1) + 1e-6 * noise
    for logits in (classes, one_class, rare, nearly_equal / nearly_equal.sum(1, keepdims=True), noise[:1]):
        assert are_scores([row[None] for row in logits])
    assert not are_scores([]) and not are_scores([np.ones((1, 1))])


def test_what_is_not_finite_is_left_out():
    wanted, found = [np.array([[np.inf, 2.0]])], [np.array([[np.inf, 1.0]])]
    got = Comparison.of(found, wanted)
    assert got.largest == 1.0 and got.sqnr == pytest.approx(10 * math.log10(4.0)) and got.agreeing is None


def test_the_worst_output_counts():
    good, bad = Comparison(2, 40.0, 0.1, 0.01, 2), Comparison(2, 20.0, 0.5, 0.1, 1)
    both = ProgramAccuracy((1, 3), 4, True, (OutputAccuracy(0, good, good), OutputAccuracy(1, bad, good)))
    assert both.sqnr == 20.0
    assert str(both) == (
        "Accuracy on 2 held-out samples: output 0: 40.0 dB against float, top-1 agrees on 2 of 2; 40.0 dB "
        "against the quantized model, top-1 agrees on 2 of 2. output 1: 20.0 dB against float, top-1 agrees on 1 of 2; "
        "40.0 dB against the quantized model, top-1 agrees on 2 of 2."
    )


def test_a_saturated_state_is_no_vector_of_scores():
    random = np.random.default_rng(0)
    states = [np.tanh(random.normal(0, 20, (1, 16))) for _ in range(32)]
    assert not are_scores(states)
    assert are_scores([random.normal(0, 1, (1, 16)) for _ in range(32)])
