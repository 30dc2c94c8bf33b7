"""Ethos-U under the names of ExecuTorch's own backend: compile spec, pass options, backend, partitioner, quantizer."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import Any, ClassVar

import torch
from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, PartitionResult
from executorch.export import RecipeType
from torch.fx.passes.operator_support import OperatorSupportBase

from micronpu.base.arguments import check_switch, check_type, described, items
from micronpu.base.errors import OptionError
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.partition.entry import ByCompileSpec, DevicePartitioner, preprocess
from micronpu.quantize.config import Activations, IOType, QuantizationConfig
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.ethosu.device import EthosUDevice
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rules import capabilities_of
from micronpu.upstream.torch import OpOverload


class SoftmaxDecompositionConfig(Enum):
    """Decompositions of softmax."""

    MASKED = auto()
    STABLE = auto()


class LeakyReLULoweringConfig(Enum):
    """Lowerings of leaky ReLU."""

    TABLE = auto()
    DECOMPOSE = auto()


class SDPASafeSoftmaxGuardPolicy(Enum):
    """Policies for guarding fully masked rows of attention."""

    PRESERVE = auto()
    REMOVE = auto()
    REMOVE_WHEN_PROVEN = auto()


@dataclass
class QuantizeInfConfig:
    """Finite replacements of infinities.

    Attributes:
        neg_inf, pos_inf: finite numbers.
    """

    neg_inf: float = -256.0
    pos_inf: float = 255.0

    def __post_init__(self) -> None:
        for name in ("neg_inf", "pos_inf"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise OptionError(f"`{name}` is {value!r}; it is a number.", hint=f"{name}=-100.0")


@dataclass
class ArmPassPipelineConfig:
    """Pass options of ExecuTorch's own backend, under their names, accepted without effect; see `notes`.

    All forms that these options select compute the same function. Here softmax is one operator, or one of Vela's, leaky
    ReLU is one operator, and infinities in constant masks become values that a softmax maps to zero.

    Raises:
        OptionError: a value has the wrong type.
    """

    softmax: SoftmaxDecompositionConfig = SoftmaxDecompositionConfig.MASKED
    leaky_relu: LeakyReLULoweringConfig = LeakyReLULoweringConfig.DECOMPOSE
    quantize_inf: QuantizeInfConfig = field(default_factory=QuantizeInfConfig)
    sdpa_safe_softmax_guard: SDPASafeSoftmaxGuardPolicy = SDPASafeSoftmaxGuardPolicy.PRESERVE

    def __post_init__(self) -> None:
        kinds = (SoftmaxDecompositionConfig, LeakyReLULoweringConfig, QuantizeInfConfig, SDPASafeSoftmaxGuardPolicy)
        for option, kind in zip(fields(self), kinds, strict=True):
            given = getattr(self, option.name)
            if not isinstance(given, kind):
                raise OptionError(f"`{option.name}` is {given!r}, no {kind.__name__}.", hint=f"a {kind.__name__}")

    @property
    def notes(self) -> tuple[str, ...]:
        """One note that names the selected options without effect; empty if there are none."""
        usual = ArmPassPipelineConfig()
        chosen = [f.name for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)]
        if not chosen:
            return ()
        return (
            f"Options of ExecuTorch's passes without effect here: {', '.join(chosen)}; the operators that "
            "they combine are whole; use `disabled_passes`.",
        )


_OWN_INI = "Arm/vela.ini"
_ELSEWHERE = {
    "max_scratch_size": "verify=Budgets(max_sram=...) in micronpu.compile, or --arena-cache-size=... in extra_flags"
}


class DebugMode(Enum):
    """Modes of `dump_debug_info`; both write the same file here, beside the flatbuffer."""

    JSON = 1
    TOSA = 2


@dataclass(frozen=True)
class VelaExternalBlockPlacements:
    """File names of named data for blocks stored outside of an Ethos-U payload.

    Attributes:
        cmd_data: for the command stream; None keeps it in the payload.
        weight_data: the same for weights and tables.

    Raises:
        OptionError: a name is empty or not ASCII.
    """

    cmd_data: str | None = None
    weight_data: str | None = None

    def __post_init__(self) -> None:
        for name in ("cmd_data", "weight_data"):
            given = getattr(self, name)
            if given is not None and not (isinstance(given, str) and given and given.isascii()):
                raise OptionError(
                    f"`{name}` is {given!r}; it is the name of a file, in ASCII, or None.",
                    hint="a name such as 'weights'",
                )


class EthosUCompileSpec:
    """Options of an Ethos-U under ExecuTorch's name, with its arguments and mutating methods.

    `EthosUPartitioner` and `EthosUQuantizer` accept it like `EthosUOptions`; new code should use the latter.

    Args:
        target: accelerator, such as "ethos-u55-128"; `EthosUOptions` calls it ``silicon``.
        system_config, memory_mode, extra_flags, config_ini: as in `EthosUOptions`; None for the default. A config_ini
            of "Arm/vela.ini" is Vela's own.
        external_block_placements: alternative to ``external_commands`` and ``external_weights``.
        options: further ones of `EthosUOptions`.

    Attributes:
        options: the equivalent immutable value.
            notes: report notes on settings of ExecuTorch's own passes, which have no effect here.

    Raises:
        OptionError: a value has the wrong type, or a name does not exist.
    """

    DebugMode: ClassVar[type[DebugMode]] = DebugMode

    def __init__(
        self,
        target: str,
        system_config: str | None = None,
        memory_mode: str | None = None,
        extra_flags: Sequence[str] | None = None,
        config_ini: str | None = None,
        external_block_placements: VelaExternalBlockPlacements | None = None,
        **options: object,
    ) -> None:
        given: dict[str, Any] = {
            "system_config": system_config,
            "memory_mode": memory_mode,
            "extra_flags": extra_flags,
            "config_ini": None if config_ini == _OWN_INI else config_ini,
        }
        known = EthosUOptions.__dataclass_fields__
        unknown = next((name for name in options if name not in known or name == "silicon"), None)
        if unknown is not None:
            others = f"one of {', '.join(sorted(known.keys() - given.keys() - {'silicon'}))}"
            raise OptionError(f"EthosUCompileSpec has no option `{unknown}`.", hint=_ELSEWHERE.get(unknown, others))
        said = {name: value for name, value in given.items() if value is not None}
        self.options = EthosUOptions(target, **said, **_placed(options, external_block_placements))
        self.notes: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EthosUCompileSpec) and (self.options, self.notes) == (other.options, other.notes)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"EthosUCompileSpec of {self.options!r}"

    def to_specs(self) -> list[CompileSpec]:
        """Return key-value pairs in ExecuTorch's form."""
        return self.options.to_specs()

    def dump_intermediate_artifacts_to(self, output_path: str | os.PathLike[str] | None) -> EthosUCompileSpec:
        """Set ``intermediates_dir``.

        Args:
            output_path: folder, created if missing; None for none.

        Returns:
            The same object, for compatibility with existing scripts.
        """
        folder = "" if output_path is None else os.fspath(output_path)
        self.options = replace(self.options, intermediates_dir=folder)
        return self

    def dump_debug_info(self, debug_mode: Enum | None) -> EthosUCompileSpec:
        """Set ``debug_info``; None resets it.

        Args:
            debug_mode: ours, or an enumeration with the same names, such as that of ExecuTorch's `ArmCompileSpec`.

        Returns:
            The same object, for compatibility with existing scripts.
        """
        named = isinstance(debug_mode, Enum) and debug_mode.name in DebugMode.__members__
        if debug_mode is not None and not named:
            raise OptionError(f"`debug_mode` is {debug_mode!r}.", hint="EthosUCompileSpec.DebugMode.JSON, or None")
        self.options = replace(self.options, debug_info=debug_mode is not None)
        return self

    def set_pass_pipeline_config(self, config: ArmPassPipelineConfig) -> None:
        """Accept settings of ExecuTorch's own passes; the report names those without effect."""
        if not isinstance(config, ArmPassPipelineConfig):
            raise OptionError(f"`config` is a {type(config).__name__}.", hint="an ArmPassPipelineConfig")
        self.notes = config.notes


def _placed(options: dict[str, Any], placements: VelaExternalBlockPlacements | None) -> dict[str, Any]:
    if placements is None:
        return options
    if not isinstance(placements, VelaExternalBlockPlacements):
        raise OptionError(
            f"`external_block_placements` is a {type(placements).__name__}.",
            hint='VelaExternalBlockPlacements(weight_data="weights")',
        )
    made = dict(options)
    for name, file in (("external_commands", placements.cmd_data), ("external_weights", placements.weight_data)):
        if file is None:
            continue
        if made.get(name, "") not in ("", file):
            raise OptionError(
                f"`{name}` is {made[name]!r} and, in external_block_placements, {file!r}.", hint="one of the two"
            )
        made[name] = file
    return made


def options_of(spec: object) -> EthosUOptions:
    """Return the options of a partitioner or a quantizer, given in either form."""
    if isinstance(spec, EthosUCompileSpec):
        return spec.options
    if not isinstance(spec, EthosUOptions):
        raise OptionError(f"`compile_spec` is {described(spec)}.", hint='EthosUOptions("ethos-u55-128")')
    return spec


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


class EthosUQuantizer(StaticQuantizer):
    """Static int8, or int8 weights with int16 activations, for Ethos-U.

    See `StaticQuantizer` for its meaning and for the configuration of parts of a model.

    Args:
        compile_spec: the accelerator, as `EthosUOptions` or as ExecuTorch's `EthosUCompileSpec`.
        use_composable_quantizer: ignored; accepted for compatibility with existing scripts.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        is_qat: for quantization-aware training; default: decided by the first configuration that is set.
        activations: "int8" or "int16", for parts without settings.
        io: "int8", "uint8" or "int16" for a program with integer inputs and outputs, see `StaticQuantizer.set_io`.

    Raises:
        OptionError: an argument has another type.
    """

    def __init__(
        self,
        compile_spec: EthosUOptions | EthosUCompileSpec,
        use_composable_quantizer: bool = True,
        *,
        per_channel: bool = True,
        is_qat: bool | None = None,
        activations: Activations = "int8",
        io: IOType | None = None,
    ) -> None:
        options = options_of(compile_spec)
        check_switch("use_composable_quantizer", use_composable_quantizer)
        super().__init__(
            capabilities_of(options),
            per_channel=per_channel,
            is_qat=is_qat,
            disabled_rewrites=options.disabled_rewrites,
            activations=activations,
            io=io,
        )
        self.compile_spec = options


def TOSAQuantizationConfig(  # noqa: N802
    input_activation: object, output_activation: object, weight: object, bias: Any, label: str | None = None
) -> QuantizationConfig:
    """Return a configuration from torchao's specs, with ExecuTorch's name and arguments.

    Args:
        input_activation, output_activation, weight: torchao's `QuantizationSpec`, or None for the default.
        bias: ignored: a bias has the scale of the products that it is added to.
        label: ignored.

    Raises:
        OptionError: a spec has another type, or qparams that NPUs do not support.
    """
    check_type("label", label, str, type(None))
    wide = any(getattr(spec, "dtype", None) is torch.int16 for spec in (input_activation, output_activation))
    return QuantizationConfig(
        activations="int16" if wide else "int8",
        per_channel=getattr(weight, "qscheme", None) is not torch.per_tensor_symmetric,
        input_spec=input_activation,
        output_spec=output_activation,
        weight_spec=weight,
    )


class EthosURecipeType(RecipeType):
    """Recipes for Arm Ethos-U; int16 applies to activations, weights are int8 in any case."""

    INT8 = "micronpu_ethosu_int8"
    INT8_QAT = "micronpu_ethosu_int8_qat"
    INT16 = "micronpu_ethosu_int16"
    INT16_QAT = "micronpu_ethosu_int16_qat"
    ETHOS_U55_INT8 = "micronpu_ethosu_u55_int8"
    ETHOS_U65_INT8 = "micronpu_ethosu_u65_int8"
    ETHOS_U85_INT8 = "micronpu_ethosu_u85_int8"

    def silicon(self, macs: int | None) -> str:
        """Return the NPU of a recipe that names its series, whose usual size is ExecuTorch's; "" for other recipes."""
        series, _, size = self.name.lower().removesuffix("_int8").rpartition("_u")
        return f"ethos-u{size}-{macs or (128 if size == '55' else 256)}" if series == "ethos" else ""

    @classmethod
    def get_backend_name(cls) -> str:
        return "micronpu_ethosu"
