"""Distance of a network from the float one, on held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from micronpu.base.errors import ModelError, OptionError, first_line
from micronpu.transforms.sparsity.distill import difference, is_scores, relative_error
from micronpu.transforms.sparsity.network import Row, batches, results

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
        try:
            value = self._score(model)
        except Exception as error:
            raise OptionError(
                f"`score` fails on the network: {type(error).__name__}: {first_line(error)}.",
                hint="score=lambda network: accuracy(network(x), y)",
            ) from error
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise OptionError(
                f"`score` gives {value!r} for the network; it is a function of a network that gives a number.",
                hint="score=lambda network: accuracy(network(x), y)",
            )
        return float(value)
