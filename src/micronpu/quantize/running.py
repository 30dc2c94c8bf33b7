"""Runs of a program on a user's data, with states from call to call, and of many recordings side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from micronpu.base.quiet import quiet
from micronpu.frontend.states import States, states_of
from micronpu.quantize.eager import Eager
from micronpu.quantize.thresholds import BATCH, BATCH_ELEMENTS, KEPT_WEIGHTS, SAME_RESULTS
from micronpu.upstream.session import one_thread
from micronpu.upstream.torch import tree_leaves

Row = tuple[torch.Tensor, ...]


def sizes_of(module: GraphModule) -> dict[str, int]:
    """Return the number of elements of each value, by the name of its node."""
    values = {node.name: node.meta.get("val") for node in module.graph.nodes}
    return {name: value.numel() for name, value in values.items() if isinstance(value, torch.Tensor)}


def _rows_with_states(module: GraphModule, states: States, rows: Sequence[Row]) -> Iterator[Row]:
    """Run a lifted module call by call from its initial states, if it has states; yield all inputs of each call."""
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


def tensors_of(results: object) -> Row:
    """The tensors among what a program returns."""
    return tuple(r for r in tree_leaves(results) if isinstance(r, torch.Tensor))


def run_recordings(module: GraphModule, recordings: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """Return the results of each call of each recording, without the states.

    The recordings run in batches (`torch.func.vmap`), and one by one where an operator does not allow that.  Results of
    a batch may differ in the last bits from those of a single run.

    Args:
        module: float or quantized; its states, if it has any, are its last inputs and outputs, see `states_of`.
        recordings: inputs of the calls, without states.  Each recording begins with the first values of the states.
    """
    found: list[list[Row]] = [[] for _ in recordings]
    order = sorted(range(len(recordings)), key=lambda i: -len(recordings[i]))  # those of like length end together
    runner = _Runner(module)
    count = max(1, min(BATCH, BATCH_ELEMENTS // max([1, *sizes_of(module).values()])))
    with torch.no_grad(), quiet(), one_thread():
        for first in range(0, len(order), count):
            batch = order[first : first + count]
            for call, results in enumerate(runner.calls([recordings[i] for i in batch])):
                assert all(len(found[i]) == call for i in batch[: len(results)])
                for place, own in zip(batch, results, strict=False):
                    found[place].append(own)
    return found


class _Call:
    """A function that torch calls within its own C++, which makes its messages Python's warnings there."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return args[0].function()


def side_by_side(function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """Return `torch.func.vmap` of a function; that an operator is slow in it is a warning, which `quiet` suppresses."""
    batched = torch.func.vmap(function, in_dims)
    return lambda *rows: torch.relu(_Call(lambda: batched(*rows)))  # type: ignore[arg-type]


class _Runner:
    """Runs a module on recordings, in batches as long as that gives what single runs give."""

    def __init__(self, module: GraphModule) -> None:
        weights = sum(value.numel() for value in (*module.parameters(), *module.buffers()))
        self._eager = Eager(module, keeps_weights=weights <= KEPT_WEIGHTS)
        self._states = states_of(module)
        self._batched: bool | None = None  # not known yet

    def calls(self, recordings: Sequence[Sequence[Row]]) -> Iterator[list[Row]]:
        """Yield the results of each call, of the recordings that have as many, in the same order.

        Args:
            recordings: the longest first.
        """
        states = [self._states.initial for _ in recordings]
        for call in range(len(recordings[0]) if recordings else 0):
            rows = [(*own[call], *state) for own, state in zip(recordings, states, strict=True) if call < len(own)]
            results = self._results(rows)
            count = len(self._states.values)
            states[: len(rows)] = [own[len(own) - count :] for own in results]
            yield [own[: len(own) - count] for own in results]

    def _results(self, rows: Sequence[Row]) -> list[Row]:
        if len(rows) == 1 or self._batched is False:
            return [self._single(row) for row in rows]
        try:
            joined = tuple(torch.stack(column) for column in zip(*rows, strict=True))
            batch = side_by_side(lambda *row: tensors_of(self._eager.run(*row)))(*joined)
        except Exception:  # of a loop that data end, or an operator that vmap does not know
            self._batched = False
            return self._results(rows)
        results = [tuple(column[i] for column in batch) for i in range(len(rows))]
        if self._batched is None:
            self._batched = _alike(results[0], self._single(rows[0]))
            return self._results(rows) if not self._batched else results
        return results

    def _single(self, row: Row) -> Row:
        return tuple(r.detach().clone() for r in tensors_of(self._eager.run(*row)))


def _alike(found: Row, wanted: Row) -> bool:
    """True if the results of a batch are those of a single run, but for roundings that fall otherwise."""
    for y, x in zip(found, wanted, strict=True):
        if y.shape != x.shape or y.dtype != x.dtype:
            return False
        if x.is_floating_point() and x.numel():
            known = x.isfinite()
            error = (y[known].double() - x[known].double()).square().sum()
            if not bool(error <= SAME_RESULTS * x[known].double().square().sum()):
                return False
    return True
