"""ExecuTorch's entry point, `to_edge_transform_and_lower(partitioner=[...])`, for any device."""

from __future__ import annotations

import functools
import types
import weakref
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from executorch.exir import to_edge
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import DelegateMappingBuilder, tag_constant_data
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.node import map_aggregate, map_arg
from torch.fx.passes.infra.pass_base import PassResult

from micronpu.base.errors import OptionError
from micronpu.frontend.graphs import GraphModule, Node, calls, nodes_where, place_of, returned
from micronpu.frontend.importer import import_program
from micronpu.frontend.integers import separate_clamps
from micronpu.frontend.program import (
    CHANNELS_LAST,
    ProgramView,
    aten_overload,
    axes_in_memory,
    calls_into,
    dequantizes_of,
    is_dequantize,
    is_getitem,
    overload_name,
    short_name,
    value_of,
)
from micronpu.frontend.tensors import with_graph, with_own_graph
from micronpu.ops.calls import CLONE
from micronpu.ops.movement import RESHAPE
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partitioning, reason_at
from micronpu.program.pte import DIGEST_KEY, EMPTY_DIGEST
from micronpu.report.delegation import DelegationReport
from micronpu.report.verdict import Reason
from micronpu.upstream.executorch import decompositions, edge_config, is_edge_operator, named_data_store
from micronpu.upstream.torch import FakeTensor, OpOverload, reshape_copy, schema_of


def decompose_leftovers(program: ExportedProgram, operators: Collection[OpOverload]) -> bool:
    """Decompose operators of an edge program as ExecuTorch does, in place.

        linear(x, w, b) -> y        permute_copy(w) -> w'; addmm(b, x, w') -> y

    ExecuTorch preserves operators that a partitioner requests, before partitioning. Passes of the user or another
    partitioner may change the program afterwards, so that such an operator is not delegated. The core has no kernel for
    it, and needs the core ATen operators of its decomposition.
    """
    for node in (found := nodes_where(program, lambda n: aten_overload(n) in operators)):
        _inline(program, node)
    if found:
        program.graph_module.recompile()
    return bool(found)


class _Call(nn.Module):
    """One call of an operator, as a module with its tensor operands as inputs."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node
        self.overload: Any = aten_overload(node)

    def forward(self, *tensors: torch.Tensor) -> Any:
        values = dict(zip(self.node.all_input_nodes, tensors, strict=True))
        args, kwargs = map_arg((self.node.args, self.node.kwargs), values.__getitem__)
        return self.overload(*args, **kwargs)


def _inline(program: ExportedProgram, node: Node) -> None:
    """Lower the operator alone, as ExecuTorch does, and replace it by the result."""
    values = [n.meta["val"] for n in node.all_input_nodes]
    examples = tuple(torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).zero_() for v in values)
    with torch.no_grad():
        exported = torch.export.export(_Call(node), examples)
        lowered = to_edge(exported, compile_config=edge_config()).exported_program()
    mode = getattr(node.meta["val"], "fake_mode", None)
    constants, operands = lowered.constants | lowered.state_dict, iter(node.all_input_nodes)
    copies: dict[Node, Node] = {}
    for spec, part in zip(
        lowered.graph_signature.input_specs, lowered.graph.find_nodes(op="placeholder", sort=True), strict=True
    ):
        constant = constants.get(spec.target or "")
        copies[part] = (
            next(operands) if constant is None else _add_constant(program, f"{node.name}_{part.name}", constant)
        )
    for part in calls(lowered):
        with program.graph.inserting_before(node):
            made = program.graph.node_copy(part, copies.__getitem__)
        made.meta = node.meta | {"val": map_aggregate(part.meta["val"], lambda value: _into(mode, value))}
        copies[part] = made
    _replace(program, node, [copies[result] for result in returned(lowered)])


def _add_constant(program: ExportedProgram, name: str, value: torch.Tensor) -> Node:
    """Add a constant to the program, before its inputs."""
    given = program.graph_signature.user_inputs
    first = next(n for n in program.graph.find_nodes(op="placeholder", sort=True) if n.name in given)
    with program.graph.inserting_before(first):
        node: Node = program.graph.placeholder(name)
    node.meta["val"] = _into(getattr(first.meta["val"], "fake_mode", None), value)
    program.constants[node.name] = value
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name)
    place = program.graph.find_nodes(op="placeholder", sort=True).index(node)
    program.graph_signature.input_specs.insert(place, spec)
    return node


def _into(mode: Any, value: object) -> Any:
    """Return a fake tensor with the same shape in the fake mode of another program."""
    if mode is None or not isinstance(value, torch.Tensor):
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _replace(program: ExportedProgram, node: Node, results: list[Node]) -> None:
    """Make the readers of ``node`` read ``results``, which also take its name as a program output."""
    replaced = {node: results[0]}
    if not isinstance(node.meta["val"], torch.Tensor):
        replaced = {user: results[place_of(user)] for user in node.users if is_getitem(user)}
    outputs = {spec.arg.name for spec in program.graph_signature.output_specs}
    for old, new in replaced.items():
        name = old.name
        old.replace_all_uses_with(new)
        program.graph.erase_node(old)
        if name in outputs:
            new._rename(name)
    if node not in replaced:
        program.graph.erase_node(node)


class SeenWeights:
    """Parameters and buffers that a partitioner saw before ExecuTorch hides them.

    ExecuTorch passes the program itself to query operators to preserve, and a copy with a fake state dictionary to
    partition.  Checking a partition needs the values.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[weakref.ref[torch.Tensor]]] = {}

    def remember(self, program: ExportedProgram) -> None:
        """Remember a program's state by weak references."""
        for name, value in program.state_dict.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                known = [ref for ref in self._seen.get(name, []) if (held := ref()) is not None and held is not value]
                self._seen[name] = [*known, weakref.ref(value)]

    def behind(self, program: ExportedProgram) -> dict[str, torch.Tensor]:
        """Return the known values of a program's state, by name; methods may use one name for different values."""
        return {
            name: value
            for name, fake in program.state_dict.items()
            if isinstance(fake, FakeTensor)
            for value in (ref() for ref in self._seen.get(name, []))
            # A fake mode makes one fake tensor of each value.
            if value is not None and fake.fake_mode.from_tensor(value, static_shapes=True) is fake
        }


RULE = "border_has_an_order"
SENTENCE = "Tensors between NPU and host are contiguous or channels-last in memory."
_HINT = "micronpu.compile, which reorders it, or contiguous example inputs"


def is_in_order(value: object) -> bool:
    """Return True if ExecuTorch derives an order from the strides that a payload can express."""
    return not isinstance(value, torch.Tensor) or axes_in_memory(value) in (tuple(range(value.dim())), CHANNELS_LAST)


def order_inputs(module: GraphModule, inputs: Collection[object]) -> None:
    """Copy inputs that are contiguous, but with the strides of another order on axes of size 1, in place.

        x [1, 1, 6, 6] with strides (36, 1, 6, 1) -> quantize        x -> clone{contiguous} -> quantize

    ExecuTorch derives the order of the axes from the strides, (0, 2, 1, 3) here, which no payload can express.
    """
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.target not in inputs or not isinstance(value, torch.Tensor) or not value.is_contiguous():
            continue
        if is_in_order(value):
            continue
        with module.graph.inserting_after(node):
            clone = _contiguous(module, node)
        node.replace_all_uses_with(clone, delete_user_cb=lambda user, own=clone: user is not own)


def order_results(module: GraphModule, partitioning: Partitioning) -> None:
    """Copy results of partitions in an order that no payload can express; the NPU makes the copy, at no cost.

    conv2d -> quantize -> dequantize -> y    conv2d -> quantize -> dequantize -> clone{contiguous} -> quantize -> ...

    Values inside partitions are copied, too: their ends are known only after compilation.
    """
    for partition in partitioning.partitions:
        for quantize in (q for d in partition.decisions for q in d.unit.quantizes):
            readers = dequantizes_of(quantize)
            if is_in_order(value_of(quantize)) or not readers:
                continue
            with module.graph.inserting_after(quantize):
                floats = module.graph.node_copy(readers[0])
            with module.graph.inserting_after(floats):
                clone = _contiguous(module, floats)
            with module.graph.inserting_after(clone):
                again = module.graph.node_copy(quantize)
            again.args = (clone, *quantize.args[1:])
            again.meta["val"] = value_of(quantize).clone(memory_format=torch.contiguous_format)
            for node in readers:
                node.replace_input_with(quantize, again)


def out_of_order(partitioning: Partitioning) -> dict[str, Reason]:
    """Return reasons for operators at the boundary of partitions to stay on the core, by name of their node."""
    found: dict[str, Reason] = {}
    for partition in partitioning.partitions:
        for value in (n for n in (*partition.inputs, *partition.outputs) if not is_in_order(value_of(n))):
            for unit in (d.unit for d in partition.decisions):
                if value in unit.reads or value in unit.quantizes:
                    detail = f"`{value.name}` has the order of axes {axes_in_memory(value_of(value))}"
                    node = unit.quantizes[0]
                    found[node.name] = reason_at(node, RULE, SENTENCE, detail, _HINT)
    return found


def _contiguous(module: GraphModule, node: Node) -> Node:
    clone = calls_into(module.graph)(CLONE, node, memory_format=torch.contiguous_format)
    clone.meta = dict(node.meta) | {"val": value_of(node).clone(memory_format=torch.contiguous_format)}
    return clone


_ALIGNMENT = 16  # bytes, so that a board can read it in place


def preprocess(edge_program: ExportedProgram, device: Device) -> PreprocessResult:
    """Return the payload of a partition, with a debug handle per NPU operation."""
    compiled = device.compile_program(import_program(ProgramView(edge_program)))
    mapping = DelegateMappingBuilder(generated_identifiers=False)
    for identifier, handles in compiled.debug_handles.items():
        if handles:
            mapping.insert_delegate_mapping_entry(handles=list(handles), identifier=identifier)
    return PreprocessResult(
        processed_bytes=compiled.payload,
        debug_handle_map=mapping.get_delegate_mapping(),
        data_store_output=named_data(compiled).get_named_data_store_output(),
    )


def named_data(part: CompiledPartition) -> Any:
    """Return data beside a payload in ExecuTorch's store."""
    store = named_data_store()
    for key, named in part.named_data.items():
        store.add_named_data(key, named.data, alignment=_ALIGNMENT, external_tag=named.file or None)
    store.add_named_data(DIGEST_KEY, EMPTY_DIGEST)  # equal for all partitions, and stored once
    return store


class DevicePartitioner(Partitioner):
    """Tags the partitions of a device.

    Args:
        device: the NPU with its options.
        delegation_spec: backend and compile specs.
        preserve_ops: ATen operators, such as ``torch.ops.aten.hardswish.default``, that ExecuTorch must not decompose.

    Attributes:
        backend: class that compiles the payloads.
        report: result of the last call of `partition`, or None before it.
    """

    backend: type[BackendDetails]

    def __init__(self, device: Device, delegation_spec: DelegationSpec, preserve_ops: Sequence[object] = ()) -> None:
        super().__init__()
        # Importing it registers the out variants of quantize and dequantize, which remain at the boundary of the core
        # part.
        import executorch.kernels.quantized  # noqa: F401

        self.device = device
        self.delegation_spec = delegation_spec
        self.preserve_ops = frozenset(_overload(op) for op in preserve_ops)
        self.report: DelegationReport | None = None
        self._weights = SeenWeights()
        self._kept: set[OpOverload] = set()
        self._not_kept: dict[str, None] = {}

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[object], object]:
        """Return the operators to preserve: exactly those of the nodes that the same rules would delegate.

        Once the program has edge operators none is requested: ExecuTorch would fail on a preserved operator that later
        turns out not to be delegable.
        """
        if any(is_edge_operator(n.target) for n in calls(ep)):
            # ExecuTorch's last query follows partitioning.
            decompose_leftovers(ep, self._kept)
            return [], None
        self._weights.remember(ep)
        partitioning = self.device.partition(ProgramView(ep))
        delegated = {n.name for g in partitioning.partitions for n in g.nodes}
        kept = _decomposed_operators() & {n.target for n in nodes_where(ep, overload_name) if n.name in delegated}
        # ExecuTorch queries again after decomposition; earlier results are kept.
        self._not_kept |= dict.fromkeys(
            f"{v.operator} is in preserve_ops, but is not kept whole, because it cannot be delegated. {v.reasons[0]}"
            for v in partitioning.report.host
            if v.operator in self.preserve_ops and v.reasons
        )
        self._kept |= kept
        return list(kept), lambda node: node.name in delegated

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the partitions; nodes that stay on the core have their reasons in `report`."""
        self._found = be_found(self.backend)  # ExecuTorch looks it up next
        partitioning = self._settled(exported_program)
        report = partitioning.report
        self.report = replace(report, notes=(*report.notes, *self._not_kept))
        self._not_kept = {}
        tags: dict[str, DelegationSpec] = {}
        for number, group in enumerate(partitioning.partitions):
            tag = f"{self.device.backend}_{number}"
            tags[tag] = self.delegation_spec
            for node in group.nodes:
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Prepare a copy of the program for ExecuTorch's decompositions.

        Every operator gets its own dequantizes, so that partitions and the core share none.  A clamp that must stay on
        the core is separated from the operator that it would be fused into.  A reshape that will be delegated becomes
        an operator that ExecuTorch does not replace: a reshape of a transposed value would become a copy and a view
        without quantization between them, which cannot be delegated.
        """
        module = with_own_graph(exported_program.graph_module)
        order_inputs(module, set(exported_program.graph_signature.user_inputs))
        separate_clamps(module, self.device.excludes)
        changed = with_graph(exported_program, split_dequantizes(module).graph_module)
        partitioning = self.device.partition(ProgramView(changed))
        order_results(changed.graph_module, partitioning)
        for group in partitioning.partitions:
            for node in group.nodes:
                if overload_name(node) == RESHAPE:
                    node.target = reshape_copy()
        changed.graph_module.recompile()
        return changed

    def _settled(self, program: ExportedProgram) -> Partitioning:
        """Return partitions that can be cut out and compiled."""
        decisions = self.device.decisions(ProgramView(program, self._weights.behind(program)))

        def refused(found: Partitioning) -> bool:
            # A partitioner must not change the graph, so readers of a shared dequantize stay on the core.
            return decisions.keep_whole(_torn_dequantizes(found)) or decisions.refuse(out_of_order(found))

        while True:
            partitioning = decisions.partitioning()
            if refused(partitioning):
                continue
            # It cannot pass on a plan either, so only the existence of a plan is checked.
            settled = self.device.settle(decisions, partitioning, ask=self.device.probe)
            if settled is partitioning or not refused(settled):
                return settled


@functools.lru_cache(maxsize=1)
def _decomposed_operators() -> frozenset[Any]:
    """Return operators that ExecuTorch can preserve: those that it would decompose, and the reshape that it does not
    know.

    It warns about requests for any other operator.
    """
    decomposed = frozenset(
        op
        for op in decompositions()
        if isinstance(op, OpOverload)
        and not schema_of(op).is_mutable
        and not any(r.alias_info is not None for r in schema_of(op).returns)
    )
    return decomposed | {reshape_copy()}


def _overload(op: object) -> str:
    """Return name with overload of an ATen operator, as `overload_name` does."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        what = f"`preserve_ops` holds {op!r}, which is no overload of an ATen operator."
        raise OptionError(what, hint="torch.ops.aten.hardswish.default and the like")
    return short_name(op)


def _torn_dequantizes(partitioning: Partitioning) -> set[Node]:
    """Return dequantizes in a partition with readers outside of it."""
    torn: set[Node] = set()
    for group in partitioning.partitions:
        members = set(group.nodes)
        torn |= {n for n in group.nodes if is_dequantize(n) and any(user not in members for user in n.users)}
    return torn


def split_dequantizes(module: GraphModule) -> PassResult:
    """Give every reader its own dequantize.

    x8 -> dq -> (a, b)        x8 -> dq -> a, x8 -> dq' -> b
    """
    changed = False
    for node in nodes_where(module, is_dequantize):
        for user in list(node.users)[1:]:
            with module.graph.inserting_after(node):
                own: Node = module.graph.node_copy(node)
            user.replace_input_with(node, own)
            changed = True
    if changed:
        module.recompile()
    return PassResult(module, changed)


# ---------------------------------------------------------------- several backends of one name

Specs = list[CompileSpec]


class ByCompileSpec:
    """Second base class, beside `BackendDetails`, of a backend that shares its name with others.

    ExecuTorch finds a backend by the name of its class, which is also the delegate's name on the board, and takes the
    class that was defined last.  Other packages define classes of the same names; ExecuTorch's own Cortex-M backend
    imports one. So each class here examines the compile specs and delegates foreign ones to the other class of its
    name, and a partitioner makes sure that ExecuTorch finds the class of this package.
    """

    __name__: str

    @staticmethod
    @abstractmethod
    def owns(compile_specs: Specs) -> bool:
        """Return True if compile specs are for this backend."""

    @staticmethod
    @abstractmethod
    def compiled(edge_program: ExportedProgram, compile_specs: Specs) -> PreprocessResult:
        """Return the payload of a partition, with a debug handle per NPU operation."""

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: Specs) -> PreprocessResult:
        """Return the payload of a partition, from the backend that its compile specs are for."""
        owner = cls._owner(compile_specs)
        if owner is not None:
            return owner.preprocess(edge_program, compile_specs)
        return cls.compiled(edge_program, compile_specs)

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: Specs
    ) -> ExportedProgram:
        """Return a copy of the program that may be changed."""
        owner = cls._owner(compile_specs) or BackendDetails
        copy: ExportedProgram = owner.copy_exported_program_for_preprocess(edge_program, compile_specs)
        return copy

    @classmethod
    def preprocess_multimethod(
        cls, edge_programs: dict[str, list[ExportedProgram]], compile_specs: dict[str, list[Specs]]
    ) -> dict[str, list[PreprocessResult]]:
        """Return the payloads of all partitions of all methods; each backend is called once."""
        owners = {m: [cls._owner(specs) for specs in given] for m, given in compile_specs.items()}
        results: dict[str, list[object]] = {m: [None] * len(given) for m, given in compile_specs.items()}
        for owner in dict.fromkeys(o for given in owners.values() for o in given):
            places = {m: [i for i, o in enumerate(given) if o is owner] for m, given in owners.items()}
            programs = {m: [edge_programs[m][i] for i in at] for m, at in places.items()}
            specs = {m: [compile_specs[m][i] for i in at] for m, at in places.items()}
            if owner is not None:
                made = owner.preprocess_multimethod(programs, specs)
            else:
                made = {m: [cls.compiled(p, s) for p, s in zip(programs[m], specs[m], strict=True)] for m in programs}
            for method, at in places.items():
                for i, result in zip(at, made[method], strict=True):
                    results[method][i] = result
        return results

    @classmethod
    def _owner(cls, specs: Specs) -> type[BackendDetails] | None:
        """Return the other class of the same name that compile specs are for, or None if they are for this class."""
        if cls.owns(specs):
            return None
        others = [c for c in backends_named(cls.__name__) if not issubclass(c, ByCompileSpec)]
        return others[-1] if others else None  # without another class, this one reports the error


def backends_named(name: str) -> list[type[BackendDetails]]:
    """Return the backends of a name in ExecuTorch's order; it uses the last one."""
    return [c for c in BackendDetails.__subclasses__() if c.__name__ == name]


def be_found(backend: type[BackendDetails]) -> type[BackendDetails]:
    """Define a backend again if another class of its name was defined later, so that ExecuTorch finds this one.

    Returns:
        The class that ExecuTorch finds while a reference to it exists.
    """
    last = backends_named(backend.__name__)[-1]
    if issubclass(last, ByCompileSpec):
        return last
    members = {k: v for k, v in vars(backend).items() if k not in ("__dict__", "__weakref__", "_abc_impl")}
    return types.new_class(backend.__name__, backend.__bases__, exec_body=lambda space: space.update(members))
