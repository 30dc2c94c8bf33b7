"""Detectors as they are exported for a microcontroller: the network gives its raw heads, the application decodes them.

Own implementations of common blocks, with random weights: what is measured is what runs where.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 16
"""Steps of the distribution of a distance, as in YOLOv8."""


class Block(nn.Sequential):
    """Convolution, batch norm, SiLU or another activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        act: type[nn.Module] = nn.SiLU,
    ) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), act())


class Residual(nn.Module):
    """Two 3x3 convolutions, added to what they read where the block says so."""

    def __init__(self, width: int, add: bool) -> None:
        super().__init__()
        self.first, self.second, self.add = Block(width, width, 3), Block(width, width, 3), add

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return x + y if self.add else y


class C2f(nn.Module):
    """Half of the channels go through residual blocks, and all that they made on the way is joined."""

    def __init__(self, inputs: int, outputs: int, count: int = 1, add: bool = False) -> None:
        super().__init__()
        half = outputs // 2
        self.before, self.behind = Block(inputs, outputs), Block((2 + count) * half, outputs)
        self.blocks = nn.ModuleList([Residual(half, add) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.before(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        result: Tensor = self.behind(torch.cat(parts, 1))
        return result


class SPPF(nn.Module):
    """Max pools over growing windows, one behind the other, joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.behind = Block(width, width // 2), Block(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.before(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        result: Tensor = self.behind(torch.cat(parts, 1))
        return result


class DistributionHead(nn.Module):
    """Classes and distances of one scale; a distance is the mean of a distribution over `STEPS` steps (DFL)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.boxes = nn.Sequential(Block(width, 32, 3), nn.Conv2d(32, 4 * STEPS, 1))
        self.classes = nn.Sequential(Block(width, 32, 3), nn.Conv2d(32, classes, 1))
        self.steps = nn.Conv2d(STEPS, 1, 1, bias=False)
        self.steps.weight.data[:] = torch.arange(STEPS, dtype=torch.float32).reshape(1, STEPS, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Distances [N, 4, H * W] in cells, left, top, right and bottom, and scores [N, classes, H * W] from 0 to 1."""
        count, _, height, width = x.shape
        distances = self.boxes(x).view(count, 4, STEPS, height * width).transpose(2, 1).softmax(1)
        return self.steps(distances).view(count, 4, height * width), self.classes(x).flatten(2).sigmoid()


class Yolo(nn.Module):
    """A detector of three scales, as YOLOv8-n with a quarter of its width; image sides are multiples of 32."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(Block(3, 8, 3, 2), Block(8, 16, 3, 2), C2f(16, 16, 1, True), Block(16, 32, 3, 2))
        self.middle = C2f(32, 32, 2, True)
        self.low = nn.Sequential(Block(32, 48, 3, 2), C2f(48, 48, 2, True))
        self.lowest = nn.Sequential(Block(48, 64, 3, 2), C2f(64, 64, 1, True), SPPF(64))
        self.up1, self.up2 = C2f(64 + 48, 48), C2f(48 + 32, 32)
        self.down1, self.down2 = Block(32, 32, 3, 2), Block(48, 48, 3, 2)
        self.join1, self.join2 = C2f(32 + 48, 48), C2f(48 + 64, 64)
        self.heads = nn.ModuleList([DistributionHead(width, classes) for width in (32, 48, 64)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Distances [N, 4, cells] and scores [N, classes, cells] of all scales, the finest first."""
        high = self.middle(self.stem(x))
        low = self.low(high)
        lowest = self.lowest(low)
        up1 = self.up1(torch.cat([F.interpolate(lowest, scale_factor=2.0), low], 1))
        up2 = self.up2(torch.cat([F.interpolate(up1, scale_factor=2.0), high], 1))
        down1 = self.join1(torch.cat([self.down1(up2), up1], 1))
        down2 = self.join2(torch.cat([self.down2(down1), lowest], 1))
        found = [head(scale) for head, scale in zip(self.heads, (up2, down1, down2), strict=True)]
        return torch.cat([boxes for boxes, _ in found], 2), torch.cat([scores for _, scores in found], 2)


def _separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(Block(inputs, inputs, 3, stride, inputs, nn.ReLU6), Block(inputs, outputs, 1, act=nn.ReLU6))


class SsdLite(nn.Module):
    """Anchors on three scales, separable convolutions throughout; rows [N, anchors, 4] and [N, anchors, classes]."""

    def __init__(self, classes: int = 4, anchors: int = 3) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(Block(3, 16, 3, 2, act=nn.ReLU6), _separable(16, 32, 2), _separable(32, 48, 2))
        self.scales = nn.ModuleList([_separable(48, 64, 2), _separable(64, 96, 2), _separable(96, 96, 2)])
        widths = (64, 96, 96)
        self.boxes, self.scores = (
            nn.ModuleList([nn.Sequential(Block(w, w, 3, 1, w, nn.ReLU6), nn.Conv2d(w, anchors * n, 1)) for w in widths])
            for n in (4, classes)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        boxes, scores = [], []
        for scale, box, score in zip(self.scales, self.boxes, self.scores, strict=True):
            x = scale(x)
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            scores.append(score(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, self.classes))
        return torch.cat(boxes, 1), torch.cat(scores, 1).softmax(-1)


class Fomo(nn.Module):
    """Centres of objects on a grid of an eighth of the image: probabilities [N, 1 + classes, H / 8, W / 8]."""

    def __init__(self, classes: int = 3, channels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Block(channels, 16, 3, 2, act=nn.ReLU6), _separable(16, 32, 2), _separable(32, 48, 2), _separable(48, 48)
        )
        self.head = nn.Sequential(Block(48, 32, 1, act=nn.ReLU), nn.Conv2d(32, 1 + classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x)).softmax(1)
        return result
