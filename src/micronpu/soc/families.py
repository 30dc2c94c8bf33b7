"""The families of NPUs and the options of each.  Nothing here imports torch."""

from __future__ import annotations

from typing import NamedTuple

from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.neutron.options import NeutronCompileOptions
from micronpu.soc.chip import ETHOS_U, NEUTRON


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
