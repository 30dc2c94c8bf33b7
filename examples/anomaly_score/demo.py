"""Anomaly score: an autoencoder learns what a machine sounds like, and what it cannot rebuild is strange.

    python examples/anomaly_score/demo.py --target ethos-u55-128

The machine is made up here, so that nothing is downloaded: a motor's hum with its harmonics and the noise of air; a
worn bearing adds clicks. Prints how well the error tells one from the other (AUC) in float and as the int8 program.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from machine import BANDS, FRAMES, features, sound
from PIL import Image, ImageDraw
from torch import Tensor, nn

import micronpu


def network() -> nn.Sequential:
    pairs = list(pairwise((BANDS * FRAMES, 64, 8, 64, BANDS * FRAMES)))
    layers = [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def auc(healthy: Tensor, worn: Tensor) -> float:
    """How often a worn machine has the higher score; a guess has 0.5."""
    return ((worn[:, None] > healthy).float() + 0.5 * (worn[:, None] == healthy)).mean().item()


def draw(scores: dict[bool, Tensor], path: Path) -> None:
    """A dot for each recording: how strange it sounds, from left to right; healthy above, worn below."""
    image = Image.new("RGB", (640, 140), "white")
    pen, most = ImageDraw.Draw(image), max(float(score.max()) for score in scores.values())
    for worn, colour in ((False, "#00796b"), (True, "#b04020")):
        pen.text((8, 8 + 66 * worn), f"{'worn' if worn else 'healthy'}, score on the chip", fill="black")
        for x in (20 + 600 * scores[worn] / most).tolist():
            pen.ellipse((x - 5, 32 + 66 * worn, x + 5, 42 + 66 * worn), outline=colour, width=2)
    image.save(path)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="imxrt700-neutron", help="see `micronpu targets`")
    parser.add_argument("--report", type=Path, help="a page to write")
    parser.add_argument("--out", type=Path, help="a picture to write")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    rows = torch.cat([features(sound(random, worn=False)) for _ in range(150)])
    optimizer = torch.optim.Adam((model := network()).parameters(), 2e-3)
    for epoch in range(20):
        for batch in torch.randperm(len(rows), generator=random).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows[batch]), rows[batch]).backward()
            optimizer.step()
        if epoch % 5 == 4:
            print(f"trained {epoch + 1} of 20 epochs", flush=True)
    model.eval()
    program = micronpu.compile(model, (rows[:1],), options.target, calibration=[(r,) for r in rows[:100].split(1)])
    print(program.report.summary())
    tests = {worn: [features(sound(random, worn)) for _ in range(40)] for worn in (False, True)}
    found = []
    for name, rebuild in (("float", model), ("int8", lambda x: torch.cat([program.run(r) for r in x.split(1)]))):
        with torch.no_grad():
            score = {worn: torch.stack([(rebuild(x) - x).square().mean() for x in xs]) for worn, xs in tests.items()}
        found.append(auc(score[False], score[True]))
        print(f"AUC {name:6} {found[-1]:.3f}")
    if options.out:
        draw(score, options.out)
    if options.report:
        program.report.to_html(options.report)
    return found[0], found[1]


if __name__ == "__main__":
    main()
