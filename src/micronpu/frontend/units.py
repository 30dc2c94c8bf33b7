"""The operators of a program, with the quantization around them and imported at most once, and their work."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from torch.fx import GraphModule, Node

from micronpu.base.errors import UnsupportedError
from micronpu.frontend import program
from micronpu.frontend.importer import GraphPiece, clamp_behind, function_behind, import_of, import_piece, known_import
from micronpu.frontend.program import ProgramView, arguments, is_compute, overload_name, value_of
from micronpu.frontend.run import WrittenFunction
from micronpu.ops import facts
from micronpu.ops.recurrent import CELLS, RECURRENT
from micronpu.ops.softmax import ATTENTION


@dataclass(eq=False)
class Unit:
    """An operator with the quantization around it.

    Attributes:
        view: the program.
        head: the operator, of a function the last one; None for a dequantize directly before a quantize.
        body: operator, fused clamp and unpacking, in execution order.
        quantizes: quantize nodes of the result.
        reads: integer nodes (quantizes, inputs of the program) that the operands are made from.
        dequantizes: nodes between ``reads`` and ``body``.
        constants: dequantizes and transposes of constants.
        function: of one element, which the operators of the body compute, or None.
    """

    view: ProgramView
    head: Node | None
    body: list[Node]
    quantizes: list[Node]
    reads: list[Node] = field(default_factory=list)
    dequantizes: list[Node] = field(default_factory=list)
    constants: list[Node] = field(default_factory=list)
    function: WrittenFunction | None = None

    @property
    def anchor(self) -> Node:
        return self.body[0] if self.body else self.quantizes[0]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return every node that belongs to it."""
        return (*self.body, *self.quantizes, *self.dequantizes, *self.constants)

    @property
    def moves_only(self) -> bool:
        entry = known_import(self.head) if self.head is not None else None
        return self.function is None and (self.head is None or (entry is not None and entry.moves_only))

    @functools.cached_property
    def imported(self) -> GraphPiece | UnsupportedError:
        """Its graph, or the error why it cannot be expressed."""
        if self.head is not None and self.function is None:
            try:
                import_of(self.head)
            except UnsupportedError as error:
                return error.with_traceback(None)
        for node in self.body:
            if outside := [u for u in node.users if u not in self.body and u not in self.quantizes]:
                return UnsupportedError(
                    f"`{outside[0].name}` reads the float result of `{node.name}`", hint="quantize that operator too"
                )
        try:
            return import_piece(self.view, self.quantizes)
        except UnsupportedError as error:
            return error.with_traceback(None)  # the traceback would keep the importer and its arrays alive


def feeds_only_constants(view: ProgramView, node: Node) -> bool:
    """Return True if the node computes weights (a transpose of them) at compile time."""
    return bool(node.all_input_nodes) and all(
        view.constant(s) is not None or (program.is_any_dequantize(s) and _reads_constants(view, s))
        for s in node.all_input_nodes
    )


def _reads_constants(view: ProgramView, node: Node) -> bool:
    return all(view.constant(source) is not None for source in node.all_input_nodes)


def find_units(view: ProgramView) -> tuple[list[Unit], dict[Node, Unit]]:
    """Return the units in the order of the program, and the unit of each node of a body and of each quantize."""
    units: list[Unit] = []
    unit_of: dict[Node, Unit] = {}
    for node in view.graph.nodes:
        if (source := program.quantized_from(node)) is node or not isinstance(source, Node):
            continue
        if (unit := unit_of.get(source)) is not None:
            unit.quantizes.append(node)
        elif (unit := _unit(view, source, node)) is not None:
            units.append(unit)
            unit_of |= dict.fromkeys(unit.body, unit)
        else:
            continue
        unit_of[node] = unit
    return units, unit_of


def _unit(view: ProgramView, source: Node, quantize: Node) -> Unit | None:
    body = [source]
    if (integers := program.integers_behind(source)) is not source:
        if view.constant(integers) is not None:
            return None
        body = []
    elif program.is_getitem(source) or program.is_float_cast(source):
        body = [source.all_input_nodes[0], source]
    if body and not is_compute(body[0]):
        return None
    previous = body[0].args[0] if body and body[0].args else None
    if isinstance(previous, Node) and clamp_behind(previous) is body[0]:
        body.insert(0, previous)
    unit = Unit(view, body[0] if body else None, body, [quantize])
    operands = body[0].all_input_nodes if body else [source]
    if body and (function := function_behind(view, source, body[0])) is not None:
        unit = Unit(view, source, [*function.nodes], [quantize], function=function)
        operands = [*function.reads]
    for operand in operands:
        _add_operand(unit, operand)
    return unit


def _add_operand(unit: Unit, operand: Node) -> None:
    """Add an operand to a unit: a dequantized activation, or the nodes that make a constant."""
    view = unit.view
    while view.constant(operand) is None:
        if not (program.is_any_dequantize(operand) or feeds_only_constants(view, operand)):
            if program.is_index(operand):
                unit.reads.append(operand)
            return
        source = operand.args[0]
        assert isinstance(source, Node)
        if program.is_dequantize(operand) and view.constant(source) is None:
            unit.dequantizes.append(operand)
            if source not in unit.reads:
                unit.reads.append(source)
            return
        unit.constants.append(operand)
        operand = source


def multiply_accumulates(module: GraphModule) -> int:
    """Return the number in convolutions, recurrent layers and products of matrices; others are negligible."""
    return sum(work_of(module).values())


def work_of(module: GraphModule) -> dict[str, int]:
    """Return the number by the name of the operator."""
    return {node.name: macs_of(module, node) for node in module.graph.nodes if node.op == "call_function"}


def macs_of(module: GraphModule, node: Node) -> int:
    """Return the number of multiply-accumulate operations of an operator."""
    name = overload_name(node)
    given = arguments(node) if name else {}
    if (matrix := facts.FIRST_MATRIX.get(name.partition(".")[0])) is not None:
        return math.prod(_shape(module, node)) * _shape(module, given[matrix])[-1]
    if (transposed := facts.is_transposed(name, given)) is not None:
        places, window = _shape(module, node.args[0] if transposed else node), _shape(module, node.args[1])[1:]
        return math.prod((*places, *window))
    if name in (*RECURRENT, *CELLS):
        shapes = [_shape(module, n) for n in node.all_input_nodes if n.op == "get_attr"]
        return math.prod(_shape(module, node.args[0])[:-1]) * sum(math.prod(s) for s in shapes if len(s) == 2)
    if name == ATTENTION:
        return 2 * math.prod(_shape(module, node.args[0])) * _shape(module, node.args[1])[-2]
    return 0


def _shape(module: GraphModule, node: Any) -> tuple[int, ...]:
    while program.is_any_dequantize(node):  # that of a constant has no example value
        node = node.args[0]
    return tuple((attrgetter(node.target)(module) if node.op == "get_attr" else value_of(node)).shape)
