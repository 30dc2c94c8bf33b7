"""Cost of a network on the NPU: quantize, partition and compile it without writing a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from micronpu.base.quiet import quiet
from micronpu.frontend.copies import copied
from micronpu.frontend.exported import finished
from micronpu.frontend.integers import separate_clamps
from micronpu.frontend.program import ProgramView
from micronpu.partition.device import CompiledPartition, Device
from micronpu.quantize.calibrate import quantize
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.transforms.sparsity.layers import LeftDense, PrunableLayer
from micronpu.transforms.sparsity.network import Row, batches


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
    """Return the integer network of a float program, which stays unchanged; it accepts the same batch sizes.

    Args:
        rows: samples for the ranges of tensors.
    """
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
