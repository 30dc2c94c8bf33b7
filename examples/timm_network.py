"""A network of timm on a microcontroller, with the preprocessing that timm says it was trained with.

    pip install timm
    python examples/timm_network.py --network lcnet_050.ra2_in1k --target corstone320

Weights are random, so that nothing is downloaded; time, memory and what runs where do not depend on them. For trained
ones see `load`.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import micronpu

try:
    import timm
except (
    RuntimeError
):  # The compiled operators of its torchvision are for another torch: `micronpu doctor`. Networks do without.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm


def load(name: str) -> nn.Module:
    return timm.create_model(name, pretrained=False).eval()  # trained: pretrained=True


def pictures(count: int = 16) -> list[Image.Image]:
    """Made up. Yours: some dozens of photographs of what the camera will see, Image.open(path).convert("RGB")."""
    random = np.random.default_rng(0)
    small = random.integers(0, 256, (count, 6, 6, 3), np.uint8)
    return [Image.fromarray(pixels).resize((256, 256), Image.Resampling.BICUBIC) for pixels in small]


def main(arguments: list[str] | None = None) -> micronpu.CompiledProgram:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="lcnet_050.ra2_in1k", help="timm.list_models() has the names")
    parser.add_argument("--target", default="corstone320", help="see `micronpu targets`")
    options = parser.parse_args(arguments)
    model = load(options.network)
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    inputs: list[Tensor] = [prepare(picture)[None] for picture in pictures()]
    # int8: which precision random weights need says nothing. Leave it out for yours.
    program = micronpu.compile(model, inputs[:1], options.target, calibration=inputs, quantization="int8")
    print(program.report.summary())
    for region in program.report.memory.regions:
        print(f"{region.name}: {region.bytes:,} bytes, {region.verdict}")
    print(*program.report.latency, sep="\n")
    return program


if __name__ == "__main__":
    main()
