"""Unrolling of `while_loop`: its body is repeated as often as it runs.

NPUs have no loops, and ExecuTorch's runtime has no `while_loop`.  The number of steps is known if the condition depends
only on constants and on the loop's counters. If it also depends on data, `i < 8 and error > 0.1`, the number is a
bound, and `where` keeps the values from the step at which the condition was first false.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import read
from micronpu.frontend.program import calls_into, overload_name, value_of
from micronpu.ops import facts
from micronpu.ops.calls import BOTH, CHOICE
from micronpu.ops.truths import LOGIC
from micronpu.upstream.torch import OpOverload

MOST_STEPS = 64
"""Maximum number of steps of an unrolled loop."""
_MOST_ELEMENTS = 4096
"""Maximum number of elements of a constant that is evaluated."""
_UNKNOWN = object()
_Values: TypeAlias = dict[Node, Any]


def write_out_loops(module: GraphModule, also: Collection[str] = ()) -> tuple[tuple[str, int, bool], ...]:
    """Unroll every `while_loop` with a bounded number of steps, in place.

        while_loop({i < 2}, {i + 1, relu(a(x))}, i=0, x) -> x        relu(a(relu(a(x))))

    Args:
        also: paths of buffers that other methods of the program write.

    Returns:
        Name of each loop, its steps, and whether data may end it earlier.
    """
    found = [n for n in module.graph.nodes if flow_name(n) == "while_loop"]
    written = []
    for node in found:
        loop = _Loop(module, node, frozenset(also))
        if loop.is_plain and (bound := loop.steps()):
            steps, ends_early = bound
            loop.write(steps, ends_early)
            written.append((node.name, steps, ends_early))
    if written:
        module.graph.eliminate_dead_code()
        module.delete_all_unused_submodules()
        module.graph.lint()
        module.recompile()
    return tuple(written)


def flow_name(node: Node) -> str:
    """Return the name of a control flow operator, such as ``cond``; "" for other nodes."""
    target: Any = node.target
    return target.name() if getattr(target, "namespace", "") == "higher_order" else ""


class _Loop:
    """A loop: its carried values and its further operands."""

    def __init__(self, module: GraphModule, node: Node, written: frozenset[str]) -> None:
        self._module, self._node = module, node
        condition, body, carried, *rest = node.args
        self._condition, self._body = (getattr(module, str(getattr(g, "target", ""))) for g in (condition, body))
        self._carried: list[Any] = list(carried)  # type: ignore[arg-type]
        self._given: list[Any] = list(rest[0]) if rest else []  # type: ignore[arg-type]
        self._outside = _Constants(module, written)
        self._counts = [True] * len(self._carried)

    @property
    def is_plain(self) -> bool:
        """True if it carries tensors, and its graphs are plain operators without control flow or attributes."""
        users = self._node.users
        if not all(isinstance(v, Node) and isinstance(value_of(v), torch.Tensor) for v in self._carried):
            return False
        nodes = [n for graph in (self._condition, self._body) for n in graph.graph.nodes]
        return all(u.target is operator.getitem for u in users) and not any(
            n.op in ("call_module", "get_attr") or flow_name(n) for n in nodes
        )

    def steps(self) -> tuple[int, bool] | None:
        """Return the maximum number of steps, and whether data may end it earlier; None if it is unbounded."""
        state = [self._outside.value(v) for v in self._carried]
        given = [self._outside.value(v) for v in self._given]
        ends_early = False
        for step in range(MOST_STEPS + 1):
            self._counts = [a and b is not _UNKNOWN for a, b in zip(self._counts, state, strict=True)]
            (goes_on,) = _results(self._condition, [*state, *given])
            if goes_on is _UNKNOWN:
                ends_early = True
            elif not bool(goes_on):
                return step, ends_early
            if step < MOST_STEPS:
                state = _results(self._body, [*state, *given])
        return None

    def write(self, steps: int, ends_early: bool) -> None:
        """Replace the loop by its steps."""
        module, node = self._module, self._node
        state, results = list(self._carried), list(self._carried)
        active: Any = None
        with module.graph.inserting_before(node):
            for _ in range(steps):
                made = self._inlined(self._body, state)
                if ends_early:
                    (goes_on,) = self._inlined(self._condition, state)
                    active = goes_on if active is None else called(module, BOTH, (active, goes_on), value_of(goes_on))
                    results = [self._kept(active, new, old) for new, old in zip(made, results, strict=True)]
                else:
                    results = made
                # Known values keep counting after the end: they are not read there, and remain constants.
                state = [new if counts else kept for new, kept, counts in zip(made, results, self._counts, strict=True)]
        for reader in list(node.users):
            chosen = results[reader.args[1]]  # type: ignore[index]
            reader.replace_all_uses_with(chosen)
            module.graph.erase_node(reader)
        module.graph.erase_node(node)

    def _kept(self, active: Node, new: Any, old: Any) -> Any:
        """Return the carried value: the new one while the loop runs, or else the old one."""
        if new is old:
            return new
        return called(self._module, CHOICE, (active, new, old), value_of(new))

    def _inlined(self, graph: GraphModule, state: Sequence[Any]) -> list[Any]:
        return inlined(self._module, graph, [*state, *self._given])


def inlined(module: GraphModule, graph: GraphModule, operands: Sequence[Any]) -> list[Any]:
    """Copy the operators of a branch or a step into the graph of the module, and return its results."""
    copies: dict[Node, Any] = {}
    waiting = iter(operands)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(waiting)
        elif node.op != "output":
            copies[node] = module.graph.node_copy(node, copies.__getitem__)
    return [copies[r] if isinstance(r, Node) else r for r in given_back(graph)]


def called(module: GraphModule, overload: str, arguments: tuple[Any, ...], value: Any) -> Node:
    """Append an operator with the source line of its first operand, and return it."""
    made = calls_into(module.graph)(overload, *arguments)
    meta: Mapping[str, Any] = next((a.meta for a in arguments if isinstance(a, Node)), {})
    made.meta.update({key: meta[key] for key in ("stack_trace", "nn_module_stack") if key in meta})
    made.meta["val"] = value
    return made


def given_back(graph: GraphModule) -> list[Any]:
    """Return the results of a graph."""
    (given,) = graph.graph.output_node().args
    return list(given) if isinstance(given, (tuple, list)) else [given]


def _results(graph: GraphModule, given: Sequence[Any]) -> list[Any]:
    """Return the results of a graph for inputs of which some are unknown."""
    values: _Values = {}
    waiting = iter(given)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(waiting)
        elif node.op == "call_function":
            values[node] = _computed(node, values)
    return [values[r] if isinstance(r, Node) else r for r in given_back(graph)]


def _computed(node: Node, values: _Values) -> Any:
    """Return the value of a node if its operands are known; for `and`, if one operand is known to be false."""
    target: Any = node.target
    operands = [values.get(n, _UNKNOWN) for n in node.all_input_nodes]
    if any(value is _UNKNOWN for value in operands):
        falsehoods = [v for v in operands if isinstance(v, torch.Tensor) and v.numel() == 1 and not bool(v)]
        is_and = LOGIC.get(overload_name(node)) == "and"
        return falsehoods[0] if is_and and falsehoods else _UNKNOWN
    if isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags:
        return _UNKNOWN
    made = value_of(node)
    if isinstance(made, torch.Tensor) and not _is_small(made):
        return _UNKNOWN
    arguments, named = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: copy.deepcopy(values[n]))
    with torch.no_grad():
        return target(*arguments, **named)


def _is_small(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape) and value.numel() <= _MOST_ELEMENTS


class _Constants:
    """Values of a graph that depend only on constants."""

    def __init__(self, module: GraphModule, written: frozenset[str]) -> None:
        self._module, self._written = module, written
        self._values: _Values = {}

    def value(self, operand: Any) -> Any:
        """Return the value of an operand: a node or a number."""
        if not isinstance(operand, Node):
            return operand
        if operand not in self._values:
            for node in operand.graph.nodes:
                if node not in self._values:
                    self._values[node] = self._of(node)
                if node is operand:
                    break
        return self._values[operand]

    def _of(self, node: Node) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        return _computed(node, self._values) if node.op == "call_function" and not flow_name(node) else _UNKNOWN

    def _attribute(self, node: Node) -> Any:
        """Return a small tensor that is neither written nor trained."""
        found = read(self._module, node)
        is_changed = str(node.target) in self._written or any(
            overload_name(user) == facts.WRITE and user.args[0] is node for user in node.users
        )
        is_constant = isinstance(found, torch.Tensor) and not isinstance(found, torch.nn.Parameter)
        return found if is_constant and not is_changed and _is_small(found) else _UNKNOWN
