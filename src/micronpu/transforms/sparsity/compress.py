"""Quantize weights to fewer bits, which the codec of an Ethos-U stores in fewer bytes.

A weight of fewer bits is an ordinary int8 weight with a larger scale: Vela's codec stores small numbers in fewer bytes,
and nothing else changes. The other weights of a row compensate for rounding, see `second_order`. Each bit width is
priced by compiling the network, with the codec itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from micronpu.base.errors import ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.partition.device import Device
from micronpu.quantize.float64 import as_learner, learner
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.transforms.sparsity.corrected import nearest
from micronpu.transforms.sparsity.judge import Judge
from micronpu.transforms.sparsity.layers import PrunableLayer, find_layers, tensor_of
from micronpu.transforms.sparsity.network import FloatNetwork, Moments, batches, stateless
from micronpu.transforms.sparsity.price import price
from micronpu.transforms.sparsity.second_order import pruned

BITS = (7, 6, 5)
"""Bit widths of weights, in the order of trial."""
_LEAST_ROWS = 8
_KEPT = 5
"""One of this many inputs is held out for evaluation."""
_DAMPING = 0.01


@dataclass(frozen=True)
class WidthResult:
    """A network with a bit width of weights.

    Attributes:
        bits: of the weights; 8 for the original network.
        bytes: of weights and tables as the NPU reads them.
        cycles: of the NPU for the whole network.
        agreement: of the integer network with the float one, see `micronpu.transforms.sparsity.SparsePoint`.
        corrections: quantization corrections that gave the most accurate integer network.
    """

    bits: int
    bytes: int
    cycles: int
    agreement: float
    corrections: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.bits} bits {self.bytes:,} bytes, {self.cycles:,} cycles, agreement {self.agreement:.1%}"
        return f"{text} with {' and '.join(self.corrections)}" if self.corrections else text


@dataclass(frozen=True)
class Compressed:
    """A network with compressed weights.

    Attributes:
        model: the float network with weights rounded to the chosen bit width.
        bits: of the weights.
        grids: results by bit width; the first is the original network.
        note: one sentence with the figures.
        corrections: quantization corrections chosen for these weights.
    """

    model: GraphModule
    bits: int
    grids: tuple[WidthResult, ...]
    note: str
    corrections: tuple[str, ...] = ()


def check_compress(given: Any) -> float | None:
    """Return the maximum loss of agreement, or None to keep the weights.

    Raises:
        OptionError: it is not a number from 0 to 1.
    """
    if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1):
        raise OptionError(
            f"`compress` is {given!r}; it is the share of the held-out inputs that may get another answer, 0 to 1.",
            hint="compress=0.01",
        )
    return given


def compressed(
    network: FloatNetwork,
    device: Device,
    quantizer: StaticQuantizer,
    most: float,
    progress: Callable[[float], None] = lambda part: None,
    tries: bool = True,
) -> Compressed:
    """Reduce the bits of a network's weights, in place, as far as accuracy allows.

    Args:
        most: maximum decrease of the agreement with the float network, relative to the original int8 network.
        tries: also try quantization corrections, see `nearest`.
    """
    model, rows = network.model, network.rows
    if len(rows) < _LEAST_ROWS:
        raise ModelError(
            f"{len(rows)} calibration inputs are too few to judge smaller weights with, which takes {_LEAST_ROWS}.",
            hint="some hundred typical inputs, without labels",
        )
    kept, seen = list(rows[::_KEPT]), [row for i, row in enumerate(rows) if i % _KEPT]
    layers, _ = find_layers(model)
    device = device.unverified()

    def result_of(bits: int) -> WidthResult:
        made = nearest(model, seen, with_bits(quantizer, bits), judge, tries)
        cost = price(made.network, network.examples, layers, device)
        return WidthResult(bits, cost.bytes, cost.cycles, made.judgement.agreement, made.corrections)

    with quiet(), stateless(model, network.states) as results:
        judge = Judge(model, kept, None, results)
        before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        grids = [result_of(8)]
        if not grids[0].bytes:
            note = f"{device.target} stores weights as they are, as far as is known, and they keep their eight bits."
            return Compressed(model, 8, tuple(grids), note)
        wide = learner(model, seen)
        moments = Moments(wide, layers, len(seen)).collect(batches(wide, [as_learner(wide, row) for row in seen]))
        chosen, state = grids[0], before
        for number, bits in enumerate(BITS):
            model.load_state_dict(before)
            round_weights(model, layers, moments, bits)
            grids.append(result_of(bits))
            progress((number + 1) / len(BITS))
            if grids[-1].agreement < grids[0].agreement - most:
                break
            if grids[-1].bytes < chosen.bytes:
                state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
                chosen = grids[-1]
        model.load_state_dict(state)
    return Compressed(model, chosen.bits, tuple(grids), _note(grids, chosen, len(kept)), chosen.corrections)


def with_bits(quantizer: StaticQuantizer, bits: int) -> StaticQuantizer:
    """Return a quantizer with weights of ``bits`` bits, except in parts with other settings."""
    config = quantizer.global_config
    if config is None or bits == config.weight_bits:
        return quantizer
    return copy.deepcopy(quantizer).set_global(replace(config, weight_bits=bits))


def round_weights(model: GraphModule, layers: Sequence[PrunableLayer], moments: Moments, bits: int) -> None:
    """Round the weights of a network to ``bits`` bits, in place; zeros of sparse layers stay."""
    with torch.no_grad():
        for layer in layers:
            for m in layer.matrices:
                weight = tensor_of(model, m.attribute)
                rows = m.rows(weight)
                stays = rows != 0 if m.is_sparse(weight) else torch.ones_like(rows, dtype=torch.bool)
                moment = moments.mean(m.attribute)
                weight.copy_(m.weights(pruned(rows, moment, m.groups, damping=_DAMPING, mask=stays, bits=bits)))


def _note(grids: Sequence[WidthResult], chosen: WidthResult, rows: int) -> str:
    first = grids[0]
    tried = "; ".join(str(result_of) for result_of in grids)
    if chosen is first:
        return f"Weights keep their eight bits; fewer cost more than `compress` allows, on {rows} inputs: {tried}."
    return (
        f"Weights of {chosen.bits} bits take {chosen.bytes:,} bytes instead of {first.bytes:,} "
        f"({1 - chosen.bytes / first.bytes:.0%} less). On {rows} held-out inputs: {tried}."
    )
