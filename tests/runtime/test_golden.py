"""Programs of earlier versions: the same integers, or a sentence that names the version."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from micronpu.base.errors import OptionError, PayloadError
from micronpu.runtime import ArrayProgram, Digest, HostProgram

FOLDER = Path(__file__).parents[1] / "golden"
FILES = sorted(FOLDER.glob("*.pte"))


def test_there_is_one_of_each_kind() -> None:
    assert {f.stem for f in FILES} == {"neutron", "combined", "ethosu-litert", "ethosu-tosa", "cortexm"}
    assert sum(f.stat().st_size for f in FOLDER.iterdir() if f.is_file()) < 100_000


@pytest.mark.parametrize("kind", [HostProgram, ArrayProgram])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_open_program_is_no_value(kind, copied):
    with kind(FOLDER / "neutron.pte") as program:
        with pytest.raises(OptionError, match=rf"^A {kind.__name__} is a program that is open.* Try: "):
            copied(program)
        assert program.inputs


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_program(path: Path) -> None:
    arrays = np.load(path.with_suffix(".npz"))
    inputs = [torch.from_numpy(arrays[name]) for name in arrays.files if name.startswith("input")]
    expected = [arrays[name] for name in arrays.files if name.startswith("output")]
    try:
        program = HostProgram(path)
    except PayloadError as error:
        assert "version" in str(error)
        return
    assert program.digest is Digest.RIGHT
    outputs = program.run(*inputs)
    assert len(outputs) == len(expected) > 0
    for got, wanted in zip(outputs, expected, strict=True):
        assert np.array_equal(got.numpy(), wanted)
        assert np.unique(wanted).size > 1, "says nothing"
