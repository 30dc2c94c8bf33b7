"""The verdict on a quantized model: on all held-out samples, on whole recordings, with an interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.compile.small import Small
from torch import nn

import micronpu
from micronpu.compiler import precision
from micronpu.frontend.exported import exported
from micronpu.quantize.data import Trial, near_duplicates
from micronpu.quantize.running import run_recordings, side_by_side
from micronpu.report.accuracy import ProgramAccuracy, decibels, jackknife, student
from micronpu.verify import thresholds
from micronpu.verify.changes import expected_changes
from micronpu.verify.judge import ElementSources, for_search, judge, unequal_parts
from micronpu.verify.sensitivity import Fidelity
from micronpu.verify.static_checks import of_data


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Detector(nn.Module):
    """Near 0 in quiet calls and near 1 in loud ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.register_buffer("h", torch.zeros(1, 32))
        with torch.no_grad():
            for number, layer in enumerate((self.a, self.b)):
                layer.weight.copy_(torch.rand(layer.weight.shape, generator=generator(number)) / 8)
                layer.bias.zero_()
            self.c.weight.fill_(0.8)
            self.c.bias.fill_(-6.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = 0.7 * self.h + 0.3 * torch.relu(self.b(torch.relu(self.a(x))))
        return torch.sigmoid(self.c(self.h))


def recording(seed: int, calls: int = 24) -> list[tuple[torch.Tensor]]:
    """The first three calls are quiet, as beginnings are."""
    loud = [0.02 if call < 3 else 1.0 if call % 20 < 12 else 0.05 for call in range(calls)]
    return [(torch.rand(1, 16, generator=generator(100 * seed + call)) * loud[call],) for call in range(calls)]


def real(program: micronpu.CompiledProgram, recordings: list[Any]) -> float:
    model, signal, noise = Detector().eval(), 0.0, 0.0
    for calls in recordings:
        model.h.zero_()
        program.reset()
        for call in calls:
            with torch.no_grad():
                x, y = model(*call), program.run(*call)
            signal, noise = signal + float(x.square().sum()), noise + float((x - y).square().sum())
    return decibels(signal, noise)


def test_a_quiet_beginning_is_not_the_verdict():
    calibration = [recording(seed) for seed in range(6)]
    program = micronpu.compile(Detector().eval(), calibration[0][0], "ethos-u55-128", calibration=calibration)
    accuracy = program.report.accuracy
    assert (accuracy.rows, accuracy.of, accuracy.calls) == ((0, 1, 2, 3, 4, 5), 6, 144)
    test = [recording(seed) for seed in range(50, 54)]
    low, high = accuracy.sqnr_interval
    assert accuracy.sqnr - 1.5 < real(program, test) and low < real(program, test) < high
    assert real(program, [calls[:2] for calls in test]) < accuracy.sqnr - 10
    (output,) = accuracy.outputs
    assert len(output.over_calls) == 4 and output.float_model.interval[0] < accuracy.sqnr
    assert "on 6 recordings (144 calls) that also calibrated (" in str(accuracy)


def test_one_in_four_of_eight_recordings_is_held_out():
    calibration = [recording(seed) for seed in range(8)]
    program = micronpu.compile(Detector().eval(), calibration[0][0], "ethos-u55-128", calibration=calibration)
    accuracy = program.report.accuracy
    assert (accuracy.rows, accuracy.of, accuracy.calls, accuracy.held_out) == ((2, 6), 8, 192, True)
    assert accuracy.calibrated == 6 and "on 2 held-out recordings and 6 cross-validated (" in str(accuracy)
    assert accuracy.sqnr == pytest.approx(real(program, [recording(seed) for seed in range(50, 54)]), abs=1.5)


def test_recordings_side_by_side_are_recordings_one_by_one():
    module = exported(Detector().eval(), recording(0)[0]).module
    recordings = [recording(0, 3), recording(1, 7), [], recording(2, 5)]
    found = run_recordings(module, recordings)
    assert [len(calls) for calls in found] == [3, 7, 0, 5]
    for calls, results in zip(recordings, found, strict=True):
        model = Detector().eval()
        for call, (result,) in zip(calls, results, strict=True):
            torch.testing.assert_close(result, model(*call).detach())


def read_by_python(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum())


def test_what_no_batch_can_run_runs_one_by_one():
    graph = torch.fx.Graph()
    graph.output((graph.call_function(read_by_python, (graph.placeholder("x"),)),))
    module = torch.fx.GraphModule(nn.Module(), graph)
    rows = [(torch.full((1, 3), float(i)),) for i in range(3)]
    found = run_recordings(module, [[row] for row in rows])
    assert [float(result[0, 0]) for ((result,),) in found] == [0.0, 3.0, 12.0]


def test_every_held_out_sample_is_judged():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    data = [torch.randn(1, 8, generator=generator(i)) for i in range(64)]
    for held_out, count, also in ((None, 32, 32), (40, 40, 0)):
        verify = micronpu.Verification(held_out=held_out)
        accuracy = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data, verify=verify).report.accuracy
        assert (len(accuracy.rows), accuracy.calibrated, accuracy.held_out) == (count, also, True)
        assert accuracy.outputs[0].float_model.rows == count + also
        assert accuracy.outputs[0].quantized.rows == 8


def verdict_on(noises: list[float], held_out: int) -> ProgramAccuracy:
    """The accuracy of x + 1 as a quantized model of x + 1 + noise; the first samples are held out."""
    rows = [[(torch.full((1, 4), 9.0),)] for _ in noises]
    exact = [[(torch.full((1, 4), 10 + noise),)] for noise in noises]
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.add, (graph.placeholder("x"), 1.0)),))
    others = Trial(tuple(rows[held_out:]), exact=exact[held_out:])
    first = tuple(range(held_out))
    trial = Trial(tuple(rows[:held_out]), first, len(rows), True, exact[:held_out], others=others)
    accuracy = judge(torch.fx.GraphModule(nn.Module(), graph), trial).accuracy()
    assert accuracy is not None
    return accuracy


def test_a_hard_sample_counts_though_it_calibrated():
    """As two of 60 lines of print, which have nearly all of the noise, and may all calibrate."""
    noises = [0.01 + 0.001 * (7 * i % 64) for i in range(64)]
    hard = [*noises[:32], 3.0, *noises[33:]]
    assert verdict_on(hard, 32).calibrated == 32 and verdict_on(hard, 64).calibrated == 0
    for of in (noises, hard):
        wanted = np.array([10 + noise for noise in of])
        ratio = decibels(float(np.square(wanted).sum()), float(np.square(of).sum()))
        assert verdict_on(of, 32).sqnr == pytest.approx(ratio, abs=0.01)
    low, high = verdict_on(hard, 32).sqnr_interval
    assert high - low > 3 * np.diff(verdict_on(noises, 32).sqnr_interval)


def test_what_calibrated_does_not_count_if_it_is_nearer_to_float_than_held_out_samples():
    noises = [0.2 + 0.001 * i for i in range(8)] + [0.1 + 0.001 * i for i in range(24)]
    assert verdict_on(noises, 8).calibrated == 0 and verdict_on(noises, 8).sqnr < 35
    one = [*noises[8:16], 5.0, *noises[16:]]  # one of 9 may be far by chance
    assert verdict_on(one, 9).calibrated == 16


def test_what_is_the_float_model_is_judged_so():
    module = exported(nn.Linear(8, 4).eval(), (torch.zeros(1, 8),)).module
    rows = [[(torch.randn(1, 8, generator=generator(i)),)] for i in range(3)]
    trial = Trial(tuple(rows), (0, 1, 2), 3, exact=run_recordings(module, rows))
    (output,) = judge(module, trial).accuracy().outputs
    assert output.sqnr == math.inf and output.float_model.interval is None
    assert judge(module, Trial(tuple(rows))).accuracy() is None


def test_the_interval_holds_the_ratio_of_all():
    """Of samples whose ratios differ, in 95 of 100 draws as a rule; of heavy tails somewhat less."""
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        signal, noise = random.uniform(0.5, 1.5, 12), random.uniform(0.5, 1.5, 12) * 0.01
        low, high = jackknife(decibels, signal, noise)
        inside += low <= 20.0 <= high
    assert 0.92 <= inside / 400 <= 0.98
    below, noise = 0, random.lognormal(0.0, 1.0, (400, 24))  # few samples have most of it
    for own in noise:
        low, high = jackknife(decibels, np.ones(24), own)
        below += decibels(1.0, math.exp(0.5)) < low
        mirrored = jackknife(lambda noise, signal: -decibels(signal, noise), own, np.ones(24))
        assert mirrored == pytest.approx((-high, -low))
    assert below / 400 <= 0.05  # 0.07 without a correction for skewness
    assert jackknife(decibels, [1.0], [0.1]) is None
    assert jackknife(decibels, [1.0, 1.0], [0.0, 0.1]) is None
    assert [round(student(n), 2) for n in (1, 4, 5, 10, 30)] == [12.71, 2.78, 2.57, 2.23, 2.04]


# ---------------------------------------------------------------- data, labels and metrics of the user


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


def samples(first: int, count: int) -> list[torch.Tensor]:
    return [torch.randn(1, 8, generator=generator(first + i)) for i in range(count)]


def judged(calibration: list[torch.Tensor] | None = None, **options: Any) -> micronpu.CompiledProgram:
    data = samples(0, 16) if calibration is None else calibration
    verify = micronpu.Verification(**options)
    return micronpu.compile(classifier(), data[0], "cortex-m55", calibration=data, verify=verify)


def near(outputs: np.ndarray, labels: np.ndarray) -> float:
    return 1.0 - float(np.abs(outputs - labels).mean())


def test_a_metric_is_computed_on_held_out_samples():
    data = samples(100, 20)
    with torch.no_grad():
        wanted = torch.cat([classifier()(x) for x in data])
    labels = wanted.argmax(1).numpy()
    labels[0] = (labels[0] + 1) % 3
    program = judged(data=data, labels=labels, metric="top1")
    metric, accuracy = program.report.accuracy.metric, program.report.accuracy
    assert (metric.float_model, metric.labelled, accuracy.rows) == (0.95, True, tuple(range(20)))
    found = torch.cat([program.run(x) for x in data])
    assert metric.quantized == pytest.approx(float((found.argmax(1).numpy() == labels).mean()))
    assert metric.interval[0] <= metric.quantized <= metric.interval[1]
    assert f"top1 {metric.quantized:.4g} (" in str(program.report)
    own = judged(data=data, metric=near).report.accuracy.metric
    assert own.float_model == 1.0 and not own.labelled
    assert own.quantized == pytest.approx(near(found.numpy(), wanted.numpy()), abs=1e-6)
    assert judged(metric="top1").report.accuracy.metric.float_model == 1.0  # on the 2 of 16 that are held out


def test_a_class_without_a_sample_is_said():
    labels = np.zeros(20, np.int64)
    labels[3] = 2
    program = judged(data=samples(100, 20), labels=labels, metric="f1")
    assert program.report.accuracy.metric.missing == (1,)
    assert "with no sample of class 1" in str(program.report)


def raises(outputs: np.ndarray, labels: np.ndarray) -> float:
    raise KeyError("dog")


def nothing(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float("nan")


CALLS: list[int] = []


def unsteady(outputs: np.ndarray, labels: np.ndarray) -> float:
    CALLS.append(1)
    return float(len(CALLS))


@pytest.mark.chooses
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metric": raises}, "The metric `raises` raised KeyError: 'dog'"),
        ({"metric": nothing}, "The metric `nothing` is not a number (NaN) on the held-out samples."),
        ({"metric": unsteady}, "for the same outputs. Try: a metric that draws no random numbers"),
        ({"metric": "auc"}, "The metric 'auc' needs labels."),
        ({"metric": "f2"}, "There is no metric 'f2'."),
        ({"metric": near, "run": False}, "`metric` is computed by running the model"),
        ({"data": [torch.zeros(1, 9)]}, "Held-out item 0, input 0 has shape [1, 9], the model takes [1, 8]."),
        ({"data": []}, "The held-out data is empty."),
        ({"data": samples(0, 2)}, "Every sample of `data` is also a calibration sample"),
        ({"data": samples(100, 3), "held_out": 2}, "`held_out` is 2, and `data` is given"),
        ({"data": samples(100, 3), "labels": [0, 1], "metric": "top1"}, "There are 2 labels and 3 held-out samples."),
        ({"data": samples(100, 3), "labels": [0, 1, 7], "metric": "top1"}, "The labels go from 0 to 7, but the output"),
        ({"labels": [0]}, "`labels` are the labels of `data` for a `metric`."),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(options, says):
    with pytest.raises(micronpu.MicroNpuError) as caught:
        judged(**options)
    assert says in str(caught.value)


def test_a_held_out_sample_did_not_calibrate_under_another_number():
    data = samples(0, 16)
    accuracy = judged([*data, *data]).report.accuracy
    assert (accuracy.rows, accuracy.of) == ((4, 12), 32)
    few = judged([*samples(0, 4)] * 8).report.accuracy
    assert not few.held_out and len(few.rows) == 16


@pytest.mark.filterwarnings("ignore::micronpu.AccuracyWarning")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([torch.zeros(1, 8)] * 20, "All values of the calibration data are 0:"),
        ([torch.full((1, 8), 0.5)], "All values of the calibration data are 0.5:"),
        (samples(0, 1) * 20, "The 20 calibration samples are one sample, 20 times:"),
    ],
)
def test_uninformative_data_are_a_warning(data, says):
    (warning,) = (w for w in judged(data).report.warnings if w.rule == "uninformative-data")
    assert warning.is_severe and says in warning.what
    with pytest.raises(micronpu.BudgetError, match="calibration"):
        judged(data, strict=True)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([*samples(0, 4)] * 6, "Only 4 of the 24 calibration samples are different"),
        ([*samples(0, 20)] * 2, ""),
        ([(x, torch.ones(1, 8)) for x in samples(0, 20)], "All values of the input `y` are 1"),
        ([(x, torch.ones(1, 1)) for x in samples(0, 20)], ""),
    ],
)
def test_slightly_informative_data_are_a_note(data, says):
    rows = [row if isinstance(row, tuple) else (row,) for row in data]
    distinct = len({row[0].numpy().tobytes() for row in rows})
    found = [w for w in of_data(rows, ["x", "y"][: len(rows[0])], len(rows), distinct) if "uninform" in w.rule]
    assert [w.level for w in found] == ["note"] * bool(says) and all(says in w.what for w in found)


def test_the_interval_decides_a_budget():
    report = judged(samples(0, 24)).report
    (output,) = report.accuracy.outputs
    low, high = output.float_model.interval
    middle = (low + report.accuracy.sqnr) / 2
    sure, doubtful, missed = (micronpu.Budgets(min_sqnr=limit) for limit in (low - 0.1, middle, high + 0.1))
    assert [b.results(report)[0].met for b in (sure, doubtful, missed)] == [True, True, False]
    assert [b.results(report)[0].sure for b in (sure, doubtful, missed)] == [True, False, True]
    (note,) = (w for w in judged(samples(0, 24), budgets=doubtful).report.warnings if w.rule == "undecided-budget")
    assert note.level == "note" and "95 % interval" in note.what
    with pytest.raises(micronpu.BudgetError, match="on other samples it may be missed"):
        judged(samples(0, 24), budgets=doubtful, strict=True)
    with pytest.raises(micronpu.BudgetError, match="misses a budget: min_sqnr is"):
        judged(samples(0, 24), budgets=missed)
    with pytest.raises(micronpu.OptionError, match="one sample is no verdict"):
        judged(samples(0, 3), held_out=1, budgets=sure)


class Boxes(nn.Module):
    """Boxes of hundreds of pixels beside scores, on one grid, or apart."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.box, self.score, self.joined = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1), joined

    def forward(self, x: torch.Tensor) -> Any:
        box, score = (300 * self.box(x)).flatten(2).mT, self.score(x).flatten(2).mT
        return torch.cat([box, score], -1) if self.joined else (box, score)


@pytest.mark.filterwarnings("ignore::micronpu.AccuracyWarning")
def test_parts_of_unequal_size_are_judged_apart():
    data = [torch.randn(1, 3, 5, 5, generator=generator(i)) for i in range(20)]
    together, apart = (
        micronpu.compile(Boxes(joined).eval(), data[0], "ethos-u55-128", calibration=data).report
        for joined in (True, False)
    )
    (output,) = together.accuracy.outputs
    boxes, scores = output.parts
    assert boxes.rms > 100 * scores.rms and "of `" not in boxes.what + scores.what
    assert boxes.sqnr > output.float_model.sqnr > 30
    assert scores.sqnr < 10 and together.accuracy.sqnr == scores.sqnr
    (warning,) = (w for w in together.warnings if w.rule == "unequal-parts")
    assert warning.is_severe and f"{scores.sqnr:.1f} dB against float" in warning.what
    assert not any(o.parts for o in apart.accuracy.outputs) and apart.accuracy.sqnr > 30
    assert not any(w.rule == "unequal-parts" for w in apart.warnings)


@pytest.mark.filterwarnings("ignore::micronpu.AccuracyWarning")
@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: torch.stack([a, b], 1),
        lambda a, b: torch.slice_scatter(a.repeat(1, 2), b, 1, 8),
    ],
    ids=["stack", "slice_scatter"],
)
def test_values_that_any_operator_joins_are_parts(join):
    torch.manual_seed(0)
    model = Small(lambda m, x: join(m.large(x) * 500, m.small(x)), large=nn.Linear(8, 8), small=nn.Linear(8, 8))
    data = [torch.randn(1, 8, generator=generator(i)) for i in range(20)]
    report = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data).report
    large, small = report.accuracy.outputs[0].parts
    assert large.sqnr > 30 > 10 > small.sqnr
    assert any(w.rule == "unequal-parts" for w in report.warnings)


def test_channels_in_other_units_are_parts_and_probabilities_are_not():
    number = np.tile(np.arange(3), (4, 1))
    sources = ElementSources(number, (("fc", 0), ("fc", 1), ("fc", 2)))
    random = np.random.default_rng(0)
    wanted = [random.standard_normal((4, 3)) * [100.0, 50.0, 0.5] for _ in range(6)]
    found = [x + 0.4 * random.standard_normal((4, 3)) for x in wanted]
    large, small = unequal_parts(found, wanted, sources)
    assert (large.what, small.what) == ("channels 0, 1 of `fc`", "channel 2 of `fc`")
    error = np.concatenate(found)[:, 2] - np.concatenate(wanted)[:, 2]
    assert small.sqnr == pytest.approx(decibels(np.square(np.concatenate(wanted)[:, 2]).sum(), np.square(error).sum()))
    assert unequal_parts([x / 1000 for x in found], [np.abs(x) / 1000 for x in wanted], sources) == ()


@pytest.mark.parametrize("classes", [2, 5])
def test_expected_changes_are_those_of_many_samples_and_vary_less_than_a_count(classes: int) -> None:
    logits = 3 * torch.randn(2000, classes, generator=generator(0))
    noisy = logits + 0.2 * torch.randn(2000, classes, generator=generator(1))
    exact, found = ([[(row[None],)] for row in of.softmax(1)] for of in (logits, noisy))
    changed = (logits.argmax(1) != noisy.argmax(1)).float()
    expected, counted = [], []
    for first in range(0, 1900, 64):
        own, more = slice(first, first + 32), slice(first + 32, first + 96)
        others = Trial(((),) * 64, exact=exact[more])
        expected.append(expected_changes(found[own], Trial(((),) * 32, exact=exact[own], others=others))[0])
        counted.append(float(changed[own].mean()))
    assert np.mean(expected) == pytest.approx(float(changed.mean()), rel=0.25)
    assert np.std(expected) < 0.5 * np.std(counted)
    assert expected_changes(exact, Trial(((),) * 2000, exact=exact)) == (0, 0)


@pytest.mark.parametrize("mean", [0.0, -6.0])
def test_expected_changes_of_probabilities_are_those_of_f1(mean: float) -> None:
    """Beside boxes in pixels, which decide nothing."""
    logits = mean + 3 * torch.randn(64, 1, 200, generator=generator(0))
    noisy = logits + 0.2 * torch.randn(64, 1, 200, generator=generator(1))
    exact, found = ([[(torch.cat([20 * row, row.sigmoid()])[None],)] for row in of] for of in (logits, noisy))
    sources = [ElementSources(np.repeat([[[0], [1]]], 200, 2), (("boxes", None), ("scores", None)))]
    a, b = logits > 0, noisy > 0
    trial, f1 = Trial(((),) * 64, exact=exact), float(2 * (a & b).sum() / (a.sum() + b.sum()))
    scores, sides = expected_changes(found, trial, sources)
    assert scores == 0 and sides == pytest.approx(1 - f1, rel=0.25)
    assert expected_changes(found, trial)[1] == expected_changes(exact, trial, sources)[1] == 0


def test_a_number_tells_by_its_deviation_from_the_mean() -> None:
    """3 to 5 of 5 points: 37 dB of the number are 20 of what it says. A probability near 1 is judged by its side."""
    points = torch.linspace(3, 5, 41, dtype=torch.float64)
    error = 0.1 * float((points - 4).square().mean().sqrt())
    exact, found = ([[x.reshape(1, 1)] for x in of] for of in (points, points + error))
    assert Fidelity.of(exact, found).score == pytest.approx(20, abs=0.3)
    assert Fidelity.of(exact, found).worst == pytest.approx(36.7, abs=0.1)
    assert Fidelity.of(exact[:3], found[:3]).score > 30
    exact, found = ([[x / 5.01] for (x,) in of] for of in (exact, found))
    assert Fidelity.of(exact, found).score == pytest.approx(Fidelity.of(exact, found).worst)


def _cell(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.cell(x)  # type: ignore[no-any-return]


def _filled(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.cell(x).masked_fill(x > 1, torch.zeros(()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("held_out", "evaluated"), [(3, 16), (20, 20)])
def test_a_search_has_each_sample_once(held_out: int, evaluated: int) -> None:
    """Held-out samples come first, then others, evenly spread; expected changes count the rest of them, too."""
    module = torch.fx.symbolic_trace(nn.Identity())
    every = [[(torch.full((1, 2), float(i)),)] for i in range(30)]
    calls, none = tuple(frozenset({i}) for i in range(30 - held_out)), (frozenset[int](),) * held_out
    others = Trial(tuple(every[held_out:]), exact=every[held_out:], calibrated=calls, calibrating=len(calls))
    trial = Trial(tuple(every[:held_out]), held_out=True, exact=every[:held_out], others=others, calibrated=none)
    judged = judge(module, trial, known=every)
    assert len(judged.plain) == len(judged.trial.recordings) == 30 and judged.trial.others is None
    of_search, own = for_search(trial, judged)
    numbers = [int(row[0, 0]) for ((row,),) in own]
    assert numbers[:held_out] == list(range(held_out)) and len(own) == len(of_search.recordings) == evaluated
    rest, seen = of_search.others, [max(calls, default=None) for calls in of_search.calibrated]
    assert seen == [None] * held_out + [i - held_out for i in numbers[held_out:]]
    assert rest is not None and numbers == [int(row[0, 0]) for ((row,),) in of_search.exact]
    assert sorted([*numbers, *(int(row[0, 0]) for ((row,),) in rest.exact)]) == list(range(30))


@pytest.mark.parametrize(
    "function, cell", [(_cell, nn.GRUCell(8, 8)), (_cell, nn.RNNCell(8, 8)), (_filled, nn.Linear(8, 8))]
)
def test_nothing_of_torch_is_printed_about_operators_without_a_batching_rule(
    function: Any, cell: nn.Module, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch's C++ writes to the file descriptor where an operator is called in batches without Python around it."""
    rows = [(torch.randn(1, 8, generator=generator(i)),) for i in range(24)]
    micronpu.compile(Small(function, cell=cell), rows[0], "imxrt700", calibration=rows, quantization="int8")
    assert "batching rule" not in "".join(capfd.readouterr())


def test_runs_side_by_side_raise_what_the_function_raises() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(tuple(x.shape))

    with pytest.raises(KeyError, match="8"):
        side_by_side(raises)(torch.zeros(3, 8))
    assert torch.equal(side_by_side(lambda x: x.sum())(torch.ones(3, 8)), torch.full((3,), 8.0))


# ---------------------------------------------------------------- the program, on samples that did not calibrate


def test_the_headline_is_the_figure_of_the_program():
    """LeakyReLU rounds twice in a program and once in a quantized model."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.LeakyReLU(0.3)) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(32, 1)).eval()
    data = [torch.randn(1, 32, generator=generator(i)) for i in range(96)]
    verify = micronpu.Verification(data=data[64:])
    program = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data[:64], verify=verify)
    wanted = [float(model(x).detach()) for x in data[64:]]
    error = sum((float(program.run(x)) - y) ** 2 for x, y in zip(data[64:], wanted, strict=True))
    assert program.report.accuracy.sqnr == pytest.approx(decibels(sum(y * y for y in wanted), error), abs=1e-3)


def test_a_call_that_the_program_does_not_run_has_its_noise_too(monkeypatch):
    data = [torch.randn(1, 8, generator=generator(i)) for i in range(64)]
    whole = micronpu.compile(classifier(), data[0], "ethos-u55-128", calibration=data).report.accuracy
    monkeypatch.setattr(thresholds, "PROGRAM_JUDGED", 12 * 400_000)
    some = micronpu.compile(classifier(), data[0], "ethos-u55-128", calibration=data).report.accuracy
    assert some.sqnr == pytest.approx(whole.sqnr, abs=1.0)


def test_a_sample_that_calibrated_is_clipped_as_other_data_are():
    """Two samples reach further than all others; without either, its values are beyond the range."""
    data = [torch.randn(1, 8, generator=generator(i)).clamp(-1, 1) for i in range(12)]
    data[3], data[7] = 3.2 * data[3].abs(), -3.1 * data[7].abs()
    model = nn.Linear(8, 8).eval()
    with torch.no_grad():
        model.weight.copy_(torch.eye(8))
        model.bias.zero_()
    program = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data)
    accuracy = program.report.accuracy
    with torch.no_grad():
        found = [program.run(x) for x in data]
    error = sum(float((y - x).square().sum()) for x, y in zip(data, found, strict=True))
    signal = sum(float(x.square().sum()) for x in data)
    assert accuracy.sqnr < decibels(signal, error) - 1.0


def burst(first: int, size: float = 1.0) -> list[torch.Tensor]:
    """Four samples that are nearly equal."""
    sample = size * torch.randn(1, 32, generator=generator(first)).clamp(-1, 1)
    return [sample + 0.02 * torch.randn(1, 32, generator=generator(100 * first + i)) for i in range(4)]


def test_near_duplicates_are_left_out_together():
    """As pictures of a burst: the others of it have the same values, which other data do not have."""
    data = [x for i in range(8) for x in burst(i, 3.2 if i == 5 else 1.0)]
    alike = near_duplicates([[(x,)] for x in data])
    assert alike == [[i // 4 * 4 + j for j in range(4)] for i in range(32)]
    different = [torch.randn(1, 32, generator=generator(i)) for i in range(32)]
    assert near_duplicates([[(x,)] for x in different]) == [[i] for i in range(32)]
    model = nn.Linear(32, 32).eval()
    with torch.no_grad():
        model.weight.copy_(torch.eye(32))
        model.bias.zero_()
    program = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data, quantization="int8")
    error = sum(float((program.run(x) - x).square().sum()) for x in data)
    accuracy = program.report.accuracy
    assert accuracy.sqnr < decibels(sum(float(x.square().sum()) for x in data), error) - 3.0
    noises, signal = np.random.default_rng(0).uniform(0.5, 1.5, 32), np.ones(32)
    few, many = (np.diff(jackknife(decibels, signal, noises, independent=n)) for n in (8, 32))
    assert few > 2.0 * many and many == np.diff(jackknife(decibels, signal, noises))


def test_the_search_believes_what_the_report_says(monkeypatch):
    """Samples that calibrated count with the ranges of the others, in both."""
    data = [torch.randn(1, 8, generator=generator(i)).clamp(-1, 1) for i in range(24)]
    data[3], data[7], data[16] = 2.6 * data[3].abs(), -2.5 * data[7].abs(), 2.2 * data[16]
    rated, believed = precision.Search.rated, []

    def noted(*arguments, **options):
        believed.append(rated(*arguments, **options))
        return believed[-1]

    monkeypatch.setattr(precision.Search, "rated", noted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Unflatten(1, (2, 4))).eval()  # no scores, which would be searched
    program = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data, quantization="auto")
    accuracy, first = program.report.accuracy, believed[0]
    assert accuracy.calibrated == 21 and first.fidelity.worst == pytest.approx(accuracy.sqnr, abs=0.2)
    found = torch.cat([y for ((y,),) in first.results[""]]).flatten(1)
    with torch.no_grad():
        exact = torch.cat([model(x) for x in data]).flatten(1)
    nearest = torch.cdist(found, exact).square().amin(1)
    assert decibels(float(exact.square().sum()), float(nearest.sum())) > accuracy.sqnr + 1.0


def test_leaving_out_changes_no_module():
    data = [torch.randn(1, 8, generator=generator(i)) ** 3 for i in range(24)]
    program = micronpu.compile(classifier(), data[0], "ethos-u55-128", calibration=data)
    assert program.report.agreement.equal > 0.9 and "21 cross-validated" in str(program.report.accuracy)
