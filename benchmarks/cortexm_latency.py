"""Cycles of CMSIS-NN on Cortex-M: rates fitted to counted instructions, beside latencies that are published.

    python -m benchmarks.cortexm_latency            # table, and benchmarks/results/cortexm_latency.json

Programs of this package ran in firmware on emulated cores, which count instructions and not cycles; the rates of
`micronpu.targets.cortexm.costs` are fitted to these counts: a product on each core, and for both by how much a product
of a single row exceeds it and what a result takes.  The elements of kernels without products and the start of a kernel
are fixed.  The published latencies are of other firmware with CMSIS-NN or its like and make the band.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks import results
from benchmarks.anchors import Anchor, core_anchors

from micronpu.compiler.clock import Clock
from micronpu.compiler.host import host_part
from micronpu.compiler.quantized import quantized_methods
from micronpu.quantize.quantization import Quantization
from micronpu.targets.cortexm.costs import RATES, core_cycles, fixed_cycles, work
from micronpu.targets.registry import device_for


def nodes_of(network: str, core: str) -> list[Any]:
    """The kernels of a network on a core; weights are random, since time depends on shapes."""
    module, x = next(a for a in core_anchors() if a.network == network).build()
    device = device_for(core)
    quantizer = Quantization().quantizer_for(device.quantizer)
    quantized = quantized_methods({"": (module, (x,))}, {"": quantizer}, {"": [(x,)]}, Clock(None))[""].module
    return [node for graph in host_part(quantized, device).core_graphs for node in graph.nodes]


@dataclass(frozen=True)
class Counted:
    """What a network has, beside the instructions that were counted.

    Attributes:
        fixed: instructions that are not fitted.
    """

    core: str
    instructions: float
    products: float
    single: float
    results: float
    fixed: float

    @classmethod
    def of(cls, anchor: Anchor, nodes: Sequence[Any]) -> Counted:
        core = device_for(anchor.target).core
        products, single, results, _ = np.sum([work(node) for node in nodes], axis=0, dtype=float)
        fixed = sum(fixed_cycles(node, core) for node in nodes)
        return cls(anchor.target, anchor.cycles, products, single, results, fixed)


@dataclass(frozen=True)
class Fit:
    """Instructions of a product on each core; for both, how many times that one of a single row, and a result."""

    product: dict[str, float]
    single: float
    result: float

    def predicted(self, counted: Counted) -> float:
        product = self.product[counted.core]
        products = product * (counted.products + self.single * counted.single)
        return products + self.result * counted.results + counted.fixed


def fit(rows: Sequence[Counted]) -> Fit:
    """Rates with the smallest squares of relative errors.

    They are products of each other: in turn the ones are solved for with the others held, until nothing moves.
    """
    found = Fit({}, 2.0, 30.0)
    for _ in range(200):
        product = {}
        for core in dict.fromkeys(r.core for r in rows):
            own = [r for r in rows if r.core == core]
            a = np.array([(r.products + found.single * r.single) / r.instructions for r in own])
            b = np.array([1 - (r.fixed + found.result * r.results) / r.instructions for r in own])
            product[core] = float(a @ b / (a @ a))
        shares = [(product[r.core] * r.single / r.instructions, r.results / r.instructions) for r in rows]
        rest = [1 - (r.fixed + product[r.core] * r.products) / r.instructions for r in rows]
        single, result = np.linalg.lstsq(np.array(shares), np.array(rest), rcond=None)[0]
        found = Fit(product, float(single), float(result))
    return found


def main() -> None:
    known = {(n, c): nodes_of(n, c) for n, c in dict.fromkeys((a.network, a.target) for a in core_anchors())}
    table: list[dict[str, Any]] = []
    anchors = [a for a in core_anchors() if a.fitted]
    rows = [Counted.of(a, known[a.network, a.target]) for a in anchors]
    fitted = fit(rows)
    print(f"fitted {fitted}; in the package {RATES}")
    for i, (anchor, counted) in enumerate(zip(anchors, rows, strict=True)):
        unseen = fit(rows[:i] + rows[i + 1 :]).predicted(counted)
        table.append(_entry(anchor, known) | {"leave_one_out": round(unseen / anchor.cycles - 1, 4)})
    left_out = [abs(t["leave_one_out"]) for t in table]
    print(f"left out: mean {np.mean(left_out):.1%}, worst {max(left_out):.1%}")
    table += [_entry(a, known) for a in core_anchors() if not a.fitted]
    bands = {}
    for instructions in dict.fromkeys(device_for(a.target).core.instructions for a in core_anchors()):
        ratios = [
            1 / (1 + t["error"])
            for t in table
            if device_for(t["core"]).core.instructions is instructions
            and "leave_one_out" not in t
            and not t["left_out"]
        ]
        bands[instructions.value] = [round(min(ratios), 3), round(max(ratios), 3)]
    for t in table:
        print(f"{t['network']:28} {t['core']} {t['cycles']:12,.0f} predicted {t['predicted']:12,} {t['error']:+.1%}")
    print(f"published over estimated: {bands}")
    results.write(
        "cortexm_latency",
        "python -m benchmarks.cortexm_latency",
        {
            "product": {core: round(rate, 4) for core, rate in fitted.product.items()},
            "single": round(fitted.single, 4),
            "result": round(fitted.result, 4),
            "bands": bands,
            "anchors": table,
        },
    )


def _entry(anchor: Anchor, known: dict[tuple[str, str], list[Any]]) -> dict[str, Any]:
    predicted = sum(core_cycles(n, device_for(anchor.target).core) for n in known[anchor.network, anchor.target])
    return {
        "network": anchor.network,
        "core": anchor.target,
        "cycles": round(anchor.cycles),
        "source": anchor.source,
        "predicted": predicted,
        "error": round(predicted / anchor.cycles - 1, 4),
        "left_out": anchor.left_out,
    }


if __name__ == "__main__":
    main()
