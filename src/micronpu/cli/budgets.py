"""Budgets on the command line: sizes as people write them, and accuracy on a user's own data."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from micronpu.base.errors import OptionError
from micronpu.cli import console

if TYPE_CHECKING:
    from micronpu import CompiledProgram, Verification
    from micronpu.cli.files import Model
    from micronpu.report.budget_result import BudgetResult
    from micronpu.report.budgets import Budgets

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


_budget = functools.partial(console.option, panel="Budgets")


@dataclass(frozen=True)
class Limits:
    """What the options of a command say about budgets, an option for each field."""

    max_ms: Annotated[float | None, _budget("MS", "Maximum estimated inference time (ms).")] = None
    max_sram: Annotated[str | None, _budget("BYTES", "Maximum SRAM, e.g. 256K or 1.5M.")] = None
    max_flash: Annotated[str | None, _budget("BYTES", "Maximum size of the program file.")] = None
    min_sqnr: Annotated[float | None, _budget("DB", "Minimum SQNR against the float model (dB).")] = None
    min_agreement: Annotated[
        float | None, _budget("PART", "Minimum top-1 agreement with the float model on held-out samples, e.g. 0.9.")
    ] = None
    min_accuracy: Annotated[float | None, _budget("NUMBER", "Minimum --metric on --eval-data with --labels.")] = None
    eval_data: Annotated[str | None, _budget("DATA", "Inputs for --min-accuracy, as for `micronpu eval`.")] = None
    data: Annotated[
        str | None, _budget("DATA", "Held-out samples; all calibration data are then used for calibration.")
    ] = None
    labels: Annotated[str | None, _budget("FILE", "Labels of --data or --eval-data: FILE.npy or FILE.npz:name.")] = None
    metric: Annotated[
        str | None,
        _budget(
            "NAME",
            "top1, auc, f1, mae, or file.py:function (outputs, labels), on the held-out samples or on --data, against "
            "--labels or the float model's outputs; with --min-accuracy on --eval-data.",
        ),
    ] = None

    def budgets(self) -> Budgets:
        """All but that of the accuracy, for which the program has to run.

        Raises:
            OptionError: an option does not fit, or one is given that says nothing without another.
        """
        from micronpu.report.budgets import Budgets, check_limit

        sram, flash = bytes_of("--max-sram", self.max_sram), bytes_of("--max-flash", self.max_flash)
        given = {"max_ms": self.max_ms, "max_sram": sram, "max_flash": flash, "min_sqnr": self.min_sqnr}
        given["min_agreement"] = self.min_agreement
        for name, value in given.items():
            check_limit(name, value, console.flag_of(name), f"{console.flag_of(name)} 100")
        found = Budgets(
            max_ms=self.max_ms,
            max_sram=sram,
            max_flash=flash,
            min_sqnr=self.min_sqnr,
            min_agreement=self.min_agreement,
        )
        with_labels = self.labels is not None and self.data is None
        if len({self.min_accuracy is None, not with_labels, self.eval_data is None}) > 1:
            raise OptionError("--min-accuracy, --eval-data and --labels go together.", hint="all three, or none")
        if self.min_accuracy is not None and self.data is not None:
            raise OptionError("--labels are those of --data or of --eval-data.", hint="one of the two")
        return found

    def verification(self, loaded: Model, *, run: bool, held_out: int | None, missing: bool) -> Verification:
        """How the program is tried, with the samples and the metric that judge it.

        Raises:
            OptionError: two options exclude each other.
            ModelError: data or labels do not fit.
        """
        from micronpu import Verification
        from micronpu.cli.evaluate import load_labels, load_metric
        from micronpu.cli.files import load_calibration

        return Verification(
            run=run,
            held_out=held_out,
            allow_missing_kernels=missing,
            data=None if self.data is None else load_calibration(self.data, loaded),
            labels=None if self.data is None or self.labels is None else load_labels(self.labels),
            metric=None if self.metric is None or self.min_accuracy is not None else load_metric(self.metric),
        )

    def accuracy(self, loaded: Model, program: CompiledProgram) -> tuple[BudgetResult, ...]:
        """The program's value of a metric on labelled data beside the least that there may be, where one is asked for.

        Raises:
            OptionError: less is better of that metric.
            ModelError: data or labels do not fit.
        """
        if self.min_accuracy is None or self.eval_data is None or self.labels is None:
            return ()
        import micronpu
        from micronpu.cli.evaluate import load_labels, load_metric
        from micronpu.cli.files import load_calibration
        from micronpu.report.budgets import result

        judge = load_metric(self.metric) if self.metric is not None else None
        data, labels = load_calibration(self.eval_data, loaded), load_labels(self.labels)
        found = micronpu.evaluate(loaded.module, data, program, labels, metric=judge)
        if not found.larger_is_better or found.program.score is None:
            raise OptionError(
                f"--min-accuracy is a budget on {found.metric}, of which less is better.",
                hint="--metric top1, auc or f1, or a function of yours of which more is better",
            )
        return (result("min_accuracy", self.min_accuracy, found.program.score.value),)


UNLIMITED = Limits()
"""Where no option is given."""
