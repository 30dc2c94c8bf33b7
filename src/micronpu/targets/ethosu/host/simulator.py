"""The open simulator of Ethos-U: run the command stream of a payload on NumPy arrays.

    outputs = EthosUSimulator("ethos-u55-128").run(payload, inputs)

The simulator itself is C++ (`native/ethosu_sim`, interface in its `sim.h`), compiled once and cached.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import MicroNpuError, ModelError, RuntimeUnavailableError
from micronpu.base.texts import plural
from micronpu.host.build import build_simulator, load_library, load_or_build
from micronpu.targets.ethosu.accelerators import find_accelerator
from micronpu.targets.ethosu.payload import APART, EthosUPayload, VelaIO, parse

SOURCES = "ethosu_sim"
"""Folder of the simulator among the C++ sources."""
_VERSION = 4
_OK = 0
_NOT_MODELLED, _TOO_MUCH_WORK, _TOO_EARLY = 2, 4, 5
_CONSTANT, _SCRATCH, _MEMORY = 0, 1, 2
_NOWHERE = 2**64 - 1
_ALIGNMENT = 16
_CONSTANTS_REGION, _SCRATCH_REGION, _FAST_REGION = 0, 1, 2
_INPUTS_REGION, _OUTPUTS_REGION = APART
_FARTHEST = 1 << 30
"""Maximum bytes of separate inputs or outputs, because a payload may be damaged."""
FAST_SCRATCH_BYTES = 2 * 1024 * 1024
"""Default size in bytes of the NPU's own SRAM, for memory modes that use it: no supported chip has more."""
WEIGHT_LIMIT = 256 * 1024 * 1024
"""Default maximum of decoded weights in bytes."""
WEIGHTS_OF_ONE_RUN = 1024 * 1024
"""Maximum of decoded weights in bytes for a single run, enough for layers whose stripes alternate. All decoded weights
are three times as large as the program."""


class SimulationError(MicroNpuError):
    """A command stream does something invalid; the message names command, operation, and offset in bytes from the first
    command."""

    def __init__(self, what: str, *, offset: int | None = None, operation: int | None = None, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.offset = offset
        self.operation = operation


class NotModelledError(SimulationError):
    """A stream may be valid, but the simulator does not model a feature of it; the message names the register."""


class TooEarlyError(SimulationError):
    """An operation may read data before the previous one has written it; the message names both."""


class _Region(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_uint64), ("kind", ctypes.c_int32))


class _Range(ctypes.Structure):
    _fields_ = (("region", ctypes.c_uint32), ("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _FeatureMap(ctypes.Structure):
    _fields_ = (
        ("region", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("shape", ctypes.c_int32 * 3),
        ("stride", ctypes.c_int64 * 3),
        ("element_bytes", ctypes.c_int32),
        ("is_signed", ctypes.c_int32),
        ("is_bricks", ctypes.c_int32),
        ("zero_point", ctypes.c_int32),
    )


class _Operation(ctypes.Structure):
    _fields_ = (
        ("index", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("opcode", ctypes.c_uint32),
        ("parameter", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("work", ctypes.c_uint64),
        ("ofm", _FeatureMap),
        ("source_region", ctypes.c_uint64),
        ("source_address", ctypes.c_uint64),
        ("destination_region", ctypes.c_uint64),
        ("destination_address", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("reads", ctypes.POINTER(_Range)),
        ("writes", ctypes.POINTER(_Range)),
        ("num_reads", ctypes.c_uint64),
        ("num_writes", ctypes.c_uint64),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_Operation))
_HANDLE = ctypes.c_void_p
# A pointer and a count:
_BYTES = ctypes.c_char_p, ctypes.c_uint64
_REGIONS, _RANGES = (ctypes.POINTER(_Region), ctypes.c_int32), (ctypes.POINTER(_Range), ctypes.c_int32)
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "ethosu_sim_create": (_HANDLE, ctypes.c_int32, ctypes.c_int32),
    "ethosu_sim_destroy": (None, _HANDLE),
    "ethosu_sim_reset": (None, _HANDLE),
    "ethosu_sim_set_callback": (None, _HANDLE, _CALLBACK, ctypes.c_void_p),
    "ethosu_sim_set_work_limit": (None, _HANDLE, ctypes.c_uint64),
    "ethosu_sim_set_weight_limit": (None, _HANDLE, ctypes.c_uint64),
    "ethosu_sim_run": (ctypes.c_int32, _HANDLE, *_BYTES, *_REGIONS, *_RANGES),
    "ethosu_sim_unwritten": (ctypes.c_uint64, _HANDLE, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64),
    "ethosu_sim_command_name": (ctypes.c_char_p, _HANDLE, ctypes.c_uint32),
    "ethosu_sim_error": (ctypes.c_char_p, _HANDLE),
    "ethosu_sim_error_offset": (ctypes.c_uint64, _HANDLE),
    "ethosu_sim_error_operation": (ctypes.c_uint64, _HANDLE),
}
"""Types of the results and arguments of the functions that native/ethosu_sim exports."""


class Bytes(NamedTuple):
    """Adjacent bytes of a region; region 8 is the table memory inside the NPU."""

    region: int
    address: int
    size: int


@dataclass(frozen=True)
class SimulatedOperation:
    """One executed operation of a stream.

    Attributes:
        index: in the stream, from 0, including transfers.
        offset: bytes from the first command to the one that starts it.
        name: such as "convolution", "max pool", "transfer".
        work: multiplications, and bytes read.
        region: of the output; -1 if it stays inside the NPU.
        address: of the output in its region.
        shape: height, width and depth of the output; empty for a transfer.
        value: the output as stored in memory, of `shape`; None for a transfer or if it stays inside the NPU.
        reads, writes: every byte read and written, sorted, if the run has `accesses`.
    """

    index: int
    offset: int
    name: str
    work: int
    region: int
    address: int
    shape: tuple[int, ...]
    value: Array | None
    reads: tuple[Bytes, ...] = ()
    writes: tuple[Bytes, ...] = ()


Watcher = Callable[[SimulatedOperation], None]

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def load_simulator() -> ctypes.CDLL:
    """Return the simulator's library, compiled and loaded on the first call."""
    global _library
    with _lock:
        if _library is None:
            _library = load_or_build(build_simulator(SOURCES), _open, partial(build_simulator, SOURCES))
        return _library


def _open(path: Path) -> ctypes.CDLL:
    return load_library(path, "Ethos-U simulator", "ethosu_sim_version", _VERSION, _FUNCTIONS)


class EthosUSimulator:
    """An Ethos-U accelerator that computes the chip's results bit-exactly and refuses invalid streams.

    It caches decoded weights across runs. Not thread-safe.

    Args:
        accelerator: such as "ethos-u55-128".
        fast_scratch_bytes: size of the NPU's own SRAM, for memory modes with dedicated SRAM.
        work_limit: maximum multiplications plus bytes moved of a run; 0: no limit.
        weight_limit: maximum bytes of cached decoded weights; a single run needs no cache.

    Raises:
        OptionError: there is no such accelerator.
        RuntimeUnavailableError: the simulator cannot be built or loaded on this machine.
    """

    def __init__(
        self,
        accelerator: str,
        *,
        fast_scratch_bytes: int = FAST_SCRATCH_BYTES,
        work_limit: int = 0,
        weight_limit: int = WEIGHT_LIMIT,
    ) -> None:
        self.accelerator = find_accelerator(accelerator)
        self._fast_scratch_bytes = fast_scratch_bytes
        self._sim: int | None = None
        self._library = load_simulator()
        family = int(self.accelerator.family.removeprefix("u"))
        self._sim = self._library.ethosu_sim_create(family, self.accelerator.macs * self.accelerator.cores)
        if not self._sim:
            raise RuntimeUnavailableError(
                f"The simulator does not know {accelerator}.", hint="`micronpu targets` lists them"
            )
        self._library.ethosu_sim_set_work_limit(self._sim, work_limit)
        self.keep_weights(weight_limit)

    def __del__(self) -> None:
        if getattr(self, "_sim", None):
            self._library.ethosu_sim_destroy(self._sim)
            self._sim = None

    def command_name(self, word: int) -> str:
        """Name of the command in a word of a stream, such as "NPU_SET_IFM_REGION"; "" if there is none."""
        name = self._library.ethosu_sim_command_name(self._sim, word)
        return name.decode() if name else ""

    def keep_weights(self, most: int = WEIGHT_LIMIT) -> None:
        """Set the maximum bytes of cached decoded weights."""
        self._library.ethosu_sim_set_weight_limit(self._sim, most)

    def reset(self) -> None:
        """Clear the cache of decoded weights."""
        self._library.ethosu_sim_reset(self._sim)

    def run(
        self,
        payload: bytes | EthosUPayload,
        inputs: Sequence[Array],
        *,
        watch: Watcher | None = None,
        accesses: bool = False,
    ) -> list[Array]:
        """Run a payload once.

        Args:
            inputs: one array per input of the payload, of its element size and count, in the order of its program.
            watch: called after every operation, with its output.
            accesses: operations include the bytes that they read and write.

        Returns:
            One array per output, of the payload's shape (up to six sizes), as signed integers: the payload has only the
            size of elements.

        Raises:
            PayloadError: the payload is damaged, or blocks of it are stored elsewhere.
            ModelError: the inputs do not fit.
            SimulationError: the stream does something invalid, or something that the simulator does not model.
        """
        content = payload if isinstance(payload, EthosUPayload) else parse(payload)
        constants = np.frombuffer(content.constants, np.uint8)
        if constants.ctypes.data % _ALIGNMENT:
            constants = aligned_bytes(len(content.constants))
            constants[:] = np.frombuffer(content.constants, np.uint8)
        scratch = aligned_bytes(content.scratch_size)
        fast = aligned_bytes(self._fast_scratch_bytes)
        if len(inputs) != len(content.inputs):
            raise ModelError(
                f"The payload has {plural(len(content.inputs), 'input')}, but {len(inputs)} were given.",
                hint="one array for each input, in order",
            )
        memories = {
            _SCRATCH_REGION: scratch,
            _INPUTS_REGION: _apart(content.inputs, _INPUTS_REGION),
            _OUTPUTS_REGION: _apart(content.outputs, _OUTPUTS_REGION),
        }
        ranges = (_Range * len(inputs))()
        for i, (tensor, array) in enumerate(zip(content.inputs, inputs, strict=True)):
            place = _place(tensor, memories, f"input {i}")
            data = np.ascontiguousarray(array)
            if data.nbytes != place.size or data.itemsize != tensor.element_size:
                raise ModelError(
                    f"Input {i} has {plural(data.size, 'element')} of {plural(data.itemsize, 'byte')}, but the "
                    f"payload expects {place.size // tensor.element_size} of {tensor.element_size}.",
                    hint="an array of that size",
                )
            place[:] = data.reshape(-1).view(np.uint8)
            ranges[i] = _Range(tensor.region, tensor.address, place.size)
        all_memories = [constants, scratch, fast]
        if any(memories[number].size for number in (_INPUTS_REGION, _OUTPUTS_REGION)):
            all_memories += [memories[_INPUTS_REGION], memories[_OUTPUTS_REGION]]
        kinds = (_CONSTANT, *[_SCRATCH] * (len(all_memories) - 1))
        regions = (_Region * len(kinds))(
            *(_Region(m.ctypes.data, m.size, kind) for m, kind in zip(all_memories, kinds, strict=True))
        )
        self._run(content.commands, regions, ranges, _watching(watch, all_memories, accesses))
        for i, tensor in enumerate(content.outputs):
            size = _place(tensor, memories, f"output {i}").size
            hole = self._library.ethosu_sim_unwritten(self._sim, tensor.region, tensor.address, size)
            if hole != _NOWHERE:
                raise SimulationError(
                    f"The stream ends, but it has not computed output {i}: it has not written byte "
                    f"{hole - tensor.address} of its {size}."
                )
        return [
            _place(tensor, memories, f"output {i}").view(f"<i{tensor.element_size}").reshape(tensor.shape).copy()
            for i, tensor in enumerate(content.outputs)
        ]

    def run_on(
        self, commands: bytes, memories: Sequence[Array | None], *, watch: Watcher | None = None, accesses: bool = False
    ) -> None:
        """Run a stream on memory as on a board: all bytes are readable and writable, and modified in place.

        Args:
            commands: driver actions, as in a payload.
            memories: the bytes behind each base pointer, aligned to 16; None for absent ones. They may overlap.
            watch, accesses: see `run`.

        Raises:
            SimulationError: the stream does something invalid, or something that the simulator does not model.
        """
        nowhere = _Region(None, 0, _MEMORY)
        regions = (_Region * len(memories))(
            *(nowhere if m is None else _Region(m.ctypes.data, m.size, _MEMORY) for m in memories)
        )
        kept = [np.empty(0, np.uint8) if m is None else m for m in memories]
        self._run(commands, regions, (_Range * 0)(), _watching(watch, kept, accesses))

    def _run(self, commands: bytes, regions: Any, ranges: Any, handle: Callable[[Any], None] | None) -> None:
        failure: list[BaseException] = []

        def watched(_: object, operation: Any) -> int:
            # An exception must not leave a callback: it stops the run and is raised here.
            try:
                assert handle is not None
                handle(operation.contents)
            except BaseException as error:
                failure.append(error)
                return 1
            return 0

        callback = _CALLBACK(watched) if handle is not None else _CALLBACK()
        self._library.ethosu_sim_set_callback(self._sim, callback, None)
        status = self._library.ethosu_sim_run(
            self._sim, commands, len(commands), regions, len(regions), ranges, len(ranges)
        )
        self._library.ethosu_sim_set_callback(self._sim, _CALLBACK(), None)
        if failure:
            raise failure[0]
        if status == _OK:
            return
        sentence = self._library.ethosu_sim_error(self._sim).decode(errors="replace")
        offset = self._library.ethosu_sim_error_offset(self._sim)
        operation = self._library.ethosu_sim_error_operation(self._sim)
        raise _ERRORS.get(status, SimulationError)(
            sentence,
            offset=None if offset == _NOWHERE else offset,
            operation=None if operation == _NOWHERE else operation,
        )


def _watching(watch: Watcher | None, memories: Sequence[Array], accesses: bool) -> Callable[[Any], None] | None:
    return None if watch is None else lambda operation: watch(_operation(operation, memories, accesses))


_ERRORS = {_NOT_MODELLED: NotModelledError, _TOO_MUCH_WORK: NotModelledError, _TOO_EARLY: TooEarlyError}


def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """Zeros with the NPU's alignment, in separate pages: untouched ones take no memory."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)[:size]


def _apart(tensors: Sequence[VelaIO], region: int) -> npt.NDArray[np.uint8]:
    """Memory of separate inputs or outputs, up to the end of the last one; empty for none, or beyond the limit."""
    end = max((b.address + b.bytes for b in tensors if b.region == region), default=0)
    return aligned_bytes(end if 0 <= end <= _FARTHEST else 0)


def _place(tensor: VelaIO, memories: Mapping[int, npt.NDArray[np.uint8]], name: str) -> npt.NDArray[np.uint8]:
    size, memory = tensor.bytes, memories.get(tensor.region)
    if memory is None or tensor.address < 0 or size < 0 or tensor.address + size > memory.size:
        scratch = memories[_SCRATCH_REGION]
        raise SimulationError(
            f"The payload's {name} lies at byte {tensor.address} of region {tensor.region} and has {size} bytes, "
            f"but the scratch memory, region {_SCRATCH_REGION}, has {scratch.size}."
        )
    return memory[tensor.address : tensor.address + size]


def _operation(o: Any, memories: Sequence[Array], accesses: bool) -> SimulatedOperation:
    ofm = o.ofm
    value: Array | None = None
    shape = tuple(ofm.shape)
    if not any(shape):
        shape = ()
    elif 0 <= ofm.region < len(memories):
        value = _read(memories[ofm.region], ofm)
    found = SimulatedOperation(o.index, o.offset, o.name.decode(), o.work, ofm.region, ofm.address, shape, value)
    if not accesses:  # profiles and checks do not need thousands of ranges
        return found
    reads = tuple(Bytes(r.region, r.offset, r.size) for r in o.reads[: o.num_reads])
    writes = tuple(Bytes(r.region, r.offset, r.size) for r in o.writes[: o.num_writes])
    return replace(found, reads=reads, writes=writes)


def _read(memory: Array, ofm: Any) -> Array | None:
    """Read a feature map of one tile from memory; None if it exceeds the memory."""
    height, width, depth = ofm.shape
    size = ofm.element_bytes
    c = np.arange(depth)
    along_depth = c // 16 * ofm.stride[2] + c % 16 * size if ofm.is_bricks else c * size
    stride_x = 16 * size if ofm.is_bricks else ofm.stride[1]
    at = (
        ofm.address
        + np.arange(height)[:, None, None] * ofm.stride[0]
        + np.arange(width)[None, :, None] * stride_x
        + along_depth[None, None, :]
    )
    if at.min() < 0 or at.max() + size > memory.size:
        return None
    values = memory[at[..., None] + np.arange(size)]
    kind = "i" if ofm.is_signed else "u"
    return np.ascontiguousarray(values).view(f"<{kind}{size}").reshape(height, width, depth)
