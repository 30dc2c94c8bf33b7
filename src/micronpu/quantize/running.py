"""Runs of modules in torch: as they are, many recordings side by side, and in float without their rounding.

Eager execution of a quantized module takes half the memory and two thirds of the time here, and gives the same bits.
torch quantizes a tensor with four temporaries of its size, and uses 64-bit zero points per channel, which become a
tensor of the weights' size.  Here one tensor is changed in place, and stays a float if its integers are only
dequantized.

The dequantized reference is a quantized module computed in float, with the error of single layers.  A layer ends in a
quantization: an operator, or an operator followed by a clamp.  Three results follow from the quantized module alone,
which has its weights in their rounded form:

    exact  the values if no activation is rounded
    own    a layer's result on exact operands, if these and its result are rounded
    alone  the outputs if only this layer returns `own`, and nothing else is rounded
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.nn.functional import hardtanh_

from micronpu.base.order import reachable
from micronpu.base.quiet import quiet
from micronpu.frontend import program
from micronpu.frontend.graphs import GraphModule, Node, by_name
from micronpu.frontend.run import Known, Run, Step, Values, copying_step, is_mutable, same, step_of
from micronpu.frontend.tensors import constant_nodes, states_of
from micronpu.quantize.loops import Loop
from micronpu.quantize.nodes import moves, observer_of
from micronpu.quantize.thresholds import BATCH, BATCH_ELEMENTS, KEPT_WEIGHTS, SAME_RESULTS
from micronpu.upstream.session import one_thread
from micronpu.upstream.torch import tree_leaves

_decomposed = torch.ops.quantized_decomposed
_QUANTIZE = _decomposed.quantize_per_tensor.default
_DEQUANTIZE = _decomposed.dequantize_per_tensor.default
_DEQUANTIZE_CHANNELS = _decomposed.dequantize_per_channel.default
Row = tuple[torch.Tensor, ...]
Call: TypeAlias = tuple[str, Row]
"""Name of a method, "" of the only one, and its inputs."""
_NARROW = (torch.int8, torch.uint8, torch.int16)
"""Integers whose differences are exact in float32."""


class Eager(Run):
    """Runs a module; weights are dequantized when they are read.

    Args:
        module: of `micronpu.quantize` or `convert_pt2e`.
        keeps_weights: dequantize weights once, for many runs, which takes four times their memory.
        in_float: see `function_of`.
    """

    def __init__(self, module: GraphModule, *, keeps_weights: bool = False, in_float: bool = False) -> None:
        nodes = module.graph.nodes
        in_place = any(map(is_mutable, nodes))
        self._floats = {n for n in nodes if _is_only_dequantized(n)} if not in_place else set[Node]()
        weights = {n for n in nodes if _is_weight(n)}
        super().__init__(
            module,
            lambda node: function_of(module, node, self._floats, in_float=in_float),
            once=weights if keeps_weights else (),
            late=weights,
        )


def function_of(module: GraphModule, node: Node, floats: Collection[Node] = (), *, in_float: bool = False) -> Step:
    """Return the function that computes a node, which is no input, from the values of its operands.

    Args:
        floats: quantize nodes that return dequantized floats.
        in_float: leave out quantization of floats; infinity becomes the end of its range.  Operands that an operator
            writes into are copied, since they may have other readers.
    """
    part = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    fast = _FAST.get(node.target) if not node.kwargs else None
    if isinstance(part, Loop):
        step = step_of(module, node, _looped(part, in_float))
    elif fast is not None:
        step = step_of(module, node, functools.partial(_fast_or, fast, node.target))
    else:
        step = (copying_step if in_float else step_of)(module, node)
    qparams: Any
    source, *qparams = node.args or (None,)
    if (in_float and program.is_dequantize(node)) or (isinstance(source, Node) and source in floats):
        short: Callable[[Any], torch.Tensor] = same
    elif in_float and program.is_quantize(node):
        short = functools.partial(_ended, *qparams)
    elif node in floats:
        short = functools.partial(_rounded, *qparams)
    else:
        return step
    return functools.partial(_shortened, short, step, source, in_float)


def _fast_or(fast: Callable[..., object], function: Any, *given: object) -> object:
    made = fast(*given)
    return function(*given) if made is None else made


def _shortened(short: Any, step: Step, source: Any, in_float: bool, values: Known) -> object:
    x = values[source]
    return short(x) if x.dtype is torch.float32 or (in_float and x.is_floating_point()) else step(values)


def _looped(loop: Loop, in_float: bool) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function that runs the steps of a recurrent layer, whose graph takes integers; in float for floats."""
    run, exact = (Eager(loop.body, keeps_weights=True, in_float=one).run for one in (False, in_float))

    def over(x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not in_float or not x.is_floating_point():
            return loop.over(run, x, *states)
        edges = loop.all_qparams[1:]
        return loop.over(exact, x, *(edge.dequantized(s) for s, edge in zip(states, edges, strict=True)))

    return over


def _is_weight(n: Node) -> bool:
    return n.target in (_DEQUANTIZE, _DEQUANTIZE_CHANNELS) and all(i.op == "get_attr" for i in n.all_input_nodes)


def _is_only_dequantized(n: Node) -> bool:
    """Return True for a quantize of which every reader is its own dequantize."""
    is_own = (u.target is _DEQUANTIZE and not u.kwargs and u.args == (n, *n.args[1:]) for u in n.users)
    return n.target is _QUANTIZE and not n.kwargs and all(is_own)


def _rounded(scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Return what `_dequantized` gives for the result of `_quantized`."""
    y = (x * (1.0 / scale)).round_().nan_to_num_(-zero_point)  # torch converts NaN to the integer 0
    hardtanh_(y, least - zero_point, most - zero_point)  # unlike clamp_, it has a batching rule
    return y.mul_(scale).add_(0.0)  # zeros without a sign, as those of integers


def _ended(scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Replace infinite values, such as the logarithm of 0, by the end of a quantize node's range."""
    return x.nan_to_num(math.nan, (most - zero_point) * scale, (least - zero_point) * scale)


def _quantized(
    x: torch.Tensor, scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype
) -> torch.Tensor | None:
    if x.dtype is not torch.float32:
        return None
    return hardtanh_((x * (1.0 / scale)).round_().add_(zero_point), least, most).to(dtype)


def _dequantized(
    x: torch.Tensor, scale: float, zero_point: int, least: int, most: int, dtype: torch.dtype
) -> torch.Tensor | None:
    if x.dtype is not dtype or x.dtype is torch.float32:
        return None
    return x.to(torch.float32).sub_(zero_point).mul_(scale)


def _dequantized_channels(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, axis: int, *limits: object
) -> torch.Tensor | None:
    if x.dtype is not limits[-1] or x.dtype not in _NARROW or scales.dtype is not torch.float32 or zero_points is None:
        return None
    shape = [1] * x.dim()
    shape[axis] = -1
    return x.to(torch.float32).sub_(zero_points.view(shape)).mul_(scales.view(shape))


_FAST: dict[Any, Callable[..., Any]] = {
    _QUANTIZE: _quantized,
    _DEQUANTIZE: _dequantized,
    _DEQUANTIZE_CHANNELS: _dequantized_channels,
}


def float_run(prepared: GraphModule) -> Run:
    """Return the evaluator of a prepared module without its observers, for `float_values`."""
    step = functools.partial(unobserved_step, prepared, lambda node: observer_of(prepared, node) is not None)
    return Run(prepared, step, wanted=prepared.graph.nodes)


def float_values(run: Run, row: Row, *, gradients: bool = False) -> dict[str, Any]:
    """Return every value for a sample, by the name of its node; with ``gradients`` for `backward`."""
    values = run.values({}, *row, behind=_followed if gradients else None)
    return {node.name: value for node, value in values.items()}


def unobserved_step(module: GraphModule, is_left_out: Callable[[Node], bool], node: Node) -> Step:
    """Return the step of a node; that of an observer that is left out returns its operand."""
    return step_of(module, node, same) if is_left_out(node) else copying_step(module, node)


def _followed(node: Node, value: Any, _: object) -> object:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    if is_float and node.op != "get_attr" and not value.requires_grad:
        return value.detach().requires_grad_()
    return value


# ---------------------------------------------------------------- recordings


def sizes_of(module: GraphModule) -> dict[str, int]:
    """Return the number of elements of each value, by the name of its node."""
    values = {name: node.meta.get("val") for name, node in by_name(module).items()}
    return {name: value.numel() for name, value in values.items() if isinstance(value, torch.Tensor)}


def tensors_of(results: object) -> Row:
    return tuple(r.detach() for r in tree_leaves(results) if isinstance(r, torch.Tensor))


def run_recordings(module: GraphModule, recordings: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """Return the results of each call of each recording, without the states.

    The recordings run in batches (`torch.func.vmap`), and one by one where an operator does not allow that.  Results of
    a batch may differ in the last bits from those of a single run.

    Args:
        module: float or quantized; its states, if it has any, are its last inputs and outputs, see `states_of`.
        recordings: inputs of the calls, without states.  Each recording begins with the first values of the states.
    """
    found: list[list[Row]] = [[] for _ in recordings]
    if not recordings:
        return found
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

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, args: Sequence[Any] = (), kwargs: object = None
    ) -> Any:
        return args[0].function()


def side_by_side(function: Callable[..., object], in_dims: Any = 0) -> Callable[..., Any]:
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
        """Yield the results of each call of the recordings, the longest first, that have as many, in the same order."""
        states = [self._states.initial for _ in recordings]
        for call in range(len(recordings[0])):
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
        return results if self._batched else self._results(rows)

    def _single(self, row: Row) -> Row:
        return tuple(r.clone() for r in tensors_of(self._eager.run(*row)))


def _alike(found: Row, wanted: Row) -> bool:
    """True if the results of a batch are those of a single run, but for roundings that fall otherwise."""
    if any(y.shape != x.shape or y.dtype != x.dtype for y, x in zip(found, wanted, strict=True)):
        return False
    powers = noise(float_leaves(found), float_leaves(wanted))
    return all(error <= SAME_RESULTS * signal for signal, error in powers)


# ---------------------------------------------------------------- dequantized reference


Rounding: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_NOTHING: Mapping[Node, Rounding] = MappingProxyType({})


@dataclass(frozen=True)
class RoundedLayer:
    """A value that a quantized module rounds."""

    quantize: Node  # the node that ends it
    edge: program.Edge  # its qparams
    first: Node  # the operator before the quantization, and before a clamp
    moves: bool  # True if it only moves or selects values, with unchanged qparams


class DequantizedReference:
    """Runs a converted module without its rounding.

    Args:
        module: result of `convert_pt2e`; its states, if it has any, are its last inputs and outputs.

    Attributes:
        initial: the initial values of the states, as floats.
        layers: the values that it rounds.
    """

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.initial: Row = tuple(
            s.initial if s.scale is None else (s.initial.double() - (s.zero_point or 0)).float() * s.scale
            for s in states_of(module).values
        )
        self._constant = constant_nodes(module)
        nodes, once = module.graph.nodes, self._constant
        steps = functools.cache(functools.partial(function_of, module, in_float=True))
        self._exact = Run(module, steps, wanted=nodes, once=once)
        self._alone = Run(module, steps, wanted=(module.graph.output_node(),))
        self._constants = Run(module, functools.partial(function_of, module), wanted=once, once=once)
        view = program.ProgramView(module)
        self._edges = {n: edge for n in nodes if (edge := program.Edge.of(n, view.constant)) is not None}
        self.layers = tuple(
            RoundedLayer(node, edge, first, moves(first) and len({*first.all_input_nodes} - self._constant) == 1)
            for node, edge in self._edges.items()
            if program.is_quantize(node) and node not in self._constant
            for first in (operator_before(program.float_behind(node), self._constant),)  # also of a requantized value
        )
        self._by_quantize = {layer.quantize: layer for layer in self.layers}

        # The values of conversions come from the exact ones.
        def own(node: Node) -> Step:
            return (lambda _: None) if program.is_conversion(node) else steps(node)

        self._own = Run(module, own, wanted=self._by_quantize, known=once)

    @torch.no_grad()
    def exact(self, row: Row, but: Mapping[Node, Rounding] = _NOTHING) -> Values:
        """Return every value for a sample; quantize nodes in ``but`` do round floats, each with its function."""

        def changed(node: Node, value: Any, _: object) -> Any:
            return but[node](value) if node in but and value.is_floating_point() else value

        return self._exact.values({}, *row, behind=changed)

    @torch.no_grad()
    def own(self, exact: Values) -> Iterator[tuple[RoundedLayer, torch.Tensor, torch.Tensor]]:
        """Yield each layer of floats with its exact result and its own."""

        def behind(node: Node, value: object, values: Known) -> object:
            if not program.is_conversion(node):
                return value
            operand = exact[node.all_input_nodes[0]]
            is_float = isinstance(operand, torch.Tensor) and operand.is_floating_point()
            if node in self._by_quantize or node not in self._edges or not is_float:
                return exact[node]
            return self._edges[node].rounded(operand)

        values = self._constants.values() | {n: exact[n] for n in self.module.graph.find_nodes(op="placeholder")}
        for node in self._own.each(values, behind=behind):
            if node in self._by_quantize:
                source = node.all_input_nodes[0]
                before, wanted = values[source], exact[source]
                if isinstance(wanted, torch.Tensor) and wanted.is_floating_point():
                    # The logarithm of a value rounded to 0 saturates; NaN is replaced by the exact result.
                    known = torch.where(before.isnan(), wanted, before)
                    yield self._by_quantize[node], wanted, self._edges[node].rounded(known)

    @torch.no_grad()
    def alone(self, exact: Values, changes: Mapping[Node, torch.Tensor]) -> list[torch.Tensor]:
        """Return the float outputs if quantize nodes return other values, and nothing else is rounded."""
        changed = set(reachable(changes, lambda node: node.users))
        same = {node: value for node, value in exact.items() if node not in changed}
        return self.outputs(self._alone.values({**same, **changes}))

    def outputs(self, exact: Values) -> list[torch.Tensor]:
        return self.split(exact)[0]

    def split(self, values: Values) -> tuple[list[torch.Tensor], Row]:
        """Return the float outputs among all values of a call, and the states after it."""
        leaves, count = tree_leaves(values[self.module.graph.output_node()]), len(self.initial)
        return float_leaves(leaves[: len(leaves) - count]), tuple(leaves[len(leaves) - count :])


def operator_before(value: Node, constants: Set[Node]) -> Node:
    """Return the operator that computes a value, before a clamp without rounding between them."""
    while program.is_compute(value) and constants.isdisjoint(value.all_input_nodes):
        floats = value.all_input_nodes
        if len(floats) != 1 or not program.is_compute(floats[0]) or len(floats[0].users) != 1:
            break
        (value,) = floats
    return value


def rounding_to(dtype: torch.dtype, step: float, zero: int = 0) -> Rounding:
    """Return the function that rounds values to integers of a dtype with a scale and a zero point."""
    limits = torch.iinfo(dtype)
    return lambda x: (x / step).add_(zero).round_().clamp_(limits.min, limits.max).sub_(zero).mul_(step)


def float_leaves(found: object) -> list[torch.Tensor]:
    """Return the floats among a program's results, in order."""
    return [r for r in tree_leaves(found) if isinstance(r, torch.Tensor) and r.is_floating_point()]


def noise(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
    """Return for each output the power of its finite reference values, and of the difference, which may be infinite."""
    pairs = []
    for y, x in zip(found, wanted, strict=True):
        if not (known := x.isfinite()).all():
            y, x = y[known], x[known]
        exact = x.double()
        error = float((y.double() - exact).square().sum())
        pairs.append((float(exact.square().sum()), math.inf if math.isnan(error) else error))
    return pairs
