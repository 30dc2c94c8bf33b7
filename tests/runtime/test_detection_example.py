"""The example `object_detection`: its program finds the garments of pictures that it has not seen."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import micronpu

FOLDER = Path(__file__).parents[2] / "examples" / "object_detection"


@pytest.fixture(scope="module")
def demo():
    before = sys.modules.pop("model", None)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("demo")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("demo", "model"):
            sys.modules.pop(name, None)
        if before is not None:
            sys.modules["model"] = before


def test_garments_are_found(demo, tmp_path):
    with np.load(FOLDER / "pictures.npz") as data:
        pictures, boxes = data["pictures"], data["boxes"]
    inputs = [torch.from_numpy((p[None, None] / np.float32(255)).astype(np.float32)) for p in pictures]
    program = micronpu.compile(demo.load(), inputs[0], "imxrt700-neutron", calibration=inputs[:16])
    assert not program.report.host and program.report.partitions == 1
    right = missed = wrong = 0
    for number in range(16, 48):
        scores, distances = (y[0].numpy() for y in program.run(inputs[number]))
        objects = demo.decode(scores, distances)
        real = [(int(kind), box) for n, kind, *box in boxes if n == number]
        hits = [any(k == kind and demo.overlap(b, np.array(box)) > 0.5 for _, k, b in objects) for kind, box in real]
        right, missed = right + sum(hits), missed + len(hits) - sum(hits)
        wrong += max(len(objects) - sum(hits), 0)
    # in float 42 of 47, and 4 that are not there
    assert right + missed == 47 and right >= 40 and wrong <= 6, (right, missed, wrong)
    file = tmp_path / "boxes.png"
    demo.draw(pictures[16], objects, file)
    assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 500


def test_overlapping_finds_are_one(demo):
    scores, distances = np.zeros((3, 12, 12), np.float32), np.ones((4, 12, 12), np.float32)
    scores[1, 5, 5], scores[1, 5, 6], scores[2, 9, 1] = 0.9, 0.8, 0.6
    distances[:] = 2
    (first, kind, box), second = demo.decode(scores, distances)
    assert (round(first, 3), kind, box.tolist()) == (0.9, 1, [28, 28, 60, 60]) and second[1] == 2
