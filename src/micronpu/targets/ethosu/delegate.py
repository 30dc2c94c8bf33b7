"""The Ethos-U backend for ExecuTorch's partitioner interface."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, PartitionResult
from torch.fx import GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase

from micronpu.base.arguments import described, items
from micronpu.base.errors import OptionError
from micronpu.partition.backends import ByCompileSpec
from micronpu.partition.entry import DevicePartitioner, preprocess
from micronpu.targets.ethosu.compat import EthosUCompileSpec, options_of
from micronpu.targets.ethosu.device import EthosUDevice
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.upstream.torch import OpOverload


class EthosUBackend(ByCompileSpec, BackendDetails):
    """Compiles a partition; the runtime finds the delegate by this class's name."""

    @staticmethod
    def owns(compile_specs: list[CompileSpec]) -> bool:
        return EthosUOptions.owns(compile_specs)

    @staticmethod
    def compiled(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return preprocess(edge_program, EthosUDevice(EthosUOptions.from_specs(compile_specs)))


def _accepts(check: OperatorSupportBase, node: Node) -> bool:
    owner = node.graph.owning_module
    return check.is_node_supported(dict(owner.named_modules()) if isinstance(owner, GraphModule) else {}, node)


class EthosUPartitioner(DevicePartitioner):
    """Tags operators for an Ethos-U, for ``to_edge_transform_and_lower(partitioner=[...])``.

    Args:
        compile_spec: accelerator and options, as `EthosUOptions` or as ExecuTorch's `EthosUCompileSpec`.
        additional_checks: user-defined checks, ``torch.fx`` `OperatorSupportBase`; an operator that one of them refuses
            is not delegated, and the report names the check.

    Attributes:
        report: decisions of the last call of `partition`, or None before it.
            custom_partition_ops: operators that were registered as custom ones.

    Raises:
        OptionError: an argument has the wrong type.
    """

    backend = EthosUBackend

    def __init__(
        self,
        compile_spec: EthosUOptions | EthosUCompileSpec,
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ) -> None:
        options = options_of(compile_spec)
        checks = () if additional_checks is None else items("additional_checks", additional_checks)
        for check in checks:
            if not isinstance(check, OperatorSupportBase):
                raise OptionError(
                    f"`additional_checks` holds {described(check)}, which is no OperatorSupportBase.",
                    hint="a class with is_node_supported(submodules, node)",
                )
        super().__init__(
            EthosUDevice(options, checks=tuple((type(c).__name__, functools.partial(_accepts, c)) for c in checks)),
            DelegationSpec(EthosUBackend.__name__, options.to_specs()),
        )
        self.custom_partition_ops: dict[OpOverload, None] = {}
        self._notes = compile_spec.notes if isinstance(compile_spec, EthosUCompileSpec) else ()

    def register_custom_partition_op(self, op: OpOverload) -> None:
        """Register a custom operator, for compatibility with existing scripts.

        User-defined passes cannot make it an NPU operation: as any unknown operator, it is not delegated, but reported.

        Raises:
            OptionError: it is not an overload of an operator.
        """
        if not isinstance(op, OpOverload):
            raise OptionError(
                f"`register_custom_partition_op` got {op!r}; it takes an overload of an operator.",
                hint="torch.ops.mylib.myop.default",
            )
        self.custom_partition_ops[op] = None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = super().partition(exported_program)
        notes = list(self._notes)
        if self.custom_partition_ops:
            names = ", ".join(str(op) for op in self.custom_partition_ops)
            notes.append(f"User-defined operators, which stay on the host unless micronpu knows them: {names}.")
        if self.report is not None and notes:
            self.report = replace(self.report, notes=(*self.report.notes, *notes))
        return result
