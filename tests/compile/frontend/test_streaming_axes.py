"""Operators over axes other than time stream frame by frame; what does not is named with its line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compile.small import Small
from torch import nn
from torch._higher_order_ops import while_loop

import micronpu

FRAMES, BINS = 16, 15
RANDOM = torch.Generator().manual_seed(0)
MATRIX = nn.Parameter(torch.randn(BINS, 7, generator=RANDOM), requires_grad=False)

STREAMS: dict[str, tuple[Callable[[Any, torch.Tensor], Any], dict[str, Any]]] = {
    "chunk": (lambda m, x: x.chunk(2, 1)[0] * torch.sigmoid(x.chunk(2, 1)[1]), {}),
    "split": (lambda m, x: x.split([1, 3], 1)[1], {}),
    "split of bins": (lambda m, x: x.split(4, 3)[3], {}),
    "unbind": (lambda m, x: x.unbind(1)[2] - x.unbind(3)[0].sum(1, keepdim=True).transpose(1, 2), {}),
    "glu": (lambda m, x: F.glu(x, 1), {}),
    "stack": (lambda m, x: torch.stack([x, x * 2], 1).mean(1), {}),
    "product": (lambda m, x: x @ m.w, {"w": MATRIX}),
    "product of groups": (lambda m, x: torch.matmul(m.v, x.transpose(2, 3)), {"v": nn.Parameter(torch.eye(15) * 2)}),
    "einsum": (lambda m, x: torch.einsum("bctf,fg->tbcg", x, m.w), {"w": MATRIX}),
    "mean": (lambda m, x: x.mean(1) + x.mean((1, 3), keepdim=True)[:, 0], {}),
    "largest": (lambda m, x: x.amax(1) - x.max(3)[0].mean(1)[..., None], {}),
    "variance": (lambda m, x: x.var(1), {}),
    "upsampling": (lambda m, x: F.interpolate(x, scale_factor=(1, 2)), {}),
    "upsampling to a size": (lambda m, x: F.interpolate(x, size=(FRAMES, 30)), {}),
    "bilinear": (lambda m, x: F.interpolate(x, scale_factor=(1, 2), mode="bilinear"), {}),
    "transposed": (lambda m, x: m.up(x), {"up": nn.ConvTranspose2d(4, 2, (1, 3), (1, 2))}),
    "normalize": (lambda m, x: F.normalize(x, dim=1), {}),
    "rms norm": (lambda m, x: F.rms_norm(x, (BINS,)), {}),
    "running sum": (lambda m, x: x.cumsum(3).flip(3), {}),
    "prelu": (lambda m, x: m.act(x), {"act": nn.PReLU(4)}),
    "expand": (lambda m, x: x[:, :1].expand(1, 4, FRAMES, BINS) + x.repeat(1, 2, 1, 1)[:, 4:], {}),
    "loop": (lambda m, x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1], {}),
    "vmap": (lambda m, x: torch.vmap(lambda row: row.mean(0) + 1)(x), {}),
    "gated": (lambda m, x: F.glu(m.conv(F.pad(x, (0, 0, 2, 0))), 1), {"conv": nn.Conv2d(4, 8, (3, 1))}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("name", STREAMS)
def test_frames_come_one_by_one(name: str, step: int) -> None:
    function, attributes = STREAMS[name]
    model, x = Small(function, **attributes), torch.randn(1, 4, FRAMES, BINS, generator=RANDOM)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = micronpu.streaming(model, (x,), dim=2, step=step)
    assert not stream.windows
    with torch.no_grad():
        whole = model(x)
        parts = [stream(part) for part in x.split(step, 2)]
    axis = next(a for a in range(whole.dim()) if torch.cat(parts, a).shape == whole.shape and parts[0].shape[a] == step)
    assert torch.allclose(torch.cat(parts, axis), whole, atol=1e-5)


WINDOWS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "mean.dim": lambda m, x: x.mean(2),
    "glu.default": lambda m, x: F.glu(x, 2),
    "chunk.default": lambda m, x: x.chunk(2, 2)[1],
    "matmul.default": lambda m, x: torch.matmul(x.transpose(2, 3), x),
    "upsample_nearest2d.vec": lambda m, x: F.interpolate(x, scale_factor=2),
    "pixel_shuffle.default": lambda m, x: F.pixel_shuffle(x, 2),
    "flip.default": lambda m, x: x.flip(2),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_what_looks_at_a_window_is_named(name: str) -> None:
    model, x = Small(WINDOWS[name]), torch.randn(1, 4, FRAMES, BINS, generator=RANDOM)
    with pytest.warns(UserWarning, match=rf"`{name}` \(.*:\d+\) .* the last 16 frames"):
        stream = micronpu.streaming(model, (x,), dim=2)
    assert len(stream.windows) == 1
    with torch.no_grad():
        *_, last = (stream(part) for part in x.split(1, 2))
        assert torch.allclose(last, model(x), atol=1e-5)
