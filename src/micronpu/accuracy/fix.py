"""`micronpu.fix`: try changes that may bring a quantized model closer to float, and keep those that measurably help.

The samples are split: some calibrate, some select the changes, and held-out ones measure the final gain. Changes
without cost on the chip are tried first, cumulatively; then int16 for the layers with the largest remaining error, if
the NPU supports it. Selected choices are compiled to get their cycles and bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from micronpu.accuracy.layers import Layer, SideBySide
from micronpu.accuracy.subject import Listener, Row, Subject
from micronpu.base.arguments import QUANTIZATION_NOW, moved
from micronpu.base.errors import ConverterError, ModelError, OptionError, UnsupportedError
from micronpu.compiler.compile import compile_model
from micronpu.compiler.verification import Verification
from micronpu.frontend.checks import check_listener
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import is_compute, origin_of
from micronpu.quantize.data import in_turn
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.quantize.settings_file import read_quantization
from micronpu.report.accuracy import decibels
from micronpu.report.fixes import Attempt, Choice, Fixes, Gain
from micronpu.report.intervals import Z
from micronpu.targets.options import Options
from micronpu.targets.registry import target_required
from micronpu.upstream.session import exclusive
from micronpu.upstream.torch import tree_leaves

Settings: TypeAlias = dict[str, Any]

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
_FREE_PART = 0.6
"""Fraction of the budget after which int16 is tried, if the NPU supports it."""

_FREE: tuple[tuple[tuple[str, Settings], ...], ...] = (
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


@moved(per_channel=QUANTIZATION_NOW["per_channel"])
@target_required
@exclusive()
def fix(
    model: nn.Module | ExportedProgram,
    data: Any,
    target: str,
    *,
    calibration: Any = None,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    budget: float = BUDGET,
    listener: Listener | None = None,
) -> Fixes:
    """Try changes that reduce quantization error, within a time limit, and price those that help.

    Args:
        model: a float module in evaluation mode, or an exported program of one.
        data: inputs, as for `micronpu.blame`: half of them select changes, the others measure the result. Without
            ``calibration`` half of them calibrate first.
        target: see ``micronpu targets``.
        calibration: inputs that choose the ranges.
        example_inputs: default: the first of ``data``.
        quantization: to start from, as for `micronpu.compile`: settings, and ``per_channel``.
        options: as for `micronpu.compile`.
        budget: wall-clock seconds within which the search should end. A trial that is not expected to finish in time,
            judging by similar ones, is not started and reported as not tried; a running one is finished.
        listener: progress callback.

    Raises:
        ModelError: there is no data, too little of it, or it does not fit the model.
            OptionError: an option is invalid, or the budget is not a positive number.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise OptionError(f"`budget` is {budget!r}; it is a number of seconds.", hint="budget=60")
    start_from = Quantization.of(quantization)
    start_from.only("per_channel", "settings", where="fix")
    check_listener(listener)
    if isinstance(data, Iterator):
        data = list(in_turn(data, "fix"))
    start = time.perf_counter()
    subject = Subject.of(model, data, target, calibration, example_inputs, options, "fix")
    search = _Search(subject, budget, start, listener)
    base = {} if start_from.settings is None else read_quantization(start_from.settings)
    if not start_from.per_channel:
        base = _merged({"default": {"per_channel": False}}, base)
    return search.run(base)


class _Search:
    def __init__(
        self,
        subject: Subject,
        budget: float,
        start: float,
        listener: Listener | None,
    ) -> None:
        self.subject = subject
        self.has_int16 = subject.has_int16
        rows = subject.rows
        if subject.ranges is None:
            self.batches, rows = rows[::2], rows[1::2]
        else:
            self.batches = subject.ranges
        self.choosing, self.judging = rows[::2][:_MOST], rows[1::2][:_MOST]
        if len(self.judging) < _FEWEST:
            needed = 2 * _FEWEST if subject.ranges is not None else 4 * _FEWEST
            raise ModelError(
                f"There are {len(self.choosing)} rows to choose by and {len(self.judging)} others to judge by, too few "
                "to tell a gain from chance.",
                hint=f"{needed} rows or more, better a hundred",
            )
        nodes = tree_leaves([n.args for n in subject.module.graph.nodes if n.op == "output"])
        values = [n.meta.get("val") for n in nodes if isinstance(n, Node)]
        size = sum(v.numel() for v in values if isinstance(v, torch.Tensor) and v.is_floating_point())
        wanted = min(-(-_LEAST_RESULTS // max(size, 1)), max(_MOST_RUNS // len(self.choosing), 1))
        self.copies = wanted if any(map(_is_float, self.choosing[0])) else 1
        self.choosing, self.judging = shaken(self.choosing, self.copies), shaken(self.judging, self.copies)
        self.end = start + budget
        self.free_end = start + budget * (_FREE_PART if self.has_int16 else 1.0)
        self.start, self.budget = start, budget
        self.took: dict[frozenset[str], float] = {}  # seconds of a trial, by its corrections
        self.pricing = 0.0
        self.untried: list[str] = []
        self.tell = listener or (lambda name, part: None)

    def run(self, base: Settings) -> Fixes:
        attempts: list[Attempt] = []
        first = self.measured(base, self.choosing)
        default = self.choice("default" if not base else "as given", base, None)
        assert default is not None
        choices = [default]
        settings, best, names = base, first, list[str]()
        for group in _FREE:
            found = self.best_of(group, settings, best, attempts)
            if found is not None:
                name, settings, best = found
                names.append(name)
        if names:
            self.add(choices, " + ".join(names), settings, base)
        if self.has_int16 and not self.has_time(settings, 2, self.end):
            self.untried.append("int16")
        elif self.has_int16:
            follow = self.measured(settings, self.choosing[:16], follow=True)
            for name, parts in _int16(follow, {n.name for n in self.subject.module.graph.nodes}):
                wider = _merged(settings, parts)
                if not self.has_time(wider, 2, self.end):
                    self.untried.append(name)
                    continue
                gain = _gain(best, self.measured(wider, self.choosing), self.copies)
                attempts.append(Attempt(name, gain, gain.helps))
                if gain.helps:
                    self.add(choices, " + ".join([*names, name]), wider, base)
        ordered = [choices[0], *sorted(choices[1:], key=lambda choice: choice.sqnr)]
        return Fixes(
            target=self.subject.target,
            calibration_rows=len(self.batches),
            choosing_rows=len(self.choosing) // self.copies,
            judging_rows=len(self.judging) // self.copies,
            attempts=tuple(attempts),
            choices=tuple(replace(c, best=not any(_beats(o, c) for o in ordered)) for c in ordered),
            seconds=time.perf_counter() - self.start,
            untried=tuple(self.untried),
        )

    def best_of(
        self,
        group: tuple[tuple[str, Settings], ...],
        settings: Settings,
        best: SideBySide,
        attempts: list[Attempt],
    ) -> tuple[str, Settings, SideBySide] | None:
        """Return the best of some mutually exclusive changes, if one helps: its name, settings and results."""
        found: list[tuple[float, str, Settings, SideBySide]] = []
        for name, cure in group:
            with_it = _merged(settings, cure)
            if with_it == settings or _is_idle(name, settings):
                continue
            if not self.has_time(with_it, 1 if self.has_int16 else 2, self.free_end):
                self.untried.append(name)
                continue
            try:
                result = self.measured(with_it, self.choosing)
            except ModelError:  # such as an operator without derivatives: the change was not applied
                continue
            gain = _gain(best, result, self.copies)
            attempts.append(Attempt(name, gain, False))
            if gain.helps:
                found.append((gain.value, name, with_it, result))
        if not found:
            return None
        _, name, with_it, result = max(found, key=lambda entry: entry[0])
        position = max(i for i, attempt in enumerate(attempts) if attempt.name == name)
        attempts[position] = replace(attempts[position], kept=True)
        return name, with_it, result

    def has_time(self, settings: Settings, trials: int, end: float) -> bool:
        """True if that many trials of this kind, and pricing the result, finish in time."""
        wanted = _corrections(settings)
        alike = [seconds for done, seconds in self.took.items() if done >= wanted]
        expected = min(alike) if alike else max(self.took.values())
        return time.perf_counter() + trials * expected + self.pricing < end

    def measured(self, settings: Settings, rows: Sequence[Row], *, follow: bool = False) -> SideBySide:
        self.tell("fix", min((time.perf_counter() - self.start) / self.budget, 1.0))
        begun = time.perf_counter()
        quantizer = self.subject.quantizer(Quantization(settings=settings))
        found = self.subject.measured(quantizer, self.batches, rows, follow=follow)
        kind = _corrections(settings)
        self.took[kind] = max(self.took.get(kind, 0.0), time.perf_counter() - begun)
        return found

    def add(self, choices: list[Choice], name: str, settings: Settings, base: Settings) -> None:
        """Add a choice, unless it is equivalent to an existing one."""
        made = self.choice(name, settings, base)
        known = {(c.sqnr, c.cycles, c.bytes) for c in choices}
        if made is not None and (made.sqnr, made.cycles, made.bytes) not in known:
            choices.append(made)

    def choice(self, name: str, settings: Settings, base: Settings | None) -> Choice | None:
        """Return a quantization with its price; None if the target's compiler rejects it."""
        found = self.measured(settings, self.judging)
        gain = None
        if base is None:
            self._default = found
        else:
            gain = _gain(self._default, found, self.copies)
        begun = time.perf_counter()
        try:
            program = compile_model(
                found.converted,
                self.subject.examples,
                self.subject.target,
                options=self.subject.options,
                verify=Verification(run=False, allow_missing_kernels=True),
            )
        except (UnsupportedError, ConverterError):
            if base is None:
                raise
            return None
        self.pricing = max(self.pricing, time.perf_counter() - begun)
        costs = [o.cost.cycles for o in program.report.operations if o.cost is not None]
        cycles = sum(t.cycles for t in program.report.latency) or sum(costs) or None
        return Choice(name, settings, decibels(found.signal, found.noise), gain, cycles, len(program.buffer))


def _corrections(settings: Settings) -> frozenset[str]:
    """The corrections in a trial, which determine its duration."""
    return frozenset(name for name, value in settings.items() if value is True)


def _is_idle(name: str, settings: Settings) -> bool:
    """True if a change has no effect on the current settings."""
    if name == "one scale per channel":
        return settings.get("default", {}).get("per_channel") is not False
    return bool(settings.get("fit_ranges")) and name.startswith(("observer ", "input observer "))


def _merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> Settings:
    """Merge settings, table by table; ``more`` takes precedence."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    for name, value in more.items():
        found[name] = _merged(found.get(name, {}), value) if isinstance(value, Mapping) else value
    return found


def shaken(rows: Sequence[Row], copies: int) -> list[Row]:
    """Return copies of each sample; all but the first are perturbed by less than half an LSB of int8.

    The outputs hardly change, but every rounding error does: averaging gives a more precise error per sample.
    """
    if copies == 1:
        return list(rows)
    generator = torch.Generator().manual_seed(0)
    columns = list(zip(*rows, strict=True))
    spans = [max(float(x.max()) for x in c) - min(float(x.min()) for x in c) if _is_float(c[0]) else 0 for c in columns]
    found: list[Row] = []
    for row in rows:
        found.append(row)
        for _ in range(copies - 1):
            noise = [torch.rand(x.shape, generator=generator) - 0.5 for x in row]
            found.append(
                tuple(
                    x + (n * span / 255).to(x.dtype) if _is_float(x) else x
                    for x, n, span in zip(row, noise, spans, strict=True)
                )
            )
    return found


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _gain(before: SideBySide, after: SideBySide, copies: int) -> Gain:
    """Compute the gain sample by sample, so that variation between samples cancels.

    Args:
        copies: of each sample, adjacent.
    """
    old, new = (
        np.array([noise for _, noise in found.row_noise]).reshape(-1, copies).sum(1) for found in (before, after)
    )
    ratios = 10 * np.log10(np.maximum(old, 1e-30) / np.maximum(new, 1e-30))
    mean = float(np.mean(ratios))
    half = Z * float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf
    return Gain(mean, mean - half, mean + half)


def _beats(other: Choice, choice: Choice) -> bool:
    """True if another choice is at least as good in everything and better in something."""
    mine = (choice.sqnr, -(choice.cycles or 0), -choice.bytes)
    theirs = (other.sqnr, -(other.cycles or 0), -other.bytes)
    return all(t >= m for t, m in zip(theirs, mine, strict=True)) and theirs != mine


def _int16(found: SideBySide, names: set[str]) -> Iterator[tuple[str, Settings]]:
    """int16 for the layers with the largest error, and their readers: one, two, four and so on, then all."""
    layers = sorted((layer for layer in found.layers if layer.adds), key=lambda layer: -layer.moved)
    before: Settings = {}
    count = 1
    while count < len(layers):
        parts: Settings = {}
        for layer in layers[:count]:
            for table, name in _settings_of(layer, names):
                parts.setdefault(table, {})[name] = {"activations": "int16"}
        reached = sum(len(table) for table in parts.values())
        if parts and parts != before and reached < len(layers):
            yield f"int16 for {reached} layer{'' if reached == 1 else 's'}", parts
        before = parts
        count *= 2
    yield "int16 everywhere", {"default": {"activations": "int16"}}


def _settings_of(layer: Layer, names: set[str]) -> Iterator[tuple[str, str]]:
    """Settings keys of a layer and of the readers of its result, which share its qparams."""
    nodes = [layer.first] if layer.first.op == "call_function" else []
    waiting = list(layer.quantize.users)
    while waiting:
        node = waiting.pop()
        if is_compute(node):
            nodes.append(node)
            entry = known_import(node)
            if entry is not None and entry.moves_only:  # shares the qparams of its input: include its readers
                waiting += list(node.users)
        elif node.op == "call_function":
            waiting += list(node.users)
    for node in nodes:
        module = origin_of(node).module
        if node.name in names:
            yield "nodes", node.name
        elif module:
            yield "modules", module
