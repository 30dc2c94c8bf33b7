"""Rows of arguments for the `cortex_m::*` operators: odd sizes, extreme numbers, ties, every layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LAST = torch.channels_last
HALF = (1 << 30, 0)  # multiplier and shift of 1/2: every odd number is a tie
ONE = (1 << 30, 1)
TINY = ((1 << 31) - 1, -31)
SMALL = (1518500250, -7)


@dataclass(frozen=True, eq=False)
class Row:
    """One call.

    Attributes:
        operator: without `cortex_m::`.
        arguments: in the order of the schema; tensors become inputs of the program.
        eager: by how much ExecuTorch's eager implementation may differ; None where it does not compute the same thing.
        note: what the row is for.
    """

    operator: str
    arguments: tuple[Any, ...]
    eager: int | None
    note: str

    def __str__(self) -> str:
        return f"{self.operator}-{self.note}".replace(" ", "_")


def int8(*shape: int, seed: int = 0, last: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    x = torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)
    return x.contiguous(memory_format=LAST) if last else x


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    """[N, C, H, W], channels-last."""
    return int8(*shape, seed=seed, last=True)


def extremes(*shape: int, last: bool = False) -> torch.Tensor:
    """-128 and 127 in turn, so that sums of products become as large as they can."""
    x = torch.where(torch.arange(math.prod(shape)) % 3 == 0, -128, 127).to(torch.int8).reshape(shape)
    return x.contiguous(memory_format=LAST) if last else x


def scratch(size: int = 1 << 16) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def every_int8(*shape: int) -> torch.Tensor:
    return torch.arange(-128, 128, dtype=torch.int8).repeat(math.prod(shape) // 256).reshape(shape)


def channel_scales(channels: int, inner: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Multipliers and shifts that bring sums of `inner` products into int8, different for each channel."""
    generator = torch.Generator().manual_seed(seed)
    multipliers = torch.randint(1 << 30, (1 << 31) - 1, (channels,), generator=generator, dtype=torch.int64)
    middle = -int(math.log2(max(inner, 1)) / 2) - 6
    shifts = torch.randint(middle - 1, middle + 2, (channels,), generator=generator)
    return multipliers.to(torch.int32), shifts.to(torch.int32)


def bias(channels: int, size: int = 5000) -> torch.Tensor:
    return torch.randint(-size, size, (channels,), dtype=torch.int32, generator=torch.Generator().manual_seed(channels))


def quantization() -> list[Row]:
    ties = torch.arange(-300, 300, dtype=torch.float32) * 0.25
    odd = torch.tensor([math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-45, -0.0, 2147483648.0, -2147483904.0])
    noise = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(1)) * 40
    rows = []
    for name, dtype in (("int8", torch.int8), ("int16", torch.int16)):
        limits = torch.iinfo(dtype)
        low, high = limits.min, limits.max
        whole = torch.arange(low, high + 1, 1 if dtype == torch.int8 else 37).to(dtype)
        rows += [
            Row("quantize_per_tensor", (ties, 0.5, 3, low, high, dtype), 0, f"ties {name}"),
            Row("quantize_per_tensor", (noise, 0.0123, -5, low, high, dtype), 1, f"noise {name}"),
            Row(
                "quantize_per_tensor", (noise.contiguous(memory_format=LAST), 3.7, 0, low, high, dtype), 1, f"cl {name}"
            ),
            Row("quantize_per_tensor", (noise, 0.3, 1, -20, 30, dtype), 1, f"narrow {name}"),
            Row("quantize_per_tensor", (odd, 0.1, -1, low, high, dtype), None, f"infinite {name}"),
            Row("dequantize_per_tensor", (whole, 0.0123, 7, low, high, dtype), 0, f"all {name}"),
            Row("dequantize_per_tensor", (whole, 1e-30, low, low, high, dtype), 0, f"tiny {name}"),
        ]
    return rows


def elementwise() -> list[Row]:
    a, b = image(2, 5, 3, 7), image(2, 5, 3, 7, seed=1)
    everything, other = every_int8(256, 256), every_int8(256, 256).T.contiguous()
    per_channel = image(1, 5, 1, 1, seed=2)
    add = (3, *HALF, 4, *ONE, -5, 1518500250, -18, -128, 127)
    add_a, add_b, add_rest = add[:3], add[3:6], add[6:]
    small16 = torch.randint(-(1 << 15), 1 << 15, (3, 41), dtype=torch.int16, generator=torch.Generator().manual_seed(2))
    table = torch.from_numpy(np.random.default_rng(3).permutation(256).astype(np.int16) - 128).to(torch.int8)
    rows = [
        Row("quantized_add", (a, *add_a, b, *add_b, *add_rest), 0, "image"),
        Row("quantized_add", (a, *add_a, per_channel, *add_b, *add_rest), 0, "channels right"),
        Row("quantized_add", (per_channel, *add_a, a, *add_b, *add_rest), 0, "channels left"),
        Row("quantized_add", (everything, 127, *ONE, other, -128, *ONE, 0, 1 << 30, -20, -128, 127), 0, "all pairs"),
        Row("quantized_add", (everything, 0, *HALF, other, 0, *HALF, 7, 1 << 30, -19, -30, 90), 0, "ties clamped"),
        Row("quantized_add", (everything, 5, *TINY, other, 0, *ONE, 7, *ONE, -128, 127), 0, "tiny"),
        Row("quantized_add", (everything, -128, 1 << 30, 5, other, 1, *ONE, 0, *SMALL, -128, 127), None, "overflow"),
        Row("quantized_mul", (a, 3, b, -4, 5, *SMALL), 0, "image"),
        Row("quantized_mul", (a, 3, per_channel, -4, 5, *SMALL), 0, "channels right"),
        Row("quantized_mul", (per_channel, 3, a, -4, 5, *SMALL), 0, "channels left"),
        Row("quantized_mul", (everything, 127, other, -128, -128, 1518500250, -9), 0, "all pairs"),
        Row("quantized_mul", (everything, 0, torch.ones_like(everything), 0, 0, *HALF), 0, "ties"),
        Row("quantized_mul", (int8(1), 0, int8(1, seed=4), 0, 0, *TINY), 0, "one element"),
        Row("quantized_mul", (everything, 0, other, 0, 0, (1 << 31) - 1, 20), None, "overflow"),
        Row("quantized_div", (everything, 2, other, -3, 4, 5.5), 1, "all pairs"),
        Row("quantized_div", (everything, 0, torch.full_like(everything, 2), 0, 0, 1.0), 1, "ties"),
        Row("quantized_div", (a, 0, b, 0, 0, 1e30), None, "huge scale"),
        Row("quantized_div", (small16, -7, small16.flip(0), 100, 12, 900.0), 1, "int16"),
        Row("quantized_activation", (everything, table), 0, "all"),
        Row("quantized_activation", (a, table), 0, "image"),
    ]
    shapes = {
        "equal": ((4, 5), (4, 5)),
        "rank": ((2, 3, 4, 5), (5,)),
        "middle": ((2, 1, 4, 5), (2, 3, 1, 5)),
        "scalar": ((3, 5), (1,)),
    }
    for operator in ("minimum", "maximum"):
        for note, (left, right) in shapes.items():
            rows.append(Row(operator, (int8(*left), int8(*right, seed=9)), 0, note))
    rows.append(
        Row("minimum", (torch.arange(-3, 3, dtype=torch.int32), torch.tensor([-1], dtype=torch.int32)), 0, "i32")
    )
    return rows


def matrices() -> list[Row]:
    many = extremes(2, 3, 700)
    linear = (128, 0, -4, [1518500250], [-9], 127, -128)
    weights = int8(9, 31, seed=5)
    kernel_sum = (weights.sum(1, dtype=torch.int32) * 128 + bias(9)).reshape(1, 9)
    rows = [
        Row("quantized_linear", (int8(1, 31), weights, bias(9), None, *linear), 0, "bias"),
        Row("quantized_linear", (int8(4, 31), weights, None, None, *linear), 0, "no bias"),
        Row("quantized_linear", (int8(1, 31), weights, None, kernel_sum, *linear), 0, "kernel sum"),
        Row("quantized_linear", (int8(2, 3, 31), weights, bias(9), None, -7, 5, 1, *linear[3:]), 0, "filter offset"),
        Row(
            "quantized_linear",
            (int8(2, 31), weights, None, kernel_sum, 128, 5, 1, [1518500250], [-9], 20, -30),
            0,
            "kernel sum with filter offset",
        ),
        Row(
            "quantized_linear",
            (extremes(1, 40000), extremes(3, 40000), None, None, 128, -127, 0, [1518500250], [-24], 127, -128),
            None,
            "sums beyond int32",
        ),
        Row("quantized_linear", (int8(7), int8(1, 7), bias(1), None, 0, 0, 0, [1 << 30], [-7], 127, -128), 0, "rank 1"),
        Row("quantized_batch_matmul", (int8(3, 5, 7), 4, int8(3, 2, 7), -9, 3, *SMALL, scratch()), 0, "odd"),
        Row("quantized_batch_matmul", (int8(1, 1, 1), 0, int8(1, 1, 1), 0, 0, *HALF, scratch(0)), 0, "one element"),
        Row(
            "quantized_batch_matmul",
            (many, 128, extremes(2, 5, 700), -127, -128, 1518500250, -18, scratch()),
            1,
            "sums beyond float32",
        ),
    ]
    return rows


def softmax_arguments(scale: float) -> tuple[int, int, int]:
    from executorch.backends.cortex_m.passes.aten_to_cortex_m_pass import _compute_softmax_params

    return _compute_softmax_params(scale)


def softmaxes() -> list[Row]:
    rows = []
    for scale in (1 / 256, 0.0123, 0.1, 1.0, 7.5, 30.0):
        arguments = (-1, 3, -128, *softmax_arguments(scale))
        rows.append(Row("softmax", (int8(99, 13), *arguments), 1, f"scale {scale:.3g}"))
    arguments = (0, -128, *softmax_arguments(0.05))
    rows += [
        # So many that some of them differ from the eager implementation: about one element in 40 000 does.
        Row("softmax", (int8(30000, 10), -1, *arguments), 1, "many rows"),
        Row("softmax", (int8(4, 1), -1, *arguments), 1, "one class"),
        Row("softmax", (int8(2, 3, 4, 10), 3, *arguments), 1, "rank 4"),
        Row("softmax", (int8(6), 0, *arguments), 1, "rank 1"),
        Row("softmax", (image(2, 10, 3, 4), 1, *arguments), 1, "channels of an image"),
        Row("softmax", (torch.full((2, 500), 7, dtype=torch.int8), -1, *arguments), 1, "500 equal"),
        Row("softmax", (torch.full((3, 2), -128, dtype=torch.int8), 1, *arguments), 1, "halves"),
        Row("softmax", (every_int8(1, 256), 1, *arguments), 1, "all"),
        Row("softmax", (every_int8(1, 256), 1, 0, -128, *softmax_arguments(3.0)[:2], -5), None, "low diff_min"),
    ]
    return rows


def movement() -> list[Row]:
    return [
        Row("transpose", (int8(2, 3, 4, 5), [0, 2, 3, 1]), 0, "rank 4"),
        Row("transpose", (int8(2, 3, 4, 5), [3, 2, 1, 0]), 0, "reversed"),
        Row("transpose", (int8(3, 1, 5), [2, 0, 1]), 0, "rank 3"),
        Row("transpose", (int8(7, 5), [1, 0]), 0, "rank 2"),
        Row("transpose", (int8(7), [0]), 0, "rank 1"),
        Row("pad", (image(2, 3, 4, 5), [0, 1, 2, 0], [0, 3, 1, 0], -7), 0, "image"),
        Row("pad", (image(2, 3, 4, 5), [1, 1, 2, 4], [0, 3, 1, 2], 127), 0, "image all axes"),
        Row("pad", (int8(2, 3, 4, 5), [0, 1, 2, 0], [0, 3, 1, 0], -128), 0, "contiguous"),
        Row("pad", (int8(2, 1, 4, 5), [0, 1, 2, 0], [0, 3, 1, 0], 0), 0, "one channel"),
        Row("pad", (int8(2, 3, 1, 1), [0, 1, 2, 1], [0, 3, 1, 0], 0), 0, "one pixel"),
        Row("pad", (int8(2, 3, 5), [0, 1, 0, 2], [0, 0, 3, 0], 9), 0, "rank 3"),
        Row("pad", (int8(5), [0, 0, 0, 2], [0, 0, 0, 1], 9), 0, "rank 1"),
        Row("pad", (image(1, 4, 3, 3), [0] * 4, [0] * 4, 9), 0, "nothing"),
    ]


# Sizes of one convolution: input N, C, H, W; outputs; kernel; stride; padding; dilation; groups.
CONVOLUTIONS = {
    "1x1": ((1, 5, 4, 3), 7, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1 strided": ((2, 16, 5, 5), 9, (1, 1), (2, 3), (0, 0), (1, 1), 1),
    "3x3": ((1, 3, 7, 5), 4, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "batch": ((3, 4, 6, 5), 5, (3, 2), (2, 1), (1, 0), (1, 1), 1),
    "dilated": ((1, 6, 9, 11), 3, (3, 3), (1, 2), (2, 4), (2, 3), 1),
    "groups": ((2, 6, 5, 4), 9, (3, 3), (1, 1), (1, 1), (1, 1), 3),
    "one channel": ((1, 1, 9, 8), 3, (4, 5), (2, 2), (3, 2), (1, 1), 1),
    "one pixel": ((1, 8, 1, 1), 2, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "wide": ((1, 67, 3, 10), 33, (1, 4), (1, 2), (0, 1), (1, 1), 1),
    "padding beyond the kernel": ((1, 2, 2, 2), 3, (2, 2), (1, 1), (3, 3), (1, 1), 1),
}
# Channel multiplier in place of outputs and groups.
DEPTHWISE = {
    "3x3": ((1, 5, 7, 6), 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    "strided": ((1, 19, 8, 9), 1, (3, 3), (2, 2), (1, 1), (1, 1)),
    "multiplier": ((1, 3, 6, 5), 4, (2, 3), (1, 2), (0, 1), (1, 1)),
    "one channel": ((1, 1, 12, 10), 8, (10, 4), (2, 2), (5, 1), (1, 1)),
    "dilated batch": ((2, 4, 9, 9), 1, (3, 3), (1, 1), (2, 2), (2, 2)),
}
# Input, outputs, kernel, stride, padding.
TRANSPOSED = {
    "2x2": ((1, 3, 4, 5), 4, (2, 2), (2, 2), (0, 0)),
    "3x3": ((2, 5, 4, 3), 3, (3, 3), (2, 1), (1, 1)),
    "gaps": ((1, 2, 3, 3), 2, (2, 1), (3, 2), (0, 0)),
    "many channels": ((1, 33, 3, 4), 7, (4, 3), (2, 3), (2, 1)),
    "many channels reversed": ((2, 17, 3, 4), 5, (4, 3), (2, 1), (1, 2)),
    "many channels 1x1": ((1, 18, 3, 2), 5, (1, 1), (2, 2), (0, 0)),
    "one pixel": ((1, 4, 1, 1), 2, (5, 5), (1, 1), (1, 2)),
}
# Input, kernel, stride, padding, ceil_mode.
POOLS = {
    "2x2": ((2, 5, 6, 4), (2, 2), (2, 2), (0, 0), False),
    "3x2": ((1, 17, 7, 5), (3, 2), (2, 1), (1, 1), False),
    "global": ((1, 64, 24, 5), (24, 5), (24, 5), (0, 0), False),
    "one pixel": ((1, 3, 1, 1), (1, 1), (1, 1), (0, 0), False),
    "one channel": ((2, 1, 5, 5), (3, 3), (1, 1), (1, 1), False),
    "ceiling": ((1, 4, 6, 7), (3, 3), (2, 2), (1, 0), True),
    "ceiling dropped": ((1, 4, 5, 5), (2, 2), (3, 3), (1, 1), True),
}


def both_layouts(row: Row) -> list[Row]:
    """The row of a channels-last image, and the same call of the operator's `_nhwc` form."""
    x, *rest = row.arguments
    nhwc = x.permute(0, 2, 3, 1).contiguous()
    return [row, Row(row.operator + "_nhwc", (nhwc, *rest), row.eager, row.note)]


def eager_bound(dilation: tuple[int, int]) -> int | None:
    """torch has no dilated convolution of int32 numbers."""
    return 0 if dilation == (1, 1) else None


def convolutions() -> list[Row]:
    rows = []
    for note, (shape, outputs, kernel, stride, padding, dilation, groups) in CONVOLUTIONS.items():
        weight = int8(outputs, *kernel, shape[1] // groups, seed=7)
        scales = channel_scales(outputs, weight[0].numel())
        for end, b in (("", bias(outputs)), (" no bias", None)):
            window = (list(stride), list(padding), list(dilation))
            arguments = (image(*shape), weight, b, *window, 128, -3, *scales, -128, 127, scratch())
            rows += both_layouts(Row("quantized_conv2d", arguments, eager_bound(dilation), note + end))
    return rows + extreme_convolutions()


def extreme_convolutions() -> list[Row]:
    """Largest sums, ties in every channel, a bias that makes sums leave int32, an activation of one number."""
    x, weight = extremes(1, 64, 5, 5, last=True), extremes(3, 3, 3, 64)
    window = ([1, 1], [1, 1], [1, 1])
    half = (torch.full((3,), 1 << 30, dtype=torch.int32), torch.tensor([0, -1, -15], dtype=torch.int32))
    low = (torch.tensor([0, (1 << 31) - 1, 1 << 30], dtype=torch.int32), torch.tensor([-31, -31, 5], dtype=torch.int32))
    edge = torch.tensor([(1 << 31) - 1, -(1 << 31), 0], dtype=torch.int32)
    rows = [
        Row("quantized_conv2d", (x, weight, None, *window, -127, 0, *half, -128, 127, scratch()), 0, "largest sums"),
        Row("quantized_conv2d", (x, weight, edge, *window, 128, 0, *low, -128, 127, scratch()), None, "wrapping sums"),
        Row("quantized_conv2d", (x, weight, None, *window, 0, 0, *half, 5, 5, scratch()), 0, "one number"),
    ]
    return [both for row in rows for both in both_layouts(row)]


def depthwise_convolutions() -> list[Row]:
    rows = []
    for note, (shape, multiplier, kernel, stride, padding, dilation) in DEPTHWISE.items():
        outputs = shape[1] * multiplier
        weight = int8(1, *kernel, outputs, seed=7)
        scales = channel_scales(outputs, weight.numel() // outputs)
        window = (list(stride), list(padding), list(dilation))
        for end, b in (("", bias(outputs, 500)), (" no bias", None)):
            arguments = (image(*shape), weight, b, *window, multiplier, -5, 2, *scales, -100, 127, scratch(0))
            rows += both_layouts(Row("quantized_depthwise_conv2d", arguments, eager_bound(dilation), note + end))
    return rows


def transposed_convolutions() -> list[Row]:
    rows = []
    for note, (shape, outputs, kernel, stride, padding) in TRANSPOSED.items():
        weight = int8(outputs, *kernel, shape[1], seed=7)
        scales = channel_scales(outputs, shape[1])
        window = (list(stride), list(padding), [0, 0], [1, 1])
        for end, b in (("", bias(outputs, 500)), (" no bias", None)):
            arguments = (image(*shape), weight, b, *window, 128, -9, *scales, -128, 127, scratch(), scratch())
            rows += both_layouts(Row("quantized_transpose_conv2d", arguments, 0, note + end))
    return rows


def pools() -> list[Row]:
    rows = []
    for note, (shape, kernel, stride, padding, ceil_mode) in POOLS.items():
        window = (list(kernel), list(stride), list(padding))
        average = (image(*shape), *window, ceil_mode, -3, 1 << 30, -5, scratch())
        rows += both_layouts(Row("quantized_avg_pool2d", average, 1, note))
        if not ceil_mode:
            largest = (image(*shape), *window, [1, 1], ceil_mode, 4, 4, -100, 90)
            rows += both_layouts(Row("quantized_max_pool2d", largest, 0, note))
    # Sums of -6 to 6 over 4 elements: 0.5 and 1.5 on both sides of 0, in scales of both signs of the zero point.
    ties = torch.tensor([[s // 2, s - s // 2, 0, 0] for s in range(-6, 7)], dtype=torch.int8).reshape(1, 13, 2, 2)
    arguments = (ties.contiguous(memory_format=LAST), [2, 2], [1, 1], [0, 0], False, -128, 1 << 30, -5, scratch())
    rows += both_layouts(Row("quantized_avg_pool2d", arguments, 1, "ties"))
    return rows


def rows() -> list[Row]:
    return [
        *quantization(),
        *elementwise(),
        *matrices(),
        *softmaxes(),
        *movement(),
        *convolutions(),
        *depthwise_convolutions(),
        *transposed_convolutions(),
        *pools(),
    ]
