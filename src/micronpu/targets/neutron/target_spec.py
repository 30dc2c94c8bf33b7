"""Which Neutron a program is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.chips import Chip, NeutronNpu
from micronpu.errors import OptionError
from micronpu.targets.target import all_chips

LATEST = "latest"
PUBLISHED_FLAVORS = ("SDK_25_06", "SDK_25_09", "SDK_25_12")
"""Converter versions that the published support table is about; all three have the same limits."""
FLAVORS = (*PUBLISHED_FLAVORS, LATEST)


@dataclass(frozen=True)
class NeutronTargetSpec:
    """A Neutron by the id of its chip.

    Attributes:
        target: id of a chip with a Neutron, such as "imxrt700"; `micronpu.chips` holds them as data.
        converter_flavor: rule set of the converter version: "SDK_25_06", "SDK_25_09" and "SDK_25_12" are the published
            support table, "latest" is SDK 3.1.2 and newer.

    Raises:
        OptionError: the chip has no Neutron or the flavor does not exist; the message lists those that do.
    """

    target: str
    converter_flavor: str = LATEST

    def __post_init__(self) -> None:
        check_chip(self.target)
        check_flavor(self.converter_flavor)

    @property
    def npu(self) -> NeutronNpu:
        return neutron_chips()[self.target]

    @property
    def macs(self) -> int:
        """Multiplications per unit and cycle."""
        return self.npu.macs

    @property
    def pipelines(self) -> int:
        """Dot-product units."""
        return self.npu.pipelines

    @property
    def core_clock_mhz(self) -> float:
        """Clock of the core beside the NPU."""
        return _chips()[self.target].core_clock_mhz

    @property
    def has_controller(self) -> bool:
        """Whether the NPU runs by itself (Neutron-S) rather than driven by the host's core (Neutron-C)."""
        return self.npu.kind == "S"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report says about a device whose data are partly assumed; empty where nothing is."""
        title = _chips()[self.target].title
        return tuple(f"Assumed about the Neutron of {title}: {clause}." for clause in self.npu.assumed)


def neutron_chips() -> dict[str, NeutronNpu]:
    """The Neutron of each chip that has one, by the chip's id."""
    return {chip.name: chip.npu for chip in all_chips() if isinstance(chip.npu, NeutronNpu)}


def _chips() -> dict[str, Chip]:
    return {chip.name: chip for chip in all_chips()}


def check_chip(name: str) -> None:
    """Raises `OptionError` where no chip with a Neutron has this id."""
    if name not in neutron_chips():
        raise OptionError(f"{name!r} has no Neutron.", hint=f"one of {', '.join(neutron_chips())}")


def check_flavor(flavor: str) -> None:
    """Raises `OptionError` where no rule set has this name."""
    if flavor not in FLAVORS:
        raise OptionError(f"There is no converter flavor {flavor!r}.", hint=f"one of {', '.join(FLAVORS)}")
