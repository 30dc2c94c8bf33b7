"""How results are compared, against the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from micronpu.report.accuracy import Comparison, OutputAccuracy, ProgramAccuracy
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


def test_what_is_not_finite_is_left_out():
    wanted, found = [np.array([[np.inf, 2.0]])], [np.array([[np.inf, 1.0]])]
    got = Comparison.of(found, wanted)
    assert got.largest == 1.0 and got.sqnr == pytest.approx(10 * math.log10(4.0)) and got.agreeing is None


def test_the_worst_output_counts():
    good, bad = Comparison(2, 40.0, 0.1, 0.01, 2), Comparison(2, 20.0, 0.5, 0.1, 1)
    both = ProgramAccuracy((1, 3), 4, True, (OutputAccuracy(0, good, good), OutputAccuracy(1, bad, good)))
    assert both.sqnr == 20.0
    assert str(both) == (
        "Accuracy on 2 held-out samples (1, 3 of 4): output 0: 40.0 dB against float, top-1 agrees on 2 of 2; 40.0 dB "
        "against the quantized model, top-1 agrees on 2 of 2. output 1: 20.0 dB against float, top-1 agrees on 1 of 2; "
        "40.0 dB against the quantized model, top-1 agrees on 2 of 2."
    )
