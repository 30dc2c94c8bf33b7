"""Which operators of the model a call of a kernel computes, as far as a core's kernels go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.fx import GraphModule

from micronpu.frontend.facts import HANDLES
from micronpu.upstream.torch import OpOverload, schema_of


def kernel_handles(module: GraphModule, operators: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Debug handles by the number of the instruction.

    ExecuTorch's lowering keeps the order of kernels that it knows nothing of, and their metadata not; empty where it
    has not even kept the order.

    Args:
        module: a host part, with a module for each part on the core.
        operators: of the finished program's instructions in order, such as "cortex_m::quantized_add.out"; "" for
            what is none.
    """
    written = list(_calls(module))
    spaces = tuple({name.partition("::")[0] + "::" for name, _ in written})
    called = [(i, name.partition(".")[0]) for i, name in enumerate(operators) if spaces and name.startswith(spaces)]
    if [name for _, name in called] != [name for name, _ in written]:
        return {}
    pairs = zip(called, written, strict=True)
    return {number: handles for (number, _), (_, handles) in pairs if handles}


def _calls(module: GraphModule) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Kernels of the core in order, with the handles that their nodes have."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            inside = module.get_submodule(str(node.target))
            if isinstance(inside, GraphModule):
                yield from _calls(inside)
        elif isinstance(node.target, OpOverload) and node.target.namespace not in ("aten", _HOST):
            yield schema_of(node.target).name, tuple(HANDLES.of(node))


_HOST = "quantized_decomposed"
