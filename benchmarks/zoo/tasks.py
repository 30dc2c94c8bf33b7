"""Tasks and rows that several networks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from benchmarks.zoo import data, faces
from benchmarks.zoo.network import Figures, Loaded, Outputs, Row, mean, output, share, t32

Task = Callable[[Outputs, Outputs], Figures]


def detections(size: int, boxes: int = 0, scores: int = 1) -> Task:
    """Is anything found in a picture, and where? For detectors of MediaPipe's kind, with logits.

    Args:
        size: of the picture, in pixels.
        boxes: which output has the offsets [1, anchors, values].
        scores: which output has the logits [1, anchors, 1].
    """

    def task(r: Outputs, g: Outputs) -> Figures:
        a, b = (output(y, scores)[..., 0] for y in (r, g))
        fa, fb, best = a.amax(1) > 0, b.amax(1) > 0, a.argmax(1)
        rows = torch.arange(len(a))
        error = (output(r, boxes)[rows, best] - output(g, boxes)[rows, best]).abs()[fa]
        return {
            "pictures": len(a),
            "found": int(fa.sum()),
            "decisions_equal": share(fa == fb),
            "same_best_anchor": share((best == b.argmax(1))[fa]),
            f"box_error_px_of_{size}": mean(error[:, :4], 3),
            "points_error_px": mean(error[:, 4:], 3),
        }

    return task


def points(size: int, each: int, k: int = 0) -> Task:
    """Where are the points of a face? Agreement is 1 less the mean distance by the picture's size.

    Args:
        size: of the picture, in the unit of the points.
        each: values of a point; the first two count.
        k: which output has the points.
    """

    def task(r: Outputs, g: Outputs) -> Figures:
        a, b = (output(y, k).reshape(len(y), -1, each)[..., :2] for y in (r, g))
        distance = (a - b).norm(dim=-1) / size
        return {
            "pictures": len(a),
            "agreement": round(1 - distance.mean().item(), 4),
            "error_percent_of_size": mean(100 * distance, 3),
            "worst_percent_of_size": round(100 * distance.max().item(), 2),
        }

    return task


def masks(r: Outputs, g: Outputs) -> Figures:
    """Which pixels belong to it? Overlap of masks above 0.5."""
    a, b = output(r) > 0.5, output(g) > 0.5
    both, either = (a & b).sum().item(), (a | b).sum().item()
    return {"pictures": len(a), "share": share(a), "overlap": round(both / max(1, either), 4)}


def classes(r: Outputs, g: Outputs) -> Figures:
    """Which class is likeliest?"""
    a, b = output(r), output(g)
    return {
        "rows": len(a),
        "same_class": share(a.argmax(1) == b.argmax(1)),
        "mean_abs_of_probabilities": mean((a - b).abs()),
    }


def squares(size: int, low: float, high: float) -> Callable[[Path, Task], Loaded]:
    """Loads a file that looks at square pieces of photographs, lighter and darker, from `low` to `high`."""

    def load(path: Path, task: Task) -> Loaded:
        pieces = data.squares(size, 120, 8, 14, 0.45, light=True)
        rows = [(t32(a / 255 * (high - low) + low)[None],) for a in pieces]
        return Loaded(None, rows[::2], rows[1::2], task)

    return load


def face_rows(size: int, of: Callable[[np.ndarray], np.ndarray]) -> tuple[list[Row], list[Row]]:
    """Crops of faces to calibrate and of other faces to judge, [size, size, 3] 0 to 255 through a function."""
    from PIL import Image

    def rows(found: np.ndarray, n: int) -> list[Row]:
        pictures = found.reshape(-1, *found.shape[2:])
        taken = pictures[np.linspace(0, len(pictures) - 1, n).astype(int)]
        small = [np.asarray(Image.fromarray(a).resize((size, size), Image.Resampling.BILINEAR)) for a in taken]
        return [(t32(of(a.astype(np.float32)))[None],) for a in small]

    x = faces.crops(192)
    return rows(x[::2], 60), rows(x[1::2], 100)
