"""Is there a person in the picture? The visual wake words network of MLPerf Tiny, trained, on photographs.

    python examples/visual_wake_word/demo.py                                   # the pictures beside this file
    python examples/visual_wake_word/demo.py --target himax-we2 mine.jpg

Prints the share that "person" gets in float, and as the program of the chip computes it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import micronpu

HERE = Path(__file__).resolve().parent
SIZE = 96
WIDTHS = (16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256)


def layer(inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> list[nn.Module]:
    """Convolution, batch norm and ReLU. A stride of 2 pads as TensorFlow does, below and to the right alone."""
    pad = [nn.ZeroPad2d((0, 1, 0, 1))] if stride == 2 else []
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2 if stride == 1 else 0, groups=groups)
    return [*pad, conv, nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU()]


def network() -> nn.Sequential:
    """MobileNetV1, a quarter as wide: [N, 3, 96, 96] from 0 to 1 to the scores of "no person" and "person", [N, 2]."""
    layers, width = layer(3, 8, 3, stride=2), 8
    for number, wider in enumerate(WIDTHS):
        layers += layer(width, width, 3, stride=2 if number in (1, 3, 5, 11) else 1, groups=width)
        layers, width = layers + layer(width, wider, 1, stride=1), wider
    model = nn.Sequential(*layers, nn.AvgPool2d(3), nn.Flatten(), nn.Linear(width, 2))
    with np.load(HERE / "weights.npz") as weights:  # in the order of the layers
        stored = [torch.from_numpy(weights[name].astype(np.float32)) for name in weights.files]
    names = [name for name in model.state_dict() if "num_batches" not in name]
    model.load_state_dict(dict(zip(names, stored, strict=True)), strict=False)
    return model.eval()


def squares(path: Path, shares: tuple[float, ...] = (1.0,)) -> list[Tensor]:
    """A picture as the network takes it, for each share of its shorter side a square of that size from the middle."""
    image = Image.open(path).convert("RGB")
    found = []
    for share in shares:
        side = share * min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        part = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        found.append(torch.from_numpy(np.array(part)).permute(2, 0, 1)[None] / 255)
    return found


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, tuple[float, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", type=Path, help="photographs; those beside this file unless given")
    parser.add_argument("--target", default="himax-we2", help="see `micronpu targets`")
    options = parser.parse_args(arguments)
    model, own = network(), sorted((HERE / "pictures").glob("*.jpg"))
    typical = [
        x for path in own for x in squares(path, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5))
    ]  # a product takes its own photos
    program = micronpu.compile(model, typical[:1], options.target, calibration=typical)
    print(program.report.summary())
    found = {}
    for path in options.pictures or own:
        (x,) = squares(path)
        found[path.stem] = tuple(float(torch.softmax(run(x), 1)[0, 1]) for run in (model, program.run))
        print(f"{path.name:16} person: {found[path.stem][0]:6.1%} in float, {found[path.stem][1]:6.1%} on the chip")
    return found


if __name__ == "__main__":
    main()
