"""Small networks whose reports say what to try, each for another reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Told:
    """A network that is reported on.

    Attributes:
        make: returns the network and its calibration data.
        target, quantization: of the compilation.
        rules: warnings that its report has.
    """

    make: Callable[[], tuple[nn.Module, list[torch.Tensor]]]
    target: str
    quantization: str
    rules: tuple[str, ...] = ()


class Of(nn.Module):
    """A module of a function of its layers and its input."""

    def __init__(self, function: Callable[..., torch.Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def rows(*shape: int, scale: float = 1.0) -> list[torch.Tensor]:
    return [scale * torch.randn(1, *shape, generator=torch.Generator().manual_seed(i)) for i in range(24)]


def image() -> tuple[nn.Module, list[torch.Tensor]]:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2304, 4)
    )
    return net, rows(3, 16, 16)


def logarithm() -> tuple[nn.Module, list[torch.Tensor]]:
    def log(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.o(torch.log(torch.square(self.l(x)) + 1e-6))  # type: ignore[operator, no-any-return]

    return Of(log, l=nn.Linear(16, 16), o=nn.Linear(16, 4)), rows(16)


def scaled() -> tuple[nn.Module, list[torch.Tensor]]:
    def parts(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = self.l(x)  # type: ignore[operator]
        return torch.cat([y[:, :2] * 1000, y[:, 2:]], 1)

    return Of(parts, l=nn.Linear(16, 8)), rows(16)


def padded() -> tuple[nn.Module, list[torch.Tensor]]:
    def far(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = torch.where(x[..., :1] > 9.0, -1e4, self.l(x))  # type: ignore[operator]
        return self.o(torch.cat([y, F.pad(y, (2, 2), value=-300.0)], -1))  # type: ignore[operator, no-any-return]

    return Of(far, l=nn.Linear(16, 8), o=nn.Linear(20, 4)), rows(16)


def sorted_scores() -> tuple[nn.Module, list[torch.Tensor]]:
    def best(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(self.l(x), 3).values  # type: ignore[operator]

    return Of(best, l=nn.Linear(16, 8)), rows(16)


def features() -> tuple[nn.Module, list[torch.Tensor]]:
    net = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    return net, [x * torch.tensor([100.0, 0.05]).view(1, 2, 1) + 3 for x in rows(2, 20)]


def uneven() -> tuple[nn.Module, list[torch.Tensor]]:
    net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4))
    with torch.no_grad():
        net[0].weight[0] *= 1000  # type: ignore[operator, index]
        net[1].weight[:, 0] /= 1000  # type: ignore[operator, index]
    return net, rows(16)


def single() -> tuple[nn.Module, list[torch.Tensor]]:
    return nn.Sequential(nn.Linear(16, 4)), rows(16)[:1] * 4


TOLD = {
    "image": Told(image, "corstone300", "auto"),
    "logarithm": Told(logarithm, "corstone300", "int8"),
    "scaled": Told(scaled, "imxrt700", "int8"),
    "padded": Told(padded, "corstone300", "int8"),
    "sorted": Told(sorted_scores, "imxrt700", "int8"),
    "features": Told(features, "cortex-m55", "int8"),
    "uneven": Told(uneven, "rp2350", "auto"),
    "single": Told(single, "ethos-u55-128", "int8"),
}
