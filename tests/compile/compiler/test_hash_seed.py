"""The same inputs give the same bytes in a process whose hashes are others, and that exports as torch does it.

This process may look up less than torch would (`tests.quicker`); the other one does without that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compile.compiler import test_random_programs
from tests.compile.partition import test_mixed_programs

MODULES = (test_random_programs, test_mixed_programs)
CODE = """
import sys
from importlib import import_module
sys.path.insert(0, sys.argv[1])
print(hash("x"), *(digest for name in sys.argv[2:] for digest in import_module(name).digests()))
"""


@pytest.mark.slow  # `.ci/run` compares programs made with other seeds, `tests.same_bytes`
def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(Path(__file__).parents[3]), *(module.__name__ for module in MODULES)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "4242"},
        timeout=300,
    )
    other, *theirs = done.stdout.split()
    assert int(other) != hash("x"), "both processes hash alike, so that the comparison says nothing"
    assert theirs == [digest for module in MODULES for digest in module.digests()]
    assert len(set(theirs)) == len(theirs) == len(test_random_programs.SOME) + 2 * len(test_mixed_programs.SOME)
