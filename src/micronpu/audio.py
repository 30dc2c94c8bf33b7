"""Audio front ends as modules, in forms that an NPU computes accurately."""

from __future__ import annotations

import math

import torch
from torch import nn

from micronpu.base.errors import OptionError

__all__ = ["LogMel"]


class LogMel(nn.Module):
    """Log-mel features of sound, fully delegated to the NPU: two convolutions, an absolute value and a logarithm.

    The usual form squares the spectrum, and a square needs twice the bits: quiet bands are lost in int8 and even in
    int16.  Here the magnitude of a bin is the mean of its projections on some directions of the complex plane, ``|re|``
    and ``|im|`` for two, which needs no square.  The first convolution contains the window and the transform, the
    second the mel filters.  It can also run frame by frame, with `micronpu.streaming(model, inputs, dim=2, step=hop)`.

    Args:
        sample_rate: of the sound in Hz.
        window: samples of a frame, weighted by a Hann window.
        hop: samples from one frame to the next.
        bands: of the mel scale, HTK's.
        floor_db: the level below which everything is silence, in dB relative to a sine of full scale.  8-bit weights
            resolve little below loud components of the same frame.
        directions: number of directions for a magnitude: with 2 the error is some 2 %, with 4 half a percent at twice
            the arithmetic.
        low_hz: lower end of the lowest band.
        high_hz: upper end of the highest band; None is half of the sample rate.

    Shape:
        Input ``[N, 1, samples]``, -1 to 1; output ``[N, bands, frames]``, the natural logarithm of the magnitude, 0 to
        1 for a sine of full scale in the middle of a band.  There are ``(samples - window) // hop + 1`` frames.

    Raises:
        OptionError: a value is invalid.
    """

    def __init__(
        self,
        sample_rate: int = 16000,
        window: int = 400,
        hop: int = 160,
        bands: int = 40,
        floor_db: float = -50.0,
        directions: int = 2,
        low_hz: float = 20.0,
        high_hz: float | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("sample_rate", sample_rate, 1000),
            ("window", window, 16),
            ("hop", hop, 1),
            ("bands", bands, 1),
            ("directions", directions, 2),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(
                    f"`{name}` is {value!r}; it is a whole number of at least {least}.", hint=f"{name}={least}"
                )
        if not _is_number(floor_db) or not -120 <= floor_db < 0:
            raise OptionError(f"`floor_db` is {floor_db!r}; it is -120 or more, and less than 0.", hint="floor_db=-50")
        ends = (low_hz, sample_rate / 2 if high_hz is None else high_hz)
        if not all(_is_number(end) for end in ends) or not 0 <= ends[0] < ends[1] <= sample_rate / 2:
            raise OptionError(
                f"`low_hz` and `high_hz` are {low_hz!r} and {high_hz!r}; they are numbers from 0 to half of the sample "
                f"rate, {sample_rate / 2:g} Hz, the lower first.",
                hint="low_hz=20",
            )
        size = 1 << (window - 1).bit_length()
        filters = _filters(sample_rate, size, bands, ends)
        if not bool((filters.sum(1) > 0).all()):
            raise OptionError(
                f"{bands} bands are too many for a window of {window} samples at {sample_rate} Hz: the lowest hold no "
                "frequency of the transform.",
                hint="fewer bands, or a longer window",
            )
        self.transform = nn.Conv1d(1, directions * (size // 2 + 1), window, stride=hop, bias=False)
        self.bands = nn.Conv1d(directions * (size // 2 + 1), bands, 1, bias=False)
        self.floor = 10 ** (floor_db / 20)
        with torch.no_grad():
            self.transform.weight.copy_(_transform(window, size, directions)[:, None])
            shares = filters.repeat(1, directions) * math.pi / 2 / directions  # the mean of abs(cos(x)) is 2 / pi
            self.bands.weight.copy_(shares.float()[:, :, None])
        for parameter in self.parameters():
            parameter.requires_grad_(False)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return torch.log(self.bands(torch.abs(self.transform(sound))) + self.floor)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _transform(window: int, size: int, directions: int) -> torch.Tensor:
    """Return the projections of each bin, ``[directions * bins, window]``; a sine of full scale has magnitude 1."""
    hann = torch.hann_window(window, dtype=torch.float64)
    bins = torch.arange(size // 2 + 1, dtype=torch.float64)
    angles = 2 * math.pi / size * bins[:, None] * torch.arange(window, dtype=torch.float64)
    turned = [torch.cos(angles - math.pi * k / directions) for k in range(directions)]
    return (torch.cat(turned) * hann * 2 / hann.sum()).float()


def _filters(sample_rate: int, size: int, bands: int, hertz: tuple[float, float]) -> torch.Tensor:
    """Return triangles of the mel scale, ``[bands, bins]``, each 1 at its middle."""
    frequencies = torch.linspace(0, sample_rate / 2, size // 2 + 1, dtype=torch.float64)
    ends = _mel(torch.tensor(hertz, dtype=torch.float64)).tolist()
    edges = torch.linspace(ends[0], ends[1], bands + 2, dtype=torch.float64)[:, None]
    rising = (_mel(frequencies) - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - _mel(frequencies)) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


def _mel(frequency: torch.Tensor) -> torch.Tensor:
    return 2595 * torch.log10(1 + frequency / 700)
