"""Does someone speak? A spectrum by convolution, its magnitude, four convolutions, an LSTM cell with its state in
buffers.

One call for 32 ms of sound at 16 kHz: the last 64 samples of the call before and 512 new ones. Rows are a
conversation in eight pieces, and recorded prompts in noise with pauses; every other recording calibrates.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, Row, mean, output, share, t32
from torch import Tensor, nn


class Tail(nn.Module):
    """From the magnitudes of four spectra (1, 129, 4) on."""

    def __init__(self, s: dict[str, Tensor]) -> None:
        super().__init__()
        first = s["_model.encoder.0.reparam_conv.weight"].shape[1]
        channels, self.convs = [first, 128, 64, 64, 128], nn.ModuleList()
        for k, stride in enumerate((1, 2, 2, 1)):
            conv = nn.Conv1d(channels[k], channels[k + 1], 3, stride, 1)
            conv.load_state_dict({n: s[f"_model.encoder.{k}.reparam_conv.{n}"] for n in ("weight", "bias")})
            self.convs.append(conv)
        self.rnn = nn.LSTMCell(128, 128)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self.rnn.load_state_dict({n: s[f"_model.decoder.rnn.{n}"] for n in names})
        self.last = nn.Conv1d(128, 1, 1)
        self.last.load_state_dict({n: s[f"_model.decoder.decoder.2.{n}"] for n in ("weight", "bias")})
        self.register_buffer("h", torch.zeros(1, 128))
        self.register_buffer("c", torch.zeros(1, 128))

    def forward(self, y: Tensor) -> Tensor:
        for conv in self.convs:
            y = torch.relu(conv(y))
        self.h, self.c = self.rnn(y[:, :, 0], (self.h, self.c))
        return torch.sigmoid(self.last(torch.relu(self.h)[:, :, None]))[:, :, 0]


def magnitudes(x: Tensor, basis: Tensor) -> Tensor:
    y = F.conv1d(F.pad(x[:, None], (0, 64), mode="reflect"), basis, stride=128)
    return torch.sqrt(y[:, :129] ** 2 + y[:, 129:] ** 2)


class Silero(Tail):
    """From 576 samples on."""

    def __init__(self, s: dict[str, Tensor]) -> None:
        super().__init__(s)
        self.register_buffer("basis", s["_model.stft.forward_basis_buffer"])

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(magnitudes(x, self.basis))


def calls(sound: np.ndarray) -> list[Row]:
    sound = np.concatenate([np.zeros(64, np.float32), sound])
    return [(t32(sound[k : k + 576])[None],) for k in range(0, len(sound) - 575, 512)]


def recordings() -> list[list[Row]]:
    rng, talk = np.random.default_rng(1), data.conversation()
    out = [calls(talk[k * 60000 : (k + 1) * 60000]) for k in range(8)]
    for clips in data.prompts().values():
        for c in clips[:6]:
            s = rng.normal(size=16000 * 3).astype(np.float32) * 10 ** rng.uniform(-3.5, -2)
            s[12000 : 12000 + 32000] += c[:32000]
            out.append(calls(s))
    return out


def task(r: Outputs, g: Outputs) -> Figures:
    a, b = output(r).flatten(), output(g).flatten()
    return {
        "calls": len(a),
        "speech": share(a > 0.5),
        "decisions_equal": share((a > 0.5) == (b > 0.5)),
        "mean_abs_of_probabilities": mean((a - b).abs()),
    }


def load(path: Path) -> Loaded:
    script, found = torch.jit.load(path), recordings()
    model = Silero(script.state_dict()).eval()
    calibration, test = [s[:64] for s in found[::2]][:12], found[1::2][:12]
    with torch.no_grad():
        state = torch.zeros(2, 1, 128)
        for x in test[0][:40]:
            y, state = script._model(x[0], state)
            assert (y - model(x[0])).abs().max() < 1e-5
        model.h.zero_()
        model.c.zero_()
    return Loaded(model, calibration, test, task)


NETWORK = Network(
    does="Does someone speak? Silero VAD, 0.3 M parameters",
    package="silero-vad",
    file="silero_vad/data/silero_vad.jit",
    data=(*data.PROMPTS, data.CONVERSATION),
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
    streaming=True,
)
