"""A model for a runner on a board: its file, inputs and outputs, and its NPU.

A `.pte`, or the `.tflite` with the operator ``ethos-u`` of `program.save(path, vela=True)` and of the command `vela`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from micronpu.base.arguments import check_bytes
from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError, PayloadError, UnsupportedError
from micronpu.base.texts import inside, plural
from micronpu.board.runners import FIRMWARE
from micronpu.container import litert_view
from micronpu.program.edit import with_method_first, with_payloads
from micronpu.program.io import ProgramIO, io_of
from micronpu.program.plan import Plan, read_plan
from micronpu.program.plan_check import check_plan
from micronpu.program.pte import ELEMENT_BYTES, ELEMENT_TYPES, IDENTIFIER, PteSummary, TensorValue, read_pte
from micronpu.runtime.arguments import check_array
from micronpu.targets.ethosu.accelerators import find_accelerator
from micronpu.targets.ethosu.backend import EthosU
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, aligned_bytes
from micronpu.targets.ethosu.payload import APART, FIRST, inlined, missing_blocks, parse
from micronpu.targets.ethosu.stream import accelerator_of
from micronpu.targets.ethosu.vela.compiler import ALLOCATION, OPERATOR
from micronpu.targets.registry import firmware_of

PTE, TFLITE = "pte", "tflite"
_LITERT = b"TFL3"
_LITERT_TYPES = ("float32", "int32", "uint8", "int16", "int8")
"""Element types of models on an Ethos-U."""
_RESULTS = f"`micronpu run`, for its results; or {FIRMWARE}"
_ADDRESS_WORDS = 3
"""Words of the metadata before the offsets: version, subgraphs, tensors."""


@dataclass(frozen=True)
class BoardModel:
    """A model for a board.

    Attributes:
        name: name in messages.
        format: `PTE` or `TFLITE`.
        accelerator: accelerator of its command streams.
        inputs, outputs: in order.
        operators: kernels of the core that it calls.
        planned: bytes of planned memory, 0 if unknown.
        scratch: bytes of scratch memory that its largest stream needs.
        states: True if it has states that persist from one call to the next.
        method: the method that is run, if there are several; otherwise "".
    """

    name: str
    data: bytes
    format: str
    accelerator: str
    inputs: tuple[ProgramIO, ...]
    outputs: tuple[ProgramIO, ...]
    operators: tuple[str, ...] = ()
    planned: int = 0
    scratch: int = 0
    states: bool = False
    method: str = ""

    @property
    def family(self) -> str:
        """Generation of the accelerator, such as "u55"."""
        return find_accelerator(self.accelerator).family

    @property
    def name_inside(self) -> str:
        return inside(self.name)

    def pack(self, arrays: Sequence[Array]) -> bytes:
        """Return the inputs as concatenated bytes for the board's memory."""
        if len(arrays) != len(self.inputs):
            raise ModelError(
                f"{self.name} takes {plural(len(self.inputs), 'input')}, but {len(arrays)} were given.",
                hint="one array for each input, in order",
            )
        parts = []
        for number, (array, io) in enumerate(zip(arrays, self.inputs, strict=True)):
            check_array(self.name_inside, number, array, io.tensor)
            parts.append(io.flat(array.astype(array.dtype.newbyteorder("="), copy=False)).tobytes())
        return b"".join(parts)

    def unpack(self, data: bytes) -> tuple[Array, ...]:
        """Return the outputs from bytes of the board's memory."""
        found, at = [], 0
        for io in self.outputs:
            order = io.tensor.dim_order
            shape = [io.tensor.shape[axis] for axis in order]
            flat = np.frombuffer(data, io.tensor.dtype, prod(shape), at)
            inverse = np.argsort(order) if order else ()
            found.append(np.ascontiguousarray(flat.reshape(shape).transpose(inverse)).reshape(io.tensor.shape))
            at += io.bytes
        return tuple(found)

    @property
    def output_bytes(self) -> int:
        return sum(io.bytes for io in self.outputs)


def read_model(data: bytes, name: str = "The model", *, method: str = "") -> BoardModel:
    """Return the model of a file.

    Args:
        method: of a program with several; default: "forward", or the first.

    Raises:
        PayloadError: it is neither, or damaged.
        UnsupportedError: no runner supports the model.
    """
    check_bytes("data", data)
    return _read_litert(data, name) if data[4:8] == _LITERT else _read_pte(data, name, method)


def methods_of(data: bytes, name: str = "The model") -> tuple[str, ...]:
    """Return the methods of a `.pte` with several, in the file's order; ("",) for anything else."""
    known = tuple(read_pte(data, name=name).methods) if data[4:6] == IDENTIFIER[:2] else ()
    return known if len(known) > 1 else ("",)


def _read_pte(data: bytes, name: str, method: str) -> BoardModel:
    plan, summary = read_plan(data, name=name, method=method)
    if plan.name != next(iter(summary.methods)):
        data = with_method_first(data, plan.name, name)  # Arm's runner runs the first method
    if (whole := _inside(data, summary.named_data, name)) != data:
        data, plan = whole, read_plan(whole, name=name, method=plan.name)[0]
    blobs = [d.payload for d in plan.delegates if d.backend == EthosU.backend_id]
    if missing := [block for blob in blobs for block in missing_blocks(blob)]:
        raise UnsupportedError(
            f"{name} has its {missing[0]} in a data file, which Arm's runner does not take.",
            hint="a program without external_weights and external_commands",
        )
    payloads = [parse(blob) for blob in blobs]
    others = [d.backend for d in plan.delegates if d.backend != EthosU.backend_id]
    if others or not payloads:
        what = f"calls the delegate {others[0]}" if others else "has no part for an Ethos-U"
        found = ((firmware_of(d.backend), d.payload) for d in plan.delegates)
        simulated = all(firmware is not None and firmware.is_for_silicon(payload) for firmware, payload in found)
        hint = f"`micronpu run`{', or --board imxrt700' * simulated}" if others else _RESULTS
        raise UnsupportedError(f"{name} {what}: Arm's runner is for programs with an Ethos-U.", hint=hint)
    accelerators = sorted({accelerator_of(p.commands) for p in payloads})
    if len(accelerators) > 1:
        raise UnsupportedError(f"{name} is for several NPUs: {', '.join(accelerators)}.")
    if any(io.region in APART for p in payloads for io in (*p.inputs, *p.outputs)):
        raise UnsupportedError(
            f"The inputs and outputs of {inside(name)} lie apart from the scratch memory, as Linux wants them, and "
            "Arm's runner for a microcontroller has them inside.",
            hint="separate_io=False, or a target whose core runs no Linux",
        )
    model = model_of(data, plan, summary, name, accelerators[0], max(p.scratch_size for p in payloads))
    for io in (*model.inputs, *model.outputs):
        if io.tensor.dtype not in ELEMENT_BYTES or io.tensor.dtype == "bfloat16":
            raise UnsupportedError(f"The {io.name.replace('_', ' ')} of {model.name_inside} is {io.tensor.dtype}.")
    return model


def model_of(data: bytes, plan: Plan, summary: PteSummary, name: str, accelerator: str, scratch: int = 0) -> BoardModel:
    """Return the model of a method of a program, whose plan is checked."""
    check_plan(data, name, plan.name)
    return BoardModel(
        name,
        data,
        PTE,
        accelerator,
        *io_of(plan, summary.named_data, None),
        plan.operators,
        sum(plan.memories),
        scratch,
        any(value.initial is not None for value in plan.values),
        plan.name if len(summary.methods) > 1 else "",
    )


def _inside(data: bytes, named_data: Mapping[str, bytes], name: str) -> bytes:
    """Return the program with all data inside its payloads: Arm's runner is too old for external data."""

    def change(payload: bytes) -> bytes:
        return inlined(payload, named_data) if payload.startswith(FIRST.encode()) else payload

    return with_payloads(data, change, name)


@dataclass(frozen=True)
class _LiteRt:
    """Content of a `.tflite` with one operator ``ethos-u``."""

    commands: bytes
    constants: bytes
    arena: int
    fast: int
    inputs: tuple[tuple[ProgramIO, int], ...]
    outputs: tuple[tuple[ProgramIO, int], ...]


def _read_litert(data: bytes, name: str) -> BoardModel:
    held = _litert(data, name)
    return BoardModel(
        name,
        data,
        TFLITE,
        accelerator_of(held.commands),
        tuple(b for b, _ in held.inputs),
        tuple(b for b, _ in held.outputs),
        scratch=held.arena,
    )


def _litert(data: bytes, name: str) -> _LiteRt:
    try:
        model = litert_view.read_model(data)
        if [operator.name for operator in model.operators] != [OPERATOR]:
            raise UnsupportedError(
                f"{name} is a LiteRT model of {len(model.operators)} operators, not one call of an Ethos-U.",
                hint="program.save(path, vela=True), or Vela's command",
            )
        offsets = np.frombuffer(model.metadata.get(ALLOCATION, b""), "<i4")[_ADDRESS_WORDS:]
        stream, constants, scratch, fast, *_ = (model.tensors[index] for index in model.operators[0].inputs)

        def io(index: int, label: str) -> tuple[ProgramIO, int]:
            tensor = model.tensors[index]
            dtype = litert_view.element_name(tensor.type)
            if dtype not in _LITERT_TYPES or index >= len(offsets):
                raise UnsupportedError(f"No Ethos-U takes the type of the {label.replace('_', ' ')} of {inside(name)}.")
            number = next(k for k, v in ELEMENT_TYPES.items() if v == dtype)
            value = TensorValue(number, tensor.shape, tuple(range(len(tensor.shape))), False)
            return ProgramIO(label, value), int(offsets[index])

        return _LiteRt(
            stream.data,
            constants.data,
            prod(scratch.shape),
            prod(fast.shape) if fast is not scratch else 0,
            tuple(io(i, f"input_{n}") for n, i in enumerate(model.inputs)),
            tuple(io(i, f"output_{n}") for n, i in enumerate(model.outputs)),
        )
    except ValueError as error:
        raise PayloadError(f"{name} is a damaged LiteRT model: {error}.", hint="write the file again") from error


class LiteRtReference:
    """A `.tflite` with an ``ethos-u`` on this machine: its stream in the simulator."""

    def __init__(self, model: BoardModel) -> None:
        self._held = _litert(model.data, model.name)
        self._simulator = EthosUSimulator(model.accelerator)

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        held = self._held
        constants, arena = aligned_bytes(len(held.constants)), aligned_bytes(held.arena)
        constants[:] = np.frombuffer(held.constants, np.uint8)
        for array, (_, at) in zip(arrays, held.inputs, strict=True):
            arena[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memories = [constants, arena, aligned_bytes(held.fast) if held.fast else arena]
        self._simulator.run_on(held.commands, memories)
        return tuple(
            arena[at : at + io.bytes].view(io.tensor.dtype).reshape(io.tensor.shape).copy() for io, at in held.outputs
        )


__all__ = ["PTE", "TFLITE", "BoardModel", "LiteRtReference", "read_model"]
