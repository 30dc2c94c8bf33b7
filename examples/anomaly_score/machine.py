"""The sound of a machine that is made up, healthy or worn, and the features that the network sees."""

from __future__ import annotations

import torch
from torch import Tensor

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
