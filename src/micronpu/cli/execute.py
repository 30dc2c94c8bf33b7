"""`micronpu run`: run a program on arrays."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import ModelError, OptionError, PayloadError
from micronpu.base.files import check_new_folder, check_writable, make_folder, write_file
from micronpu.base.parsing import JsonObject
from micronpu.base.texts import plural
from micronpu.cli.compiled import read_program
from micronpu.cli.console import ProgressCallback
from micronpu.cli.files import load_arrays

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from micronpu.program.io import ProgramIO
    from micronpu.runtime import ArrayProgram, RunOptions
    from micronpu.runtime.arguments import TensorSignature

    Array = npt.NDArray[np.generic]

_NOTES = {
    "missing": "Note: {} has no digest and ran in a separate process.",
    "wrong": "Note: {} is damaged: its contents do not have the digest that it carries. It ran all the same.",
}
"""Notes by the value of a `Digest`."""
_SHOWN = 100
"""Maximum number of elements of an output that are printed; a longer one is shortened in the middle."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Attributes:
        results: arrays; numbers and None as the program returns them.
        wrote: a line for each file.
        names: of the results, if the model returns a dictionary.
    """

    results: tuple[Any, ...]
    notes: tuple[str, ...]
    wrote: tuple[str, ...]
    names: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return each result's type, shape and values; a large one is shortened."""
        import numpy as np

        lines = []
        for number, result in enumerate(self.results):
            what = f"output {number} ({self.names[number]})" if self.names else f"output {number}"
            if isinstance(result, np.ndarray):
                lines.append(f"{what}: {result.dtype}[{', '.join(map(str, result.shape))}]")
                lines.append(np.array2string(result, threshold=_SHOWN, precision=6, max_line_width=100))
            else:  # a number or None
                lines.append(f"{what}: {result}")
        return lines

    def to_dict(self) -> JsonObject:
        """Return all values for JSON; numbers that are not finite become the texts "nan", "inf" and "-inf"."""
        import numpy as np

        def encoded(value: object) -> object:
            if isinstance(value, list):
                return [encoded(inner) for inner in value]
            return str(value) if isinstance(value, float) and not math.isfinite(value) else value

        outputs: list[dict[str, object]] = []
        for result in self.results:
            if isinstance(result, np.ndarray):
                described = {"dtype": result.dtype.name, "shape": list(result.shape)}
                outputs.append({**described, "values": encoded(result.tolist())})
            else:
                outputs.append({"dtype": type(result).__name__, "shape": None, "values": encoded(result)})
        for name, output in zip(self.names, outputs, strict=False):
            output["name"] = name
        return {"outputs": outputs, "notes": list(self.notes)}


@dataclass(frozen=True)
class Records:
    """Files that a run writes besides its results.

    Attributes:
        profile: path of an ETDump; the recorded values are written beside it.
        trace: path of a trace of the run.
        recorded: ETDump of a board, from which the trace is made instead of a run.
    """

    profile: Path | None = None
    trace: Path | None = None
    recorded: Path | None = None


def run_program(
    path: Path,
    inputs: Sequence[str],
    folder: Path | None,
    *,
    rows: bool,
    fast: bool,
    check: bool = False,
    isolated: bool | None = None,
    time_limit: float | None = None,
    records: Records,
    callback: ProgressCallback,
) -> RunResult:
    """Run a program on arrays from files.

    Args:
        inputs: files, see `load_arrays`.
        folder: for the outputs ``output_0.npy`` and so on; None to write none.
        rows: True if the inputs hold one sample per row, for one run each.
        check, isolated: see `RunOptions`.
        time_limit: see `RunOptions`; 0 for no limit, None for the default.
    """
    profile, trace = records.profile, records.trace
    if records.recorded is not None:
        return _recorded(path, records.recorded, trace)
    if folder is not None:
        check_new_folder(folder)
    for option, place in (("--profile", profile), ("--trace", trace)):
        if place is not None and rows:
            raise OptionError(f"{option} records one run, and --rows asks for many.", hint="leave out one of them")
        if place is not None:
            check_writable(place)
    taken = _inputs_of(path)
    loaded = [(name, f"{name} of {text}", array) for text in inputs for name, array in load_arrays(text).items()]
    callback("load", 0.0)
    import numpy as np

    from micronpu.runtime import ArrayProgram, RunOptions
    from micronpu.runtime.program import VALUES

    options = RunOptions(fast=fast, check=check, isolated=isolated)
    if time_limit is not None:
        options = replace(options, time_limit=time_limit or None)
    with ArrayProgram(path, options) as program:
        note = _NOTES.get(program.digest.value) if program.is_isolated else None
        notes = [] if note is None else [note.format(path)]
        callback("load", 1.0)
        arrays = _in_order(loaded, program, str(path))
        if not rows:
            _check_single(arrays, program.inputs)
        given = [array for _, array in arrays]
        for number, (value, (what, array)) in enumerate(zip(taken, arrays, strict=False)):
            given[number] = value.taken(array)
            if given[number].dtype.kind != array.dtype.kind:
                notes.append(f"Note: The numbers of {what} are integers q in the program, {value.meaning}.")
        if trace is not None:
            results = _traced(path, options, given, trace)
            notes.append(f"Wrote {trace}.")
        if profile is not None:
            results = _profiled(path, options, given, profile, values=True)
            notes.append(f"Wrote {profile} and {profile}{VALUES}.")
        elif trace is None:
            results = _run_rows(program, given, callback) if rows else list(program.run_arrays(*given))
        notes += [
            f"The command stream computes what its graph does: all outputs, and {c.equal} of {c.steps} operations that "
            "could be told apart."
            for c in program.checks.values()
        ]
    wrote: list[str] = []
    if folder is not None:
        make_folder(folder)
        for number, result in ((i, r) for i, r in enumerate(results) if r is not None):
            memory = io.BytesIO()
            np.save(memory, np.asarray(result))
            wrote.append(f"Wrote {write_file(folder / f'output_{number}.npy', memory.getvalue())}.")
    return RunResult(tuple(results), tuple(notes), tuple(wrote), program.output_names)


def _profiled(path: Path, options: RunOptions, arrays: Sequence[Array], etdump: Path, *, values: bool) -> list[object]:
    """Run once with an ETDump, of times alone or of values too; return the outputs as arrays."""
    import torch

    from micronpu.runtime import HostProgram

    given = [torch.from_numpy(array.copy()) for array in arrays]
    with HostProgram(path, options) as program:
        results = program.record(*given, path=etdump) if values else program.profile(*given, etdump=etdump)
    return [r.numpy() if isinstance(r, torch.Tensor) else r for r in results]


def _traced(path: Path, options: RunOptions, arrays: Sequence[Array], trace: Path) -> list[object]:
    """Run once and write its times; return the outputs as arrays."""
    from micronpu.report.views.chrome import recorded_trace

    with tempfile.TemporaryDirectory() as folder:
        etdump = Path(folder) / "run.etdump"
        results = _profiled(path, options, arrays, etdump, values=False)
        write_file(trace, recorded_trace(etdump, f"{path.name} on this machine").encode())
    return results


def _recorded(path: Path, etdump: Path, trace: Path | None) -> RunResult:
    if trace is None:
        raise OptionError("--recorded needs --trace.", hint="--trace out.json as well")
    from micronpu.report.views.chrome import recorded_trace

    check_writable(trace)
    _inputs_of(path)
    write_file(trace, recorded_trace(etdump, f"{path.name}, {etdump.name}").encode())
    return RunResult((), (), (f"Wrote {trace}.",))


def _inputs_of(path: Path) -> Sequence[ProgramIO]:
    """Return the inputs of a program, if their shapes are fixed; a file that is none is refused before torch loads."""
    from micronpu.program.io import io_of
    from micronpu.program.plan import read_plan
    from micronpu.program.pte import read_pte

    read_pte(data := read_program(path), name=str(path))
    try:
        plan, summary = read_plan(data)
        return io_of(plan, summary.named_data, None)[0]
    except (ModelError, PayloadError):
        return ()


def _in_order(loaded: Sequence[tuple[str, str, Array]], program: ArrayProgram, path: str) -> list[tuple[str, Array]]:
    """Return arrays in the order of the program's inputs, with their names for messages.

    Args:
        loaded: each with its name, and its name for messages; in order unless they have the names of the inputs.
    """
    names = program.input_names
    if sorted(names) == sorted(name for name, _, _ in loaded):
        loaded = sorted(loaded, key=lambda one: names.index(one[0]))
    if len(loaded) != len(program.inputs):
        expected = ", ".join(map(str, program.inputs))
        file = loaded[0][1].partition(" of ")[2] if loaded else ""
        first = ",".join(name for name, _, _ in loaded[: len(program.inputs)])
        raise ModelError(
            f"{path} takes {plural(len(program.inputs), 'input')} ({expected}), but {len(loaded)} were given.",
            hint=f"--input {file}:{first}" if file.endswith(".npz") else "--input x.npy, once per input, in order",
        )
    for _, what, array in loaded:
        if array.dtype.kind not in "biufc":  # numbers and booleans
            raise ModelError(
                f"The array {what} has dtype {array.dtype}, which no program takes.", hint="array.astype(numpy.float32)"
            )
    return [(what, array) for _, what, array in loaded]


def _check_single(arrays: Sequence[tuple[str, Array]], inputs: Sequence[TensorSignature | None]) -> None:
    """Refuse several samples for a program that takes one at a time."""
    for (_, array), wanted in zip(arrays, inputs, strict=True):
        several = array.ndim and len(array) > 1
        if wanted is None or wanted.shape[:1] != (1,) or array.shape[1:] != wanted.shape[1:] or not several:
            return
    if arrays:
        name, array = arrays[0]
        raise ModelError(f"The array {name} holds {len(array)} samples, and the program takes one.", hint="--rows")


def _run_rows(program: ArrayProgram, arrays: Sequence[Array], callback: ProgressCallback) -> list[object]:
    """Run once per row; join arrays along their first axis, and return other outputs as a list."""
    import numpy as np

    counts = {a.shape[0] if a.ndim else 0 for a in arrays}
    if len(counts) != 1 or 0 in counts:
        raise ModelError(
            f"All inputs have the same number of rows with --rows, at least one; found {sorted(counts)}.",
            hint="inputs of shape [N, ...]",
        )
    (count,) = counts
    results = []
    for row in range(count):
        callback("run", row / count)
        results.append(program.run_arrays(*(a[row : row + 1] for a in arrays)))
    return [
        np.concatenate([np.atleast_1d(r) for r in column]) if isinstance(column[0], np.ndarray) else list(column)
        for column in zip(*results, strict=True)
    ]
