"""MobileNets and FOMO as plain chains of layers, of any width: latency depends on shapes alone, so no batch norms."""

from __future__ import annotations

from torch import Tensor, nn

_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *(((512, 1),) * 5), (1024, 2), (1024, 1))
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repetitions, stride of the first."""
_FOMO_CUT = 6
"""FOMO ends behind the expansion of this block, at an eighth of the input's size."""


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True) -> nn.Module:
    """A convolution padded as TensorFlow does it: with stride 2 at the end only."""
    layers: list[nn.Module] = [nn.ZeroPad2d((0, kernel - 2, 0, kernel - 2))] if stride == 2 else []
    padding = 0 if stride == 2 else kernel // 2
    layers.append(nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups))
    return nn.Sequential(*layers, nn.ReLU6()) if relu else nn.Sequential(*layers)


def mobilenet_v1(width: float, classes: int = 1000) -> nn.Module:
    """MobileNetV1 with a softmax, as TensorFlow publishes it."""
    channels = int(32 * width)
    layers = [_conv(3, channels, 3, 2)]
    for out, stride in _V1:
        layers += [_conv(channels, channels, 3, stride, channels), _conv(channels, int(out * width), 1)]
        channels = int(out * width)
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes), nn.Softmax(dim=-1)
    )


class _Inverted(nn.Module):
    """Expansion, depthwise convolution, projection, and the input added where it has the same shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        first = [_conv(inputs, hidden, 1)] if expansion > 1 else []
        self.layers = nn.Sequential(
            *first, _conv(hidden, hidden, 3, stride, hidden), _conv(hidden, outputs, 1, relu=False)
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


def _divisible(channels: float) -> int:
    """The nearest multiple of 8 that is not below nine tenths."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _blocks(width: float) -> tuple[list[nn.Module], list[int], list[int]]:
    """Blocks of MobileNetV2, their inputs' channels, and their expansions."""
    channels = _divisible(32 * width)
    blocks: list[nn.Module] = []
    inputs: list[int] = []
    expansions: list[int] = []
    for expansion, out, count, first_stride in _V2:
        for repetition in range(count):
            outputs = _divisible(out * width)
            inputs.append(channels)
            expansions.append(expansion)
            blocks.append(_Inverted(channels, outputs, first_stride if repetition == 0 else 1, expansion))
            channels = outputs
    inputs.append(channels)
    return blocks, inputs, expansions


def mobilenet_v2(width: float, classes: int = 1000) -> nn.Module:
    """MobileNetV2 without a softmax."""
    blocks, inputs, _ = _blocks(width)
    last = _divisible(1280 * max(width, 1.0))
    return nn.Sequential(
        _conv(3, inputs[0], 3, 2),
        *blocks,
        _conv(inputs[-1], last, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(last, classes),
    )


def fomo(width: float = 0.35, classes: int = 2) -> nn.Module:
    """Object detection by a grid of classes, as Edge Impulse publishes it, without the softmax."""
    blocks, inputs, expansions = _blocks(width)
    hidden = inputs[_FOMO_CUT] * expansions[_FOMO_CUT]
    return nn.Sequential(
        _conv(3, inputs[0], 3, 2),
        *blocks[:_FOMO_CUT],
        _conv(inputs[_FOMO_CUT], hidden, 1),
        _conv(hidden, 32, 1),
        _conv(32, classes, 1, relu=False),
    )
