"""Verification options of a compilation, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from micronpu.base.arguments import check_switch, check_type, described
from micronpu.base.errors import OptionError
from micronpu.quantize.data import HeldOut, check_held_out
from micronpu.report.budgets import Budgets
from micronpu.report.metrics import metric_of
from micronpu.report.warnings import check_strict_use


@dataclass(frozen=True, kw_only=True)
class Verification(HeldOut):
    """Options for the evaluation of a program, and its budgets.

    Attributes:
        run: run the program on a few samples, and compare it with the quantized model and with the float model; see
            ``report.agreement``, ``report.accuracy`` and ``report.warnings``.
        strict: refuse a program with a severe warning in its report, such as less than 10 dB against float. Otherwise
            Python's `warnings` show it.
        held_out: number of calibration samples, or recordings of a model with states, that are held out for the
            evaluation, evenly spread; the others do not count then.  Default: none of fewer than 16; otherwise one in
            eight, or as many as leave 32 that calibrate, at most 32.
        data: separate samples or recordings for the evaluation, in the form of calibration data; all calibration data
            then calibrate.
        labels: of `data`, an entry for each sample, or for each call of a recording.
        metric: metric of your task, computed on the evaluated samples: "top1", "auc", "f1", "iou", "mae", or a
            function ``(outputs, labels)`` or ``(outputs, labels, inputs)`` that returns a number, larger is better.
            Outputs are an array with a row for each sample, or a tuple of arrays for several outputs; without labels
            the float model's outputs are the labels.
            Several methods have data, labels and metrics as dictionaries by method; one metric may be for all.
        budgets: limits of the program; missing one is an error.
        allow_missing_kernels: allow operators on the core without a portable kernel in ExecuTorch, for applications
            that register their own.
        verify_import: compare the module of a LiteRT or ONNX file with the file's own runtime.

    Raises:
        OptionError: a value is invalid, or ``strict`` or a metric is given without ``run``.
    """

    run: bool = True
    strict: bool = False
    budgets: Budgets | None = None
    allow_missing_kernels: bool = False
    verify_import: bool = True

    def __post_init__(self) -> None:
        check_switch("run", self.run)
        check_strict_use(self.strict, self.run, named=lambda name: name.replace("verify", "run"))
        check_type("budgets", self.budgets, Budgets, type(None), hint="Budgets(max_ms=10)")
        check_held_out(self.held_out)
        if self.data is not None and self.held_out:
            what = f"`held_out` is {self.held_out}, and `data` is given to judge on in its place."
            raise OptionError(what, hint="one of the two")
        if self.labels is not None and (self.data is None or self.metric is None):
            raise OptionError("`labels` are the labels of `data` for a `metric`.", hint='metric="top1" and data=x')
        if self.metric is not None:
            for metric in self.metric.values() if isinstance(self.metric, Mapping) else [self.metric]:
                metric_of(metric)
            if not self.run:
                raise OptionError("`metric` is computed by running the model, and `run` is False.", hint="run=True")
        check_switch("allow_missing_kernels", self.allow_missing_kernels)
        check_switch("verify_import", self.verify_import)

    @property
    def proves(self) -> bool:
        """True if the NPU's streams are proved, which decides on what is delegated."""
        return self.run

    @classmethod
    def of(cls, given: object) -> Verification:
        """Convert the argument of `micronpu.compile`: True and False are `run`, and budgets `budgets`.

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


class _OfPrice(Verification):
    """Without a run, but of the same program as one with a run."""

    proves = True


PRICED = _OfPrice(run=False, allow_missing_kernels=True)
"""Verification of a program that is compiled only for its price."""
