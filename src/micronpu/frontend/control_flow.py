"""Control flow as operators that an NPU computes: branches of a `torch.cond`, steps of a `while_loop`, and regions.

NPUs have neither branches nor loops. A branch that stays in the program consists of float operators on the core, and an
NPU invocation for each branch would cost two invocations and their inputs and outputs, instead of one. ExecuTorch's
runtime has no `while_loop`. The number of steps is known if the condition depends only on constants and on the loop's
counters. If it also depends on data, `i < 8 and error > 0.1`, the number is a bound, and `where` keeps the values from
the step at which the condition was first false.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from micronpu.frontend.graphs import GraphModule, Node, findings, map_arg, nodes_where
from micronpu.frontend.program import aten_overload, calls_into, is_getitem, only_checks, overload_name, value_of
from micronpu.frontend.run import Run, Step, step_of
from micronpu.frontend.tensors import copied, free_name, read, with_graph, with_own_graph
from micronpu.ops import facts
from micronpu.ops.calls import BOTH, CHOICE
from micronpu.ops.truths import LOGIC
from micronpu.upstream.torch import OpOverload

_REGIONS = (
    "tag_activation_checkpoint",
    "wrap",
    "wrap_activation_checkpoint",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
)


def compute_both_branches(module: GraphModule) -> tuple[str, ...]:
    """Inline the branches of every `cond` into the graph, in place.

        cond(p, {relu(a(x))}, {tanh(b(x))}, x) -> y        where(p, relu(a(x)), tanh(b(x))) -> y

    Exact for the result of the chosen branch: branches have no side effects, and the other result is discarded.

    Returns:
        Names of the `cond`s, in their order.
    """
    found = nodes_where(module, lambda n: flow_name(n) == "cond" and _can_choose(module, n))
    for node in found:
        predicate, true, false, operands = (*node.args,)
        assert isinstance(predicate, Node) and isinstance(operands, (list, tuple))
        with module.graph.inserting_before(node):
            made = (_listed(inlined(module, _branch(module, b), operands)) for b in (true, false))
            chosen = [_chosen(module, predicate, a, b) for a, b in zip(*made, strict=True)]
        _replace(node, chosen)
    if found:
        _clean(module)
    return tuple(node.name for node in found)


def _branch(module: GraphModule, node: Any) -> GraphModule:
    branch = getattr(module, node.target)
    assert isinstance(branch, GraphModule)
    return branch


def _can_choose(module: GraphModule, node: Node) -> bool:
    """Return True if the predicate is a tensor, and both branches are plain graphs with tensors of the same shapes."""
    predicate, *branches, _ = node.args
    graphs = [_branch(module, b) for b in branches]
    if not isinstance(predicate, Node) or not _is_plain(node, *graphs):
        return False
    results = []
    for branch in graphs:
        given = _listed(branch.graph.output_node().args[0])
        if not all(isinstance(r, Node) and isinstance(value_of(r), torch.Tensor) for r in given):
            return False
        results.append([(value_of(r).shape, value_of(r).dtype) for r in given])
    return results[0] == results[1]


def _chosen(module: GraphModule, predicate: Node, true: Node, false: Node) -> Node:
    if true is false:
        return true
    return called(module, CHOICE, (predicate, true, false), value_of(true))


MOST_STEPS = 64
"""Maximum number of steps of an unrolled loop."""
_MOST_ELEMENTS = 4096
"""Maximum number of elements of a constant that is evaluated."""
_UNKNOWN = object()


def without_regions(program: ExportedProgram) -> ExportedProgram:
    """Return the program with its regions inlined, nested ones too; the same object if it has none.

    wrap_with_autocast("cpu", bfloat16, True, True, {relu(conv(x))}, x)  ->  relu(conv(x))

    A compiled program computes no gradients, and ignores autocast: it computes in float32 and integers. So a region is
    equivalent to its operators.
    """
    if not any(map(_is_region, program.graph.nodes)):
        return program
    module = with_own_graph(program.graph_module)
    for node in nodes_where(module, _is_region):
        body, operands = _parts(module, node)
        with module.graph.inserting_before(node):
            results = inlined(module, body, operands)
        _replace(node, results)
    for node, overload in findings(module, aten_overload).items():
        if only_checks(overload):
            module.graph.erase_node(node)  # such as a check of the dtype under autocast
    _clean(module)
    return with_graph(program, module)


def _is_region(node: Node) -> bool:
    return flow_name(node) in _REGIONS and any(isinstance(a, Node) and a.op == "get_attr" for a in node.args)


def _parts(module: GraphModule, node: Node) -> tuple[GraphModule, Sequence[Any]]:
    """Return the graph of a region and its operands, which follow it in the arguments."""
    at, holder = next((i, a) for i, a in enumerate(node.args) if isinstance(a, Node) and a.op == "get_attr")
    body = module.get_submodule(str(holder.target))
    assert isinstance(body, GraphModule)
    return body, node.args[at + 1 :]


def write_out_loops(module: GraphModule, also: Collection[str] = ()) -> tuple[tuple[str, int, bool], ...]:
    """Unroll every `while_loop` with a bounded number of steps, in place.

        while_loop({i < 2}, {i + 1, relu(a(x))}, i=0, x) -> x        relu(a(relu(a(x))))

    Returns:
        Name of each loop, its steps, and whether data may end it earlier.
    """
    found = nodes_where(module, lambda n: flow_name(n) == "while_loop")
    written = []
    for node in found:
        loop = _Loop(module, node, frozenset(also))
        if loop.is_plain and (bound := loop.steps()):
            steps, ends_early = bound
            loop.write(steps, ends_early)
            written.append((node.name, steps, ends_early))
    if written:
        _clean(module)
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
        self._carried, self._given = _listed(carried), _listed(rest[0]) if rest else []
        self._outside = _Constants(module, written)
        self._counts = [True] * len(self._carried)

    @property
    def is_plain(self) -> bool:
        """True if it carries tensors, and its graphs are plain operators without control flow or attributes."""
        are_tensors = all(isinstance(v, Node) and isinstance(value_of(v), torch.Tensor) for v in self._carried)
        return are_tensors and _is_plain(self._node, self._condition, self._body)

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
        _replace(node, results)

    def _kept(self, active: Node, new: Any, old: object) -> Any:
        if new is old:
            return new
        return called(self._module, CHOICE, (active, new, old), value_of(new))

    def _inlined(self, graph: GraphModule, state: Sequence[object]) -> list[Any]:
        return _listed(inlined(self._module, graph, [*state, *self._given]))


def inlined(module: GraphModule, graph: GraphModule, operands: Sequence[object]) -> Any:
    """Copy the operators of a branch, a step or a region into the graph of the module; return what it returns."""
    copies: dict[Node, Any] = {}
    waiting = iter(operands)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(waiting)
        elif _is_region(node):
            body, given = _parts(graph, node)
            copies[node] = inlined(module, body, map_arg(tuple(given), copies.__getitem__))
        elif is_getitem(node) and isinstance(copies[node.args[0]], (tuple, list)):
            copies[node] = copies[node.args[0]][node.args[1]]
        elif node.op == "get_attr":
            if not all(map(_is_region, node.users)):  # the graphs of a torch.cond, or a constant
                name = free_name(module, "of_region")
                setattr(module, name, read(graph, node))
                copies[node] = module.graph.get_attr(name)
                copies[node].meta.update(node.meta)
        elif node.op != "output":
            copies[node] = module.graph.node_copy(node, copies.__getitem__)
    return map_arg(graph.graph.output_node().args[0], copies.__getitem__)


def _replace(node: Node, results: Any) -> None:
    """Replace an operator of control flow by its result, or what reads its results by these, and erase it."""
    readers = list(node.users)
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
    else:
        for reader in readers:
            reader.replace_all_uses_with(results[reader.args[1]])
            node.graph.erase_node(reader)
    node.graph.erase_node(node)


def _clean(module: GraphModule) -> None:
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.graph.lint()
    module.recompile()


def _is_plain(node: Node, *graphs: GraphModule) -> bool:
    """Return True if results are read one by one, and graphs have neither control flow nor attributes."""
    return all(u.target is operator.getitem for u in node.users) and not any(
        nodes_where(graph, lambda n: n.op in ("call_module", "get_attr") or flow_name(n)) for graph in graphs
    )


def called(module: GraphModule, overload: str, arguments: tuple[object, ...], value: object) -> Node:
    """Append an operator with the source line of its first operand, and return it."""
    made = calls_into(module.graph)(overload, *arguments)
    meta: Mapping[str, object] = next((a.meta for a in arguments if isinstance(a, Node)), {})
    made.meta.update({key: meta[key] for key in ("stack_trace", "nn_module_stack") if key in meta})
    made.meta["val"] = value
    return made


def _listed(results: object) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _results(graph: GraphModule, given: Sequence[object]) -> list[Any]:
    return _listed(Run(graph, functools.partial(_known_step, graph)).run(*given))


def _known_step(module: GraphModule, node: Node) -> Step:
    step = step_of(module, node)
    return step if node.op == "output" else functools.partial(_computed, node, step)


def _computed(node: Node, step: Step, values: Mapping[Node, object]) -> Any:
    """Return the value of a node if its operands are known; for `and`, if one operand is known to be false."""
    operands = [values[n] for n in node.all_input_nodes]
    if any(value is _UNKNOWN for value in operands):
        falsehoods = [v for v in operands if isinstance(v, torch.Tensor) and v.numel() == 1 and not bool(v)]
        is_and = LOGIC.get(overload_name(node)) == "and"
        return falsehoods[0] if is_and and falsehoods else _UNKNOWN
    if isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
        return _UNKNOWN
    made = value_of(node)
    if isinstance(made, torch.Tensor) and not _is_small(made):
        return _UNKNOWN
    with torch.no_grad():
        return step({n: copied(value) for n, value in zip(node.all_input_nodes, operands, strict=True)})


def _is_small(value: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in value.shape) and value.numel() <= _MOST_ELEMENTS


class _Constants:
    """Values of a graph that depend only on constants."""

    def __init__(self, module: GraphModule, written: frozenset[str]) -> None:
        self._module, self._written = module, written
        self._inputs = dict.fromkeys(module.graph.find_nodes(op="placeholder"), _UNKNOWN)

    def value(self, operand: object) -> Any:
        """Return the value of an operand: a node or a number."""
        if not isinstance(operand, Node):
            return operand
        return Run(self._module, self._step, wanted=[operand], known=self._inputs).values(self._inputs)[operand]

    def _step(self, node: Node) -> Step:
        if node.op == "get_attr":
            return lambda _: self._attribute(node)
        is_plain = node.op == "call_function" and not flow_name(node)
        return _known_step(self._module, node) if is_plain else lambda _: _UNKNOWN

    def _attribute(self, node: Node) -> object:
        """Return a small tensor that is neither written nor trained."""
        found = read(self._module, node)
        is_changed = str(node.target) in self._written or any(
            overload_name(user) == facts.WRITE and user.args[0] is node for user in node.users
        )
        is_constant = isinstance(found, torch.Tensor) and not isinstance(found, torch.nn.Parameter)
        return found if is_constant and not is_changed and _is_small(found) else _UNKNOWN
