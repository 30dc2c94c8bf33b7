"""Command streams of Ethos-U55 and U65, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from ethosu.vela.ethos_u55_regs.ethos_u55_regs import cmd0, cmd1

from micronpu.targets.ethosu.payload import EthosUPayload, VelaIO

CONSTANTS, SCRATCH, FAST = 0, 1, 2
TABLES_OF_128 = 22 * 1024
"""Where the tables of U55-128 begin in the memory inside the NPU."""

TYPES = {"uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "int32": 5}
"""Signed in bit 0, size above it."""


class Stream:
    """Commands in the order of the calls; `payload` ends and packs them."""

    def __init__(self) -> None:
        self.words: list[int] = []

    def set(self, **registers: int) -> Stream:
        """Registers by name; what needs 32 bits is written so, above them at most 16 more."""
        for name, value in registers.items():
            if (command := getattr(cmd1, f"NPU_SET_{name}", None)) is not None:
                high = value >> 32 & 0xFFFF
                self.words += [command.value | 0x4000 | high << 16, value & 0xFFFFFFFF]
            else:
                self.words.append(cmd0[f"NPU_SET_{name}"].value | (value & 0xFFFF) << 16)
        return self

    def run(self, name: str, parameter: int = 0) -> Stream:
        """An operation."""
        self.words.append(cmd0[f"NPU_OP_{name}"].value | parameter << 16)
        return self

    def scale(self, name: str, scale: int, shift: int = 0) -> Stream:
        return self.set(**{name: shift << 32 | scale})

    def map(
        self,
        name: str,
        address: int,
        shape: Sequence[int],
        dtype: str = "int8",
        *,
        region: int = SCRATCH,
        zero: int = 0,
        bits: int = 0,
        bricks: bool = False,
    ) -> Stream:
        """IFM, IFM2 or OFM, height x width x depth, densely packed.

        Args:
            bits: what else belongs into the register of the precision.
        """
        height, width, depth = shape
        size = np.dtype(dtype).itemsize
        row = width * (-(-depth // 16) * 16 if bricks else depth) * size
        kind = TYPES[dtype]
        precision = kind if name == "OFM" else (kind & 1) | (kind >> 1) << 2
        values: dict[str, int] = {
            "REGION": region,
            "BASE0": address,
            "BASE1": 0,
            "BASE2": 0,
            "BASE3": 0,
            "WIDTH0_M1": width - 1,
            "HEIGHT0_M1": height - 1,
            "HEIGHT1_M1": height - 1,
            "STRIDE_Y": row,
            "STRIDE_X": 16 * size if bricks else depth * size,
            "STRIDE_C": width * 16 * size if bricks else size,
            "ZERO_POINT": zero,
            "PRECISION": precision | bits | int(bricks) << 6,
        }
        if name == "OFM":
            values |= {"HEIGHT_M1": height - 1, "WIDTH_M1": width - 1, "DEPTH_M1": depth - 1}
            self.set(OFM_BLK_HEIGHT_M1=0, OFM_BLK_WIDTH_M1=1, OFM_BLK_DEPTH_M1=15, BLOCKDEP=0)
        elif name == "IFM":
            values |= {"DEPTH_M1": depth - 1}
        return self.set(**{f"{name}_{key}": value for key, value in values.items()})

    def clamp(self, least: int, most: int, activation: int = 0) -> Stream:
        return self.set(ACTIVATION=activation, ACTIVATION_MIN=least, ACTIVATION_MAX=most)

    def window(self, height: int = 1, width: int = 1, stride: int = 0, pad: Sequence[int] = (0, 0, 0, 0)) -> Stream:
        top, left, bottom, right = pad
        return self.set(
            KERNEL_HEIGHT_M1=height - 1,
            KERNEL_WIDTH_M1=width - 1,
            KERNEL_STRIDE=stride,
            IFM_PAD_TOP=top,
            IFM_PAD_LEFT=left,
            IFM_PAD_BOTTOM=bottom,
            IFM_PAD_RIGHT=right,
            IFM_UPSCALE=0,
        )

    def transfer(self, source: tuple[int, int], destination: tuple[int, int], length: int) -> Stream:
        """From (region, address) to (region, address)."""
        return self.set(
            DMA0_SRC_REGION=source[0],
            DMA0_SRC=source[1],
            DMA0_DST_REGION=destination[0],
            DMA0_DST=destination[1],
            DMA0_LEN=length,
        ).run("DMA_START")

    def commands(self, config: int = 0x1807, *, stop: bool = True) -> bytes:
        """With driver actions; `config` 7: log2 of 128 MACs, product 0, that is U55-128."""
        words = self.words + ([0xFFFF0000] if stop else [])
        head = [0x31504F43, 0x00100001, config, 0x10010000, 5, 5, 5, len(words) << 16 & 0xFFFF0000 | 2]
        return struct.pack(f"<{len(head) + len(words)}I", *head, *words)

    def payload(
        self,
        *,
        inputs: Sequence[tuple[int, Sequence[int], int]] = (),
        outputs: Sequence[tuple[int, Sequence[int], int]] = (),
        constants: bytes = b"",
        scratch: int = 4096,
        **more: Any,
    ) -> EthosUPayload:
        """Inputs and outputs are (address, shape, bytes of an element)."""
        io = [
            tuple(VelaIO(tuple(shape), size, address, SCRATCH) for address, shape, size in some)
            for some in (inputs, outputs)
        ]
        return EthosUPayload(self.commands(**more), constants, scratch, io[0], io[1])


def copy(source: int = 0, destination: int = 64, shape: Sequence[int] = (1, 4, 16)) -> Stream:
    """Copies an int8 map from one place of the scratch memory to another, by a max pool of one element."""
    return (
        Stream()
        .map("IFM", source, shape)
        .map("OFM", destination, shape)
        .window()
        .clamp(-128, 127)
        .scale("OFM_SCALE", 1)
        .run("POOL", 0)
    )
