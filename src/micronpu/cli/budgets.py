"""Budgets on the command line: sizes as people write them, and accuracy on a user's own data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from micronpu.base.errors import OptionError
from micronpu.report.budgets import BudgetResult, result

if TYPE_CHECKING:
    from micronpu.cli.files import Model
    from micronpu.compiler.program import CompiledProgram

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)


def bytes_of(flag: str, text: str | None) -> int | None:
    """Bytes of ``262144``, ``256K`` or ``1.5M``.

    Raises:
        OptionError: it is none of these.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS[match[2].lower()] if match is not None else 0.5
    if size != int(size):
        raise OptionError(f"{flag} is {text!r}; it is a number of bytes.", hint=f"{flag} 256K")
    return int(size)


def accuracy_budget(
    limit: float, loaded: Model, program: CompiledProgram, data: str, labels: str, metric: str | None
) -> BudgetResult:
    """The program's value of a metric on labelled data beside the least that there may be.

    Raises:
        OptionError: less is better of that metric.
        ModelError: data or labels do not fit.
    """
    from micronpu.accuracy.evaluate import evaluate
    from micronpu.cli.evaluate import load_labels, load_metric
    from micronpu.cli.files import load_calibration

    judge = load_metric(metric) if metric is not None else None
    found = evaluate(loaded.module, program, load_calibration(data, loaded), load_labels(labels), metric=judge)
    if not found.larger_is_better or found.program.score is None:
        raise OptionError(
            f"--min-accuracy is a budget on {found.metric}, of which less is better.",
            hint="--metric top1, auc or f1, or a function of yours of which more is better",
        )
    return result("min_accuracy", limit, found.program.score.value)
