"""What a user's file or shell takes away from a command is a sentence, and what it prints cannot be obeyed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from micronpu.base.errors import FileError, ModelError, OptionError
from micronpu.base.files import check_new_folder, make_folder
from micronpu.cli import console
from micronpu.deploy.csource import RESERVED
from micronpu.deploy.deployment import Source, deploy_together

MISBEHAVES = {
    "import os, shutil; shutil.rmtree(os.path.dirname(os.path.abspath(__file__)))": "deletes the folder that",
    "import os; os.close(1)": r"closes the command's sys\.stdout\. Try: leave out os\.close\(1\)",
    "import os; os.close(2)": r"closes the command's sys\.stderr",
    "class Own(BaseException): pass\nraise Own('why')": r"cannot be imported in line 2: Own: why\.",
    "import sys; sys.exit(0)": r"cannot be imported in line 1: SystemExit: 0\.",
    "import sys; sys.path.clear(); raise ValueError": r"cannot be imported in line 1: ValueError\.",
}
LOADS = """
import os, sys
from pathlib import Path
from micronpu.base.errors import ModelError
from micronpu.cli.files import UserFile
told = os.dup(2)
try:
    UserFile(Path("model.py"))
except ModelError as error:
    os.write(told, str(error).encode())
"""


@pytest.mark.parametrize("text", MISBEHAVES)
def test_a_model_that_takes_something_away_is_a_sentence(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "model.py").write_text(text)
    done = subprocess.run([sys.executable, "-c", LOADS], cwd=folder, capture_output=True, text=True)
    with pytest.raises(ModelError, match=MISBEHAVES[text]):
        raise ModelError(done.stderr)
    assert done.stderr.startswith("model.py ") and "Traceback" not in done.stderr


def test_a_model_that_closes_pythons_output_is_fine(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import sys; sys.stdout.close(); sys.stderr.close()")
    prints = "\nprint('out')\nprint('error', file=sys.stderr)\n"
    done = subprocess.run([sys.executable, "-c", LOADS + prints], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "error\n")


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_a_command_without_a_standard_stream_works(tmp_path: Path, closed: str) -> None:
    command = [f'exec "$0" -m micronpu.cli targets --json {closed}', sys.executable]
    done = subprocess.run(["sh", "-c", *command], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit is POSIX's")
@pytest.mark.parametrize("write", ["tempfile.mkdtemp()", "open('x', 'wb', 0).write(b'1')"])
def test_a_limit_of_the_size_of_files_is_a_sentence(tmp_path: Path, write: str) -> None:
    code = f"import tempfile; from micronpu.cli.console import guarded; guarded(lambda debug=False: {write})()"
    command = ['ulimit -f 0; exec "$0" -B -c "$1"', sys.executable, code]
    done = subprocess.run(["sh", "-c", *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: The output cannot be written: ") and "Try: another place" in done.stderr


def test_a_deleted_folder_is_a_sentence(tmp_path: Path) -> None:
    command = ['mkdir gone; cd gone; rmdir ../gone; exec "$0" -m micronpu.cli inspect x.pte', sys.executable]
    done = subprocess.run(["sh", "-c", *command], capture_output=True, text=True, cwd=tmp_path)
    sentence = "Error: The folder that the command was started in is no longer there. Try: cd $HOME.\n"
    assert (done.returncode, done.stderr) == (1, sentence)


@pytest.mark.parametrize("name", ["\x1b[2J", "\x01", "\x9b31m", "a\u202eb", "\u2028", "a\tb\rc"])
def test_no_name_is_obeyed_by_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    table = Table()
    table.add_column("name", no_wrap=True)
    table.add_row(Text(name))
    console.output().print(Text(name), table)
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c in "\n " for c in shown), repr(shown)
    assert "\\" in shown or "\t" in name


def test_folders_for_outputs_are_made(tmp_path: Path) -> None:
    check_new_folder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    assert make_folder(tmp_path / "a" / "b").is_dir() and make_folder(tmp_path / "a").is_dir()
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileError, match=f"{wrong} cannot be written: {tmp_path / 'file'} is a file, not a folder"):
            check_new_folder(wrong)
    (tmp_path / "nowhere").symlink_to("there")
    with pytest.raises(FileError, match="nowhere does not exist"):
        check_new_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["int", "class", "stdint", "main", "text"])
def test_no_name_means_something_else_in_c(tmp_path: Path, name: str) -> None:
    assert name in RESERVED
    with pytest.raises(OptionError, match=f"^The name '{name}' means something else .* Try: {name}_model.$"):
        deploy_together([Source(b"", name=name)], tmp_path / "out")
    assert not os.listdir(tmp_path)
