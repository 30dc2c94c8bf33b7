"""Passes of ExecuTorch's compiler that have nothing to do on a graph, and are left out.

Each of them traces the whole graph again, operator by operator, to find out, and so does torch where it takes apart
what is so already: of a transformer with 762 operators on a Cortex-M55 that was half of the time.  What each looks for
is asked of the nodes first; where one of them has it, the pass runs as ever.  The same bytes come out, which tests
compare.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch.fx import Graph, GraphModule, Node

from micronpu.upstream.door import declared, optional
from micronpu.upstream.executorch import decompositions
from micronpu.upstream.replaced import Replaced, calling
from micronpu.upstream.torch import OpOverload, codegen_of, schema_of

_PROGRAM = "executorch.exir.program._program"
_PASSES = declared(
    f"{_PROGRAM}:_get_aten_to_edge_passes", "passes with nothing to do are run all the same", parameters=("config",)
)
_LEGALIZE = declared(
    f"{_PROGRAM}:LegalizePortableDimOrderPass", "a pass with nothing to do is run all the same", parameters=()
)
_VIEWS = declared(f"{_PROGRAM}:ReplaceViewOpsWithViewCopyOpsPass", "views are looked for by a trace", parameters=())
_REPLACED = declared(f"{_PROGRAM}:OpReplacePass", "operators get their other names by a trace", parameters=())
_COPY = declared(
    "torch._export.passes.replace_view_ops_with_view_copy_ops_pass:get_view_copy_of_view_op",
    "views are looked for by a trace",
    parameters=("schema",),
)
_EDGE = declared(
    "executorch.exir.passes.replace_aten_with_edge_pass:aten_to_edge",
    "operators get their other names by a trace",
    parameters=("aten_op",),
)
_LOWERED = declared(
    "executorch.exir.passes.replace_aten_with_edge_pass:should_lower_to_edge",
    "operators get their other names by a trace",
    parameters=("op",),
)
_ORDERS = declared(f"{_PROGRAM}:MemoryFormatOpsPass", "orders of axes are written by a trace", parameters=())
_ORDERED = declared(
    "executorch.exir.passes.dim_order_ops_registry:DimOrderOpsMap", "orders of axes are written by a trace"
)
_SOURCE = declared("torch.fx.traceback:NodeSource", "operators of a lowered program have no debug handles")
_SPECS = declared(
    "executorch.exir.passes.spec_prop_pass:ExportPass", "shapes are found again by a trace", parameters=()
)
_AXES = declared(
    "executorch.exir.tensor:dim_order_from_stride",
    "a class is made for each tensor of a program, to sort its axes",
    parameters=("stride",),
)
_AXES_OF_VIEWS = declared(
    "executorch.exir.passes.replace_view_copy_with_view_pass:dim_order_from_stride",
    "a class is made for each view of a program, to sort its axes",
    parameters=("stride",),
)
_RECOMPILE = declared(
    "torch.fx:GraphModule.recompile", "graphs that nobody calls are written as Python", parameters=("self",)
)
_MIXED = ("add.Tensor", "mul.Tensor", "sub.Tensor", "div.Tensor", "div.Tensor_mode", "minimum.default")
"""Operators of ATen whose operands `RemoveMixedTypeOperators` looks at."""


class WhereNeeded:
    """A pass that runs where a node needs it.

    Args:
        needed: whether the pass may do something about a node.

    Attributes:
        made: the pass.
    """

    def __init__(self, made: Any, needed: Callable[[Node], bool]) -> None:
        self.made, self._needed = made, needed

    def __call__(self, module: GraphModule) -> Any:
        graphs = [part.graph for part in module.modules() if isinstance(part, GraphModule)]
        if any(self._needed(node) for graph in graphs for node in graph.nodes):
            return self.made(module)
        from torch.fx.passes.infra.pass_base import PassResult

        return PassResult(module, False)


class InPlace:
    """A pass that gives operators other names, and leaves the rest of a graph as it is.

    Args:
        other: the operator in the place of one, or None.
    """

    def __init__(self, other: Callable[[OpOverload], Any]) -> None:
        self._other = functools.cache(other)

    def __call__(self, module: GraphModule) -> Any:
        for node in module.graph.nodes:
            if _is_called(node) and (other := self._other(node.target)) is not None:
                node.target = other
        from torch.fx.passes.infra.pass_base import PassResult

        return PassResult(module, True)


class InOrder:
    """Gives operators that take an order in memory those that take an order of axes, of tensors that are in order.

    What is kept of a tensor's order is its own, which is that of its axes; `take_apart` has seen to that.
    """

    def __call__(self, module: GraphModule) -> Any:
        registry: Any = importlib.import_module("executorch.exir.passes.dim_order_ops_registry")
        traced: Any = importlib.import_module("torch.fx.traceback")
        for node in module.graph.nodes:
            if "from_node" not in node.meta and node.op != "output":  # which handles are counted by
                node.meta["from_node"] = [traced.NodeSource(node)]
            if node.op == "call_function" and node.target in registry.DimOrderOpsMap:
                node.target = registry.DimOrderOpsMap[node.target]
                others = {name: value for name, value in node.kwargs.items() if name != "memory_format"}
                node.kwargs = {**others, "dim_order": list(range(node.meta["val"].dim()))}
        from torch.fx.passes.infra.pass_base import PassResult

        return PassResult(module, True)


class Copied:
    """A pass that finds the values of a graph by a trace, left out where every node has its own; the graph is copied.

    Attributes:
        made: the pass.
    """

    def __init__(self, made: Any) -> None:
        self.made = made

    def __call__(self, module: GraphModule) -> Any:
        if any("val" not in node.meta for node in module.graph.nodes if node.op != "output"):
            return self.made(module)
        from torch.fx.passes.infra.pass_base import PassResult

        graph = Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        graph.output_node().meta = dict(module.graph.output_node().meta)
        return PassResult(GraphModule(module, graph), True)


class _Written:
    """The Python of a graph that was left unwritten, which is written for those who read it."""

    def __get__(self, module: Any, kind: type) -> Any:
        if module is None:
            return self
        _write(module)
        return vars(module)["_code"]


def _leave_unwritten(written: Any, module: Any) -> None:
    codegen = codegen_of(module.graph)
    if hasattr(codegen, "pytree_info"):
        module._in_spec, module._out_spec = codegen.pytree_info.in_spec, codegen.pytree_info.out_spec
    vars(module).pop("_code", None)
    _LEFT.modules.add(module)
    kind: Any = type(module)  # which every module has to itself
    kind.forward, kind._code = _written_forward, _Written()


def _written_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    _write(module)
    return module.forward(*args, **kwargs)


_write: Any = GraphModule.recompile
_LEFT = threading.local()
"""Of a thread, as ``modules``, those that were left unwritten."""
_UNWRITTEN = Replaced(_RECOMPILE, calling(_leave_unwritten))


@contextlib.contextmanager
@optional(_RECOMPILE)
def graphs_left_unwritten() -> Iterator[None]:
    """While it lasts, a graph is written as Python when it is called or read, and not with every change of it.

    A graph of 500 nodes takes ten milliseconds, and torch.export alone writes it nine times.  Those that are still
    there in the end are written then, since Dynamo cannot follow a call that writes first.
    """
    if hasattr(_LEFT, "modules"):
        yield
        return
    _LEFT.modules = WeakSet()
    try:
        with _UNWRITTEN.meanwhile():
            yield
        for module in list(_LEFT.modules):
            if "_code" not in vars(module):
                _write(module)
    finally:
        del _LEFT.modules


@contextlib.contextmanager
@optional(
    _PASSES,
    _LEGALIZE,
    _VIEWS,
    _REPLACED,
    _COPY,
    _EDGE,
    _LOWERED,
    _ORDERS,
    _ORDERED,
    _SOURCE,
    _SPECS,
    _AXES,
    _AXES_OF_VIEWS,
)
def idle_passes_left_out(plain: bool = False) -> Iterator[None]:
    """While it lasts, ExecuTorch's lowering leaves out what has nothing to do.

    Args:
        plain: whether all programs were taken apart by `take_apart`, and nobody else has their graphs.
    """
    with contextlib.ExitStack() as stack:
        for replaced in (*_GUARDED, *(_TRACES if plain else ())):
            stack.enter_context(replaced.meanwhile())
        yield


def _needed_passes(usual: Any, config: Any) -> tuple[list[Any], Any]:
    before, after = usual(config)
    return [_guarded(made) for made in before], after


def _legalizing(usual: Any) -> Any:
    targets = getattr(usual, "_target_ops", None)
    return usual() if targets is None else WhereNeeded(usual(), lambda n: _is_permuted(n, targets))


def _sorted_once(usual: Any, stride: Any) -> Any:
    """The order of axes by strides, kept where those are numbers."""
    key = tuple(stride)
    if not all(type(step) is int for step in key):
        return usual(stride)
    if key not in _SORTED:
        _SORTED[key] = usual(stride)
    return _SORTED[key]


_SORTED: dict[tuple[int, ...], Any] = {}


def _copied_views(usual: Any) -> InPlace:
    views: Any = importlib.import_module("torch._export.passes.replace_view_ops_with_view_copy_ops_pass")
    return InPlace(lambda operator: views.get_view_copy_of_view_op(schema_of(operator)))


def _edge_operators(usual: Any) -> InPlace:
    edge: Any = importlib.import_module("executorch.exir.passes.replace_aten_with_edge_pass")
    return InPlace(lambda operator: edge.aten_to_edge(operator) if edge.should_lower_to_edge(operator) else None)


_GUARDED = (
    Replaced(_PASSES, calling(_needed_passes)),
    Replaced(_LEGALIZE, calling(_legalizing)),
    Replaced(_AXES, calling(_sorted_once)),
    Replaced(_AXES_OF_VIEWS, calling(_sorted_once)),
)
_TRACES = (
    Replaced(_VIEWS, calling(_copied_views)),
    Replaced(_REPLACED, calling(_edge_operators)),
    Replaced(_ORDERS, calling(lambda usual: InOrder())),
    Replaced(_SPECS, calling(lambda usual: Copied(usual()))),
)


def _guarded(made: Any) -> Any:
    # ExecuTorch has them in functions, each called what its pass is as text.
    name = str(getattr(made, "__name__", type(made).__name__)).rstrip("'>").rpartition(".")[2]
    needed = _NEEDS.get(name)
    return made if needed is None else WhereNeeded(made, needed)


def _is_called(node: Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, OpOverload)


def _is_transposed(node: Node) -> bool:
    return node.target is torch.ops.aten.t.default


def _is_view(node: Node) -> bool:
    return _is_called(node) and bool(node.target.is_view)  # type: ignore[union-attr]


def _is_mixed(node: Node) -> bool:
    return _is_called(node) and str(node.target) in {f"aten.{name}" for name in _MIXED}


def _reads_number_as_tensor(node: Node) -> bool:
    """Whether a number stands where the operator takes a tensor."""
    if not _is_called(node):
        return node.op == "call_function" and not _is_taken_out(node)
    declared_ = schema_of(node.target).arguments
    given = {a.name: value for a, value in zip(declared_, node.args, strict=False)} | dict(node.kwargs)
    kinds = {a.name: a.type for a in declared_}
    return any(
        isinstance(value, (float, int, bool)) and isinstance(kinds.get(name), torch.TensorType)
        for name, value in given.items()
    )


def _is_taken_out(node: Node) -> bool:
    return getattr(node.target, "__module__", "") == "_operator"


def _is_symbolic(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_permuted(node: Node, targets: Any) -> bool:
    """Whether one of some operators reads a tensor whose axes are not in order in memory."""
    if node.op != "call_function" or node.target not in targets:
        return False
    value = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    return not isinstance(value, torch.Tensor) or tuple(value.dim_order()) != tuple(range(value.dim()))


_NEEDS: dict[str, Callable[[Node], bool]] = {
    "NormalizeTransposePass": _is_transposed,
    "ReplaceBrokenOpsWithFunctionalOpsPass": _is_view,
    "ScalarToTensorPass": _reads_number_as_tensor,
    "SymToTensorPass": _is_symbolic,
    "RemoveMixedTypeOperators": _is_mixed,
}
"""By the name of a pass, what it looks for."""


# ---------------------------------------------------------------- decompositions

_KERNELS = declared(
    "torch._C:_dispatch_has_kernel_for_dispatch_key", "programs are traced that torch takes apart no further"
)


@optional(_KERNELS, otherwise=False)
def take_apart(program: Any) -> bool:
    """Takes an exported program apart where that is a matter of two operators, so that nobody traces it for that.

    aten::reshape(x)         aten::view(x)
    aten::expand_copy(x)     aten::clone(aten::expand(x))

    What ExecuTorch asks torch for then has nothing left to do.  A program with anything else is left as it is.

    Returns:
        Whether it was.
    """
    if not _is_nearly_core(program, frozenset(decompositions())):
        return False
    aten, graph = torch.ops.aten, program.graph
    for node in graph.nodes:
        if node.target is aten.reshape.default:
            node.target = aten.view.default
        elif node.target is aten.expand_copy.default:
            with graph.inserting_before(node):
                expanded = graph.call_function(aten.expand.default, node.args)
            expanded.meta = dict(node.meta)  # the edge operator is a copy, whose values are in order in memory
            node.target, node.args = aten.clone.default, (expanded,)
            node.kwargs = {"memory_format": torch.contiguous_format}
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    vars(program)["run_decompositions"] = lambda table: program
    return True


def _is_nearly_core(program: Any, table: Collection[Any]) -> bool:
    """Whether nothing but those two operators of a program is taken apart: plain tensors, no states, no calls."""
    if program.graph_signature.buffers_to_mutate or program.graph_signature.user_inputs_to_mutate:
        return False
    calls = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    if not all(node.op == "call_function" and _is_nearly_core_call(node, table) for node in calls):
        return False
    results = program.graph.output_node().args[0]
    return len(set(results)) == len(results) and all(isinstance(r, Node) and r.op == "call_function" for r in results)


def _is_nearly_core_call(node: Node, table: Collection[Any]) -> bool:
    if not _is_called(node) or not _in_order(node):
        return False
    target: Any = node.target
    if target in (torch.ops.aten.reshape.default, torch.ops.aten.expand_copy.default):
        (source,) = node.all_input_nodes
        return len(node.args) == 2 and not node.kwargs and _in_order(source)
    schema = schema_of(target)
    aliases = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return target not in table and not aliases and not composite and target is not torch.ops.aten._unsafe_view.default


def _in_order(node: Node) -> bool:
    """Whether a node makes one tensor whose values are in order in memory."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_contiguous()
