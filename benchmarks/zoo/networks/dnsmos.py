"""Quality of nine seconds of speech, one figure from 1 to 5 (the P.808 network of DNSMOS): convolutions over 120 mel
values in dB.

Rows are recorded prompts and a conversation in white noise and babble; other pieces calibrate. The test pieces lie
0.06 MOS apart, so that a rank correlation would be a harsh metric; agreement is 1 less the mean error by the spread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, output, t32


def task(r: Outputs, g: Outputs) -> Figures:
    a, b = output(r).flatten().numpy(), output(g).flatten().numpy()
    ranks = [v.argsort().argsort() for v in (a, b)]
    error = abs(a - b)
    return {
        "clips": len(a),
        "agreement": round(1 - float(error.mean() / (a.max() - a.min())), 4),
        "rank_correlation": round(float(np.corrcoef(*ranks)[0, 1]), 4),
        "mean_abs_mos": round(float(error.mean()), 4),
        "worst_mos": round(float(error.max()), 3),
    }


def load(path: Path) -> Loaded:
    filters, rows = data.mel_filters(16000, 321, 120).T, []
    for x in data.noisy_speech():
        s = data.powers(x[:-160], 321, 160) @ filters
        db = 10 * np.log10(np.maximum(s, 1e-10))
        db = np.maximum(db - 10 * np.log10(max(1e-10, s.max())), -80)
        rows.append((t32(((db + 40) / 40)[:900])[None],))
    return Loaded(None, rows[::2], rows[1::2][:20], task)


NETWORK = Network(
    does="How good does this speech sound? DNSMOS P.808, 0.05 M parameters",
    package="speechmos",
    file="speechmos/dnsmos_models/model_v8.onnx",
    data=(*data.PROMPTS, data.CONVERSATION),
    metric="agreement",
    measures="1 less the mean error by the spread of the scores",
    load=load,
    licence="CC-BY-4.0",
)
