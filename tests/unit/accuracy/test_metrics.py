"""Metrics and their statistics against their definitions."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from micronpu.accuracy.evaluate import bootstrap, mcnemar, p_of, paired_share, percentile_interval
from micronpu.base.errors import MicroNpuError, ModelError, OptionError
from micronpu.report.accuracy import wilson
from micronpu.report.metrics import METRICS, auc, f1, metric_of

RANDOM = np.random.default_rng(0)


def test_auc_is_the_share_of_pairs_in_order():
    scores, labels = RANDOM.integers(0, 6, 60).astype(float), RANDOM.integers(0, 2, 60)
    pairs = [(s > t) + 0.5 * (s == t) for s, t in product(scores[labels == 1], scores[labels == 0])]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs))
    two = np.stack([np.zeros(60), scores], 1)
    assert METRICS["auc"].score(two, labels, ()) == pytest.approx(np.mean(pairs))
    assert math.isnan(auc(scores, np.ones(60)))


def test_f1():
    predicted, labels = np.array([0, 1, 1, 1, 2]), np.array([0, 1, 1, 2, 1])
    # class 0: 1 of 1; class 1: 2 hits, 1 false, 1 missed; class 2: no hit
    assert f1(predicted, labels, 3) == pytest.approx((1 + 4 / 6 + 0) / 3)
    assert f1(np.array([1, 0, 1]), np.array([1, 1, 0]), 2) == pytest.approx(2 / 4)


def test_mae_and_top1():
    y = np.array([[1.0, 2.0], [3.0, 0.0]])
    assert METRICS["mae"].score(y, np.array([[0.0, 2.0], [3.0, 3.0]]), ()) == 1.0
    assert METRICS["top1"].score(y, np.array([1, 1]), ()) == 0.5


def test_iou_is_the_mean_over_the_classes_that_occur():
    scores = np.array([[[[9, 1, 1]], [[0, 2, 2]], [[0, 0, 0]]]])  # classes 0, 1, 1
    # class 0: 1 of 2 positions; class 1: 1 of 2; class 2 is nowhere
    assert METRICS["iou"].score(scores, np.array([[[0, 1, 0]]]), ()) == pytest.approx((1 / 2 + 1 / 2) / 2)
    labels = METRICS["iou"].labels_from(scores)
    assert METRICS["iou"].score(scores, labels, ()) == 1.0 and METRICS["iou"].missing(scores, labels) == (2,)


WRONG = {
    "a map without classes": ("iou", np.zeros((2, 3)), np.zeros(2, int), "a class number for each position"),
    "a map of another size": (
        "iou",
        np.zeros((2, 3, 4, 4)),
        np.zeros((2, 1, 4, 4), int),
        "int64[2, 1, 4, 4]; expected",
    ),
    "a position of no class": (
        "iou",
        np.zeros((1, 2, 1, 1)),
        np.full((1, 1, 1), 2),
        "from 2 to 2, but the output has 2",
    ),
    "classes of a map": ("top1", np.zeros((2, 3, 4)), np.zeros(2, int), "of which no class can be read"),
    "float labels": ("top1", np.zeros((2, 3)), np.zeros(2), "class numbers, an integer for each row, are expected"),
    "one-hot labels": ("f1", np.zeros((2, 3)), np.zeros((2, 3), int), "class numbers"),
    "a class too many": ("top1", np.zeros((2, 3)), np.array([1, 3]), "from 1 to 3, but the output has 3 classes"),
    "three scores": ("auc", np.zeros((2, 3)), np.array([0, 1]), "one score per row is expected"),
    "one class": ("auc", np.zeros((2, 1)), np.array([1, 1]), "0 and 1, both of them"),
    "another shape": ("mae", np.zeros((2, 3)), np.zeros(2), "The labels have shape [2] and the outputs [2, 3]"),
    "not a number": ("mae", np.zeros((2, 1)), np.array([1.0, np.nan]), "no finite number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_labels_that_do_not_fit(name):
    metric, outputs, labels, said = WRONG[name]
    with pytest.raises(ModelError) as caught:
        METRICS[metric].check(outputs, labels)
    assert said in str(caught.value) and "Try: " in str(caught.value)


def test_a_metric_of_ones_own():
    assert metric_of(lambda y, t: 2 * len(y)).score(np.zeros(3), np.zeros(3), ()) == 6.0
    assert metric_of(lambda y, t, x: x.sum()).score(np.zeros(3), np.zeros(3), (np.ones(4),)) == 4.0
    with pytest.raises(OptionError, match=r"no metric 'top5'.*top1, auc, f1, iou, mae"):
        metric_of("top5")
    with pytest.raises(OptionError, match="takes 1 arguments"):
        metric_of(lambda y: 1.0)
    with pytest.raises(MicroNpuError, match="raised IndexError"):
        metric_of(lambda y, t: y[9]).score(np.zeros(3), np.zeros(3), ())


def test_mcnemar_is_a_coin():
    # Of all sequences of ten coins, how many are split at least as unevenly as 2 and 8.
    uneven = sum(abs(2 * sum(coins) - 10) >= 6 for coins in product((0, 1), repeat=10)) / 2**10
    assert mcnemar(2, 8) == mcnemar(8, 2) == pytest.approx(uneven)
    assert mcnemar(0, 0) == 1.0 and mcnemar(5, 5) == 1.0
    assert mcnemar(11, 7) > 0.4  # 4 of 900 are noise
    assert mcnemar(25, 5) < 0.001


def test_intervals_hold_the_truth_as_often_as_they_say():
    draws = RANDOM.binomial(200, 0.9, 2000)
    held = np.mean([low <= 0.9 <= high for low, high in (wilson(int(d), 200) for d in draws)])
    assert 0.93 < held < 0.98
    worse, same = RANDOM.multinomial(900, (0.02, 0.01, 0.97), 2000)[:, :2].T
    held = np.mean(
        [low <= -0.01 <= high for low, high in (paired_share(b, c, 900) for b, c in zip(worse, same, strict=True))]
    )
    assert 0.93 < held < 0.98
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)


def test_the_bootstrap_of_a_mean_has_its_spread():
    x = RANDOM.standard_normal(400)
    found = bootstrap(lambda rows: (float(x[rows].mean()), float((x[rows] + 1).mean())), len(x))
    assert found.shape == (1000, 2)
    assert np.std(found[:, 0]) == pytest.approx(x.std() / 20, rel=0.1)
    low, high = percentile_interval(found[:, 1] - found[:, 0])
    assert low == pytest.approx(1.0) and high == pytest.approx(1.0)
    assert p_of(found[:, 1] - found[:, 0]) < 0.01 and p_of(np.array([1.0, -1.0, 2.0, -3.0])) == 1.0
    assert np.array_equal(found, bootstrap(lambda rows: (float(x[rows].mean()), float((x[rows] + 1).mean())), len(x)))
