"""Runs of a program on a user's data, with states from call to call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from micronpu.frontend.states import States

Row = tuple[torch.Tensor, ...]


def sizes_of(module: GraphModule) -> dict[str, int]:
    """Return the number of elements of each value, by the name of its node."""
    values = {node.name: node.meta.get("val") for node in module.graph.nodes}
    return {name: value.numel() for name, value in values.items() if isinstance(value, torch.Tensor)}


def run_sequence(module: GraphModule, states: States, rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    """Run a lifted module call by call from its initial states; yield each call's other results."""
    values = states.initial
    for row in rows:
        results = module(*row, *values)
        if not states:
            yield results if isinstance(results, tuple) else (results,)
            continue
        values = tuple(v.detach().clone() for v in results[-len(states.values) :])
        yield tuple(results[: -len(states.values)])


def _rows_with_states(module: GraphModule, states: States, rows: Sequence[Row]) -> Iterator[Row]:
    """Run a lifted module as `run_sequence` does, if it has states; yield all inputs of each call."""
    values = states.initial
    for row in rows:
        yield (*row, *values)
        if states:
            results = module(*row, *values)
            new = results[-len(states.values) :]
            values = tuple(v.detach().clone().to(first) for v, first in zip(new, states.initial, strict=True))


def seen_calls(module: GraphModule, states: States, sequences: Sequence[Sequence[Row]]) -> list[Row]:
    """Return all calls of sequences, each with the values of the states before it."""
    with torch.no_grad():
        return [row for sequence in sequences for row in _rows_with_states(module, states, sequence)]
