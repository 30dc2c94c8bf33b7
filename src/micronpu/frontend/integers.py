"""Quantized programs whose inputs, outputs, states and operands of clamps are integers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from micronpu.base.errors import ModelError
from micronpu.base.texts import affine
from micronpu.frontend.facts import INTEGER_IO
from micronpu.frontend.graphs import GraphModule, Node, findings, map_arg, nodes_where, returned
from micronpu.frontend.importer import NodeArguments, clamp_behind, known_import
from micronpu.frontend.program import (
    BYTE_SHIFT,
    Edge,
    ProgramView,
    add_dequantize,
    add_quantize,
    common_edge,
    float_behind,
    is_float32,
    origin_of,
    place_behind,
    quantizes_of,
    substitute,
    value_of,
)
from micronpu.frontend.tensors import KEY, State, constant_nodes, results_of, state_ends, states_of
from micronpu.ir.types import DType
from micronpu.upstream.torch import tree_leaves

_HINT = "`set_io` of the quantizer, before `prepare_pt2e`, and float32 inputs"


@dataclass(frozen=True)
class IntegerTensor:
    """Meaning of the integers of an input or output: ``real = scale * (integer - zero_point)``.

    Attributes:
        name: of the input, or "output_0" and so on.
        dtype: "int8", "uint8" or "int16".
    """

    name: str
    dtype: str
    scale: float
    zero_point: int

    def quantize(self, value: torch.Tensor) -> torch.Tensor:
        """Quantize floats for the program."""
        edge = stored_as(self)
        return (torch.round(value / self.scale) + self.zero_point).clamp(*edge.limits).to(edge.torch_dtype)

    def dequantize(self, value: torch.Tensor) -> torch.Tensor:
        """Dequantize results of the program."""
        return stored_as(self).dequantized(value)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}, {affine(self.scale, self.zero_point)}"


def stored_as(value: Any) -> Edge:
    """Return the qparams of an `IntegerTensor` or a `State`, which uses the whole range of its dtype."""
    dtype = getattr(torch, value.dtype)
    limits = torch.iinfo(dtype)
    return Edge(value.scale, value.zero_point, limits.min, limits.max, dtype)


@dataclass(frozen=True)
class IntegerIO:
    """All inputs and outputs of a program, in order; None for an output that is no float and remains unchanged."""

    inputs: tuple[IntegerTensor, ...]
    outputs: tuple[IntegerTensor | None, ...]

    def quantize(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Quantize inputs of the float program for this program."""
        return tuple(b.quantize(v) for b, v in zip(self.inputs, inputs, strict=True))

    def dequantize(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Dequantize outputs of this program as outputs of the float program."""
        return tuple(v if b is None else b.dequantize(v) for b, v in zip(self.outputs, outputs, strict=True))


def to_integer_io(module: GraphModule, *, as_bytes: bool | Sequence[bool] = False) -> IntegerIO:
    """Convert inputs and outputs of a converted program to integers, in place.

        x float -> quantize -> x8 -> dequantize -> .. -> quantize -> y8 -> dequantize -> y float
                               x8 -> dequantize -> .. -> quantize -> y8

    Args:
        module: result of `convert_pt2e` for a quantizer with `set_io`.
        as_bytes: use uint8, with numbers and zero point 128 larger than in int8; for all inputs and outputs, or for
            each in order.

    Returns:
        Meaning of the integers.  Export the module with ``tensors.quantize(example_inputs)``.

    Raises:
        ModelError: an input or output is not quantized, such as an int64 input.  The module is then unchanged.
    """
    view = ProgramView(module)
    output = module.graph.output_node()
    holders = {holder for _, holder, _ in state_ends(module)}  # integers already, and no inputs for the user
    inputs = [(node, _input_edge(view, node)) for node in view.inputs if node not in holders]
    outputs = [(node, _output_edge(view, node)) for node in results_of(module)]
    meaning = IntegerIO(
        tuple(_integer_tensor(node.name, edge) for node, edge in inputs),
        tuple(None if edge is None else _integer_tensor(f"output_{i}", edge) for i, (_, edge) in enumerate(outputs)),
    )
    tensors = (*meaning.inputs, *meaning.outputs)
    shifted = [as_bytes] * len(tensors) if isinstance(as_bytes, bool) else list(as_bytes)
    asked = [t if t is None or not shift else _as_bytes(t) for t, shift in zip(tensors, shifted, strict=True)]
    for (node, edge), taken, made in zip(inputs, asked, tensors, strict=False):
        _take_integers(node, edge.torch_dtype)
        if taken is not made:
            _take_bytes(node, taken, made)
    integers: dict[Node, Node] = {}
    for (node, _), made, given in zip(outputs, tensors[len(inputs) :], asked[len(inputs) :], strict=True):
        if made is not None and node not in integers:
            integers[node] = node.all_input_nodes[0]
            if given is not made:
                with module.graph.inserting_before(output):
                    integers[node] = _requantized(integers[node], made, given)
    output.args = map_arg(output.args, lambda n: integers.get(n, n))
    for node in integers:
        if not node.users:
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return IntegerIO(tuple(filter(None, asked[: len(inputs)])), tuple(asked[len(inputs) :]))


def integer_io_of(module: object) -> IntegerIO | None:
    """Return the meaning of a module's integers as its file states it; None for other modules."""
    found: IntegerIO | None = INTEGER_IO.of(module) if isinstance(module, GraphModule) else None
    return found


def stated_io(module: GraphModule) -> IntegerIO | None:
    """Return the meaning of integers that a module itself dequantizes first and quantizes last; None for others."""
    view = ProgramView(module)
    inputs = [(node, common_edge(map(view.edge, node.users))) for node in view.inputs]
    outputs = enumerate(map(view.result_qparams, results_of(module)))
    taken = tuple(_integer_tensor(node.name, edge) for node, edge in inputs if edge and not is_float32(node))
    made = tuple(None if edge is None else _integer_tensor(f"output_{i}", edge) for i, edge in outputs)
    return IntegerIO(taken, made) if taken and len(taken) == len(inputs) else None


class InFloat(nn.Module):
    """A module with integer inputs and outputs, as a function of floats."""

    def __init__(self, module: nn.Module, io: IntegerIO) -> None:
        super().__init__()
        self.module, self.io = module, io

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.io.dequantize(tree_leaves(self.module(*self.io.quantize(inputs))))


def _take_integers(holder: Node, dtype: torch.dtype) -> None:
    """Make an input of the program that is only quantized the integers themselves."""
    holder.meta["val"] = value_of(holder).to(dtype)
    holder.meta.pop("tensor_meta", None)
    for quantize in quantizes_of(holder):
        substitute(quantize, holder)


def _take_bytes(holder: Node, given: object, wanted: object) -> None:
    """Make an int8 input of the program uint8.

        x8 -> ..        xu8 -> dequantize -> quantize -> x8 -> ..

    Both have the same scale, so that the pair is a shift by 128, as an NPU or `pass_on_integers` computes it.
    """
    readers = list(holder.users)
    holder.meta["val"] = value_of(holder).to(torch.uint8)
    if not readers:
        return
    with holder.graph.inserting_after(holder):
        made = _requantized(holder, given, wanted)
    for reader in readers:
        reader.replace_input_with(holder, made)


def _requantized(x: Node, given: object, wanted: object) -> Node:
    real = add_dequantize(x, stored_as(given))
    with x.graph.inserting_after(real):
        return add_quantize(real, stored_as(wanted))


def _as_bytes(tensor: IntegerTensor) -> IntegerTensor:
    if tensor.dtype != DType.INT8.value:
        raise ModelError(
            f"`{tensor.name}` is {tensor.dtype} with zero point {tensor.zero_point}, which "
            'cannot be uint8: `io="uint8"` is for int8 inputs and outputs.',
            hint='int8 activations where the value is read or made, or io="int16"',
        )
    return replace(tensor, dtype=DType.UINT8.value, zero_point=tensor.zero_point + BYTE_SHIFT)


def _integer_tensor(name: str, edge: Edge) -> IntegerTensor:
    return IntegerTensor(name, edge.dtype.value, edge.qparams.scale[0], edge.zero_point)


_UNREAD = Edge(1.0, 0, -128, 127, torch.int8)
"""Qparams of an input that nothing reads."""


def _input_edge(view: ProgramView, node: Node) -> Edge:
    dtype = getattr(value_of(node), "dtype", None)
    if dtype is not torch.float32:
        hint = "leave out the integer inputs of the program, or compute what depends on this input elsewhere"
        if dtype is torch.uint8:
            hint = 'a model that takes floats, and `io="uint8"`: the program then takes bytes with qparams'
        raise ModelError(
            f"The input `{node.name}` is {str(dtype).removeprefix('torch.')}; integer inputs are quantized "
            "floats, int8 or int16.",
            hint=hint,
        )
    if not node.users:
        return _UNREAD
    if (edge := common_edge(map(view.edge, node.users))) is None:
        what = f"The input `{node.name}` is not quantized once for all its readers, so that it cannot be an integer."
        raise ModelError(what, hint=_HINT)
    return _known(edge, f"The input `{node.name}`")


def _output_edge(view: ProgramView, node: Node) -> Edge | None:
    dtype = getattr(value_of(node), "dtype", torch.float32)
    if dtype is not torch.float32:
        return None
    edge = view.read_qparams(node)
    if edge is None or view.constant(node.args[0]) is not None:
        raise ModelError(f"The output `{node.name}` is not quantized, so that it cannot be an integer.", hint=_HINT)
    return _known(edge, f"The output `{node.name}`")


def _known(edge: Edge, what: str) -> Edge:
    if edge.dtype not in (DType.INT8, DType.INT16):
        raise ModelError(f"{what} is {edge.dtype.value}; it can be int8 or int16.", hint=_HINT)
    return edge


# ---------------------------------------------------------------- states


def _with_qparams(state: State, edge: Edge, value: Node) -> State:
    """Return a state as integers; raise `ModelError` if its initial value is outside of the range."""
    scale, (_, zero, low, high, dtype) = edge.qparams.scale[0], edge
    steps_of = torch.round(state.initial.double() / scale) + zero
    if bool(((steps_of < low - 1) | (steps_of > high + 1)).any()):
        raise ModelError(
            f"The state `{state.name}` begins with {float(state.initial.abs().max()):.4g}, which is outside of the "
            f"int8 range from {scale * (low - zero):.4g} to {scale * (high - zero):.4g} of its new values"
            f"{_at(value)}.",
            hint="an initial value within that range",
        )
    return replace(state, initial=steps_of.clamp(low, high).to(dtype), scale=scale, zero_point=zero)


def integer_states(module: GraphModule) -> GraphModule:
    """Convert the states of a converted module to integers, in place.

    h float -> quantize -> h8 -> dequantize -> .. -> quantize -> y8 -> dequantize -> y float
                           h8 -> dequantize -> .. -> quantize -> y8
    """
    states = states_of(module)
    if not states:
        return module
    view, graph = ProgramView(module), module.graph
    output = graph.output_node()
    results = list(returned(module))
    made, ends = [], dict[int, Node]()
    for number, (state, holder, value) in enumerate(state_ends(module), len(results) - len(states.values)):
        quantizes = quantizes_of(holder)
        edge = view.read_qparams(value)
        whole = len(quantizes) == len(holder.users) - (output in holder.users)
        if edge is None or not whole or (not state.initial.is_floating_point()):
            if quantizes or edge is not None:
                raise _no_qparams(state, value, "float in or out")
            edge = view.result_qparams(value)  # of a module that was quantized before
            made.append(
                state if edge is None else replace(state, scale=edge.qparams.scale[0], zero_point=edge.zero_point)
            )
            continue
        if others := [other for other in map(view.edge, quantizes) if other != edge]:
            raise _no_qparams(state, value, f"{_qparams(others[0])} in and {_qparams(edge)} out")
        made.append(_with_qparams(state, edge, value))
        _take_integers(holder, edge.torch_dtype)
        ends[number] = value
    for number, value in ends.items():  # a state may be the new value of another, whose quantizes are gone only now
        results[number] = value.args[0]
    output.args = (tuple(results),)
    graph.eliminate_dead_code()
    graph.lint()
    module.meta[KEY] = replace(states, values=tuple(made))
    module.recompile()
    return module


def separate_clamps(module: GraphModule, excludes: Callable[[Node], bool]) -> bool:
    """Quantize the operand of a clamp that must stay on the core, in place.

        conv -> relu -> quantize        conv -> quantize -> dequantize -> relu -> quantize

    Otherwise both would stay on the core, since they share one quantize.  The new qparams are those of the clamp's
    result: they saturate only values that the clamp removes as well, so that the result is the same.
    """
    changed = False
    for node, clamp in findings(module, clamp_behind).items():
        if not excludes(clamp) or excludes(node):
            continue
        if (edge := common_edge(map(Edge.of, clamp.users))) is not None:
            clamp.replace_input_with(node, _rounded(node, edge))
            changed = True
    if changed:
        module.recompile()
    return changed


def keep_qparams(module: GraphModule) -> None:
    """Quantize what only moves or selects elements beside quantized values, in place.

    Converters and quantizers count a pad as a part of the convolution that reads it, and one operator of a file may be
    several of PyTorch's, of which only the last one is quantized.  Without qparams these would run in float.

        dequantize -> pad -> conv -> quantize    dequantize -> pad -> quantize -> dequantize -> conv -> quantize
        softmax -> view -> quantize              softmax -> quantize -> dequantize -> view -> quantize

    No result changes: the elements have these qparams already, or are rounded before they are moved instead of after.
    """
    constants = constant_nodes(module)
    moving = dict.fromkeys(nodes_where(module, lambda node: node not in constants and _moves(node)))
    for node in reversed(moving):
        _round_before(node, constants)
    quantized = set[Node]()  # nodes all of whose readers quantize the result, or that of a clamp or movements behind it
    for node in reversed(module.graph.nodes):
        end = clamp_behind(node) or node
        rest = end.users.keys() - quantizes_of(end)
        if end.users and (not rest or (node in moving and rest <= quantized)):
            quantized.add(node)
    for node in moving:
        _keep_behind(node, quantized)
    module.graph.lint()
    module.recompile()


def _moves(node: Node) -> bool:
    """Return True if the elements of a result are those of the operands, or zeros."""
    entry = known_import(node)
    if entry is None or not is_float32(node):
        return False
    rule = entry.rule_for(NodeArguments(node))
    return rule.selects and rule.padding == 0.0


def _operands(node: Node) -> list[Node]:
    return [operand for operand in node.all_input_nodes if is_float32(operand)]


def _round_before(node: Node, constants: Collection[Node]) -> None:
    """Round operands as the result, if all readers of the result quantize it alike."""
    operands = _operands(node)
    if (edge := common_edge(map(Edge.of, node.users))) is None:
        return
    for operand in operands:
        given = Edge.of(operand)
        is_ready = given == edge or (given is None and operand in constants)
        is_own = given is None and len(quantizes_of(operand)) == len(operand.users) - 1
        if not is_ready and (is_own or len(operands) > 1):
            node.replace_input_with(operand, _rounded(operand, edge))


def _keep_behind(node: Node, quantized: Collection[Node]) -> None:
    """Quantize the result as the operands are, for readers whose own results are quantized."""
    edge = common_edge(map(Edge.of, _operands(node)))
    readers = [user for user in node.users if user in quantized]
    if edge is None or not readers:
        return
    made = _rounded(node, edge)
    for reader in readers:
        reader.replace_input_with(node, made)


def _rounded(value: Node, edge: Edge) -> Node:
    with value.graph.inserting_before(place_behind(value)):
        return add_dequantize(add_quantize(value, edge), edge)


def _no_qparams(state: State, value: Node, found: str) -> ModelError:
    return ModelError(
        f"The state `{state.name}` cannot have one pair of qparams: it is {found}{_at(value)}.",
        hint="the same setting of the quantizer for the operators that read the state and for the one that makes its "
        "new value",
    )


def _qparams(edge: Edge | None) -> str:
    return "float" if edge is None else f"{edge.dtype.value} with steps of {edge.qparams.scale[0]:.4g}"


def _at(value: Node) -> str:
    return origin_of(float_behind(value)).at
