"""A program as an update image, which firmware verifies and loads, or refuses with a reason.

Little endian; the header's CRC-32 covers every byte before the program, the SHA-256 the program:

    0    4   magic `MNPI`
    4    2   version of this layout, 1         6   2   bytes before the program, a multiple of 32
    8    4   bytes of the program             12  32   its SHA-256
    44   16  version of the image             60  16   version of ExecuTorch
    76   24  accelerator, "" for none        100  24   memory mode
    124  4   method pool                     128   4   temporary pool
    132  4   planned memories                136  32   their sizes, eight of them
    168  4   CRC-32 of the description of inputs and outputs
    172  4   number of kernels               176  64   Ed25519 signature of the header without it and the CRC, or 0
    240  4   1 if it is signed                244   4   CRC-32 of bytes 0 to 244 and of those behind this word
    248  4   each: CRC-32 of the name of a kernel that the program calls; then zeros

The C that reads it is written by `deploy` (`micronpu_image.c`).
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

from micronpu.base.errors import OptionError, UnsupportedError
from micronpu.deploy.kernels import kernels_of
from micronpu.deploy.shared import opened
from micronpu.program.digest import unsealed
from micronpu.program.edit import strip
from micronpu.program.io import io_of
from micronpu.program.plan import Plan
from micronpu.targets.board import Board, Pools, pools_of_all, whole_board

MAGIC, LAYOUT = b"MNPI", 1
ALIGNMENT = 32
MOST_PLANNED = 8
SIGNATURE_AT, SIGNATURE_BYTES, SIGNED_AT, CRC_AT, KERNELS_AT = 176, 64, 240, 244, 248
_HEAD = struct.Struct("<4sHHI32s16s16s24s24sIII8III")
_VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,5}")


@dataclass(frozen=True)
class Image:
    """An image in memory.

    Attributes:
        kernels: that the firmware must have.
    """

    data: bytes
    program_bytes: int
    board: Board
    pools: Pools
    kernels: tuple[str, ...]
    signed: bool


def crc_of_io(plans: Sequence[Plan], named_data: dict[str, bytes]) -> int:
    """Return a CRC-32 of the description of all inputs and outputs: type, shape, order of axes, qparams."""
    said = ""
    for plan in plans:
        inputs, outputs = io_of(plan, named_data, None)
        described = [
            (b.name, b.tensor.dtype, tuple(b.tensor.shape), tuple(b.tensor.dim_order), b.scale, b.zero_point)
            for b in (*inputs, *outputs)
        ]
        said += repr(described) if len(plans) == 1 else repr((plan.name, described))
    return zlib.crc32(said.encode())


def kernel_names(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the kernels that the firmware must have registered for the methods of a program, in order."""
    found = []
    for operator in sorted({operator for plan in plans for operator in plan.operators}):
        try:
            found += [kernel.operator for kernel in kernels_of((operator,))]
        except UnsupportedError:
            found.append(operator)  # a custom kernel of the firmware
    return tuple(found)


def make_image(
    program: bytes,
    *,
    version: str,
    target: str | None = None,
    sign: Callable[[bytes], bytes] | None = None,
    source: str = "The program",
) -> Image:
    """Return an image of a program.

    Args:
        version: of the image, such as "1.2.0"; firmware with two slots uses the higher one.
        sign: returns the Ed25519 signature of bytes.
    """
    if not _VERSION.fullmatch(version):
        raise OptionError(f"The version {version!r} is no version.", hint="three numbers, such as 1.2.0")
    plans, summary = opened(program, source)
    board = whole_board(plans, target, source)
    if not board.on_device:
        raise UnsupportedError(
            f"{source} runs on a laptop only: its NPU part is a reference container.",
            hint="compile it with the vendor's converter",
        )
    pools, kernels = pools_of_all(plans), kernel_names(plans)
    if len(pools.planned) > MOST_PLANNED:
        raise UnsupportedError(
            f"{source} has {len(pools.planned)} planned memories, and an image has at most {MOST_PLANNED}.",
            hint="one planned memory, as `micronpu compile` makes it",
        )
    stripped = strip(unsealed(program), name=source)
    head = _head(stripped, version, board, pools, kernels, crc_of_io(plans, summary.named_data), sign)
    return Image(head + stripped, len(stripped), board, pools, kernels, sign is not None)


def _head(
    program: bytes,
    version: str,
    board: Board,
    pools: Pools,
    kernels: Sequence[str],
    io_crc: int,
    sign: Callable[[bytes], bytes] | None,
) -> bytes:
    """Return the bytes before the program."""
    size = -(-(KERNELS_AT + 4 * len(kernels)) // ALIGNMENT) * ALIGNMENT
    named = (version, metadata.version("executorch"), board.accelerator, board.memory_mode)
    planned = [*pools.planned, *[0] * (MOST_PLANNED - len(pools.planned))]
    sizes = (pools.method, pools.temporary, len(pools.planned), *planned)
    about = (len(program), hashlib.sha256(program).digest(), *(text.encode() for text in named))
    head = bytearray(size)
    _HEAD.pack_into(head, 0, MAGIC, LAYOUT, size, *about, *sizes, io_crc, len(kernels))
    struct.pack_into(f"<{len(kernels)}I", head, KERNELS_AT, *(zlib.crc32(name.encode()) for name in kernels))
    struct.pack_into("<I", head, SIGNED_AT, int(sign is not None))
    if sign is not None:
        head[SIGNATURE_AT : SIGNATURE_AT + SIGNATURE_BYTES] = sign(signed_part(bytes(head)))
    struct.pack_into("<I", head, CRC_AT, zlib.crc32(head[KERNELS_AT:], zlib.crc32(head[:CRC_AT])))
    return bytes(head)


def signed_part(head: bytes) -> bytes:
    """Return the signed bytes: the header without signature and CRC; it contains the program's SHA-256."""
    return head[:SIGNATURE_AT] + head[SIGNED_AT:CRC_AT] + head[KERNELS_AT:]
