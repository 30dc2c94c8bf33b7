"""Corrections of weights and biases: equalization and second parts before annotation, the others after calibration.

The latter need the operands of each layer: the float network's own values for some of the calibration samples.  Ranges
are corrected by `micronpu.quantize.ranges`.

Cross-layer equalization (Nagel et al., 2019) gives the channels of two successive layers weights of the same range:

    y = second(relu(first(x)))      first's row c divided by s[c], second's column c multiplied by s[c]

A ReLU commutes with a positive factor, so that the network computes the same. s = sqrt(range of the row / range of the
column) makes both ranges equal, which helps qparams that all channels share: of weights with one scale per tensor, and
of the activations between the two layers.

An input of very unequal features, as powers of bands, has no layer before it, and is multiplied in float.  Weights of a
small layer also get two parts in int16.  All factors are powers of two, so that the float program computes the same:

    x -> layer(W)        x -> mul(s), in float -> layer(W / s)        s = sqrt(size of the column / size of the feature)
    x -> layer(W)        x -> cat(x, x / 128) -> layer([W rounded, 128 (W - W rounded)])
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from micronpu.frontend.facts import IN_FLOAT
from micronpu.frontend.graphs import GraphModule, Node, calls, findings, map_arg
from micronpu.frontend.program import arguments, is_float32, overload_name, value_of
from micronpu.frontend.tensors import add_constant, attribute, set_attribute
from micronpu.frontend.units import multiply_accumulates
from micronpu.ir.aten import one_each
from micronpu.ir.lowering import Capabilities, facts_of
from micronpu.ops import facts
from micronpu.ops.convolution import CONVOLUTIONS_2D
from micronpu.ops.matmul import LINEAR
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.quantize import thresholds as at
from micronpu.quantize.calibration_cache import FloatStatistics
from micronpu.quantize.config import Corrections, QuantizationConfig, QuantizationSettings
from micronpu.quantize.data import of_tensors
from micronpu.quantize.float64 import runnable
from micronpu.quantize.nodes import observer_of, set_parameters, source_of
from micronpu.quantize.running import Row, float_run, float_values
from micronpu.quantize.writer import GraphWriter


def correct(
    prepared: Mapping[str, GraphModule],
    rows: Mapping[str, Sequence[Row]],
    corrections: Corrections,
    statistics: FloatStatistics | None = None,
) -> None:
    """Apply the corrections of weights that need data to calibrated methods, in place."""
    if not (corrections.bias_correction or corrections.adaptive_rounding):
        return
    layers = {name: list(_layers(module)) for name, module in prepared.items()}
    statistics = FloatStatistics() if statistics is None else statistics
    with torch.no_grad():
        operands = _operands(prepared, rows, layers, corrections.adaptive_rounding, statistics)
        for name, module in prepared.items():
            for layer, observer in layers[name]:
                _correct_layer(module, layer, observer, operands[name, layer.name], corrections)
            module.recompile()


def _operands(
    prepared: Mapping[str, GraphModule],
    rows: Mapping[str, Sequence[Row]],
    layers: Mapping[str, Sequence[tuple[Node, object]]],
    with_moments: bool,
    statistics: FloatStatistics,
) -> dict[tuple[str, str], Statistics]:
    """Return the statistics of layers' operands, by method and name of the layer."""
    # Layers of several methods with the same weight have one statistics, so that the weight stays the same.
    found: dict[tuple[str, str], Statistics] = {}
    of_weight: dict[tuple[str, int], Statistics] = {}
    for name, module in prepared.items():
        own, seen = [layer for layer, _ in layers[name]], Counter[str]()
        new = list[tuple[Node, Any, torch.Tensor]]()
        count = _rows_wanted(module, own)
        some = rows[name][:: max(1, len(rows[name]) // count)][:count]
        run = float_run(runnable(module, rows[name]))
        last = float_values(run, some[-1]) if some and own else {}
        for layer in own:
            seen[digest := of_tensors([weight := _weight(module, layer)])] += 1
            # Weights are others where a rewrite has moved a factor into them; what they read is the same.
            form = tuple(weight.shape), repr([a for a in layer.args[1:] if not isinstance(a, Node)])
            key = (name, layer.name, form, len(some), with_moments)
            marks = _marks(last.get(source_of(module, layer.all_input_nodes[0]).name))
            known = (one for other, one in statistics.get(key, ()) if _are_alike(other, marks))
            if (one := next(known, None)) is None:
                one = Statistics(layer, weight.shape, with_moments)
                new.append((layer, key, marks))
            found[name, layer.name] = of_weight.setdefault((digest, seen[digest]), one)
        for row in some if new else ():
            values = last if row is some[-1] else float_values(run, row)
            for layer, _, _ in new:
                found[name, layer.name].add(values[source_of(module, layer.all_input_nodes[0]).name])
        for layer, key, marks in new if len(prepared) == 1 else ():
            statistics["bytes"] = statistics.get("bytes", 0) + found[name, layer.name].bytes
            if statistics["bytes"] <= at.KEPT_MOMENTS:
                statistics.setdefault(key, []).append((marks, found[name, layer.name]))
    return found


def _marks(value: object) -> torch.Tensor:
    """Return size, two sums, ends and norm, which differ for another value of the same name."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return torch.full((6,), math.nan)
    x = value.double().flatten()
    turned = torch.arange(len(x), dtype=torch.float64).sin_()
    return torch.stack([torch.tensor(len(x)).double(), x.sum(), x @ turned, *torch.aminmax(x), x.norm()])


def _are_alike(marks: torch.Tensor, others: torch.Tensor) -> bool:
    """Return True if two values are the same, but for roundings of other rewrites."""
    reach = at.SAME_VALUES * marks[-1] * torch.stack([marks[0] * 0, *[marks[0].sqrt()] * 2, *torch.ones(3)])
    return bool(((marks - others).abs() <= reach).all())


def _correct_layer(
    prepared: GraphModule, layer: Node, observer: Any, operand: Statistics, corrections: Corrections
) -> None:
    weight, most = _weight(prepared, layer), int(observer.quant_max)
    scale = _scale(observer, weight)
    rounded = torch.clamp(torch.round(weight / scale), -most, most) * scale
    if corrections.adaptive_rounding and operand.has_moments:
        rounded = operand.rounded(weight, scale, most)
        set_attribute(prepared, source_of(prepared, layer.all_input_nodes[1]), rounded)
    if corrections.bias_correction:
        _correct_bias(prepared, layer, operand.mean_of(rounded - weight))


def _layers(prepared: GraphModule) -> Iterator[tuple[Node, torch.nn.Module]]:
    """Yield layers with quantized weights that no other layer shares, and the weights' observers."""
    for node in calls(prepared, *facts.LAYERS):
        watched = node.args[1]
        observer = observer_of(prepared, watched)
        if not isinstance(watched, Node) or observer is None:
            continue
        source = watched.args[0]
        alone = isinstance(source, Node) and source.op == "get_attr" and len(source.users) == len(watched.users) == 1
        if alone and attribute(prepared, source) is not None:
            yield node, observer


def _rows_wanted(prepared: GraphModule, layers: Sequence[Node]) -> int:
    """Return the number of samples that suffices for the second moments of the layers' operands."""
    # A linear layer has one position in each sample: 32 positions are too few for the moments of 200 values.
    wanted, macs = at.ENOUGH_SAMPLES, 0
    for layer in layers:
        weight, result = _weight(prepared, layer), layer.meta.get("val")
        if isinstance(result, torch.Tensor):
            positions, taps = result.numel() // len(weight), weight[0].numel()
            macs += positions * weight.numel()
            if taps <= at.WIDEST:
                wanted = max(wanted, -(-at.ENOUGH_POSITIONS * taps // min(positions, at.MOST_POSITIONS)))
    return max(at.ENOUGH_SAMPLES, min(wanted, at.CORRECTION_WORK // max(macs, 1)))


def _weight(prepared: GraphModule, layer: Node) -> torch.Tensor:
    weight = attribute(prepared, source_of(prepared, arguments(layer)["weight"]))
    assert weight is not None
    return weight.detach()


def _scale(observer: Any, weight: torch.Tensor) -> torch.Tensor:
    scale: torch.Tensor = observer.calculate_qparams()[0].to(weight.dtype)
    if scale.numel() == 1:
        return scale.reshape([1] * weight.dim())
    axis = int(observer.ch_axis)
    return scale.reshape([-1 if i == axis else 1 for i in range(weight.dim())])


class Statistics:
    """Mean and second moments of the operand values that are multiplied with an output channel's weights.

    Those of a long window that moves by one follow from its first place: of products of the values x[t + i] and
    x[t + j] in P positions t,

        moments[i + 1, j + 1] = moments[i, j] + x[P + i] x[P + j] - x[i] x[j]
    """

    def __init__(self, layer: Node, shape: Sequence[int], with_moments: bool) -> None:
        self._taps = [int(s) for s in shape[2:]]
        self._given = arguments(layer)
        self._name = overload_name(layer)
        self._with_moments = with_moments
        self._total: torch.Tensor | None = None
        self._rows = 0
        self._rounded: list[torch.Tensor] = []  # weights, scales, most and result of the last time
        self._products: torch.Tensor | None = None
        self._first: torch.Tensor | None = None  # [groups, C, C n], of the first place of windows with those of all
        self._ends: list[torch.Tensor] = []  # [2, N, groups, C (n - 1)], the values behind and at their start

    @property
    def has_moments(self) -> bool:
        return self._products is not None or self._first is not None

    @property
    def bytes(self) -> int:
        """Size of what the moments are made of."""
        return sum(own.nbytes for own in (self._products, self._first, *self._ends) if own is not None)

    @property
    def moments(self) -> torch.Tensor | None:
        """[groups, K, K] sums of products, K weights of an output channel, above and in blocks at the diagonal."""
        if self._first is None:
            return self._products
        groups, channels = self._first.shape[:2]
        first = self._first.reshape(groups, channels, channels, -1)
        behind, start = torch.cat(self._ends, 1).transpose(1, 2)  # [groups, N, C (n - 1)]
        more = (behind.mT @ behind - start.mT @ start).reshape(groups, channels, first.shape[3] - 1, channels, -1)
        found = first.new_empty(groups, channels, first.shape[3], channels, first.shape[3])
        found[:, :, 0], found[..., 0] = first, first.permute(0, 2, 3, 1)
        for i in range(more.shape[2]):
            torch.add(found[:, :, i, :, :-1], more[:, :, i], out=found[:, :, i + 1, :, 1:])
        found = found.reshape(groups, self._first.shape[2], -1)
        return found if self._products is None else found.add_(self._products)

    def add(self, x: torch.Tensor) -> None:
        x, windows = self._padded(x.detach())
        groups = int(self._given.get("groups", 1))
        total = _taps(_taps(x, 2, *windows[0]).sum((0, 2), dtype=torch.float64), 1, *windows[1]).sum(1)
        total = total.reshape(groups, -1)  # [groups, K]
        self._total = total if self._total is None else self._total + total
        places = torch.arange(x[:, 0].numel()).reshape(x[:, 0].shape)
        places = _taps(_taps(places, 1, *windows[0]), 2, *windows[1]).flatten(0, 2).flatten(1)  # [positions, taps]
        count = len(places)
        self._rows += count
        if not self._with_moments or total.shape[1] > at.WIDEST:
            return
        every = max(1, count // at.MOST_POSITIONS)
        is_long = min(windows[1][0], positions := count // len(x)) >= at.LONG_WINDOW
        if is_long and x.shape[2] == every == 1 and windows[1][1:] == (1, 1) and total.shape[1] > at.MOMENTS_AT_ONCE:
            self._add_windows(x.reshape(len(x), groups, -1, x.shape[3]).double(), positions)
            return
        places = places[every // 2 :: every]
        some = x.transpose(0, 1).flatten(1)[:, places.flatten()].reshape(groups, -1, *places.shape)
        some = some.transpose(1, 2).flatten(2).double()  # [groups, positions, K]
        turned, each = some.transpose(1, 2), count / len(places)
        if self._products is None:
            self._products = some.new_zeros(groups, total.shape[1], total.shape[1])
        for i in range(0, total.shape[1], at.MOMENTS_AT_ONCE):  # the products below the diagonal are the same
            j = i + at.MOMENTS_AT_ONCE
            self._products[:, i:j, i:].baddbmm_(turned[:, i:j], some[:, :, i:], alpha=each)

    def _add_windows(self, x: torch.Tensor, count: int) -> None:
        """Add the products of the values of windows [N, groups, C, count + n - 1] that move by one."""
        every = x.unfold(3, count, 1).permute(1, 2, 3, 0, 4).flatten(1, 2).flatten(2)  # [groups, C n, N count]
        first = x[..., :count].permute(1, 2, 0, 3).flatten(2) @ every.mT
        self._first = first if self._first is None else self._first + first
        self._ends.append(torch.stack([x[..., count:], x[..., : x.shape[3] - count]]).flatten(3))

    def _padded(self, x: torch.Tensor) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
        """Return an operand as [N, C, H, W] with its padding, and the size, stride and dilation of both windows."""
        if self._name in LINEAR:
            return x.reshape(-1, x.shape[-1], 1, 1), [(1, 1, 1)] * 2
        given, shape = self._given, self._taps
        x = x.reshape(-1, *x.shape[-1 - len(shape) :])  # some have no axis N
        stride, dilation = (one_each(given[k], len(shape)) for k in ("stride", "dilation"))
        if isinstance(given["padding"], str):
            reach = [d * (k - 1) for d, k in zip(dilation, shape, strict=True)]
            sides = [(r // 2, r - r // 2) if given["padding"] == "same" else (0, 0) for r in reach]
        else:
            sides = [(p, p) for p in one_each(given["padding"], len(shape))]
        windows = list(zip(shape, stride, dilation, strict=True))
        if self._name not in CONVOLUTIONS_2D:
            x, windows, sides = x.unsqueeze(2), [(1, 1, 1), *windows], [(0, 0), *sides]
        return torch.nn.functional.pad(x, [side for pair in reversed(sides) for side in pair]), windows

    def mean_of(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the mean result of each output channel with other weights [O, ...] and no bias."""
        assert self._total is not None
        groups = len(self._total)
        rows = weights.double().reshape(groups, -1, self._total.shape[1])
        return (rows @ (self._total / self._rows)[:, :, None]).reshape(-1)

    def rounded(self, weight: torch.Tensor, scale: torch.Tensor, most: int) -> torch.Tensor:
        """Return quantized weights with a small squared error of the result."""
        given = [weight, scale.clone(), torch.tensor(most)]
        if self._rounded and all(map(torch.equal, self._rounded, given)):
            return self._rounded[-1].clone()
        every = self.moments
        assert every is not None
        steps, rows = (of.reshape(len(every), -1, every.shape[1]) for of in (scale.expand_as(weight), weight))
        found = []
        for row, step, own in zip(rows, steps, every, strict=True):
            moments = own.triu().add_(own.triu(1).T).div_(self._rows)
            found.append(adaptive_rounding(row, step[:, :1], moments, most, self._rows))
        result = torch.stack(found).reshape(weight.shape)
        self._rounded = [*given, result.clone()]
        return result


def _taps(x: torch.Tensor, axis: int, size: int, stride: int, dilation: int) -> torch.Tensor:
    """Return the windows along an axis, a view whose new last axis is the position in the window."""
    return x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]


def _correct_bias(prepared: GraphModule, layer: Node, error: torch.Tensor) -> None:
    """Subtract a mean error [O] from the bias, which is added if the layer has none."""
    bias = arguments(layer).get("bias")
    value = attribute(prepared, bias) if bias is not None else torch.zeros_like(error, dtype=torch.float32)
    if value is None:
        return  # computed from something else
    corrected = (value.detach().double() - error).to(value.dtype)
    set_parameters(layer, bias=add_constant(prepared, layer, corrected, "corrected_bias"))


# ---------------------------------------------------------------- adaptive rounding


def adaptive_rounding(
    weights: torch.Tensor, step: torch.Tensor, moments: torch.Tensor, most: int, samples: int
) -> torch.Tensor:
    """Round weights [O, K] to multiples of ``step`` [O, 1], up or down; zeros stay zero.

    AdaRound (Nagel et al., 2020) minimises the squared error of a layer's result over all roundings of its weights to
    one of their two neighbours. With the second moments M of the layer's operands that is, for each output channel,

        error(e) = e M e^T,     e = rounded weights - weights

    AdaRound relaxes the choice and trains it. Here the weight with the largest gain is moved to its other neighbour,
    repeatedly, until none gains: the same objective, in a second, and reproducible.

    Args:
        moments: [K, K], mean products of the values that are multiplied with the weights.
        most: the largest magnitude of the integers.
        samples: number of samples in the moments; moments of few samples count less.
    """
    weights, step = weights.double(), step.double()
    size = weights.shape[1]
    trust = samples / (samples + size)
    diagonal = moments.diagonal().double()
    moments = moments.double() * trust
    moments.diagonal().add_((1 - trust) * diagonal)
    ratio = weights / step
    low = torch.floor(ratio).clamp(-most, most - 1)
    current = torch.round(ratio).clamp(-most, most)
    active = torch.arange(len(weights))
    error = current * step - weights
    slope = error @ moments
    # The distance of the other neighbour of each weight, and what a move costs wherever the slope is 0.  A zero may
    # belong to a sparsity pattern of the NPU, which another weight would break.
    move = torch.where(current > low, -1.0, 1.0) * step
    costs = (move * move * diagonal).masked_fill((ratio.abs() > most) | (weights == 0), math.inf)
    for _ in range(2 * size):
        gain, place = torch.addcmul(costs, move, slope, value=2).min(1)
        going = gain < -at.NO_GAIN * (1e-30 + torch.linalg.vecdot(error, slope).abs())
        if not bool(going.all()):
            if not bool(going.any()):
                break
            active, place, move, costs = active[going], place[going], move[going], costs[going]
            error, slope = error[going], slope[going]
        places = place[:, None]
        moved = move.gather(1, places)
        current[active, place] += torch.sign(moved[:, 0])
        error.scatter_add_(1, places, moved)
        move.scatter_(1, places, -moved)
        slope.addcmul_(moved, moments[place])
    return (current * step).float()


# ---------------------------------------------------------------- cross-layer equalization


@dataclass
class _Pair:
    """Two successive layers, and the batch norm after the first if it is not folded."""

    first: Node
    norm: Node | None
    second: Node


def equalize(model: GraphModule) -> int:
    """Equalize all pairs of successive layers, in place; return their number.

    Weights that another layer reads as well, and values that have a second reader, are not changed. Weights get new
    tensors: those of the exported model stay.
    """
    pairs = findings(model, lambda node: _pair(model, node)).values()
    for _ in range(at.EQUALIZE_ROUNDS):
        # A depthwise layer is in two pairs, so that the ranges converge after some rounds.
        if max((_apply(model, pair) for pair in pairs), default=0.0) < at.EQUALIZED:
            break
    return len(pairs)


def _pair(model: GraphModule, second: Node) -> _Pair | None:
    if not _is_layer(model, second):
        return None
    source: object = arguments(second).get("input")
    norm = None
    while isinstance(source, Node) and len(source.users) == 1 and source.op == "call_function":
        name = overload_name(source)
        if _is_layer(model, source):
            columns = _weight(model, second).shape[_input_axis(second)]
            return _Pair(source, norm, second) if len(_weight(model, source)) == columns else None
        if name in BATCH_NORMS and norm is None and not arguments(source).get("training"):
            norm = source
            constants = [arguments(source).get(k) for k in ("weight", "bias")]
            if any(not isinstance(c, Node) or c.op != "get_attr" or len(c.users) != 1 for c in constants):
                return None
            source = arguments(source)["input"]
        elif facts_of(name).by_channel and norm is None:
            source = source.args[0]
        else:
            return None
    return None


def _is_layer(model: GraphModule, node: Node) -> bool:
    if overload_name(node) not in facts.LAYERS:
        return False
    given = arguments(node)
    tensors = [given["weight"], given.get("bias")]
    if any(t is not None and (attribute(model, t) is None or len(t.users) != 1) for t in tensors):
        return False
    groups = given.get("groups", 1)
    weight = attribute(model, given["weight"])
    # Groups only if depthwise: otherwise a column belongs to another channel in every group.
    return weight is not None and (groups == 1 or (weight.shape[1] == 1 and groups == weight.shape[0]))


def _input_axis(layer: Node) -> int:
    """Return the axis of a layer's weights that has its input channels; 0 for a depthwise one."""
    return 0 if arguments(layer).get("groups", 1) > 1 else 1


def _factor(model: GraphModule, pair: _Pair) -> torch.Tensor:
    """Return the factor of each channel in the batch norm between the layers."""
    if pair.norm is None:
        return torch.ones(1)
    given = arguments(pair.norm)
    gamma, variance = (attribute(model, given[k]) for k in ("weight", "running_var"))
    assert gamma is not None and variance is not None
    factor: torch.Tensor = gamma.detach().double().abs() * (variance.detach().double() + given["eps"]).rsqrt()
    return factor


def _apply(model: GraphModule, pair: _Pair) -> float:
    """Apply one iteration; return the largest change of a range, as the logarithm of its factor."""
    # It uses float64: the last bits of a float32 square root vary between machines.
    first, second = _weight(model, pair.first).double(), _weight(model, pair.second).double()
    rows = first.reshape(len(first), -1).abs().amax(1) * _factor(model, pair)
    axis = _input_axis(pair.second)
    columns = second.transpose(0, axis).reshape(second.shape[axis], -1).abs().amax(1)
    alive = (rows > at.DEAD_CHANNEL * rows.max()) & (columns > at.DEAD_CHANNEL * columns.max())
    factor = torch.where(alive, (rows / columns.clamp(min=1e-30)).sqrt(), torch.ones_like(rows))
    factor = factor.clamp(1 / at.MOST_EQUALIZED, at.MOST_EQUALIZED)
    if pair.norm is None:
        _multiply(model, arguments(pair.first)["weight"], 1 / factor, 0)
        _multiply(model, arguments(pair.first).get("bias"), 1 / factor, 0)
    else:
        for name in ("weight", "bias"):
            _multiply(model, arguments(pair.norm)[name], 1 / factor, 0)
    _multiply(model, arguments(pair.second)["weight"], factor, axis)
    return float(factor.log().abs().max())


def _multiply(model: GraphModule, node: Any, factor: torch.Tensor, axis: int) -> None:
    value = attribute(model, node)
    if value is None:
        return
    shape = [-1 if i == axis else 1 for i in range(value.dim())]
    set_attribute(model, node, value.detach() * factor.reshape(shape).to(value.dtype))


def write_first_layers(module: GraphModule, sequences: Sequence[Sequence[Row]], settings: QuantizationSettings) -> None:
    """Equalize layers that alone read an input of unequal features in calibration data, in place; see above."""
    rows = [row for sequence in sequences for row in sequence]
    rows = rows[:: max(1, len(rows) // at.FEATURE_ROWS)][: at.FEATURE_ROWS]
    for number, x in enumerate(module.graph.find_nodes(op="placeholder")[: len(rows[0]) if rows else 0]):
        layer = next(iter(x.users), x)
        name = overload_name(layer) if is_float32(x) and len(x.users) == 1 and layer.args[:1] == (x,) else ""
        nodes = facts.matrices_of(name, arguments(layer)) if name else []
        matrices = [m.detach().double() for node in nodes if (m := attribute(module, node)) is not None]
        config, is_whole = settings.default, len(matrices) == len(nodes) > 0 and x.meta["val"].numel() > 0
        if not is_whole or config is None or settings.of(layer) != config:
            continue
        samples = torch.cat([row[number].detach().double().reshape(-1, matrices[0].shape[1]) for row in rows])
        samples = samples[:: -(-len(samples) // at.FEATURE_SAMPLES)]  # [n, K]
        factors = _factors(torch.cat(matrices), samples)
        plain, scaled = (_loss(torch.cat(matrices), samples, f, config) for f in (torch.ones_like(factors), factors))
        if plain > 10 ** (-at.FEATURE_LOST / 10) and plain > at.FEATURE_GAIN * scaled:
            _write_first(module, layer, dict(zip(nodes, matrices, strict=True)), factors, config)


def _factors(weights: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """Return the factors of features that make these, and columns of weights, equally unequal."""
    columns, sizes = weights.abs().amax(0), samples.square().mean(0).sqrt()
    alive = (columns > at.DEAD_CHANNEL * columns.max()) & (sizes > at.DEAD_CHANNEL * sizes.max())
    exponents = torch.where(alive, (columns / sizes).log2() / 2, math.inf)
    # Halves are frequent, and must be rounded alike on all machines.
    exponents = (exponents - exponents.min() + at.HALVES_DOWN).floor().clamp(max=at.MOST_EXPONENT)
    most = (columns * torch.exp2(-exponents) * alive).max()  # which a feature that was always 0 must not exceed
    return torch.exp2(torch.where(alive, exponents, (columns / most).log2().ceil().clamp(0, at.MOST_EXPONENT)))


def _loss(weights: torch.Tensor, samples: torch.Tensor, factors: torch.Tensor, config: QuantizationConfig) -> float:
    """Return the mean over rows of weights of the noise by rounding them and the features, over the row's signal."""
    weights, samples = weights / factors, samples * factors
    signal = (samples @ weights.T).var(0, correction=0)
    step = weights.abs().amax(1 if config.per_channel else (0, 1)) / (2 ** (config.weight_bits - 1) - 1)
    own = float(samples.abs().max()) / 128 / (128 if config.activations == "int16" else 1)  # of which int16 uses half
    noise = step.square() * samples.square().mean(0).sum() + own**2 * weights.square().sum(1)
    return float((noise / 12 / signal)[signal > 0].clamp(max=1.0).mean())


def _write_first(
    module: GraphModule, layer: Node, known: dict[Any, torch.Tensor], factors: torch.Tensor, config: QuantizationConfig
) -> None:
    """Multiply features by factors in float and divide weights by them; in int16 write two parts if that is cheap."""
    write, x = GraphWriter(module, layer, Capabilities(), {}), layer.args[0]
    IN_FLOAT.say(made := write("mul.Tensor", x, write.constant(factors.float().numpy())), True)
    work = math.prod(value_of(made).shape[:-1]) * sum(weight.numel() for weight in known.values())
    is_cheap = work <= at.MOST_ADDED_WORK * multiply_accumulates(module)
    has_parts = is_cheap and config.activations == "int16" and config.weight_bits == 8 and config.per_channel
    if has_parts:
        made = write("cat.default", [made, write("mul.Tensor", made, write.constant(1 / at.SECOND_PART))], -1)
    new: dict[Any, Node] = {x: made}
    for node, weight in known.items():
        weight = weight / factors
        step = weight.abs().amax(1, keepdim=True).clamp(min=at.ACTIVATION_EPS["int8"]) / 127
        first = ((weight / step).round() * step).float().double() if has_parts else weight
        parts = [first, at.SECOND_PART * (weight - first)][: 1 + has_parts]
        new[node] = write.constant(torch.cat(parts, 1).float().numpy())
    layer.args = map_arg(layer.args, lambda node: new.get(node, node))
