"""Arrays from files: their headers are read first."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from micronpu.base.errors import FileError
from micronpu.cli import files
from micronpu.cli.files import load_arrays


def header(shape: tuple[int, ...]) -> bytes:
    memory = io.BytesIO()
    np.lib.format.write_array_header_1_0(memory, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return memory.getvalue()


def bomb(path: Path, shape: tuple[int, ...], size: int) -> Path:
    """An archive with an array of so many bytes, and a header that says so or not."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as file:
        file.write(header(shape) + bytes(size))
    return path


def test_what_is_larger_than_its_array_is_refused(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.npz", (4,), 1 << 20)
    with pytest.raises(FileError, match=r"The array 'a' of .*a\.npz has 1,048,704 bytes, but .*float32\[4\]"):
        load_arrays(str(path))
    with pytest.raises(FileError, match="which takes 4,000,000,000,128"):
        (tmp_path / "a.npy").write_bytes(header((1_000_000_000_000,)))
        load_arrays(str(tmp_path / "a.npy"))


def test_what_is_by_far_larger_than_its_file_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bomb(tmp_path / "a.npz", (1 << 18,), 1 << 20)
    assert load_arrays(str(path))["a"].shape == (1 << 18,)
    monkeypatch.setattr(files, "_UNPACKED", 1 << 16)
    with pytest.raises(FileError, match=r"would be unpacked to 1,048,704 bytes, \d+ times its own size"):
        load_arrays(str(path))


def test_arrays_of_every_form_are_read(tmp_path: Path) -> None:
    made = {
        "a": np.arange(6).reshape(2, 3),
        "b": np.float32(3),
        "c": np.zeros((0, 4), ">i2"),
        "d": np.asfortranarray(np.eye(3)),
    }
    np.savez(tmp_path / "a.npz", **made)
    np.savez_compressed(tmp_path / "b.npz", **made)
    for name in ("a.npz", "b.npz"):
        read = load_arrays(str(tmp_path / name))
        assert all(np.array_equal(read[key], value) for key, value in made.items())
    np.save(tmp_path / "c.npy", made["d"])
    assert np.array_equal(load_arrays(str(tmp_path / "c.npy"))["c"], made["d"])
