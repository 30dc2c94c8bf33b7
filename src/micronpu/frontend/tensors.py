"""Tensors of a program: its constants, its states, and copies of programs that share or replace them.

What a ``get_attr`` node reads is a parameter, a constant, or a state: a buffer that the model writes. Every stage
between export and the end takes an operator as a function of its operands. So a state is an additional input and output
of the program during compilation; at the end it becomes a buffer in the program's memory again.
"""

from __future__ import annotations

import copy
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind
from torch.fx.graph import CodeGen

from micronpu.base.order import reachable
from micronpu.base.quiet import quiet
from micronpu.frontend.facts import IN_TRAINING
from micronpu.frontend.graphs import Graph, GraphModule, Node, by_name, calls, nodes_where, operand, returned
from micronpu.frontend.program import calls_into, overload_name, overload_of, substitute
from micronpu.ops import facts
from micronpu.ops.calls import CLONE, NEGATED_VIEW, NEGATIVE
from micronpu.upstream.torch import codegen_of, tree_leaves

Value = TypeVar("Value")


def copied(value: Value) -> Value:
    """Return a deep copy of a module, or of what contains modules; a tensor with a history of gradients is detached."""
    # torch copies no such tensor: states of a module that was called with gradients, weights that a hook computes.
    memo: dict[int, object] = {}
    with quiet():  # torch warns about its own copying
        for _, part in reached([("", value)]):
            if isinstance(part, torch.Tensor) and not part.is_leaf:
                memo[id(part)] = copy.deepcopy(part.detach(), memo)
        return copy.deepcopy(value, memo)


def reached(waiting: list[tuple[str, Any]]) -> Iterator[tuple[str, object]]:
    """Yield values with their paths, then what lists, dictionaries and objects among them hold, each value once."""
    known = set[int]()
    for path, part in waiting:
        if id(part) in known or _is_of_process(part):
            continue
        known.add(id(part))
        yield path, part
        held = dict(enumerate(part)) if isinstance(part, list | tuple | set | frozenset) else part
        if not isinstance(held, Mapping):
            held = {} if isinstance(part, torch.Tensor) else getattr(part, "__dict__", {})
        waiting += [(path_to(path, key), value) for key, value in held.items()]


def _is_of_process(part: object) -> bool:
    """Return True for classes, modules, and objects of the standard library such as loggers, which reach all others."""
    home, is_module = type(part).__module__.partition(".")[0], isinstance(part, nn.Module)  # of the user's `signal.py`
    is_standard = home in sys.stdlib_module_names and home not in ("types", "argparse", "collections") and not is_module
    return isinstance(part, type | ModuleType | Graph | Node) or (is_standard and hasattr(part, "__dict__"))


def path_to(path: str, key: object) -> str:
    """Return the path of an item or attribute, such as ``cache.keys[0]``."""
    return f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".lstrip(".")


def with_own_graph(module: GraphModule) -> GraphModule:
    """Return a copy of a module that shares its tensors."""
    with quiet():  # torch warns about its own copying
        made = GraphModule(module, copy.deepcopy(module.graph))
    made.meta.update(module.meta)
    return made


def with_graph(
    program: ExportedProgram, module: GraphModule, kept: Sequence[int] | None = None, **changes: Any
) -> ExportedProgram:
    """Return `remade` with another graph, which it takes, and of the outputs only those at ``kept``, or all."""
    signature = program.graph_signature
    inputs, names, ends = [], {}, []
    for given, node in zip(signature.input_specs, module.graph.find_nodes(op="placeholder", sort=True), strict=True):
        inputs.append(replace(given, arg=replace(given.arg, name=node.name)))
        names[given.arg.name] = node.name
    every = signature.output_specs if kept is None else [signature.output_specs[place] for place in kept]
    for own, result in zip(every, returned(module), strict=True):
        if isinstance(result, Node):
            own = replace(own, arg=replace(own.arg, name=result.name))
        if own.kind is OutputKind.USER_INPUT_MUTATION and own.target is not None:
            own = replace(own, target=names[own.target])
        ends.append(own)
    return remade(program, module, ExportGraphSignature(inputs, ends), **changes)


def remade(
    program: ExportedProgram,
    module: GraphModule,
    signature: ExportGraphSignature,
    renamed: Callable[[dict[str, Any]], dict[str, Any]] = lambda parts: parts,
    examples: Callable[[Any], Any] = lambda examples: examples,
) -> ExportedProgram:
    """Return a program with another graph; functions change its parameters, buffers and constants, and its examples."""
    return ExportedProgram(
        module,
        module.graph,
        signature,
        renamed(program.state_dict),
        program.range_constraints,
        program.module_call_graph,
        examples(program.example_inputs),
        renamed(program.constants),
        verifiers=program.verifiers,
    )


# Key of a module's meta: number of added constants, by prefix.
_COUNT = "micronpu_constants"


def free_name(model: GraphModule, prefix: str) -> str:
    """Return a name such as ``prefix_0`` that no attribute of a module has."""
    # Counting avoids trying all numbers from 0, which would take quadratic time.
    count: dict[str, int] = model.meta.setdefault(_COUNT, {})
    number = count.get(prefix, 0)
    while hasattr(model, f"{prefix}_{number}"):
        number += 1
    count[prefix] = number + 1
    return f"{prefix}_{number}"


def add_constant(model: GraphModule, before: Node, value: torch.Tensor, prefix: str) -> Node:
    """Add a buffer, read before the node ``before``. Existing buffers are not reused: they may have other readers."""
    name = free_name(model, prefix)
    model.register_buffer(name, value)
    with model.graph.inserting_before(before):
        node = model.graph.get_attr(name)
    near = (before, *before.all_input_nodes) if "val" in before.meta else model.graph.nodes
    fake = next((n.meta["val"] for n in near if isinstance(n.meta.get("val"), torch.Tensor)), None)
    mode = getattr(fake, "fake_mode", None)
    node.meta["val"] = mode.from_tensor(value, static_shapes=True) if mode is not None else value
    return node


def replace_each(model: GraphModule, find: Callable[[Node], object]) -> bool:
    """Replace each node for which a function returns another value, in place; return true if there was any."""
    changed = False
    for node in list(model.graph.nodes):
        made = find(node)
        if made is not None and made is not node:
            node.replace_all_uses_with(made)
            if node.op == "call_function":  # one that draws numbers is no dead code to torch
                model.graph.erase_node(node)
            changed = True
    return changed


def clean(model: GraphModule, changed: bool = True) -> None:
    """Remove unused nodes from a program that was changed, in place."""
    if changed:
        model.graph.eliminate_dead_code()
        model.recompile()


def read(model: nn.Module, node: Node) -> Any:
    """Return what a ``get_attr`` node reads: a parameter, a buffer or a submodule."""
    return operator.attrgetter(str(node.target))(model)


def put(root: nn.Module, path: str, value: object) -> None:
    """Set an attribute, creating modules on its path; a shared tensor has several names."""
    *parents, name = path.split(".")
    for part in parents:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        root.register_buffer(name, value)
    else:
        setattr(root, name, value)


def attribute(model: GraphModule, node: object) -> torch.Tensor | None:
    """Return the tensor that a ``get_attr`` node reads; None for other operands."""
    value = read(model, node) if isinstance(node, Node) and node.op == "get_attr" else None
    return value if isinstance(value, torch.Tensor) else None


def number(model: GraphModule, operand: object) -> float | None:
    """Return the finite number that an operand is, or the constant of one element; None for others."""
    known = attribute(model, operand) if isinstance(operand, Node) else None
    value = known.item() if isinstance(known, torch.Tensor) and known.numel() == 1 else operand
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def is_constant(node: object) -> bool:
    """True if a node depends on constants and parameters alone, as folded or otherwise rescaled weights do."""
    return isinstance(node, Node) and all(
        n.op == "get_attr" or (n.op == "call_function" and n.all_input_nodes)
        for n in reachable([node], operator.attrgetter("all_input_nodes"))
    )


def constant_nodes(model: GraphModule) -> set[Node]:
    """Return all nodes for which `is_constant` holds, found in one walk."""
    found: set[Node] = set()
    for node in model.graph.nodes:
        sources = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and sources and found.issuperset(sources)):
            found.add(node)
    return found


def is_trained(model: GraphModule, node: object) -> bool:
    """True if a node reads a parameter of a model that is going to be trained, which no rewrite may freeze."""
    value = attribute(model, node)
    return isinstance(value, torch.nn.Parameter) and value.requires_grad and bool(IN_TRAINING.of(model))


def set_attribute(model: GraphModule, node: Node, value: torch.Tensor) -> None:
    """Replace a constant by a new tensor, which is a parameter if the constant was one."""
    path, _, name = str(node.target).rpartition(".")
    owner = model.get_submodule(path)
    old = getattr(owner, name)
    setattr(owner, name, nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value)


def resolve_negative_bits(module: GraphModule) -> None:
    """Replace views that are marked as negated by tensors that are, in place: others read their memory as it is."""
    for part in (p for p in module.modules() if isinstance(p, GraphModule)):
        for node in part.graph.find_nodes(op="get_attr"):
            if (value := attribute(part, node)) is not None and value.is_neg():
                set_attribute(part, node, value.detach().resolve_neg())
        views = calls(part, NEGATED_VIEW)
        for view in views:
            view.target = overload_of(NEGATIVE)
        if views:  # most programs have none, and compiling the code of a long graph takes seconds
            part.recompile()


KEY = "micronpu_states"
"""Key of a module's meta: its states, while they are inputs and outputs."""
PREFIX = "micronpu_state_"
"""Prefix of the names of buffers that hold a state in a finished program."""


@dataclass(frozen=True)
class State:
    """A buffer that persists from one call to the next.

    Attributes:
        name: of the buffer in the user's model.
        node: the program's input for it during compilation.
        initial: its value before the first call, in the program's dtype: integers if it is quantized.
        scale, zero_point: ``real = scale * (integer - zero_point)``; None for a state that is no float in the model, or
            remains float.
    """

    name: str
    node: str
    initial: torch.Tensor
    scale: float | None = None
    zero_point: int | None = None

    @property
    def attribute(self) -> str:
        """Name of its buffer in a finished program."""
        return PREFIX + self.node

    @property
    def dtype(self) -> str:
        return str(self.initial.dtype).removeprefix("torch.")

    @property
    def bytes(self) -> int:
        return math.prod(self.initial.shape) * self.initial.element_size()


@dataclass(frozen=True)
class States:
    """All states of a program, and the packing of its results for the user."""

    values: tuple[State, ...] = ()
    codegen: CodeGen | None = None

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def initial(self) -> tuple[torch.Tensor, ...]:
        return tuple(s.initial.clone() for s in self.values)


NO_STATES = States()


def states_of(module: GraphModule) -> States:
    """Return the states of a module in which they are inputs and outputs."""
    found = module.meta.get(KEY, NO_STATES)
    assert isinstance(found, States)
    return found


def results_of(model: GraphModule) -> list[Node]:
    """Return the nodes of a program's results, without new values of states."""
    results = model.graph.output_node().args[0]
    own = returned(model)[: -len(states.values)] if (states := states_of(model)) else results
    return [n for n in tree_leaves(own) if isinstance(n, Node)]


def state_ends(model: GraphModule) -> list[tuple[State, Node, Node]]:
    """Return each state with its input and the node that computes its new value."""
    states = states_of(model).values
    inputs = {n.name: n for n in model.graph.find_nodes(op="placeholder")} if states else {}
    new = returned(model)[-len(states) :] if states else ()
    return [(state, inputs[state.node], value) for state, value in zip(states, new, strict=True)]


def written(module: GraphModule) -> dict[str, None]:
    """Return paths of the buffers that a module writes, in its order."""
    return {str(n.all_input_nodes[0].target): None for n in nodes_where(module, is_write)}


def _drop_copies(module: GraphModule) -> dict[Node, Node]:
    """Replace copies of integers over others of their shape, and return replacements; floats are decomposed later."""
    dropped: dict[Node, Node] = {}
    for node in calls(module, facts.COPY):
        if isinstance(node.args[1], Node):
            value, source = node.meta.get("val"), node.args[1].meta.get("val")
            if not isinstance(value, torch.Tensor) or not isinstance(source, torch.Tensor):
                continue
            if not value.is_floating_point() and (value.shape, value.dtype) == (source.shape, source.dtype):
                dropped[node] = node.args[1]
                substitute(node, node.args[1])
    return dropped


def lift(module: GraphModule, also: Collection[str] = ()) -> GraphModule:
    """Return a module whose states are its last inputs and outputs; the same object if it has none.

    Args:
        also: paths of buffers that other methods of the program write; they are states even if this method only reads
            them.

        h = get_attr "h"                        h = placeholder
        y = add(x, h)                           y = add(x, h)
        copy_(h, y)
        return y                        ->      return y, y

    The states themselves are in its meta, see `states_of`.
    """
    writes = nodes_where(module, is_write)
    own = written(module)
    read = {str(n.target) for n in module.graph.find_nodes(op="get_attr")}.intersection(also) - set(own)
    if not writes and not read:
        return module
    module, codegen = with_own_graph(module), codegen_of(module.graph)
    graph, names = module.graph, [n.name for n in writes]
    inputs = graph.find_nodes(op="placeholder")
    nodes = by_name(module)
    taken = set(nodes)
    found: dict[str, tuple[State, Node]] = {}

    def hold_in_an_input(path: str, value: Node | None) -> None:
        readers = graph.find_nodes(op="get_attr", target=path)
        plain = path.removeprefix(PREFIX + "state_")
        name = _free("state_" + plain.replace(".", "_"), taken)
        last = inputs[-1] if inputs else None
        with graph.inserting_after(last) if last is not None else graph.inserting_before(next(iter(graph.nodes))):
            holder = graph.placeholder(name)
        holder.meta = {k: v for k, v in readers[0].meta.items() if k in ("val", "tensor_meta")}
        inputs.append(holder)
        found[path] = State(plain, holder.name, operator.attrgetter(path)(module).detach().clone()), value or holder
        for reader in readers:
            substitute(reader, holder)

    for write in (nodes[name] for name in names):
        source, value = operand(write), operand(write, 1)
        if str(source.target) not in found:
            substitute(write, value)
            hold_in_an_input(str(source.target), value)
    for path in sorted(read):
        hold_in_an_input(path, None)
    dropped = _drop_copies(module)
    # A value may be the buffer of another state, which is now an input.
    paths = {path: by.node for path, (by, _) in found.items()}
    nodes = by_name(module)
    new = [
        nodes[paths[str(v.target)]] if v.op == "get_attr" and str(v.target) in paths else v
        for v in (dropped.get(value, value) for _, value in found.values())
    ]
    output = graph.output_node()
    results = output.args[0]
    output.args = ((*(results if isinstance(results, (tuple, list)) else (results,)), *new),)
    graph.set_codegen(CodeGen())
    module.meta[KEY] = States(tuple(state for state, _ in found.values()), codegen)
    module.recompile()
    return module


def hold(module: GraphModule, states: States) -> GraphModule:
    """Turn inputs and outputs that are states into buffers again, in place; the inverse of `lift`.

    A value that is read from a state, and not computed, is copied, because the state is overwritten before others read
    it.
    """
    if not states:
        return module
    graph = module.graph
    output = graph.output_node()
    results = list(returned(module))
    kept, new = results[: -len(states.values)], results[-len(states.values) :]
    holders = {n.name: n for n in graph.find_nodes(op="placeholder")}
    mine = {holders[s.node] for s in states.values}
    first = next(n for n in graph.nodes if n.op != "placeholder")

    def safe(node: object) -> object:
        if not isinstance(node, Node) or not _is_read_from(node, mine):
            return node
        with graph.inserting_before(output):
            made = calls_into(graph)(CLONE, node)
        made.meta = dict(node.meta)
        return made

    kept, new = [safe(n) for n in kept], [safe(n) for n in new]
    for state, value in zip(states.values, new, strict=True):
        holder = holders[state.node]
        module.register_buffer(state.attribute, state.initial.clone())
        with graph.inserting_before(first):
            buffer = graph.get_attr(state.attribute)
        buffer.meta = dict(holder.meta)
        holder.replace_all_uses_with(buffer)
        with graph.inserting_before(output):
            calls_into(graph)(facts.WRITE, buffer, value)
        graph.erase_node(holder)
    output.args = (tuple(kept),)
    if states.codegen is not None:
        graph.set_codegen(states.codegen)
    module.meta.pop(KEY, None)
    module.recompile()
    return module


def held(module: GraphModule) -> GraphModule:
    """Return a copy of a module with lifted states in which they are buffers; the same object if it has none."""
    states = states_of(module)
    return hold(with_own_graph(module), states) if states else module


def reset(module: torch.nn.Module, states: Sequence[State]) -> None:
    """Reset the state buffers of a module from `hold` to their initial values."""
    with torch.no_grad():
        for state in states:
            getattr(module, state.attribute).copy_(state.initial)


def is_write(node: Node) -> bool:
    """Return True if a node writes a new value into a buffer."""
    if overload_name(node) != facts.WRITE or not isinstance(node.args[1], Node):
        return False
    return isinstance(node.args[0], Node) and node.args[0].op == "get_attr"


def _is_read_from(node: Node, holders: set[Node]) -> bool:
    """Return True if a value is a state, or a view of one."""
    while node not in holders:
        if overload_name(node) not in facts.VIEWS or not isinstance(node.args[0], Node):
            return False
        node = node.args[0]
    return True


def _free(name: str, taken: set[str]) -> str:
    number, made = 0, name
    while made in taken:
        number += 1
        made = f"{name}_{number}"
    taken.add(made)
    return made
