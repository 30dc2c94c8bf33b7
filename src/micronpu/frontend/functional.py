"""Programs without writes that another value can see.

Every later stage takes an operator as a function of its operands.  `torch.relu_(conv(x))` is one, since no other
operator reads the convolution; `y[:, 0] += 1` is not: it changes y through a view.  A compiled program does not change
its inputs, even if the module writes into them.
"""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from micronpu.frontend.program import aten_overload, is_getitem, overload_name, overload_of
from micronpu.frontend.regions import with_graph, with_own_graph
from micronpu.ops.movement import RESHAPE, VIEW
from micronpu.upstream.torch import schema_of


def functional(program: ExportedProgram) -> ExportedProgram:
    """Return the program with shared writes replaced by functions; the same object if it has none.

        y = conv(x)                     y = conv(x)
        v = select(y, 1, 0)             v = select(y, 1, 0)
        add_(v, 1)            ->        w = add(v, 1)
        z = mul(y, 2)                   y' = select_scatter(y, w, 1, 0)
                                        z = mul(y', 2)

    A buffer that it changes remains a buffer: a state, see `micronpu.frontend.states`.
    """
    if any(_writes_what_others_see(node) for node in program.graph.nodes):
        program = program.run_decompositions({})
        for node in program.graph.nodes:
            if overload_name(node) == VIEW:  # strides at run time may differ from those of shape propagation
                node.target = overload_of(RESHAPE)
    if program.graph_signature.user_inputs_to_mutate:
        program = _without_written_inputs(program)
    return program


def _without_written_inputs(program: ExportedProgram) -> ExportedProgram:
    """Return the program without the outputs for its writes into inputs.

    y = relu(x)                     y = relu(x)
    return y as x, y        ->      return y
    """
    module = with_own_graph(program)
    signature = program.graph_signature
    kept = [i for i, s in enumerate(signature.output_specs) if s.kind is not OutputKind.USER_INPUT_MUTATION]
    output = module.graph.output_node()
    results = output.args[0]
    assert isinstance(results, (tuple, list))
    output.args = (tuple(results[i] for i in kept),)
    module.recompile()
    return with_graph(program, module, kept)


def _writes_what_others_see(node: Node) -> bool:
    overload = aten_overload(node)
    if overload is None or not schema_of(overload).is_mutable:
        return False
    given = dict(zip((a.name for a in schema_of(overload).arguments), node.args, strict=False)) | node.kwargs
    written = [
        given.get(a.name) for a in schema_of(overload).arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    return any(isinstance(source, Node) and _is_seen_elsewhere(source) for source in written)


def _is_seen_elsewhere(source: Node) -> bool:
    """Return True if the memory of a value is shared with another one, or read by others than the writer."""
    overload = aten_overload(source)
    if overload is None or len(source.users) > 1 or is_getitem(source):
        return True
    # A write into the result of another write is as safe as that write, which is checked separately.
    return not schema_of(overload).is_mutable and any(r.alias_info is not None for r in schema_of(overload).returns)
