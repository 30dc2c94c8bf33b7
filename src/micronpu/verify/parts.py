"""Parts of an output whose values differ in size: boxes beside scores, or channels in different units.

The ratio of an output is dominated by its large values.  If an output is a concatenation, or has channels, elements
that are far smaller than others are evaluated separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.importer import known_import
from micronpu.frontend.program import is_compute, is_dequantize, is_quantize, overload_name, value_of
from micronpu.frontend.states import states_of
from micronpu.ops.concat import CONCATENATIONS
from micronpu.quantize.eager import called
from micronpu.report.accuracy import Array, PartAccuracy, decibels
from micronpu.upstream.torch import tree_leaves
from micronpu.verify.thresholds import APART, CHANNELS, EMPTY, SHOWN


@dataclass(frozen=True)
class ElementSources:
    """Sources of an output's elements.

    Attributes:
        number: index into `names` for each element, in the shape of the output; negative for a constant element.
        names: of the sources: the operator, and the channel, or None without channels.
    """

    number: Array
    names: tuple[tuple[str, int | None], ...]


def sources_of(module: GraphModule) -> list[ElementSources | None]:
    """Return the sources of each output, None for one with a single source.

    Args:
        module: quantized; its states, if it has any, are its last outputs.
    """
    results = [n for n in tree_leaves(module.graph.output_node().args[0]) if isinstance(n, Node)]
    return [_sources(node) for node in results[: len(results) - len(states_of(module).values)]]


def _sources(node: Node) -> ElementSources | None:
    names: list[tuple[str, int | None]] = []
    try:
        number = _numbered(node, names)
    except Exception:  # a copy that does not accept integers: the output is evaluated as a whole
        return None
    # A cast makes floats of the numbers. Constant elements, with 0 or less, have no source.
    return ElementSources(number.long().numpy() - 1, tuple(names)) if number is not None and len(names) > 1 else None


def _numbered(node: Node, names: list[tuple[str, int | None]]) -> torch.Tensor | None:
    """Return the number of each element's source, moved as the elements are; adds the names of new sources."""
    value = value_of(node)
    if is_quantize(node) or is_dequantize(node):
        return _numbered(node.all_input_nodes[0], names)
    if overload_name(node) in CONCATENATIONS:
        joined = {operand: _numbered(operand, names) for operand in node.all_input_nodes}
        return None if None in joined.values() else called(node, *_filled(node, joined))
    entry = known_import(node) if is_compute(node) else None
    if entry is not None and entry.moves_only and len(node.all_input_nodes) == 1:
        (operand,) = node.all_input_nodes
        before = _numbered(operand, names)
        return None if before is None else called(node, *_filled(node, {operand: before}))
    if not isinstance(value, torch.Tensor):
        return None
    axis = 1 if value.dim() in (2, 4) else value.dim() - 1
    count = value.shape[axis] if value.dim() > 1 else 0
    first, shape = len(names) + 1, tuple(value.shape)
    if not 2 <= count <= CHANNELS:
        names.append((node.name, None))
        return torch.full(shape, first)
    names += [(node.name, channel) for channel in range(count)]
    line = torch.arange(first, first + count).view([-1 if i == axis else 1 for i in range(len(shape))])
    return line.expand(shape)


def _filled(node: Node, values: Mapping[Node, torch.Tensor | None]) -> Any:
    return torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)


def unequal_parts(found: Sequence[Array], wanted: Sequence[Array], sources: ElementSources) -> tuple[PartAccuracy, ...]:
    """Return the parts of an output, the largest values first; () if all are of similar size.

    Args:
        found, wanted: of each sample, in the shape of the sources.
    """
    count = len(sources.names)
    known = (sources.number >= 0) & (sources.number < count)
    place = sources.number[known]
    signal, noise = np.zeros(count), np.zeros(count)
    low, high = np.inf, -np.inf
    for y, x in zip(found, wanted, strict=True):
        if not np.isfinite(x).all():
            return ()
        low, high = min(low, float(x.min(initial=np.inf))), max(high, float(x.max(initial=-np.inf)))
        signal += np.bincount(place, np.square(x[known]), count)
        noise += np.bincount(place, np.square(y - x)[known], count)
    if low >= 0.0 and high <= 1.0:  # probabilities, whose errors are comparable
        return ()
    sizes = np.sqrt(signal / np.maximum(np.bincount(place, minlength=count) * len(wanted), 1))
    order = [int(i) for i in np.argsort(-sizes, kind="stable") if sizes[i] > EMPTY * sizes.max()]
    groups: list[list[int]] = []
    for number in order:
        if groups and sizes[groups[-1][-1]] < APART * sizes[number]:
            groups[-1].append(number)
        else:
            groups.append([number])
    if len(groups) < 2:
        return ()
    return tuple(
        PartAccuracy(
            _named(sorted(group), sources.names),
            float(np.sqrt(np.mean(np.square(sizes[group])))),
            decibels(float(signal[group].sum()), float(noise[group].sum())),
        )
        for group in groups
    )


def _named(numbers: Sequence[int], names: Sequence[tuple[str, int | None]]) -> str:
    """Return a text such as "channels 0, 1 of `conv2d`, `linear`"."""
    channels: dict[str, list[str]] = {}
    for number in numbers:
        name, channel = names[number]
        channels.setdefault(name, []).extend([] if channel is None else [str(channel)])
    whole = {name: sum(other == name for other, _ in names) for name in channels}
    said = []
    for name, own in channels.items():
        if not own or len(own) == whole[name]:
            said.append(f"`{name}`")
        else:
            more = ", ..." if len(own) > SHOWN else ""
            said.append(f"channel{'s' * (len(own) > 1)} {', '.join(own[:SHOWN])}{more} of `{name}`")
    return ", ".join(said[:SHOWN]) + (f" and {len(said) - SHOWN} more" if len(said) > SHOWN else "")
