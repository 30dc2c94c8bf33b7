"""ExecuTorch's entry point, `to_edge_transform_and_lower(partitioner=[...])`, for any device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import DelegateMappingBuilder, tag_constant_data
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from micronpu.base.errors import OptionError
from micronpu.container import digest
from micronpu.frontend.importer import import_program
from micronpu.frontend.program import ProgramView, is_dequantize, overload_name, short_name
from micronpu.frontend.regions import with_graph, with_own_graph
from micronpu.frontend.separate import separate_clamps
from micronpu.ops.movement import RESHAPE
from micronpu.partition.axes import order_inputs, order_results, out_of_order
from micronpu.partition.backends import be_found
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.leftovers import decompose_leftovers
from micronpu.partition.partition import Partitioning
from micronpu.partition.weights import SeenWeights
from micronpu.report.delegation import DelegationReport
from micronpu.upstream.executorch import decompositions, is_edge_operator, named_data_store
from micronpu.upstream.torch import OpOverload, reshape_copy, schema_of

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
    store.add_named_data(digest.KEY, digest.EMPTY)  # equal for all partitions, and stored once
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

    def __init__(self, device: Device, delegation_spec: DelegationSpec, preserve_ops: Sequence[Any] = ()) -> None:
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

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Any]:
        """Return the operators to preserve: exactly those of the nodes that the same rules would delegate.

        Once the program has edge operators none is requested: ExecuTorch would fail on a preserved operator that later
        turns out not to be delegable.
        """
        if any(is_edge_operator(n.target) for n in ep.graph.nodes):
            # ExecuTorch's last query follows partitioning.
            decompose_leftovers(ep, self._kept)
            return [], None
        self._weights.remember(ep)
        partitioning = self._partitioning(ep)
        delegated = {n.name for g in partitioning.partitions for n in g.nodes}
        kept = {n.target for n in ep.graph.nodes if n.name in delegated and overload_name(n)} & _decomposed_operators()
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
        module = with_own_graph(exported_program)
        order_inputs(module, set(exported_program.graph_signature.user_inputs))
        separate_clamps(module, self.device.excludes)
        changed = with_graph(exported_program, split_dequantizes(module).graph_module)
        partitioning = self._partitioning(changed)
        order_results(changed.graph_module, partitioning)
        for group in partitioning.partitions:
            for node in group.nodes:
                if overload_name(node) == RESHAPE:
                    node.target = reshape_copy()
        changed.graph_module.recompile()
        return changed

    def _partitioning(self, program: ExportedProgram) -> Partitioning:
        return self.device.partition(ProgramView(program))

    def _settled(self, program: ExportedProgram) -> Partitioning:
        """Return partitions that can be cut out and compiled."""
        decisions = self.device.decisions(ProgramView(program, self._weights.behind(program)))
        while True:
            partitioning = decisions.partitioning()
            # A partitioner must not change the graph, so readers of a shared dequantize stay on the core.
            if decisions.keep_whole(_torn_dequantizes(partitioning)) or decisions.refuse(out_of_order(partitioning)):
                continue
            # It cannot pass on a plan either, so only the existence of a plan is checked.
            settled = self.device.settle(decisions, partitioning, ask=self.device.probe)
            if settled is not partitioning and (
                decisions.keep_whole(_torn_dequantizes(settled)) or decisions.refuse(out_of_order(settled))
            ):
                continue
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


def _overload(op: Any) -> str:
    """Return name with overload of an ATen operator, as `overload_name` does."""
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        raise OptionError(
            f"`preserve_ops` holds {op!r}, which is no overload of an ATen operator.",
            hint="torch.ops.aten.hardswish.default and the like",
        )
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
    for node in list(module.graph.nodes):
        if not is_dequantize(node) or len(node.users) < 2:
            continue
        for user in list(node.users)[1:]:
            with module.graph.inserting_after(node):
                own: Node = module.graph.node_copy(node)
            user.replace_input_with(node, own)
            changed = True
    if changed:
        module.recompile()
    return PassResult(module, changed)
