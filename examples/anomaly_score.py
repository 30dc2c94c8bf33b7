"""Anomaly score: an autoencoder learns what a machine sounds like, and what it cannot rebuild is strange.

    python examples/anomaly_score.py --target ethos-u55-128

The machine is made up here, so that nothing is downloaded: a motor's hum with its harmonics and the noise of air; a
worn bearing adds clicks. Prints how well the error tells one from the other (AUC) in float and as the int8 program.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import Tensor, nn

import micronpu

RATE, SAMPLES, FRAME = 16_000, 8_192, 512
BANDS, FRAMES = 32, 4  # of a spectrogram; the network sees four frames side by side


def sound(random: torch.Generator, worn: bool) -> Tensor:
    """Half a second of the machine, [8192]."""
    time = torch.arange(SAMPLES) / RATE
    speed = 90 + 20 * torch.rand(1, generator=random)
    hum = sum(torch.sin(2 * torch.pi * speed * k * time) / k for k in range(1, 6))
    wave = hum + 0.3 * torch.randn(SAMPLES, generator=random)
    click = torch.exp(-torch.arange(60.0) / 12) * torch.sin(torch.arange(60.0) * 1.9)
    for start in range(0, SAMPLES - 60, int(RATE / speed / 0.4)) if worn else ():
        wave[start : start + 60] += click
    return wave


def features(wave: Tensor) -> Tensor:
    """Logarithms of the power in 32 bands, four neighbouring frames to a row: [rows, 128]."""
    spectrum = torch.stft(wave, FRAME, window=torch.hann_window(FRAME), return_complex=True).abs() ** 2
    bands = spectrum[:256].reshape(BANDS, -1, spectrum.shape[1]).mean(1)
    return (10 * torch.log10(bands + 1e-6)).T.unfold(0, FRAMES, FRAMES).flatten(1) / 20


def network() -> nn.Sequential:
    pairs = list(pairwise((BANDS * FRAMES, 64, 8, 64, BANDS * FRAMES)))
    layers = [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def auc(healthy: Tensor, worn: Tensor) -> float:
    """How often a worn machine has the higher score; a guess has 0.5."""
    return ((worn[:, None] > healthy).float() + 0.5 * (worn[:, None] == healthy)).mean().item()


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="imxrt700-neutron", help="see `micronpu targets`")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    rows = torch.cat([features(sound(random, worn=False)) for _ in range(150)])
    optimizer = torch.optim.Adam((model := network()).parameters(), 2e-3)
    for _ in range(20):
        for batch in torch.randperm(len(rows), generator=random).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows[batch]), rows[batch]).backward()
            optimizer.step()
    model.eval()
    program = micronpu.compile(model, (rows[:1],), options.target, calibration=[(r,) for r in rows[:100].split(1)])
    tests = {worn: [features(sound(random, worn)) for _ in range(40)] for worn in (False, True)}
    found = []
    for name, rebuild in (("float", model), ("int8", lambda x: torch.cat([program.run(r) for r in x.split(1)]))):
        with torch.no_grad():
            score = {worn: torch.stack([(rebuild(x) - x).square().mean() for x in xs]) for worn, xs in tests.items()}
        found.append(auc(score[False], score[True]))
        print(f"AUC {name:6} {found[-1]:.3f}")
    return found[0], found[1]


if __name__ == "__main__":
    main()
