"""A model on a board in Arm's runner: arrays in, arrays out; the board keeps running between vectors."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from micronpu.base.arrays import Array
from micronpu.base.errors import OptionError, UnsupportedError
from micronpu.board.boards import find_board
from micronpu.board.gdb import PC, BoardError
from micronpu.board.machine import END_MARK, ENDED, ConsoleCallback, Machine, RunCallback
from micronpu.board.model import PTE, BoardModel
from micronpu.board.npu import Run
from micronpu.board.runners import find_runner, package
from micronpu.targets.ethosu.accelerators import find_accelerator

SECONDS = 120.0
"""Default time limit of the start, and of each vector, in seconds."""
_TEMPORARY_POOL = 32 << 20
"""Bytes of the temporary pool of the runner for `.pte`: the scratch memory of the NPU."""
_LR = 14
# The runner searches a note of Arm's exporter in 32 MB behind the model's first byte, to print it, which takes a second
# of emulation without such a note.  A note behind the program's last byte ends the search.
_NOTE = b"--memory-mode=Shared_Sram\0"
_FAILURE = re.compile(r"^(?:ERROR|E |.*(?:[Ff]ailed|Missing|mismatch|not aligned)).*$", re.MULTILINE)

_PREFIX = re.compile(r"^(?:E: |ERROR - |E \[ExecuTorch: )+")


class VirtualBoard:
    """An emulated board with a model in Arm's runner.

        with VirtualBoard(read_model(data)) as board:
            (scores,) = board.run(x)

    States of a program persist from one call to the next, as on a board, until `reset`.

    Args:
        model: the model.
        board: its name.
        accelerator: another NPU than the model's, to test that the firmware refuses it.
        seconds: time limit of the start, and of each vector.
        console: called with the firmware's output.
        on_run, fault, clock_hz: see `Machine`.

    Raises:
        MicroNpuError: the board cannot run the model; or QEMU or the runner is missing.
    """

    def __init__(
        self,
        model: BoardModel,
        board: str = "corstone300",
        *,
        accelerator: str = "",
        seconds: float = SECONDS,
        console: ConsoleCallback | None = None,
        on_run: RunCallback | None = None,
        fault: str = "",
        clock_hz: float = 0.0,
    ) -> None:
        self.model = model
        self.spec = find_board(board)
        self.accelerator = accelerator or model.accelerator
        self._seconds = seconds
        family = find_accelerator(self.accelerator).family
        self.runner = find_runner(board, model.format, model.family)
        if family not in self.spec.families:
            raise OptionError(
                f"The board {board} has no {self.accelerator}.",
                hint=f"one with an Ethos-{' or '.join(f.upper() for f in self.spec.families)}",
            )
        image = self.runner.image()
        check_fits(model, image.read_bytes(), self.runner.pool)
        self._start: Callable[[Path], Machine] = lambda file: Machine(
            self.spec,
            image,
            [self.accelerator],
            data=[(file, package().model.address)],
            console=console,
            on_run=on_run,
            fault=fault,
            clock_hz=clock_hz,
        )
        self._machine: Machine | None = None
        self._entry: list[int] = []
        self._past: tuple[int, bytes, list[Run]] = (0, b"", [])

    # -- history

    @property
    def output(self) -> str:
        """Output of the firmware since the board was made."""
        now = self._machine.output if self._machine is not None else b""
        return (self._past[1] + now).replace(END_MARK, b"").decode(errors="replace").replace("\r\n", "\n")

    @property
    def runs(self) -> list[Run]:
        """Runs of the NPU since the board was made."""
        now = [run for npu in self._machine.npus for run in npu.runs] if self._machine is not None else []
        return self._past[2] + now

    @property
    def accesses(self) -> int:
        """Number of accesses of the core to the NPU's registers."""
        return self._past[0] + (self._machine.accesses if self._machine is not None else 0)

    # -- running

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        """Run the model once.

        Args:
            inputs: arrays of the model's types and shapes.

        Raises:
            ModelError: wrong number, type or shape.
            BoardError: the firmware refuses the model, or does not finish.
        """
        data = self.model.pack(inputs)
        try:
            machine = self._started()
            machine.write(package().inputs.address, data)
            # Clear the outputs, so that results of the previous vector cannot be mistaken for new ones.
            machine.write(package().outputs.address, bytes(self.model.output_bytes))
            result = self._call(machine)
        except BoardError:
            self.reset()
            raise
        return self.model.unpack(result)

    def reset(self) -> None:
        """Switch the board off; the next call starts it, with the initial values of all states."""
        if self._machine is not None:
            self._past = (self.accesses, self._past[1] + self._machine.output, self.runs)
            self._machine.close()
            self._machine = None

    def _started(self) -> Machine:
        """Return the board, stopped before the runner runs the model."""
        if self._machine is not None:
            return self._machine
        with tempfile.TemporaryDirectory(prefix="micronpu-") as folder:
            file = Path(folder) / "model"
            note = bytes(-len(self.model.data) % 16) + _NOTE if self.model.format == PTE else b""
            file.write_bytes(self.model.data + note)
            machine = self._start(file)
        self._machine = machine
        if machine.run(self._seconds, until=self.runner.function()) == ENDED:
            raise self._refusal("The runner refuses the model")
        registers = machine.stub.registers()
        self._entry = registers
        return machine

    def _call(self, machine: Machine) -> bytes:
        """Make the runner run the model once, as a function call."""
        registers = self._entry
        # The procedure call standard requires the callee to preserve all other registers.
        machine.stub.set_registers([(i, registers[i]) for i in (0, 13, _LR, PC)])
        begin = len(machine.output)
        if machine.run(self._seconds, until=registers[_LR]) == ENDED:
            raise self._refusal("The runner ends in the middle of the model", begin)
        if not machine.stub.registers()[0] & 0xFF:
            raise self._refusal("The runner fails", begin)
        return machine.read(package().outputs.address, self.model.output_bytes)

    def _refusal(self, what: str, begin: int = 0) -> BoardError:
        assert self._machine is not None
        # The last line may not have arrived yet.
        end = time.monotonic() + 0.2
        while time.monotonic() < end and self._machine.poll(0.05):
            pass
        text = self._machine.output[begin:].decode(errors="replace").replace("\r", "")
        lines = [line.strip() for line in _FAILURE.findall(text)]
        faults = [run.fault for run in self.runs if run.fault]
        said = f": {_PREFIX.sub('', lines[0]).rstrip('.')}" if lines else ""
        more = f" The NPU has stopped with {faults[-1].rstrip('.')}." if faults else ""
        if self.accelerator != self.model.accelerator:
            more += f" The model is for {self.model.accelerator}, and the board has {self.accelerator}."
        return BoardError(f"{what}{said}.{more}", hint="--console, which shows what it prints")

    def close(self) -> None:
        """End the board, and remove its files."""
        self.reset()

    def __enter__(self) -> VirtualBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_fits(model: BoardModel, image: bytes, pool: int) -> None:
    """Refuse a model that a runner cannot load, or has no kernels for.

    Args:
        image: of the runner, which contains the names of its kernels.
        pool: of its method allocator, 0 without one.
    """
    missing = [name for name in model.operators if name.encode() + b"\0" not in image]
    if missing:
        raise UnsupportedError(
            f"{model.name} calls {', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''}, and Arm's runner "
            "has no such kernel.",
            hint="a program whose operators are all on the NPU; micronpu deploy, for a firmware with these kernels",
        )
    scalars = [b.name.replace("_", " ") for b in (*model.inputs, *model.outputs) if not b.tensor.shape]
    if scalars and model.format == PTE:
        raise UnsupportedError(
            f"The {scalars[0]} of {model.name_inside} has no axes, and Arm's runner ends where it prints such a shape.",
            hint="a tensor of one axis and one element, such as x.reshape(1)",
        )
    arm = package()
    inputs = sum(io.bytes for io in model.inputs)
    limits = [
        (len(model.data) + len(_NOTE) + 16, arm.model.size, "the file"),
        (inputs, arm.inputs.size, "its inputs"),
        (model.output_bytes, arm.outputs.size, "its outputs"),
    ]
    if model.format == PTE:
        limits += [(model.planned, pool, "its planned memory"), (model.scratch, _TEMPORARY_POOL, "the NPU's scratch")]
    for size, most, what in limits:
        if size > most:
            raise UnsupportedError(
                f"{model.name} does not fit the board's memory: {what} takes {size:,} bytes of {most:,}.",
                hint="a smaller model",
            )
