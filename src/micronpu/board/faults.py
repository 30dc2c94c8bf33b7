"""Fault registers and source lines of a stopped core.

Sources: Armv8-M Architecture Reference Manual (CFSR, HFSR, exception numbers and frames); the same in Armv7-M;
ethosu55_interface.h of Arm's driver (STATUS of an Ethos-U).
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence

from micronpu.board.elf import Elf
from micronpu.board.gdb import BoardError
from micronpu.board.registers import generations
from micronpu.board.remote import LR, PC, SP, XPSR, RefusedRequestError, Remote

_EXCEPTIONS = {3: "hard fault", 4: "memory management fault", 5: "bus fault", 6: "usage fault", 7: "secure fault"}
_SYSTEM = 0xE000ED28
"""CFSR, HFSR, DFSR, MMFAR, BFAR follow each other."""
_CFSR = {
    0: "instruction fetch where none is permitted (IACCVIOL)",
    1: "data access that the MPU forbids (DACCVIOL)",
    3: "MPU violation on return from an exception (MUNSTKERR)",
    4: "MPU violation while entering an exception: the stack is full? (MSTKERR)",
    8: "instruction fetch from no memory (IBUSERR)",
    9: "data access to no memory or a peripheral without clock (PRECISERR)",
    10: "write to no memory, some instructions earlier (IMPRECISERR)",
    11: "bus error on return from an exception (UNSTKERR)",
    12: "bus error while entering an exception: the stack is full? (STKERR)",
    16: "undefined instruction: built for another core, or an FPU or MVE that is off? (UNDEFINSTR)",
    17: "jump to an even address, which is no Thumb code (INVSTATE)",
    18: "damaged return from an exception (INVPC)",
    19: "FPU or coprocessor that is off (NOCP)",
    20: "stack overflow (STKOF)",
    24: "unaligned access (UNALIGNED)",
    25: "division by zero (DIVBYZERO)",
}
_MMFAR_VALID, _BFAR_VALID = 7, 15
_HFSR = {1: "vector table cannot be read (VECTTBL)", 31: "breakpoint without a debugger (DEBUGEVT)"}
_RETURN = 0xFFFFFF
"""Upper bits of LR at the first instruction of a handler, when the frame is at the top of the stack."""
_REPORTED = re.compile(r"FAULT cfsr 0x([0-9a-f]{1,8})\s+pc 0x([0-9a-f]{1,8})\s+lr 0x([0-9a-f]{1,8})")
_PLACES = "micronpu_npu_places"
"""The NPUs in `micronpu_npu.c`; their first word is the address of the registers."""
_STATUS = {
    "bus_status": "bus abort: an address that it must not access, or no memory",
    "reset_status": "reset that has not ended",
    "cmd_parse_error": "command that it cannot parse: the program is damaged, or for another Ethos-U",
    "wd_fault": "weights that it cannot decode: they are damaged, or not in memory",
    "ecc_fault": "ECC fault of the NPU's memory",
}
_CHANNELS = {
    0: "command stream", 1: "input", 2: "weights", 3: "biases and scales", 4: "reads of a copy", 8: "output",
    9: "writes of a copy",
}  # fmt: skip
"""Source of a bus abort by faulting_channel, on Ethos-U55 and U65."""
_STATUS_PRINTED = re.compile(r"STATUS of (ethos-[\w-]+) is 0x([0-9a-f]{8})")
_TOOLS = ("arm-none-eabi-addr2line", "llvm-symbolizer", "gdb-addr2line", "addr2line")
_TOOL_SECONDS = 30.0


def decode(cfsr: int, hfsr: int = 0, mmfar: int = 0, bfar: int = 0) -> str:
    """Bits of the fault status registers, as a clause."""
    found = [text for bit, text in _CFSR.items() if cfsr >> bit & 1] + [t for b, t in _HFSR.items() if hfsr >> b & 1]
    text = "; ".join(found) or "no bit says why"
    for name, valid, address in (("MMFAR", _MMFAR_VALID, mmfar), ("BFAR", _BFAR_VALID, bfar)):
        text += f"; address {address:#010x} ({name})" if cfsr >> valid & 1 else ""
    return f"{text}; CFSR {cfsr:#010x}"


def fault_of(remote: Remote, elf: Elf) -> str:
    """The fault that a halted core is handling, with the place in the source; "" if it handles none."""
    number = remote.register(XPSR) & 0x1FF
    if number not in _EXCEPTIONS:
        return ""
    text = _EXCEPTIONS[number]
    try:
        cfsr, hfsr, _, mmfar, bfar = struct.unpack("<5I", remote.read(_SYSTEM, 20))
        text += f": {decode(cfsr, hfsr, mmfar, bfar)}"
        if (code := remote.register(LR)) >> 8 != _RETURN:
            return f"{text}; its handler has gone on to {place(elf, remote.register(PC))}"
        stack = remote.register("psp" if code & 4 else SP)
        lr, pc = struct.unpack("<2I", remote.read(stack + 20, 8))
        text += f"; at {place(elf, pc)}, called from {place(elf, lr & ~1)}"
    except RefusedRequestError:
        text += "; its registers and stack cannot be read"
    return text


def fault_in(text: str, elf: Elf) -> str:
    """The fault that the start-up code of a deployed folder has printed; "" if there is none."""
    match = _REPORTED.search(text)
    if match is None:
        return ""
    cfsr, pc, lr = (int(word, 16) for word in match.groups())
    return f"fault: {decode(cfsr)}; at {place(elf, pc)}, called from {place(elf, lr & ~1)}"


def npu_status(word: int, accelerator: str) -> str:
    """Return the register STATUS of an Ethos-U as a clause."""
    status = generations()["u55"].registers["STATUS"]
    found = [text for name, text in _STATUS.items() if status.unpack(word, name)]
    if status.unpack(word, "bus_status") and accelerator.startswith(("ethos-u55", "ethos-u65")):
        channel, port = (status.unpack(word, f"faulting_{what}") for what in ("channel", "interface"))
        found[0] += f" ({_CHANNELS.get(channel, f'channel {channel}')}, AXI port {port})"
    if not found:
        ended = status.unpack(word, "cmd_end_reached")
        found = ["still running" if status.unpack(word, "state") else "stopped, at the end" if ended else "stopped"]
    return f"{accelerator}: {'; '.join(found)}; STATUS {word:#010x}"


def npu_in(text: str) -> str:
    """The last state of an NPU that the start-up code of a deployed folder has printed; "" if there is none."""
    matches = _STATUS_PRINTED.findall(text)
    return npu_status(int(matches[-1][1], 16), matches[-1][0]) if matches else ""


def npus_of(remote: Remote, elf: Elf) -> str:
    """The state of the first NPU of a halted board; "" for a firmware that does not say where it is."""
    try:
        base = remote.word(elf.symbol(_PLACES))
        name = next(name for name, one in generations().items() if one.product == remote.word(base + 0x28) >> 28)
        return npu_status(remote.word(base + 4), f"ethos-{name}")
    except (BoardError, StopIteration):
        return ""


def place(elf: Elf, address: int) -> str:
    """Return an address in words, with its function, file and line as far as the image has them."""
    function = elf.function_at(address)
    line = _line(elf.name, address)
    return f"{address:#010x}" + (f" in {function}" if function else "") + (f" ({line})" if line else "")


def _line(image: str, address: int) -> str:
    """File and line of an address, by a tool of binutils or LLVM; "" without one, or without debug information."""
    tool = next(filter(None, map(shutil.which, _TOOLS)), None)
    if tool is None:
        return ""
    flag = "--obj" if "symbolizer" in tool else "-e"
    command: Sequence[str] = [tool, flag, image, hex(address)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = [re.match(r"(.*?):([1-9]\d*)", line) for line in done.stdout.splitlines()]
    return next((f"{m[1]}:{m[2]}" for m in found if m is not None and "?" not in m[1]), "")
