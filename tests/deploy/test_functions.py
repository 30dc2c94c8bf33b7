"""Small functions beside a network: C against their definitions in Python, 1,000 rows each, here and on two cores."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from micronpu.base.errors import MicroNpuError, ModelError
from micronpu.deploy.functions import DEFINITIONS, Smooth, exponential, nms, resize, ssd_decode, topk
from micronpu.deploy.shared import FUNCTIONS
from tests.deploy import firmware, programs
from tests.deploy.host_build import host
from tests.tools import need

HERE = Path(__file__).parent
ROWS, ONE = 1000, 1 << 24


class Numbers:
    """The generator of `functions.c`."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def __call__(self, below: int) -> int:
        self.state = (1664525 * self.state + 1013904223) & 0xFFFFFFFF
        return (self.state >> 8) % below

    def list(self, count: int, below: int, less: int = 0) -> list[int]:
        return [self(below) - less for _ in range(count)]


def _resize(number: Numbers) -> list[int]:
    width, height, channels = 1 + number(24), 1 + number(24), 1 + number(3)
    w, h = 1 + number(width), 1 + number(height)
    x, y = number(width - w + 1), number(height - h + 1)
    new_width, new_height, how = 1 + number(20), 1 + number(20), number(6)
    picture = np.array(number.list(width * height * channels, 256), np.uint8).reshape(height, width, channels)
    tables = np.array(number.list(3 * 256, 256, 128), np.int8).reshape(3, 256)
    table = [None, tables[0], tables[:channels]][how % 3]
    made = resize(picture, new_height, new_width, crop=(x, y, w, h), table=table, channels_first=how > 2)
    return [0, *made.flatten().tolist()]


def _decode(number: Numbers) -> list[int]:
    count = 1 + number(12)
    step, zero = (1 + number(ONE)) / ONE, number(256) - 128
    variances = (1 + number(ONE)) / ONE, (1 + number(ONE)) / ONE
    deltas, anchors = [], []
    for _ in range(4 * count):
        deltas.append(number(256) - 128)
        anchors.append(number(131073))
    arrays = np.array(deltas, np.int8).reshape(-1, 4), np.array(anchors, np.int32).reshape(-1, 4)
    return ssd_decode(*arrays, step=step, zero_point=zero, variances=variances).flatten().tolist()


def _nms(number: Numbers) -> list[int]:
    count, most, overlap, threshold = number(13), number(12), number(65537), number(8) - 4
    boxes, scores = [], []
    for _ in range(count):
        box = [0, 0, 0, 0]
        for j in range(2):
            box[j] = number(4) * 8192
            box[j + 2] = box[j] + number(5) * 8192
        boxes.append(box)
        scores.append(number.list(3, 16, 8))
    arrays = np.array(boxes, np.int32).reshape(-1, 4), np.array(scores, np.int8).reshape(-1, 3)
    kept = nms(*arrays, threshold=threshold, overlap=overlap / 65536, most=most)
    return [len(kept), *(value for k in kept for value in (k.box, k.kind, k.score))]


def _smooth(number: Numbers) -> list[int]:
    classes, window, threshold, rest = 1 + number(5), 1 + number(8), number(100) - 50, number(4)
    smooth = Smooth(classes, window=window, threshold=threshold, rest=rest, ignore=number(classes))
    return [smooth.push(np.array(number.list(classes, 256, 128), np.int8)) for _ in range(30)]


def _topk(number: Numbers) -> list[int]:
    count, most = number(41), number(41)
    rows = []
    for _ in range(count):
        row = [number(16) - 8, number(65536) - 32768, (number(1000) - 500) * 0.125]
        rows.append([*row[:2], row[2] if number(8) else math.nan])
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    found: list[int] = []
    for column, dtype in zip(columns, (np.int8, np.int16, np.float32), strict=True):
        places = topk(np.array(column, dtype), most)
        found += [len(places), *places]
    return found


DEFINED: tuple[Callable[[Numbers], Iterable[int]], ...] = (_resize, _decode, _nms, _smooth, _topk)


@functools.cache
def expected() -> str:
    lines = []
    for place, function in enumerate(DEFINED):
        for row in range(ROWS):
            total = 2166136261
            for value in function(Numbers(place * 100000 + row)):
                for byte in (value & 0xFFFFFFFF).to_bytes(4, "little"):
                    total = (total ^ byte) * 16777619 & 0xFFFFFFFF
            lines.append(f"{total:x}\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("functions") / "out"
    programs.program("host").deploy(folder, functions=tuple(DEFINITIONS))
    assert "micronpu_resize.c" in (folder / "CMakeLists.txt").read_text()
    assert "micronpu_nms.h" in (folder / "README.md").read_text()
    path = folder / "functions.c"
    path.write_text((HERE / "functions.c").read_text())
    return [path, *(folder / f"micronpu_{name}.c" for name in DEFINITIONS)]


@pytest.mark.sweep
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_same_bits_on_this_machine(compiler: str, sources: list[Path], tmp_path: Path) -> None:
    need(compiler)
    flags = [compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover"] if compiler == "gcc" else []
    host([*flags, *map(str, sources), "-o", str(tmp_path / "app")])
    assert host([str(tmp_path / "app")]) == expected()


@pytest.mark.sweep
@pytest.mark.parametrize("board", firmware.BOARDS)
def test_the_same_bits_on_an_emulated_core(board: str, sources: list[Path], tmp_path: Path) -> None:
    need("arm-none-eabi-gcc", "qemu-system-arm")
    objects = [firmware.compile_source(path, tmp_path, firmware.BOARDS[board]) for path in sources]
    assert firmware.run(firmware.link(objects, board, tmp_path), board) == expected()


def test_what_the_definitions_mean() -> None:
    """Against floating point: these are the functions that one knows, not just two programs that agree."""
    x = np.linspace(-8, 8, 4001)
    assert np.all(np.abs(exponential(np.round(x * ONE)) / 65536 - np.exp(x)) <= 1.5 / 65536 + np.exp(x) * 1e-6)
    ramp = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))[..., None]
    assert np.array_equal(resize(ramp, 16, 16)[..., 0], ramp[..., 0].astype(int) - 128)
    half = resize(ramp, 8, 8)[0, :, 0].astype(int) + 128
    assert half.tolist() == [(int(ramp[0, 2 * i, 0]) + int(ramp[0, 2 * i + 1, 0])) // 2 for i in range(8)]
    anchors = np.array([[32768, 32768, 16384, 8192]], np.int32)
    box = ssd_decode(np.array([[10, -20, 30, 0]], np.int8), anchors, step=0.05, zero_point=0)[0] / 65536
    cx, cy, w = 0.5 + 0.1 * 0.5 * 0.25, 0.5 - 0.1 * 1.0 * 0.125, 0.25 * math.exp(0.2 * 1.5)
    assert np.allclose(box, [cx - w / 2, cy - 0.0625, cx + w / 2, cy + 0.0625], atol=3e-5)
    boxes = np.array([[0, 0, 100, 100], [0, 0, 100, 90], [50, 50, 200, 200]], np.int32)
    kept = nms(boxes, np.array([[5], [9], [7]], np.int8), threshold=0, overlap=0.5, most=9)
    assert [k.box for k in kept] == [1, 2]
    smooth = Smooth(2, window=2, threshold=10, rest=2, ignore=1)
    heard = [smooth.push(np.array([0, s], np.int8)) for s in (30, -9, 40, 40, 40, 40)]
    assert heard == [-1, 1, -1, -1, 1, -1]


def test_the_names() -> None:
    assert tuple(DEFINITIONS) == FUNCTIONS


def test_bad_input(tmp_path: Path) -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    for call in (
        lambda: resize(picture.astype(float), 2, 2),
        lambda: resize(picture, 0, 2),
        lambda: resize(picture, 2, 2, crop=(1, 1, 4, 4)),
        lambda: resize(picture, 2, 2, table=[1, 2]),
        lambda: ssd_decode(np.zeros((2, 3), np.int8), np.zeros((2, 3), np.int32), step=1, zero_point=0),
        lambda: ssd_decode(np.zeros((1, 4), np.int8), np.full((1, 4), -1), step=1, zero_point=0),
        lambda: ssd_decode(np.zeros((1, 4), np.int8), np.zeros((1, 4), np.int32), step=16, zero_point=0),
        lambda: nms(np.zeros((1, 4)), np.zeros((1, 4)), threshold=0, overlap=0.5, most=1),
        lambda: Smooth(2, window=0, threshold=1),
        lambda: topk(np.zeros((1, 2), np.int8), 1),
        lambda: topk(np.zeros(2), 1),
        lambda: topk(np.zeros(2, np.int8), -1),
        lambda: Smooth(2, window=1, threshold=1).push(np.zeros(2)),
    ):
        with pytest.raises(ModelError):
            call()
    with pytest.raises(MicroNpuError, match=r"no function `blur`.*resize, ssd_decode, nms, smooth, topk"):
        programs.program("host").deploy(tmp_path / "out", functions=("resize", "blur"))
    assert not (tmp_path / "out").exists()
