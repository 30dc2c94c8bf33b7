"""Makes pictures of garments on noise from FashionMNIST, and trains the detector on them: two minutes on one core.

python train.py fmnist.npz      # arrays train_x [N, 28, 28] uint8 and train_y [N]; writes weights.npz, pictures.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from model import CELL, CLASSES, SIZE, Detector

LABELS = {1: 0, 8: 1, 9: 2}  # FashionMNIST's numbers of the classes
HERE = Path(__file__).parent


def scene(random: np.random.Generator, garments: list[np.ndarray]) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """A picture [SIZE, SIZE] from 0 to 1, and its objects as class, left, top, right, bottom in pixels."""
    coarse = torch.from_numpy(random.random((1, 1, 7, 7), np.float32))
    picture = 0.35 * F.interpolate(coarse, (SIZE, SIZE), mode="bilinear")[0, 0].numpy()
    picture += 0.08 * random.random((SIZE, SIZE), np.float32)
    objects: list[tuple[int, ...]] = []
    for _ in range(random.integers(1, 4)):
        kind = int(random.integers(len(CLASSES)))
        side = int(random.integers(24, 41))
        source = garments[kind][random.integers(len(garments[kind]))].astype(np.float32) / 255
        if random.random() < 0.5:
            source = source[:, ::-1].copy()
        garment = F.interpolate(torch.from_numpy(source)[None, None], (side, side), mode="bilinear")[0, 0].numpy()
        rows, columns = (np.flatnonzero(garment.max(axis) > 0.15) for axis in (1, 0))
        garment = garment[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        height, width = garment.shape
        top, left = (int(random.integers(0, SIZE - n + 1)) for n in (height, width))
        box = (left, top, left + width, top + height)
        if any(box[0] < o[3] and o[1] < box[2] and box[1] < o[4] and o[2] < box[3] for o in objects):
            continue  # they do not overlap
        part = picture[top : top + height, left : left + width]
        np.copyto(part, np.maximum(part, garment), where=garment > 0.1)
        objects.append((kind, *box))
    return picture.astype(np.float32), objects


def targets(objects: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores [C, 12, 12], distances [4, 12, 12] in cells, and which cells have some: those near the centre of a box."""
    cells = SIZE // CELL
    scores, distances = np.zeros((len(CLASSES), cells, cells), np.float32), np.zeros((4, cells, cells), np.float32)
    inside = np.zeros((cells, cells), bool)
    centres = (np.arange(cells) + 0.5) * CELL
    for kind, left, top, right, bottom in objects:
        across, down = (left + right) / 2, (top + bottom) / 2
        near = (np.abs(centres[:, None] - down) <= 0.75 * CELL) & (np.abs(centres[None] - across) <= 0.75 * CELL)
        for i, j in np.argwhere(near):
            scores[kind, i, j], inside[i, j] = 1.0, True
            x, y = centres[j], centres[i]
            distances[:, i, j] = np.array([x - left, y - top, right - x, bottom - y]) / CELL
    return scores, np.maximum(distances, 0), inside


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    with np.load(sys.argv[1]) as data:
        x, y = data["train_x"], data["train_y"]
    garments = [x[y == label].reshape(-1, 28, 28) for label in LABELS]
    held_back = [g[-40:] for g in garments]
    garments = [g[:-40] for g in garments]
    made = [scene(random, garments) for _ in range(1500)]
    pictures = torch.from_numpy(np.stack([p for p, _ in made]))[:, None]
    scores, distances, inside = (
        torch.from_numpy(np.stack(t)) for t in zip(*(targets(o) for _, o in made), strict=True)
    )
    model, epochs, batch = Detector(), 12, 32
    steps = epochs * (len(made) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(made))[: steps // epochs * batch].split(batch):
            found, sides = model(pictures[rows])
            gap = (scores[rows] - found).abs() ** 2  # focal: cells that are right already do not count
            loss = (gap * F.binary_cross_entropy(found, scores[rows], reduction="none")).sum()
            seen = inside[rows][:, None].expand_as(sides)
            loss = (loss + F.l1_loss(sides[seen], distances[rows][seen], reduction="sum")) / batch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() / (steps // epochs)
        print(f"epoch {epoch}: loss {total:.3f}", flush=True)
    weights = {k: v.numpy().astype(np.float16) for k, v in model.state_dict().items() if v.is_floating_point()}
    np.savez_compressed(HERE / "weights.npz", **weights)
    kept = [scene(random, held_back) for _ in range(48)]
    boxes = np.array([(n, *o) for n, (_, objects) in enumerate(kept) for o in objects], np.int16)
    shown = np.stack([(p * 255).clip(0, 255).astype(np.uint8) for p, _ in kept])
    np.savez_compressed(HERE / "pictures.npz", pictures=shown, boxes=boxes)


if __name__ == "__main__":
    main()
