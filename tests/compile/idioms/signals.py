"""Networks that listen and measure: sensors in their own units, filters and features within the model."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from tests.compile.idioms.networks import Idiom, between, idiom, noise, sensors
from tests.compile.small import Tensors
from torch import Tensor, nn


class _Motion(Idiom):
    """[1, 6, 48]: acceleration in m/s2 with gravity, turning in degrees a second."""

    def draw(self, random: torch.Generator) -> Tensors:
        return (sensors(random, 48, (2.0, 2.0, 3.0, 90.0, 60.0, 30.0), (0.0, 0.0, 9.8, 0.0, 0.0, 0.0)),)


@idiom
class WaveNetBlock(_Motion):
    """Gated dilated convolutions with residuals and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Conv1d(6, 12, 1)
        self.f = nn.ModuleList(nn.Conv1d(12, 12, 2, dilation=2**i) for i in range(3))
        self.g = nn.ModuleList(nn.Conv1d(12, 12, 2, dilation=2**i) for i in range(3))
        self.r, self.s = nn.Conv1d(12, 12, 1), nn.Conv1d(12, 8, 1)
        self.out = nn.Conv1d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x / 30)
        skips = torch.zeros(1, 8, x.shape[-1])
        for i, (f, g) in enumerate(zip(self.f, self.g, strict=True)):
            padded = F.pad(x, (2**i, 0))
            y = torch.tanh(f(padded)) * torch.sigmoid(g(padded))
            skips = skips + self.s(y)
            x = x + self.r(y)
        return self.out(F.relu(skips))


@idiom
class ZScoreWindow(_Motion):
    """Each channel of the window less its mean, over its deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(6, 16, 5, 2), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
        return self.out(F.relu(self.conv(x)).amax(-1))


@idiom
class MinMaxWindow(_Motion):
    """Each channel of the window between 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(6, 16, 5, 2), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        return self.out(F.relu(self.conv((x - low) / (high - low).clamp(min=1e-3))).mean(-1))


@idiom
class RobustScale(_Motion):
    """Less the median of three, over the mean of the distances from it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(6, 16, 5, 2), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = x[..., :-2], x[..., 1:-1], x[..., 2:]
        median = torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))
        center = median.mean(-1, keepdim=True)
        spread = (median - center).abs().mean(-1, keepdim=True)
        return self.out(F.relu(self.conv((median - center) / (1.4826 * spread + 1e-3))).mean(-1))


@idiom
class ComplementaryFilter(_Motion):
    """Angles from gravity and from turning, mixed 0.98 to 0.02, step by step."""

    def forward(self, x: Tensor) -> Tensor:
        roll = torch.atan2(x[:, 1], x[:, 2]) * 57.29578
        pitch = torch.atan2(-x[:, 0], torch.sqrt(x[:, 1] ** 2 + x[:, 2] ** 2)) * 57.29578
        angle, seen = torch.zeros(1, 2), torch.stack([roll, pitch], 1)
        angles = []
        for t in range(12):
            angle = 0.95 * (angle + x[:, 3:5, t] * 0.01) + 0.05 * seen[..., t]
            angles.append(angle)
        return torch.stack(angles, -1)


@idiom
class KalmanLike(Idiom):
    """Prediction and correction of a place and a speed, with fixed gains."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor([[1.0, 0.1], [0.0, 1.0]]))
        self.register_buffer("gain", torch.tensor([[0.4], [0.6]]))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(1, 2, 1)
        states = []
        for t in range(16):
            state = self.step @ state
            state = state + self.gain * (x[:, :, t : t + 1] - state[:, :1])
            states.append(state)
        return torch.cat(states, -1)

    def draw(self, random: torch.Generator) -> Tensors:
        return (sensors(random, 16, (12.0,)),)


@idiom
class Biquads(Idiom):
    """Two resonators in a row over 24 samples, written as loops."""

    def forward(self, x: Tensor) -> Tensor:
        y1 = y2 = torch.zeros(1, 1)
        out = []
        for t in range(2, 24):
            y = 0.2 * x[..., t] - 0.2 * x[..., t - 2] + 1.2 * y1 - 0.6 * y2
            y2, y1 = y1, y
            out.append(y)
        return torch.stack(out, -1)

    def draw(self, random: torch.Generator) -> Tensors:
        return (sensors(random, 24, (2048.0,)),)


@idiom
class EnvelopeDetector(Idiom):
    """Rectified, smoothed, its logarithm in decibels, above a threshold or not."""

    def __init__(self) -> None:
        super().__init__()
        window = torch.hann_window(16)
        self.register_buffer("kernel", (window / window.sum()).view(1, 1, -1))

    def forward(self, x: Tensor) -> Tensors:
        x = x / 2048.0
        envelope = F.conv1d(x.abs(), self.kernel, stride=4)
        level = 20 * torch.log10(envelope.clamp(min=1e-3))
        return level, (level > -20.0).float().mean(-1)

    def draw(self, random: torch.Generator) -> Tensors:
        loud = 10 ** between(random, -1.0, 0.0, 1)
        return ((sensors(random, 128, (1500.0,)) * loud).round(),)


@idiom
class Pcen(Idiom):
    """Per-channel energy normalization of a mel spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(16, 12, 3), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        m, smoothed = x[..., 0], []
        for t in range(x.shape[-1]):
            m = 0.96 * m + 0.04 * x[..., t]
            smoothed.append(m)
        smooth = (torch.stack(smoothed, -1) + 1e-3) ** -0.8
        return self.out(F.relu(self.conv((x * smooth + 2.0) ** 0.5 - 2.0**0.5)).mean(-1))

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 1, 16, 20).square() * 10 ** between(random, -1.0, 0.5, 1, 16, 1),)


@idiom
class MelCepstrum(Idiom):
    """Magnitudes of a spectrum by products, mel bands, logarithm, cosine transform."""

    def __init__(self) -> None:
        super().__init__()
        k = torch.arange(33.0)[:, None] * torch.arange(64.0)[None] * 2 * math.pi / 64
        self.register_buffer("real", (k.cos() * torch.hann_window(64)).T.contiguous())
        self.register_buffer("imaginary", (-k.sin() * torch.hann_window(64)).T.contiguous())
        self.register_buffer("mel", torch.rand(33, 12) * (torch.rand(33, 12) > 0.7))
        c = torch.arange(8.0)[None] * (torch.arange(12.0)[:, None] + 0.5) * math.pi / 12
        self.register_buffer("dct", c.cos() * math.sqrt(2 / 12))

    def forward(self, x: Tensor) -> Tensor:
        frames = x.unfold(-1, 64, 32)
        power = (frames @ self.real) ** 2 + (frames @ self.imaginary) ** 2
        return torch.log(torch.sqrt(power + 1e-4) @ self.mel + 1e-2) @ self.dct

    def draw(self, random: torch.Generator) -> Tensors:
        return ((sensors(random, 256, (0.5,)) + sensors(random, 256, (0.3,)) * noise(random, 1, 1, 256))[:, 0],)


@idiom
class AirQuality(Idiom):
    """Pascals, degrees, percents and parts per million, scaled within the model by their known means."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([101325.0, 21.0, 45.0, 600.0]))
        self.register_buffer("std", torch.tensor([900.0, 6.0, 15.0, 250.0]))
        self.net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.std)

    def draw(self, random: torch.Generator) -> Tensors:
        return (
            torch.tensor([[101325.0, 21.0, 45.0, 600.0]])
            + noise(random, 1, 4) * torch.tensor([[900.0, 6.0, 15.0, 250.0]]),
        )


@idiom
class AdcCounts(Idiom):
    """Counts of 12 bits around their middle, centred and scaled, pooled by their energy."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Conv1d(2, 12, 9, 4), nn.Conv1d(12, 16, 5, 2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensors:
        x = (x - 2048.0) / 2048.0
        energy = x.square().mean(-1)
        return self.out(F.relu(self.b(F.relu(self.a(x)))).mean(-1)), energy

    def draw(self, random: torch.Generator) -> Tensors:
        return (sensors(random, 96, (700.0, 500.0), (2048.0, 2048.0)).round().clamp(0, 4095),)


@idiom
class TcnResidual(_Motion):
    """Causal residual blocks by padding and chomping, normed, with a downsampled shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.norm.running_mean.copy_(torch.tensor([0.0, 0, 9.8, 0, 0, 0]))
        self.norm.running_var.copy_(torch.tensor([4.0, 4, 9, 8100, 3600, 900]))
        self.a, self.b = nn.Conv1d(6, 16, 3, padding=2, dilation=1), nn.Conv1d(16, 16, 3, padding=4, dilation=2)
        self.short, self.out = nn.Conv1d(6, 16, 1), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        y = F.relu(self.a(x)[..., :-2])
        y = F.relu(self.b(y)[..., :-4])
        return F.log_softmax(self.out(F.relu(y + self.short(x))[..., -1]), -1)


@idiom
class ShareOfPositives(Idiom):
    """MiniRocket: the shares of a window where fixed kernels exceed their thresholds."""

    def __init__(self) -> None:
        super().__init__()
        kernels = -torch.ones(20, 1, 9)
        for i in range(20):
            kernels[i, 0, torch.randperm(9)[:3]] = 2.0
        self.register_buffer("kernels", kernels)
        self.register_buffer("biases", torch.randn(20, 1) * 0.6)
        self.out = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = F.conv1d(x, self.kernels, padding=4)
        b = F.conv1d(x, self.kernels, padding=8, dilation=2)
        shares = [(y > self.biases).float().mean(-1) for y in (a, b)]
        return self.out(torch.cat(shares, -1))

    def draw(self, random: torch.Generator) -> Tensors:
        return (sensors(random, 96, (1.0,)),)


@idiom
class HistogramOfLevels(Idiom):
    """How often a signal lies in each of eight ranges, softly and by steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-1.0, 1.0, 9))
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        above = (x[..., None] >= self.edges[:-1]) & (x[..., None] < self.edges[1:])
        centers = (self.edges[1:] + self.edges[:-1]) / 2
        near = torch.exp(-0.5 * ((x[..., None] - centers) / 0.125) ** 2)
        return self.out(torch.cat([above.float().mean(1), near.mean(1)], -1))

    def draw(self, random: torch.Generator) -> Tensors:
        return (sensors(random, 64, (0.8,))[:, 0],)


@idiom
class ZeroCrossings(Idiom):
    """Classic features: zero crossings, mean square root, crest, slope sign changes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        rms = x.square().mean(-1).sqrt()
        crest = x.abs().amax(-1) / (rms + 1e-3)
        crossings = (x[..., 1:] * x[..., :-1] < 0).float().mean(-1)
        slope = x[..., 1:] - x[..., :-1]
        length = slope.abs().sum(-1)
        return self.out(torch.cat([rms, crest, crossings, length * 0.1], -1))

    def draw(self, random: torch.Generator) -> Tensors:
        return (sensors(random, 64, (1.0, 0.4, 2.0), (0.05, 0.0, -0.1)),)


@idiom
class HeartBeats(Idiom):
    """An ECG in millivolts: a drift is removed by a moving mean, peaks are weighed by attention pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(1, 8, 7, 2, 3), nn.Conv1d(8, 16, 5, 2, 2)
        self.score, self.out = nn.Conv1d(16, 1, 1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x - F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, 1)
        h = F.elu(self.b(F.elu(self.a(x))))
        weights = torch.softmax(self.score(torch.tanh(h)), -1)
        return self.out((h * weights).sum(-1))

    def draw(self, random: torch.Generator) -> Tensors:
        x = 0.2 * sensors(random, 120, (1.0,), (0.4,))
        x[..., 20 + int(torch.randint(0, 8, (1,), generator=random)) :: 37] += 1.2
        return (x,)


@idiom
class BatteryState(Idiom):
    """Voltage, current and charge counted up (cumulative sum), with limits and where-chains."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, volts: Tensor, amperes: Tensor) -> Tensors:
        charge = torch.cumsum(amperes, -1) * (10.0 / 3600.0)
        level = torch.where(volts > 4.1, 1.0, torch.where(volts < 3.3, 0.0, (volts - 3.3) / 0.8))
        correction = self.net(torch.cat([volts - 3.7, amperes / 5], -1))
        return charge, (level.mean(-1, keepdim=True) + 0.1 * correction).clamp(0.0, 1.0)

    def draw(self, random: torch.Generator) -> Tensors:
        return between(random, 3.2, 4.2, 1, 16), 2 * noise(random, 1, 16) + 1
