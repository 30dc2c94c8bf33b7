"""The Neutron backend for ExecuTorch's partitioner interface."""

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
    """Compiles a partition; the runtime finds the delegate by this class's name."""

    @staticmethod
    def owns(compile_specs: list[CompileSpec]) -> bool:
        return NeutronOptions.owns(compile_specs)

    @staticmethod
    def compiled(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return preprocess(edge_program, NeutronDevice(NeutronOptions.from_specs(compile_specs)))


class NeutronPartitioner(DevicePartitioner):
    """Tags operators for Neutron, for ``to_edge_transform_and_lower(partitioner=[...])``.

    Args:
        compile_spec: from `generate_neutron_compile_spec`; default: those of i.MX RT700.
        neutron_target_spec: the chip and rule set; default: those of the compile spec.
        custom_delegation_options: delegation policy; default: defensive.
        post_quantization_state_dict: ignored; accepted for compatibility with existing scripts: decisions depend on
            operators and shapes, never on values.
        preserve_ops: ATen operators, such as ``torch.ops.aten.hardswish.default``, that ExecuTorch must not decompose.
            Operators that can be delegated are preserved in any case; one that cannot is decomposed, and the report
            states why.
        check_op_support: user-defined check; an operator for which it returns False is not delegated, and the report
            names the check. It is called for nodes of ATen and edge operators.

    Attributes:
        report: decisions of the last call of `partition`, or None before it.

    Raises:
        OptionError: an argument has the wrong type, or compile spec and target name different chips or rule sets.
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
    """Edge passes for ``to_edge_transform_and_lower(transform_passes=...)``, under ExecuTorch's name.

    micronpu's rewrites work on its own graph, after partitioning. An edge program needs a single pass: each operator
    gets separate dequantizes. `NeutronPartitioner` does that too, before ExecuTorch decomposes the program, so this
    manager only matters for dequantizes that are merged in between.

    Args:
        passes: user-defined edge passes, run before, in this order.
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
    """Return the options with the rule set that either of them names; both have the same default."""
    flavors = {options.converter_flavor, target.converter_flavor} - {LATEST}
    if options.silicon != target.target or len(flavors) > 1:
        raise OptionError(
            f"The compile spec is for {options.silicon} with the rules of {options.converter_flavor}, the target is "
            f"{target.target} with those of {target.converter_flavor}.",
            hint="generate_neutron_compile_spec(target.target, converter_flavor=target.converter_flavor)",
        )
    return replace(options, converter_flavor=next(iter(flavors), LATEST))
