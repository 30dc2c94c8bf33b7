"""The Neutron that a program is compiled for."""

from __future__ import annotations

import re
from dataclasses import InitVar, dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from micronpu.base.arguments import check_text
from micronpu.base.errors import MicroNpuError, OptionError
from micronpu.chips import Chip, load_chip, shipped_chips

NEUTRON = "neutron"

LATEST = "latest"
PUBLISHED_FLAVORS = ("SDK_25_06", "SDK_25_09", "SDK_25_12")
"""Converter versions covered by the published support table; all three have the same limits."""
FLAVORS = (*PUBLISHED_FLAVORS, LATEST)


@dataclass(frozen=True, kw_only=True)
class NeutronNpu:
    """The Neutron of a chip.

    Attributes:
        variant: the vendor's name of the size.
        clock_mhz: clock in MHz; None if unknown.
        kind: class: "C" is driven by the core, "S" has a controller.
        pipelines: dot-product units that run in parallel.
        macs: multiplications per unit and cycle; input channels are padded to a multiple of it.
        converter: the vendor converter's name for programs for ExecuTorch's runtime on this NPU, or "" if only the
            open reference converter supports it.
        weight_bandwidth: bytes per second of copying weights from flash to memory that the NPU can read; None if it
            reads them in place, or if unknown.
        fitted: True if the cost model is fitted to published latencies of this Neutron; if not, reports give no time.
        assumed: assumptions without a published source, one clause each.
    """

    variant: str
    clock_mhz: float | None
    kind: str
    pipelines: int
    macs: int
    converter: str = ""
    weight_bandwidth: float | None = None
    fitted: bool = False
    assumed: tuple[str, ...] = ()

    @classmethod
    def of(cls, chip: Chip) -> NeutronNpu:
        """Return the Neutron of a chip that has one."""
        assert chip.npu is not None
        own = chip.npu.fields("class", "pipelines", "macs", "converter", "weight_bandwidth", "fitted")
        return cls(
            variant=chip.npu.variant,
            clock_mhz=chip.npu.clock_mhz,
            kind=own.text("class"),
            pipelines=own.integer("pipelines"),
            macs=own.integer("macs"),
            converter=own.optional_text("converter"),
            weight_bandwidth=own.optional_number("weight_bandwidth"),
            fitted=own.flag("fitted"),
            assumed=chip.npu.assumed,
        )


class NeutronHWVersion(Enum):
    """Generation of a Neutron, in the numbering of the vendor's SDK."""

    N1 = 1
    N3 = 2


_CLAMPS = ("relu", "relu6", "hardtanh", "clamp")
_PRODUCTS = ("linear", "addmm", "mm")
_CONVOLUTIONS = ("conv2d", "convolution")


class NeutronTargetNeutronC:
    """Activations that a convolution or linear layer can fuse.

    Operators of the exported program and of the edge dialect are treated alike; each method has both names that scripts
    use.
    """

    @staticmethod
    def is_supported_fused_activation__aten(node_: Any) -> bool:
        """True if the node is a clamp to bounds that its preceding operator can fuse: ReLU, ReLU6, -1 to 1.

        Sigmoid and tanh, which ExecuTorch's own backend includes, are separate operators here.
        """
        from micronpu.frontend.importer import fused_kind  # needs torch
        from micronpu.frontend.program import overload_name

        if overload_name(node_).split(".")[0].rstrip("_") not in _CLAMPS:
            return False
        try:
            return bool(fused_kind(node_))
        except MicroNpuError:
            return False

    @staticmethod
    def is_fusable_conv_or_linear__aten(node_: Any) -> bool:
        """True if the node is a linear layer or a 2-D convolution."""
        from micronpu.frontend.program import overload_name, value_of

        name = overload_name(node_).split(".")[0]
        return name in _PRODUCTS or (name in _CONVOLUTIONS and value_of(node_).dim() == 4)

    is_supported_fused_activation__edge = is_supported_fused_activation__aten
    is_fusable_conv_or_linear__edge = is_fusable_conv_or_linear__aten


_VARIANT = re.compile(r"(N\d)(?:-(\d+))?")


@dataclass(frozen=True)
class NeutronTargetSpec:
    """A Neutron by its chip.

    Args:
        neutron_converter_flavor: another name of ``converter_flavor``.

    Attributes:
        target: name of a chip with a Neutron, such as "imxrt700", or the path of a user-defined chip file.
        converter_flavor: rule set of the converter version: "SDK_25_06", "SDK_25_09" and "SDK_25_12" are the published
            support table, "latest" is SDK 3.1.2 and newer.

    Raises:
        OptionError: the chip has no Neutron or the flavor does not exist; the message lists the known ones.
    """

    target: str
    converter_flavor: str = LATEST
    neutron_converter_flavor: InitVar[str | None] = None

    def __post_init__(self, neutron_converter_flavor: str | None) -> None:
        if neutron_converter_flavor is not None:
            if self.converter_flavor not in (LATEST, neutron_converter_flavor):
                raise OptionError(
                    f"The converter flavor is {self.converter_flavor!r} and {neutron_converter_flavor!r}.",
                    hint="`converter_flavor` alone",
                )
            object.__setattr__(self, "converter_flavor", neutron_converter_flavor)
        check_text("target", self.target, 'the name of a chip, such as "imxrt700", or the path of a chip file')
        check_text("converter_flavor", self.converter_flavor)
        self.npu  # noqa: B018  (reads the chip now, and refuses what is wrong with it)
        if self.converter_flavor not in FLAVORS:
            raise OptionError(
                f"There is no converter flavor {self.converter_flavor!r}.", hint=f"one of {', '.join(FLAVORS)}"
            )

    @cached_property
    def chip(self) -> Chip:
        """The chip as described by its file."""
        chip = load_chip(self.target) if self.target.endswith(".toml") else shipped_chips().get(self.target)
        if chip is None or chip.npu is None or chip.npu.family != NEUTRON:
            raise OptionError(
                f"{self.target!r} has no Neutron.", hint=f"one of {', '.join(neutron_chips())}, or a chip file"
            )
        return chip

    @cached_property
    def npu(self) -> NeutronNpu:
        return NeutronNpu.of(self.chip)

    @property
    def macs(self) -> int:
        """Multiplications per unit and cycle."""
        return self.npu.macs

    @property
    def pipelines(self) -> int:
        """Number of dot-product units."""
        return self.npu.pipelines

    @property
    def core_clock_mhz(self) -> float | None:
        """Clock of the core in MHz; None if unknown."""
        return self.chip.core_clock_mhz

    def get_name(self) -> str:
        """Name of the chip."""
        return self.chip.name

    def is_subsystem(self) -> bool:
        """True if the Neutron has its own controller (Neutron-S); False if the core drives it."""
        return self.npu.kind == "S"

    def get_num_units(self) -> int:
        """Compute units: the multipliers in the size's name divided by those of a unit; 1 if the name has no number."""
        found = _VARIANT.match(self.npu.variant)
        multipliers = int(found[2]) if found and found[2] else self.get_num_pipes() * self.get_num_macs()
        return multipliers // (self.get_num_pipes() * self.get_num_macs())

    def get_num_pipes(self) -> int:
        """Dot-product units that run in parallel."""
        return self.pipelines

    def get_num_macs(self) -> int:
        """Multiplications per pipeline and cycle."""
        return self.macs

    def get_hw_version(self) -> NeutronHWVersion:
        """Generation of the Neutron.

        Raises:
            OptionError: the chip file does not name it.
        """
        found = _VARIANT.match(self.npu.variant)
        if not found or found[1] not in NeutronHWVersion.__members__:
            raise OptionError(
                f"The chip file of {self.chip.name} does not say of which generation its Neutron is: "
                f"{self.npu.variant!r}.",
                hint='variant = "N3-64" and the like',
            )
        return NeutronHWVersion[found[1]]

    @property
    def neutron_target_info(self) -> NeutronTargetNeutronC:
        """Fusable operators; the same for every Neutron."""
        return NeutronTargetNeutronC()

    @property
    def notes(self) -> tuple[str, ...]:
        """Report notes on assumptions about the silicon; empty if there are none."""
        return tuple(f"Assumed about the Neutron of {self.chip.title}: {clause}." for clause in self.npu.assumed)


def no_silicon(chip: Chip) -> str:
    """Say that there are only reference programs for a chip; "" if the vendor's converter makes programs for it."""
    if NeutronNpu.of(chip).converter:
        return ""
    served = ", ".join(sorted(name for name, npu in neutron_chips().items() if npu.converter))
    return (
        f"For {chip.name} there are only reference programs today, which run on a laptop: ExecuTorch's runtime takes "
        f"programs of NXP's converter for {served} alone."
    )


def neutron_chips() -> dict[str, NeutronNpu]:
    """The Neutron of each chip of the package that has one, by the chip's name."""
    chips = shipped_chips()
    return {n: NeutronNpu.of(c) for n, c in chips.items() if c.npu is not None and c.npu.family == NEUTRON}
