"""The network of `fer` with its max pools written without a constant. The same function: the two should be equally
good.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from benchmarks.zoo.network import Loaded
from benchmarks.zoo.networks import fer


def load(path: Path) -> Loaded:
    padded, ceil = fer.load(path), fer.load(path, ceil=True)
    assert padded.model is not None and ceil.model is not None
    with torch.no_grad():
        assert torch.allclose(padded.model(*ceil.test[0]), ceil.model(*ceil.test[0]), atol=1e-6)
    return ceil


NETWORK = replace(fer.NETWORK, does=f"{fer.NETWORK.does}, max pools in ceil mode", load=load)
