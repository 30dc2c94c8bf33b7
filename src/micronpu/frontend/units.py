"""The operators of a program, with the quantization around them and imported at most once, and their work."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from micronpu.base.errors import UnsupportedError
from micronpu.frontend import program
from micronpu.frontend.graphs import GraphModule, Node, calls
from micronpu.frontend.importer import Body, GraphPiece, import_of, import_piece, known_import, path_to_constant
from micronpu.frontend.program import ProgramView, arguments, is_compute, overload_name, value_of
from micronpu.frontend.run import WrittenFunction
from micronpu.ops import facts
from micronpu.ops.recurrent import CELLS, RECURRENT
from micronpu.ops.softmax import ATTENTION


@dataclass(eq=False)
class Unit:
    """An operator with the quantization around it."""

    view: ProgramView  # the program
    head: Node | None  # the operator, of a function the last one; None for a dequantize directly before a quantize
    body: list[Node]  # operator, fused clamp and unpacking, in execution order
    quantizes: list[Node]  # quantize nodes of the result
    # Integer nodes (quantizes, inputs of the program) that the operands are made from.
    reads: list[Node] = field(default_factory=list)
    dequantizes: list[Node] = field(default_factory=list)  # nodes between ``reads`` and ``body``
    constants: list[Node] = field(default_factory=list)  # dequantizes and transposes of constants
    function: WrittenFunction | None = None  # of one element, which the operators of the body compute, or None

    @property
    def anchor(self) -> Node:
        return self.body[0] if self.body else self.quantizes[0]

    @property
    def nodes(self) -> tuple[Node, ...]:
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
    return bool(node.all_input_nodes) and all(path_to_constant(view, s) for s in node.all_input_nodes)


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
    if (integers := program.integers_behind(source)) is not source:
        unit, operands = Unit(view, None, [], [quantize]), [source]
        if view.constant(integers) is not None:
            return None
    else:
        body = Body.of(view, source)
        if not is_compute(body.nodes[0]):
            return None
        unit = Unit(view, body.head, [*body.nodes], [quantize], function=body.function)
        operands = [*body.function.reads] if body.function is not None else body.head.all_input_nodes
    for operand in operands:
        if path := path_to_constant(view, operand):
            unit.constants += path[:-1]
        elif (integers := program.integers_behind(operand)) is not operand:
            unit.dequantizes.append(operand)
            if integers not in unit.reads:
                unit.reads.append(integers)
        elif program.is_index(operand):
            unit.reads.append(operand)
    return unit


def multiply_accumulates(module: GraphModule) -> int:
    """Return the number in convolutions, recurrent layers and products of matrices; others are negligible."""
    return sum(work_of(module).values())


def work_of(module: GraphModule) -> dict[str, int]:
    """Return the number by the name of the operator."""
    return {node.name: macs_of(module, node) for node in calls(module)}


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
