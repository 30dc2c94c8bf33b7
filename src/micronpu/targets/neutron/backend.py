"""The Neutron back end as ExecuTorch's partitioner interface knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.pass_manager import ExportedProgramPassManager
from torch.fx import Node

from micronpu.base.arguments import check_type, described, items
from micronpu.base.errors import OptionError
from micronpu.partition.backends import ByCompileSpec
from micronpu.partition.entry import DevicePartitioner, preprocess, split_dequantizes
from micronpu.targets.neutron.device import NeutronDevice
from micronpu.targets.neutron.options import CustomDelegationOptions, NeutronOptions
from micronpu.targets.neutron.target_spec import LATEST, NeutronTargetSpec


class NeutronBackend(ByCompileSpec, BackendDetails):
    """Compiles a partition; the runtime looks the delegate up by the name of this class."""

    @staticmethod
    def owns(compile_specs: list[CompileSpec]) -> bool:
        return NeutronOptions.owns(compile_specs)

    @staticmethod
    def compiled(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return preprocess(edge_program, NeutronDevice(NeutronOptions.from_specs(compile_specs)))


class NeutronPartitioner(DevicePartitioner):
    """Tags what Neutron runs, for ``to_edge_transform_and_lower(partitioner=[...])``.

    Args:
        compile_spec: from `generate_neutron_compile_spec`; the defaults for i.MX RT700 unless given.
        neutron_target_spec: the chip and rule set; those of the compile spec unless given.
        custom_delegation_options: how bold to delegate; defensive unless given.
        post_quantization_state_dict: accepted for scripts that pass it, and not looked at: decisions depend on
            operators and shapes, never on values.
        preserve_ops: ATen operators, such as ``torch.ops.aten.hardswish.default``, that ExecuTorch shall not decompose.
            Every operator that can be delegated is kept anyway, in this list or not; one that cannot is decomposed, and
            the report says why it was not kept.
        check_op_support: a check of your own; an operator for which it returns False stays on the host, and the report
            names the check.  It is asked about the nodes of operators, be they ATen's or the edge dialect's.

    Attributes:
        report: what the last call of `partition` decided, or None before it.

    Raises:
        OptionError: an argument of the wrong type, or compile spec and target name different chips or rule sets.
    """

    backend = NeutronBackend

    def __init__(
        self,
        compile_spec: list[CompileSpec] | None = None,
        neutron_target_spec: NeutronTargetSpec | None = None,
        custom_delegation_options: CustomDelegationOptions | None = None,
        post_quantization_state_dict: Mapping[str, Any] | None = None,
        preserve_ops: Sequence[Any] | None = None,
        check_op_support: Callable[[Node], bool] | None = None,
    ) -> None:
        _check_type("neutron_target_spec", neutron_target_spec, NeutronTargetSpec)
        _check_type("custom_delegation_options", custom_delegation_options, CustomDelegationOptions)
        _check_type("post_quantization_state_dict", post_quantization_state_dict, Mapping)
        if check_op_support is not None and not callable(check_op_support):
            raise OptionError(
                f"`check_op_support` of NeutronPartitioner is {described(check_op_support)}, which cannot be called.",
                hint="a function of a node that returns True or False",
            )
        specs = [] if compile_spec is None else items("compile_spec", compile_spec, "compile specs")
        for spec in specs:
            check_type("compile_spec", spec, CompileSpec, hint='generate_neutron_compile_spec("imxrt700")')
        options = NeutronOptions.from_specs(specs)
        target = neutron_target_spec or options.target_spec
        if not specs:
            options = replace(options, silicon=target.target)
        options = _of_one_device(options, target)
        self.options = options
        super().__init__(
            NeutronDevice(options, delegation=custom_delegation_options, check=check_op_support),
            DelegationSpec(NeutronBackend.__name__, options.to_specs()),
            () if preserve_ops is None else items("preserve_ops", preserve_ops, "ATen operators"),
        )


class NeutronEdgePassManager(ExportedProgramPassManager):
    """Edge passes for ``to_edge_transform_and_lower(transform_passes=...)``, under the name that users know.

    micronpu's rewrites work on its own graph, behind the partitioner.  What an edge program has to go through is
    little: each operator gets dequantizes of its own.  `NeutronPartitioner` does that too, before ExecuTorch decomposes
    the program, so that this manager only matters for dequantizes that something joins in between.

    Args:
        passes: edge passes of your own, run before, in this order.
    """

    def __init__(self, passes: Sequence[Any] | None = None) -> None:
        own = () if passes is None else items("passes", passes, "edge passes")
        for each in own:
            if not callable(each):
                raise OptionError(f"`passes` holds {described(each)}, which cannot be called.", hint="edge passes")
        super().__init__([*own, split_dequantizes])


def _check_type(name: str, given: Any, wanted: type) -> None:
    if given is not None and not isinstance(given, wanted):
        raise OptionError(
            f"`{name}` of NeutronPartitioner is a {type(given).__name__}, not a {wanted.__name__}.",
            hint="arguments by name",
        )


def _of_one_device(options: NeutronOptions, target: NeutronTargetSpec) -> NeutronOptions:
    """The options with the rule set that one of the two names; the default of both asks for nothing."""
    flavors = {options.converter_flavor, target.converter_flavor} - {LATEST}
    if options.silicon != target.target or len(flavors) > 1:
        raise OptionError(
            f"The compile spec is for {options.silicon} with the rules of {options.converter_flavor}, the target is "
            f"{target.target} with those of {target.converter_flavor}.",
            hint="generate_neutron_compile_spec(target.target, converter_flavor=target.converter_flavor)",
        )
    return replace(options, converter_flavor=next(iter(flavors), LATEST))
