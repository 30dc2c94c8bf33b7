"""Which pixels are the leaf? A small U-Net, trained in half a minute on pictures that are drawn here.

    python examples/segmentation/demo.py                               # on the Ethos-U55 of a Corstone-300
    python examples/segmentation/demo.py --target imxrt700 --report leaf.html --out leaf.png

Leaves with a stalk lie on soil with stones of the same brightness. Prints the intersection over union of what the
network marks with the leaf itself, in float and by the int8 program, and draws picture, truth and the chip's answer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from leaves import SIZE, overlap, scenes
from PIL import Image
from torch import Tensor, nn

import micronpu


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        self.down = nn.ModuleList(layers(i, o) for i, o in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(layers(i + o, o) for i, o in zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] to how much each pixel looks like a leaf, [N, 1, H, W]: over 0 is leaf."""
        kept = [x := self.down[0](x)]
        for layer in self.down[1:]:
            kept.append(x := layer(nn.functional.max_pool2d(x, 2)))
        for layer, beside in zip(self.up, kept[-2::-1], strict=True):
            x = layer(torch.cat([nn.functional.interpolate(x, scale_factor=2), beside], 1))
        return self.head(x)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="corstone300", help="see `micronpu targets`")
    parser.add_argument("--report", type=Path, help="a page to write")
    parser.add_argument("--out", type=Path, help="a picture to write")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    optimizer = torch.optim.Adam((model := UNet()).parameters(), 1e-2)
    for step in range(60):
        pictures, truth = scenes(16, random)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(pictures), truth).backward()
        optimizer.step()
        if step % 15 == 14:
            print(f"trained {step + 1} of 60 steps", flush=True)
    model.eval()
    typical, (pictures, truth) = scenes(24, random)[0], scenes(24, random)
    program = micronpu.compile(model, typical[:1], options.target, calibration=list(typical.split(1)))
    print(program.report.summary())
    with torch.no_grad():
        marked = model(pictures), torch.cat([program.run(picture) for picture in pictures.split(1)])
    found = overlap(marked[0], truth), overlap(marked[1], truth)
    print(f"intersection over union on 24 new pictures: {found[0]:.3f} in float, {found[1]:.3f} on the chip")
    if options.out:
        rows = [x[:6].expand(-1, 3, -1, -1) for x in (pictures, truth, (marked[1] > 0).float())]
        sheet = torch.cat([torch.cat(list(row), 2) for row in rows], 1).permute(1, 2, 0)
        Image.fromarray((sheet * 255).byte().numpy()).resize((6 * 2 * SIZE, 3 * 2 * SIZE), 0).save(options.out)
    if options.report:
        program.report.to_html(options.report)
    return found


if __name__ == "__main__":
    main()
