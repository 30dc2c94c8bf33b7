"""`quantization="auto"`: what is far from float in int8 gets more precision where it matters, and nothing else does."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.errors import OptionError
from micronpu.compiler import assemble, precision
from micronpu.compiler.candidates import Tried
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.frontend.exported import graph_module
from micronpu.frontend.program import is_quantize
from micronpu.frontend.units import work_of
from micronpu.neutron import NeutronQuantizer
from micronpu.quantize import decompose
from micronpu.quantize.calibrate import calibrate_and_quantize
from micronpu.quantize.identities import front_end
from micronpu.quantize.running import DequantizedReference, run_recordings
from micronpu.targets.ethosu.plans import MemoryLimitError
from micronpu.verify import judge
from micronpu.verify.sensitivity import Fidelity, Path, RoundedValue, Sensitivity


def rows(*shape: int, count: int = 24) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(count)]


class LogPower(nn.Module):
    """A spectrum, its power and logarithm, and layers behind them that int8 is enough for.

    The power is moved before the logarithm reads it: side by side both are one table, and int8 is enough for all.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spectrum, self.first, self.second = nn.Linear(64, 48), nn.Linear(48, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        power = self.spectrum(x).square().unflatten(1, (2, 24)).transpose(1, 2).flatten(1)
        y: torch.Tensor = self.second(torch.relu(self.first(torch.log(power + 1e-3))))
        return y


class Powers(LogPower):
    """Sums of three squares, each of a product, over 130 dB: neither int8 nor tables of int16 are near float."""

    def __init__(self, terms: int = 3) -> None:
        super().__init__()
        self.loudness, self.terms = nn.Buffer(torch.logspace(0, -2.5, 48)), terms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (self.spectrum(x) * self.loudness).reshape(1, -1, self.terms)
        power = (parts * parts).sum(2).repeat(1, self.terms)
        y: torch.Tensor = self.second(torch.relu(self.first(torch.log(power + 1e-10))))
        return y


def test_recordings_gain_as_a_whole_though_most_of_their_calls_are_quiet():
    loud = [[torch.tensor([5.0 if call == 9 else 0.01])] for _ in range(2) for call in range(10)]

    def off(quiet: float, peak: float) -> list[list[torch.Tensor]]:
        return [[y + (peak if float(y) > 1 else quiet)] for (y,) in loud]

    coarse, fine = (Fidelity.of(loud, off(*by), [10, 10]) for by in ((0.0, 1.0), (0.001, 0.1)))
    assert fine.gains_on(coarse) == pytest.approx(20, abs=0.1) and coarse.gains_on(fine) == 0
    assert len(fine.noise) == 2


def test_a_gain_counts_where_few_recordings_make_most_of_the_noise_but_not_by_one_alone():
    before = Fidelity((1.0,), ((0.3,), (0.2,), *[(0.001,)] * 8), 1)
    assert Fidelity((1.0,), ((0.02,), (0.02,), *[(0.002,)] * 8), 1).gains_on(before) == pytest.approx(9.6, abs=0.1)
    assert Fidelity((1.0,), ((0.02,), (0.2,), *[(0.002,)] * 8), 1).gains_on(before) == 0
    few = Fidelity((1.0,), ((0.02,), (0.002,)), 1)
    assert few.gains_on(Fidelity((1.0,), ((0.3,), (0.001,)), 1)) == pytest.approx(11.4, abs=0.1)
    assert Fidelity((1.0,), ((0.1,),), 1).gains_on(Fidelity((1.0,), ((0.2,),), 1)) == pytest.approx(3.0, abs=0.1)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.relu(self.conv(x)).mean((2, 3)))
        return y


def compiled(model: nn.Module, data: list[torch.Tensor], target: str, **options: Any) -> micronpu.CompiledProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        return micronpu.compile(model.eval(), data[0], target, calibration=data, **options)


@functools.cache
def shared(model: type[nn.Module], target: str, quantization: str) -> micronpu.CompiledProgram:
    """A program for rows of 64 values, for tests that only read it."""
    return compiled(model(), rows(1, 64), target, quantization=quantization)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u85-256", "cortex-m55"])
def test_int8_does_not_serve_where_most_answers_change(target):
    class Uniform(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(super().forward(x) * 0.01, -1)

    data = rows(1, 3, 8, 8)
    int8, auto = (compiled(Uniform(), data, target, quantization=how).report for how in ("int8", "auto"))
    assert int8.accuracy.sqnr > 30 and [w.rule for w in int8.warnings] == ["other-answers"]
    assert auto.accuracy.agreement == 1.0 and not auto.warnings and auto.accuracy.sqnr > 60


def test_a_part_of_an_output_counts_by_itself():
    """As the scores of a detector do that are joined with boxes in pixels."""

    class Detector(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x).flatten(2)
            return torch.cat([(y[:, :4] + 4) * 20, y[:, 4:].sigmoid()], 1)

    data, model = rows(1, 3, 8, 8), Detector()
    int8, auto = (compiled(model, data, "ethos-u55-128", quantization=how) for how in ("int8", "auto"))
    (whole,) = int8.report.accuracy.outputs
    assert whole.float_model.sqnr > 30 and int8.report.accuracy.sqnr < 20 and auto.report.accuracy.sqnr > 26
    with torch.no_grad():
        scores, found = (of(data[0])[:, 4:] for of in (model, auto.run))
    assert (scores - found).square().mean() < scores.square().mean() / 400


def test_an_accurate_program_decides_like_float():
    class Close(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[:, :1], x[:, :1] + 0.1 * x[:, 1:2]], 1)

    data = rows(1, 8)
    int8, accurate = (compiled(Close(), data, "ethos-u85-256", quantization=how).report for how in ("int8", "accurate"))
    assert int8.accuracy.sqnr > 26 and 0.5 < int8.accuracy.agreement < 1.0
    assert accurate.accuracy.agreement == 1.0


@pytest.mark.parametrize(("share", "starts"), [(0.019, False), (0.021, True)])
def test_a_search_starts_where_decisions_are_expected_to_change(monkeypatch, share, starts):
    monkeypatch.setattr(precision, "EXPLAINED", math.inf)
    monkeypatch.setattr(precision, "expected_changes", lambda results, trial, sources: (share, 0.0))
    data = rows(1, 3, 8, 8)
    int8, auto = (compiled(Plain(), data, "corstone300", quantization=how).report for how in ("int8", "auto"))
    assert int8.accuracy.sqnr > 26 and (auto.accuracy.sqnr > int8.accuracy.sqnr + 6) == starts


@pytest.mark.chooses
def test_few_held_out_samples_do_not_decide_alone(monkeypatch):
    """Every eighth sample is held out: here the loud ones, whose ranges the first three have, too."""
    loud = rows(1, 3, 8, 8)
    data = [*(-x for x in loud[4:24:8]), *(x if number % 8 == 4 else 0.2 * x for number, x in enumerate(loud[3:], 3))]
    made: list[Tried] = []
    rated = precision.Search.rated

    def recorded(*args: Any, **options: Any) -> Tried:
        made.append(rated(*args, **options))
        return made[-1]

    monkeypatch.setattr(precision.Search, "rated", recorded)
    first = compiled(Plain(), data, "corstone300")
    assert [len(tried.fidelity.noise) for tried in made] == [24] and first.report.accuracy.calibrated == 21
    monkeypatch.setattr(precision.at, "NEAR", 100.0)
    monkeypatch.setattr(precision.at, "FAR", 100.0)
    program = compiled(Plain(), data, "corstone300")
    assert {len(tried.fidelity.noise) for tried in made[2:]} == {16} and " on 16 samples" in program.report.warnings[
        0
    ].what
    accuracy = program.report.accuracy
    judged = data if accuracy.calibrated else data[4:24:8]
    with torch.no_grad():
        exact = torch.cat([Plain()(x) for x in judged])
        found = torch.cat([program.run(x) for x in judged])
    signal, noise = exact.square().sum(), (exact - found).square().sum()
    assert accuracy.sqnr == pytest.approx(10 * math.log10(signal / noise), abs=0.2)


@pytest.mark.chooses
def test_between_near_and_far_int8_serves_only_where_decisions_are_equal(monkeypatch):
    class Map(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.conv(x))

    monkeypatch.setattr(precision.at, "NEAR", 100.0)
    monkeypatch.setattr(precision, "expected_changes", lambda results, trial, sources: (0.0, 0.0))
    for model, searched in ((Plain(), False), (Map(), True)):
        steps: list[str] = []
        compiled(model, rows(1, 3, 8, 8), "corstone300", callback=lambda step, part, to=steps: to.append(step))
        assert ("choose" in steps) == searched


def test_far_values_saturate_in_int16_too():
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.max_pool2d(nn.functional.pad(self.conv(x), (0, 1, 0, 1), value=-1e4), 3, 2)

    data = rows(1, 3, 8, 8)
    program = torch.export.export(Padded().eval(), (data[0],))
    quantizer = EthosUQuantizer(EthosUOptions("ethos-u55-128"))
    module = calibrate_and_quantize(program, [(x,) for x in data], quantizer)
    work = work_of(program.module())
    sensitivity = Sensitivity(module, work, [[(x,)] for x in data[:4]], wide=True)
    assert sensitivity.without(()) > 1e-5 > 100 * sensitivity.without(work)


def milliseconds(program: micronpu.CompiledProgram) -> float:
    return sum(t.milliseconds for t in program.report.latency)


@pytest.mark.sweep
def test_a_logarithm_of_a_power_is_near_float_within_the_time(monkeypatch):
    int8, chosen = (shared(LogPower, "corstone300", how) for how in ("int8", "accurate"))
    with monkeypatch.context() as once:  # what the search has compiled is not compiled again
        once.delattr(assemble, "host_part")
        auto = compiled(LogPower(), rows(1, 64), "corstone300", quantization="auto")
    assert milliseconds(auto) <= milliseconds(chosen) and auto.report.accuracy.sqnr > 30
    time = f"{milliseconds(int8):.3g} ms"
    line = rf'Precision: int.*; int8 has [\d.]+ dB, {time}: quantization="int8", --quantization int8'
    assert any(re.fullmatch(line, shown) for shown in auto.report.headline.lines)
    assert int8.report.accuracy.sqnr < 20 < 26 < chosen.report.accuracy.sqnr
    assert milliseconds(chosen) <= 2 * milliseconds(int8)
    assert "int16" in {o.dtype for o in chosen.report.operations}
    (note,) = (n for n in chosen.report.notes if n.startswith("Precision: "))
    assert "int8 " in note and " (this program)" in note
    assert not [w for w in chosen.report.warnings if w.rule in ("precision", "far-from-float", "int8-power")]


@pytest.mark.parametrize("programs", [0, 2])
def test_ctrl_c_ends_a_search_with_the_best_program_so_far(monkeypatch, programs):
    """The first is int8's; the second program that the search tries is nearer to float."""
    int8 = shared(LogPower, "corstone300", "int8")
    made = precision.Search.made

    def interrupted(self: precision.Search, *args: Any, **options: Any) -> Tried:
        if self.count > programs:
            torch._C._functorch._vmap_increment_nesting(2, "error")  # as between two operators of an exported vmap
            raise KeyboardInterrupt
        return made(self, *args, **options)

    monkeypatch.setattr(precision.Search, "made", interrupted)
    open_transforms: dict[str, int] = {}

    def noted(step: str, part: float) -> None:
        open_transforms[step] = torch._C._functorch.get_dynamic_layer_stack_depth()

    found = compiled(LogPower(), rows(1, 64), "corstone300", quantization="auto", callback=noted)
    assert (found.buffer == int8.buffer) == (programs == 0)
    assert found.report.accuracy.sqnr >= int8.report.accuracy.sqnr + 3 * programs
    assert "Precision: Ctrl+C ended the search; this is the best program until then." in found.report.notes
    assert set(open_transforms.values()) == {0}


def test_logarithms_of_powers_are_offered_in_float_on_the_core_beyond_the_time():
    data = [row * 10.0 ** -(i % 5) for i, row in enumerate(rows(1, 64, count=40))]
    auto = compiled(Powers(), data, "corstone300", quantization="auto")
    (warning,) = (w for w in auto.report.warnings if w.rule == "precision")
    assert not auto.report.in_float and " in int16 and 5 operators in float on the core " in warning.what
    hint = re.fullmatch(r'quantization=Quantization\(activations="auto", max_slowdown=([\d.]+)\)', warning.hint)
    assert hint is not None
    how = micronpu.Quantization(activations="auto", max_slowdown=float(hint[1]))
    taken = compiled(Powers(), data, "corstone300", quantization=how)
    assert taken.report.accuracy.sqnr > max(30, auto.report.accuracy.sqnr + 12)
    assert {v.node for v in taken.report.in_float} >= {"mul_1", "sum_1", "log"}


@pytest.mark.sweep
def test_logarithms_of_powers_of_pairs_are_those_of_amplitudes(monkeypatch):
    data = [row * 10.0 ** -(i % 5) for i, row in enumerate(rows(1, 64, count=40))]
    ours = compiled(Powers(2), data, "corstone300", quantization="int8")
    monkeypatch.setattr(decompose, "logarithms_of_powers", lambda model, able: False)
    before = compiled(Powers(2), data, "corstone300", quantization="int8")
    assert ours.report.accuracy.sqnr > before.report.accuracy.sqnr + 6


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("model", "inside", "before"),
    [
        (LogPower(), "square unflatten transpose flatten add log", "linear"),
        (Of(lambda x: torch.log((x * x).sum(1).sqrt() ** 2 + 1)), "mul sum_1 sqrt pow_1 add log", ""),
        (Of(lambda x: torch.log(x * x + x)), "", ""),
        (Of(lambda x: torch.log(x.softmax(1))), "", ""),
        (Of(lambda x: (x * x).sum(1).sqrt()), "", ""),
    ],
    ids=["layer", "root", "plain operand", "softmax", "no logarithm"],
)
def test_a_front_end_reads_inputs_through_squares_alone(model, inside, before):
    module = graph_module(torch.export.export(model.eval(), (torch.rand(1, 64),)))
    assert front_end(module) == (frozenset(inside.split()), frozenset(before.split()))


def test_without_int16_it_is_float_on_the_core():
    auto = compiled(LogPower(), rows(1, 64), "imxrt700", quantization="auto")
    assert auto.report.accuracy.sqnr > 20
    in_float = {v.node for v in auto.report.in_float}
    assert "log" in in_float and not any(node.startswith("linear") for node in in_float)
    reported = [*auto.report.notes, *(w.what for w in auto.report.warnings)]
    assert any(" in float on the core " in text for text in reported if text.startswith("Precision: "))


class Even(nn.Module):
    """Layers that lose evenly, in which no few operators matter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.leaky_relu(layer(x), 0.3) * 3 - x
        return x


@pytest.mark.parametrize("target", ["cortex-m55", "imxrt700"])
def test_each_program_of_a_search_is_shown_once_and_has_a_name_of_its_own(target):
    data = [3 * x for x in rows(1, 8, 6, 6)]
    report = compiled(Even(), data, target, quantization="auto").report
    reported = [*report.notes, *(w.what for w in report.warnings)]
    names = [re.findall(r"(int8[^.:0-9]*) [0-9.]+ dB", text) for text in reported if text.startswith("Precision: ")]
    assert names and all(own and len(set(own)) == len(own) for own in names), reported


def test_noise_of_a_value_is_that_of_a_run_that_rounds_it_alone():
    """Only what depends on a value is computed again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(128, 4))
    given = [(x,) for x in rows(1, 3, 8, 8, count=3)]
    program = torch.export.export(net.eval(), given[0])
    module = calibrate_and_quantize(program, given, NeutronQuantizer())
    samples = [[row] for row in given]
    sensitivity = Sensitivity(module, work_of(program.module()), samples, wide=True)
    dequantized, exact = DequantizedReference(module), []
    for row in given:
        every = dequantized.exact(row)
        exact.append(dequantized.outputs(every))
        found = [*every.values(), *(x for _, *of in dequantized.own(every) for x in of), *dequantized.alone(every, {})]
        assert all(x.grad_fn is None for x in found if isinstance(x, torch.Tensor)), "torch warns of its numbers"
    rounded = {layer.quantize: layer.edge.rounded for layer in dequantized.layers}
    for value in sensitivity.ordered():
        rounding = {value.quantize: rounded[value.quantize]}
        found = [dequantized.outputs(dequantized.exact(row, rounding)) for row in given]
        assert sensitivity.alone(value) == sum(Fidelity.of(exact, found).shares) > 0


def test_the_reference_runs_many_samples_side_by_side_and_ends_what_is_infinite():
    """No value is read while it runs, which `vmap` refuses; log(0) is the end of its range."""
    given = rows(1, 6, count=4)
    program = torch.export.export(Logarithm().eval(), (given[0],))
    module = calibrate_and_quantize(program, [(x.abs() + 0.5,) for x in given], NeutronQuantizer())
    reference = DequantizedReference(module)
    zeros = [x.relu() for x in given]
    (batch,) = torch.func.vmap(lambda x: tuple(reference.outputs(reference.exact((x,)))))(torch.stack(zeros))
    for x, y in zip(zeros, batch, strict=True):
        (alone,) = reference.outputs(reference.exact((x,)))
        assert torch.equal(y, alone) and alone.isfinite().all() and (x == 0).any()


class Logarithm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x) * 2


@pytest.mark.sweep
def test_what_int8_cannot_do_in_the_time_is_said_with_what_can():
    how = micronpu.Quantization(activations="accurate", max_slowdown=1.1)
    auto = compiled(Even(), rows(1, 8, 12, 12), "corstone300", quantization=how)
    (first, *_) = auto.report.warnings
    assert first.rule == "precision" and " (this program)" in first.what
    name = re.search(r"int16 ([\d.]+) dB, ([\d.]+) ms\. The limit", first.what)
    assert name is not None and float(name[1]) > auto.report.accuracy.sqnr + 3
    typed = eval(first.hint.removeprefix("quantization="), {"Quantization": micronpu.Quantization})
    found = compiled(Even(), rows(1, 8, 12, 12), "corstone300", quantization=typed)
    assert found.report.accuracy.sqnr == pytest.approx(float(name[1]), abs=0.5)  # what it promises is what it gives
    assert "The limit of this program is its activations: " in first.what


@pytest.mark.sweep
def test_int16_that_does_not_fit_is_not_proposed_and_some_operators_in_it_are_tried(monkeypatch):
    """As where all values in int16 need more SRAM than the chip has."""
    part = precision.host_part

    def host_part(module: torch.fx.GraphModule, device: Any) -> Any:
        if all(node.args[-1] is torch.int16 for node in module.graph.nodes if is_quantize(node)):
            raise MemoryLimitError("The program needs more SRAM than there is.")
        return part(module, device)

    monkeypatch.setattr(precision, "host_part", host_part)
    with_int16, without = (
        compiled(
            Even(),
            rows(1, 8, 12, 12),
            "corstone300",
            quantization=micronpu.Quantization(activations="accurate", max_slowdown=most),
        )
        for most in (2.0, 1.01)
    )
    assert {node.args[-1] for node in with_int16.quantized.graph.nodes if is_quantize(node)} == {
        torch.int8,
        torch.int16,
    }
    (first, *_) = without.report.warnings
    assert re.search(r"int16 \(not possible on this target\) [\d.]+ dB[.,; ]", first.what) and "int16" not in first.hint


@pytest.mark.parametrize("gains", [True, False])
def test_sets_are_tried_only_where_int16_everywhere_gains(gains, monkeypatch):
    def no_nearer(self: precision.Search, first: Tried) -> Tried | None:
        wide = everywhere(self, first)
        return wide if wide is None or gains else dataclasses.replace(wide, fidelity=first.fidelity)

    tried, everywhere, mixed = [], precision.Search.everywhere, precision.Search.mixed
    monkeypatch.setattr(precision.Search, "everywhere", no_nearer)
    monkeypatch.setattr(precision.Search, "mixed", lambda self, *given: tried.append(given) or mixed(self, *given))
    how = micronpu.Quantization(activations="accurate", max_slowdown=1.01)
    compiled(Even(), rows(1, 8, 12, 12), "corstone300", quantization=how)
    assert bool(tried) == gains


class Magnitude(nn.Module):
    """Magnitudes of pairs that differ a hundred times."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.fc = torch.logspace(-2, 0, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.reshape(1, 2, 32) * self.scale
        y: torch.Tensor = self.fc(torch.hypot(z[:, 0], z[:, 1]) / self.scale)
        return y


def test_corrections_that_help_are_kept():
    first, plain = (shared(Magnitude, "imxrt700", how) for how in ("auto", "int8"))
    assert first.buffer != plain.buffer
    assert first.report.accuracy.sqnr > plain.report.accuracy.sqnr + 3


def test_no_program_of_a_search_runs_a_recording_twice_and_the_same_bytes_come_again(monkeypatch):
    first = shared(Magnitude, "imxrt700", "auto")
    ran: list[tuple[Any, Any]] = []

    def noted(module: Any, recordings: Any) -> Any:
        ran.extend((module, recording) for recording in recordings)
        return run_recordings(module, recordings)

    def narrowed(*given: Any) -> Any:  # the same module and recording, with the ranges of the other recordings
        with monkeypatch.context() as plain:
            plain.setattr(judge, "run_recordings", run_recordings)
            return limited_run(*given)

    limited_run = judge._limited_run
    for user in (precision, judge):
        monkeypatch.setattr(user, "run_recordings", noted)
    monkeypatch.setattr(judge, "_limited_run", narrowed)
    program = compiled(Magnitude(), rows(1, 64), "imxrt700", quantization="auto")
    report = program.report
    pairs = [(id(module), id(recording)) for module, recording in ran]
    assert report.accuracy.sqnr > 27 and len({module for module, _ in pairs}) > 1
    assert len(pairs) == len(set(pairs)) and program.buffer == first.buffer


class Chain:
    """Values a -> b -> c -> d of 100 elements each, and the noise that rounding each of them adds."""

    noise: ClassVar = {"a": 8.0, "b": 1.0, "c": 2.0}

    def __init__(self) -> None:
        nodes = torch.fx.Graph()
        self.values = tuple(
            RoundedValue(nodes.placeholder(name), name, frozenset(reader), 100)
            for name, reader in (("a", "b"), ("b", "c"), ("c", "d"))
        )

    def alone(self, value: RoundedValue) -> float:
        return self.noise[value.producer]

    def ordered(self) -> list[RoundedValue]:
        return sorted(self.values, key=lambda value: -self.alone(value))

    def without(self, parts: frozenset[str]) -> float:
        return sum(self.alone(value) for value in self.values if not value.parts <= parts)


def test_sets_of_operators_within_a_price():
    """Two operators cost 2,000 cycles and a conversion behind them."""
    path = Path(Chain(), dict.fromkeys("abcd", 1000.0), dict.fromkeys("abcd", 2000.0))  # type: ignore[arg-type]
    assert path.price(frozenset("ab")) == 2000 + 3.2 * 100
    assert path.price(frozenset("bc")) == 2000 + 1.03 * 100 + 3.2 * 100
    assert dict(path.steps)[frozenset("ab")] == 2320 and path.steps[-1] == (frozenset("abcd"), 4000)


@pytest.mark.parametrize("most", [0.9, math.inf, math.nan, True, "2"])
def test_a_slowdown_is_one_or_more(most):
    with pytest.raises(OptionError, match="`max_slowdown` is "):
        micronpu.Quantization(activations="auto", max_slowdown=most)
    with pytest.raises(OptionError, match="the precision is fixed"):
        micronpu.Quantization(activations="int8", max_slowdown=1.5)


@pytest.mark.sweep
@pytest.mark.chooses
@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700", "cortex-m55"])
def test_what_int8_serves_stays_byte_for_byte_without_a_search(target):
    data = rows(1, 3, 8, 8)
    steps: list[str] = []
    int8 = compiled(Plain(), data, target, quantization="int8")
    auto = compiled(Plain(), data, target, callback=lambda step, part: steps.append(step))
    assert int8.buffer == auto.buffer and int8.report.accuracy == auto.report.accuracy
    assert "choose" not in steps and auto.report.warnings == int8.report.warnings


@pytest.mark.chooses
def test_the_default_is_auto_and_says_how_far_it_is():
    data = rows(1, 64)
    reported: list[tuple[str, float]] = []
    unset = compiled(Magnitude(), data, "imxrt700", callback=lambda *step: reported.append(step))
    assert unset.buffer == shared(Magnitude, "imxrt700", "auto").buffer
    parts = [part for step, part in reported if step == "choose"]
    assert parts == sorted(parts) and len({*parts}) >= 3
    for how in (micronpu.Quantization(settings={"equalize": True}), "int8"):
        reported.clear()
        compiled(Magnitude(), data, "imxrt700", quantization=how, callback=lambda *step: reported.append(step))
        assert "choose" not in [step for step, _ in reported]


@pytest.mark.chooses
def test_few_samples_choose_nothing_and_the_report_asks_for_more():
    data = rows(1, 64, count=3)
    auto, int8 = compiled(Magnitude(), data, "imxrt700"), compiled(Magnitude(), data, "imxrt700", quantization="int8")
    assert auto.buffer == int8.buffer
    hints = [" ".join(w.hint for w in program.report.warnings) for program in (auto, int8)]
    assert "16 calibration samples or 8 recordings" in hints[0] and 'quantization="auto"' in hints[1]


def test_what_a_user_sets_for_a_part_is_kept():
    how = micronpu.Quantization(activations="auto", settings={"nodes": {"log": {"activations": "int8"}}})
    auto = compiled(LogPower(), rows(1, 64), "ethos-u55-128", quantization=how)
    logs = [o for o in auto.report.operations if "log" in o.origin.nodes]
    assert logs and {o.dtype for o in logs} == {"int8"}


def test_it_is_chosen_by_calibration_data_and_by_no_quantizer_of_the_user():
    data = rows(1, 3, 8, 8)
    with pytest.raises(OptionError, match=r"is chosen by `micronpu\.compile` with calibration data"):
        micronpu.compile(Plain().eval(), data[0], "imxrt700", train=lambda m: None, quantization="auto")
    with pytest.raises(OptionError, match=r"is chosen by `micronpu\.compile` with calibration data"):
        micronpu.blame(Plain().eval(), data, target="imxrt700", quantization="auto")
    from micronpu.neutron import NeutronQuantizer

    with pytest.raises(OptionError, match="`quantizer` is given together with"):
        micronpu.Quantization(activations="auto", quantizer=NeutronQuantizer())
    with pytest.raises(OptionError, match="`activations` is 'automatic'"):
        micronpu.Quantization(activations="automatic")
