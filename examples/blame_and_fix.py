"""Blame and fix: which layer of the keyword spotter costs the accuracy in int8, and what helps.

    python examples/blame_and_fix.py --target imxrt700-neutron --seconds 60

The network is made hard to quantize on purpose, as folded BatchNorms leave some: its channels differ in size by up to
sixty times, with the same results in float. `micronpu.blame` says which layers suffer, `micronpu.fix` tries cures on
the recordings and keeps what measurably helps.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "keyword_spotting"))

import torch
from model import calibration, dscnn, test_rows
from torch import nn

import micronpu


def uneven(model: nn.Module) -> nn.Module:
    """The same function with channels of very different size between depthwise and pointwise convolutions."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in (model.block1, model.block2, model.block3, model.block4):
            factor = 2.0 ** (6 * torch.rand(64, generator=random) - 3)
            block.dw.weight *= factor[:, None, None, None]
            block.dw.bias *= factor
            block.pw.weight /= factor[None, :, None, None]
    return model


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="imxrt700-neutron", help="see `micronpu targets`")
    parser.add_argument("--seconds", type=float, default=30.0, help="for the search; nothing new is begun after that")
    parser.add_argument("--rows", type=int, default=100, help="recordings to choose by and to judge by")
    options = parser.parse_args(arguments)
    model = uneven(dscnn()[0])
    typical = calibration()[:32]
    rows = [(row,) for row in test_rows()[0][: options.rows].split(1)]

    blame = micronpu.blame(
        model,
        rows[:20],
        target=options.target,
        calibration=typical,
        quantization=micronpu.Quantization(per_channel=False),
    )
    print(blame.summary)
    for layer in blame.layers[:3]:
        print(f"  {layer.node:10} {layer.sqnr:5.1f} dB, its own {layer.own:5.1f} dB. Try: {layer.advice or 'nothing'}")

    fixes = micronpu.fix(
        model,
        rows,
        target=options.target,
        calibration=typical,
        quantization=micronpu.Quantization(per_channel=False),
        budget=options.seconds,
    )
    print(fixes)
    best = max(fixes.choices, key=lambda choice: choice.sqnr)
    program = micronpu.compile(
        model, rows[0], options.target, calibration=typical, quantization=best.quantization, verify=False
    )
    print(program.report.summary())
    return fixes.choices[0].sqnr, best.sqnr


if __name__ == "__main__":
    main()
