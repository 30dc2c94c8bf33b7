"""What a module of tests computes in a process whose hashes are others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from importlib import import_module
sys.path.insert(0, sys.argv[1])
print(hash("x"), *import_module(sys.argv[2]).digests())
"""


def digests_of_another_process(module: str) -> list[str]:
    """What ``digests()`` of a module gives under another hash seed."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(Path(__file__).parents[2]), module],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "4242"},
        timeout=300,
    )
    other, *theirs = done.stdout.split()
    assert int(other) != hash("x"), "both processes hash alike, so that the comparison says nothing"
    return theirs
