"""Faces in the photographs, found by the detector of facenet-pytorch in float."""

from __future__ import annotations

import sys
import types
from typing import Any
from unittest import mock

import numpy as np
import torch
from benchmarks.zoo import data
from benchmarks.zoo.network import t32
from benchmarks.zoo.packages import unpacked
from torch import Tensor

PACKAGES = ("facenet-pytorch", *data.PHOTOGRAPHS)


def _best_of_overlapping(boxes: Tensor, scores: Tensor, classes: Tensor, threshold: float) -> Tensor:
    """The function `batched_nms` of torchvision: indices of boxes that overlap no better one of their class."""
    order, kept = scores.argsort(descending=True).tolist(), []
    while order:
        i = order.pop(0)
        kept.append(i)
        o = torch.tensor(order, dtype=torch.long)
        low, high = torch.maximum(boxes[i, :2], boxes[o, :2]), torch.minimum(boxes[i, 2:], boxes[o, 2:])
        both = (high - low).clamp_min(0).prod(1)
        area, areas = ((z[..., 2:] - z[..., :2]).prod(-1) for z in (boxes[i], boxes[o]))
        order = o[(both / (area + areas - both) <= threshold) | (classes[o] != classes[i])].tolist()
    return torch.tensor(kept, dtype=torch.long)


def detector(**options: Any) -> Any:
    """The whole detector of facenet-pytorch, from its package.

    It uses two functions of torchvision, which are replaced: the detector works whichever torchvision is installed.
    """
    names = ("", ".ops", ".ops.boxes", ".transforms", ".transforms.functional")
    modules = {f"torchvision{n}": types.ModuleType(f"torchvision{n}") for n in names}
    _, ops, boxes, transforms, functional = modules.values()
    ops.boxes, transforms.functional = boxes, functional  # type: ignore[attr-defined]
    boxes.batched_nms = _best_of_overlapping  # type: ignore[attr-defined]
    functional.to_tensor = lambda a: t32(a).permute(2, 0, 1)  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, modules):
        path = str(unpacked("facenet-pytorch"))
        with mock.patch.object(sys, "path", [path, *sys.path]):
            from facenet_pytorch.models import mtcnn
    return mtcnn.MTCNN(**options)


def _found(size: int) -> dict[str, np.ndarray]:
    from PIL import Image

    d, rng, out = detector(keep_all=True, min_face_size=40), np.random.default_rng(0), []
    for picture in data.pictures():
        im = Image.fromarray(picture)
        im.thumbnail((1280, 1280))
        boxes, _ = d.detect(im)
        for box in [] if boxes is None else boxes:
            side = max(box[2] - box[0], box[3] - box[1])
            for k in range(10):
                s = side * rng.uniform(0.95, 1.5)
                cx, cy = ((box[i] + box[i + 2]) / 2 + rng.normal() * 0.06 * side for i in (0, 1))
                crop = im.crop((int(cx - s / 2), int(cy - s / 2), int(cx + s / 2), int(cy + s / 2)))
                a = np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR))
                a = (a[:, ::-1] if k % 2 else a) * rng.uniform(0.7, 1.2)
                out.append(np.clip(a, 0, 255).astype(np.uint8))
    return {"x": np.stack(out)}


def crops(size: int) -> np.ndarray:
    """[faces, 10, size, size, 3] uint8: ten crops of each face, moved, scaled, mirrored, lighter and darker."""
    x = data.cached("faces" if size == 64 else f"faces_{size}", lambda: _found(size))["x"]
    return x.reshape(len(x) // 10, 10, *x.shape[1:])


def grey(a: np.ndarray) -> np.ndarray:
    """Luminance of RGB pictures."""
    return a @ np.array([0.299, 0.587, 0.114])


def seen_by(stage: str) -> np.ndarray:
    """[crops, 3, n, n] float32: what the detector hands to one of its networks on the photographs, shuffled."""
    from PIL import Image

    def make() -> dict[str, np.ndarray]:
        d = detector(keep_all=True, min_face_size=24, thresholds=[0.6, 0.6, 0.6])
        seen: list[np.ndarray] = []
        getattr(d, stage).register_forward_hook(lambda module, a, out: seen.append(a[0].numpy().copy()))
        for picture in data.pictures():
            im = Image.fromarray(picture)
            im.thumbnail((640, 640))
            with torch.no_grad():
                d.detect(im)
        return {"x": np.random.default_rng(0).permutation(np.concatenate(seen))[:1000]}

    return data.cached(f"{stage}_crops", make)["x"]
