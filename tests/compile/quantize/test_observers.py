"""Observers: which range of a tensor becomes its int8 grid."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization import pt2e as theirs
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from micronpu.base.errors import ModelError, OptionError
from micronpu.frontend.export import export
from micronpu.frontend.exported import graph_module
from micronpu.frontend.program import is_dequantize_channel, is_quantize
from micronpu.frontend.tensors import attribute
from micronpu.neutron import NeutronQuantizer
from micronpu.quantize import observers
from micronpu.quantize.calibrate import quantize
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.observers import (
    LeastErrorObserver,
    MinMaxObserver,
    MovingAverageObserver,
    Observer,
    PercentileObserver,
    SpreadErrorObserver,
    largest,
    least_error_ranges,
)
from micronpu.quantize.observing import RangeObserver, WeightObserver
from micronpu.quantize.qat import quantize_aware_training
from micronpu.upstream.session import one_thread


def observer(*batches, qscheme=torch.per_tensor_affine):
    made = SpreadErrorObserver(dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=qscheme, eps=2**-16)
    for batch in batches:
        made(batch)
    return made


def squared_error(x, scale, zero_point):
    """Of x on the int8 grid."""
    q = np.clip(np.rint(x / scale) + zero_point, -128, 127)
    return float((((q - zero_point) * scale - x) ** 2).mean())


def random(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


DISTRIBUTIONS = {
    "normal": random(0, 40_000),
    "heavy tails": random(1, 40_000) ** 3,
    "after relu": random(2, 40_000).relu() ** 2,
    "negative": -(random(3, 40_000).abs() ** 2),
    "shifted": random(4, 40_000) * 0.5 + 3.0,
    "uniform": torch.linspace(-1.0, 3.0, 40_000),
    "tiny": random(5, 40_000) ** 3 * 1e-3,
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_range_is_much_better(name):
    x = DISTRIBUTIONS[name]
    scale, zero_point = observer(*x.split(4_000)).calculate_qparams()
    found = squared_error(x.numpy(), scale.item(), zero_point.item())
    low, high = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    parts = np.linspace(0.1, 1.0, 40)
    errors = []
    for a, b in itertools.product(parts, parts):
        step = (high * b - low * a) / 255
        errors.append(squared_error(x.numpy(), step, -128 - np.rint(low * a / step)))
    assert found < 1.1 * min(errors)


def test_rare_values_are_clipped_and_common_ones_are_not():
    x = DISTRIBUTIONS["heavy tails"]
    scale, _ = observer(x).calculate_qparams()
    assert scale.item() * 255 < 0.95 * (x.max() - x.min()).item()
    scale, zero_point = observer(DISTRIBUTIONS["uniform"]).calculate_qparams()
    assert scale.item() * 255 == pytest.approx(4.0, rel=0.02)
    assert zero_point.item() == pytest.approx(-128 + 255 / 4, abs=2)


def _of_rows(rows, made):
    for row in rows:
        made(row)
    return made


def _int8(search, **more):
    return search(dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine, **more)


@pytest.mark.sweep
@pytest.mark.parametrize("search", [SpreadErrorObserver, LeastErrorObserver, MinMaxObserver])
@pytest.mark.parametrize("name", ["normal", "laplace", "uniform", "heavy tails"])
def test_few_values_do_not_show_how_far_others_reach(name, search, monkeypatch):
    """14 rows of 6 values, as a step of a small recurrent layer has: other rows are nearer with the wider range."""
    gain = 0.0
    for seed in range(40):
        x = random(seed, 400, 6)
        x = {"normal": x, "laplace": x * random(seed + 99, 400, 6).abs().sqrt(), "uniform": torch.erf(x)}.get(
            name, x**3
        )
        made = _of_rows(x[:14], _int8(search))
        all_qparams = [[float(v) for v in made.calculate_qparams()]]
        with monkeypatch.context() as context:
            context.setattr(search, "widens", False)
            all_qparams.append([float(v) for v in made.calculate_qparams()])
        wide, narrow = (squared_error(x[14:].numpy(), *qparams) for qparams in all_qparams)
        gain += 10 * np.log10(narrow / wide) / 40
    assert gain > {"uniform": -2.0}.get(name, 2.0)  # nothing tells that a range ends where it was seen to end


@pytest.mark.parametrize(("calls", "length"), [(24, 4), (24, 64), (48, 64)])
def test_sums_of_products_are_clipped_no_more_than_rounded(calls, length):
    """Of 24 rows, other rows exceed the extremes: they are nearer with the wider range, on average and at the worst."""
    found = []
    for seed in range(20):
        x, made = random(seed, 600, length), _int8(MinMaxObserver)
        _of_rows(x[:calls], made)
        narrow = squared_error(x[calls:].numpy(), *map(float, made.calculate_qparams()))
        made.exceeded_from = 0
        wide = squared_error(x[calls:].numpy(), *map(float, made.calculate_qparams()))
        found.append((10 * np.log10(narrow), 10 * np.log10(wide)))
    assert np.mean(found, 0)[1] < np.mean(found, 0)[0] - 0.3
    assert np.max(found, 0)[1] < np.max(found, 0)[0] - 0.5


def test_pixels_and_ranges_that_clip_get_no_margin_of_many_values():
    made = _of_rows((random(0, 24, 64) * 40).round().clamp(-128, 127), _int8(MinMaxObserver))
    made.exceeded_from = 0
    made.see(torch.tensor([-128.0, 127.0]))
    assert made.beyond() == (0.0, 0.0)
    made = _of_rows(random(0, 24, 64), _int8(MinMaxObserver))
    made.exceeded_from = 0
    assert min(made.beyond()) > 0.0
    made.min_val.fill_(-0.5)
    assert made.beyond() == (0.0, 0.0)


def test_a_value_that_others_move_counts_once():
    """As ReLU and flatten in front of a layer, whose extremes would tell of half as many samples."""
    rows = random(0, 24, 64)
    once, twice = (_of_rows(rows.repeat_interleave(count, 0), _int8(MinMaxObserver)) for count in (1, 2))
    once.exceeded_from = twice.exceeded_from = 0
    assert twice.beyond() != once.beyond()
    twice = _int8(MinMaxObserver)
    twice.repeats, twice.exceeded_from = 2, 0
    _of_rows(rows.repeat_interleave(2, 0), twice)
    assert twice.beyond() == once.beyond() and twice.extremes == once.extremes


def test_a_range_is_widened_for_few_values_only():
    rows = random(0, 100, 7)
    low, high = _of_rows(rows[:14], _int8(MinMaxObserver)).beyond()
    least, most = float(rows[:14].min()), float(rows[:14].max())
    assert 0 < low <= -least and 0 < high <= most
    for number in (5, 100):  # too few calls to tell, and values enough
        assert _of_rows(rows[:number], _int8(MinMaxObserver)).beyond() == (0.0, 0.0)
    assert _of_rows(rows[:14].abs(), _int8(MinMaxObserver)).beyond()[0] == 0.0
    assert _of_rows(rows[:14].clamp(-0.1, 0.1), _int8(MinMaxObserver)).beyond() == (0.0, 0.0)
    for search in (MovingAverageObserver, PercentileObserver):  # who asks for these says how much is left out
        assert _of_rows(rows[:14], _int8(search)).beyond() == (0.0, 0.0)
    chosen = _of_rows(rows[:14], _int8(SpreadErrorObserver))
    chosen.settle(torch.tensor(-1.0), torch.tensor(1.55))
    assert float(chosen.calculate_qparams()[0]) == pytest.approx(0.01)


def test_a_checkpoint_holds_what_is_counted():
    made, fresh = (observers.LeastErrorObserver(torch.int8, -128, 127, torch.per_tensor_affine) for _ in range(2))
    made(torch.randn(4, 256).relu())
    fresh.load_state_dict(made.state_dict())
    assert fresh.zeros == made.zeros > 0
    made.settle(torch.tensor(-1.0), torch.tensor(2.0))
    fresh.load_state_dict(made.state_dict())
    assert fresh.calculate_qparams() == made.calculate_qparams()
    older = made.state_dict()
    older["_extra_state"] = older["_extra_state"][:4]
    fresh.load_state_dict(older)


def test_symmetric_ranges_pay_for_both_sides():
    x = DISTRIBUTIONS["after relu"]
    scale, zero_point = observer(x, qscheme=torch.per_tensor_symmetric).calculate_qparams()
    assert zero_point.item() == 0
    steps = np.linspace(0.1, 1.0, 100) * x.max().item() / 127.5
    assert squared_error(x.numpy(), scale.item(), 0) < 1.1 * min(squared_error(x.numpy(), s, 0) for s in steps)


@pytest.mark.parametrize("value", [0.0, 2.5, -3.0])
def test_a_constant_tensor_keeps_its_value(value):
    scale, zero_point = observer(torch.full((50,), value)).calculate_qparams()
    assert scale.item() > 0
    assert squared_error(np.array([value]), scale.item(), zero_point.item()) < 1e-6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x):
        return self.second(self.first(x).relu()).flatten(1)


def test_what_goes_in_and_out_is_never_clipped():
    x = random(6, 1, 3, 8, 8)
    x[0, 0, 0, 0] = 1000.0
    module = graph_module(torch.export.export(Net().eval(), (x,)))
    prepared = prepare_pt2e(module, NeutronQuantizer())
    prepared(x)
    kinds = {}
    for node in prepared.graph.nodes:
        if node.op == "call_module" and observers.is_observer(made := prepared.get_submodule(str(node.target))):
            kinds[node.args[0].name] = made
    names = {name: type(made).__name__ for name, made in kinds.items() if type(made) is not WeightObserver}
    border = dict.fromkeys(["x", "conv2d_1", "flatten"], "MinMaxObserver")
    assert names == border | {"relu": "SpreadErrorObserver"}
    scale, _ = kinds["x"].calculate_qparams()
    assert scale.item() * 255 > 1000.0


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def of_kind(kind, *batches, **options):
    made = kind(dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine, eps=2**-16, **options)
    for batch in batches:
        made(batch)
    return made


@pytest.mark.sweep
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_least_error_is_that_of_every_value_as_it_is_rounded(name):
    x = DISTRIBUTIONS[name]
    scale, zero_point = of_kind(LeastErrorObserver, *x.split(4_000)).calculate_qparams()
    found = squared_error(x.numpy(), scale.item(), zero_point.item())
    low, high = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    parts = np.linspace(0.1, 1.0, 40)
    steps = [((high * b - low * a) / 255, low * a) for a, b in itertools.product(parts, parts)]
    assert found < 1.05 * min(squared_error(x.numpy(), s, -128 - np.rint(lowest / s)) for s, lowest in steps)


def test_values_that_all_qparams_represent_cost_nothing():
    """A tensor that is zero but for few values: the range is theirs, whatever the zeros would cost elsewhere."""
    few = random(6, 400).abs()
    x = torch.cat([torch.zeros(40_000), few])
    errors = []
    for kind in (LeastErrorObserver, SpreadErrorObserver):
        scale, zero_point = of_kind(kind, x).calculate_qparams()
        errors.append(squared_error(few.numpy(), scale.item(), zero_point.item()))
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("percentile", [99.0, 99.9])
@pytest.mark.parametrize("name", ["normal", "heavy tails", "after relu", "negative"])
def test_the_percentile(name, percentile):
    x = DISTRIBUTIONS[name]
    made = of_kind(PercentileObserver, *x.split(4_000), percentile=percentile)
    scale, zero_point = (float(v) for v in made.calculate_qparams())
    lowest, highest = (-128 - zero_point - 0.5) * scale, (127 - zero_point + 0.5) * scale
    share = 1 - percentile / 100
    for outside, reaches in (((x < lowest), x.min() < 0), ((x > highest), x.max() > 0)):
        found = float(outside.float().mean())
        assert 0.5 * share < found < 1.5 * share if reaches else found == 0.0


def test_the_range_of_weights_with_the_least_error():
    weights = random(7, 4, 3, 3, 3)
    weights[1] = weights[1] ** 3
    weights[2] = 0.0
    found = least_error_ranges(weights.reshape(4, -1), 7)
    for row, limit in zip(weights.reshape(4, -1).double(), found, strict=True):
        peak = float(row.abs().max())
        if not peak:
            assert limit == 0.0
            continue

        def error(most, row=row):
            step = most / 7
            return float((torch.clamp(torch.round(row / step), -7, 7) * step - row).square().sum())

        assert error(float(limit)) <= 1.02 * min(error(peak * part) for part in np.linspace(0.21, 1.0, 60))
        assert error(float(limit)) <= error(peak)
    assert (found < weights.reshape(4, -1).abs().amax(1)).sum() >= 2  # clipping pays with so few steps
    qparams = {"dtype": torch.int8, "quant_min": -7, "quant_max": 7, "search": least_error_ranges}
    made = WeightObserver(**qparams, qscheme=torch.per_channel_symmetric, ch_axis=0)
    made(weights)
    assert torch.allclose(made.calculate_qparams()[0][:2] * 7, found[:2], rtol=0.1)
    single = WeightObserver(**qparams, qscheme=torch.per_tensor_symmetric)
    single(weights)
    assert float(single.calculate_qparams()[0]) * 7.5 == pytest.approx(
        float(least_error_ranges(weights.reshape(1, -1), 7)[0]), rel=0.1
    )


class Halved(RangeObserver):
    of_extremes = False

    def found(self):
        return self.min_val / 2, self.max_val / 2


@pytest.fixture
def halved(monkeypatch):
    """An observer of one row, that leaves out whatever is in the outer half."""
    made = Observer("halved", Halved, for_weights=lambda weights, most: weights.abs().amax(1) / 2)
    monkeypatch.setitem(observers.OBSERVERS, "halved", made)
    return "halved"


def scales(module):
    """Of the quantizes of a module, by the value, and of the weights, by their shape."""
    found = {}
    for node in module.graph.nodes:
        if is_quantize(node):
            found[node.args[0].name] = node.args[1]
        if is_dequantize_channel(node):
            found[tuple(attribute(module, node.args[0]).shape)] = float(attribute(module, node.args[1])[0])
    return found


def by_our_own(x, quantizer):
    module = graph_module(export(Net().eval(), (x,)))
    return quantize(module, [[(x,)]], quantizer)


def by_torchao(x, quantizer):
    prepared = prepare_pt2e(graph_module(torch.export.export(Net().eval(), (x,))), quantizer)
    prepared(x)
    return convert_pt2e(prepared)


@torch.no_grad()
def test_an_observer_is_one_row(halved):
    """Both stacks take it from the one registry, for activations and for weights, and so does training."""
    x = random(8, 1, 3, 8, 8)
    for convert in (by_our_own, by_torchao):
        made = {}
        for name in ("minmax", halved):
            torch.manual_seed(0)
            config = QuantizationConfig(activation_observer=name, weight_observer=name)
            made[name] = scales(convert(x, NeutronQuantizer().set_global(config)))
        assert made["minmax"].keys() == made[halved].keys()
        half = {n for n, scale in made["minmax"].items() if made[halved][n] == pytest.approx(scale / 2, rel=1e-6)}
        assert half == {"relu", (4, 3, 3, 3), (4, 4, 3, 3)}  # what is between the layers, and their weights
    torch.manual_seed(0)
    quantizer = NeutronQuantizer(is_qat=True)
    quantizer.set_global(QuantizationConfig(is_qat=True, weight_observer=halved))
    trained = scales(quantize_aware_training(Net(), (x,), lambda module: module(x), quantizer))
    assert all(trained[n] == pytest.approx(made[halved][n], rel=1e-6) for n in half - {"relu"})


def test_the_error_lists_the_names_of_observers():
    page = (Path(__file__).parents[3] / "docs" / "quantization.md").read_text(encoding="utf-8")
    for how, names in (("activation", observers.for_activations()), ("weight", observers.for_weights())):
        assert names and all(name in page for name in names)
        with pytest.raises(OptionError) as error:
            QuantizationConfig(**{f"{how}_observer": "other"})
        assert str(list(names)) in str(error.value)


def test_counts_are_exact_in_whatever_order():
    """Sums of parts of counts are exact in double precision; no order of batches changes what is within the bins."""
    x = random(9, 4_202)
    x[0], x[1] = -6.0, 6.0
    parts = list(x[2:].split(600))
    found = [of_kind(SpreadErrorObserver, x[:2], *order).histogram for order in (parts, parts[::-1])]
    assert torch.equal(*found) and float(found[0].sum()) == len(x)
    made = of_kind(SpreadErrorObserver, *x.split(600)[::-1])
    assert float(made.histogram.sum()) == len(x) and made.histogram.dtype is torch.float64


@pytest.mark.parametrize("count", [1, 500, 40_000])
def test_counts_are_those_of_torch(count):
    made = SpreadErrorObserver(torch.int8, -128, 127, torch.per_tensor_affine)
    for x in (random(12, count), random(12, count).mul(4).round() / 4, torch.full((count,), 0.3)):
        for low, high in ((float(x.min()), float(x.max())), (float(x.min()) - 0.3, float(x.max()) + 1.7)):
            wanted = torch.histc(x.double(), made.bins, low, high)
            assert made._counted(x.numpy(), low, high).tolist() == wanted.tolist()


def test_values_of_any_float_are_counted():
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        made = SpreadErrorObserver(torch.int8, -128, 127, torch.per_tensor_affine).to(dtype)
        for x in random(13, 2, 300).to(dtype):
            made(x)
        assert abs(float(made.histogram.double().sum()) - 600) < 12 and 0.01 < float(made.calculate_qparams()[0]) < 0.1


def test_equal_values_of_any_size_are_counted():
    """1e38 + 1 is 1e38."""
    for size in (1e-38, 0.3, 1e38, -3e38):
        made = of_kind(SpreadErrorObserver, torch.full((300,), size))
        assert made.histogram.sum() == 300


def test_a_histogram_that_widens_splits_every_bin():
    x = random(11, 300)
    made = of_kind(SpreadErrorObserver, x)
    first, last = float(made.min_val), float(made.max_val)
    low, high, parts = first - 0.7, last + 2.1, SpreadErrorObserver._PARTS
    wanted = [0.0] * made.bins
    for number, count in enumerate(made.histogram.tolist()):
        for part in range(number * parts, (number + 1) * parts):
            middle = first + (last - first) / (made.bins * parts) * (part + 0.5)
            wanted[min(int((middle - low) / ((high - low) / made.bins)), made.bins - 1)] += count / parts
    assert 0 in made.histogram and made._moved(low, high).tolist() == wanted


def test_weights_that_change_have_another_range():
    made = WeightObserver(torch.int8, -127, 127, torch.per_channel_symmetric, search=least_error_ranges, ch_axis=0)
    weights = torch.nn.Parameter(random(10, 3, 4))
    made(weights)
    before = made.calculate_qparams()[0].clone()
    with torch.no_grad():
        weights *= 2
    made(weights)
    assert torch.allclose(made.calculate_qparams()[0], 2 * before)
    for factor in (3, 4, 5):  # one takes the memory of another that is gone
        made(weights.detach() * factor)
        assert torch.allclose(made.calculate_qparams()[0], 2 * factor * before)


def test_what_no_qparams_are_learnt_of():
    with pytest.warns(UserWarning, match="seen no values"):
        assert observer().calculate_qparams()[0].item() == 1.0
    with pytest.raises(ModelError, match="shown NaN"):
        observer(torch.tensor([1.0, torch.nan]))
    made = observer(torch.tensor([1.0, torch.inf]), torch.tensor([-torch.inf, torch.inf]))
    assert made.max_val == 1.0


AFFINE, SYMMETRIC = torch.per_tensor_affine, torch.per_tensor_symmetric
THEIRS = {
    "minmax": (theirs.MinMaxObserver, MinMaxObserver, AFFINE),
    "minmax, symmetric": (theirs.MinMaxObserver, MinMaxObserver, SYMMETRIC),
    "moving average": (theirs.MovingAverageMinMaxObserver, MovingAverageObserver, AFFINE),
}


@pytest.mark.parametrize(("torchaos", "own", "qscheme"), THEIRS.values(), ids=THEIRS)
def test_qparams_are_those_of_torchao(torchaos, own, qscheme):
    """Bit for bit, where torchao has the same observer; in int8 and in int16."""
    for dtype, seed in itertools.product((torch.int8, torch.int16), range(40)):
        limits = torch.iinfo(dtype)
        qparams = {"dtype": dtype, "quant_min": limits.min, "quant_max": limits.max, "qscheme": qscheme, "eps": 2**-16}
        both = [torchaos(**qparams), own(**qparams)]
        for batch in range(3):
            x = random(100 * seed + batch, 50) * 10.0 ** (seed % 9 - 5) + (seed % 5 - 2)
            for made in both:
                made(x)
        wanted, found = (made.calculate_qparams() for made in both)
        assert torch.equal(wanted[0], found[0]) and int(wanted[1]) == int(found[1]), seed


def test_qparams_of_channels_are_those_of_torchao():
    for seed in range(20):
        qparams = {"dtype": torch.int8, "quant_min": -127, "quant_max": 127, "eps": 2**-24}
        weights = random(seed, 6, 5, 4) * torch.logspace(-6, 2, 5)[:, None]
        made = WeightObserver(**qparams, qscheme=torch.per_channel_symmetric, search=largest, ch_axis=1)
        wanted = theirs.PerChannelMinMaxObserver(**qparams, qscheme=torch.per_channel_symmetric, ch_axis=1)
        made(weights), wanted(weights)
        assert torch.equal(made.calculate_qparams()[0], wanted.calculate_qparams()[0])
        assert not made.calculate_qparams()[1].any()


def test_counts_are_those_of_torchao():
    """Of batches that widen the range; torchao's counts are of single precision, and a value at an edge may differ."""
    batches = [random(seed, 3_000) * (1 + seed) for seed in range(5)]
    made, wanted = (of_kind(kind, *batches) for kind in (SpreadErrorObserver, theirs.HistogramObserver))
    assert (made.min_val, made.max_val) == (wanted.min_val, wanted.max_val)
    assert (made.histogram.cumsum(0) - wanted.histogram.double().cumsum(0)).abs().max() <= 0.001 * 15_000
