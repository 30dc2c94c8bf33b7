"""`micronpu compare`: one model on many targets."""

from __future__ import annotations

import hashlib
import json as json_module
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from micronpu.base.errors import FileError, OptionError
from micronpu.base.files import check_writable, make_folder, read_file, write_file
from micronpu.base.installed import VERSION
from micronpu.base.parsing import parse_json
from micronpu.chips import load_measured, shipped_chips
from micronpu.cli import console
from micronpu.cli.options import complete_target
from micronpu.cli.settings import JUDGE, NO_SCORING, Calibration, ModelName, Scoring, inputs
from micronpu.cli.sources import NO_PICTURES, Pictures
from micronpu.report.codec import DecodeError, decode, encode
from micronpu.targets.registry import find_target, options_for

if TYPE_CHECKING:
    from micronpu.cli.workers import Job, Task
    from micronpu.report.alternatives import Candidate

_NAME = "comparison.json"
FAILED = 1
"""Exit code if every target fails."""


@console.guarded
@console.takes(pictures=Pictures, scoring=Scoring)
def compare(
    model: ModelName,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="A target or chip, or several separated by commas; may be given several times.",
            show_default="every chip",
            autocompletion=complete_target,
        ),
    ] = None,
    quantization: Annotated[
        list[str] | None, console.option("TYPE", "int8 or int16; may be given several times.", default="int8")
    ] = None,
    calibration: Calibration = None,
    pictures: Pictures = NO_PICTURES,
    data: Annotated[str | None, inputs(JUDGE)] = None,
    scoring: Scoring = NO_SCORING,
    measurements: Annotated[
        list[Path] | None,
        console.option("CHIP.toml", "Chip files of `micronpu calibrate`, for the times of these chips."),
    ] = None,
    library: console.Library = None,
    jobs: Annotated[int | None, console.option("NUMBER", "Processes.", default="as many as there are cores")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit per target (s).")] = 1800.0,
    folder: Annotated[
        Path | None, console.option("DIR", "Store finished rows there; the same command resumes after an interrupt.")
    ] = None,
    json: console.Json = False,
    report_json: console.ReportJson = None,
    report_html: Annotated[Path | None, console.option("PATH", "Write the table as a web page.")] = None,
    chart: Annotated[
        Path | None, console.option("PATH.svg", "Write time against SRAM as a picture.", "--chart")
    ] = None,
    debug: console.Debug = False,
) -> None:
    """Compile one model for many targets and show what fits, what it costs, and which are Pareto-optimal.

    A target that fails becomes a row with the reason; exit code 1 if all fail.
    """
    from micronpu.cli.files import check_libraries
    from micronpu.cli.workers import Task, in_processes
    from micronpu.quantize.config import check_activations
    from micronpu.report.alternatives import Candidates
    from micronpu.report.shown import shown

    pictures.check(calibration)
    scoring.check(has_data=data is not None)
    if data is not None and scoring.labels is None:
        raise OptionError("--data is for a score, and there are no labels.", hint="--labels y.npy")
    if jobs is not None and jobs < 1:
        raise OptionError(f"--jobs is {jobs}; it is a number of processes.", hint="--jobs 2")
    if not 0 < timeout < math.inf:
        raise OptionError(f"--timeout is {timeout}; it is a number of seconds.", hint="--timeout 1800")
    check_libraries(library)
    report_json = console.checked_json_path(json, report_json)
    for path in (report_html, chart):
        if path is not None:
            check_writable(path)
    # A target keeps the name that was given; given under two names, it is compiled once.
    names = [name.strip() for text in target or every_chip() for name in text.split(",")]
    targets = {find_target(name).name: name for name in reversed(names)}
    for each in quantization or ():
        check_activations(each, "--quantization")  # refused here, and not in each process
    wanted = [(t, a) for t in reversed(targets.values()) for a in dict.fromkeys(quantization or ["int8"])]
    measured = tuple(_measured(path, list(targets)) for path in measurements or ())
    task = Task(model, calibration, data, scoring.labels, scoring.metric, tuple(library or ()), measured, pictures)
    key = _key(task)
    known = _read(folder, key) if folder is not None else {}
    left = [job for job in wanted if job not in known]
    count = min(jobs or os.cpu_count() or 1, max(len(left), 1))
    with console.progress() as callback:
        callback("compare", len(known) / len(wanted))
        for job, row in in_processes(task, left, count, timeout) if left else ():
            known[job] = row
            if folder is not None:
                _write(folder, key, known.values())
            callback("compare", len(known) / len(wanted))
    found = Candidates(model, scoring.name or "", tuple(known[job] for job in wanted))
    out = console.words(report_json)
    if report_json != console.STANDARD_OUTPUT:
        out.print(found)
    console.write_json(report_json, found.to_json())
    if report_html is not None:
        console.write(report_html, shown(found, "page"), out)
    if chart is not None:
        console.write(chart, shown(found, "plot"), out)
    if all(c.failed for c in found.candidates):
        raise typer.Exit(FAILED)


def _measured(path: Path, targets: Sequence[str]) -> tuple[str, str]:
    """Return the target of a chip file with measurements, and its path."""
    names = load_measured(path).names
    own = next((name for name in targets if name in names), None)
    if own is None:
        raise OptionError(f"The measurements {path} are of none of the targets.", hint=f"-t {min(names)}")
    options_for(find_target(own), given={"measurements": str(path)})
    return own, str(path)


def every_chip() -> list[str]:
    """Return one target of each shipped chip: its first target, by its first alias if it has one."""
    entries = [(chip.name, chip.targets[0]) for chip in shipped_chips().values()]
    return [name if name in entry.aliases else [*entry.aliases, entry.name][0] for name, entry in entries]


def _key(task: Task) -> str:
    """Return a digest of all that the rows depend on besides the target, except files that the model's file imports."""
    digest = hashlib.sha256(repr((task, VERSION)).encode())
    for text in (task.model, task.calibration, task.data, task.labels, task.metric, *dict(task.measurements).values()):
        path = Path(text.partition(":")[0]) if text else None
        if path is not None and path.is_file():
            digest.update(read_file(path))
    for path in sorted(task.pictures.images.rglob("*")) if task.pictures.images is not None else ():
        digest.update(str(path).encode() + (read_file(path) if path.is_file() else b""))
    return digest.hexdigest()


def _read(folder: Path, key: str) -> dict[Job, Candidate]:
    """Read the rows of an earlier run of the same command; failed ones are tried again."""
    from micronpu.report.alternatives import Candidate

    path = make_folder(folder) / _NAME
    if not path.exists():
        return {}
    try:
        stored = parse_json(read_file(path))
        if stored["key"] != key:
            return {}
        rows: list[Candidate] = [decode(Candidate, row) for row in stored["candidates"]]
    except (OSError, ValueError, KeyError, TypeError, DecodeError) as error:
        raise FileError(f"{path} holds no rows of a comparison: {error}.", hint="another --folder") from error
    return {(row.target, row.activations): row for row in rows if not row.failed}


def _write(folder: Path, key: str, rows: Iterable[Candidate]) -> None:
    text = json_module.dumps({"key": key, "candidates": [encode(row) for row in rows]}, indent=1)
    write_file(folder / _NAME, (text + "\n").encode())
