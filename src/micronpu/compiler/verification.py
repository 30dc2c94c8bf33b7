"""What is asked of a program before it is handed out, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from micronpu.base.arguments import check_switch, check_type, described
from micronpu.base.errors import OptionError
from micronpu.quantize.trial import HeldOut, check_held_out
from micronpu.report.budgets import Budgets
from micronpu.report.metrics import Function, metric_of
from micronpu.report.warnings import check_strict_use


@dataclass(frozen=True, kw_only=True)
class Verification:
    """How a program is tried, and what it must keep.

    Attributes:
        run: run the program on a few rows, and compare it with the quantized model and with the float model; see
            ``report.agreement``, ``report.accuracy`` and ``report.warnings``.
        strict: refuse a program that a warning of the report is about, such as one that is below 10 dB against float.
            Otherwise Python's `warnings` show each.
        held_out: how many samples of the calibration data are held out from calibration, evenly spread, for the program
            to be judged on; of a model with states, recordings.  Unless given none of fewer than 16; then one in eight,
            or as many as leave 32 that calibrate, at most 32.
        data: samples or recordings of your own to judge on, in the form of calibration data; all calibration data
            calibrate then.
        labels: of `data`, an entry for each sample, or for each call of a recording.
        metric: of your task, computed on the held-out samples: "top1", "auc", "f1", "mae", or a function ``(outputs,
            labels)`` or ``(outputs, labels, inputs)`` that returns a number, of which more is better.  Outputs are an
            array with a row for each sample, or a tuple of arrays where the model has several; without labels the
            float model's outputs stand for them.
        budgets: what the program may take at most, and must reach at least; one that misses them is an error.
        allow_missing_kernels: also make programs whose host part calls operators that ExecuTorch has no portable kernel
            for, for those who register their own.

    Raises:
        OptionError: a value does not fit, or ``strict`` or a metric is asked of what does not run.
    """

    run: bool = True
    strict: bool = False
    held_out: int | None = None
    data: Any = None
    labels: Any = None
    metric: str | Function | None = None
    budgets: Budgets | None = None
    allow_missing_kernels: bool = False

    def __post_init__(self) -> None:
        check_switch("run", self.run)
        check_strict_use(self.strict, self.run, named=lambda name: name.replace("verify", "run"))
        check_type("budgets", self.budgets, Budgets, type(None), hint="Budgets(max_ms=10)")
        check_held_out(self.held_out)
        if self.data is not None and self.held_out:
            raise OptionError(
                f"`held_out` is {self.held_out}, and `data` is given to judge on in its place.", hint="one of the two"
            )
        if self.labels is not None and (self.data is None or self.metric is None):
            raise OptionError("`labels` are the labels of `data` for a `metric`.", hint="all three, or no labels")
        if self.metric is not None:
            metric_of(self.metric)
            if not self.run:
                raise OptionError("`metric` is computed by running the model, and `run` is False.", hint="run=True")
        check_switch("allow_missing_kernels", self.allow_missing_kernels)

    @property
    def judging(self) -> HeldOut:
        """The samples that the program is judged on."""
        return HeldOut(self.held_out, self.data, self.labels, self.metric)

    @classmethod
    def of(cls, given: Any) -> Verification:
        """From what `micronpu.compile` takes: True and False are `run`, and budgets `budgets`.

        Raises:
            OptionError: it is none of these.
        """
        if isinstance(given, Verification):
            return given
        if isinstance(given, bool):
            return cls(run=given)
        if isinstance(given, Budgets):
            return cls(budgets=given)
        raise OptionError(f"`verify` is {described(given)}.", hint="True, False, or Verification(strict=True)")
