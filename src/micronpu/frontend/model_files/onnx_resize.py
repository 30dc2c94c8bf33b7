"""Lowerings of ONNX's Resize and Upsample: PyTorch's interpolation where it is equal, otherwise products by weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from micronpu.frontend.model_files.onnx_movement import picked
from micronpu.frontend.model_files.onnx_nodes import DAMAGED, OnnxNode, lowering


@dataclass(frozen=True)
class _Axis:
    """One axis: sizes before and after, the scale, and the part of the operand (0 to 1) of tf_crop_and_resize."""

    number: int
    before: int
    after: int
    scale: float
    begin: float = 0.0
    end: float = 1.0

    def positions(self, how: str) -> torch.Tensor:
        """Return the position of each element of the result in the operand."""
        return _COORDINATES[how](torch.arange(self.after).float(), self)  # as runtimes do, which decides ties

    @property
    def exact(self) -> bool:
        """True if the scale is the ratio of the sizes."""
        return math.isclose(self.after, self.scale * self.before, rel_tol=1e-5)


def _symmetric(x: torch.Tensor, a: _Axis) -> torch.Tensor:
    offset = a.before / 2 * (1 - a.after / (a.scale * a.before))
    return offset + (x + 0.5) / a.scale - 0.5


def _cropped(x: torch.Tensor, a: _Axis) -> torch.Tensor:
    if a.after == 1:
        return x + 0.5 * (a.begin + a.end) * (a.before - 1)
    return a.begin * (a.before - 1) + x * (a.end - a.begin) * (a.before - 1) / (a.after - 1)


_COORDINATES: dict[str, Callable[[torch.Tensor, _Axis], torch.Tensor]] = {
    "half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5,
    "pytorch_half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5 if a.after > 1 else x * 0,
    "asymmetric": lambda x, a: x / a.scale,
    "align_corners": lambda x, a: x * (a.before - 1) / max(a.after - 1, 1),
    "half_pixel_symmetric": _symmetric,
    "tf_crop_and_resize": _cropped,
}
"""Position of a result's elements in the operand."""
_ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round_prefer_floor": lambda x: torch.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: torch.floor(x + 0.5),
}


def _linear(t: torch.Tensor) -> torch.Tensor:
    return (1 - t.abs()).clamp(min=0)


def _cubic(t: torch.Tensor, a: float) -> torch.Tensor:
    t = t.abs()
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return torch.where(t <= 1, near, torch.where(t < 2, far, torch.zeros_like(t)))


def _axes_of(node: OnnxNode) -> list[_Axis]:
    shape, rank = list(node.meta(0).shape), node.meta(0).dim()
    old = node.kind == "Upsample" or node.opset < 11
    scales, sizes = node.constant(1 if old else 2), None if old else node.integers(3)
    factors = node.attribute("scales") if scales is None else [float(s) for s in scales.reshape(-1)]
    region = None if old else node.constant(1)
    chosen = [a % rank for a in node.attribute("axes") or range(rank)]
    policy = node.attribute("keep_aspect_ratio_policy") or "stretch"
    if sizes:
        factors = [s / shape[a] for a, s in zip(chosen, sizes, strict=False)]
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors, sizes = [factor] * len(factors), [math.floor(factor * shape[a] + 0.5) for a in chosen]
    elif factors:
        sizes = [math.floor(shape[a] * f) for a, f in zip(chosen, factors, strict=False)]
    if not factors or not sizes or not len(chosen) == len(factors) == len(sizes):
        raise node.error("has neither scales nor sizes of its axes", DAMAGED)
    made = dict(enumerate(shape)) | dict(zip(chosen, sizes, strict=True))
    node.builder.check_shape(node.name, tuple(made.values()))
    parts = [0.0] * len(chosen) + [1.0] * len(chosen) if region is None or not region.numel() else region.tolist()
    if len(parts) != 2 * len(chosen):
        raise node.error(f"has a region of {len(parts)} numbers for {len(chosen)} axes", DAMAGED)
    begins, ends = parts[: len(chosen)], parts[len(chosen) :]
    rows = zip(chosen, sizes, factors, begins, ends, strict=True)
    return [_Axis(axis, shape[axis], size, scale, begin, end) for axis, size, scale, begin, end in sorted(rows)]


@lowering("Resize", "Upsample")
def _resize(node: OnnxNode) -> None:
    shape, mode = node.meta(0).shape, node.attribute("mode")
    how = node.attribute("coordinate_transformation_mode") or "asymmetric"
    rounding = node.attribute("nearest_mode") or "floor"
    (coefficient, fill), outside = node.attributes("cubic_coeff_a", "extrapolation_value"), node.flag("exclude_outside")
    smooth = node.flag("antialias")
    axes = _axes_of(node)
    if how not in _COORDINATES or rounding not in _ROUNDED or mode not in ("nearest", "linear", "bilinear", "cubic"):
        raise node.error(f"resizes by {mode}, {how}, {rounding}", "nearest neighbours, linear or cubic, half_pixel")
    cropped = how == "tf_crop_and_resize"
    if how == "align_corners" and not all(a.exact for a in axes):
        raise node.error("aligns corners by scales that give no whole sizes, where runtimes differ", "sizes")
    changed = [a for a in axes if cropped or a.before != a.after or a.scale != 1.0]
    image = len(shape) in (3, 4) and all(a.number >= 2 for a in changed)
    size = [{a.number: a.after for a in axes}.get(i, n) for i, n in enumerate(shape)][2:]
    single = any(a.after == 1 for a in changed)
    if mode == "nearest" and not cropped:
        where = [_ROUNDED[rounding](a.positions(how)).clamp(0, a.before - 1).long() for a in changed]
        for chosen, shift in (("nearest", 0.0), ("nearest-exact", 0.5)) if image else ():
            usual = [((torch.arange(a.after) + shift) * a.before / a.after).floor().long() for a in changed]
            if all(map(torch.equal, where, usual)):
                node.emit(partial(functional.interpolate, size=size, mode=chosen), [node.operand(0)])
                return
        node.emit(lambda x, *w: picked(x, [a.number for a in changed], w), [node.operand(0), *where])
        return
    usual_linear = how in ("half_pixel", "align_corners") or (how == "pytorch_half_pixel" and not single)
    if mode in ("linear", "bilinear") and image and usual_linear and all(a.exact for a in changed) and not smooth:
        chosen, corners = ("linear", "bilinear")[len(shape) - 3], how == "align_corners"
        node.emit(partial(functional.interpolate, size=size, mode=chosen, align_corners=corners), [node.operand(0)])
        return
    if mode == "nearest":
        raise node.error("crops and takes nearest neighbours", "the mode linear")
    filtered = partial(_cubic, a=coefficient) if mode == "cubic" else _linear
    weights = [_weights(a, how, filtered, 2 if mode == "cubic" else 1, outside, smooth).float() for a in changed]
    inside = [(p >= 0) & (p <= a.before - 1) for a in changed for p in [a.positions(how)]]
    if not cropped or all(bool(i.all()) for i in inside):
        node.emit(lambda x, *w: _weighted(x, changed, w), [node.operand(0), *weights])
        return
    mask = torch.ones(1, dtype=torch.bool)
    for axis, known in zip(changed, inside, strict=True):
        mask = mask & known.reshape(-1, *[1] * (len(shape) - 1 - axis.number))

    def extrapolated(x: torch.Tensor, m: torch.Tensor, f: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
        return torch.where(m, _weighted(x, changed, w), f)

    node.emit(extrapolated, [node.operand(0), mask, torch.tensor(float(fill)), *weights])


def _weights(
    axis: _Axis, how: str, function: Callable[[torch.Tensor], torch.Tensor], reach: int, outside: bool, smooth: bool
) -> torch.Tensor:
    """Return how much each element of the result [after, before] takes from each of the operand."""
    narrow = min(axis.scale, 1.0) if smooth else 1.0
    margin = math.ceil(reach / narrow) + 1
    position = axis.positions(how).clamp(-margin, axis.before - 1 + margin)
    there = torch.arange(-2 * margin, axis.before + 2 * margin)
    found = function((there[None] - position[:, None].double()) * narrow)
    if outside:
        found = found * ((there >= 0) & (there < axis.before))
    found = found / found.sum(1, keepdim=True)
    made = torch.zeros(axis.after, axis.before, dtype=found.dtype)
    return made.index_add(1, there.clamp(0, axis.before - 1), found)


def _weighted(x: torch.Tensor, axes: list[_Axis], weights: tuple[torch.Tensor, ...]) -> torch.Tensor:
    for axis, w in zip(axes, weights, strict=True):
        x = torch.movedim(torch.movedim(x, axis.number, -1) @ w.T, -1, axis.number)
    return x
