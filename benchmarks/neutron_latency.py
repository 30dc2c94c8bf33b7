"""The latency model of Neutron beside every latency that is published, and the two constants that are fitted to them.

    python -m benchmarks.neutron_latency            # table, and benchmarks/results/neutron_latency.json

Latency depends on shapes alone, so the networks have random weights.  For each anchor the table has the prediction of
the constants that the package uses, of the fit to all anchors, and of the fit to all anchors but this one
(leave-one-out).  The constants are `START_CYCLES` of `micronpu.targets.neutron.costs` and `weight_bandwidth` of the
i.MX RT700's chip file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks import results
from benchmarks.anchors import Anchor, npu_anchors

import micronpu
from micronpu.targets.neutron.costs import START_CYCLES, kernels, weight_copy_cycles, work_cycles
from micronpu.targets.neutron.target_spec import NeutronTargetSpec


@dataclass(frozen=True)
class Features:
    """What the model counts of one anchor: `cycles = work + starts * START + weights * CYCLES_PER_BYTE`."""

    measured: float
    work: float
    starts: int
    copied: int
    """Bytes of weights that are copied before the NPU can read them; 0 where it reads them in place."""


def features(anchor: Anchor) -> Features:
    """Counted on the graph that the package compiles for the chip."""
    network, x = anchor.build()
    program = micronpu.compile(network, (x,), f"{anchor.target}-neutron", calibration=[(x,)])
    spec = NeutronTargetSpec(anchor.target)
    nodes = [node for part in program.partitions for node in part.graph.nodes]
    work = sum(work_cycles(node, spec.npu) for node in nodes)
    copied = sum(t.type.bytes for part in program.partitions for t in part.graph.constants())
    cycles = anchor.milliseconds * 1000 * spec.npu.clock_mhz
    in_place = spec.npu.weight_bandwidth is None
    return Features(cycles, work, sum(map(kernels, nodes)), 0 if in_place else copied)


def fit(rows: Sequence[Features]) -> tuple[float, float]:
    """Start in cycles and cycles per copied byte with the smallest squares of relative errors; none is negative."""
    a = np.array([[r.starts / r.measured, r.copied / r.measured] for r in rows])
    b = np.array([1 - r.work / r.measured for r in rows])
    start, copy = np.linalg.lstsq(a, b, rcond=None)[0]
    return max(float(start), 0.0), max(float(copy), 0.0)


def predicted(row: Features, constants: tuple[float, float]) -> float:
    """Cycles."""
    return row.work + row.starts * constants[0] + row.copied * constants[1]


def error(row: Features, constants: tuple[float, float]) -> float:
    """Relative, of the prediction."""
    return predicted(row, constants) / row.measured - 1


def main() -> None:
    anchors = npu_anchors("neutron")
    rows = [features(a) for a in anchors]
    used = [i for i, a in enumerate(anchors) if not a.left_out]
    all_of_them = fit([rows[i] for i in used])
    spec = NeutronTargetSpec("imxrt700").npu
    shipped = (float(START_CYCLES), weight_copy_cycles(1_000_000, spec) / 1_000_000)
    print(f"fitted: {all_of_them[0]:,.0f} cycles a start, {all_of_them[1]:.3f} cycles a copied byte")
    print(f"in the package: {shipped[0]:,.0f} and {shipped[1]:.3f}")
    table = []
    for i, (anchor, row) in enumerate(zip(anchors, rows, strict=True)):
        clock = NeutronTargetSpec(anchor.target).npu.clock_mhz * 1000
        entry = {
            "network": anchor.network,
            "target": anchor.target,
            "published_ms": anchor.milliseconds,
            "source": anchor.source,
            "predicted_ms": round(predicted(row, shipped) / clock, 3),
            "error": round(error(row, shipped), 4),
            "left_out": anchor.left_out,
        }
        if not anchor.left_out:
            others = fit([rows[j] for j in used if j != i])
            entry["leave_one_out"] = round(error(row, others), 4)
        table.append(entry)
        print(
            f"{anchor.network:28} {anchor.target:18} {anchor.milliseconds:8.3f} ms  "
            f"predicted {entry['predicted_ms']:8.3f}  error {entry['error']:+.1%}  leave-one-out "
            + (f"{entry['leave_one_out']:+.1%}" if not anchor.left_out else f"- ({anchor.left_out})")
        )
    loo = [abs(float(t["leave_one_out"])) for t in table if "leave_one_out" in t]
    summary = {"mean_absolute": round(float(np.mean(loo)), 4), "worst": round(max(loo), 4)}
    print(f"leave-one-out: mean absolute error {summary['mean_absolute']:.1%}, worst {summary['worst']:.1%}")
    figures = {"constants": shipped, "anchors": table, "leave_one_out": summary}
    results.write("neutron_latency", "python -m benchmarks.neutron_latency", figures)


if __name__ == "__main__":
    main()
