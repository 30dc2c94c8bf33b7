"""Which Neutron a program is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.errors import OptionError
from micronpu.soc import Npu, load_chips

LATEST = "latest"
FLAVORS = (LATEST,)


@dataclass(frozen=True)
class NeutronTargetSpec:
    """A Neutron by the id of its chip.

    Attributes:
        target: id of a chip with a Neutron, such as "imxrt700".
        converter_flavor: rule set of the converter version; "latest" is SDK 3.1.2 and newer.
    """

    target: str
    converter_flavor: str = LATEST

    def __post_init__(self) -> None:
        if self.target not in neutron_chips():
            raise OptionError(f"{self.target!r} has no Neutron.", hint=f"one of {', '.join(neutron_chips())}")
        if self.converter_flavor not in FLAVORS:
            raise OptionError(
                f"There is no converter flavor {self.converter_flavor!r}.", hint=f"one of {', '.join(FLAVORS)}"
            )

    @property
    def npu(self) -> Npu:
        return neutron_chips()[self.target]

    @property
    def macs(self) -> int:
        """Multiplications per unit and cycle."""
        return self.npu.macs

    @property
    def pipelines(self) -> int:
        """Dot-product units."""
        return self.npu.pipelines


def neutron_chips() -> dict[str, Npu]:
    """Chips with a Neutron by id."""
    return {chip.name: chip.npu for chip in load_chips() if chip.npu.family == "neutron"}
