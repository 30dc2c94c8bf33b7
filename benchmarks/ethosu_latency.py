"""Vela's estimates with each chip's own clock and memories, beside latencies that are published for Ethos-U.

    python -m benchmarks.ethosu_latency             # table, and benchmarks/results/ethosu_latency.json

Nothing is fitted: the ratios of measured to estimated time are the band that reports show (`BAND` of
`micronpu.targets.ethosu.costs`).  Networks have random weights.
"""

from __future__ import annotations

import torch
from benchmarks import results
from benchmarks.networks.architectures import Autoencoder, MobileNetV1, ResNet8
from benchmarks.networks.plain import mobilenet_v1, mobilenet_v2
from benchmarks.neutron_latency import Anchor, _with_softmax
from examples.keyword_spotting.model import DSCNN
from torch import nn

import micronpu
from micronpu.targets.ethosu.costs import BAND, LEAST_MILLISECONDS

ZOO = "NXP eiq-model-zoo v1.2 to v1.4, i.MX 93 under Linux"
PULL = "pytorch/executorch, pull request 19131, Alif E8"


ANCHORS = (
    Anchor("autoencoder", Autoencoder, (1, 640), "imx93", 0.143, ZOO),
    Anchor("MobileNetV1-0.25-96 (VWW)", lambda: _with_softmax(MobileNetV1()), (1, 3, 96, 96), "imx93", 0.214, ZOO),
    Anchor("ResNet-8", lambda: _with_softmax(ResNet8()), (1, 3, 32, 32), "imx93", 0.33, ZOO),
    Anchor("MobileNetV1-0.25-128", lambda: mobilenet_v1(0.25), (1, 3, 128, 128), "imx93", 0.37, ZOO),
    Anchor("DS-CNN", lambda: _with_softmax(DSCNN(norm=nn.BatchNorm2d)), (1, 1, 49, 10), "imx93", 0.409, ZOO),
    Anchor("MobileNetV2-1.0-224", lambda: mobilenet_v2(1.0), (1, 3, 224, 224), "imx93", 3.46, ZOO),
    Anchor("MobileNetV2-1.0-224", lambda: mobilenet_v2(1.0), (1, 3, 224, 224), "alif-e8", 19.0, PULL),
)


def main() -> None:
    table = []
    for anchor in ANCHORS:
        torch.manual_seed(0)
        x = torch.randn(anchor.shape)
        if x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        program = micronpu.compile(anchor.build().eval(), (x,), anchor.target, calibration=[(x,)], verify=False)
        estimate = next(t for t in program.report.latency if t.processor == "NPU")
        ratio = anchor.milliseconds / estimate.milliseconds
        table.append(
            {
                "network": anchor.name,
                "target": anchor.target,
                "published_ms": anchor.milliseconds,
                "source": anchor.source,
                "predicted_ms": round(estimate.milliseconds, 4),
                "error": round(estimate.milliseconds / anchor.milliseconds - 1, 4),
                "ratio": round(ratio, 3),
                "in_band": estimate.milliseconds >= LEAST_MILLISECONDS,
            }
        )
        measured, vela = f"{anchor.milliseconds:7.3f} ms", f"{estimate.milliseconds:7.3f}"
        print(f"{anchor.name:28} {anchor.target:8} {measured}  Vela {vela}  {ratio:.2f}")
    ratios = [float(str(row["ratio"])) for row in table if row["in_band"]]
    print(f"above {LEAST_MILLISECONDS} ms: {min(ratios)} to {max(ratios)}; the package has {BAND}")
    results.write(
        "ethosu_latency",
        "python -m benchmarks.ethosu_latency",
        {"band": BAND, "least_ms": LEAST_MILLISECONDS, "anchors": table},
    )


if __name__ == "__main__":
    main()
