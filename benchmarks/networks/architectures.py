"""The trained networks' modules, named so that their `state_dict` is what the data folder holds; see `networks.py`.

Inputs are NCHW, outputs are class scores without softmax. The networks from TensorFlow have BatchNorm epsilon 1e-3, and
asymmetric `SAME` padding, which is an `F.pad` in front of a convolution without padding. The DS-CNN of keyword spotting
is the one of `examples/keyword_spotting/model.py`.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

tf_norm = partial(nn.BatchNorm2d, eps=1e-3)


def same_pad_stride_2(x: Tensor) -> Tensor:
    """TensorFlow's `SAME` padding of an even size for a 3x3 window with stride 2: nothing before, one after."""
    return F.pad(x, (0, 1, 0, 1))


class ConvNorm(nn.Module):
    """Convolution, BatchNorm, ReLU; `stride=2` pads as TensorFlow does."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1 if stride == 1 else 0)
        self.bn = tf_norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x if self.stride == 1 else same_pad_stride_2(x))))


class ResNet8Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the block halves the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1 if stride == 1 else 0)
        self.bn1 = tf_norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.bn2 = tf_norm(outputs)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x if self.stride == 1 else same_pad_stride_2(x))))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class ResNet8(nn.Module):
    """MLPerf Tiny's image classifier. x [N, 3, 32, 32], RGB 0..255 as it is -> [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 16)
        self.block1 = ResNet8Block(16, 16, 1)
        self.block2 = ResNet8Block(16, 32, 2)
        self.block3 = ResNet8Block(32, 64, 2)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.stem(x))))
        return self.fc(F.avg_pool2d(x, 8).flatten(1))


class ResNet20Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without weights (option A of the ResNet paper)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.halves = stride == 2
        self.zero_channels = (outputs - inputs) // 2

    def shortcut(self, x: Tensor) -> Tensor:
        """Every second pixel, zero channels before and after.

        A max pool with a window of one pixel takes the same pixels as `x[:, :, ::2, ::2]`, without a strided slice,
        which is a problem for some NPUs.
        """
        if not self.halves:
            return x
        return F.pad(F.max_pool2d(x, 1, 2), (0, 0, 0, 0, self.zero_channels, self.zero_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet20(nn.Module):
    """The CIFAR-10 ResNet-20. x [N, 3, 32, 32], normalised per channel -> [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._layer(16, 16, 1)
        self.layer2 = self._layer(16, 32, 2)
        self.layer3 = self._layer(32, 64, 2)
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def _layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        rest = (ResNet20Block(outputs, outputs, 1) for _ in range(2))
        return nn.Sequential(ResNet20Block(inputs, outputs, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.avg_pool2d(x, 8).flatten(1))


class CifarNet(nn.Module):
    """Three convolutions and three max pools without any activation. x [N, 3, 32, 32], -1..1 -> [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 32, 5, padding=2)
        self.conv3 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x), 2)
        x = F.max_pool2d(self.conv2(x), 2)
        x = F.max_pool2d(self.conv3(x), 1, 2)
        return self.fc(x.flatten(1))


class MobileNetBlock(nn.Module):
    """Depthwise 3x3 and pointwise convolution, each with BatchNorm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.dw = nn.Conv2d(inputs, inputs, 3, stride, padding=1 if stride == 1 else 0, groups=inputs)
        self.dw_bn = tf_norm(inputs)
        self.pw = nn.Conv2d(inputs, outputs, 1)
        self.pw_bn = tf_norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.dw_bn(self.dw(x if self.stride == 1 else same_pad_stride_2(x))))
        return F.relu(self.pw_bn(self.pw(x)))


class MobileNetV1(nn.Module):
    """MLPerf Tiny's visual wake words, width 0.25. x [N, 3, 96, 96], RGB 0..1 -> [N, 2] (no person, person)."""

    CHANNELS = (16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256)
    HALVING_BLOCKS = (2, 4, 6, 12)

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 8, stride=2)
        inputs = 8
        for number, outputs in enumerate(self.CHANNELS, start=1):
            block = MobileNetBlock(inputs, outputs, 2 if number in self.HALVING_BLOCKS else 1)
            self.add_module(f"block{number}", block)
            inputs = outputs
        self.fc = nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number in range(1, len(self.CHANNELS) + 1):
            x = self.get_submodule(f"block{number}")(x)
        return self.fc(F.avg_pool2d(x, 3).flatten(1))


class Autoencoder(nn.Module):
    """MLPerf Tiny's anomaly detector: ten linear layers. x [N, 640], dB as they are -> [N, 640], the reconstruction."""

    WIDTHS = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128)

    def __init__(self) -> None:
        super().__init__()
        for number, (inputs, outputs) in enumerate(pairwise(self.WIDTHS), start=1):
            self.add_module(f"fc{number}", nn.Linear(inputs, outputs))
            self.add_module(f"bn{number}", nn.BatchNorm1d(outputs, eps=1e-3))
        self.fc10 = nn.Linear(128, 640)

    def forward(self, x: Tensor) -> Tensor:
        for number in range(1, len(self.WIDTHS)):
            x = F.relu(self.get_submodule(f"bn{number}")(self.get_submodule(f"fc{number}")(x)))
        return self.fc10(x)


class WakeWordBlock(nn.Module):
    """Depthwise convolution along time, pointwise convolution, BatchNorm, ReLU."""

    def __init__(self, inputs: int, outputs: int, frames: int) -> None:
        super().__init__()
        self.dw = nn.Conv2d(inputs, inputs, (frames, 1), groups=inputs, bias=False)
        self.pw = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn = tf_norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.pw(self.dw(x))))


class StreamingWakeWord(nn.Module):
    """MLPerf Tiny's 1-D DS-CNN. x [N, 40, 30, 1] (bands as channels, 30 frames), 0..1 -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = WakeWordBlock(40, 128, 3)
        self.block2 = WakeWordBlock(128, 128, 5)
        self.block3 = WakeWordBlock(128, 128, 10)
        self.block4 = WakeWordBlock(128, 32, 15)
        self.fc = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block4(self.block3(self.block2(self.block1(x)))).flatten(1))
