"""torch's graphs: their types, and their nodes by what they do.

    calls(module, *LINEAR)           the calls of linear layers, in the order of the graph
    nodes_where(module, is_write)    the nodes for which a function returns True
    findings(view, view.edge)        what a function returns for each node, without None
    called_modules(module, Loop)     the calls of modules of a class, each with its module
    operand(node, 1)                 an argument that is a node

Lists of nodes are made at once, so that the caller may change the graph while it goes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph as Graph
from torch.fx import GraphModule as GraphModule
from torch.fx import Node as Node
from torch.fx import map_arg as map_arg
from torch.fx.node import Argument as Argument

from micronpu.frontend.program import ProgramView, overload_name

Program: TypeAlias = GraphModule | ExportedProgram | ProgramView
Found = TypeVar("Found")
Module = TypeVar("Module", bound=nn.Module)


def calls(model: Program, *overloads: str) -> list[Node]:
    """Return the calls of functions, or of these operators alone; the caller may change the graph meanwhile."""
    called = (node for node in model.graph.nodes if node.op == "call_function")
    return [node for node in called if not overloads or overload_name(node) in overloads]


def nodes_where(model: Program, holds: Callable[[Node], object]) -> list[Node]:
    """Return the nodes for which a function returns a true value; the caller may change the graph meanwhile."""
    return [node for node in model.graph.nodes if holds(node)]


def findings(model: Program, find: Callable[[Node], Found | None]) -> dict[Node, Found]:
    """Return what a function returns for each node, without None."""
    return {node: found for node in model.graph.nodes if (found := find(node)) is not None}


def called_modules(model: GraphModule, kind: type[Module]) -> Iterator[tuple[Node, Module]]:
    """Yield each call of a module of a class, and the module."""
    for node in model.graph.find_nodes(op="call_module"):
        if isinstance(module := model.get_submodule(str(node.target)), kind):
            yield node, module


def operand(node: Node, place: int = 0) -> Node:
    """Return an argument that is the result of another node."""
    found = node.args[place]
    assert isinstance(found, Node), f"argument {place} of {node.format_node()}"
    return found


def place_of(getitem: Node) -> int:
    """Return which of several results a node takes."""
    place = getitem.args[1]
    assert isinstance(place, int), getitem.format_node()
    return place


def returned(model: Program) -> tuple[Any, ...]:
    """Return the nodes that a program returns, and constants among them."""
    found = model.graph.output_node().args[0]
    assert isinstance(found, (tuple, list)), "a program returns a tuple"
    return tuple(found)


def by_name(model: Program) -> dict[str, Node]:
    return {node.name: node for node in model.graph.nodes}
