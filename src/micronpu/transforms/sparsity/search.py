"""Search for a sparse network, starting at the dense one.

Layers are chosen by their gain and their harm. The network becomes sparse in a few steps, starting with the layers of
the highest gain for the least harm; in each step the remaining weights (`second_order`) and the following layers
(`refit`) compensate for the removed weights, and then the network is trained to reproduce its outputs (`distill`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from micronpu.base.errors import ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.frontend.graphs import GraphModule, by_name, nodes_where
from micronpu.frontend.tensors import copied
from micronpu.partition.device import Device
from micronpu.quantize.float64 import as_learner, learner
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.report.shown import Shown
from micronpu.report.sparsity import SparseLayer, SparsePoint, SparsityReport
from micronpu.transforms.sparsity.distill import distill
from micronpu.transforms.sparsity.judge import Judge, Score, SparsePrice, integers, nearest, price
from micronpu.transforms.sparsity.layers import (
    FloatNetwork,
    Moments,
    PrunableLayer,
    Row,
    batches,
    find_layers,
    masks_of,
    pattern_kept,
    stateless,
    tensor_of,
)
from micronpu.transforms.sparsity.options import SparsityOptions, choose, cycles_wanted, is_enough, least_harm
from micronpu.transforms.sparsity.second_order import can_be_fitted, pruned, refit

ProgressCallback = Callable[[str, float], None]

_LEAST_ROWS = 8
_FEW_KEPT = 20
"""Number of held-out samples below which one sample is a large part of the agreement."""
_SLACK = 0.005
"""Fraction of the cycles that is negligible."""
_TRIES = 3
"""Number of attempts to choose layers, each priced as a whole network."""
_RANGE_ROWS = 50
"""Number of samples for the ranges during the search."""
_JUDGED_ALONE = 100
"""Number of samples for fitting and comparing single layers."""


@dataclass(frozen=True)
class _Stop:
    """An intermediate network of the search: its tensors, its cost and accuracy, and its cost by layer."""

    state: dict[str, Tensor]
    point: SparsePoint
    price: SparsePrice


@dataclass(repr=False)
class Sparsified(Shown):
    """A sparse network.

    Attributes:
        model: the float network with sparse weights and folded batch norms, for any batch size if the model accepts
            any; pass it to `micronpu.compile` like the model. States are its last inputs and its last outputs.
        report: the result for every layer, and the intermediate points.
        masks: weights to keep, by name of the model's tensor.
    """

    model: GraphModule
    report: SparsityReport
    masks: dict[str, Tensor]
    _states: list[dict[str, Tensor]] = field(default_factory=list, repr=False)
    _rows: list[tuple[SparseLayer, ...]] = field(default_factory=list, repr=False)
    _layers: list[PrunableLayer] = field(default_factory=list, repr=False)

    @property
    def quantization(self) -> dict[str, bool]:
        """The corrections that gave the most accurate integer network, for `micronpu.compile`."""
        return dict.fromkeys(self.report.point.corrections, True)

    def at(self, point: int) -> Sparsified:
        """Return the network at another point of the report.

        Raises:
            OptionError: there is no such point.
        """
        if isinstance(point, bool) or not isinstance(point, int) or not 0 <= point < len(self._states):
            raise OptionError(f"There is no point {point!r}.", hint=f"a number from 0 to {len(self._states) - 1}")
        model = copied(self.model)
        model.load_state_dict(self._states[point])
        names = set(self.report.points[point].layers)
        own = [layer for layer in self._layers if layer.title in names]
        report = replace(self.report, chosen=point, layers=self._rows[point])
        return Sparsified(model, report, masks_of(model, own), self._states, self._rows, self._layers)

    def keeping_pattern(self) -> AbstractContextManager[None]:
        """Keep the zeros while the model is trained within the context."""
        return pattern_kept(self.model, self.masks)

    def __rich__(self) -> Any:
        return self.report.__rich__()

    def __str__(self) -> str:
        return str(self.report)


def sparsified(
    network: FloatNetwork,
    device: Device,
    quantizer: StaticQuantizer,
    options: SparsityOptions,
    score: Score | None = None,
    callback: ProgressCallback | None = None,
) -> Sparsified:
    """`sparsify` for a network, which is modified in place."""
    with quiet(), stateless(network.model, network.states) as results:
        return _SparsitySearch(network, device, quantizer, options, score, callback, results).done()


def as_callback(progress: Callable[[float], None]) -> ProgressCallback:
    """Return a progress callback that reports the completed fraction of the whole."""
    begins = {"price": 0.0, "sensitivity": 0.15, "distill": 0.2}
    ends = {"price": 0.15, "sensitivity": 0.2, "distill": 1.0}
    return lambda name, part: progress(begins[name] + part * (ends[name] - begins[name]))


Progress = Callable[[float], None]


def _check_count(rows: int, columns: int) -> None:
    if rows < _LEAST_ROWS:
        raise ModelError(
            f"There {'is' if rows == 1 else 'are'} {rows} calibration input{'' if rows == 1 else 's'}; to choose "
            f"weights takes {_LEAST_ROWS} at the very least, and as many inputs of a layer as it has columns, up to "
            f"{columns:,} here.",
            hint="some hundred typical inputs, without labels",
        )


def _check_share(max_loss: float | None) -> None:
    if max_loss is not None and max_loss > 1:
        raise OptionError(
            f"`max_loss` is {max_loss:g}; without `score` it is the share of the held-out inputs that may get another "
            "answer, 0 to 1.",
            hint="max_loss=0.01 for one in a hundred",
        )


class _SparsitySearch:
    def __init__(
        self,
        network: FloatNetwork,
        device: Device,
        quantizer: StaticQuantizer,
        options: SparsityOptions,
        score: Score | None,
        callback: ProgressCallback | None,
        states: int = 0,
    ) -> None:
        model, rows = network.model, network.rows
        self.layers, self.left = find_layers(model)
        if not device.dense_only:
            _check_count(len(rows), max((layer.columns for layer in self.layers), default=0))
        if score is None:
            _check_share(options.max_loss)
        self.model, self.examples, self.device = model, network.examples, device.unverified()
        self.options, self.quantizer = options, quantizer
        every = round(1 / options.held_back) if options.held_back else 0
        self.kept = list(rows[::every]) if every else list(rows)
        self.rows = [r for i, r in enumerate(rows) if i % every] if every else list(rows)
        self.twin, self.teacher = learner(model, rows), learner(model, rows)
        self.wide_rows = [as_learner(self.twin, row) for row in self.rows]
        self.judge, self.states = Judge(copied(model), self.kept, score, states), states
        self.notify = callback or (lambda name, part: None)
        self.notes: list[str] = []
        self.why: dict[str, str] = {}
        if states:
            self.notes.append(
                "The model keeps a state from call to call: each call was compared alone, with the state of the "
                "float network."
            )
        if len(self.kept) < _FEW_KEPT and not device.dense_only:
            self.notes.append(
                f"Points were judged with only {len(self.kept)} held-out inputs, each of which is "
                f"{1 / len(self.kept):.0%} of the agreement."
            )
        self._check_names()
        self.given = [layer for layer in self.layers if layer.is_sparse(model)]
        if self.given:
            count = len(self.given)
            self.notes.append(
                f"{count} layer{'' if count == 1 else 's'} of the network came with two zeros in every four weights, "
                "which stay as they are."
            )

    def _check_names(self) -> None:
        known = [n for layer in self.layers for n in (layer.title, layer.name)]
        known += [n for left in self.left for n in (left.title, left.name)]
        for name in self.options.dense:
            if name not in known:
                raise OptionError(
                    f"`dense` names {name!r}, and there is no such layer with weights.",
                    hint=f"one of {', '.join(dict.fromkeys(layer.title for layer in self.layers))}",
                )

    def _notifier(self, step: str, number: int, count: int, begin: float = 0.0, share: float = 1.0) -> Progress:
        """Report progress for one of a step's equal pieces."""
        return lambda part: self.notify(step, (number + begin + share * part) / count)

    # -- prices

    def price(self) -> SparsePrice:
        """Cost of the current network, without corrections, which do not change cycles."""
        return self._priced(integers(self.model, self.rows[:_RANGE_ROWS], self.quantizer))

    def _priced(self, quantized: GraphModule) -> SparsePrice:
        return price(quantized, self.examples, [*self.layers, *self.left], self.device)

    def stop(self, layers: Sequence[PrunableLayer], progress: Progress) -> _Stop:
        """Quantize the current network as well as possible, compile it and evaluate it."""
        tries = self.options.corrections and not self.device.dense_only
        rows = self.rows[:_RANGE_ROWS]
        made = nearest(self.model, rows, self.quantizer, self.judge, tries, lambda part: progress(0.8 * part))
        cost, judged = self._priced(made.network), made.judgement
        titles = tuple(layer.title for layer in layers)
        point = SparsePoint(titles, cost.cycles, cost.bytes, judged.agreement, judged.loss, made.corrections)
        progress(1.0)
        return _Stop(self.state(), point, cost)

    # -- weights

    def pruned_alone(
        self, layers: Sequence[PrunableLayer], moments: Moments, progress: Progress = lambda part: None
    ) -> dict[str, Tensor]:
        """The weights of layers, each pruned independently, by tensor name."""
        found = {}
        matrices = [m for layer in layers for m in layer.matrices]
        with torch.no_grad():
            for number, m in enumerate(matrices):
                rows = m.rows(tensor_of(self.model, m.attribute))
                made = pruned(rows, moments.mean(m.attribute), m.groups, damping=self.options.damping)
                found[m.attribute] = m.weights(made)
                progress((number + 1) / len(matrices))
        return found

    def put(self, layers: Sequence[PrunableLayer], weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for m in (m for layer in layers for m in layer.matrices):
                tensor_of(self.model, m.attribute).copy_(weights[m.attribute])

    def make_sparse(
        self,
        layers: Sequence[PrunableLayer],
        before: Sequence[PrunableLayer],
        rows: Sequence[Row],
        alone: Mapping[str, Tensor],
        progress: Progress,
    ) -> None:
        """Make layers sparse, and fit them and the following ones to the dense network's results.

        Args:
            before: those that are sparse already.
            alone: weights of layers that cannot be fitted.
        """
        self.put([layer for layer in layers if not can_be_fitted(self.model, layer)], alone)
        damping = self.options.damping
        with self.learning() as model:
            refit(model, self.teacher, self.layers, before, layers, rows, damping=damping, progress=progress)

    def moments(self, layers: Sequence[PrunableLayer], progress: Progress = lambda part: None) -> Moments:
        def notified() -> Iterator[Row]:
            rows = list(batches(self.twin, self.wide_rows))
            for number, row in enumerate(rows):
                yield row
                progress((number + 1) / len(rows))

        with self.learning() as model:
            return Moments(model, layers, len(self.rows)).collect(notified())

    @contextmanager
    def learning(self) -> Iterator[GraphModule]:
        """The network in double precision; its weights are copied back at the end of the context."""
        self.twin.load_state_dict(self.model.state_dict())
        yield self.twin
        self.model.load_state_dict(self.twin.state_dict())

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    # -- search

    def done(self) -> Sparsified:
        self.notify("price", 0.0)
        stops = [self.stop(self.given, lambda part: self.notify("price", 0.5 * part))]
        start, dense = stops[0].state, stops[0].price
        self.notify("price", 0.5)
        candidates = self._possible()
        moments = self.moments(candidates, lambda part: self.notify("price", 0.5 + 0.2 * part))
        candidates = self._enough(candidates, moments)
        alone, sparse = self._all_sparse(candidates, moments, lambda part: self.notify("price", 0.7 + 0.2 * part))
        self.notify("price", 1.0)
        if self.device.dense_only:
            self._say_bytes(dense, sparse)
            self.why = {layer.name: "zeros save no product on this target" for layer in self.layers}
            return self._result(stops, 0, sparse, {})
        gaining = self._gaining(candidates, dense, sparse)
        self.model.load_state_dict(start)
        errors = self._sensitivities(gaining, alone, start)
        gains = {layer.name: dense.by_layer[layer.name] - sparse.by_layer[layer.name] for layer in gaining}
        needed = self._needed(gaining, gains, errors, alone, stops[0])
        chosen = list(self.given)
        stages = self._stages(needed, gains, errors)
        for number, stage in enumerate(stages):
            if number:
                unfitted = [layer for layer in stage if not can_be_fitted(self.model, layer)]
                alone = self.pruned_alone(unfitted, self.moments(unfitted)) if unfitted else {}
            self.make_sparse(
                stage, chosen, self.wide_rows, alone, self._notifier("distill", number, len(stages), 0.0, 0.5)
            )
            chosen += stage
            # Later layers do more harm.
            steps = 2 * self.options.steps * (number + 1) // (len(stages) * (len(stages) + 1))
            self._learn(chosen, steps, number, len(stages))
            stops.append(self.stop(chosen, self._notifier("distill", number, len(stages), 0.9, 0.1)))
            if is_enough(self.options, [stop.point for stop in stops]):
                break
        best, note = choose(self.options, [stop.point for stop in stops])
        self.notes += [note] if note else []
        return self._result(stops, best, sparse, errors)

    def _possible(self) -> list[PrunableLayer]:
        dense = [layer for layer in self.layers if not {layer.title, layer.name}.isdisjoint(self.options.dense)]
        self.why |= {layer.name: "named in `dense`" for layer in dense}
        return [layer for layer in self.layers if layer not in dense and layer not in self.given]

    def _enough(self, layers: Sequence[PrunableLayer], moments: Moments) -> list[PrunableLayer]:
        found = []
        for layer in layers:
            few = [m for m in layer.matrices if moments.samples[m.attribute] < self.options.least_samples * m.columns]
            if few:
                seen, columns = moments.samples[few[0].attribute], few[0].columns
                self.why[layer.name] = f"the second order of {columns:,} columns needs as many inputs, and saw {seen:,}"
            else:
                found.append(layer)
        if layers and not found and not self.device.dense_only:
            raise ModelError(
                f"{len(self.rows)} calibration inputs are too few: the second order of `{layers[0].title}` needs as "
                f"many inputs of the layer as it has columns, {layers[0].columns:,}, and saw "
                f"{moments.samples[layers[0].matrices[0].attribute]:,}.",
                hint="more typical inputs, without labels",
            )
        return found

    def _all_sparse(
        self, layers: Sequence[PrunableLayer], moments: Moments, progress: Progress = lambda part: None
    ) -> tuple[dict[str, Tensor], SparsePrice]:
        """The weights of independently pruned layers, and the cost of the network with all of them."""
        alone = self.pruned_alone(layers, moments, progress)
        self.put(layers, alone)
        return alone, self.price()

    def _gaining(self, layers: Sequence[PrunableLayer], dense: SparsePrice, sparse: SparsePrice) -> list[PrunableLayer]:
        """Layers that take fewer cycles when they are sparse."""
        found = []
        for layer in layers:
            before, after = dense.by_layer[layer.name], sparse.by_layer[layer.name]
            if layer.name not in sparse.sparse:
                self.why[layer.name] = "the NPU's compiler does not store its weights sparse"
                if not before:
                    self.why[layer.name] = "it does not run on the NPU"
            elif before - after < max(self.options.least_gain * before, 1):
                self.why[layer.name] = (
                    f"sparse it takes {after:,} cycles: it waits for its inputs or its results, not for products"
                )
            else:
                found.append(layer)
        if not found:
            self.notes.append(f"No layer takes fewer cycles of {self.device.target} when it is sparse.")
        return found

    def _sensitivities(
        self, layers: Sequence[PrunableLayer], alone: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Loss of the outputs with only one layer sparse and the following ones fitted; see `Judge.harm`."""
        few = len(self.kept) > _JUDGED_ALONE
        kept = [as_learner(self.twin, row) for row in self.kept[: _JUDGED_ALONE if few else None]]
        judge = Judge(self.teacher, kept, None, self.states)
        rows = self.wide_rows[:: -(-len(self.rows) // _JUDGED_ALONE)]
        found = {}
        for number, layer in enumerate(layers):
            self.make_sparse([layer], self.given, rows, alone, self._notifier("sensitivity", number, len(layers)))
            with self.learning() as model:
                found[layer.name] = judge.harm(model)
            self.model.load_state_dict(dict(start))
        return found

    def _needed(
        self,
        layers: Sequence[PrunableLayer],
        gains: Mapping[str, int],
        errors: Mapping[str, float],
        alone: Mapping[str, Tensor],
        dense: _Stop,
    ) -> list[PrunableLayer]:
        """Layers with the least harm that reach the requested cycles, or all."""
        limit = cycles_wanted(self.options, dense.price.cycles)
        if limit is None or self.options.max_loss is not None:
            return list(layers)
        missing, chosen = dense.price.cycles - limit, list(layers)
        for _ in range(_TRIES):
            picked = least_harm([gains[n.name] for n in layers], [errors[n.name] for n in layers], missing)
            chosen = [layers[i] for i in picked]
            if len(chosen) == len(layers):
                break
            # The cycles of the whole may differ from the sum of its layers.
            self.put(chosen, alone)
            above = self.price().cycles - limit
            self.model.load_state_dict(dense.state)
            if above <= 0:
                break
            missing += above
        for layer in layers:
            if layer not in chosen:
                self.why[layer.name] = "not needed for the requested cycles"
        return chosen

    def _stages(
        self, layers: Sequence[PrunableLayer], gains: Mapping[str, int], errors: Mapping[str, float]
    ) -> list[list[PrunableLayer]]:
        """Layers in the order in which they become sparse, in steps of about equal gain."""
        # The order of the program decides ties.
        order = sorted(layers, key=lambda layer: -gains[layer.name] / max(errors[layer.name], 1e-9))
        total, sofar = sum(gains[layer.name] for layer in order), 0
        stages: list[list[PrunableLayer]] = [[] for _ in range(self.options.points)]
        for layer in order:
            middle = sofar + gains[layer.name] / 2
            sofar += gains[layer.name]
            stages[min(int(middle * self.options.points / total), self.options.points - 1)].append(layer)
        return [stage for stage in stages if stage]

    def _learn(self, layers: Sequence[PrunableLayer], steps: int, number: int, count: int) -> None:
        if not steps:
            return
        # The dense network is the teacher for the outputs and for the products of weights.
        products = {name for layer in self.layers for name in layer.nodes} | {layer.name for layer in self.left}
        nodes = nodes_where(self.model, lambda n: n.name in products and isinstance(n.meta.get("val"), Tensor))
        distilled = [node.name for node in nodes]
        with self.learning() as model:
            distill(
                model,
                self.teacher,
                self.wide_rows,
                masks_of(model, list(layers)),
                distilled,
                self.states,
                course=replace(self.options, steps=steps, seed=self.options.seed + number),
                progress=self._notifier("distill", number, count, 0.5, 0.4),
            )

    # -- the result

    def _say_bytes(self, dense: SparsePrice, sparse: SparsePrice) -> None:
        text = f"{self.device.dense_only} The network stays as it is"
        if dense.bytes:
            share = 1 - sparse.bytes / dense.bytes
            text += (
                f": with two zeros in every four its weights would take {sparse.bytes:,} bytes instead of "
                f"{dense.bytes:,} ({share:.0%} less), "
            )
            if sparse.cycles < (1 - _SLACK) * dense.cycles:
                text += f"and it {sparse.cycles:,} cycles instead of {dense.cycles:,}, since it waits for weights"
            else:
                text += "in as many cycles"
        self.notes.append(f"{text}.")

    def _result(
        self, stops: Sequence[_Stop], chosen: int, sparse: SparsePrice, errors: Mapping[str, float]
    ) -> Sparsified:
        states, points = [stop.state for stop in stops], tuple(stop.point for stop in stops)
        rows = [self._rows(stop, stops[0].price, sparse, errors) for stop in stops]
        self.model.load_state_dict(states[chosen])
        own = [layer for layer in self.layers if layer.title in points[chosen].layers]
        report = SparsityReport(
            self.device.target, self.options.pattern, rows[chosen], points, chosen, len(self.kept), tuple(self.notes)
        )
        return Sparsified(self.model, report, masks_of(self.model, own), states, rows, self.layers)

    def _rows(
        self, stop: _Stop, dense: SparsePrice, sparse: SparsePrice, errors: Mapping[str, float]
    ) -> tuple[SparseLayer, ...]:
        """The result for every layer of one of the networks, from the compiler's view."""
        rows: dict[str, SparseLayer] = {}
        for layer in self.layers:
            has_pattern = layer.title in stop.point.layers
            # Nodes that a rewrite adds to a dense layer may have enough zeros by chance.
            is_sparse = has_pattern and layer.name in stop.price.sparse
            why = self.why.get(layer.name, "sparse at a later point")
            if layer in self.given:
                why = "came with its zeros" if is_sparse else "came with zeros that the NPU does not skip"
            elif has_pattern:
                why = "" if is_sparse else "the NPU's compiler does not skip its zeros"
            before, after, now = (cost.by_layer[layer.name] for cost in (dense, sparse, stop.price))
            error = errors.get(layer.name, 0.0)
            row = SparseLayer(layer.title, layer.source, layer.shape, is_sparse, before, after, error, why, now)
            rows[layer.name] = row
        for left in self.left:
            before, now = dense.by_layer[left.name], stop.price.by_layer[left.name]
            row = SparseLayer(left.title, left.source, left.shape, False, before, why=left.why, cycles=now)
            rows[left.name] = row
        return tuple(rows[name] for name in by_name(self.model) if name in rows)
