"""`micronpu.fix`: tries what may bring a quantized model nearer to float, and keeps what measurably helps.

The rows are split: some calibrate, some choose what is kept, and others, that chose nothing, say what it brings. First
come cures that cost nothing on the chip, one on top of the other; then int16 for the layers that add most of what is
left, where the NPU has it. Whatever is kept is compiled, for its cycles and bytes.
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
"""Seconds."""
_FEWEST = 4
"""Rows to choose by, and to judge by: fewer say nothing."""
_MOST = 200
"""Rows to choose by, and to judge by, at most."""
_LEAST_RESULTS = 8
"""Values that a row's error is the mean of: of one or two the mean is hardly known, and no gain is told from chance."""
_MOST_RUNS = 200
"""Of the network for the sake of that, at most."""
_FREE_PART = 0.6
"""Of the budget, after which int16 is tried, where the NPU has it."""

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
"""Cures that cost nothing on the chip; of those in one group at most one is kept."""


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
    """Tries cures of what quantization costs, within a time, and prices those that help.

    Args:
        model: a float module in evaluation mode, or an exported program of one.
        data: inputs, as for `micronpu.blame`: half of them choose, the others judge. Without ``calibration`` half of
            them calibrate first.
        target: see ``micronpu targets``.
        calibration: inputs that choose the ranges.
        example_inputs: the first of ``data`` unless given.
        quantization: to start from, as for `micronpu.compile`: settings, and ``per_channel``.
        options: as for `micronpu.compile`.
        budget: seconds on the clock within which the search should end. What is not expected to be done by then, by
            what the like of it took before, is not begun, and is told as not tried; what is under way is finished.
        listener: hears about progress.

    Raises:
        ModelError: there is no data, too little of it, or it does not fit the model.
        OptionError: an option does not fit, or the budget is no positive number.
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
        self.took: dict[frozenset[str], float] = {}  # seconds of a trial, by the corrections in it
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
        """The best of some cures that exclude each other, if one helps: its name, with it, and what it gives."""
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
            except ModelError:  # such as an operator without derivatives: the model was quantized without the cure
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
        """Whether so many trials of that kind, and the price of what is found, are done by then."""
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
        """Adds a choice, unless it comes to the same as one that is there already."""
        made = self.choice(name, settings, base)
        known = {(c.sqnr, c.cycles, c.bytes) for c in choices}
        if made is not None and (made.sqnr, made.cycles, made.bytes) not in known:
            choices.append(made)

    def choice(self, name: str, settings: Settings, base: Settings | None) -> Choice | None:
        """A way to quantize with its price; None where the target's compiler does not take it."""
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
    """The corrections in a trial, which decide how long it takes."""
    return frozenset(name for name, value in settings.items() if value is True)


def _is_idle(name: str, settings: Settings) -> bool:
    """Whether a cure changes nothing of what is set already."""
    if name == "one scale per channel":
        return settings.get("default", {}).get("per_channel") is not False
    return bool(settings.get("fit_ranges")) and name.startswith(("observer ", "input observer "))


def _merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> Settings:
    """Settings with others on top, table by table."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    for name, value in more.items():
        found[name] = _merged(found.get(name, {}), value) if isinstance(value, Mapping) else value
    return found


def shaken(rows: Sequence[Row], copies: int) -> list[Row]:
    """Each row so many times, all but once moved by less than half a step of int8, as its own rounding moves it.

    The results hardly change, and every rounding on the way falls otherwise: the error of a row is known better.
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
    """Row by row, so that what rows have in common does not blur what differs.

    Args:
        copies: of each row, one after the other.
    """
    old, new = (
        np.array([noise for _, noise in found.row_noise]).reshape(-1, copies).sum(1) for found in (before, after)
    )
    ratios = 10 * np.log10(np.maximum(old, 1e-30) / np.maximum(new, 1e-30))
    mean = float(np.mean(ratios))
    half = Z * float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.inf
    return Gain(mean, mean - half, mean + half)


def _beats(other: Choice, choice: Choice) -> bool:
    """Whether another choice is as good in everything and better in something."""
    mine = (choice.sqnr, -(choice.cycles or 0), -choice.bytes)
    theirs = (other.sqnr, -(other.cycles or 0), -other.bytes)
    return all(t >= m for t, m in zip(theirs, mine, strict=True)) and theirs != mine


def _int16(found: SideBySide, names: set[str]) -> Iterator[tuple[str, Settings]]:
    """int16 for the layers that add most, and those that read them: one, two, four and so on, then all."""
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
    """How settings name a layer and those that read its result: a value is on one grid for both."""
    nodes = [layer.first] if layer.first.op == "call_function" else []
    waiting = list(layer.quantize.users)
    while waiting:
        node = waiting.pop()
        if is_compute(node):
            nodes.append(node)
            entry = known_import(node)
            if entry is not None and entry.moves_only:  # on the grid of what it moves: its readers count, too
                waiting += list(node.users)
        elif node.op == "call_function":
            waiting += list(node.users)
    for node in nodes:
        module = origin_of(node).module
        if node.name in names:
            yield "nodes", node.name
        elif module:
            yield "modules", module
