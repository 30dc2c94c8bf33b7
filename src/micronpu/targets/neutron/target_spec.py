"""Which Neutron a program is compiled for."""

from __future__ import annotations

import re
from dataclasses import InitVar, dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from micronpu.base.arguments import check_text
from micronpu.base.errors import OptionError
from micronpu.chips import Chip, load_chip, shipped_chips

if TYPE_CHECKING:
    from micronpu.targets.neutron.target_info import NeutronTargetNeutronC

FAMILY = "neutron"

LATEST = "latest"
PUBLISHED_FLAVORS = ("SDK_25_06", "SDK_25_09", "SDK_25_12")
"""Converter versions that the published support table is about; all three have the same limits."""
FLAVORS = (*PUBLISHED_FLAVORS, LATEST)


@dataclass(frozen=True, kw_only=True)
class NeutronNpu:
    """The Neutron of a chip.

    Attributes:
        variant: the vendor's name of the size.
        clock_mhz: clock in MHz; None where the chip's file does not say.
        kind: the family's class: "C" is driven by the host's core, "S" has a controller.
        pipelines: dot-product units that run in parallel.
        macs: multiplications per unit and cycle; input channels are padded to a multiple of it.
        converter: the name by which the vendor's converter makes programs for it that ExecuTorch's runtime for this
            NPU takes, or "" where only the open reference converter serves.
        weight_bandwidth: bytes per second at which weights are copied from flash to where the NPU can read them; None
            where it reads them in place, or where nothing is known.
        fitted: published latencies of this Neutron are among those that the cost model is fitted to; without any, a
            report gives no time.
        assumed: what is known of it without a published source, one clause each.
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
        """The Neutron of a chip that has one.

        Raises:
            OptionError: its part of the chip file is wrong.
        """
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
    """Generation of a Neutron, numbered as the vendor's SDK does."""

    N1 = 1
    N3 = 2


_VARIANT = re.compile(r"(N\d)(?:-(\d+))?")


@dataclass(frozen=True)
class NeutronTargetSpec:
    """A Neutron by its chip.

    Args:
        neutron_converter_flavor: another name of ``converter_flavor``.

    Attributes:
        target: name of a chip with a Neutron, such as "imxrt700", or the path of a chip file of your own.
        converter_flavor: rule set of the converter version: "SDK_25_06", "SDK_25_09" and "SDK_25_12" are the published
            support table, "latest" is SDK 3.1.2 and newer.

    Raises:
        OptionError: the chip has no Neutron or the flavor does not exist; the message lists those that do.
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
        """The chip as its file describes it."""
        chip = load_chip(self.target) if self.target.endswith(".toml") else shipped_chips().get(self.target)
        if chip is None or chip.npu is None or chip.npu.family != FAMILY:
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
        """Dot-product units."""
        return self.npu.pipelines

    @property
    def core_clock_mhz(self) -> float | None:
        """Clock of the core beside the NPU; None where the chip's file does not say."""
        return self.chip.core_clock_mhz

    def get_name(self) -> str:
        """Name of the chip."""
        return self.chip.name

    def is_subsystem(self) -> bool:
        """Whether the Neutron has a controller of its own (Neutron-S), and is not driven by the host's core."""
        return self.npu.kind == "S"

    def get_num_units(self) -> int:
        """Compute units: the multipliers of the size's name over those of a unit; 1 where the name has no number."""
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
            OptionError: the chip file does not say it.
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
        """Which operators are computed together; the same for every Neutron."""
        from micronpu.targets.neutron.target_info import NeutronTargetNeutronC  # which needs torch

        return NeutronTargetNeutronC()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report says about silicon whose data are partly assumed; empty where nothing is."""
        return tuple(f"Assumed about the Neutron of {self.chip.title}: {clause}." for clause in self.npu.assumed)


def neutron_chips() -> dict[str, NeutronNpu]:
    """The Neutron of each chip that comes with the package and has one, by the chip's name."""
    chips = shipped_chips()
    return {n: NeutronNpu.of(c) for n, c in chips.items() if c.npu is not None and c.npu.family == FAMILY}
