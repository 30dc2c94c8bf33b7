"""The evaluator of torch graphs: a plan of calls, made once, and followed for each input.

    Run(module).run(x)                           what module(x) returns; a value is freed after its last read
    Run(module, wanted=nodes).values({n: v})     the values of some nodes, computed from those that are known
    Run(module).run(x, behind=hook)              the hook sees each value, and what it returns is read instead

A step computes a node from the values of its operands.  Other steps than those of `step_of` give the same graph another
arithmetic: without observers, without rounding, or with values that are not known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.base.errors import InternalError
from micronpu.frontend.program import aten_overload
from micronpu.frontend.tensors import read
from micronpu.upstream.torch import schema_of

Values: TypeAlias = dict[Node, Any]
Step: TypeAlias = Callable[[Mapping[Node, Any]], Any]
Hook: TypeAlias = Callable[[Node, Any, Mapping[Node, Any]], Any]
"""Gets a node, its value, and the values of its operands; returns the value that is read instead."""
_NOTHING: Mapping[Node, Any] = MappingProxyType({})


def step_of(module: GraphModule, node: Node, function: Callable[..., Any] | None = None) -> Step:
    """Return the function that computes a node, which is no input, from the values of its operands.

    Args:
        function: called instead of the node's own, with the same arguments.
    """
    # Partial functions, as the cells of a closure per node make Python's garbage collector slow.
    if node.op == "get_attr":
        return functools.partial(_attribute, module, node)
    if node.op == "output":
        return functools.partial(_called, _same, node.args[:1], {})
    if function is None:
        target: Any = node.target
        function = module.get_submodule(target) if node.op == "call_module" else _function(node)
    if node.op not in ("call_function", "call_module") or not callable(function):
        raise InternalError(f"`{node.name}` is no call of a function.")
    return functools.partial(_called, function, node.args, node.kwargs)


def copying_step(module: GraphModule, node: Node) -> Step:
    """Return the step of a node; an operand that it writes into is copied, since it may have other readers."""
    return step_of(module, node, functools.partial(_copying, node.target) if is_mutable(node) else None)


def called(node: Node, values: Mapping[Node, Any]) -> Any:
    """Return the result of a call for values of its operands; one that it writes into is copied."""
    function = functools.partial(_copying, node.target) if is_mutable(node) else _function(node)
    return _called(function, node.args, node.kwargs, values)


def _function(node: Node) -> Any:
    """Return the function that a node calls, with a division that does not end the process."""
    return truncated_quotient if node.kwargs.get("rounding_mode") == "trunc" and not is_mutable(node) else node.target


def is_mutable(node: Node) -> bool:
    """Return True for a call of an operator that writes into an operand."""
    overload = aten_overload(node)
    return overload is not None and schema_of(overload).is_mutable


def truncated_quotient(x: Any, divisor: Any, rounding_mode: str = "trunc") -> torch.Tensor:
    """Return `torch.div` towards zero; the smallest integer divided by -1, which ends a process, is itself."""
    if torch.result_type(x, divisor).is_floating_point:
        return torch.div(x, divisor, rounding_mode=rounding_mode)
    negates = torch.as_tensor(divisor == -1)
    quotient = torch.div(x, torch.where(negates, 1, divisor), rounding_mode=rounding_mode)
    return torch.where(negates, -quotient, quotient)


def _attribute(module: GraphModule, node: Node, _: Mapping[Node, Any]) -> Any:
    return read(module, node)


def _called(function: Callable[..., Any], args: Any, kwargs: Any, values: Mapping[Node, Any]) -> Any:
    given: Any = torch.fx.map_arg(args, values.__getitem__)
    return function(*given, **torch.fx.map_arg(kwargs, values.__getitem__)) if kwargs else function(*given)


def _copying(function: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
    return function(first.clone() if isinstance(first, torch.Tensor) else first, *args, **kwargs)


def _same(value: Any) -> Any:
    return value


class Run:
    """Runs a module.

    Args:
        step: returns the step of a node that is no input; default: `step_of`.
        wanted: nodes whose values are returned; what they do not need is not computed. Default: the whole graph runs.
        known: nodes whose values are given to `values`.
        once: nodes that depend on no input, whose values are computed in the first call only.
        late: nodes that depend on no input, and are computed right before their first reader.
    """

    def __init__(
        self,
        module: GraphModule,
        step: Callable[[Node], Step] | None = None,
        *,
        wanted: Iterable[Node] | None = None,
        known: Collection[Node] = (),
        once: Collection[Node] = (),
        late: Collection[Node] = (),
    ) -> None:
        self._graph = module.graph
        self._wanted = (module.graph.output_node(),) if wanted is None else tuple(wanted)
        step, kept = step or functools.partial(step_of, module), {*self._wanted, *once}
        nodes = list(module.graph.nodes) if wanted is None else _needed(self._wanted, known)
        if late:
            nodes = list(dict.fromkeys(n for node in nodes if node not in late for n in _with_late(node, late)))
        last = {operand: node for node in nodes for operand in node.all_input_nodes if operand.op != "get_attr"}
        frees: dict[Node, list[Node]] = {}
        for operand, node in last.items():
            if operand not in kept:
                frees.setdefault(node, []).append(operand)
        self._plan = [(n, None if n.op == "placeholder" else step(n), n in once, frees.get(n, ())) for n in nodes]
        self._fixed: Values = {}

    def run(self, *inputs: Any, behind: Hook | None = None) -> Any:
        """Return the results of the module."""
        values = dict(self._fixed)
        for _ in self.each(values, *self._graph.process_inputs(*inputs), behind=behind):
            pass
        return self._graph.process_outputs(values[self._wanted[0]])

    def values(self, known: Mapping[Node, Any] = _NOTHING, *inputs: Any, behind: Hook | None = None) -> Values:
        """Return the values of the wanted nodes.

        Args:
            known: values that are not computed.
            inputs: of the graph, as far as they are not known.
        """
        values = {**self._fixed, **known}
        for _ in self.each(values, *inputs, behind=behind):
            pass
        return {node: values[node] for node in self._wanted}

    def each(self, values: Values, *inputs: Any, behind: Hook | None = None) -> Iterator[Node]:
        """Compute values in place, and yield each node before its operands are freed."""
        given = iter(inputs)
        for node, step, is_fixed, frees in self._plan:
            if node not in values:
                value = next(given) if step is None else step(values)
                values[node] = value if behind is None else behind(node, value, values)
                if is_fixed:
                    self._fixed[node] = values[node]
                yield node
            for operand in frees:
                del values[operand]


def _with_late(node: Node, late: Collection[Node]) -> Iterator[Node]:
    yield from (operand for operand in node.all_input_nodes if operand in late)
    yield node


def _needed(wanted: Iterable[Node], known: Collection[Node]) -> list[Node]:
    """Return the wanted nodes and those that they depend on, in the order of the graph."""
    found, waiting = set[Node](), list(wanted)
    while waiting:  # no recursion: a chain of operators may be thousands long
        node = waiting.pop()
        if node not in found and node not in known:
            found.add(node)
            waiting += node.all_input_nodes
    return sorted(found)


@torch.no_grad()
def evaluate(module: GraphModule, value: Any) -> Any:
    """Return the value of an argument that depends on constants alone."""
    nodes: dict[Node, None] = {}
    torch.fx.map_arg(value, lambda n: nodes.setdefault(n))
    for node in _needed(nodes, ()):
        if node.op not in ("get_attr", "call_function"):
            raise InternalError(f"`{node.name}` is no constant.")
    values = Run(module, wanted=nodes).values(behind=_detached)
    return torch.fx.map_arg(value, values.__getitem__)


def _detached(node: Node, value: Any, _: Mapping[Node, Any]) -> Any:
    return value.detach() if node.op == "get_attr" and isinstance(value, torch.Tensor) else value
