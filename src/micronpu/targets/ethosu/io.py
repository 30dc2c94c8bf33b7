"""Input or output of a Vela program; in a separate module, so that a run does not import the compiler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VelaIO:
    """An input or output of a Vela program.

    Attributes:
        shape: up to six sizes.
        element_size: bytes per element.
        address: offset in its region.
        region: 1 is the scratch memory.
    """

    shape: tuple[int, ...]
    element_size: int
    address: int
    region: int
