"""What the command prints, and to whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PRINTS_AND_WRITES = """
import sys
from pathlib import Path
from micronpu.cli import console
out = console.output()
for _ in range(100):
    out.print("x" * 5000)
Path(sys.argv[1]).write_text("written")
"""


def test_a_reader_that_goes_away_stops_no_writing(tmp_path: Path) -> None:
    """As in `micronpu compile ... | head -3`: the report is printed before the program is written."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", PRINTS_AND_WRITES, str(tmp_path / "model.pte")]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "model.pte").read_text() == "written"
