"""Metrics of outputs against labels."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import ErrorsAs, ModelError, OptionError, first_line

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Metric:
    """A figure of merit.

    Attributes:
        name: name that the user selects it by.
        score: returns the value for outputs [N, ...], labels [N / group, ...] and inputs, which custom functions may
            need.
        check: refuses outputs and labels that do not fit.
        larger_is_better: False for errors.
        right: returns for each sample whether it is right, if the metric is the share of such samples.
    """

    name: str
    score: Callable[[Array, Array, tuple[Array, ...]], float]
    check: Callable[[Array, Array], None]
    larger_is_better: bool = True
    right: Callable[[Array, Array], Array] | None = None
    is_builtin: bool = False

    def labels_from(self, outputs: Any) -> Any:
        """Return the outputs of the float model as labels."""
        if not self.is_builtin or self.check is _check_values:
            return outputs
        if self.check is _check_binary:
            raise OptionError(f"The metric {self.name!r} needs labels.", hint="labels= of the held-out data")
        return outputs.argmax(1) if outputs.ndim == 2 or self.check is _check_maps else outputs

    def missing(self, outputs: Array, labels: Array) -> tuple[int, ...]:
        """Return classes of the outputs that no label has."""
        if not self.is_builtin or self.check not in (_check_classes, _check_maps):
            return ()
        return tuple(sorted(set(range(outputs.shape[1])) - set(np.unique(labels).tolist())))


def _right(outputs: Array, labels: Array) -> Array:
    """Return for each sample whether the largest score is at the label."""
    return np.asarray(outputs.argmax(1) == labels)


def auc(scores: Array, labels: Array) -> float:
    """Return the area under the ROC curve: the probability that class 1 scores above class 0; a tie counts half.

    NaN if one of the classes is missing.
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    # Ranks from 1, those of ties averaged.
    first = np.searchsorted(ordered, ordered, "left")
    last = np.searchsorted(ordered, ordered, "right")
    ranks = np.empty(len(scores))
    ranks[order] = (first + last + 1) / 2
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return math.nan
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _scores(outputs: Array) -> Array:
    """Return one score per sample: the output itself, or the score of class 1 minus that of class 0."""
    flat = outputs.reshape(len(outputs), -1)
    return flat[:, 0] if flat.shape[1] == 1 else flat[:, 1] - flat[:, 0]


def f1(predicted: Array, labels: Array, classes: int) -> float:
    """Return 2 * true positives / (2 * true positives + false positives + false negatives).

    It is computed for class 1 if there are two classes, else as the mean over the classes that occur.
    """
    found = []
    for label in range(classes) if classes > 2 else (1,):
        hits = int(((predicted == label) & (labels == label)).sum())
        wrong = int(((predicted == label) != (labels == label)).sum())
        if hits or wrong:
            found.append(2 * hits / (2 * hits + wrong))
    return float(np.mean(found)) if found else math.nan


def iou(predicted: Array, labels: Array, classes: int) -> float:
    """Return intersection over union of the positions of a class, as the mean over the classes that occur."""
    pairs = [(predicted == label, labels == label) for label in range(classes)]
    return float(
        np.mean([(found & true).sum() / (found | true).sum() for found, true in pairs if (found | true).any()])
    )


def _check_maps(outputs: Array, labels: Array) -> None:
    wanted = (len(outputs), *outputs.shape[2:])
    if outputs.ndim < 3 or labels.shape != wanted or labels.dtype.kind not in "iub":
        raise ModelError(
            f"The output has shape {list(outputs.shape)}, and the labels are {labels.dtype}{list(labels.shape)}; "
            "expected are scores [N, classes, height, width], and a class number for each position.",
            hint="labels [N, height, width] of integers, or a metric of your own, file.py:function",
        )
    _check_numbers(labels, outputs.shape[1])


def _check_classes(outputs: Array, labels: Array) -> None:
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise ModelError(
            f"The output has shape [N, {', '.join(map(str, outputs.shape[1:]))}], of which no class can be read.",
            hint="the metric iou for a class at each position, or a metric of your own, file.py:function",
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ModelError(
            f"The labels are {labels.dtype}{list(labels.shape)}; class numbers, an integer for each row, are expected.",
            hint="labels.argmax(1) of one-hot labels, labels.astype(int)",
        )
    _check_numbers(labels, outputs.shape[1])


def _check_numbers(labels: Array, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ModelError(
            f"The labels go from {low} to {high}, but the output has {classes} classes.",
            hint="classes numbered from 0, in the order of the model's output",
        )


def _check_binary(outputs: Array, labels: Array) -> None:
    if outputs.ndim > 2 or (outputs.ndim == 2 and outputs.shape[1] > 2):
        raise ModelError(
            f"The output has shape [N, {', '.join(map(str, outputs.shape[1:]))}]; for the area under the ROC curve one "
            "score per row is expected, or two classes.",
            hint="a metric of your own, file.py:function, which makes a score of it",
        )
    found = set(np.unique(labels).tolist())
    if labels.ndim != 1 or found != {0, 1}:
        shown = ", ".join(map(str, sorted(found)[:5]))
        raise ModelError(
            f"The labels are {labels.dtype}{list(labels.shape)} with the values {shown}; 0 and 1, both of them, are "
            "expected.",
            hint="labels of shape [N]: 1 for what should score high",
        )


def _check_values(outputs: Array, labels: Array) -> None:
    if labels.shape != outputs.shape and labels.size != outputs.size:
        raise ModelError(
            f"The labels have shape {list(labels.shape)} and the outputs {list(outputs.shape)}.",
            hint="labels of the outputs' shape",
        )
    if labels.dtype.kind not in "iufb" or not np.isfinite(labels.astype(np.float64)).all():
        raise ModelError("The labels hold what is no finite number.", hint="rows without NaN")


_BUILTIN = (
    Metric("top1", lambda y, t, _: float(_right(y, t).mean()), _check_classes, right=_right),
    Metric("auc", lambda y, t, _: auc(_scores(y), t), _check_binary),
    Metric("f1", lambda y, t, _: f1(y.argmax(1), t, y.shape[1]), _check_classes),
    Metric("iou", lambda y, t, _: iou(y.argmax(1), t, y.shape[1]), _check_maps),
    Metric("mae", lambda y, t, _: float(np.abs(y - t.reshape(y.shape)).mean()), _check_values, larger_is_better=False),
)
METRICS: dict[str, Metric] = {metric.name: replace(metric, is_builtin=True) for metric in _BUILTIN}
"""Metrics with a name."""


def metric_of(given: str | Function) -> Metric:
    """Return the metric of a name, or of a function of outputs and labels, and of inputs if it has a third argument."""
    if isinstance(given, str):
        if given not in METRICS:
            raise OptionError(
                f"There is no metric {given!r}.", hint=f"one of {', '.join(METRICS)}, or file.py:function"
            )
        return METRICS[given]
    if not callable(given):
        raise OptionError(f"`metric` is of type {type(given).__name__}.", hint=f"one of {', '.join(METRICS)}")
    name = getattr(given, "__name__", "metric")
    takes = _arguments(given)
    if takes not in (2, 3):
        raise OptionError(
            f"The metric `{name}` takes {takes} arguments.", hint="def metric(outputs, labels), or with inputs as third"
        )

    def failed(error: Exception) -> ModelError:
        what = f"The metric `{name}` raised {type(error).__name__}: {first_line(error) or 'no message'}."
        hint = "outputs and labels are NumPy arrays with a row for each input, and a number is returned"
        return ModelError(what, hint=hint)

    def score(outputs: Array, labels: Array, inputs: tuple[Array, ...]) -> float:
        with ErrorsAs(failed):
            return float(given(outputs, labels, *([inputs[0] if len(inputs) == 1 else inputs] if takes == 3 else [])))

    return Metric(name, score, lambda outputs, labels: None)


def _arguments(function: Function) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)


def check_finite(outputs: Array, what: str) -> None:
    """Refuse outputs with NaN."""
    if outputs.dtype.kind == "f" and np.isnan(outputs).any():
        row = int(np.argwhere(np.isnan(outputs).reshape(len(outputs), -1).any(1))[0, 0])
        raise ModelError(
            f"{what} gives NaN for row {row}.", hint="look for a division by zero, or the data of this row"
        )
