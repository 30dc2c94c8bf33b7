"""Runs of a module on many recordings side by side: samples of a model without states are recordings of one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.fx import GraphModule

from micronpu.base.quiet import quiet
from micronpu.frontend.states import states_of
from micronpu.quantize.eager import Eager
from micronpu.quantize.running import Row, sizes_of
from micronpu.quantize.thresholds import BATCH, BATCH_ELEMENTS, KEPT_WEIGHTS, SAME_RESULTS
from micronpu.upstream.session import one_thread
from micronpu.upstream.torch import tree_leaves


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
            batch = torch.func.vmap(lambda *row: tensors_of(self._eager.run(*row)))(*joined)
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
