"""Integer networks of a float one: their quantization, their cost on the NPU, and their distance on held-out samples.

Quantization to int8 adds more error to a sparse network than to the dense one: fewer weights compensate for each
other's rounding. Corrections remove a good part of it at no cost in cycles. Adaptive rounding is not among them: for
weights that were fitted with their qparams in view it gains nothing beyond the others.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from micronpu.base.errors import ErrorsAs, ModelError, OptionError, first_line
from micronpu.base.quiet import quiet
from micronpu.frontend.exported import finished
from micronpu.frontend.graphs import GraphModule
from micronpu.frontend.integers import separate_clamps
from micronpu.frontend.program import ProgramView
from micronpu.frontend.tensors import copied
from micronpu.partition.device import CompiledPartition, Device
from micronpu.quantize.calibrate import quantize
from micronpu.quantize.config import Corrections
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.transforms.sparsity.distill import difference, is_scores, relative_error
from micronpu.transforms.sparsity.layers import LeftDense, PrunableLayer, Row, batches, results

Score = Callable[[Any], float]
"""User-defined measure of a network, which is called like the model; larger is better."""


@dataclass(frozen=True)
class SparseJudgement:
    """Accuracy of a network.

    Attributes:
        agreement: top-1 agreement with the float network; for outputs that are not class scores, 1 minus the lost
            fraction of their variance.
        loss: loss against the float network: 1 minus the agreement, or the difference of the user's score.
        distance: measure for comparing quantizations of one network: the loss of the user's score, or the lost fraction
            of the outputs' variance. The agreement is too coarse for this.
    """

    agreement: float
    loss: float
    distance: float


class Judge:
    """Compares networks with the float one.

    Args:
        model: the float network.
        rows: held-out samples.
        score: replaces the agreement.
        states: number of trailing outputs that are states, which are never scores.
    """

    def __init__(self, model: GraphModule, rows: Sequence[Row], score: Score | None = None, states: int = 0) -> None:
        self.rows, self._states = list(rows), states
        self._wanted = self._results(model)
        if not self._wanted:
            raise ModelError(
                "The model returns no float tensor, so that nothing says how good a sparse one is.",
                hint="a model that returns floats",
            )
        for y in self._wanted:
            if not torch.isfinite(y).all():
                raise ModelError(
                    "The model computes NaN or infinity on the calibration inputs, so that a sparse one cannot be "
                    "compared with it.",
                    hint="look for a division by zero, or for a checkpoint that was loaded in part",
                )
        self._score = score
        self._best = self._scored(model) if score is not None else 0.0

    def _results(self, model: GraphModule) -> list[Tensor]:
        return results(model, batches(model, self.rows))

    def judged(self, model: GraphModule) -> SparseJudgement:
        """Evaluate a network, with one run on the samples and one call of the score."""
        found = self._results(model)
        shares, errors = [], [float(relative_error(y, wanted)) for y, wanted in zip(found, self._wanted, strict=True)]
        for number, (y, wanted) in enumerate(zip(found, self._wanted, strict=True)):
            if is_scores(wanted, self.rows[0]) and number < len(self._wanted) - self._states:
                shares.append(float((y.argmax(1) == wanted.argmax(1)).double().mean()))
            else:
                shares.append(max(0.0, 1.0 - errors[number]))
        agreement = sum(shares) / len(shares)
        if self._score is None:
            return SparseJudgement(agreement, 1.0 - agreement, sum(errors) / len(errors))
        loss = self._best - self._scored(model)
        return SparseJudgement(agreement, loss, loss)

    def harm(self, model: GraphModule) -> float:
        """Distillation loss of the outputs.

        It is more sensitive than the agreement. The loss of several layers is about the sum of their individual losses.
        """
        return float(difference(self._results(model), self._wanted, self.rows[0], self._states))

    def _scored(self, model: GraphModule) -> float:
        assert self._score is not None
        what, hint = "`score` fails on the network", "score=lambda network: accuracy(network(x), y)"
        with ErrorsAs(lambda e: OptionError(f"{what}: {type(e).__name__}: {first_line(e)}.", hint=hint)):
            value = self._score(model)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            what = f"`score` gives {value!r} for the network; it is a function of a network that gives a number."
            raise OptionError(what, hint=hint)
        return float(value)


@dataclass(frozen=True)
class SparsePrice:
    """Cost of a network.

    Attributes:
        cycles: of the NPU for the whole network, 0 if its compiler has no estimate.
        bytes: of weights and tables as the NPU reads them.
        by_layer: cycles by name of the layer.
        sparse: names of the layers whose weights the NPU reads as 2:4 sparse.
    """

    cycles: int
    bytes: int
    by_layer: Counter[str]
    sparse: frozenset[str]


def integers(model: GraphModule, rows: Sequence[Row], quantizer: StaticQuantizer) -> GraphModule:
    """Return the integer network of a float program, which stays unchanged; it accepts the same batch sizes."""
    # Corrections count inputs and keep all intermediate values of one: pass single samples, not batches.
    corrected = quantizer.settings.corrections.need_data
    several = [[row] for row in rows] if corrected else [[batch] for batch in batches(model, rows)]
    return quantize(copied(model), several, quantizer)


def price(
    quantized: GraphModule, examples: Row, layers: Sequence[PrunableLayer | LeftDense], device: Device
) -> SparsePrice:
    """Compile an integer network, which stays unchanged."""
    program = finished(quantized, examples)
    separate_clamps(program, device.excludes)
    decisions = device.decisions(ProgramView(program))
    with quiet():
        partitioning = device.settle(decisions, decisions.partitioning())
        parts = [device.compile(partition) for partition in partitioning.partitions]
    by_layer: Counter[str] = Counter()
    sparse: set[str] = set()
    for layer in layers:
        own = [(part, i) for part in parts for i in _nodes_of(layer, part)]
        by_layer[layer.name] = sum(part.costs[i].cycles for part, i in own if i in part.costs)
        if any(i in part.sparse for part, i in own):
            sparse.add(layer.name)
    cycles = sum(cost.cycles for part in parts for cost in part.costs.values())
    total = sum(part.cycles for part in parts) or cycles
    return SparsePrice(total, sum(part.constant_bytes for part in parts), by_layer, frozenset(sparse))


def _nodes_of(layer: PrunableLayer | LeftDense, part: CompiledPartition) -> list[int]:
    """Indices of the graph's nodes that compute a layer."""
    names, module = {layer.name}, ""
    if isinstance(layer, PrunableLayer):
        names, module = set(layer.nodes), layer.module if len(layer.matrices) > 1 else ""
    found = []
    for index, node in enumerate(part.graph.nodes):
        if (module and node.origin.module == module) or not names.isdisjoint(node.origin.nodes):
            found.append(index)
    return found


TRIED = ("fit_ranges", "bias_correction")
"""Corrections that are tried, all at once, as an alternative to none."""


def with_corrections(quantizer: StaticQuantizer, names: Sequence[str]) -> StaticQuantizer:
    """Return a quantizer with these corrections; the given one if there are none."""
    if not names:
        return quantizer
    return copy.deepcopy(quantizer).set_corrections(Corrections(**dict.fromkeys(names, True)))


@dataclass(frozen=True)
class Nearest:
    """The integer network nearest to the float one.

    Attributes:
        network: quantized from a float program.
        corrections: those chosen here, without the quantizer's own.
    """

    network: GraphModule
    corrections: tuple[str, ...]
    judgement: SparseJudgement


def nearest(
    model: GraphModule,
    rows: Sequence[Row],
    quantizer: StaticQuantizer,
    judge: Judge,
    tries: bool,
    progress: Callable[[float], None] = lambda part: None,
) -> Nearest:
    """Return the integer network nearest to the float network. Each candidate is evaluated once.

    Args:
        rows: samples for ranges and corrections; the judge has different ones.
        tries: try corrections, unless the quantizer has some.
    """

    def made(names: tuple[str, ...]) -> Nearest:
        network = integers(model, rows, with_corrections(quantizer, names))
        progress(0.7 if names else 0.2)
        judged = judge.judged(network)
        progress(1.0 if names else 0.3)
        return Nearest(network, names, judged)

    plain = made(())
    if not tries or quantizer.settings.corrections != Corrections():
        return plain
    try:
        corrected = made(TRIED)
    except ModelError:  # such as an operator without derivatives: then corrections are not used
        return plain
    return corrected if corrected.judgement.distance < plain.judgement.distance else plain
