"""ResNet-50, MobileNetV3-Large and EfficientNet-lite0 without batch norms: latency depends on shapes alone."""

from __future__ import annotations

from torch import Tensor, nn

_V3 = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
"""Kernel, expanded channels, channels, squeeze and excite, hard swish, stride: MobileNetV3's paper, table 1."""
_LITE0 = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
"""Kernel, expansion, channels, repetitions, stride of the first: EfficientNet-B0's, as lite0 keeps them."""


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)


class _Bottleneck(nn.Module):
    """Of ResNet-50: reduce, 3x3, expand, and what came in added."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(_conv(inputs, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(), _conv(width, 4 * width, 1))
        )
        same = stride == 1 and inputs == 4 * width
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x) + self.shortcut(x)
        return y.relu()


def resnet50(classes: int = 1000) -> nn.Module:
    """ResNet-50 whose 3x3 convolutions have the stride."""
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(count):
            layers.append(_Bottleneck(channels, width, 1 if block else stride))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class _SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = (channels // 4 + 4) // 8 * 8
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), _conv(channels, inner, 1), nn.ReLU(), _conv(inner, channels, 1), nn.Hardsigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.scale(x)
        return x * y


class _Expanded(nn.Module):
    """Expansion, depthwise convolution, projection, and the input added where it has the same shape."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int,
        activation: type[nn.Module],
        excite: bool,
    ) -> None:
        super().__init__()
        first = [_conv(inputs, hidden, 1), activation()] if hidden != inputs else []
        middle = [_conv(hidden, hidden, kernel, stride, hidden), activation()]
        squeeze = [_SqueezeExcite(hidden)] if excite else []
        self.layers = nn.Sequential(*first, *middle, *squeeze, _conv(hidden, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


def mobilenet_v3_large(classes: int = 1000) -> nn.Module:
    """MobileNetV3-Large."""
    layers: list[nn.Module] = [_conv(3, 16, 3, 2), nn.Hardswish()]
    channels = 16
    for kernel, hidden, out, excite, swish, stride in _V3:
        activation = nn.Hardswish if swish else nn.ReLU
        layers.append(_Expanded(channels, hidden, out, kernel, stride, activation, excite))
        channels = out
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, classes))
    return nn.Sequential(*layers, _conv(channels, 960, 1), nn.Hardswish(), *head)


def efficientnet_lite0(classes: int = 1000) -> nn.Module:
    """EfficientNet-lite0: ReLU6, and no squeeze and excite."""
    layers: list[nn.Module] = [_conv(3, 32, 3, 2), nn.ReLU6()]
    channels = 32
    for kernel, expansion, out, count, stride in _LITE0:
        for block in range(count):
            step = 1 if block else stride
            layers.append(_Expanded(channels, channels * expansion, out, kernel, step, nn.ReLU6, False))
            channels = out
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes))
    return nn.Sequential(*layers, _conv(channels, 1280, 1), nn.ReLU6(), *head)
