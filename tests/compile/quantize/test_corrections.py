"""Equalization, bias correction, adaptive rounding and fitted ranges, each against its definition."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from micronpu.base.errors import OptionError
from micronpu.frontend.exported import graph_module
from micronpu.frontend.program import arguments, overload_name
from micronpu.frontend.tensors import attribute, held, lift, states_of
from micronpu.neutron import NeutronQuantizer, QuantizationConfig
from micronpu.quantize import ranges
from micronpu.quantize.calibrate import quantize
from micronpu.quantize.config import Corrections
from micronpu.quantize.nodes import state_ends
from micronpu.quantize.ranges import only_kept
from micronpu.quantize.weights import Statistics, adaptive_rounding, equalize


class Net(nn.Module):
    """Convolution, depthwise, pointwise with channels of very different ranges; a classifier."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.pointwise = nn.Conv2d(6, 8, 1)
        self.fc = nn.Linear(8, 4)
        with torch.no_grad():
            uneven = 10.0 ** torch.linspace(-1.5, 1.5, 6)
            self.depthwise.weight *= uneven[:, None, None, None]
            self.depthwise.bias *= uneven
            self.pointwise.weight /= uneven[:, None, None]
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.uniform_(0.1, 3.0)
                    module.running_var.uniform_(0.1, 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.pointwise(torch.relu(self.depthwise(x))))
        y: torch.Tensor = self.fc(x.mean((2, 3)))
        return y


NOISE = [torch.randn(1, 2, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(24)]
DATA = [(3 * nn.functional.avg_pool2d(x, 5, 1),) for x in NOISE]
"""Smooth, as images are: what is next to each other is alike."""


def exported(model: nn.Module) -> torch.fx.GraphModule:
    return graph_module(torch.export.export(model.eval(), DATA[0]))


def layers(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in module.graph.nodes if overload_name(n).split(".")[0] in ("conv2d", "linear")]


def weight(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor:
    return attribute(module, arguments(node)["weight"])


@pytest.mark.parametrize("norm", [False, True])
def test_equalized_layers_have_the_same_ranges_and_compute_the_same(norm):
    model = Net(norm).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    module = exported(model)
    with torch.no_grad():
        wanted = [module(*row) for row in DATA]
        assert equalize(module) == 2  # not across the mean into the classifier
        for row, y in zip(DATA, wanted, strict=True):
            assert torch.allclose(module(*row), y, rtol=1e-4, atol=1e-5)
    first, depthwise, pointwise, _ = layers(module)
    rows = weight(module, depthwise).abs().amax((1, 2, 3))
    columns = weight(module, pointwise).abs().amax((0, 2, 3))
    assert torch.allclose(rows, columns, rtol=0.05)
    spread = rows.max() / rows.min()
    assert (
        spread
        < 0.1
        * before["depthwise.weight"].abs().amax((1, 2, 3)).max()
        / before["depthwise.weight"].abs().amax((1, 2, 3)).min()
    )
    if not norm:
        assert torch.allclose(weight(module, first).abs().amax((1, 2, 3)), rows, rtol=0.05)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "the user's model was changed"


def test_equalization_leaves_alone_what_it_may_not_touch():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.a(x))
            z: torch.Tensor = self.b(y) + y + self.c(torch.sigmoid(self.c(x)))
            return z

    assert equalize(graph_module(torch.export.export(Shared().eval(), (torch.randn(1, 4),)))) == 0


def test_equalization_cures_weights_with_one_scale():
    def ratio(corrections: Corrections) -> float:
        quantizer = NeutronQuantizer(per_channel=False).set_corrections(corrections)
        module = quantize(exported(Net()), [DATA], quantizer)
        model = Net().eval()
        with torch.no_grad():
            wanted, found = (torch.cat([f(*row) for row in DATA]) for f in (model, module))
        return float(10 * torch.log10(wanted.square().sum() / (wanted - found).square().sum()))

    assert ratio(Corrections(equalize=True)) > ratio(Corrections()) + 6


def test_bias_correction_takes_out_the_mean_error():
    plain, corrected = (
        quantize(exported(Net()), [DATA], NeutronQuantizer(per_channel=False).set_corrections(corrections))
        for corrections in (Corrections(), Corrections(bias_correction=True))
    )
    model = Net().eval()
    x = torch.cat([row[0] for row in DATA])
    operands = [x]
    with torch.no_grad():
        operands.append(torch.relu(model.first(x)))
        operands.append(torch.relu(model.depthwise(operands[1])))
        operands.append(torch.relu(model.pointwise(operands[2])).mean((2, 3)))
    for name, operand, old, new in zip(
        ("first", "depthwise", "pointwise", "fc"), operands, layers(plain), layers(corrected), strict=True
    ):
        layer = getattr(model, name)
        w = layer.weight.detach()
        step = w.abs().max() / 127
        error = torch.round(w / step) * step - w
        with torch.no_grad():
            if isinstance(layer, nn.Conv2d):
                away = nn.functional.conv2d(operand, error, None, layer.stride, layer.padding, 1, layer.groups)
                mean = away.mean((0, 2, 3))
            else:
                mean = (operand @ error.T).mean(0)
        b = attribute(corrected, arguments(new)["bias"])
        before = attribute(plain, arguments(old).get("bias"))
        before = torch.zeros_like(b) if before is None else before
        assert torch.allclose(before - b, mean, rtol=1e-2, atol=1e-6 + 1e-3 * float(mean.abs().max())), name


CONV1D, CONV2D = torch.ops.aten.conv1d.default, torch.ops.aten.conv2d.default


@pytest.mark.parametrize(
    ("layer", "x", "weight", "given"),
    [
        (torch.ops.aten.linear.default, (5, 6, 7), (4, 7), ()),
        (CONV2D, (2, 6, 9, 8), (4, 6, 3, 2), (None, [1, 2], [2, 0], [2, 3])),
        (CONV2D, (6, 9, 8), (6, 1, 3, 3), (None, [2], [1], [1], 6)),
        (CONV2D, (1, 6, 40, 40), (4, 3, 1, 1), (None, [1], [0], [1], 2)),
        (torch.ops.aten.conv2d.padding, (1, 6, 9, 8), (4, 6, 2, 3), (None, [1], "same", [2])),
        (CONV1D, (2, 6, 19), (4, 3, 5), (None, [2], [3], [2], 2)),
        (CONV1D, (6, 19), (4, 6, 5), (None, [1], [1])),
        (CONV1D, (2, 6, 190), (4, 3, 95), (None, [1], [3], [1], 2)),  # of which only the first place is multiplied
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding")
def test_statistics_of_operands_are_those_of_the_results(layer, x, weight, given):
    torch.manual_seed(0)
    x, weight = torch.randn((2, *x)) + 1, torch.randn(weight)
    graph = torch.fx.Graph()
    operands = [graph.placeholder(name) for name in ("x", "weight")]
    known = Statistics(graph.call_function(layer, (*operands, *given)), weight.shape, with_moments=True)
    for row in x:
        known.add(row)
    result = torch.stack([layer(row, weight, *given).double() for row in x])
    axis = result.dim() - 1 if weight.dim() == 2 else result.dim() + 1 - weight.dim()
    result = result.movedim(axis, 0).flatten(1)
    assert torch.allclose(known.mean_of(weight), result.mean(1), atol=1e-5)
    if (count := result.shape[1]) < 2 * 512:  # of more positions, only some are in the moments
        moments = known.moments.triu() + known.moments.triu(1).mT
        rows = weight.double().reshape(len(moments), -1, moments.shape[1])
        squares = (rows @ moments * rows).sum(2).flatten() / count
        assert torch.allclose(squares, result.square().mean(1), rtol=1e-4)
    else:
        assert torch.allclose(known.moments[:, 0, 0] / count, x[:, 0, ::3].double().square().mean((0, 2, 3)), rtol=0.2)


def test_no_rounding_is_better_than_what_is_found_for_few_weights():
    random = np.random.default_rng(0)
    good = nearest = best = 0.0
    for _ in range(20):
        x = random.standard_normal((200, 6)) @ random.standard_normal((6, 6))
        moments = torch.from_numpy(x.T @ x / 200)
        w = torch.from_numpy(random.uniform(-1, 1, (1, 6)))
        step = torch.tensor([[0.25]], dtype=torch.float64)

        def error(rounded: torch.Tensor, w=w, moments=moments) -> float:
            e = rounded.double() - w
            return float(e @ moments @ e.T)

        found = adaptive_rounding(w, step, moments, 127, 10**9)
        assert torch.allclose(found / 0.25, torch.round(found / 0.25))
        assert (found.double() - w).abs().max() <= 0.25 + 1e-6
        low = torch.floor(w / 0.25)
        every = [
            error((low + torch.tensor([c], dtype=torch.float64)) * 0.25) for c in itertools.product((0, 1), repeat=6)
        ]
        assert error(found) <= error(torch.round(w / 0.25) * 0.25) + 1e-9
        good, nearest, best = good + error(found), nearest + error(torch.round(w / 0.25) * 0.25), best + min(every)
    assert good < 1.3 * best and good < 0.6 * nearest


def test_adaptive_rounding_leaves_zeros_where_they_are():
    """One weight more in a group of four, and the layer of an Ethos-U85 is dense."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 64, generator=generator) @ torch.randn(64, 64, generator=generator)
    w = torch.randn(64, 64, generator=generator) * (torch.arange(64) % 4 < 2)
    step = w.abs().amax(1, keepdim=True) / 127
    found = adaptive_rounding(w, step, x.T @ x / 1000, 127, 1000)
    assert not bool(found[w == 0].any())
    assert not torch.allclose(found, torch.round(w / step) * step)


@pytest.mark.parametrize("per_channel", [True, False])
def test_adaptive_rounding_is_with_the_same_qparams_and_nearer(per_channel):
    config = QuantizationConfig(per_channel=per_channel)

    def made(corrections: Corrections) -> torch.fx.GraphModule:
        quantizer = NeutronQuantizer().set_global(config).set_corrections(corrections)
        return quantize(exported(Net()), [DATA], quantizer)

    plain, adaptive = made(Corrections()), made(Corrections(adaptive_rounding=True))
    moved = 0
    for old, new in zip(layers(plain), layers(adaptive), strict=True):
        # weights are int8 constants behind a dequantize with the same scale
        one, other = (n.args[1] for n in (old, new))
        a, b = (attribute(m, n.args[0]).int() for m, n in ((plain, one), (adaptive, other)))
        scales = [
            attribute(m, n.args[1]) if isinstance(n.args[1], torch.fx.Node) else n.args[1]
            for m, n in ((plain, one), (adaptive, other))
        ]
        assert torch.allclose(torch.as_tensor(scales[0]), torch.as_tensor(scales[1]))
        assert (a - b).abs().max() <= 1
        moved += int((a != b).sum())
    assert moved
    x = torch.cat([row[0] for row in DATA])
    w = Net().first.weight.detach()
    first_old, first_new = layers(plain)[0], layers(adaptive)[0]
    errors = []
    for module, node in ((plain, first_old), (adaptive, first_new)):
        dq = node.args[1]
        with torch.no_grad():
            values = [attribute(module, a) if isinstance(a, torch.fx.Node) else a for a in dq.args]
            q = dq.target(*values)
        errors.append(float(nn.functional.conv2d(x, q - w, None, 2, 1).square().sum()))
    assert errors[1] < 0.9 * errors[0]


class Loud(nn.Module):
    """Of a row [1, 5, 8] the first line is a hundred times as large as the others, and hardly matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.fc = nn.Conv1d(5, 6, 1), nn.Linear(6, 3)
        with torch.no_grad():
            self.mix.weight[:, 0] *= 1e-4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.relu(self.mix(x)).mean(2))
        return y


LOUD = [
    (torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(i)) * torch.tensor([100.0, 1, 1, 1, 1])[:, None],)
    for i in range(48)
]


def ends_of(module: torch.fx.GraphModule) -> list[tuple[float, float]]:
    """The limits of the grids of activations, in order."""
    found = [n for n in module.graph.nodes if overload_name(n) == "quantize_per_tensor.default"]
    return [((low - zero) * scale, (high - zero) * scale) for _, scale, zero, low, high, _ in (n.args for n in found)]


def test_ranges_leave_out_what_the_results_do_not_need():
    """Against the results themselves: rows that nothing was fitted to, and every other range of the input."""
    model = Loud().eval()
    plain, fitted = (
        quantize(
            graph_module(torch.export.export(model, LOUD[0])),
            [LOUD[:24]],
            NeutronQuantizer().set_corrections(Corrections(fit_ranges=fit)),
        )
        for fit in (False, True)
    )
    x = torch.cat([row[0] for row in LOUD[24:]])

    def error(module: nn.Module) -> float:
        with torch.no_grad():
            return float((torch.cat([module(row) for row in x.split(1)]) - model(x)).square().sum())

    assert error(fitted) < error(plain) / 20  # 13 dB
    (low, high), (wide_low, wide_high) = ends_of(fitted)[0], ends_of(plain)[0]
    assert high - low < (wide_high - wide_low) / 10
    with torch.no_grad():
        clipped = [float((model(x.clamp(low * f, high * f)) - model(x)).square().sum()) for f in (0.1, 1.0)]
    assert clipped[0] > 10 * clipped[1]
    assert ends_of(fitted)[-1] == ends_of(plain)[-1], "a result was clipped"


class Keeps(nn.Module):
    """Keeps the last frames, features of theirs, a mean of these, and two things in turn. frame [1, 5] -> [1, 3]"""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.conv, self.fc = nn.Conv1d(5, 6, 3), nn.Conv1d(6, 6, 2), nn.Linear(6, 3)
        with torch.no_grad():
            self.mix.weight[:, 0] *= 1e-4
        for name, size in (("past", (1, 5, 2)), ("known", (1, 6, 1)), ("mean", (1, 6)), ("a", (1, 6)), ("b", (1, 6))):
            self.register_buffer(name, torch.zeros(size))

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.past, frame[:, :, None]], 2)
        self.past = x[:, :, 1:]
        features = torch.cat([self.known, torch.relu(self.mix(x))], 2)
        self.known = features[:, :, 1:]
        new = torch.relu(self.conv(features)).flatten(1)
        self.mean = 0.9 * self.mean + 0.1 * new
        self.a, self.b = self.b.clone(), 0.5 * self.a + new
        y: torch.Tensor = self.fc(self.mean)
        return y


def test_ranges_of_states_that_only_keep_are_fitted_and_of_those_computed_of_themselves_are_not():
    loud = torch.tensor([100.0, 1, 1, 1, 1])
    noise = torch.randn(9, 8, 1, 5, generator=torch.Generator().manual_seed(1)) * loud
    sequences = [[(frame,) for frame in sequence] for sequence in noise]
    module = lift(graph_module(torch.export.export(Keeps().eval(), sequences[0][0])))
    kept = only_kept(module)
    assert [holder.name for _, holder, value in state_ends(module) if value in kept] == ["state_past", "state_known"]
    errors, all_qparams = [], []
    for fit in (False, True):
        quantizer = NeutronQuantizer().set_corrections(Corrections(fit_ranges=fit))
        quantized = quantize(copy.deepcopy(module), sequences[:6], quantizer)
        all_qparams.append({s.name: (s.scale, s.zero_point) for s in states_of(quantized).values})
        first = held(quantized)
        with torch.no_grad():
            error = 0.0
            for sequence in sequences[6:]:
                model, program = Keeps().eval(), copy.deepcopy(first)
                error += sum(float((program(*x) - model(*x)).square().sum()) for x in sequence)
        errors.append(error)
    plain, fitted = all_qparams
    changed = {name for name in plain if plain[name] != fitted[name]}
    assert changed == {"past"}, (plain, fitted)  # of the features all is needed
    assert errors[1] < errors[0] / 20, errors


def test_the_same_weights_every_time():
    def weights() -> list[torch.Tensor]:
        every = Corrections(equalize=True, bias_correction=True, adaptive_rounding=True, fit_ranges=True)
        module = quantize(exported(Net(norm=True)), [DATA], NeutronQuantizer().set_corrections(every))
        return [v for _, v in sorted(module.state_dict().items())]

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))


def test_wrong_values():
    with pytest.raises(OptionError, match="`equalize` is 1; it is True or False"):
        Corrections(equalize=1)
    with pytest.raises(OptionError, match="`set_corrections` got a bool"):
        NeutronQuantizer().set_corrections(True)
    for wrong in ({"activation_observer": "best"}, {"weight_observer": "histogram"}, {"input_observer": "x"}):
        with pytest.raises(OptionError, match="it is one of"):
            QuantizationConfig(**wrong)
    for share in (50, 101, "99", True):
        with pytest.raises(OptionError, match="`percentile` is"):
            QuantizationConfig(percentile=share)


@pytest.mark.parametrize("side", [0, 1, -1])
def test_errors_beyond_the_ends_of_ranges_are_sums_over_the_numbers_there(side: int):
    generator = torch.Generator().manual_seed(side + 1)
    x, g = (torch.randn(500, generator=generator, dtype=torch.float64) for _ in range(2))
    x = 3 * x if not side else side * x.relu()
    ends = [ranges._towards_zero(float(end)) for end in (x.min().clamp(max=0), x.max().clamp(min=0))]
    ((*found, squares),) = ranges._beyond(x, [g], *ends)
    for (clipped, outside), own, sign in zip(found, ends, (-1, 1), strict=True):
        is_beyond = sign * x > sign * own[:, None]
        assert torch.allclose(clipped, (g * (own[:, None] - x) * is_beyond).sum(1))
        assert torch.allclose(outside, (g.square() * is_beyond).sum(1))
    assert squares == pytest.approx(float(g[x != 0].square().sum()))
