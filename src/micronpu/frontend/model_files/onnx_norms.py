"""Lowerings of ONNX's normalizations and spectra."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from micronpu.frontend.model_files.onnx_nodes import OnnxNode, lowering
from micronpu.frontend.model_files.onnx_operators import padded

_SMALLEST = 1e-38
"""Least norm that an operand is divided by, about the smallest normal float32."""
_MOST_NEIGHBOURS = 64
"""Maximum size of a local response normalization, whose neighbours are added one by one."""


@lowering("BatchNormalization")
def _batch(node: OnnxNode) -> None:
    node.ignores("momentum")
    epsilon = node.attribute("epsilon")
    if node.flag("training_mode"):
        raise node.error("is in training mode", "the model exported for inference")
    node.emit(lambda x, s, b, m, v: functional.batch_norm(x, m, v, s, b, False, 0.0, epsilon))


@lowering("InstanceNormalization")
def _instance(node: OnnxNode) -> None:
    epsilon = node.attribute("epsilon")
    node.emit(lambda x, s, b: functional.instance_norm(x, None, None, s, b, True, 0.0, epsilon))


@lowering("LayerNormalization", "RMSNormalization")
def _layer(node: OnnxNode) -> None:
    node.ignores("stash_type")
    axis, epsilon = node.axis(), node.attribute("epsilon")
    shape = list(node.meta(0).shape[axis:])
    axes = list(range(axis, node.meta(0).dim()))

    def normalized(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        s = s if list(s.shape) == shape else s.expand(shape)
        b = b if b is None or list(b.shape) == shape else b.expand(shape)
        if node.kind == "RMSNormalization":
            return (functional.rms_norm(x, shape, s, epsilon),)
        made = functional.layer_norm(x, shape, s, b, epsilon)
        if len(node.outputs) == 1:
            return (made,)
        mean = x.mean(axes, keepdim=True)
        return made, mean, ((x - mean).square().mean(axes, keepdim=True) + epsilon).rsqrt()

    node.emit(normalized)


@lowering("GroupNormalization")
def _group(node: OnnxNode) -> None:
    node.ignores("stash_type")
    groups, epsilon = node.attributes("num_groups", "epsilon")
    channels = node.meta(0).shape[1]

    def normalized(x: torch.Tensor, s: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if node.opset < 21:  # a scale for each group
            s, b = (t.reshape(-1, 1).expand(-1, channels // groups).reshape(-1) for t in (s, b))
        return functional.group_norm(x, groups, s, b, epsilon)

    node.emit(normalized)


@lowering("LpNormalization")
def _lp(node: OnnxNode) -> None:
    axis, p = node.axis(), node.attribute("p")
    node.emit(lambda x: functional.normalize(x, p, axis, _SMALLEST))


@lowering("LRN")
def _local_response(node: OnnxNode) -> None:
    alpha, beta, bias, size = node.attributes("alpha", "beta", "bias", "size")
    if size > _MOST_NEIGHBOURS:
        raise node.error(f"adds {size} neighbours", f"at most {_MOST_NEIGHBOURS}")
    around = [((size - 1) // 2, size // 2), *[(0, 0)] * (node.meta(0).dim() - 2)]

    def normalized(x: torch.Tensor) -> torch.Tensor:
        squares = padded(x * x, around)
        total = squares.narrow(1, 0, x.shape[1])
        for i in range(1, size):
            total = total + squares.narrow(1, i, x.shape[1])
        return x / torch.pow(total * (alpha / size) + bias, beta)

    node.emit(normalized)


# ---------------------------------------------------------------- spectra


def _waves(size: int, bins: int, inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the real and the imaginary part of a Fourier transform, each of shape [bins, size]."""
    phase = torch.arange(bins, dtype=torch.int64)[:, None] * torch.arange(size, dtype=torch.int64)[None]
    angle = (phase % size).double() * (2 * math.pi / size)
    return torch.cos(angle), torch.sin(angle) if inverse else -torch.sin(angle)


@lowering("STFT")
def _short_time(node: OnnxNode) -> None:
    """Compute the spectrum of all frames as a convolution of the signal with windowed waves."""
    signal, step, one_sided = node.meta(0), int(node.required(1)), node.flag("onesided")
    weights, length = node.constant(2), node.constant(3)
    if signal.dim() == 3 and signal.shape[2] != 1:
        raise node.error("transforms a complex signal", "a real signal")
    size = int(length) if length is not None else weights.numel() if weights is not None else 0
    if not size:
        raise node.error("has neither a window nor a length of frames", "one of them")
    shape = size // 2 + 1 if one_sided else size
    node.builder.check_shape(node.name, (2, size, shape))
    taper = torch.ones(size) if weights is None else weights
    waves = torch.stack(_waves(size, shape), 1).reshape(2 * shape, 1, size) * taper.double()

    def spectrum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made = functional.conv1d(x.reshape(x.shape[0], 1, -1), w, stride=step)
        return made.reshape(x.shape[0], shape, 2, -1).permute(0, 3, 1, 2)

    node.emit(spectrum, [node.operand(0), waves.float()])


@lowering("DFT")
def _transform(node: OnnxNode) -> None:
    """Compute a Fourier transform as matrix products."""
    x, length = node.meta(0), node.constant(1)
    inverse, one_sided = node.flag("inverse"), node.flag("onesided")
    stated = node.constant(2)
    axis = node.attribute("axis") if node.opset < 20 else -2 if stated is None else int(stated)
    axis = (axis + x.dim()) % x.dim()
    size = int(length) if length is not None else x.shape[axis]
    if one_sided and inverse:
        raise node.error("is an inverse transform of one side", "onesided=0")
    bins = size // 2 + 1 if one_sided else size
    node.builder.check_shape(node.name, (2, size, bins))
    real, imaginary = (w.float() / (size if inverse else 1) for w in _waves(size, bins, inverse))
    given, complex_ = x.shape[axis], x.shape[-1] == 2

    def product(part: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        part = torch.movedim(part, axis, -1)
        part = padded(part, [(0, size - given)]) if size != given else part
        return torch.movedim(part @ w.T, -1, axis)

    def transform(x: torch.Tensor, r: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        a = x.select(-1, 0)
        if not complex_:
            return torch.stack([product(a, r), product(a, i)], -1)
        b = x.select(-1, 1)
        return torch.stack([product(a, r) - product(b, i), product(a, i) + product(b, r)], -1)

    node.emit(transform, [node.operand(0), real, imaginary])
