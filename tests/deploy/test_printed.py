"""What firmware prints as bytes comes back whole, and a log that is not whole is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from micronpu.base.errors import FileError
from micronpu.board.logs import CALL, RUN, read_log
from micronpu.board.printed import read_printed
from micronpu.cli.main import app
from micronpu.deploy.csource import computed
from micronpu.deploy.deployment import Source, deploy_together
from micronpu.program.plan import read_plan
from tests.deploy import firmware, host_build
from tests.deploy.test_shared import plain

pytestmark = pytest.mark.filterwarnings("ignore")


TOOLS = ("-DMICRONPU_ETDUMP", "-DMICRONPU_ETDUMP_BYTES=163840", "-DET_EVENT_TRACER_ENABLED")


def _printed(folder: Path, *flags: str) -> bytes:
    """What an application prints on this machine, in the runtime of ExecuTorch's wheel."""
    built = host_build.built(folder, folder.parent / "application", "-DMICRONPU_RUNS=2", *flags)
    return subprocess.run([str(built)], capture_output=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("printed") / "firmware"
    deploy_together([Source(plain("two"), "two")], made, target="cortex-m33")
    return host_build.sized(made)


@pytest.fixture(scope="module")
def stepped(folder: Path) -> bytes:
    return _printed(folder, "-DMICRONPU_PRINT_OUTPUTS", "-DMICRONPU_PRINT_VALUES")


@pytest.fixture(scope="module")
def log(folder: Path) -> bytes:
    """With ExecuTorch's tools."""
    library = ("-Wl,--no-as-needed", host_build.libraries()[0], "-lexecutorch_etdump")
    return _printed(folder, "-DMICRONPU_PRINT_OUTPUTS", *TOOLS, *library)


def test_outputs_and_values(stepped: bytes) -> None:
    """The values are what the program's instructions name first, and the last of them is the output."""
    plan, _ = read_plan(plain("two"))
    found = read_printed(stepped, "log")
    assert found.names() == ["two"]
    output = found.outputs_of("two")["output_0"]
    assert output.shape == (4, *plan.values[plan.outputs[0]].tensor.shape)  # type: ignore[union-attr]
    values = found.values_of("two")
    assert [f"{one.instruction}_{one.number}" for one in computed(plan)] == list(values) and len(values) > 1
    assert {one.instruction for one in computed(plan)} == set(range(len(plan.calls)))
    last = next(array for key, array in values.items() if key.endswith(f"_{plan.outputs[0]}"))
    np.testing.assert_array_equal(last, np.concatenate([output, output]))  # a row for each run


@pytest.mark.sweep
def test_the_record_of_executorch(log: bytes) -> None:
    """An ETDump, whose calls are those of the program, in the form in which the runtime writes it."""
    plan, _ = read_plan(plain("two"))
    record = read_printed(log, "log").etdump
    assert record[8:12] == b"ED00" and int.from_bytes(record[:4], "little") == len(record) - 4
    rows = read_log(record, "run.etdump")
    assert rows.form == "ETDump" and [row.times for row in rows.of(RUN)] == [8]
    assert [row.number for row in rows.of(CALL)] == list(range(len(plan.calls)))
    only = b"".join(line + b"\n" for line in log.splitlines() if b"micronpu-etdump" in line)
    assert read_log(only, "console.txt").rows == rows.rows
    with pytest.raises(FileError, match=r"fewer than it says"):
        read_log(record[:-8], "run.etdump")


def test_a_record_of_steps_is_refused(folder: Path, tmp_path: Path) -> None:
    flags = [*firmware.executorch_flags(), "-DMICRONPU_ETDUMP", "-DMICRONPU_PROFILE", "-fsyntax-only"]
    command = ["g++", "-std=c++17", *flags, str(folder / "micronpu_model.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "MICRONPU_ETDUMP is for a build of its own" in done.stderr


def test_runs(log: bytes) -> None:
    """The lines of runs come before the ETDump of the same log."""
    rows = read_log(log, "log")
    assert rows.form == "micronpu" and len(rows.program) in (0, 64)
    assert [(row.kind, row.name, row.times) for row in rows.rows] == [(RUN, "two", 8)]
    lines = log.decode().splitlines()
    with pytest.raises(FileError, match=r"no line `PASS` or `FAIL`"):
        read_log("\n".join(line for line in lines if not line.startswith("PASS")).encode(), "log")


def _lines(*rows: str) -> bytes:
    return "".join(f"12:00:01 {row}\r\n" for row in rows).encode()


WHOLE = (
    "micronpu-output net 0 0 int16:1x2x1x2:0,2,3,1 8 0 AQACAAMA",
    "micronpu-output net 0 0 int16:1x2x1x2:0,2,3,1 8 6 BAA=",
)


def test_axes_come_back_in_the_order_of_the_model() -> None:
    found = read_printed(_lines("hello", *WHOLE), "log").outputs_of("net")["output_0"]
    assert found.dtype == np.int16 and found.tolist() == [[[[[1, 3]], [[2, 4]]]]]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (WHOLE[:1], "ends before the 8 bytes of output data do"),
        (WHOLE[1:], "has lost lines before"),
        ((WHOLE[0], WHOLE[0]), "has lost lines before"),
        ((WHOLE[0][:-1],), "has a damaged line"),
        ((WHOLE[0], WHOLE[1].replace("BAA=", "BAAFAAUA")), "more bytes than it says"),
        ((WHOLE[0].replace(" 8 0", " 6 0"),), "6 bytes for a tensor"),
        ((WHOLE[0].replace("int16", "int12").replace(" 8 0", " 6 0"),), "unknown kind"),
        ((WHOLE[0].replace("0,2,3,1", "0,2,2,1").replace(" 8 0", " 6 0"),), "unknown kind"),
        (("micronpu-value net 0 1 int8:2:0 2 0 AQI=", "micronpu-value net 0 1 int8:1:0 1 0 AQ=="), "several builds"),
    ],
)
def test_a_log_that_is_not_whole(rows: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(FileError, match=sentence):
        read_printed(_lines(*rows), "log")


def test_the_command(log: bytes, stepped: bytes, tmp_path: Path) -> None:
    """Writes what `deploy --vectors` takes, and the ETDump; lists times; says so where there is nothing."""
    path, folder = tmp_path / "console.txt", tmp_path / "out"
    path.write_bytes(log)
    done = CliRunner().invoke(app, ["board", "log", str(path), "-o", str(folder)])
    assert done.exit_code == 0 and "two, run: 0 cycles, measured 8 times" in done.output
    with np.load(folder / "two.npz") as arrays:
        assert list(arrays) == ["output_0"] and len(arrays["output_0"]) == 4
    assert (folder / "run.etdump").read_bytes() == read_printed(log, "log").etdump
    done = CliRunner().invoke(app, ["board", "log", str(path), "--json"])
    reported = json.loads(done.output)
    assert reported["wrote"] == [] and reported["etdump_bytes"] > 0 and "output_0" in reported["arrays"]["two"]
    path.write_bytes(stepped)
    done = CliRunner().invoke(app, ["board", "log", str(path), "-o", str(folder)])
    assert done.exit_code == 0 and (folder / "two_values.npz").is_file(), done.output
    path.write_text("PASS: 4 vectors, 0 elements differ\n")
    done = CliRunner().invoke(app, ["board", "log", str(path)])
    assert done.exit_code != 0 and "no measurement" in done.stderr
