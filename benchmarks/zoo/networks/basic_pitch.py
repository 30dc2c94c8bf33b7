"""Notes in two seconds of music: a constant-Q transform inside the graph (powers over 100 dB), then a convolutional
network.

Three outputs: probabilities of notes, onsets and contours in 172 frames. Rows are the guitar and the rest of the band
of a game's songs; other pieces calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, output, t32


def task(r: Outputs, g: Outputs) -> Figures:
    found: Figures = {}
    for k in range(len(r[0])):
        a, b = output(r, k), output(g, k)
        t = 0.5 if a.shape[-1] == 88 and a.mean() < 0.02 else 0.3
        both = ((a > t) & (b > t)).sum().item()
        found[f"f1_{k}_of_{a.shape[-1]}"] = round(2 * both / max(1, ((a > t).sum() + (b > t).sum()).item()), 4)
        found[f"cells_{k}"] = int((a > t).sum())
    return {"worst_f1": min(v for k, v in found.items() if k.startswith("f1_")), **found}


def load(path: Path) -> Loaded:
    rows = [(t32(x)[None, :, None],) for x in data.guitar()]
    return Loaded(None, rows[::2][:20], rows[1::2][:14], task)


NETWORK = Network(
    does="Which notes sound? 17 thousand parameters behind a constant-Q transform",
    package="basic-pitch",
    file="basic_pitch/saved_models/icassp_2022/nmp.tflite",
    data=(data.GUITAR,),
    metric="worst_f1",
    measures="F1 of the cells above a threshold, of the worst output",
    load=load,
)
