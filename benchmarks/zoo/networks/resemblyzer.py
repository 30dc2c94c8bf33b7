"""Whose voice is it? Three LSTMs of 256 over 160 frames of 40 mel powers, a dense layer, a division by the length:
256 numbers.

Rows are recorded telephone prompts of five speakers; other prompts of the same speakers calibrate. The equal error
rate is that of "the same speaker?" over all pairs of test prompts; chance is 0.5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, mean, output, t32
from torch import Tensor, nn


class SpeakerEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        _, (h, _) = self.lstm(mels)
        e = torch.relu(self.linear(h[-1]))
        return e / torch.norm(e, dim=1, keepdim=True)


def equal_error_rate(e: Tensor, who: np.ndarray) -> float:
    """Rate at which as many strangers are accepted as speakers are rejected."""
    e = e / e.norm(dim=1, keepdim=True).clamp_min(1e-9)
    i, j = np.triu_indices(len(e), 1)
    same, score = who[i] == who[j], (e @ e.T).numpy()[i, j]
    best, rate = 1.0, 0.5
    for t in np.quantile(score, np.linspace(0, 1, 400)):
        accepted, rejected = (score[~same] >= t).mean(), (score[same] < t).mean()
        if abs(accepted - rejected) < best:
            best, rate = abs(accepted - rejected), (accepted + rejected) / 2
    return float(rate)


def load(path: Path) -> Loaded:
    model = SpeakerEncoder()
    model.load_state_dict(torch.load(path, map_location="cpu")["model_state"], strict=False)
    filters, calibration, test, speakers = data.mel_filters(16000, 400, 40).T, [], [], []
    for n, clips in enumerate(data.prompts().values()):
        for k, c in enumerate(clips[:24]):
            c = c * max(1.0, 10 ** (-30 / 20) / max(1e-4, c.std()))
            (calibration if k % 2 else test).append((t32((data.powers(c, 400, 160) @ filters)[20:180])[None],))
            speakers += [] if k % 2 else [n]
    who = np.array(speakers)

    def task(r: Outputs, g: Outputs) -> Figures:
        a, b = output(r), output(g)
        rate, cosine = equal_error_rate(b, who), torch.cosine_similarity(a, b)
        return {"clips": len(a), "one_less_eer": round(1 - rate, 4), "cosine_to_float": mean(cosine)}

    return Loaded(model.eval(), calibration, test, task)


NETWORK = Network(
    does="Whose voice is it? GE2E speaker encoder, 1.4 M parameters",
    package="Resemblyzer",
    file="resemblyzer/pretrained.pt",
    data=data.PROMPTS,
    metric="one_less_eer",
    measures="1 less the equal error rate",
    load=load,
    labels=True,
)
