"""Budgets on the command line, and labelled data to evaluate a program on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from micronpu.base.errors import OptionError
from micronpu.cli import console
from micronpu.cli.lists import entries, value_of

if TYPE_CHECKING:
    from micronpu import CompiledProgram, Verification
    from micronpu.cli.files import Model
    from micronpu.report.budgets import Budgets
    from micronpu.report.warnings import BudgetResult

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)

ACCURACY = "min_accuracy"
NAMES = {
    "ms": "max_ms",
    "sram": "max_sram",
    "flash": "max_flash",
    "sqnr": "min_sqnr",
    "top1": "min_agreement",
    "accuracy": ACCURACY,
}
"""Fields of `Budgets`, and the accuracy on labelled data, by their names on the command line."""
_FLAGS = {field: f"--budget {name}" for name, field in NAMES.items()}
flag_of = _FLAGS.__getitem__


def bytes_of(flag: str, text: str) -> int:
    """Parse ``262144``, ``256K`` or ``1.5M`` into bytes.

    Raises:
        OptionError: it has another form.
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS[match[2].lower()] if match is not None else 0.5
    if size != int(size):
        raise OptionError(f"{flag} is {text!r}; it is a number of bytes.", hint=f"{flag}=256K")
    return int(size)


@dataclass(frozen=True)
class Limits:
    """Options about budgets, one for each field."""

    budget: Annotated[
        list[str] | None,
        console.option(
            "NAME=LIMIT,...",
            "Do not write a program that takes more ms, sram or flash (256K, 1.5M), or has less sqnr (dB), top1 "
            "(agreement with the float model on held-out samples, 0 to 1) or accuracy (--metric on --data with "
            "--labels), e.g. ms=5,sram=256K,top1=0.9.",
        ),
    ] = None
    data: Annotated[
        str | None, console.option("DATA", "Held-out samples; all calibration data are then used for calibration.")
    ] = None
    labels: Annotated[str | None, console.option("FILE", "Labels of --data: FILE.npy or FILE.npz:name.")] = None
    metric: Annotated[
        str | None,
        console.option(
            "NAME",
            "top1, auc, f1, mae, or file.py:function (outputs, labels), on the held-out samples or on --data, against "
            "--labels or the float model's outputs.",
        ),
    ] = None

    def _limits(self) -> dict[str, float]:
        """Return limits by the fields of `Budgets`, and the accuracy.

        Raises:
            OptionError: a limit is no number, or there is no such budget.
        """
        from micronpu.report.budgets import check_limit

        words, pairs = entries(self.budget or ())
        if unknown := [*words, *(name for name in pairs if name not in NAMES)]:
            raise OptionError(
                f"There is no budget {unknown[0]!r}.", hint=f"--budget NAME=LIMIT,... of {', '.join(NAMES)}"
            )
        found: dict[str, float] = {}
        for name, text in pairs.items():
            flag, field = f"--budget {name}", NAMES[name]
            value = bytes_of(flag, text) if field in ("max_sram", "max_flash") else value_of(text)
            check_limit(field, value, flag, f"{flag}=100")
            found[field] = value  # type: ignore[assignment]  # a text was refused
        return found

    def budgets(self) -> Budgets:
        """Return all budgets but the accuracy, which needs a run of the program.

        Raises:
            OptionError: an option is invalid, or has no effect without another.
        """
        from micronpu.report.budgets import Budgets

        given = self._limits()
        if self.labels is not None and self.data is None:
            raise OptionError("--labels is given without --data.", hint="--data DATA")
        if given.pop(ACCURACY, None) is not None and self.labels is None:
            raise OptionError(f"{flag_of(ACCURACY)} needs labelled samples.", hint="--data DATA --labels FILE")
        return Budgets(**given)  # type: ignore[arg-type]

    def verification(self, loaded: Model, *, run: bool, held_out: int | None, missing: bool) -> Verification:
        """Return how to verify the program, with the evaluation samples and the metric.

        Raises:
            OptionError: two options exclude each other.
            ModelError: data or labels do not fit.
        """
        from micronpu import Verification
        from micronpu.cli.evaluate import load_labels, load_metric
        from micronpu.cli.files import load_calibration

        labels = None if self.labels is None else load_labels(self.labels)
        return Verification(
            run=run,
            held_out=held_out,
            allow_missing_kernels=missing,
            data=None if self.data is None else load_calibration(self.data, loaded),
            labels=None if self.metric is None and ACCURACY in self._limits() else labels,
            metric=None if self.metric is None else load_metric(self.metric),
        )

    def accuracy(self, loaded: Model, program: CompiledProgram) -> tuple[BudgetResult, ...]:
        """Return the program's value of the metric on the labelled data beside its budget, if there is one.

        Raises:
            OptionError: smaller values of that metric are better.
            ModelError: data or labels do not fit.
        """
        limit = self._limits().get(ACCURACY)
        if limit is None or self.data is None or self.labels is None:
            return ()
        import micronpu
        from micronpu.cli.evaluate import load_labels, load_metric
        from micronpu.cli.files import load_calibration
        from micronpu.report.budgets import result

        judge = load_metric(self.metric) if self.metric is not None else None
        data, labels = load_calibration(self.data, loaded), load_labels(self.labels)
        found = micronpu.evaluate(loaded.module, data, program, labels, metric=judge)
        if not found.larger_is_better or found.program.score is None:
            raise OptionError(
                f"{flag_of(ACCURACY)} is a budget on {found.metric}, of which less is better.",
                hint="--metric top1, auc or f1, or a function of yours of which more is better",
            )
        return (result(ACCURACY, limit, found.program.score.value),)


UNLIMITED = Limits()
"""Limits when no option is given."""
