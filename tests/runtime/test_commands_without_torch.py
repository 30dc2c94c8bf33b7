"""Commands that only look at a finished program do not import torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"

_CODE = """
import sys
from micronpu.cli.main import app
golden, folder = sys.argv[1:]
for command in (
    ["deploy", golden + "/neutron.pte", "--for", "imxrt700", "-o", folder],
    ["inspect", golden + "/neutron.pte"],
    ["disassemble", golden + "/ethosu-tosa.pte"],
):
    try:
        app(command)
    except SystemExit as end:
        assert not end.code, command
    assert not {"torch", "torchao", "executorch.exir"} & set(sys.modules), command
"""


def test_commands_on_finished_programs_import_no_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CODE, str(GOLDEN), str(tmp_path / "firmware")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "firmware" / "model_vectors.h").is_file()


_BOTH_RUNTIMES = """
import sys
import numpy as np
from micronpu.runtime import ArrayProgram, HostProgram
path = sys.argv[1]
with ArrayProgram(path) as program:
    arrays = [np.zeros(x.shape, x.dtype) for x in program.inputs]
    (first,) = program.run_arrays(*arrays)
    assert program.is_native and "torch" not in sys.modules
import torch
with HostProgram(path) as program:
    (second,) = program.run(*map(torch.from_numpy, arrays))
assert np.array_equal(first, second.numpy())
"""


@pytest.mark.sweep
def test_the_runtime_with_torch_after_the_one_without_says_nothing() -> None:
    command = [sys.executable, "-c", _BOTH_RUNTIMES, str(GOLDEN / "neutron.pte")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == done.stdout == ""
