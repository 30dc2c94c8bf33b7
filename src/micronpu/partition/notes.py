"""Notes of a report about the graphs of partitions, for any backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from micronpu.ir.graph import Graph, Node
from micronpu.ir.pattern import is_made_two_in_four
from micronpu.ir.types import DType
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.softmax import Softmax
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partition

_STEPS_OF_SOFTMAX = 256
_FEW_STEPS = 3
"""Largest weight of a channel, in LSB from zero, that leaves hardly more than the weights' signs."""
_MANY_CHANNELS = 0.25
"""Fraction of a layer's channels."""
_MOST_NAMES = 5


def coarse_notes(graphs: Sequence[Graph]) -> tuple[str, ...]:
    return (*_long_rows(graphs), *_small_channels(graphs))


def _small_channels(graphs: Iterable[Graph]) -> tuple[str, ...]:
    names = [
        node.origin.nodes[0]
        for graph in graphs
        for node, _ in graph.of(Conv2d, DepthwiseConv2d, FullyConnected)
        if node.origin.nodes and _part_of_small_channels(node) >= _MANY_CHANNELS
    ]
    if not (names := list(dict.fromkeys(names))):
        return ()
    return (
        f"All channels of a layer share one scale of the weights, and in {len(names)} layer"
        f"{'' if len(names) == 1 else 's'} a quarter of the channels or more has no weight above {_FEW_STEPS} of its "
        f"steps: {_listed(names)}. Training does not mend that. One scale per channel (`per_channel=True`) "
        "costs no cycles.",
    )


def _part_of_small_channels(node: Node) -> float:
    weight = node.inputs[1]
    qparams = weight.type.qparams
    if weight.data is None or qparams is None or not qparams.is_per_tensor:
        return 0.0
    axis = weight.data.ndim - 1 if isinstance(node.op, DepthwiseConv2d) else 0
    channels = np.moveaxis(weight.data, axis, 0)
    largest = np.abs(channels.reshape(len(channels), -1).astype(np.int32)).max(1)
    # Padding channels have no bias either.
    bias = node.inputs[2].data if len(node.inputs) > 2 else None
    largest = largest[(largest > 0) | (bias != 0 if bias is not None and bias.size == len(largest) else False)]
    # Weights from a rewrite may be ones with their own scale.
    return float((largest <= _FEW_STEPS).mean()) if largest.max(initial=0) > 2 * _FEW_STEPS else 0.0


def _long_rows(graphs: Iterable[Graph]) -> tuple[str, ...]:
    long = [
        (node.origin.nodes[-1] if node.origin.nodes else node.output.name, node.output.shape[-1])
        for graph in graphs
        for node, _ in graph.of(Softmax)
        if node.output.type.dtype is DType.INT8 and node.output.shape[-1] > _STEPS_OF_SOFTMAX
    ]
    return tuple(
        f"The softmax `{name}` has rows of {size:,} values in int8, with a scale of 1/256: an average value is less "
        'than an LSB. Use the scores before it, or activations="int16" for it if the NPU has int16.'
        for name, size in long
    )


def pattern_notes(
    device: Device, partitions: Sequence[Partition], parts: Sequence[CompiledPartition]
) -> tuple[str, ...]:
    """Return a note about 2:4 sparse weights of partitions and their compiled parts, or nothing."""
    names: list[str] = []
    read: set[str] = set()
    for partition, part in zip(partitions, parts, strict=True):
        read.update(name for i in part.sparse for name in part.graph.nodes[i].origin.nodes)
        for node in partition.chosen.nodes:
            if isinstance(node.op, (Conv2d, FullyConnected)) and node.origin.nodes:
                weight = node.inputs[1].data
                if weight is not None and is_made_two_in_four(weight):
                    names.append(node.origin.nodes[0])
    if not names:
        return ()
    count = f"{len(names)} layer{'' if len(names) == 1 else 's'}"
    have = "has" if len(names) == 1 else "have"
    found = f"{count} of the program {have} two zeros in every four weights along the input channels"
    if device.dense_only:
        return (f"{found}. {device.dense_only}",)
    dense = [name for name in names if name not in read]
    if not dense:
        return (f"{found}, and the NPU skips them in {'it' if len(names) == 1 else 'all of them'}.",)
    return (
        f"{found}; the NPU skips them in {len(names) - len(dense)}, and reads as dense, where that is cheaper: "
        f"{_listed(dense)}.",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:_MOST_NAMES]) + (" and others" if names[_MOST_NAMES:] else "")
