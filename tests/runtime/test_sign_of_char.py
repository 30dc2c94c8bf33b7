"""A plain `char` has a sign on x86-64 and none on aarch64: native code computes the same integers with either."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import aarch64

from micronpu.host import build

FOLDER = Path(__file__).parents[1] / "golden"
KINDS = sorted(path.stem for path in FOLDER.glob("*.pte"))
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["-fsigned-char", "-funsigned-char"])
def test_golden_integers_with_either_sign_of_char(sign: str, tmp_path: Path) -> None:
    compiler = " ".join((*build.find_compiler(), sign))
    environment = {**os.environ, "CXX": compiler, "MICRONPU_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", aarch64.RUN, str(FOLDER), *KINDS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == KINDS
    assert list(tmp_path.rglob("libmicronpu-*.so")), "the compiler with this flag made no plug-in"
    assert list(tmp_path.rglob("libethosu_sim-*.so")), "the compiler with this flag made no simulator"
