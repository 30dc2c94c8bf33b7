"""Weights of a program of which ExecuTorch shows only shapes."""

from __future__ import annotations

import weakref

import torch
from torch.export import ExportedProgram

from micronpu.upstream.torch import FakeTensor


class SeenWeights:
    """Parameters and buffers that a partitioner saw before ExecuTorch hides them.

    ExecuTorch passes the program itself to query operators to preserve, and a copy with a fake state dictionary to
    partition.  Checking a partition needs the values.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[weakref.ref[torch.Tensor]]] = {}

    def remember(self, program: ExportedProgram) -> None:
        """Remember a program's state by weak references."""
        for name, value in program.state_dict.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                known = [ref for ref in self._seen.get(name, []) if (held := ref()) is not None and held is not value]
                self._seen[name] = [*known, weakref.ref(value)]

    def behind(self, program: ExportedProgram) -> dict[str, torch.Tensor]:
        """Return the known values of a program's state, by name; methods may use one name for different values."""
        return {
            name: value
            for name, fake in program.state_dict.items()
            if isinstance(fake, FakeTensor)
            for value in (ref() for ref in self._seen.get(name, []))
            if value is not None and _shows(fake, value)
        }


def _shows(fake: FakeTensor, value: torch.Tensor) -> bool:
    """Return True if a fake tensor was made of this very value: its mode makes one of each."""
    return fake.fake_mode.from_tensor(value, static_shapes=True) is fake
