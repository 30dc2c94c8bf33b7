"""Cycles of CMSIS-NN on Cortex-M: rates fitted to counted instructions, beside latencies that are published.

    python -m benchmarks.cortexm_latency            # table, and benchmarks/results/cortexm_latency.json

Programs of this package ran in firmware on emulated cores, which count instructions and not cycles; the rates of
`micronpu.targets.cortexm.costs` are fitted to these counts: a product on each core, and for both by how much a product
of a single row exceeds it and what a result takes.  The elements of kernels without products and the start of a kernel
are fixed.  The published latencies are of other firmware with CMSIS-NN or its like and make the band.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks import results
from benchmarks.networks.architectures import Autoencoder, MobileNetV1, ResNet8
from benchmarks.networks.plain import mobilenet_v1
from benchmarks.neutron_latency import _with_softmax
from examples.keyword_spotting.model import DSCNN
from torch import nn

from micronpu.compiler.clock import Clock
from micronpu.compiler.compile import host_part
from micronpu.compiler.quantized import quantized_module
from micronpu.quantize.quantization import Quantization
from micronpu.targets.cortexm.costs import RATES, core_cycles, fixed_cycles, work
from micronpu.targets.registry import device_for

COUNTED = "instructions of a program of this package in firmware under QEMU, ExecuTorch 1.5 and its CMSIS-NN"
ZOO = "NXP eiq-model-zoo v1.2 to v1.4, MCX N947, 150 MHz"
EXAMPLES = "readme of mcuxsdk-examples, i.MX RT700, 325 MHz"
MODELRUNNER = "mcuxsdk-examples, modelrunner on i.MX RT700, 325 MHz"
TINY = "MLPerf Tiny v1.2, Renesas RA8D1 (Cortex-M85, 480 MHz)"

Build = tuple[Callable[[], nn.Module], tuple[int, ...]]
NETWORKS: dict[str, Build] = {
    "DS-CNN": (lambda: _with_softmax(DSCNN(norm=nn.BatchNorm2d)), (1, 1, 49, 10)),
    "autoencoder": (Autoencoder, (1, 640)),
    "ResNet-8": (lambda: _with_softmax(ResNet8()), (1, 3, 32, 32)),
    "MobileNetV1-0.25-96 (VWW)": (lambda: _with_softmax(MobileNetV1()), (1, 3, 96, 96)),
    "MobileNetV1-0.25-128": (lambda: mobilenet_v1(0.25), (1, 3, 128, 128)),
}


@dataclass(frozen=True)
class Anchor:
    """Cycles, or instructions, of a network on a core.

    Attributes:
        fitted: whether the rates are fitted to it.
        left_out: why it cannot be compared, or "".
    """

    network: str
    core: str
    cycles: float
    source: str
    fitted: bool = False
    left_out: str = ""


ANCHORS = (
    Anchor("DS-CNN", "cortex-m33", 9_387_050, COUNTED, True),
    Anchor("autoencoder", "cortex-m33", 1_760_800, COUNTED, True),
    Anchor("ResNet-8", "cortex-m33", 41_759_100, COUNTED, True),
    Anchor("MobileNetV1-0.25-96 (VWW)", "cortex-m33", 33_891_050, COUNTED, True),
    Anchor("DS-CNN", "cortex-m55", 2_483_700, COUNTED, True),
    Anchor("autoencoder", "cortex-m55", 182_781, COUNTED, True),
    Anchor("ResNet-8", "cortex-m55", 5_482_156, COUNTED, True),
    Anchor("MobileNetV1-0.25-96 (VWW)", "cortex-m55", 10_107_563, COUNTED, True),
    Anchor("DS-CNN", "cortex-m33", 62e-3 * 150e6, ZOO),
    Anchor("autoencoder", "cortex-m33", 5.605e-3 * 150e6, ZOO),
    Anchor("ResNet-8", "cortex-m33", 266.67e-3 * 150e6, ZOO),
    Anchor("MobileNetV1-0.25-96 (VWW)", "cortex-m33", 194.313e-3 * 150e6, ZOO),
    Anchor("DS-CNN", "cortex-m33", 32e-3 * 325e6, EXAMPLES),
    Anchor("MobileNetV1-0.25-128", "cortex-m33", 88e-3 * 325e6, EXAMPLES),
    Anchor("DS-CNN", "cortex-m33", 57.207e-3 * 325e6, MODELRUNNER, left_out="another demo of the chip takes 32 ms"),
    Anchor("DS-CNN", "cortex-m85", 480e6 / 288.6, TINY),
    Anchor("autoencoder", "cortex-m85", 480e6 / 1884, TINY),
    Anchor("ResNet-8", "cortex-m85", 480e6 / 117.9, TINY),
    Anchor("MobileNetV1-0.25-96 (VWW)", "cortex-m85", 480e6 / 74.7, TINY),
)


def nodes_of(network: str, core: str) -> list[Any]:
    """The kernels of a network on a core; weights are random, since time depends on shapes."""
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    x = torch.randn(shape)
    if x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    device = device_for(core)
    quantizer = Quantization().quantizer_for(device.quantizer)
    module = quantized_module(build().eval(), (x,), quantizer, calibration=[(x,)], clock=Clock(None)).module
    return [node for graph in host_part(module, device).core_graphs for node in graph.nodes]


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
        core = device_for(anchor.core).core
        products, single, results, _ = np.sum([work(node) for node in nodes], axis=0, dtype=float)
        fixed = sum(fixed_cycles(node, core) for node in nodes)
        return cls(anchor.core, anchor.cycles, products, single, results, fixed)


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
    known = {(n, c): nodes_of(n, c) for n, c in dict.fromkeys((a.network, a.core) for a in ANCHORS)}
    table: list[dict[str, Any]] = []
    anchors = [a for a in ANCHORS if a.fitted]
    rows = [Counted.of(a, known[a.network, a.core]) for a in anchors]
    fitted = fit(rows)
    print(f"fitted {fitted}; in the package {RATES}")
    for i, (anchor, counted) in enumerate(zip(anchors, rows, strict=True)):
        unseen = fit(rows[:i] + rows[i + 1 :]).predicted(counted)
        table.append(_entry(anchor, known) | {"leave_one_out": round(unseen / anchor.cycles - 1, 4)})
    left_out = [abs(t["leave_one_out"]) for t in table]
    print(f"left out: mean {np.mean(left_out):.1%}, worst {max(left_out):.1%}")
    table += [_entry(a, known) for a in ANCHORS if not a.fitted]
    bands = {}
    for instructions in dict.fromkeys(device_for(a.core).core.instructions for a in ANCHORS):
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
    predicted = sum(core_cycles(n, device_for(anchor.core).core) for n in known[anchor.network, anchor.core])
    return {
        "network": anchor.network,
        "core": anchor.core,
        "cycles": round(anchor.cycles),
        "source": anchor.source,
        "predicted": predicted,
        "error": round(predicted / anchor.cycles - 1, 4),
        "left_out": anchor.left_out,
    }


if __name__ == "__main__":
    main()
