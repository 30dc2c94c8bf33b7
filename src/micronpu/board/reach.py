"""Upper bound of the memory behind each base pointer that a command stream may access, read from its commands.

More is fetched when the simulator needs it, so a bound that is too small only costs time; see `micronpu.board.npu`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from micronpu.targets.ethosu.stream import commands_in

REGIONS = 8
_COMPUTES = ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL", "NPU_OP_ELEMENTWISE", "NPU_OP_RESIZE")
_STREAMS = ("WEIGHT", "WEIGHT1", "WEIGHT2", "WEIGHT3", "SCALE", "SCALE1")
_ALIGNMENT = 16
_INSIDE = 0x100
"""Region of a transfer that means the NPU's own memory."""
_STRIDE_BITS = 40


def reach(words: bytes, name_of: Callable[[int], str]) -> list[int]:
    """Return the maximum number of bytes behind each of the eight base pointers that a stream accesses.

    Args:
        name_of: returns the name of the command in a word, "" for none.
    """
    registers: dict[str, int] = {}
    ends = [0] * REGIONS

    def get(name: str) -> int:
        return registers.get(name, 0)

    def stretch(region: int, end: int) -> None:
        if not region & _INSIDE:
            ends[region & 7] = max(ends[region & 7], end)

    for command in commands_in(struct.unpack(f"<{len(words) // 4}I", words[: len(words) // 4 * 4])):
        name, parameter, value = name_of(command.word), command.parameter, command.value or 0
        if name.startswith("NPU_SET_"):
            key = name.removeprefix("NPU_SET_")
            wide = key.endswith(("_BASE", "_SRC", "_DST", "_LEN", "_LENGTH")) or "_BASE" in key or "STRIDE" in key
            registers[key] = (value | (parameter & 0xFF) << 32) if wide else value or parameter
        elif name == "NPU_OP_DMA_START":
            length = get("DMA0_LEN") * (get("DMA0_SIZE0") + 1) * (get("DMA0_SIZE1") + 1)
            for side in ("SRC", "DST"):
                skips = sum(abs(_signed(get(f"DMA0_{k}"))) * 0xFFFF for k in ("SKIP0", "SKIP1") if get(f"DMA0_{k}"))
                stretch(get(f"DMA0_{side}_REGION"), get(f"DMA0_{side}") + length + min(skips, 1 << 20))
        elif name in _COMPUTES:
            for part in _STREAMS:
                region = get("SCALE_REGION" if part.startswith("SCALE") else "WEIGHT_REGION")
                if f"{part}_LENGTH" in registers:
                    stretch(region, get(f"{part}_BASE") + get(f"{part}_LENGTH"))
            for part, shape in (("IFM", "IFM"), ("IFM2", "IFM"), ("OFM", "OFM")):
                if f"{part}_BASE0" in registers:
                    stretch(get(f"{part}_REGION"), _end_of(part, shape, get))
    return [-(-end // _ALIGNMENT) * _ALIGNMENT for end in ends]


def _end_of(part: str, shape: str, get: Callable[[str], int]) -> int:
    """Return the end of a feature map whose tiles have sizes of 16 bits; a negative stride adds nothing."""
    height = max(get(f"{part}_HEIGHT0_M1"), get(f"{shape}_HEIGHT0_M1"), get("OFM_HEIGHT_M1")) + 1
    width = max(get(f"{part}_WIDTH0_M1"), get(f"{shape}_WIDTH0_M1"), get("OFM_WIDTH_M1")) + 1
    bricks = get(f"{shape}_DEPTH_M1") // 16 + 1
    row, column, brick = (max(_signed(get(f"{part}_STRIDE_{d}")), 0) for d in "YXC")
    base = max(get(f"{part}_BASE{i}") for i in range(4))
    return base + height * row + width * max(column, 64) + bricks * brick


def _signed(value: int) -> int:
    return value - (1 << _STRIDE_BITS) if value >> (_STRIDE_BITS - 1) else value
