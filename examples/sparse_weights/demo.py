"""A trained keyword-spotting network with 2:4 weights for Ethos-U85, from 100 recordings without labels.

    python examples/sparse_weights/demo.py
    python examples/sparse_weights/demo.py --max-loss 0.05 --target ethos-u85-1024

Takes about a minute.  The network and its recordings are those of `examples/keyword_spotting`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.status import Status

sys.path.insert(0, str(Path(__file__).parents[1] / "keyword_spotting"))

from model import calibration, dscnn, test_rows

import micronpu
from micronpu import SparsityOptions


class Progress:
    """Shows a step and the part of it that is done: in place on a terminal, else as a line for every half."""

    def __init__(self, console: Console, status: Status) -> None:
        self.console, self.status, self.shown = console, status, ("", 0)

    def __call__(self, step: str, part: float) -> None:
        self.status.update(f"{step} {part:.0%}")
        if not self.console.is_terminal and self.shown != (step, int(2 * part)):
            self.shown = step, int(2 * part)
            print(f"{step} {part:.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="ethos-u85-256", help="see `micronpu targets`")
    parser.add_argument("--max-loss", type=float, help="share of the held-out recordings whose word may change")
    parser.add_argument("--steps", type=int, default=40, help="of training without labels")
    parser.add_argument("--plot", type=Path, default=Path("sparse.svg"), help="where to draw the points")
    options = parser.parse_args()

    console = Console()
    model, example = dscnn()
    recordings = calibration()
    with console.status("choosing weights") as status:
        found = micronpu.sparsify(
            model,
            recordings,
            options.target,
            example_inputs=example,
            sparsity=SparsityOptions(steps=options.steps, points=2, max_loss=options.max_loss),
            callback=Progress(console, status),
        )
    console.print(found)
    options.plot.write_text(found.report.to_svg())

    rows, labels, _ = test_rows()
    with torch.no_grad():
        in_float = model(rows).argmax(1)
    console.print(f"\nOf {len(rows)} other recordings, float hears {_share(in_float == labels)} right.")
    for number, point in enumerate(found.report.points):
        made = found.at(number)
        program = micronpu.compile(
            made.model, example, options.target, calibration=recordings, quantization=made.quantization
        )
        heard = torch.cat([program.run(row[None]) for row in rows]).argmax(1)
        console.print(
            f"  {len(point.layers)} sparse layers, {point.cycles:,} cycles: {_share(heard == labels)} right, "
            f"{_share(heard == in_float)} as float"
        )
    console.print(f"Wrote {options.plot}.")


def _share(hits: torch.Tensor) -> str:
    return f"{hits.float().mean().item():.1%}"


if __name__ == "__main__":
    main()
