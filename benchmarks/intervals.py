"""Compare the report's interval with the program on other data, for small networks with few calibration samples.

    python -m benchmarks.intervals          a table: five kinds of networks, 24 and 48 samples, 12 seeds each
    python -m benchmarks.intervals --kinds mlp --rows 24 --seeds 2

A row of the table shows in how many seeds the interval contains the SQNR of 200 other samples of the same distribution,
the largest and the mean difference of the report's figure from it, and the mean SQNR of the other samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import micronpu

OTHERS = 200
"""Number of samples that neither calibrate nor are held out."""


class Residual(nn.Module):
    """Two convolutions with a residual connection, a mean and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(x))
        return self.head(F.relu(y + self.second(y)).mean((2, 3)))


class Attention(nn.Module):
    """Self-attention over 16 steps with a layer norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 3)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        weights = (self.query(y) @ self.key(y).transpose(1, 2) / 4).softmax(-1)
        return self.out((x + weights @ self.value(y)).mean(1))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))


def _relu() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU())


def _conv1d() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14, 4))


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_mlp, (1, 32)),
    "relu": (_relu, (1, 64)),
    "conv1d": (_conv1d, (1, 3, 32)),
    "residual": (Residual, (1, 3, 16, 16)),
    "attention": (Attention, (1, 16, 16)),
}
"""A function that makes each kind of network, and the shape of its input."""


@dataclass(frozen=True)
class Outcome:
    """Figures of one network, in dB against float.

    Attributes:
        reported: the report's.
        low, high: its interval.
        other: on other samples.
    """

    reported: float
    low: float
    high: float
    other: float

    @property
    def is_inside(self) -> bool:
        """True if the interval contains the figure on other samples."""
        return self.low <= self.other <= self.high


def outcome(kind: str, seed: int, rows: int, target: str = "ethos-u55-128") -> Outcome:
    """Compile a network with random weights, and measure it on other samples."""
    make, shape = KINDS[kind]
    torch.manual_seed(seed)
    model = make().eval()
    generator = torch.Generator().manual_seed(seed + 100)
    samples = [torch.randn(*shape, generator=generator) for _ in range(rows + OTHERS)]
    program = micronpu.compile(model, samples[0], target, calibration=samples[:rows])
    with torch.no_grad():
        wanted, found = (torch.cat([f(x) for x in samples[rows:]]).double() for f in (model, program.run))
    accuracy = program.report.accuracy
    against = accuracy.outputs[0].float_model if accuracy is not None else None
    assert against is not None and against.interval is not None
    other = 10 * torch.log10(wanted.square().sum() / (found - wanted).square().sum())
    return Outcome(against.sqnr, *against.interval, float(other))


def table(kinds: list[str], rows: list[int], seeds: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| network | samples | inside | report too high by at most, dB | report, mean dB | other data, mean dB |"
    yield "|---|---|---|---|---|---|"
    for kind in kinds:
        for count in rows:
            every = [outcome(kind, seed, count) for seed in range(seeds)]
            inside = sum(one.is_inside for one in every)
            over = max(one.reported - one.other for one in every)
            means = (sum(getattr(one, name) for one in every) / seeds for name in ("reported", "other"))
            yield (
                f"| {kind} | {count} | {inside} of {seeds} | {over:.1f} | "
                + " | ".join(f"{m:.1f}" for m in means)
                + " |"
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rows", nargs="+", type=int, default=[24, 48])
    parser.add_argument("--seeds", type=int, default=12)
    given = parser.parse_args()
    for line in table(given.kinds, given.rows, given.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
