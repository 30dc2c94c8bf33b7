"""Reader of bytes printed by firmware of `micronpu deploy`: outputs, results of instructions, ExecuTorch's record.

    lines                                                              build with
    micronpu-output NAME VECTOR OUTPUT KIND BYTES OFFSET BASE64        -DMICRONPU_PRINT_OUTPUTS=ON
    micronpu-value NAME INSTRUCTION VALUE KIND BYTES OFFSET BASE64     -DMICRONPU_PRINT_VALUES=ON
    micronpu-etdump BYTES OFFSET BASE64                                -DMICRONPU_ETDUMP=ON

KIND is type, shape and order of axes in memory, "int8:1x8x4x4:0,2,3,1".  Lines may have a prefix, such as a time; other
lines are ignored.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import FileError, MicroNpuError
from micronpu.program.pte import ELEMENT_BYTES

_LINE = re.compile(
    r"micronpu-(?:(output|value) (\w+) (\d{1,9}) (\d{1,9}) (\w+:[\dx]*:[\d,]*)|(etdump))"
    r" (\d{1,10}) (\d{1,10}) ([A-Za-z0-9+/]{2,64}={0,2})\s*$"
)
_SIZES = {"bfloat16": "uint16"}
"""NumPy types with the bits of types that NumPy does not have."""
_HINT = "the whole log of a finished run"


@dataclass
class Printed:
    """Content of a log.

    Attributes:
        outputs: by program (or method), vector and output.
        values: by program, instruction and number of the value: one array for each run of the instruction.
        etdump: ExecuTorch's record; b"" without one.
    """

    outputs: dict[tuple[str, int, int], Array] = field(default_factory=dict)
    values: dict[tuple[str, int, int], list[Array]] = field(default_factory=dict)
    etdump: bytes = b""

    def names(self) -> list[str]:
        """Return the programs, in order."""
        return list(dict.fromkeys(name for name, *_ in (*self.outputs, *self.values)))

    def outputs_of(self, name: str) -> dict[str, Array]:
        """Return "output_0" and so on of a program, with a row for each vector, as `deploy --vectors` accepts them."""
        found: dict[int, dict[int, Array]] = {}
        for (program, vector, output), array in self.outputs.items():
            if program == name:
                found.setdefault(output, {})[vector] = array
        return {f"output_{o}": np.stack([rows[v] for v in sorted(rows)]) for o, rows in sorted(found.items())}

    def values_of(self, name: str) -> dict[str, Array]:
        """Return "INSTRUCTION_VALUE" of a program, with a row for each run."""
        return {
            f"{instruction}_{value}": np.stack(rows)
            for (program, instruction, value), rows in self.values.items()
            if program == name
        }


@contextmanager
def numbers_read(name: str) -> Iterator[None]:
    """Turn a number of more than 64 bits, for `count` or for Python, into an error message."""
    try:
        yield
    except MicroNpuError:
        raise
    except ValueError as error:
        raise FileError(f"The log {name} has a number of more than 64 bits.", hint=_HINT) from error


def count(digits: str) -> int:
    """Return the value of digits of a log; `ValueError` if no counter can hold it."""
    if (value := int(digits)) >= 1 << 64:
        raise ValueError
    return value


def read_printed(data: bytes, name: str) -> Printed:
    """Read a log."""
    found = Printed()
    with numbers_read(name):
        _read_lines(found, data, name)
    return found


def _read_lines(found: Printed, data: bytes, name: str) -> None:
    for kind, key, form, content in _blocks(data.decode("utf-8", errors="replace").splitlines(), name):
        if kind == "etdump":
            found.etdump = content
            continue
        array = _array(form, content, name)
        if kind == "output":
            found.outputs[key] = array
        else:
            rows = found.values.setdefault(key, [])
            if rows and (rows[0].shape != array.shape or rows[0].dtype != array.dtype):
                raise FileError(f"The log {name} is of several builds: value {key[2]} changes its type.", hint=_HINT)
            rows.append(array)


_Key: TypeAlias = tuple[str, int, int]


def _blocks(lines: Sequence[str], name: str) -> Iterator[tuple[str, _Key, str, bytes]]:
    """Yield complete blocks of several lines: kind, program and numbers, type, bytes."""
    begun: tuple[str, _Key, str, int] | None = None
    gathered = bytearray()
    for line in lines:
        match = _LINE.search(line)
        if match is None:
            if "micronpu-" in line and re.search(r"micronpu-(output|value|etdump) ", line):
                raise FileError(f"The log {name} has a damaged line: {line.strip()[:80]!r}.", hint=_HINT)
            continue
        size, offset = int(match[7]), int(match[8])
        this = (match[1] or match[6], (match[2] or "", int(match[3] or 0), int(match[4] or 0)), match[5] or "", size)
        if offset != len(gathered) or (begun is not None and this != begun):
            raise FileError(f"The log {name} has lost lines before: {line.strip()[:80]!r}.", hint=_HINT)
        begun = this
        try:
            gathered += base64.b64decode(match[9], validate=True)
        except (binascii.Error, ValueError) as error:
            raise FileError(f"The log {name} has a damaged line: {line.strip()[:80]!r}.", hint=_HINT) from error
        if len(gathered) > size:
            raise FileError(f"The log {name} has more bytes than it says: {line.strip()[:80]!r}.", hint=_HINT)
        if len(gathered) == size:
            yield this[0], this[1], this[2], bytes(gathered)
            begun = None
            gathered.clear()
    if begun is not None:
        raise FileError(f"The log {name} ends before the {begun[3]:,} bytes of {begun[0]} data do.", hint=_HINT)


def _array(form: str, content: bytes, name: str) -> Array:
    """Return a tensor with its axes in the order of the model."""
    dtype, shaped, ordered = form.split(":")
    shape = [count(size) for size in shaped.split("x") if size]
    order = [count(axis) for axis in ordered.split(",") if axis]
    if dtype not in ELEMENT_BYTES or sorted(order) != list(range(len(shape))):
        raise FileError(f"The log {name} has a tensor of the unknown kind {form!r}.", hint=_HINT)
    if math.prod(shape) * ELEMENT_BYTES[dtype] != len(content):
        raise FileError(f"The log {name} has {len(content)} bytes for a tensor {form!r}.", hint=_HINT)
    flat = np.frombuffer(content, np.dtype(_SIZES.get(dtype, dtype)).newbyteorder("<"))
    stored = flat.reshape([shape[axis] for axis in order])
    return np.ascontiguousarray(stored.transpose(np.argsort(order))) if order else stored.reshape(())
