"""Quality of the speech in nine seconds of sound (DNSMOS P.835): convolutions over a picture of 901 x 161 log powers.

Rows are recorded prompts and a conversation in white noise and babble; other pieces calibrate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.zoo import data, tasks
from benchmarks.zoo.network import Loaded, Network, t32


def load(path: Path) -> Loaded:
    logs = (np.log10(np.maximum(data.powers(x[:144000], 320, 160), 1e-12)) for x in data.noisy_speech())
    rows = [(t32(a[:901])[None],) for a in logs]
    return Loaded(None, rows[::2], rows[1::2][:20], tasks.scores)


NETWORK = Network(
    does="How good does the speech in this sound? DNSMOS P.835, 0.2 M parameters",
    package="speechmos",
    file="speechmos/dnsmos_models/sig.onnx",
    data=(*data.PROMPTS, data.CONVERSATION),
    metric="agreement",
    measures="1 less the mean error by the spread of the scores",
    load=load,
    licence="CC-BY-4.0",
)
