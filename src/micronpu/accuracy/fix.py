"""`micronpu.fix`: the search of `micronpu.compiler.precision`, limited by time and with more changes to try.

The samples are split: some calibrate, some select the changes, and held-out ones measure the final gain. Every program
is compiled to get its cycles and bytes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from warnings import catch_warnings, simplefilter
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

from micronpu.accuracy.subject import ProgressCallback, Row, Subject
from micronpu.base.errors import ModelError, OptionError
from micronpu.base.texts import plural
from micronpu.compiler.candidates import PROJECTIONS, Allowed, Cures, Modules, Settings, Tried
from micronpu.compiler.compile import compile_model
from micronpu.compiler.precision import Search
from micronpu.frontend.checks import check_callback
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.tensors import copied
from micronpu.quantize.calibrate import of_one
from micronpu.quantize.data import Trial
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.running import run_recordings
from micronpu.quantize.settings_file import merged, read_quantization
from micronpu.report.accuracy import Z
from micronpu.report.diagnosis import Attempt, FixChoice, Fixes, Gain
from micronpu.report.warnings import AccuracyWarning
from micronpu.targets.options import Options
from micronpu.targets.registry import target_required
from micronpu.upstream.session import exclusive
from micronpu.upstream.torch import tree_leaves
from micronpu.verify.sensitivity import Fidelity, PrecisionPrice
from micronpu.verify.verification import PRICED

BUDGET = 60.0
"""Default limit of the search in seconds."""
_FEWEST = 4
"""Minimum number of samples to select, and to measure, below which the result is not significant."""
_MOST = 200
"""Maximum number of samples to select, and to measure."""
_LEAST_RESULTS = 8
"""Minimum number of values that a sample's error is averaged over: one or two cannot tell a gain from chance."""
_MOST_RUNS = 200
"""Maximum number of runs of the network for that purpose."""
_CURES: Cures = (
    (("one scale per channel", {"default": {"per_channel": True}}),),
    (
        ("ranges by results and bias correction", {"fit_ranges": True, "bias_correction": True}),
        ("ranges by results", {"fit_ranges": True}),
    ),
    (("adaptive rounding", {"adaptive_rounding": True}),),
    (("bias correction", {"bias_correction": True}),),
    (
        ("observer mse", {"default": {"activation_observer": "mse"}}),
        ("observer percentile 99.99", {"default": {"activation_observer": "percentile", "percentile": 99.99}}),
        ("observer minmax", {"default": {"activation_observer": "minmax"}}),
    ),
    (("input observer mse", {"default": {"input_observer": "mse"}}),),
    (("equalization", {"equalize": True}),),
    (("weight observer mse", {"default": {"weight_observer": "mse"}}),),
)
"""Changes without cost on the chip; at most one of each group is kept."""


@target_required
@exclusive()
def fix(
    model: nn.Module | ExportedProgram | str | os.PathLike[str],
    data: object,
    target: str,
    *,
    calibration: object = None,
    example_inputs: Sequence[object] | torch.Tensor | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    budget: float = BUDGET,
    callback: ProgressCallback | None = None,
) -> Fixes:
    """Try changes that reduce quantization error, within a time limit, and price those that help.

    Args:
        model: a float module in evaluation mode, an exported program of one, or the path of an .onnx or .tflite.
        data: inputs, as for `micronpu.blame`: half of them select changes, the others measure the result. Without
            ``calibration`` half of them calibrate first. With labels and a metric, which is then shown for each choice:
            ``micronpu.Verification(data=x, labels=y, metric="top1")``.
        target: see ``micronpu targets``.
        calibration: inputs that choose the ranges.
        example_inputs: default: the first of ``data``.
        quantization: to start from, as for `micronpu.compile`: settings, and ``per_channel``.
        options: as for `micronpu.compile`.
        budget: wall-clock seconds within which the search should end. A program that is not expected to finish in time,
            judging by previous ones, is not started and is reported as not tried; a running one is finished.
        callback: progress callback.

    Raises:
        ModelError: there is no data, too little of it, or it does not fit the model.
        OptionError: an option is invalid, or the budget is not a positive number.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise OptionError(f"`budget` is {budget!r}; it is a number of seconds.", hint="budget=60")
    start_from = Quantization.of(quantization)
    start_from.only("per_channel", "settings", where="fix")
    check_callback(callback)
    start = time.perf_counter()
    subject = Subject.of("fix", model, data, calibration, example_inputs, target, options)
    base = {} if start_from.settings is None else read_quantization(start_from.settings)
    if not start_from.per_channel:
        base = merged({"default": {"per_channel": False}}, base)
    return _Fix(subject, base, budget, start, callback).run()


class _Fix:
    """The samples that select and those that measure, and the search between them.

    Args:
        base: settings to start from.
    """

    def __init__(
        self, subject: Subject, base: Settings, budget: float, start: float, callback: ProgressCallback | None
    ) -> None:
        self.subject, self.base = subject, base
        rows = subject.rows
        first, step = (1, 2) if subject.ranges is None else (0, 1)  # every other row calibrates
        self.batches = subject.ranges or rows[::2]
        self.judged = slice(first + step, first + 2 * step * _MOST, 2 * step)
        choosing, judging = rows[first :: 2 * step][:_MOST], rows[self.judged]
        if len(judging) < _FEWEST:
            needed = 2 * _FEWEST if subject.ranges is not None else 4 * _FEWEST
            raise ModelError(
                f"{plural(len(choosing), 'row')} to choose by and {len(judging)} to judge by are too few "
                "to tell a gain from chance.",
                hint=f"{needed} rows or more, better a hundred",
            )
        nodes = tree_leaves(subject.module.graph.output_node().args)
        values = [n.meta.get("val") for n in nodes if isinstance(n, Node)]
        size = sum(v.numel() for v in values if isinstance(v, torch.Tensor) and v.is_floating_point())
        wanted = min(-(-_LEAST_RESULTS // max(size, 1)), max(_MOST_RUNS // len(choosing), 1))
        self.copies = wanted if any(map(_is_float, choosing[0])) else 1
        self.choosing, self.judging = (self.trial_of(rows) for rows in (choosing, judging))
        self.start, self.budget = start, budget
        self.longest, self.begun = 0.0, time.perf_counter()  # the export is not repeated for each fix
        self.untried: list[str] = []
        self.needed = 0.0
        self.prices = WeakKeyDictionary[GraphModule, PrecisionPrice]()
        self.notify = callback or (lambda name, part: None)

    def trial_of(self, rows: Sequence[Row]) -> Trial:
        """Return the samples, each with its perturbed copies, and the float model's results for them."""
        moved = perturbed(rows, self.copies)
        recordings = tuple(moved[i : i + self.copies] for i in range(0, len(moved), self.copies))
        return Trial(recordings, held_out=True, exact=run_recordings(self.subject.module, recordings))

    def run(self) -> Fixes:
        helps = lambda before, after: _gain(before, after).helps  # noqa: E731
        allowed = Allowed(self.quantizer, self.price, math.inf, cures=_CURES, helps=helps, has_time=self.has_time)
        search = Search({"": self.subject.module}, of_one([row] for row in self.batches), {"": self.choosing}, allowed)
        default = search.made("int8", {})
        default = replace(default, price=self.price(default.modules))  # a target's refusal is the caller's to see
        tried = search.explored(default)
        choices = [self.choice(one, default) for one in tried if one.price is not None]
        unlike = {(c.sqnr, c.cycles, c.bytes): c for c in reversed(choices)}
        ordered = [choices[0], *sorted((c for c in unlike.values() if c is not choices[0]), key=lambda c: c.sqnr)]
        kept = {name for one in tried for name in _names(one)}
        return Fixes(
            target=self.subject.target,
            calibration_rows=len(self.batches),
            choosing_rows=len(self.choosing.recordings),
            judging_rows=len(self.judging.recordings),
            attempts=tuple(
                Attempt(name, gain, name in kept and gain.helps)
                for name, before, after in search.attempts
                for gain in (_gain(before.fidelity, after.fidelity),)
            ),
            choices=tuple(replace(c, best=not any(_beats(o, c) for o in ordered)) for c in ordered),
            seconds=time.perf_counter() - self.start,
            untried=tuple(dict.fromkeys(self.untried)),
            needed=self.needed,
        )

    def has_time(self, name: str) -> bool:
        """True if another program like the previous ones, with its price, is expected to finish within the budget."""
        now = time.perf_counter()
        self.longest = max(self.longest, now - self.begun)
        self.notify("fix", min((now - self.start) / self.budget, 1.0))
        if now + 2 * self.longest < self.start + self.budget:
            self.begun = now
            return True
        self.needed = self.needed or now - self.start + 2 * self.longest
        self.untried.append(name)
        return False

    def quantizer(self, activations: str, settings: Settings) -> StaticQuantizer:
        return self.subject.quantizer(Quantization(settings=self.settings(activations, settings)))

    def settings(self, activations: str, settings: Settings) -> Settings:
        """Return all settings of a program, as `micronpu.compile` takes them."""
        found = merged(self.base, settings)
        return found if activations == "int8" else merged(found, {"default": {"activations": activations}})

    def price(self, modules: Modules) -> PrecisionPrice:
        subject = self.subject
        with catch_warnings():
            simplefilter("ignore", AccuracyWarning)  # of a program that may not be listed
            program = compile_model(
                copied(modules[""]), subject.examples, subject.target, options=subject.options, verify=PRICED
            )
        found = self.prices[modules[""]] = PrecisionPrice.of([program.report], len(program.buffer))
        return found

    def choice(self, one: Tried, default: Tried) -> FixChoice:
        """Return a program with its own price, which its corrections may change, and its results where it is judged."""
        price = self.prices.get(one.module) or self.price(one.modules)
        results = [run_recordings(tried.modules[""], self.judging.recordings) for tried in (one, default)]
        own, before = (Search.fidelity_of({"": self.judging}, {"": found}) for found in results)
        exact, found = ([copies[0] for copies in of] for of in (self.judging.exact, results[0]))
        metric = self.subject.metric_of(self.judged, exact, found)
        start = "as given" if self.base else "int8"
        name = start if one is default else (" + ".join(_names(one)) or one.activations) + one.more
        gain = None if one is default else _gain(before, own)
        cycles = round(price.cycles) or None
        quantization = self.settings(one.activations, one.settings)
        return FixChoice(name, quantization, own.worst, gain, cycles, price.bytes, metric=metric)


def perturbed(rows: Sequence[Row], copies: int) -> list[Row]:
    """Return copies of each sample; all but the first are perturbed by less than half an LSB of int8.

    The results hardly change, but all roundings in the network do, so the error of a sample is estimated better.
    """
    generator = torch.Generator().manual_seed(0)
    columns = list(zip(*rows, strict=True))
    spans = [max(float(x.max()) for x in c) - min(float(x.min()) for x in c) if _is_float(c[0]) else 0 for c in columns]
    found: list[Row] = []
    for row in rows:
        found.append(row)
        for _ in range(copies - 1):
            noise = [torch.rand(x.shape, generator=generator) - 0.5 for x in row]
            moved = (x + (n * span / 255).to(x.dtype) for x, n, span in zip(row, noise, spans, strict=True))
            found.append(tuple(moved))
    return found


def _names(one: Tried) -> tuple[str, ...]:
    """Return the names of the changes that the settings of a program contain, without those within others."""
    found, names = dict[str, Any](), list[str]()
    for name, cure in (change for group in (*PROJECTIONS, *_CURES) for change in group):
        if merged(one.settings, cure) == one.settings and merged(found, cure) != found:
            found, names = merged(found, cure), [*names, name]
    return (*names, *(["int16 everywhere"] if one.activations == "int16" else []))


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _gain(before: Fidelity, after: Fidelity) -> Gain:
    """Compute the gain sample by sample, so that variation between samples cancels."""
    old, new = np.array(before.shares), np.array(after.shares)
    ratios = 10 * np.log10(np.maximum(old, 1e-30) / np.maximum(new, 1e-30))
    mean = float(np.mean(ratios))
    half = Z * float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf
    return Gain(mean, mean - half, mean + half)


def _beats(other: FixChoice, choice: FixChoice) -> bool:
    """True if another choice is at least as good in everything and better in something."""
    mine = (choice.sqnr, -(choice.cycles or 0), -choice.bytes)
    theirs = (other.sqnr, -(other.cycles or 0), -other.bytes)
    return all(t >= m for t, m in zip(theirs, mine, strict=True)) and theirs != mine
