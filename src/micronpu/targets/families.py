"""The families of NPUs and the options of each.  Nothing here imports torch."""

from __future__ import annotations

from typing import NamedTuple

from micronpu.chips.chip import ETHOS_U, NEUTRON
from micronpu.targets.ethosu.options import EthosUCompileSpec
from micronpu.targets.neutron.options import NeutronCompileOptions


class Family(NamedTuple):
    """Options of an NPU family: its title, their class, and the field that the target decides."""

    title: str
    options: type
    device: str


FAMILIES = {
    NEUTRON: Family("Neutron", NeutronCompileOptions, "config"),
    ETHOS_U: Family("Ethos-U", EthosUCompileSpec, "target"),
}
"""By `Target.family`."""
