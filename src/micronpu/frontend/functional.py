"""An exported program in the form that later stages expect: functional, in float32, and without empty tensors.

Every later stage takes an operator as a function of its operands.  `torch.relu_(conv(x))` is one, since no other
operator reads the convolution; `y[:, 0] += 1` is not: it changes y through a view.  A compiled program does not change
its inputs, even if the module writes into them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind

from micronpu.base.errors import ErrorsAs, ModelError, first_line
from micronpu.base.quiet import quiet
from micronpu.frontend.graphs import Graph, GraphModule, Node, calls, nodes_where
from micronpu.frontend.program import (
    arguments,
    aten_overload,
    calls_into,
    is_getitem,
    named,
    overload_name,
    overload_of,
    qualified_name,
    value_of,
)
from micronpu.frontend.run import called
from micronpu.frontend.tensors import add_constant, copied, read, remade, set_attribute, with_graph, with_own_graph
from micronpu.ops import facts
from micronpu.ops.calls import CUT
from micronpu.ops.movement import RESHAPE, VIEW
from micronpu.ops.slicing import CONCATENATIONS, SPLITS
from micronpu.upstream.torch import schema_of, tree_leaves


def functional(program: ExportedProgram) -> ExportedProgram:
    """Return the program with shared writes replaced by functions; the same object if it has none.

        y = conv(x)                     y = conv(x)
        v = select(y, 1, 0)             v = select(y, 1, 0)
        add_(v, 1)            ->        w = add(v, 1)
        z = mul(y, 2)                   y' = select_scatter(y, w, 1, 0)
                                        z = mul(y', 2)

    A buffer that it changes remains a buffer: a state, see `micronpu.frontend.tensors`.
    """
    if any(map(writes_what_others_see, _all_nodes(program))):
        homes = {name: b.untyped_storage().data_ptr() for name, b in program.named_buffers() if b.numel()}
        shared = " and ".join(f"`{name}`" for name, home in homes.items() if [*homes.values()].count(home) > 1)
        hint = f"self.h = new; buffers in separate memory{f', such as clones in {shared}' if shared else ''}"
        program = decomposed(program, "write changes in place as functions", hint)
        for node in _all_nodes(program):
            if overload_name(node) == VIEW:  # strides at run time may differ from those of shape propagation
                node.target = overload_of(RESHAPE)
    if program.graph_signature.user_inputs_to_mutate:
        program = _without_written_inputs(program)
    return program


def _all_nodes(program: ExportedProgram) -> list[Node]:
    """Return the nodes of a program, with those of its branches and loops."""
    return [n for part in program.graph_module.modules() if isinstance(part, GraphModule) for n in part.graph.nodes]


def decomposed(program: ExportedProgram, what: str, hint: str) -> ExportedProgram:
    """Return the program with torch's decompositions; raise `ModelError` if torch cannot do it."""
    with ErrorsAs(lambda error: ModelError(f"torch cannot {what} in the model: {first_line(error)}.", hint=hint)):
        made: ExportedProgram = program.run_decompositions({})
    return made


def _without_written_inputs(program: ExportedProgram) -> ExportedProgram:
    """Return the program without the outputs for its writes into inputs.

    y = relu(x)                     y = relu(x)
    return y as x, y        ->      return y
    """
    module = with_own_graph(program.graph_module)
    signature = program.graph_signature
    kept = [i for i, s in enumerate(signature.output_specs) if s.kind is not OutputKind.USER_INPUT_MUTATION]
    output = module.graph.output_node()
    results: Any = output.args[0]
    output.args = (tuple(results[i] for i in kept),)
    module.recompile()
    return with_graph(program, module, kept)


def writes_what_others_see(node: Node, inputs: bool = True) -> bool:
    """Return True if an operator writes into memory that others read by another name, or, with ``inputs``, into an
    input of the program, a weight, or a buffer."""
    if not _shares(node)[1]:
        return False
    given, own = arguments(node), schema_of(aten_overload(node)).arguments
    written = [given.get(a.name) for a in own if a.alias_info is not None and a.alias_info.is_write]
    return any(_is_seen_elsewhere(source, node, inputs) for source in written if isinstance(source, Node))


def _is_seen_elsewhere(source: Any, part: Node, inputs: bool) -> bool:
    while True:
        others = [user for user in source.users if user is not part]
        # A write into the result of another write is as safe as that write, which is checked separately.
        if (others and not _shares(part)[1]) or any(_shares(user)[0] for user in others):
            return True
        if not _shares(source)[0]:
            return inputs and not source.args
        source, part = source.args[0], source


def _shares(node: Any) -> tuple[bool, bool]:
    """Return whether an operator returns memory of its operand, and whether it writes into it."""
    made = node
    while is_getitem(made):
        made = made.args[0]
    if (overload := aten_overload(made)) is None:
        return False, False
    schema = schema_of(overload)
    return any(r.alias_info is not None for r in schema.returns), made is node and schema.is_mutable


def without_taken_names(program: ExportedProgram) -> ExportedProgram:
    """Return the program with parts renamed whose names are reserved; the same object if it has none.

    code.weight, graph  ->  code_.weight, graph_

    `torch.export` keeps the names of a model's parts, and `ExportedProgram.module()` makes them attributes of a
    `GraphModule`, whose `graph`, `code` and `meta` are something else. The module paths of operators, which are
    shown to users, are not changed.
    """
    paths = [*program.state_dict, *program.constants]
    new = _names({path.split(".")[0] for path in paths})
    if not new:
        return program

    def renamed(path: str | None) -> str | None:
        first, dot, rest = (path or "").partition(".")
        return f"{new[first]}{dot}{rest}" if first in new else path

    def given(parts: dict[str, Any]) -> dict[str, Any]:
        return {str(renamed(path)): value for path, value in parts.items()}

    signature = program.graph_signature
    of_inputs = {name for spec in signature.input_specs if (name := spec.target) in paths}
    inputs, outputs = (
        [replace(s, target=renamed(s.target)) if s.target in of_inputs else s for s in specs]
        for specs in (signature.input_specs, signature.output_specs)
    )
    return remade(program, with_own_graph(program.graph_module), ExportGraphSignature(inputs, outputs), given)


def _names(used: Iterable[str]) -> dict[str, str]:
    used = set(used)
    new: dict[str, str] = {}
    for name in sorted(used & taken_names()):
        free = f"{name}_"
        while free in used or free in taken_names():
            free += "_"
        used.add(free)
        new[name] = free
    return new


@cache
def taken_names() -> frozenset[str]:
    """Return the reserved names, including those that `ExportedProgram.module()` adds."""
    return frozenset(dir(GraphModule(nn.Module(), Graph()))) | {"range_constraints", "validate_inputs"}


_OTHER = (torch.float16, torch.bfloat16, torch.float64)


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of float16, bfloat16 or float64 as float32; any other unchanged."""
    return tensor.to(torch.float32) if tensor.dtype in _OTHER else tensor


def convert_to_float32(program: ExportedProgram) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Return a program that computes in float32 in place of float16, bfloat16 and float64.

    Qparams of a quantized program keep their dtype.

    Returns:
        The program, the same object if it has nothing to convert, and the names of the dtypes that it had.
    """
    found = _other_dtypes(_all_nodes(program))
    if not found:
        return program, ()
    module = copied(program.graph_module)
    qparams = {node.name for node in nodes_where(program, _is_qparam)}
    for graph in module.modules():
        if isinstance(graph, GraphModule):
            _convert(graph)
    paths = {spec.target for spec in program.graph_signature.input_specs if spec.arg.name in qparams}

    def converted(tensors: dict[str, Any]) -> dict[str, Any]:
        return {path: value if path in paths else _argument(value) for path, value in tensors.items()}

    examples = partial(torch.fx.node.map_aggregate, fn=_argument)
    return with_graph(program, module, renamed=converted, examples=examples), found  # `input` is now `input_1`


def in_float32_in_place(module: GraphModule) -> None:
    """Convert an exported module like `convert_to_float32`, in place."""
    if _other_dtypes(module.graph.nodes):
        for node in module.graph.find_nodes(op="get_attr"):
            if not _is_qparam(node):
                set_attribute(module, node, in_float32(read(module, node)))
        _convert(module)


def _other_dtypes(nodes: Iterable[Node]) -> tuple[str, ...]:
    values = [v for n in nodes if not _is_qparam(n) for v in tree_leaves(n.meta.get("val"))]
    return tuple(sorted({str(v.dtype).removeprefix("torch.") for v in values if getattr(v, "dtype", None) in _OTHER}))


def _is_qparam(node: Node) -> bool:
    is_given = node.op in ("get_attr", "placeholder") and bool(node.users)
    return is_given and all(
        qualified_name(reader).startswith("quantized_decomposed::") and node in reader.args[1:] for reader in node.users
    )


def _convert(module: GraphModule) -> None:
    for node in nodes_where(module, lambda node: not _is_qparam(node)):
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), _argument)
        if "val" in node.meta:
            node.meta["val"] = torch.fx.node.map_aggregate(node.meta["val"], _argument)
    module.recompile()


def _argument(value: object) -> Any:
    if isinstance(value, nn.Parameter):
        return value if value.dtype not in _OTHER else nn.Parameter(in_float32(value.data), value.requires_grad)
    if isinstance(value, torch.Tensor):
        return in_float32(value)
    return torch.float32 if isinstance(value, torch.dtype) and value in _OTHER else value


def remove_empty_tensors(module: GraphModule) -> None:
    """Remove the empty tensors of an exported module, in place.

    cat(x, x[:, :0])          x
    sum(x[:, :0])             0
    split(x, (0, 8))          slice(x, 0, 8)
    linear(x[:, :0], w, b)    b, in each row
    """
    if not any(map(_is_empty, module.graph.nodes)):
        return
    for node in calls(module):
        _without_empty_operands(module, node)
    for node in reversed(list(module.graph.nodes)):
        written = overload_name(node) == facts.WRITE and _is_empty(node.all_input_nodes[0])  # has no shape
        if node.op not in ("placeholder", "output") and not node.users and (_is_empty(node) or written):
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    for number, result in enumerate(tree_leaves(module.graph.output_node().args[0])):
        if isinstance(result, Node) and _is_empty(result):
            what = f"Result {number} of the model is empty, of the shape {list(value_of(result).shape)}."
            raise ModelError(what, hint="return only tensors that have elements")
    module.recompile()


def _is_empty(node: Node) -> bool:
    value = node.meta.get("val")
    # The size of a batch may be a symbol, which is never zero.
    return isinstance(value, torch.Tensor) and any(isinstance(size, int) and size == 0 for size in value.shape)


def _without_empty_operands(module: GraphModule, node: Node) -> None:
    """Remove the empty operands and results of a node that has a result with elements."""
    name = overload_name(node)
    if name in SPLITS:
        _as_slices(module, node)
        return
    operands = node.all_input_nodes
    if _is_empty(node) or is_getitem(node) or not any(map(_is_empty, operands)):
        return
    if name in CONCATENATIONS:
        parts: Any = node.args[0]
        kept = [part for part in parts if not _is_empty(part)]
        node.args = (kept, *node.args[1:])
        if len(kept) == 1 and value_of(kept[0]).dtype == value_of(node).dtype:
            node.replace_all_uses_with(kept[0])
    elif facts.name_of(name) in facts.SCATTERS and not _is_empty(operands[0]):
        node.replace_all_uses_with(operands[0])
    elif all(_is_empty(operand) or operand.op == "get_attr" for operand in operands):
        known = {n: _empty(n) if _is_empty(n) else read(module, n).detach() for n in operands}
        with torch.no_grad(), quiet():
            value = called(node, known)
        if isinstance(value, torch.Tensor):
            node.replace_all_uses_with(add_constant(module, node, value, "constant"))
    else:
        raise ModelError(
            f"{named(node)} computes with an empty tensor, of the shape "
            f"{list(value_of(next(filter(_is_empty, operands))).shape)}.",
            hint="leave it out where there is nothing to compute",
        )


def _as_slices(module: GraphModule, node: Node) -> None:
    """Replace the parts of a tensor by slices if some of them are empty."""
    parts = node.meta["val"]
    if not any(0 in part.shape for part in parts):
        return
    dim: Any = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0)
    ends = [0, *accumulate(part.shape[dim] for part in parts)]
    for reader in list(node.users):
        at: Any = reader.args[1]
        if not _is_empty(reader):
            with module.graph.inserting_before(reader):
                made = calls_into(module.graph)(CUT, node.args[0], dim, ends[at], ends[at + 1])
            made.meta.update(reader.meta)
            reader.replace_all_uses_with(made)


def _empty(node: Node) -> torch.Tensor:
    return torch.empty(tuple(value_of(node).shape), dtype=value_of(node).dtype)
