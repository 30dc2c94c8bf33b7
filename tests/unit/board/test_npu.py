"""The register model of an NPU, on a memory of its own: identity, reset, runs, faults, counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from micronpu.base.errors import OptionError
from micronpu.board.npu import Npu, reach
from micronpu.board.registers import RegisterFile, generations
from micronpu.program.pte import read_pte
from micronpu.targets.ethosu.accelerators import accelerators
from micronpu.targets.ethosu.host.simulator import EthosUSimulator
from micronpu.targets.ethosu.payload import parse
from micronpu.targets.ethosu.stream import configuration_of, words_of

GOLDEN = Path(__file__).parents[2] / "golden"
STATUS, CMD, RESET, QBASE, QREAD, QSIZE, PROT, CONFIG, REGIONCFG, BASEP = 4, 8, 12, 16, 24, 32, 36, 40, 60, 128
PMCR, PMCNTENSET, PMCCNTR = 0x180, 0x184, 0x1A0
RUN, CLEAR = 1, 2
CONSTANTS, SCRATCH, STREAM = 0x10000, 0x80000, 0x200000


class Memory:
    """A megabyte or so that begins at 0 and ends somewhere."""

    def __init__(self, size: int = 0x300000) -> None:
        self.data = bytearray(size)

    def read(self, address: int, size: int) -> bytes:
        if address + size > len(self.data):
            raise OSError
        return bytes(self.data[address : address + size])

    def read_most(self, address: int, size: int) -> bytes:
        return bytes(self.data[address : address + size])

    def write(self, address: int, data: bytes) -> None:
        if address + len(data) > len(self.data):
            raise OSError
        self.data[address : address + len(data)] = data


def golden(kind: str) -> tuple:
    summary = read_pte((GOLDEN / f"{kind}.pte").read_bytes())
    arrays = np.load(GOLDEN / f"{kind}.npz")
    return parse(summary.payloads[0][1]), arrays["input_0"], arrays["output_0"]


def prepared(kind: str, accelerator: str, fault: str = "") -> tuple[Npu, Memory, np.ndarray, int]:
    """An NPU with the stream of a golden program in its memory; the program's output and where it will stand."""
    held, given, wanted = golden(kind)
    memory = Memory()
    words = np.array(words_of(held.commands), "<u4").tobytes()
    memory.write(STREAM, words)
    memory.write(CONSTANTS, bytes(held.constants))
    memory.write(SCRATCH + held.inputs[0].address, given.tobytes())
    npu = Npu(accelerator, memory, fault=fault)
    npu.store(QBASE, STREAM)
    npu.store(QSIZE, len(words))
    for i, base in enumerate((CONSTANTS, SCRATCH, SCRATCH)):
        npu.store(BASEP + 8 * i, base)
    return npu, memory, wanted, SCRATCH + held.outputs[0].address


KINDS = [("ethosu-litert", "ethos-u55-128"), ("ethosu-tosa", "ethos-u85-256")]


@pytest.mark.parametrize(("kind", "accelerator"), KINDS)
def test_a_run(kind: str, accelerator: str) -> None:
    npu, memory, wanted, at = prepared(kind, accelerator)
    npu.store(PMCNTENSET, 1 << 31)
    npu.store(PMCR, 1)
    npu.store(CMD, RUN)
    assert npu.load(STATUS) & 1 and not npu.interrupt  # until the board says that it is over
    npu.finish()
    assert npu.interrupt and npu.load(STATUS) == 0x22 and npu.load(QREAD) == npu.load(QSIZE)
    assert memory.read(at, wanted.nbytes) == wanted.tobytes()
    run = npu.runs[0]
    assert run.cycles == npu.load(PMCCNTR) > 0 and not run.fault and run.operations
    changed = [range(first, first + size) for first, size in run.written]
    assert any(at in part for part in changed) and all(part.start >= SCRATCH for part in changed)
    npu.store(CMD, CLEAR)
    assert not npu.load(STATUS) & 2


@pytest.mark.parametrize("name", accelerators())
def test_configuration_is_what_streams_are_made_for(name: str) -> None:
    """The driver compares it with the one in the payload; the golden programs' are the ones of Vela."""
    npu = Npu(name, Memory())
    for kind, accelerator in KINDS:
        if accelerator == name:
            held, _, _ = golden(kind)
            assert npu.load(CONFIG) == configuration_of(held.commands)
    size = accelerators()[name]
    assert 1 << (npu.load(CONFIG) & 15) == size.macs * size.cores
    for secret in (CONFIG, STATUS, PROT, 0):
        before = npu.load(secret)
        npu.store(secret, ~before & 0xFFFFFFFF)
        assert npu.load(secret) == before, "read only"


def test_reset_and_bytes() -> None:
    npu = Npu("ethos-u55-128", Memory())
    npu.store(BASEP, 0x11223344)
    assert [npu.load(BASEP + i, 1) for i in range(4)] == [0x44, 0x33, 0x22, 0x11] and npu.load(BASEP + 2, 2) == 0x1122
    npu.store(BASEP + 1, 0xAA, 1)
    npu.store(BASEP + 2, 0xBBCC, 2)
    assert npu.load(BASEP) == 0xBBCCAA44
    npu.store(RESET, 3)
    assert npu.load(BASEP) == 0 and npu.load(PROT) == 3 and npu.load(STATUS) == 0 and npu.load(CMD) == 0xC


def test_faults() -> None:
    npu, memory, wanted, at = prepared("ethosu-litert", "ethos-u55-128", "bus")
    npu.store(CMD, RUN)
    npu.finish()
    assert npu.load(STATUS) & 0x36 == 0x06 and memory.read(at, wanted.nbytes) != wanted.tobytes()
    npu, *_ = prepared("ethosu-litert", "ethos-u55-128", "hang")
    npu.store(CMD, RUN)
    assert npu.load(STATUS) == 1 and "on purpose" in npu.runs[0].fault
    npu, *_ = prepared("ethosu-litert", "ethos-u55-128", "reset")
    npu.store(RESET, 0)
    assert npu.load(STATUS) & 8
    with pytest.raises(OptionError, match="no fault 'smoke'"):
        Npu("ethos-u55-128", Memory(), fault="smoke")


def test_what_hardware_meets_as_an_error() -> None:
    # A stream where no memory is, base pointers beyond it and unaligned ones, and a word that is no command.
    npu, *_ = prepared("ethosu-litert", "ethos-u55-128")
    npu.store(QBASE, 0x7FFFFFF0)
    npu.store(CMD, RUN)
    assert npu.load(STATUS) & 0x3C == 0x04 and "memory ends" in npu.runs[0].fault
    for base in (0x2FFF00, SCRATCH + 8):
        npu, *_ = prepared("ethosu-litert", "ethos-u55-128")
        for region in (1, 2):
            npu.store(BASEP + 8 * region, base)
        npu.store(CMD, RUN)
        assert npu.load(STATUS) & 0x3C == 0x04, npu.runs[0].fault
    npu, memory, *_ = prepared("ethosu-litert", "ethos-u55-128")
    memory.write(STREAM + 16, b"\xff\x03\x00\x00")
    npu.store(CMD, RUN)
    assert npu.load(STATUS) & 0x3C == 0x10 and npu.runs[0].fault
    npu.store(RESET, 0)
    assert npu.load(STATUS) == 0


def test_reach_covers_what_operations_touch() -> None:
    for kind, accelerator in KINDS:
        npu, *_ = prepared(kind, accelerator)
        npu.store(CMD, RUN)
        run = npu.runs[0]
        words = npu.memory.read(*run.stream)
        ends = reach(words, EthosUSimulator(accelerator).command_name)
        for operation in run.operations:
            for part in (*operation.reads, *operation.writes):
                assert part.region > 7 or part.address + part.size <= max(ends)


def test_counters_wrap_and_say_so() -> None:
    npu, *_ = prepared("ethosu-litert", "ethos-u55-128")
    npu.registers.set("PMEVCNTR", 0xFFFFFFFF)
    npu.store(0x380, 35)  # NPU_ACTIVE
    npu.store(PMCNTENSET, 1)
    npu.store(PMCR, 1)
    npu.store(CMD, RUN)
    assert npu.load(0x300) == npu.runs[0].cycles - 1 and npu.load(0x18C) == 1
    npu.store(0x190, 1)
    assert npu.load(0x18C) == 0
    npu.store(PMCR, 0b11)
    assert npu.load(0x300) == 0 and npu.load(PMCR) >> 11 == 4


def test_tables() -> None:
    assert set(generations()) == {a.family for a in accelerators().values()}
    for generation in generations().values():
        words: dict[int, str] = {}
        for register in generation.registers.values():
            for number in range(register.count):
                for half in range(register.bits // 32):
                    at = register.offset + number * register.step + 4 * half
                    other = words.setdefault(at, register.name)
                    # U85 has other registers where U55 has limits of its AXI ports.
                    assert other == register.name or {other, register.name} == {"AXI_LIMIT", "MEM_ATTR"}
            taken = [bit for first, bits in register.fields.values() for bit in range(first, first + bits)]
            assert len(taken) == len(set(taken)) and all(bit < register.bits for bit in taken)
        macs = {a.macs * a.cores for a in accelerators().values() if a.family == generation.name}
        assert set(map(int, generation.inside)) == macs
    kept = RegisterFile(generations()["u55"])
    kept.store(0xBC0, 5)  # a register that the table does not have
    assert kept.load(0xBC0) == 5 and kept.name_at(0xBC0) == "" and kept.name_at(0x8C) == "BASEP[1]_HI"
