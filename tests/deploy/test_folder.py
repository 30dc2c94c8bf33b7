"""The folder of `deploy`: whole or not at all, also where it takes the place of another."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import FileError, ModelError
from micronpu.cli.main import app
from micronpu.deploy.folder import check_target, write_folder
from micronpu.deploy.vectors import from_arrays
from micronpu.program.io import io_of
from micronpu.program.plan import read_plan
from tests.compile.small import linear
from tests.deploy import programs

FILES = {"model.h": b"new", "sub/model.c": b"new"}


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder of which one file is the user's, with another name for it, and a link that leads nowhere."""
    made = tmp_path / "firmware"
    (made / "sub" / "own").mkdir(parents=True)
    for name in ("model.h", "sub/model.c", "gone.c", "sub/own/notes.txt"):
        (made / name).write_bytes(b"old")
    (made / "link").symlink_to("nowhere")
    (made / "sub" / "folders").symlink_to("own")
    made.chmod(0o750)
    return made


@pytest.mark.parametrize("platform", ["linux", "another"])
def test_a_folder_is_replaced_and_what_is_of_others_stays(
    old: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    own, before = (old / "gone.c").stat().st_ino, old.stat().st_ino
    write_folder(old, FILES, force=True)
    kept = {"gone.c": b"old", "sub/own/notes.txt": b"old"}
    assert content(old) == {**FILES, **kept}
    assert (old / "gone.c").stat().st_ino == own and old.stat().st_ino != before
    assert os.readlink(old / "link") == "nowhere" and os.readlink(old / "sub" / "folders") == "own"
    assert old.stat().st_mode & 0o777 == 0o750
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("platform", ["linux", "another"])
def test_a_failure_leaves_the_old_folder(old: Path, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    before = content(old)
    with pytest.raises(FileError, match="cannot be written: Is a directory"):
        write_folder(old, {**FILES, "sub/own": b"a folder has this name"}, force=True)
    rename = os.rename

    def fails(a: Path, b: Path) -> None:
        if Path(a).name == "new":
            raise OSError(28, "No space left on device")
        rename(a, b)

    if platform == "another":
        monkeypatch.setattr(os, "rename", fails)
        with pytest.raises(FileError, match="No space left"):
            write_folder(old, FILES, force=True)
    assert content(old) == before and list(old.parent.iterdir()) == [old]


WATCHES = """
import sys, threading
from pathlib import Path
from micronpu.deploy.folder import write_folder
folder = Path(sys.argv[1])
names = [f"{i}.h" for i in range(50)]
ended = threading.Event()

def write():
    for version in range(40):
        write_folder(folder, dict.fromkeys(names, str(version).encode()), force=True)
    ended.set()

threading.Thread(target=write).start()
import os
while not ended.is_set():
    try:
        here = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        sys.exit("for a moment there is none")
    found = set()
    for name in names:
        try:
            file = os.open(name, os.O_RDONLY, dir_fd=here)
        except FileNotFoundError:
            break  # the old one is being removed, which has got another name
        found.add(os.read(file, 9))
        os.close(file)
    os.close(here)
    if len(found) > 1:
        sys.exit(f"a mix of {found}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="folders are exchanged in one step on Linux alone")
def test_nobody_sees_a_mix(tmp_path: Path) -> None:
    folder = tmp_path / "firmware"
    write_folder(folder, {f"{i}.h": b"first" for i in range(50)})
    done = subprocess.run([sys.executable, "-c", WATCHES, str(folder)], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_folder_that_a_command_runs_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell would go on in the old one, which has been removed."""
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    for folder in (Path(), tmp_path):
        with pytest.raises(FileError, match="replaced as a whole, and the command runs in it") as raised:
            check_target(folder, force=True)
        assert raised.value.hint == f"a new folder in it, {folder / 'model'}"
    check_target(Path("model"), force=True)


def test_a_link_to_a_folder_stays_one(old: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(old)
    write_folder(link, FILES, force=True)
    assert link.is_symlink() and content(old)["model.h"] == b"new"


@pytest.mark.parametrize("kind", [k for k in programs.KINDS if k not in ("two", "loop")])
def test_python_and_the_command_write_the_same_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program knows its target, pickled or not. Only the source of the vectors is named differently."""
    monkeypatch.chdir(tmp_path)
    program = programs.program(kind)
    target = program.report.target
    program.deploy("python")
    pickle.loads(pickle.dumps(program)).deploy("pickled")
    program.save("model.pte")
    np.savez("rows.npz", *(np.concatenate(column) for column in zip(*program.rows[:4], strict=True)))
    words = ["deploy", "model.pte", "--for", target, "--vectors", "rows.npz", "-o", "shell"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    python, pickled, shell = (content(tmp_path / name) for name in ("python", "pickled", "shell"))
    assert python == pickled
    assert {name: data.replace(b"calibration rows", b"rows.npz") for name, data in python.items()} == shell
    assert b"No chip is named" not in python["README.md"] and target.encode() in python["model.h"]


@pytest.mark.parametrize("command", ["run", "inspect", "board run"])
def test_a_folder_in_place_of_a_program_is_refused_with_the_program_in_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    programs.program("ethosu_int8").deploy("my-board")
    (name,) = Path("my-board").glob("*.pte")
    done = CliRunner().invoke(app, [*command.split(), "my-board"])
    said = " ".join((done.output + done.stderr).split())
    assert done.exit_code and f"Try: {name}; its firmware, `micronpu board build my-board`." in said


def test_arrays_that_are_no_inputs_are_left_out_by_name() -> None:
    plan, summary = read_plan(programs.program("ethosu_int8").buffer)
    inputs, outputs = io_of(plan, summary.named_data, None)
    names = [f"x{i}" for i in range(len(inputs))]
    every = dict.fromkeys([*names, "y", "output_0"], np.zeros(1, np.int8))
    for source in ("rows.npz", f"rows.npz:{','.join(every)}"):
        with pytest.raises(ModelError, match=f"has 1 input. Try: --vectors rows.npz:{','.join(names)},output_0."):
            from_arrays(every, inputs, outputs, lambda row: (), source)
    with pytest.raises(ModelError, match="Try: one array per input"):
        from_arrays({}, inputs, outputs, lambda row: (), "rows.npz")


def test_a_program_for_a_laptop_is_not_built(tmp_path: Path) -> None:
    programs.program("neutron").deploy(tmp_path / "board")
    done = CliRunner().invoke(app, ["board", "build", str(tmp_path / "board")])
    said = " ".join(done.stderr.split())
    assert done.exit_code == 1 and "runs on a laptop only" in said and "--converter sdk" in said


@pytest.mark.parametrize(("core", "chips"), [("cortex-m33", "nrf5340, rp2350, CHIP.toml"), ("cortex-m55", "CHIP.toml")])
def test_a_core_is_no_chip(core: str, chips: str, tmp_path: Path) -> None:
    x = torch.ones(1, 8)
    program = micronpu.compile(linear(8, 4).eval(), x, core, calibration=[x], verify=False)
    (note,) = (note for note in program.deploy(tmp_path / "board").notes if "sizes of memories" in note)
    assert note.startswith(f"{core} is no chip: ") and f"Try: --for {chips} (a chip file)." in note
