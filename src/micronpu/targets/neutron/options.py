"""Options of a Neutron compilation: a typed value, and key-value pairs for ExecuTorch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar

from micronpu.base.arguments import check_switch, strings
from micronpu.base.errors import OptionError
from micronpu.base.files import check_intermediates
from micronpu.ir.names import named, operator_name
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.cortexm import rewrites as core
from micronpu.targets.neutron.converter import DEFAULT_TIMEOUT, EXCLUDED_GRAPH_PASSES, ConverterOptions
from micronpu.targets.neutron.rewrites import REWRITES
from micronpu.targets.neutron.sdk import CONVERTERS
from micronpu.targets.neutron.target_spec import LATEST, NeutronTargetSpec
from micronpu.targets.options import Options, Switches

_FLAGS = ("use_neutron_for_format_conversion", "fetch_constants_to_sram", "dump_kernel_selection_code", "profiling")


@dataclass(frozen=True, init=False)
class CustomDelegationOptions:
    """Delegation policy of `NeutronPartitioner`; the default is defensive.

    Attributes:
        allow_no_op_partitions: also delegate partitions that only move values (reshapes, copies), or that the core
            could compute in int8. Partitions that only move values are always delegated if that avoids a float operator
            on the core; the report lists them.

    Raises:
        OptionError: a value of the wrong type, or an option of other releases of ExecuTorch, such as
            ``force_delegate_cat``.
    """

    allow_no_op_partitions: bool = False

    def __init__(self, allow_no_op_partitions: bool = False, **others: object) -> None:
        if others:
            raise OptionError(
                f"CustomDelegationOptions has no option `{next(iter(others))}`.",
                hint="leave it out: the rules of the target decide for each operator, see `micronpu check`",
            )
        check_switch("allow_no_op_partitions", allow_no_op_partitions)
        object.__setattr__(self, "allow_no_op_partitions", allow_no_op_partitions)


@dataclass(frozen=True)
class NeutronOptions(Switches, Options):
    """Options of a Neutron compilation.

    Attributes:
        silicon: name of the chip, or the path of a chip file of your own.
        extra_flags: further flags for the vendor's converter, such as "--verbose" or "--min-num-ops-per-graph=2".
        excluded_graph_passes: passes that the vendor's converter skips; () to exclude none. The default is that of
            ExecuTorch's flow.
        operators_not_to_delegate: ATen operators to exclude, as in the model or as ExecuTorch decomposes
            them: "aten.add.Tensor", "aten::convolution", "aten_relu_default".
        use_neutron_for_format_conversion: convert between NCHW and channels-last on the NPU, not on the core.
        fetch_constants_to_sram: prefetch weights from flash to SRAM.
        dump_kernel_selection_code: write a C file per partition with the kernels that it needs, into
            ``intermediates_dir`` or the current folder; see `micronpu.targets.neutron.sdk`.
        profiling: build with kernel timing (vendor's converter, payload version 1).
        intermediates_dir: folder for the intermediate files of each partition: graph before and after the passes,
            LiteRT model, payload, report and log of the converter; created if missing, "" for none.
        converter: "sdk" (the vendor's, for silicon), "reference" (open, for the host) or "auto": the vendor's where it
            is installed and serves the chip.
        converter_flavor: rule set of the converter version; see `NeutronTargetSpec`.
        converter_timeout: converter timeout (s).
        sdk_version: required version of the vendor's SDK, that of the board's firmware; "" for any.
        disabled_passes: names of passes and rewrites to skip; see `micronpu passes`.

    Raises:
        OptionError: a value of the wrong type, or a name that does not exist.
    """

    of_this_machine: ClassVar[tuple[str, ...]] = ("intermediates_dir", "converter_timeout")
    switchable_rewrites: ClassVar[tuple[Rewrite, ...]] = (*REWRITES, *core.REWRITES)
    only_where_given: ClassVar[tuple[str, ...]] = ("excluded_graph_passes",)
    maker: ClassVar[str] = "generate_neutron_compile_spec"
    silicon_key: ClassVar[str] = "config"

    silicon: str = "imxrt700"
    _: KW_ONLY
    extra_flags: tuple[str, ...] = ()
    operators_not_to_delegate: tuple[str, ...] = ()
    use_neutron_for_format_conversion: bool = True
    fetch_constants_to_sram: bool = False
    dump_kernel_selection_code: bool = False
    profiling: bool = False
    intermediates_dir: str = ""
    converter: str = "auto"
    converter_flavor: str = LATEST
    converter_timeout: float = DEFAULT_TIMEOUT
    sdk_version: str = ""
    disabled_passes: tuple[str, ...] = ()
    excluded_graph_passes: tuple[str, ...] = EXCLUDED_GRAPH_PASSES

    def __post_init__(self) -> None:
        for name in ("extra_flags", "excluded_graph_passes", "operators_not_to_delegate", "disabled_passes"):
            object.__setattr__(self, name, strings(name, getattr(self, name)))
        for name in _FLAGS:
            check_switch(name, getattr(self, name))
        self.target_spec  # noqa: B018  (refuses what is wrong with the chip or the flavor)
        if self.converter not in CONVERTERS:
            raise OptionError(
                f"There is no Neutron converter {self.converter!r}.", hint=f"one of {', '.join(CONVERTERS)}"
            )
        where = "operators_not_to_delegate"
        excluded = tuple(f"aten.{operator_name(o, where)}" for o in self.operators_not_to_delegate)
        object.__setattr__(self, "operators_not_to_delegate", excluded)
        self.check_switches()
        check_intermediates(self.intermediates_dir)
        self.converter_options  # noqa: B018  (refuses here what the converter would refuse after the work is done)

    def excluded(self, overloads: Iterable[str]) -> str | None:
        """Return the name in `operators_not_to_delegate` that matches one of these overloads, or None."""
        return named(overloads, [o.removeprefix("aten.") for o in self.operators_not_to_delegate])

    @property
    def converter_options(self) -> ConverterOptions:
        """The options for the converter."""
        return ConverterOptions(
            target=self.target_spec.npu.converter or self.target_spec.chip.name,
            extra_flags=self.extra_flags,
            excluded_graph_passes=self.excluded_graph_passes,
            fetch_constants_to_sram=self.fetch_constants_to_sram,
            dump_kernel_selection_code=self.dump_kernel_selection_code,
            profiling=self.profiling,
            timeout=self.converter_timeout,
            sdk_version=self.sdk_version,
        )

    @cached_property
    def target_spec(self) -> NeutronTargetSpec:
        """The Neutron with its rule set."""
        return NeutronTargetSpec(self.silicon, self.converter_flavor)

    def program_values(self) -> dict[str, Any]:
        # A user-defined chip is identified by its name, not by its file's path on this machine.
        return super().program_values() | {"silicon": self.target_spec.chip.name}
