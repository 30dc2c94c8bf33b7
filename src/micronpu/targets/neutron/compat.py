"""Neutron under the names of ExecuTorch's own backend: compile specs, backend, partitioner, edge passes, quantizer."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from executorch.exir import EdgeProgramManager
from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.pass_base import ExportPass
from executorch.exir.pass_manager import ExportedProgramPassManager
from executorch.exir.passes.quantize_io_pass import QuantizeInputs, QuantizeOutputs
from executorch.export import RecipeType
from torch.fx.passes.infra.pass_base import PassResult

from micronpu.base.arguments import check_switch, check_type, described, items, strings
from micronpu.base.errors import FileError, ModelError, OptionError
from micronpu.base.files import check_name
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.program import integers_behind, overload_of, quantizes_of
from micronpu.ops.activation import PRELU
from micronpu.partition.entry import ByCompileSpec, DevicePartitioner, preprocess, split_dequantizes
from micronpu.partition.outline import move_integers
from micronpu.quantize.config import Activations, IOType
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.neutron.converter import DEFAULT_TIMEOUT, EXCLUDED_GRAPH_PASSES
from micronpu.targets.neutron.device import NeutronDevice
from micronpu.targets.neutron.options import CustomDelegationOptions, NeutronOptions
from micronpu.targets.neutron.rules import capabilities_of
from micronpu.targets.neutron.target_spec import LATEST, NeutronTargetSpec

_FLAVOR = "SDK_"


def _one(name: str, *given: object) -> Any:
    """Return the value of an option with several names; None if none is given."""
    values = [value for value in given if value is not None]
    if any(value != values[0] for value in values):
        raise OptionError(f"`{name}` is given under several names: {', '.join(map(repr, values))}.", hint="one of them")
    return values[0] if values else None


def generate_neutron_compile_spec(
    config: str,
    system_config: str | None = None,
    extra_flags: Sequence[str] | str | None = None,
    intermediates_dir: str | os.PathLike[str] | None = None,
    operators_not_to_delegate: Sequence[str] | None = None,
    use_neutron_for_format_conversion: bool = True,
    fetch_constants_to_sram: bool = False,
    dump_kernel_selection_code: bool = False,
    use_profiling: bool = False,
    *,
    profiling: bool | None = None,
    converter: str = "auto",
    converter_flavor: str | None = None,
    neutron_converter_flavor: str | None = None,
    converter_timeout: float = DEFAULT_TIMEOUT,
    sdk_version: str = "",
    disabled_passes: Sequence[str] = (),
    excluded_graph_passes: Sequence[str] = EXCLUDED_GRAPH_PASSES,
    **others: object,
) -> list[CompileSpec]:
    """Compile specs for `NeutronPartitioner`; see `NeutronOptions` for the arguments.

    Names and order are those of ExecuTorch's own backend, so that its scripts run.

    Args:
        system_config: ignored, as in ExecuTorch; a converter flavor is accepted here, since it was in this position in
            the first releases.
        use_profiling: another name of ``profiling``.
        neutron_converter_flavor: another name of ``converter_flavor``.

    Raises:
        OptionError: a value has the wrong type, a name does not exist, or two names of one option have different
            values.
    """
    if others:
        raise OptionError(
            f"There is no option {next(iter(others))!r} of a Neutron compilation.",
            hint=f"one of {', '.join(_OPTIONS)}",
        )
    check_switch("use_profiling", use_profiling)
    check_type("profiling", profiling, bool, type(None))
    for name, given in (
        ("system_config", system_config),
        ("converter_flavor", converter_flavor),
        ("neutron_converter_flavor", neutron_converter_flavor),
    ):
        check_type(name, given, str, type(None))
    flags = extra_flags.split() if isinstance(extra_flags, str) else () if extra_flags is None else extra_flags
    excluded = () if operators_not_to_delegate is None else operators_not_to_delegate
    older = system_config if str(system_config).startswith(_FLAVOR) else None
    flavor = _one("converter_flavor", converter_flavor, neutron_converter_flavor, older)
    profile = _one("profiling", profiling, use_profiling or None)
    return NeutronOptions(
        silicon=config,
        extra_flags=strings("extra_flags", flags),
        operators_not_to_delegate=strings("operators_not_to_delegate", excluded),
        use_neutron_for_format_conversion=use_neutron_for_format_conversion,
        fetch_constants_to_sram=fetch_constants_to_sram,
        dump_kernel_selection_code=dump_kernel_selection_code,
        profiling=False if profile is None else profile,
        intermediates_dir=_folder(intermediates_dir),
        converter=converter,
        converter_flavor=LATEST if flavor is None else flavor,
        converter_timeout=converter_timeout,
        sdk_version=sdk_version,
        disabled_passes=strings("disabled_passes", disabled_passes),
        excluded_graph_passes=strings("excluded_graph_passes", excluded_graph_passes),
    ).to_specs()


def _folder(given: str | os.PathLike[str] | None) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    try:
        return str(check_name(given))
    except FileError as error:
        raise OptionError(
            f"`intermediates_dir` is {described(given)}; it is the path of a folder.", hint="a path such as 'out'"
        ) from error


_OPTIONS = tuple(inspect.signature(generate_neutron_compile_spec).parameters)[1:-1]


class NeutronCompileSpecBuilder:
    """Builder of compile specs: ``NeutronCompileSpecBuilder().neutron_compile_spec("imxrt700").build()``."""

    def __init__(self) -> None:
        self._options: dict[str, Any] | None = None

    def neutron_compile_spec(
        self,
        config: str,
        intermediates_dir: str | os.PathLike[str] | None = None,
        extra_flags: Sequence[str] | str | None = None,
        operators_not_to_delegate: Sequence[str] | None = None,
        use_neutron_for_format_conversion: bool = True,
        fetch_constants_to_sram: bool = False,
        dump_kernel_selection_code: bool = False,
        use_profiling: bool = False,
        **options: object,
    ) -> NeutronCompileSpecBuilder:
        """Set chip and options; see `generate_neutron_compile_spec`, whose arguments have another order."""
        self._options = {
            "config": config,
            "intermediates_dir": intermediates_dir,
            "extra_flags": extra_flags,
            "operators_not_to_delegate": operators_not_to_delegate,
            "use_neutron_for_format_conversion": use_neutron_for_format_conversion,
            "fetch_constants_to_sram": fetch_constants_to_sram,
            "dump_kernel_selection_code": dump_kernel_selection_code,
            "use_profiling": use_profiling,
            **options,
        }
        generate_neutron_compile_spec(**self._options)  # raise errors here rather than in build()
        return self

    def build(self) -> list[CompileSpec]:
        """Return the compile specs."""
        if self._options is None:
            raise OptionError(
                "The compile spec has no chip.", hint='call neutron_compile_spec("imxrt700") before build()'
            )
        return generate_neutron_compile_spec(**self._options)


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
        post_quantization_state_dict: Mapping[str, object] | None = None,
        preserve_ops: Sequence[object] | None = None,
        check_op_support: Callable[[Node], bool] | None = None,
    ) -> None:
        for name, given, kind in (
            ("neutron_target_spec", neutron_target_spec, NeutronTargetSpec),
            ("custom_delegation_options", custom_delegation_options, CustomDelegationOptions),
            ("post_quantization_state_dict", post_quantization_state_dict, Mapping),
        ):
            check_type(name, given, kind, type(None), hint="arguments by name")
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
        name = getattr(check_op_support, "__name__", type(check_op_support).__name__)
        checks = () if check_op_support is None else ((name, check_op_support),)
        super().__init__(
            NeutronDevice(options, delegation=custom_delegation_options, checks=checks),
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

    def __init__(self, passes: Sequence[object] | None = None) -> None:
        own = () if passes is None else items("passes", passes, "edge passes")
        for each in own:
            if not callable(each):
                raise OptionError(f"`passes` holds {described(each)}, which cannot be called.", hint="edge passes")
        super().__init__([*own, split_dequantizes])


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


core_aten_ops_exception_list: list[Any] = [overload_of(PRELU)]
"""ATen operators allowed in an edge program, for ``EdgeCompileConfig(_core_aten_ops_exception_list=...)``."""

default_preserve_ops: list[Any] = []
"""For ``NeutronPartitioner(preserve_ops=...)``, which keeps every operator that can be delegated anyway."""


class RemoveIOQuantOpsPass(ExportPass):
    """Removes the quantizes and dequantizes at the inputs and outputs of an edge program, which then are integers.

        x float -> quantize -> x8 -> delegate -> y8 -> dequantize -> y float
                               x8 -> delegate -> y8

    For ``edge.transform([RemoveIOQuantOpsPass(edge)])``, after delegation. Inputs and outputs without quantization are
    unchanged; scales and zero points become constant methods of the program, as in ExecuTorch's `QuantizeInputs`.

    Args:
        edge_program_manager: the program to transform.

    Raises:
        OptionError: it is not an edge program.
        ModelError: a quantized input has other readers, and would have to be float and integer.
    """

    def __init__(self, edge_program_manager: EdgeProgramManager) -> None:
        super().__init__()
        hint = "what to_edge_transform_and_lower returned"
        check_type("edge_program_manager", edge_program_manager, EdgeProgramManager, hint=hint)
        self._manager = edge_program_manager

    def call(self, graph_module: GraphModule) -> PassResult:
        program = self._manager.exported_program()
        by_name = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
        inputs = []
        for index, name in enumerate(program.graph_signature.user_inputs):
            readers = by_name[str(name)].users
            if quantizes_of(by_name[str(name)]):
                if len(readers) > 1:
                    raise ModelError(
                        f"The input `{name}` has {len(readers)} readers, and one of them quantizes it.",
                        hint='micronpu.compile(..., io="int8"), which gives them the same qparams',
                    )
                inputs.append(index)
        (results,) = program.graph.output_node().args
        outputs = [i for i, node in enumerate(results) if integers_behind(node) is not node]
        QuantizeInputs(self._manager, inputs).call(graph_module)
        QuantizeOutputs(self._manager, outputs).call(graph_module)
        return PassResult(graph_module, True)


class RemoveAdditionalQDQClustersPass(ExportPass):
    """Replaces dequantize, move and quantize with the same qparams by moving integers.

        x8 -> dequantize -> permute -> quantize -> y8        x8 -> permute -> y8

    For ``edge.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))``, after delegation.
    `micronpu.compile` does it automatically.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        return PassResult(graph_module, move_integers(graph_module))


class NeutronQuantizer(StaticQuantizer):
    """Static int8 for Neutron; see `StaticQuantizer` for its meaning and for the configuration of parts of a model.

    Args:
        neutron_target_spec: the chip; default i.MX RT700.
        is_qat: for quantization-aware training.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        disabled_rewrites: names of rewrites of the float program to skip; `micronpu passes` lists them.
        activations: "int8", the only type that Neutron supports.
        io: "int8" or "uint8" for a program with integer inputs and outputs, see `StaticQuantizer.set_io`.

    Raises:
        OptionError: an argument has another type, there is no such rewrite, or activations are not int8.
    """

    def __init__(
        self,
        neutron_target_spec: NeutronTargetSpec | None = None,
        is_qat: bool = False,
        *,
        per_channel: bool = True,
        disabled_rewrites: Iterable[str] = (),
        activations: Activations = "int8",
        io: IOType | None = None,
    ) -> None:
        spec, hint = neutron_target_spec, 'NeutronTargetSpec("imxrt700")'
        check_type("neutron_target_spec", spec, NeutronTargetSpec, type(None), hint=hint)
        check_switch("is_qat", is_qat)
        self.target = neutron_target_spec or NeutronTargetSpec("imxrt700")
        super().__init__(
            capabilities_of(self.target),
            per_channel=per_channel,
            is_qat=is_qat,
            disabled_rewrites=disabled_rewrites,
            activations=activations,
            io=io,
        )


class NeutronRecipeType(RecipeType):
    """Recipes for NXP eIQ Neutron."""

    INT8 = "micronpu_neutron_int8"
    INT8_QAT = "micronpu_neutron_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        return "micronpu_neutron"
