"""Whether the host part of a program can run: every operator that it calls needs a kernel of ExecuTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule, Node

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.program import origin_of, qualified_name
from micronpu.partition.lower import missing_kernels
from micronpu.upstream.executorch import missing_out_variants
from micronpu.upstream.torch import OpOverload, schema_of

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager

_HINT = "other operators for it, or allow_missing_kernels=True where you register a kernel, here and on the board"


def check_kernels(
    program: ExecutorchProgramManager, module: GraphModule, allow: bool, method: str = "forward"
) -> tuple[str, ...]:
    """What the report says about operators without a kernel, where the user allows them.

    Args:
        module: the host part of a method, as it was before it was lowered.

    Raises:
        UnsupportedError: there are some, and the user does not.
    """
    missing = missing_kernels(program, method)
    if missing and not allow:
        name = missing[0]
        rest = f" Nor has it {', '.join(missing[1:])}." if missing[1:] else ""
        callers = [n for n in program.exported_program(method).graph.nodes if _out_variant(n) == name]
        raise UnsupportedError(
            f"ExecuTorch has no portable kernel for {name}, which {_place(callers, module)} calls on the host, so that "
            f"the program cannot run.{rest}",
            hint=_HINT,
        )
    return tuple(
        f"ExecuTorch has no portable kernel for {name}, which the host part calls. Register one, here and on the "
        "device, or express the operator by others."
        for name in missing
    )


@contextlib.contextmanager
def out_variants(module: GraphModule) -> Iterator[None]:
    """Says of which operator ExecuTorch cannot make an out variant.

    Raises:
        UnsupportedError: of one of them.
    """
    try:
        yield
    except RuntimeError as error:
        names = missing_out_variants(error)
        if not names:
            raise
        callers = [n for n in module.graph.nodes if _comes_from(n, names)]
        raise UnsupportedError(
            f"ExecuTorch cannot call {', '.join(names)}, as {_place(callers, module)} does on the host: there is no "
            "variant of it that writes into memory planned before.",
            hint="other operators for it, or register its out variant with torch.library",
        ) from error


def _comes_from(node: Node, names: Iterable[str]) -> bool:
    """Whether a node calls one of the operators, or one that decompositions make one of them."""
    own = qualified_name(node)
    return bool(own) and any(name == own or name.startswith(f"{own}_") for name in names)


def _out_variant(node: Node) -> str:
    """``aten::sort.values`` and the like, or ""."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return ""
    schema = schema_of(node.target)
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _place(callers: Iterable[Node], module: GraphModule) -> str:
    """``sort`` (model.py:12), the first operator of the program that the callers stem from."""
    known = {node.name: node for node in module.graph.nodes}
    for caller in callers:
        for name in (caller.name, *_source_names(caller)):
            if name in known:
                source = origin_of(known[name]).source
                return f"`{name}`{f' ({source})' if source else ''}"
    return "the program"


def _source_names(node: Node) -> Iterator[str]:
    sources: list[Any] = list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop(0)
        yield str(source.name)
        sources += source.from_node
