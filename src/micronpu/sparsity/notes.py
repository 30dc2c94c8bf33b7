"""What the report says about weights with two zeros in every four, whoever made them so."""

from __future__ import annotations

from collections.abc import Sequence

from micronpu.ir.pattern import is_made_two_in_four
from micronpu.ops.convolution import Conv2d
from micronpu.ops.linear import FullyConnected
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partition

_MOST_NAMES = 5


def pattern_notes(
    device: Device, partitions: Sequence[Partition], parts: Sequence[CompiledPartition]
) -> tuple[str, ...]:
    """One sentence where layers have the pattern, and nothing where none has.

    Args:
        parts: the compiled partitions, in the same order.
    """
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
    listed = ", ".join(f"`{name}`" for name in dense[:_MOST_NAMES]) + (" and others" if dense[_MOST_NAMES:] else "")
    return (
        f"{found}; the NPU skips them in {len(names) - len(dense)}, and reads as dense, where that is cheaper: "
        f"{listed}.",
    )
