"""Does someone speak? Silero VAD for sound at 8 kHz: the network of `silero` with half as many frequencies.

One call for 32 ms: the last 32 samples of the call before and 256 new ones. Rows are those of `silero`, every other
sample after a low pass.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.zoo.network import Loaded, Row
from benchmarks.zoo.networks import silero
from torch import Tensor


class Silero8k(silero.Tail):
    def __init__(self, s: dict[str, Tensor]) -> None:
        super().__init__({k.replace("_model_8k.", "_model."): v for k, v in s.items() if "_model_8k." in k})
        self.register_buffer("basis", s["_model_8k.stft.forward_basis_buffer"])

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv1d(F.pad(x[:, None], (0, 32), mode="reflect"), self.basis, stride=64)
        return super().forward(torch.sqrt(y[:, :65] ** 2 + y[:, 65:] ** 2))


def slower(recording: list[Row]) -> list[Row]:
    from scipy.signal import resample_poly

    sound = torch.cat([recording[0][0][0, :64], *(x[0, 64:] for (x,) in recording)])
    half = torch.from_numpy(resample_poly(sound.numpy(), 1, 2))
    return [(half[None, k : k + 288].contiguous(),) for k in range(0, len(half) - 287, 256)]


def load(path: Path) -> Loaded:
    script = torch.jit.load(path)
    model, found = Silero8k(script.state_dict()).eval(), [slower(r) for r in silero.recordings()]
    calibration, test = [s[:64] for s in found[::2]][:12], found[1::2][:12]
    with torch.no_grad():
        state = torch.zeros(2, 1, 128)
        for x in test[0][:40]:
            y, state = script._model_8k(x[0], state)
            assert (y - model(x[0])).abs().max() < 1e-5
        model.h.zero_()
        model.c.zero_()
    return Loaded(model, calibration, test, silero.task)


NETWORK = replace(silero.NETWORK, does="Does someone speak? Silero VAD for 8 kHz, 0.3 M parameters", load=load)
