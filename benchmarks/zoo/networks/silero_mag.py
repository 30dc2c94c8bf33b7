"""The network of `silero` from the magnitudes of its spectra on; the spectrum is computed in float in front of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from benchmarks.zoo.network import Loaded
from benchmarks.zoo.networks import silero


def load(path: Path) -> Loaded:
    whole = silero.load(path)
    assert whole.model is not None
    basis = whole.model.basis
    calibration, test = (
        [[(silero.magnitudes(x[0], basis),) for x in recording] for recording in rows]
        for rows in (whole.calibration, whole.test)
    )
    model = silero.Tail(torch.jit.load(path).state_dict()).eval()
    return Loaded(model, calibration, test, whole.task)


NETWORK = replace(silero.NETWORK, does=f"{silero.NETWORK.does}, behind its spectrum", load=load)
