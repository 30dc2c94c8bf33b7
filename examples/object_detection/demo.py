"""A picture in, boxes out: the network runs whole on the NPU, the application decodes its cells.

python examples/object_detection/demo.py                             # for i.MX RT700, writes boxes.png
python examples/object_detection/demo.py --target ethos-u55-128 --picture 7 --out seven.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from model import CELL, CLASSES, load
from PIL import Image, ImageDraw

import micronpu

COLOURS = ((255, 80, 60), (70, 200, 90), (80, 140, 255))


def decode(scores: np.ndarray, distances: np.ndarray, least: float = 0.35) -> list[tuple[float, int, np.ndarray]]:
    """Score, class and box (left, top, right, bottom in pixels) of every object, the surest first.

    Args:
        scores: [classes, H, W] from 0 to 1.
        distances: [4, H, W] from the centre of a cell to the sides, in cells.
    """
    found = []
    for kind, i, j in np.argwhere(scores > least):
        left, top, right, bottom = distances[:, i, j]
        box = np.array([j + 0.5 - left, i + 0.5 - top, j + 0.5 + right, i + 0.5 + bottom]) * CELL
        found.append((float(scores[kind, i, j]), int(kind), box))
    kept: list[tuple[float, int, np.ndarray]] = []
    for candidate in sorted(found, key=lambda f: -f[0]):  # non-maximum suppression
        if all(overlap(candidate[2], box) < 0.4 for _, _, box in kept):
            kept.append(candidate)
    return kept


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    both = float(np.prod(np.maximum(sides, 0)))
    return both / float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both)


def draw(picture: np.ndarray, objects: list[tuple[float, int, np.ndarray]], file: Path, zoom: int = 4) -> None:
    """Writes a grey picture [H, W] uint8 with the boxes as an image file."""
    image = Image.fromarray(picture).resize((picture.shape[1] * zoom, picture.shape[0] * zoom), 0).convert("RGB")
    pen = ImageDraw.Draw(image)
    for score, kind, box in objects:
        pen.rectangle([float(side) for side in box * zoom], outline=COLOURS[kind], width=2)
        pen.text((box[0] * zoom, box[1] * zoom - 12), f"{CLASSES[kind]} {score:.0%}", fill=COLOURS[kind])
    image.save(file)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--target", default="imxrt700", help="see `micronpu targets`")
parser.add_argument("--picture", type=int, default=16, help="0 to 47; those from 16 on are new")
parser.add_argument("--report", type=Path, help="a page to write")
parser.add_argument("--out", type=Path, default=Path("boxes.png"))
if __name__ == "__main__":
    options = parser.parse_args()
    pictures = np.load(Path(__file__).with_name("pictures.npz"))["pictures"]
    inputs = (pictures[:, None, None] / np.float32(255)).astype(np.float32)
    examples = [torch.from_numpy(x) for x in inputs]
    program = micronpu.compile(load(), examples[0], options.target, calibration=examples[:16])
    print(program.report.summary())
    scores, distances = (y[0].numpy() for y in program.run(examples[options.picture]))
    objects = decode(scores, distances)
    for score, kind, box in objects:
        print(f"{CLASSES[kind]}: {score:.2f}, {box.round(1)}")
    draw(pictures[options.picture], objects, options.out)
    if options.report:
        program.report.to_html(options.report)
