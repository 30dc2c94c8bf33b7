"""Run a float program on batches of samples, and collect the inputs of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.frontend.states import KEY, States, states_of
from micronpu.ops.convolution import CONVOLUTIONS
from micronpu.ops.recurrent import RECURRENT
from micronpu.quantize.decompose import norms_into_parameters
from micronpu.quantize.running import seen_calls
from micronpu.transforms.sparsity.layers import PrunableLayer
from micronpu.upstream.torch import tree_leaves

Row = tuple[Tensor, ...]

_ROWS = 50
"""Samples per batch, except in training."""
SAMPLES_PER_COLUMN = 64
"""Number of layer inputs from which moments are computed, per column; more change little."""


@dataclass(frozen=True)
class FloatNetwork:
    """A float network to be modified, with the data to quantize and evaluate it.

    Attributes:
        model: a program of `exported_for_any_batch`, modified in place.
        states: its last inputs and its last outputs.
        examples: inputs that fix shapes and dtypes, including initial states.
        rows: calls of it, including values of states.
    """

    model: GraphModule
    states: States
    examples: Row
    rows: Sequence[Row]

    @classmethod
    def of(cls, program: GraphModule, examples: Row, sequences: Sequence[Sequence[Row]]) -> FloatNetwork:
        """Return the network of a program of `exported_for_any_batch`, with folded batch norms.

        Args:
            examples: without states.
            sequences: of calls without states; one call each for a model without states.
        """
        states = states_of(program)
        norms_into_parameters(program)
        rows = seen_calls(program, states, sequences)
        return cls(program, states, (*examples, *states.initial), rows)


def takes_any_batch(model: GraphModule) -> bool:
    """True if a program accepts batches of any size."""
    values = [n.meta.get("val") for n in model.graph.nodes if n.op == "placeholder"]
    return all(isinstance(v, Tensor) and v.dim() > 0 and not isinstance(v.shape[0], int) for v in values)


def batches(model: GraphModule, rows: Sequence[Row], size: int = _ROWS) -> Iterator[Row]:
    """Concatenate samples into batches; one sample each if the program has a fixed batch size."""
    size = size if takes_any_batch(model) else 1
    for start in range(0, len(rows), size):
        yield joined(rows[start : start + size])


def joined(rows: Sequence[Row]) -> Row:
    """Concatenate samples along the batch axis."""
    return rows[0] if len(rows) == 1 else tuple(torch.cat(parts) for parts in zip(*rows, strict=True))


@contextmanager
def stateless(model: GraphModule, states: States) -> Iterator[int]:
    """Treat the states of a program as ordinary inputs and outputs within the context.

    Yields:
        Number of its last outputs that are float states.
    """
    model.meta.pop(KEY, None)
    try:
        yield sum(state.initial.is_floating_point() for state in states.values)
    finally:
        if states:
            model.meta[KEY] = states


def results(model: Callable[..., Any], rows: Iterable[Row]) -> list[Tensor]:
    """The float outputs for all samples, one tensor for each output of the program."""
    found: list[list[Tensor]] = []
    with torch.no_grad():
        for batch in rows:
            found.append(floats(model(*batch)))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def floats(result: Any) -> list[Tensor]:
    """The float tensors in the result of a program."""
    return [
        t if t.dim() else t.reshape(1) for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()
    ]


class Moments(Interpreter):
    """Second moments of the inputs of layers.

    Attributes:
        moments: name of a layer's weights to [columns, columns].
        samples: name of a layer's weights to the number of inputs.
    """

    def __init__(self, model: GraphModule, layers: Iterable[PrunableLayer], rows: int) -> None:
        super().__init__(model)
        self.moments: dict[str, Tensor] = {}
        self.samples: dict[str, int] = {}
        self._rows = max(rows, 1)
        self._layer_of = {name: layer for layer in layers for name in layer.nodes}
        self._generator = torch.Generator().manual_seed(0)

    def collect(self, rows: Iterable[Row]) -> Moments:
        """Run the program on samples."""
        with torch.no_grad():
            for batch in rows:
                self.run(*batch)
        return self

    def mean(self, attribute: str) -> Tensor:
        return self.moments[attribute] / max(self.samples[attribute], 1)

    def run_node(self, n: Node) -> Any:
        layer = self._layer_of.get(n.name)
        if layer is None:
            return super().run_node(n)
        given = {name: torch.fx.map_arg(value, lambda m: self.env[m]) for name, value in arguments(n).items()}
        if overload_name(n) in RECURRENT:
            for matrix, x in zip(layer.matrices, _read_by_steps(overload_name(n), given), strict=True):
                self._add(matrix.attribute, x.reshape(-1, x.shape[-1]), len(given["input"]))
        else:
            (matrix,) = layer.matrices
            if overload_name(n) in CONVOLUTIONS:
                most = max(SAMPLES_PER_COLUMN * matrix.columns // self._rows, 1)
                x, _ = read_by_kernel(given, most, self._generator)
            else:
                x = given["input"].flatten(0, -2)
            self._add(matrix.attribute, x if matrix.order is None else x[:, matrix.order], len(given["input"]))
        return super().run_node(n)

    def _add(self, attribute: str, x: Tensor, rows: int) -> None:
        """Add inputs [samples, columns], up to the required number."""
        wanted = max(SAMPLES_PER_COLUMN * x.shape[1] * rows // self._rows, rows)
        if wanted < len(x):
            x = x[torch.randperm(len(x), generator=self._generator)[:wanted]]
        self.samples[attribute] = self.samples.get(attribute, 0) + len(x)
        moment = x.double().T @ x.double()
        self.moments[attribute] = self.moments[attribute] + moment if attribute in self.moments else moment


def read_by_kernel(
    given: dict[str, Any], most: int, generator: torch.Generator, result: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return [samples, KH * KW * C] of a convolution's input; for grouped convolutions, of all groups with one common
    mean.

    Args:
        most: maximum pixels per sample; more are sampled at random.
        result: of a convolution without groups.

    Returns:
        The inputs, and [samples, O] of the result at the same pixels.
    """
    x, weight = given["input"], given["weight"]
    inner = weight.dim() - 2
    kernel, channels = list(weight.shape[2:]), weight.shape[1]
    stride, dilation = (_each(given[name], inner) for name in ("stride", "dilation"))
    x = F.pad(x, _padding(given["padding"], kernel, dilation))
    if inner == 1:  # as an image of one row
        x, kernel, stride, dilation = x.unsqueeze(2), [1, *kernel], [1, *stride], [1, *dilation]
    columns = F.unfold(
        x, tuple(kernel), dilation=tuple(dilation), stride=tuple(stride)
    )  # [N, C * KH * KW, L], channels first
    result = None if result is None else result.flatten(2)
    if most < columns.shape[-1]:
        pixels = torch.randperm(columns.shape[-1], generator=generator)[:most]
        columns = columns[:, :, pixels]
        result = None if result is None else result[:, :, pixels]
    batch, places = len(x), kernel[0] * kernel[1]
    columns = columns.reshape(batch, -1, channels, places, columns.shape[-1])
    result = None if result is None else result.movedim(1, 2).flatten(0, 1)
    return columns.permute(0, 1, 4, 3, 2).reshape(-1, places * channels), result


def _padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Padding in the format of `torch.nn.functional.pad`: the last axis first."""
    found: list[int] = []
    for axis in reversed(range(len(kernel))):
        if padding == "same":
            total = dilation[axis] * (kernel[axis] - 1)
            found += [total // 2, total - total // 2]
        else:
            size = 0 if padding == "valid" else _each(padding, len(kernel))[axis]
            found += [size, size]
    return found


def _each(value: Any, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _read_by_steps(overload: str, given: dict[str, Any]) -> Iterator[Tensor]:
    """Inputs of the weights of a recurrent layer, in the order of its parameters: inputs, then states.

    Layers and directions run one by one, so that the states of all steps are available.
    """
    function = getattr(torch.ops.aten, overload.split(".")[0]).input
    x, states, params = given["input"], given["hx"], given["params"]
    per_cell = 4 if given["has_biases"] else 2
    directions = 2 if given["bidirectional"] else 1
    x = x.transpose(0, 1) if given["batch_first"] else x
    is_list = isinstance(states, (list, tuple))
    for layer in range(int(given["num_layers"])):
        sides = []
        for direction in range(directions):
            index = layer * directions + direction
            own = params[per_cell * index : per_cell * (index + 1)]
            first = [s[index : index + 1] for s in states] if is_list else states[index : index + 1]
            read = x.flip(0) if direction else x
            y = function(read, first, own, given["has_biases"], 1, 0.0, False, False, False)[0]
            yield read
            start: Any = first[0] if is_list else first
            yield torch.cat([start, y[:-1]])
            sides.append(y.flip(0) if direction else y)
        x = torch.cat(sides, -1)
