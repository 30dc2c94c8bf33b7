"""A float network: its layers whose weights can have 2:4 sparsity, runs on batches of samples, and inputs of layers.

A layer is an operator with its weights: a convolution, a linear layer, or all steps of a recurrent layer. Its weights
are matrices. A matrix has a row per output and a column per weight of the row, in the NPU's order: kernel positions,
then channels, four of which form a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from micronpu.frontend.graphs import GraphModule, Node, calls, map_arg
from micronpu.frontend.program import arguments, origin_of, overload_name
from micronpu.frontend.run import Known, Run
from micronpu.frontend.tensors import KEY, States, states_of
from micronpu.ir.aten import one_each
from micronpu.ir.facts import Given
from micronpu.ir.pattern import GROUP, KEPT, is_made_two_in_four
from micronpu.ops.convolution import CONVOLUTIONS, TRANSPOSED
from micronpu.ops.matmul import LINEAR
from micronpu.ops.movement import COPIES, DROPOUTS, VIEWS
from micronpu.ops.recurrent import RECURRENT
from micronpu.ops.volumes import CONVOLUTIONS_3D
from micronpu.quantize.calibrate import of_one, seen_calls
from micronpu.quantize.decompose import norms_into_parameters
from micronpu.upstream.torch import tree_leaves

_DENSE_ONLY = (*TRANSPOSED, *CONVOLUTIONS_3D)
_FLATTENS = (*VIEWS, *DROPOUTS, *COPIES)


@dataclass(eq=False)
class Matrix:
    """Weights of a layer as [outputs, columns].

    Attributes:
        attribute: name of the tensor in the module.
        shape: of that tensor.
        channels: number of adjacent input channels.
        order: for each column, its index in the tensor's row, if it differs from the order of the stream, such as
            after a flattened image; None if they are equal.
    """

    attribute: str
    shape: tuple[int, ...]
    channels: int
    order: Tensor | None = None

    @property
    def columns(self) -> int:
        return self.shape[1] * prod(self.shape[2:])

    @property
    def groups(self) -> list[tuple[int, int]]:
        """First column and size of each group."""
        found = []
        for start in range(0, self.columns, self.channels):
            found += [(start + c, min(GROUP, self.channels - c)) for c in range(0, self.channels, GROUP)]
        return found

    def rows(self, weight: Tensor) -> Tensor:
        """Return a tensor with the shape of the weights as [outputs, columns]."""
        flat = weight.movedim(1, -1).reshape(self.shape[0], -1)
        return flat if self.order is None else flat[:, self.order]

    def weights(self, rows: Tensor) -> Tensor:
        """Return a matrix as a tensor with the shape of the weights."""
        if self.order is not None:
            rows = torch.empty_like(rows).index_copy_(1, self.order, rows)
        inner = self.shape[2:]
        return rows.reshape(self.shape[0], *inner, self.shape[1]).movedim(-1, 1).contiguous()

    def is_sparse(self, weight: Tensor) -> bool:
        """True if a tensor has the pattern."""
        rows = self.rows(weight.detach()).reshape(self.shape[0], -1, self.channels)
        return is_made_two_in_four(rows.cpu().numpy())


@dataclass(eq=False)
class PrunableLayer:
    """An operator that can have sparse weights.

    Attributes:
        name: of its node, or of the first one that reads the weights.
        title: path of the submodule if this is its only layer, else the node's name.
        module: path of the submodule, or "".
        source: ``file:line`` of the user's model, or "".
        nodes: names of the nodes that read the weights.
        matrices: one, or several for a recurrent layer.
    """

    name: str
    title: str
    module: str
    source: str
    nodes: list[str]
    matrices: list[Matrix] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """Number of columns of the largest matrix."""
        return max(m.columns for m in self.matrices)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrices[0].shape

    def is_sparse(self, model: GraphModule) -> bool:
        """True if all its weights have the pattern."""
        return all(m.is_sparse(tensor_of(model, m.attribute)) for m in self.matrices)


@dataclass(frozen=True)
class LeftDense:
    """An operator whose weights cannot have the pattern, with the reason."""

    name: str
    title: str
    source: str
    shape: tuple[int, ...]
    why: str


def tensor_of(model: GraphModule, name: str) -> Tensor:
    """A parameter or buffer by its path."""
    value: object = model
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, Tensor)
    return value


def find_layers(model: GraphModule) -> tuple[list[PrunableLayer], list[LeftDense]]:
    """Return all layers with weights, in execution order, and those that cannot be sparse."""
    found: dict[tuple[str, ...], PrunableLayer] = {}
    left: list[LeftDense] = []
    titles: set[str] = set()
    flattens = set(calls(model, *_FLATTENS))
    for node in calls(model, *CONVOLUTIONS, *LINEAR, *RECURRENT, *_DENSE_ONLY):
        name, origin = overload_name(node), origin_of(node)
        title = origin.module if origin.module and origin.module not in titles else node.name
        given = arguments(node)
        weights = list(_weight_nodes(given, name))
        shape = tuple(_tensor(weights[0]).shape) if weights else ()
        why = _objection(given, name, weights)
        if why:
            titles.add(title)
            left.append(LeftDense(node.name, title, origin.source, shape, why))
            continue
        key = tuple(str(w.target) for w in weights)
        if key in found:
            found[key].nodes.append(node.name)
            continue
        picture = _picture(given, flattens) if name in LINEAR else ()
        order = _channels_last(picture) if picture else None
        matrices = [Matrix(str(w.target), tuple(_tensor(w).shape), int(_tensor(w).shape[1]), order) for w in weights]
        if order is not None:
            matrices[0].channels = picture[0]
        titles.add(title)
        found[key] = PrunableLayer(node.name, title, origin.module, origin.source, [node.name], matrices)
    return list(found.values()), left


def _weight_nodes(given: Given, name: str) -> Iterator[Node]:
    """The constants that are weights of an operator, without its biases."""
    candidates = given["params"] if name in RECURRENT else [given["weight"]]
    for weight in candidates:
        if isinstance(weight, Node) and weight.op == "get_attr" and _tensor(weight).dim() > 1:
            yield weight


def _tensor(node: Node) -> Tensor:
    owner = node.graph.owning_module
    assert isinstance(owner, GraphModule)
    return tensor_of(owner, str(node.target))


def _objection(given: Given, name: str, weights: Sequence[Node]) -> str:
    """Reason why an operator's weights cannot have the pattern, or ""."""
    if name in _DENSE_ONLY:
        return "only convolutions of one and two dimensions and linear layers can be sparse"
    if not weights:
        return "its weights are computed by the program"
    shape = _tensor(weights[0]).shape
    if name in CONVOLUTIONS and shape[1] == 1 and given["groups"] > 1:
        return "a depthwise convolution has no sum over channels"
    if all(_tensor(w).shape[1] <= KEPT for w in weights):
        return f"{shape[1]} input channel{' fills' if shape[1] == 1 else 's fill'} no group of four"
    return ""


def _picture(given: Given, flattens: Set[Node]) -> tuple[int, ...]:
    """Sizes [C, ...] of the image that a linear layer reads flattened, or ()."""
    source, columns = given["input"], _tensor(given["weight"]).shape[1]
    while source in flattens:
        source = source.all_input_nodes[0]
        value = source.meta.get("val")
        if isinstance(value, Tensor) and value.dim() > 2:
            sizes = tuple(value.shape[1:])
            fits = all(isinstance(s, int) for s in sizes) and prod(sizes) == columns
            return sizes if fits and prod(sizes[1:]) > 1 else ()
    return ()


def _channels_last(picture: tuple[int, ...]) -> Tensor:
    """The order of the columns of a flattened image [C, ...] in channels-last order."""
    return torch.arange(prod(picture)).reshape(picture).movedim(0, -1).reshape(-1)


def kept_weights(matrix: Matrix, weight: Tensor) -> Tensor:
    """Mask of the weights to keep: the two largest of every group of four, or fewer if it has fewer nonzero ones."""
    rows = matrix.rows(weight.detach().abs())
    mask = torch.zeros_like(rows, dtype=torch.bool)
    for first, size in matrix.groups:
        group = slice(first, first + size)
        order = rows[:, group].argsort(dim=1, descending=True, stable=True)[:, :KEPT]
        mask[:, group] = torch.zeros_like(rows[:, group], dtype=torch.bool).scatter_(1, order, True)
    return matrix.weights(mask)


@contextmanager
def pattern_kept(module: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Keep weights zero while the module is trained, by masking their gradients.

    Args:
        masks: weights to keep, by parameter name.
    """
    parameters = {name: p for name, p in module.named_parameters() if name in masks}

    def apply(*_: object) -> None:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.mul_(masks[name])

    def hook(mask: Tensor) -> object:
        return lambda gradient: gradient * mask

    apply()
    handles = [p.register_hook(hook(masks[name])) for name, p in parameters.items() if p.requires_grad]
    # Weight decay and momentum leave zeros unchanged; weights assigned by other code are masked at the next call.
    handles.append(module.register_forward_pre_hook(apply))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        apply()


def masks_of(model: nn.Module, layers: Iterator[PrunableLayer] | list[PrunableLayer]) -> dict[str, Tensor]:
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {m.attribute: kept_weights(m, tensors[m.attribute]) for layer in layers for m in layer.matrices}


def keep_what_is_sparse(program: GraphModule, trained: nn.Module) -> AbstractContextManager[None]:
    """Keep the zeros of layers with 2:4 sparsity while a module is trained."""
    layers, _ = find_layers(program)
    return pattern_kept(trained, masks_of(program, [layer for layer in layers if layer.is_sparse(program)]))


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
        rows = seen_calls({"": program}, {"": states}, of_one(sequences))[""]
        return cls(program, states, (*examples, *states.initial), rows)


def takes_any_batch(model: GraphModule) -> bool:
    """True if a program accepts batches of any size."""
    values = [n.meta.get("val") for n in model.graph.find_nodes(op="placeholder")]
    return all(isinstance(v, Tensor) and v.dim() > 0 and not isinstance(v.shape[0], int) for v in values)


def batches(model: GraphModule, rows: Sequence[Row]) -> Iterator[Row]:
    """Concatenate samples into batches; one sample each if the program has a fixed batch size."""
    size = _ROWS if takes_any_batch(model) else 1
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


def results(model: Callable[..., object], rows: Iterable[Row]) -> list[Tensor]:
    """The float outputs for all samples, one tensor for each output of the program."""
    found: list[list[Tensor]] = []
    with torch.no_grad():
        for batch in rows:
            found.append(floats(model(*batch)))
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def floats(result: object) -> list[Tensor]:
    return [
        t if t.dim() else t.reshape(1) for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()
    ]


class Moments:
    """Second moments of the inputs of layers.

    Attributes:
        moments: name of a layer's weights to [columns, columns].
        samples: name of a layer's weights to the number of inputs.
    """

    def __init__(self, model: GraphModule, layers: Iterable[PrunableLayer], rows: int) -> None:
        self._run = Run(model)
        self.moments: dict[str, Tensor] = {}
        self.samples: dict[str, int] = {}
        self._rows = max(rows, 1)
        self._layer_of = {name: layer for layer in layers for name in layer.nodes}
        self._generator = torch.Generator().manual_seed(0)

    def collect(self, rows: Iterable[Row]) -> Moments:
        """Run the program on samples."""
        with torch.no_grad():
            for batch in rows:
                self._run.run(*batch, behind=self._add_inputs)
        return self

    def mean(self, attribute: str) -> Tensor:
        return self.moments[attribute] / max(self.samples[attribute], 1)

    def _add_inputs(self, n: Node, result: object, values: Known) -> object:
        layer = self._layer_of.get(n.name)
        if layer is None:
            return result
        given = {name: map_arg(value, values.__getitem__) for name, value in arguments(n).items()}
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
        return result

    def _add(self, attribute: str, x: Tensor, rows: int) -> None:
        """Add inputs [samples, columns], up to the required number."""
        wanted = max(SAMPLES_PER_COLUMN * x.shape[1] * rows // self._rows, rows)
        if wanted < len(x):
            x = x[torch.randperm(len(x), generator=self._generator)[:wanted]]
        self.samples[attribute] = self.samples.get(attribute, 0) + len(x)
        moment = x.double().T @ x.double()
        self.moments[attribute] = self.moments[attribute] + moment if attribute in self.moments else moment


def read_by_kernel(
    given: Given, most: int, generator: torch.Generator, result: Tensor | None = None
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
    stride, dilation = (one_each(given[name], inner) for name in ("stride", "dilation"))
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


def _padding(padding: str | int | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Padding in the format of `torch.nn.functional.pad`: the last axis first."""
    found: list[int] = []
    for axis in reversed(range(len(kernel))):
        if padding == "same":
            total = dilation[axis] * (kernel[axis] - 1)
            found += [total // 2, total - total // 2]
        else:
            size = 0 if isinstance(padding, str) else one_each(padding, len(kernel))[axis]
            found += [size, size]
    return found


def _read_by_steps(overload: str, given: Given) -> Iterator[Tensor]:
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
