"""Traffic on the bus between an NPU and the memories of its chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BusTraffic:
    """Traffic of one port of an NPU.

    Attributes:
        memory: behind the port.
        read_bytes, written_bytes: bytes.
        read_beats, written_beats: transfers on the bus, each as wide as the port or narrower, as the counters of the
            hardware count them.
    """

    memory: str
    read_bytes: int = 0
    written_bytes: int = 0
    read_beats: int = 0
    written_beats: int = 0

    def __add__(self, other: BusTraffic) -> BusTraffic:
        return BusTraffic(
            self.memory,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
            self.read_beats + other.read_beats,
            self.written_beats + other.written_beats,
        )

    def __str__(self) -> str:
        """``19,490,040 bytes read in 2,437,008 beats, 7,644,632 written in 955,579 (Sram)``."""
        read = f"{self.read_bytes:,} bytes read in {self.read_beats:,} beats"
        return f"{read}, {self.written_bytes:,} written in {self.written_beats:,} ({self.memory})"


def together(parts: Iterable[Mapping[str, BusTraffic]]) -> dict[str, BusTraffic]:
    """Return the sums by name of the port."""
    found: dict[str, BusTraffic] = {}
    for part in parts:
        for port, traffic in part.items():
            found[port] = found[port] + traffic if port in found else traffic
    return dict(sorted(found.items()))
