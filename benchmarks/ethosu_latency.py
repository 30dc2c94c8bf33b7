"""Vela's estimates with each chip's own clock and memories, beside latencies that are published for Ethos-U.

    python -m benchmarks.ethosu_latency             # table, and benchmarks/results/ethosu_latency.json

On RA8P1 the usual time of a call and the bandwidth of SRAM and of MRAM, of which nothing is published, are fitted; they
stand in the chip's file with its band.  For each anchor the table has the estimate of the package, the published
figure, and the error: on RA8P1 of a fit to the other anchors (leave-one-out), elsewhere of the estimate, for which
nothing is fitted.  Vela's schedule is that of the chip's file in every fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from typing import Any

import numpy as np
from benchmarks import results
from benchmarks.anchors import Anchor, npu_anchors

import micronpu
from micronpu.report.estimate import Latency
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.costs import CALLS
from micronpu.targets.registry import find_target, options_for

FITTED: Mapping[str, tuple[str, ...]] = {"ra8p1": ("Sram", "OffChipFlash")}
"""Chips whose time of a call is fitted, and the memories, as Vela calls them, whose bandwidth is fitted with it.

Not i.MX 93: under Linux a call takes what it takes, and two of eight networks would decide for all.
"""
FACTORS = tuple(exp(log(2) * step / 12) for step in range(-18, 19))
"""Of a bandwidth, against that of the chip's file."""
CALLS_US = (0.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 55.0, 70.0, 85.0, 100.0, 150.0, 200.0)


@dataclass(frozen=True)
class Row:
    """An anchor, and what Vela counts of its network.

    Attributes:
        layers: cycles by what an operation waits for, the arithmetic among them.
        latency: of the report.
    """

    anchor: Anchor
    layers: tuple[Mapping[str, int], ...]
    calls: int
    latency: tuple[Latency, ...]

    @classmethod
    def of(cls, anchor: Anchor) -> Row:
        target = find_target(anchor.target)
        given = {"memory_mode": anchor.memory_mode} if anchor.memory_mode else None
        network, x = anchor.build()
        program = micronpu.compile(
            network, (x,), anchor.target, options=options_for(target, given=given), calibration=[(x,)], verify=False
        )
        parts = [p.program for p in program.partitions if isinstance(p, EthosUPartition)]
        layers = tuple({"": layer.npu_cycles, **layer.memory_cycles} for p in parts for layer in p.layers)
        return cls(anchor, layers, len(parts), program.report.latency)

    def milliseconds(self, factor: float, call_us: float) -> float:
        """With another bandwidth of the memories that are fitted, and another time of a call."""
        assert self.anchor.clock_mhz is not None
        slower = {name: 1 / factor for name in FITTED.get(self.anchor.target, ())}
        cycles = sum(max(count * slower.get(name, 1.0) for name, count in layer.items()) for layer in self.layers)
        return cycles / self.anchor.clock_mhz / 1000 + self.calls * call_us / 1000


def fit(rows: Sequence[Row]) -> tuple[float, float]:
    """The factor and the time of a call with the smallest squares of the logarithms of errors."""

    def worth(constants: tuple[float, float]) -> float:
        return sum(log(r.milliseconds(*constants) / r.anchor.milliseconds) ** 2 for r in rows)

    return min(product(FACTORS, CALLS_US), key=worth)


def entry(row: Row, others: Sequence[Row]) -> dict[str, Any]:
    """A line of the table; ``others`` are the anchors of the same chip that are fitted to."""
    anchor = row.anchor
    npu = [t for t in row.latency if t.processor in ("NPU", CALLS)]
    estimate = sum(t.milliseconds for t in npu)
    low, high = (sum(t.band[end] for t in npu) for end in (0, 1))
    found = {
        "network": anchor.network,
        "target": anchor.target,
        "memory": anchor.memory,
        "published_ms": round(anchor.milliseconds, 4),
        "source": anchor.source,
        "vela_ms": round(npu[0].milliseconds, 4),
        "predicted_ms": round(estimate, 4),
        "ratio": round(anchor.milliseconds / estimate, 3),
        "low_ms": round(low, 4),
        "high_ms": round(high, 4),
        "in_band": low <= anchor.milliseconds <= high,
        "left_out": anchor.left_out,
    }
    if not anchor.left_out and len(others) > 1:
        found["leave_one_out"] = round(row.milliseconds(*fit(others)) / anchor.milliseconds - 1, 4)
    elif not anchor.left_out:
        found["leave_one_out"] = round(estimate / anchor.milliseconds - 1, 4)  # nothing is fitted
    return found


def main() -> None:
    rows = [Row.of(anchor) for anchor in npu_anchors("ethos-u")]
    table, constants = [], {}
    for row in rows:
        chip = [r for r in rows if r.anchor.target == row.anchor.target and not r.anchor.left_out]
        fitted = row.anchor.target in FITTED
        table.append(entry(row, [r for r in chip if r is not row] if fitted else []))
        if fitted and row.anchor.target not in constants:
            factor, call = fit(chip)
            constants[row.anchor.target] = {"bandwidth_factor": round(factor, 3), "call_us": call}
        print({k: v for k, v in table[-1].items() if k not in ("source", "memory")}, flush=True)
    unseen = [abs(float(t["leave_one_out"])) for t in table if "leave_one_out" in t]
    summary = {"mean_absolute": round(float(np.mean(unseen)), 4), "worst": round(max(unseen), 4)}
    print(f"fitted, against the chips' files: {constants}; leave-one-out: {summary}")
    figures = {"fitted": constants, "leave_one_out": summary, "anchors": table}
    results.write("ethosu_latency", "python -m benchmarks.ethosu_latency", figures)


if __name__ == "__main__":
    main()
