"""What the command prints, and to whom."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from micronpu.cli import console

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


@pytest.mark.parametrize("quiet", [False, True])
def test_long_work_shows_lines_without_a_terminal(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each twenty seconds, on standard error, also within a step; a short command prints none."""
    monkeypatch.setattr(console, "_quiet", quiet)
    with console.progress() as notify:
        notify("export", 1.0)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(console, "SECONDS", 0.05)
    with console.progress() as notify:
        notify("choose", 0.4)
        time.sleep(0.5)
    out, errors = capsys.readouterr()
    assert out == "" and set(errors.splitlines()) == (set() if quiet else {"Choosing the precision: 40%"})
