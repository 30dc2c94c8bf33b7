"""Ratio of time on silicon to the estimate, from a chip's file; see benchmarks/ethosu_latency.py."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.chips import Chip


@dataclass(frozen=True)
class Timing:
    """Error bands of the estimate relative to silicon.

    Attributes:
        low, high: range of measured over estimated time, without invocations.
        call_us: microseconds of an invocation in addition to the NPU's time: minimum, typical, maximum.
        basis: source of these, one clause.
        measured: "measured on your board, 3 networks"; "" for other sources.
    """

    low: float
    high: float
    call_us: tuple[float, float, float]
    basis: str
    measured: str = ""


_OTHERS = Timing(0.5, 2.0, (0.0, 10.0, 100.0), "nothing is published of this chip, so the band is a wide one")
"""Default for chips whose file has no bands."""


def timing_of(chip: Chip | None) -> Timing:
    """Return the bands in the chip's file, or else the default.

    Raises:
        OptionError: `band` or `call_us` of the file are invalid.
    """
    usual = _OTHERS
    if chip is None or chip.npu is None:
        return usual
    band = chip.npu.own.optional_numbers("band", 2)
    call = chip.npu.own.optional_numbers("call_us", 3)
    if band is None and call is None:
        return usual
    low, high = (usual.low, usual.high) if band is None else band
    least, middle, most = usual.call_us if call is None else call
    return Timing(low, high, (least, middle, most), chip.measured or "the band is the chip file's", chip.measured)
