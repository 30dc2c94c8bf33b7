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
from model import HERE, SIZE, network
from PIL import Image, ImageDraw
from torch import Tensor

import micronpu


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


def draw(shown: list[tuple[Tensor, float]], path: Path) -> None:
    """The pictures side by side as the network saw them, each with the share that "person" got."""
    sheet = Image.new("RGB", (2 * SIZE * len(shown), 2 * SIZE))
    for number, (x, share) in enumerate(shown):
        image = Image.fromarray((x[0].permute(1, 2, 0) * 255).byte().numpy()).resize((2 * SIZE, 2 * SIZE))
        ImageDraw.Draw(image).text((8, 6), f"person {share:.0%}", fill="white", stroke_width=2, stroke_fill="black")
        sheet.paste(image, (2 * SIZE * number, 0))
    sheet.save(path)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, tuple[float, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", type=Path, help="photographs; those beside this file unless given")
    parser.add_argument("--target", default="himax-we2", help="see `micronpu targets`")
    parser.add_argument("--report", type=Path, help="a page to write")
    parser.add_argument("--out", type=Path, help="a picture to write")
    options = parser.parse_args(arguments)
    model, own = network(), sorted((HERE / "pictures").glob("*.jpg"))
    typical = [
        x for path in own for x in squares(path, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5))
    ]  # a product takes its own photos
    program = micronpu.compile(model, typical[:1], options.target, calibration=typical)
    print(program.report.summary())
    found, shown = {}, []
    for path in options.pictures or own:
        (x,) = squares(path)
        found[path.stem] = tuple(float(torch.softmax(run(x), 1)[0, 1]) for run in (model, program.run))
        shown.append((x, found[path.stem][1]))
        print(f"{path.name:16} person: {found[path.stem][0]:6.1%} in float, {found[path.stem][1]:6.1%} on the chip")
    if options.out:
        draw(shown, options.out)
    if options.report:
        program.report.to_html(options.report)
    return found


if __name__ == "__main__":
    main()
