"""The weights behind a program that ExecuTorch shows in shapes only."""

from __future__ import annotations

import weakref

import torch
from torch.export import ExportedProgram

from micronpu.upstream.torch import FakeTensor


class SeenWeights:
    """Parameters and buffers of the programs that a partitioner was asked about before it is shown their shapes.

    ExecuTorch asks which operators to decompose with the program itself, and where the partitions are with a copy of it
    whose state dictionary is fake.  Whoever tries a partition, and looks at what the NPU computes, needs the values.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[weakref.ref[torch.Tensor]]] = {}

    def remember(self, program: ExportedProgram) -> None:
        """Keeps hold of a program's state, for as long as somebody else does."""
        for name, value in program.state_dict.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                known = [ref for ref in self._seen.get(name, []) if (held := ref()) is not None and held is not value]
                self._seen[name] = [*known, weakref.ref(value)]

    def behind(self, program: ExportedProgram) -> dict[str, torch.Tensor]:
        """The values of a program's state that are known, by name; methods may have the same names for other values."""
        return {
            name: value
            for name, fake in program.state_dict.items()
            if isinstance(fake, FakeTensor)
            for value in (ref() for ref in self._seen.get(name, []))
            if value is not None and _shows(fake, value)
        }


def _shows(fake: FakeTensor, value: torch.Tensor) -> bool:
    """Whether a fake tensor was made of this very value: its mode makes one of each."""
    return fake.fake_mode.from_tensor(value, static_shapes=True) is fake
