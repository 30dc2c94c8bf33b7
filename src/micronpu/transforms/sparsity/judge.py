"""How far a network is from the float one, on inputs that nothing was learnt from."""

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
"""A measure of the user's own for a network, which is called like the model; more is better."""


@dataclass(frozen=True)
class Judgement:
    """How good a network is.

    Attributes:
        agreement: share of the rows with the same answer as the float network's; of results that are no scores of
            classes, 1 less the part of their variance that is lost.
        loss: what is lost against the float network: 1 less the agreement, or the difference of the user's score.
        distance: what tells ways to quantize one network apart: the loss by the user's score, or the part of the
            results' variance that is lost.  The agreement counts whole answers, and too few of them to see the
            difference.
    """

    agreement: float
    loss: float
    distance: float


class Judge:
    """Compares networks with the float one.

    Args:
        model: the float network.
        rows: inputs kept back.
        score: in the place of agreement.
        states: how many of the last results are states, which are no scores whatever their shape.
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

    def judged(self, model: GraphModule) -> Judgement:
        """How good a network is, from one run on the rows and one call of the score."""
        found = self._results(model)
        shares, errors = [], [float(relative_error(y, wanted)) for y, wanted in zip(found, self._wanted, strict=True)]
        for number, (y, wanted) in enumerate(zip(found, self._wanted, strict=True)):
            if is_scores(wanted, self.rows[0]) and number < len(self._wanted) - self._states:
                shares.append(float((y.argmax(1) == wanted.argmax(1)).double().mean()))
            else:
                shares.append(max(0.0, 1.0 - errors[number]))
        agreement = sum(shares) / len(shares)
        if self._score is None:
            return Judgement(agreement, 1.0 - agreement, sum(errors) / len(errors))
        loss = self._best - self._scored(model)
        return Judgement(agreement, loss, loss)

    def harm(self, model: GraphModule) -> float:
        """What the results lose, as the training without labels counts it.

        That is finer than the agreement.  What several layers lose together is about the sum of what each loses.
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
