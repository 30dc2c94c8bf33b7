"""A gesture from an accelerometer: a GRU over a second of three axes, trained in seconds on movements that are made up.

    python examples/gesture/demo.py                                 # on the Ethos-U55 of a Corstone-300
    python examples/gesture/demo.py --target imxrt700 --report gesture.html --out gestures.png

Circles, shakes and swipes differ in tempo, size and how the board is held; all have gravity and noise in them. Prints
how many of 200 new ones are recognised in float and by the int8 program.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from movements import NAMES, draw, movements
from torch import Tensor, nn

import micronpu


class Network(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.memory, self.head = nn.GRU(3, width, batch_first=True), nn.Linear(width, len(NAMES))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 32, 3] to the scores of the gestures, [N, 4]."""
        return self.head(self.memory(x)[0][:, -1])


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="corstone300", help="see `micronpu targets`")
    parser.add_argument("--report", type=Path, help="a page to write")
    parser.add_argument("--out", type=Path, help="a picture to write")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam((model := Network()).parameters(), 1e-2)
    for step in range(120):
        rows, kinds = movements(64, random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), kinds).backward()
        optimizer.step()
        if step % 40 == 39:
            print(f"trained {step + 1} of 120 steps", flush=True)
    model.eval()
    typical, (rows, kinds) = movements(64, random)[0], movements(200, random)
    program = micronpu.compile(model, typical[:1], options.target, calibration=list(typical.split(1)))
    print(program.report.summary())
    with torch.no_grad():
        answers = model(rows).argmax(1), torch.cat([program.run(row) for row in rows.split(1)]).argmax(1)
    known = [float((answer == kinds).float().mean()) for answer in answers]
    print(f"of 200 new movements recognised: {known[0]:.1%} in float, {known[1]:.1%} on the chip")
    if options.out:
        shown = [int((kinds == kind).nonzero()[0]) for kind in range(len(NAMES))]
        draw(rows[shown], [f"{NAMES[kinds[n]]}: {NAMES[answers[1][n]]} on the chip" for n in shown], options.out)
    if options.report:
        program.report.to_html(options.report)
    return known[0], known[1]


if __name__ == "__main__":
    main()
