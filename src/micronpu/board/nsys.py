"""Neutron programs for silicon in NXP's own simulator, if it is installed.

NXP's SDK has a simulator of the NPU, `nsys`, and the NPU's firmware for it; ExecuTorch's `nxp_executor_runner` runs a
`.pte` with both.  Nothing of them is included here: the runner is called as in ExecuTorch's own tests, in a process
with a time limit, and its outputs are read back.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from micronpu.base.arrays import Array
from micronpu.base.errors import MicroNpuError, OptionError, PayloadError, UnsupportedError
from micronpu.base.files import read_file
from micronpu.base.leaving import scratch_folder
from micronpu.base.processes import finished, how_it_ended, last_words
from micronpu.board.gdb import BoardError
from micronpu.board.model import BoardModel, model_of
from micronpu.board.nsys_tools import RUNNER, chips, examine
from micronpu.board.qemu import watched
from micronpu.container.payload import parse
from micronpu.program.edit import with_method_first
from micronpu.program.plan import read_plan
from micronpu.targets.neutron.backend import Neutron
from micronpu.targets.neutron.target_spec import NEUTRON, NeutronNpu
from micronpu.targets.registry import find_target


def chip_that_runs(data: bytes, target: str) -> str | None:
    """Return the chip in whose simulator a program runs on this machine.

    Returns:
        A name of `chips`; None if the program is not for silicon, or if the simulator is not installed.
    """
    try:
        chip = find_target(target).chip
        read_silicon(data)
    except MicroNpuError:
        return None
    if chip is None or chip.name not in chips() or any(found.path is None for found in examine(chip.name)):
        return None
    return chip.name


def read_silicon(data: bytes, name: str = "The model", *, method: str = "") -> BoardModel:
    """Return a program of NXP's converter."""
    plan, _ = read_plan(data, name=name, method=method)
    payloads = [parse(d.payload) for d in plan.delegates if d.backend == Neutron.backend_id]
    others = [d.backend for d in plan.delegates if d.backend != Neutron.backend_id]
    if not payloads or any(p.kind != "silicon" for p in payloads):
        what = "is a reference program for this machine" if payloads else "has no part for a Neutron"
        what += f" but one for another NPU ({others[0]})" if others and not payloads else ""
        hint = f"micronpu compile -t {' or -t '.join(chips())} --converter sdk"
        raise UnsupportedError(f"{name} {what}, which NXP's simulator does not run.", hint=hint)
    if others:
        raise UnsupportedError(f"{name} calls the delegate {others[0]}, too, which {RUNNER} does not have.")
    return read_program(data, name, method=plan.name)


def read_program(data: bytes, name: str = "The program", *, method: str = "") -> BoardModel:
    """Return inputs and outputs of a program, for silicon or for this machine."""
    plan, summary = read_plan(data, name=name, method=method)
    if plan.name != next(iter(summary.methods)):
        data = with_method_first(data, plan.name, name)  # the runner runs the first method
    return model_of(data, plan, summary, name, NEUTRON)


class NsysBoard:
    """A chip with a Neutron in NXP's simulator.

        with NsysBoard(read_silicon(data), "imxrt700") as board:
            (scores,) = board.run(x)

    Args:
        model: the model.
        chip: a name of `chips`.
        runner: path of `nxp_executor_runner`; default: `NXP_RUNNER_PATH`, or the one on the PATH.
        seconds: time limit of each call.

    Raises:
        BoardError: the runner, the simulator or the firmware is missing; the message names each.
        OptionError: there is no such chip.
    """

    def __init__(self, model: BoardModel, chip: str, *, runner: str = "", seconds: float = 120.0) -> None:
        if chip not in chips():
            raise OptionError(f"NXP's simulator runs no programs for {chip!r}.", hint=f"one of {', '.join(chips())}")
        self.model, self.chip = model, chip
        self._npu, self._seconds = NeutronNpu.of(chips()[chip]), seconds
        self.output = ""
        files = examine(chip, runner)
        missing = [f for f in files if f.path is None]
        if missing:
            raise BoardError(
                f"Programs for the Neutron of {chip} run in NXP's simulator, and there is no "
                f"{', no '.join(f.name for f in missing)}.",
                hint="; ".join(f.remedy for f in missing),
            )
        self._runner, self._nsys, self._firmware = (str(f.path) for f in files)

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        """Run the model once, in a new process, with the initial values of its states.

        Raises:
            ModelError: wrong number, type or shape of the inputs.
            BoardError: the runner fails, or does not finish.
        """
        return self.run_rows([inputs])[0]

    def run_rows(self, rows: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
        """Run the model once for each row of inputs, one after the other, as `run` does."""
        if not rows:
            return []
        for row in rows:
            self.model.pack(row)  # refuses a wrong number, type or shape
        with scratch_folder("micronpu-nsys-") as folder:
            names = self._write(folder, rows)
            self._call(folder)
            return [self.model.unpack(self._result(folder / "out" / name)) for name in names]

    def _write(self, folder: Path, rows: Sequence[Sequence[Array]]) -> list[str]:
        """Write the program and its inputs as files; return the runner's name for each row's outputs."""
        (folder / "model.pte").write_bytes(self.model.data)
        sizes = f"num_pipelines = {self._npu.pipelines}\nnum_macs = {self._npu.macs}\n"
        (folder / "nsys.ini").write_text(f"[neutron2]\n{sizes}", encoding="utf-8")
        names = [f"{number:06d}" + (".bin" if self._is_dataset else "") for number in range(len(rows))]
        (folder / "rows").mkdir()
        for name, row in zip(names, rows, strict=True):
            place = folder / "rows" / name
            flat = [b.flat(array).tobytes() for b, array in zip(self.model.inputs, row, strict=True)]
            if self._is_dataset:
                place.write_bytes(flat[0])
                continue
            place.mkdir()
            for number, data in enumerate(flat):
                (place / f"{number:04d}.bin").write_bytes(data)
        return names

    @property
    def _is_dataset(self) -> bool:
        """True if rows are files of one folder, which the runner reads in the file system's order."""
        return len(self.model.inputs) == 1 and not self.model.states

    def _call(self, folder: Path) -> None:
        rows = sorted(path.name for path in (folder / "rows").iterdir())
        data = ["--dataset", "rows"] if self._is_dataset else ["--inputs", ",".join(f"rows/{name}" for name in rows)]
        command = [self._runner, "--model", "model.pte", *data, "--output", "out", "--firmware", self._firmware]
        command += ["--nsys", self._nsys, "--nsys_config", "nsys.ini"]
        libraries = [str(Path(self._nsys).parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
        log = folder / "log.txt"
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    watched(command),
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that the simulator, which the runner starts, ends with it
                )
        except OSError as error:
            raise BoardError(f"{self._runner} cannot be started: {error.strerror or error}.") from error
        with process:
            status = finished(process, self._seconds)
        said = log.read_text(encoding="utf-8", errors="replace")
        self.output += said
        if status:
            raise BoardError(f"{RUNNER} {how_it_ended(status)}.{last_words(said)}", hint="--console shows all of it")
        if status is None:
            raise BoardError(
                f"{RUNNER} did not finish within {self._seconds:g} seconds and was ended.{last_words(said)}",
                hint="a longer time limit, or fewer vectors",
            )

    def _result(self, folder: Path) -> bytes:
        """Return a row's outputs, concatenated."""
        parts = []
        for number, io in enumerate(self.model.outputs):
            file = folder / f"{number:04d}.bin"
            if not file.is_file():
                raise BoardError(
                    f"{RUNNER} says that it succeeded, and has left no output {number} of row {folder.name}.",
                    hint="the runner of the ExecuTorch release that is installed",
                )
            data = read_file(file)
            if len(data) != io.bytes:
                raise BoardError(
                    f"Output {number} of row {folder.name} has {len(data)} bytes where the program says {io.bytes}.",
                    hint="the runner of the ExecuTorch release that is installed",
                )
            parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        """Do nothing: no process runs between calls."""

    def __enter__(self) -> NsysBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_same_io(model: BoardModel, reference: BoardModel) -> None:
    """Refuse a reference program of another model."""
    for what in ("inputs", "outputs"):
        mine, other = ([(b.tensor.dtype, b.tensor.shape) for b in getattr(m, what)] for m in (model, reference))
        if mine != other:
            raise PayloadError(
                f"The {what} of {reference.name_inside} are not those of {model.name_inside}, so that it is no "
                "reference for it.",
                hint='the same model and calibration data, compiled with converter="reference"',
            )
