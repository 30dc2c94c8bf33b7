"""Logs in every form, and what they make of a chip file."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import ethosu_latency
from benchmarks.anchors import Anchor
from tests.board_logs import HELIA, KIT, RUNNER, TICKS, etdump, own, report
from typer.testing import CliRunner

from micronpu.base.errors import FileError, MicroNpuError, OptionError
from micronpu.board.calibrate import Observed, calibrate, fit, observed
from micronpu.board.logs import CALL, NPU, OPERATION, RUN, BoardLog, read_log, read_measurement, write_measurement
from micronpu.chips import load_measured, shipped_chips
from micronpu.chips.chip import parse_chip
from micronpu.chips.edit import with_numbers
from micronpu.cli.main import app
from micronpu.ir.graph import Origin
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import Cost, Latency, Operation
from micronpu.targets.ethosu.accelerators import timing_of
from micronpu.targets.ethosu.costs import estimated

FORMS: dict[str, tuple[bytes, Mapping[str, float]]] = {
    "micronpu": (own().encode(), {CALL: 212_100}),
    "ExecuTorch": (RUNNER.encode(), {NPU: 100_000}),
    "evaluation kit": (KIT.encode(), {NPU: 100_000}),
    "helia-profiler": (HELIA.encode(), {OPERATION: 205_000}),
    "MicroProfiler": (TICKS.encode(), {OPERATION: 201_000}),
    "ETDump": (etdump(), {CALL: 200_000, RUN: 202_000}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_log_is_read(form: str) -> None:
    data, sums = FORMS[form]
    for text in (data, data.replace(b"\n", b"\r\n") if form != "ETDump" else data):
        log = read_log(text, "board.log")
        assert log.form == form
        assert {kind: sum(row.ticks for row in log.of(kind)) for kind in sums} == sums


def test_what_logs_say_beside() -> None:
    log = read_log(own().encode(), "a")
    assert (log.program, log.clock_mhz) == ("ab" * 32, 1000.0)
    assert read_log(HELIA.encode(), "a").clock_mhz == 1000.0
    assert read_log(RUNNER.encode(), "a").beats == {"AXI0_RD_DATA_BEAT_RECEIVED": 1250}
    assert read_log(KIT.encode(), "a").beats["AXI1_RD_DATA_BEAT_RECEIVED"] == 2500


def test_the_npus_own_counter_stands_beside_a_call() -> None:
    text = own().replace("micronpu-cycles kws 2", "micronpu-npu-cycles kws 1 90000\nmicronpu-cycles kws 2")
    log = read_log(text.encode(), "a")
    assert [(row.number, row.ticks, row.times) for row in log.of(NPU)] == [(1, 90_000, 2)]
    assert sum(row.ticks for row in log.of(CALL)) == 212_100


def test_an_etdump_may_be_printed() -> None:
    packed = base64.b64encode(etdump()).decode()
    log = read_log(f'#[RUN THIS]\n# echo "{packed}" | base64 -d >etdump.bin\n'.encode(), "a")
    assert log.form == "ETDump" and log.of(RUN)[0].ticks == 202_000


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"nothing of the kind\n", "no measurement in a form that is known"),
        (own().rpartition("micronpu-cycles kws 2")[0].encode(), "ends before the run does: instruction 2"),
        ((own() + "micronpu-cycles vww 0 5\n").encode(), "of the programs kws, vww"),
        ((own() + f"micronpu-program kws {'cd' * 32}\n").encode(), "several programs"),
        (RUNNER.replace("ethosu_pmu_cycle_cntr : 100000", "").encode(), "no line `ethosu_pmu_cycle_cntr`"),
        (KIT.rpartition("INFO - NPU TOTAL")[0].encode(), "no line `NPU TOTAL cycles`"),
        (HELIA.replace("--- HPX_END ---", "").encode(), "no line `--- HPX_END ---`"),
        (HELIA.replace("0,ETHOS_U,210000,0", "0,ETH").encode(), "a damaged row of layer 0"),
        (etdump(finished=False), "no event `Method::execute`"),
        (etdump()[:40], "is damaged"),
        (b"", "no measurement"),
    ],
)
def test_half_a_log_is_a_sentence(data: bytes, said: str) -> None:
    with pytest.raises(FileError) as caught:
        read_log(data, "board.log")
    assert said in caught.value.what and "board.log" in caught.value.what and caught.value.hint


def test_damage_is_never_more_than_a_sentence() -> None:
    random = np.random.default_rng(0)
    for data, _ in FORMS.values():
        for _ in range(60):
            spoiled = bytearray(data)
            for at in random.integers(0, len(spoiled), 3):
                spoiled[at] = random.integers(256)
            with contextlib.suppress(MicroNpuError):
                read_log(bytes(spoiled[: random.integers(len(spoiled)) + 1]), "board.log")


# ---------------------------------------------------------------- constants


CHIP = shipped_chips()["ra8p1"]


def test_what_is_measured_is_given_back() -> None:
    """60,000 cycles of 0.12 ms wait for flash; the NPU is busy for 0.2 ms, so that flash is slower by 5 in 3."""
    log = read_log(RUNNER.encode(), "board.log")
    run = observed(CHIP, log, report())
    assert run.busy == pytest.approx(0.2) and run.whole is None
    slower, _ = fit([run])
    assert slower["mram"] == pytest.approx(5 / 3, rel=0.05) and 1 <= slower["sram"] < 2.5
    found, changes = calibrate(CHIP, [log], [run])
    assert abs(found.rows[0].error_after) < 0.02 < abs(found.rows[0].error_before)
    # 4 bytes a cycle at 500 MHz are 2 GB/s, and now 1.2.
    assert changes["memory", "mram", "bandwidth"] == pytest.approx(1.2e9, rel=0.05)
    assert ("npu", "", "call_us") not in changes  # nobody measured a call
    assert found.beats == {"AXI0_RD_DATA_BEAT_RECEIVED": (1250, 20_000)}


def test_what_the_core_sees_more_is_the_call() -> None:
    log = BoardLog("a", "micronpu", (*read_log(KIT.encode(), "a").rows, *read_log(own().encode(), "a").rows))
    run = observed(CHIP, log, report(arithmetic=100_000))
    assert run.busy == pytest.approx(0.2)
    assert run.whole == pytest.approx(0.2121)
    slower, call = fit([run])
    assert set(slower.values()) == {1.0} and call == pytest.approx(12.1, rel=0.1)


@pytest.mark.parametrize(
    ("text", "made", "said"),
    [
        (own("cd" * 32), report(), "of another program: its SHA-256 begins with cdcdcdcdcdcd"),
        (
            own().replace("1000000000", "480000000"),
            report(),
            "of a core at 480 MHz, but the chip file of ra8p1 has 1000",
        ),
        (own() + "micronpu-npu-clock 250000000\n", report(), "of a NPU at 250 MHz"),
        (own(), report(target="alif-e7"), "the target 'alif-e7', which the chip file of ra8p1 does not have"),
    ],
)
def test_a_log_of_something_else_is_a_sentence(text: str, made: DelegationReport, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        observed(CHIP, read_log(text.encode(), "board.log"), made)
    assert said in caught.value.what and caught.value.hint


def test_a_memory_that_the_chip_file_lacks_is_a_sentence() -> None:
    text = (Path(__file__).parents[3] / "src/micronpu/chips/ra8p1.toml").read_text()
    begin = text.index('[[memory]]\nname = "mram"')
    bare = parse_chip(text[:begin] + text[text.index("[[target]]") :], "mychip.toml")
    log = read_log(KIT.encode(), "board.log")
    with pytest.raises(OptionError, match="counts 2,500 of AXI1_RD_DATA_BEAT_RECEIVED, but the chip file of ra8p1"):
        calibrate(bare, [log], [observed(bare, log, report())])


def test_only_the_numbers_of_a_chip_file_change() -> None:
    text = (Path(__file__).parents[3] / "src/micronpu/chips/ra8p1.toml").read_text()
    changes: dict[Any, Any] = {
        ("memory", "mram", "bandwidth"): 1.25e9,
        ("memory", "tcm", "bandwidth"): 8e9,
        ("npu", "", "call_us"): (1.0, 12.5, 20.0),
    }
    new = with_numbers(text, changes, "micronpu calibrate, a.log")
    chip = parse_chip(new, "a")
    assert {m.name: m.bandwidth for m in chip.memories} == {"tcm": 8e9, "sram": 2.1e9, "mram": 1.25e9}
    assert chip.npu is not None and chip.npu.own.optional_numbers("call_us", 3) == (1.0, 12.5, 20.0)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in new.splitlines() if line.startswith("#")
    ]
    assert "before: fitted" in new and len(new.splitlines()) == len(text.splitlines()) + 1
    again = with_numbers(new, changes, "micronpu calibrate, b.log")
    assert "a.log" not in again and parse_chip(again, "a") == parse_chip(again, "a")
    with pytest.raises(OptionError, match="no table"):
        with_numbers(text, {("memory", "dram", "bandwidth"): 1.0}, "x")


def test_the_command_writes_the_file_or_nothing(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "src/micronpu/chips/ra8p1.toml").read_text()
    chip = tmp_path / "mychip.toml"
    chip.write_text(text.replace('name = "ra8p1"', 'name = "mychip"'))
    before = chip.read_bytes()
    (tmp_path / "board.log").write_text(own())
    (tmp_path / "report.json").write_text(report().to_json())
    given = ["calibrate", str(chip), str(tmp_path / "board.log"), "--report", str(tmp_path / "report.json")]
    done = CliRunner().invoke(app, [*given, "--dry-run"])
    assert done.exit_code == 0 and "whole run" in done.output, done.output
    assert chip.read_bytes() == before
    done = CliRunner().invoke(app, [*given, "--report-json", str(tmp_path / "c.json")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["format"] == "micronpu calibration" and abs(found["rows"][0]["error_after"]) < 0.05
    assert b"# micronpu calibrate, board.log\n" in chip.read_bytes() and b"[[memory]]" in chip.read_bytes()
    after = chip.read_bytes()
    (tmp_path / "board.log").write_text(own("cd" * 32))
    done = CliRunner().invoke(app, given)
    assert done.exit_code != 0 and "another program" in done.output
    assert chip.read_bytes() == after and sorted(p.name for p in tmp_path.iterdir()) == [
        "board.log",
        "c.json",
        "mychip.toml",
        "report.json",
    ]


def test_a_chip_of_the_package_is_calibrated_into_a_file(tmp_path: Path) -> None:
    """Under the file's name; the number of networks counts programs, not logs."""
    for number, digest in enumerate(("ab" * 32, "cd" * 32, "cd" * 32)):
        (tmp_path / f"{number}.log").write_text(own(digest) + "micronpu-chip ra8p1\n")
        (tmp_path / f"{number}.json").write_text(report(hash=digest).to_json())
    logs = [str(tmp_path / f"{number}.log") for number in range(3)]
    given = [part for number in range(3) for part in ("--report", str(tmp_path / f"{number}.json"))]
    done = CliRunner().invoke(app, ["calibrate", "ra8p1", *logs, *given])
    assert done.exit_code == 1 and "whose file does not change" in done.output
    done = CliRunner().invoke(app, ["calibrate", "ra8p1", *logs, *given, "-o", str(tmp_path / "ra8p1.toml")])
    assert done.exit_code == 1 and "another name" in done.output and not (tmp_path / "ra8p1.toml").exists()
    mine = tmp_path / "mine.toml"
    done = CliRunner().invoke(app, ["calibrate", "ra8p1", *logs, *given, "-o", str(mine)])
    assert done.exit_code == 0, done.output
    chip = load_measured(mine)
    assert chip.name == "mine" and timing_of(chip).measured == "measured on your board, 2 networks"
    with pytest.raises(OptionError, match="has no measurements"):
        load_measured(Path(__file__).parents[3] / "src/micronpu/chips/m55m1.toml")


# ---------------------------------------------------------------- measurement.toml

CONSOLE = own() + "micronpu-chip ra8p1\n" + "".join(
    f"micronpu-npu-beats kws {number} AXI0_RD_DATA_BEAT_RECEIVED {beats}\n"
    for number, beats in ((0, 10), (0, 12), (1, 5), (0, 11), (1, 5))
)  # fmt: skip
IMAGE = b"\x7fELF GCC: (15:13.2.rel1-2) 13.2.1 20231009\0more"


def test_a_measurement_says_what_the_log_says_and_where(tmp_path: Path) -> None:
    path = tmp_path / "measurement.toml"
    write_measurement(path, CONSOLE.encode(), IMAGE, 'a "board"', is_emulated=False)
    found, log = read_measurement(path.read_bytes(), "measurement.toml"), read_log(CONSOLE.encode(), "console")
    assert (found.rows, found.program, found.clock_mhz) == (log.rows, log.program, log.clock_mhz)
    assert found.beats == {"AXI0_RD_DATA_BEAT_RECEIVED": 11 + 5}  # the median of each call
    assert (found.chip, found.board, found.is_emulated) == ("ra8p1", 'a "board"', False)
    assert found.tools["compiler"] == "GCC: (15:13.2.rel1-2) 13.2.1 20231009" and found.tools["micronpu"]
    assert observed(CHIP, found, report()).whole == observed(CHIP, log, report()).whole
    assert read_measurement(CONSOLE.encode(), "console").rows == log.rows  # a console is read as before


def test_a_measurement_without_cycles_is_not_written(tmp_path: Path) -> None:
    for console in (
        b"PASS: 1 vectors, 0 elements differ\n",
        b"micronpu-run a 0 0 0\nPASS: 1 vectors, 0 elements differ\n",
    ):
        with pytest.raises(FileError, match="nothing to write"):
            write_measurement(tmp_path / "m.toml", console, IMAGE, "", is_emulated=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[[rows]]", "[[lines]]", "has the unknown key `lines`"),
        ("times = 2", "times = 2\nspeed = 1", r"has the unknown key `rows\[0\].speed`"),
        ("ticks = 1100.0", "ticks = nan", r"`rows\[0\].ticks` is nan"),
        ("ticks = 1100.0", "ticks = 0.0", r"`rows\[0\].ticks` is 0"),
        ("ticks = 1100.0", 'ticks = "many"', "must be a number, but is 'many'"),
        ("clock_mhz = 1000.0", "clock_mhz = inf", "`clock_mhz` is inf"),
        ("version = 1", "version = 7", "its version is 7"),
        ("_RECEIVED = 16", "_RECEIVED = -1", "is negative"),
        ("[beats]", "[beats", "is no measurement"),
    ],
)
def test_a_damaged_measurement_is_a_sentence(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    write_measurement(path, CONSOLE.encode(), IMAGE, "board", is_emulated=False)
    text = path.read_text()
    assert old in text
    with pytest.raises(FileError, match=said):
        read_measurement(text.replace(old, new).encode(), "m.toml")


def test_a_console_of_an_emulated_board_is_named() -> None:
    """QEMU's cores have no counter; without a measurement, nothing else shows it."""
    log = read_log(
        b"micronpu-run kws 0 0 0\nmicronpu-npu-run kws 0 0 100000\nPASS: 1 vectors, 0 elements differ\n", "a"
    )
    found, _ = calibrate(CHIP, [log], [observed(CHIP, log, report())])
    assert "The core's counter stands still in a, as on an emulated board" in " ".join(found.holds)
    log = read_log(own().encode(), "a")
    assert "stands still" not in " ".join(calibrate(CHIP, [log], [observed(CHIP, log, report())])[0].holds)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_emulated": True}, "was measured on an emulated board"),
        ({"chip": "alif-e7-hp"}, "was measured on a firmware for the chip alif-e7-hp"),
        ({"program": "cd" * 32}, "is of another program"),
    ],
)
def test_a_measurement_of_something_else_calibrates_nothing(change: dict[str, Any], said: str) -> None:
    log = replace(read_log(CONSOLE.encode(), "m.toml"), **change)
    with pytest.raises(OptionError, match=said):
        observed(CHIP, log, report())


# ---------------------------------------------------------------- published figures in the place of logs


def _stood_in(anchor: Anchor, call_us: float, slower: Mapping[str, float]) -> Observed:
    """A network as a report has it with other constants, and its published time as if a board had measured it."""
    key = ethosu_latency.key_of(anchor)
    (program,) = ethosu_latency.stored()[key]
    found = estimated(program, ethosu_latency.options_of(key), slower)
    costs = [
        Cost(layer.cycles, layer.npu_cycles, layer.memory_cycles, 0, 0.0, clock_mhz=anchor.clock_mhz, bus=bus)
        for layer, bus in zip(found.layers, found.traffic, strict=True)
    ]
    operations = tuple(Operation(0, "x", "", (1,), 1, Origin(()), cost) for cost in costs)
    assert anchor.clock_mhz is not None
    latency = (
        Latency("NPU", found.cycles, anchor.clock_mhz, 0.5, 2, ""),
        Latency("Calls of the NPU", round(call_us * anchor.clock_mhz), anchor.clock_mhz, 0.5, 2, ""),
    )
    made = DelegationReport(anchor.target, (), operations=operations, latency=latency, bus=found.bus)
    return Observed(made, None, anchor.milliseconds)


UNKNOWN: Mapping[str, Mapping[str, float]] = {
    "ra8p1": {"Sram": 2.1 / 4.0, "OffChipFlash": 2.1 / 0.5},
    "alif-e8": {"OffChipFlash": 0.387 / 0.8, "Sram": 2.44 / 6.4},
}
"""Of a chip of which nothing is known, the memories are those of Vela's configuration.  Not i.MX 93, where calls under
Linux take what they take: the error on the others is 17 % before and 22 % after."""


@pytest.mark.parametrize("target", UNKNOWN)
def test_one_log_halves_the_error_on_the_other_networks(target: str) -> None:
    """Each published figure in turn is the only log; the mean is over all logs and all networks that it is not of."""
    rows = [anchor for anchor in ethosu_latency.used(target) if not anchor.memory_mode]
    runs = [_stood_in(anchor, 10.0, UNKNOWN[target]) for anchor in rows]
    before, after = [], []
    for i, run in enumerate(runs):
        constants = fit([run])
        for j, other in enumerate(runs):
            if rows[i].network != rows[j].network:
                assert other.whole is not None
                before.append(abs(other.whole_with({}, 10.0) / other.whole - 1))
                after.append(abs(other.whole_with(*constants) / other.whole - 1))
    assert np.mean(after) <= 0.5 * np.mean(before), (np.mean(before), np.mean(after))
