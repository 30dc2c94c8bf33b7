"""A network of torchvision on a microcontroller: how much of it the NPU takes, what it needs, and whether it fits.

    pip install torchvision      # from where torch came: with the same --index-url
    python examples/torchvision_network.py --network mobilenet_v2 --size 96 --target alif-e7

Weights are random, so that nothing is downloaded; time, memory and what runs where do not depend on them. For yours see
`load`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import micronpu

try:
    import torchvision
except RuntimeError:  # Its compiled operators are for another torch: `micronpu doctor`. Networks do without them.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision


def load(name: str) -> nn.Module:
    # Trained: weights="DEFAULT", or model.load_state_dict(torch.load("mine.pth")) with num_classes=... for your own.
    return torchvision.models.get_model(name, weights=None).eval()


def typical(size: int, count: int = 16) -> list[Tensor]:
    """Inputs to calibrate with. Yours: some dozens of pictures, normalised as the network was trained."""
    random = torch.Generator().manual_seed(0)
    return [torch.randn(1, 3, size, size, generator=random) for _ in range(count)]


def main(arguments: list[str] | None = None) -> micronpu.CompiledProgram:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="mobilenet_v2", help="torchvision.models.list_models() has the names")
    parser.add_argument("--size", type=int, default=96, help="pixels of a side")
    parser.add_argument("--target", default="alif-e7", help="see `micronpu targets`")
    options = parser.parse_args(arguments)
    inputs = typical(options.size)
    # int8: which precision random weights need says nothing. Leave it out for yours.
    program = micronpu.compile(
        load(options.network), inputs[:1], options.target, calibration=inputs, quantization="int8"
    )
    print(program.report.summary())
    for region in program.report.memory.regions:
        print(f"{region.name}: {region.bytes:,} bytes, {region.verdict}")
    for verdict in program.report.host:
        print(f"not on the NPU: {verdict.operator}, {verdict.reasons[0] if verdict.reasons else ''}")
    print(*program.report.latency, sep="\n")
    return program


if __name__ == "__main__":
    main()
