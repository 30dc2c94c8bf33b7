"""Start-up of the NPU and images in the field: on an emulated board, with the open simulator as its Ethos-U."""

from __future__ import annotations

import functools
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import OptionError
from micronpu.board.check import Finished, MachineOptions, run_firmware
from micronpu.board.elf import Elf
from micronpu.board.faults import npu_status, npus_of
from micronpu.board.logs import NPU, read_measurement
from micronpu.board.npu import REGIONS
from micronpu.board.remote import Remote
from micronpu.chips.chip import parse_chip
from micronpu.cli.main import app
from micronpu.compiler.program import CompiledProgram
from micronpu.deploy.image import make_image
from micronpu.deploy.shared import start_up_sources
from micronpu.targets.ethosu.firmware import EthosUFirmware
from micronpu.targets.firmware import Started
from tests.board.gdb_server import Board, served
from tests.board.needed import need_qemu
from tests.compile.small import Small, batches, image
from tests.deploy import firmware
from tests.deploy.host_build import host
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = Path(__file__).parent
SLOTS, INPUT = (0x70400000, 0x70500000), 0x70600000
COUNTED = ("micronpu_npu", "micronpu_profile")
FLAGS = ("-Wno-pedantic", "-Wno-int-to-pointer-cast", "-Wno-conversion")


def _classify(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(self.last(nn.functional.avg_pool2d(torch.relu(self.first(x)), 6).flatten(1)), 1)


@functools.cache
def network(seed: int, target: str = "corstone300") -> CompiledProgram:
    """Networks with the same border and other weights: a softmax has one grid, and the calibration is the same."""
    torch.manual_seed(seed)
    model = Small(_classify, first=nn.Conv2d(8, 8, 3, padding=1), last=nn.Linear(8, 10))
    inputs = (image(),)
    return micronpu.compile(
        model, inputs, target, calibration=batches(inputs, 6), quantization=micronpu.Quantization(io="int8")
    )


def vector() -> Any:
    return np.random.default_rng(3).integers(-128, 128, (1, 8, 6, 6)).astype(np.int8)


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A firmware, built once."""
    need("arm-none-eabi-gcc", "qemu-system-arm")
    need_qemu()
    work = tmp_path_factory.mktemp("field")
    folder = work / "out"
    network(1).deploy(folder, target="corstone300")
    more = (f"-I{folder}", f"-I{HERE / 'driver'}")
    own = ("micronpu.c", "micronpu_image.c", "model_image.c", "micronpu_pools.c", "micronpu_npu.c")
    (folder / "micronpu_programs_none.c").write_text(
        '#include "micronpu.h"\nconst micronpu_program micronpu_programs[1] = {{0}};\n'
        "const size_t micronpu_program_count = 0;\n"
    )
    objects = [firmware.compile_source(folder / name, work, "cortex-m55", *more) for name in own]
    objects.append(firmware.compile_source(folder / "micronpu_programs_none.c", work, "cortex-m55", *more))
    for path in (HERE / "field.c", HERE / "driver" / "ethosu_driver.c"):
        objects.append(firmware.compile_source(path, work, "cortex-m55", *more, *FLAGS, "-Wno-pointer-to-int-cast"))
    return firmware.link(objects, "mps3-an547", work, "-DBOARD_STACK")


def run(elf: Path, folder: Path, *slots: bytes, **options: Any) -> Finished:
    """The firmware with images in its slots."""
    data = []
    for number, content in enumerate((*slots, vector().tobytes())):
        path = folder / f"{number}.bin"
        path.write_bytes(content)
        data.append((path, SLOTS[number] if number < len(slots) else INPUT))
    return run_firmware(elf, "corstone300", MachineOptions(seconds=60, **options), data=data)


def image_of(seed: int, version: str, target: str = "corstone300") -> bytes:
    return make_image(network(seed, target).buffer, version=version).data


@pytest.mark.sweep
def test_a_program_is_replaced_without_building_the_firmware_anew(elf: Path, tmp_path: Path) -> None:
    """The same file of the firmware runs what stands in its slots, and gives the numbers of `program.run`."""
    numbers = {}
    for seed, version in ((1, "1.0.0"), (2, "1.1.0"), (3, "1.0.9")):
        numbers[version] = network(seed).run(torch.from_numpy(vector())).flatten().tolist()
    assert len({tuple(n) for n in numbers.values()}) == 3
    first, second, third = image_of(1, "1.0.0"), image_of(2, "1.1.0"), image_of(3, "1.0.9")
    for slots, version in (
        ((first, second), "1.1.0"),
        ((third, first), "1.0.9"),
        ((first, second[:-1] + b"?"), "1.0.0"),
    ):
        done = run(elf, tmp_path, *slots)
        said = re.search(r"version (\S+): ([-\d ]+)\n", done.output)
        assert said is not None and done.status == 0, done.output
        assert (said[1], [int(n) for n in said[2].split()]) == (version, numbers[version])
    assert "slot b: the image is damaged\n" in done.output and "clock on 2 times\n" in done.output
    other = image_of(1, "2.0.0", "ethos-u55-256")
    done = run(elf, tmp_path, other, first[:5000] + bytes(len(first) - 5000))
    assert done.output.startswith("slot a: the image is for another NPU\nslot b: the image is damaged\nno program\n")


def test_the_stack_is_as_deep_as_the_page_says(elf: Path, tmp_path: Path) -> None:
    """The check of an image, start-up and a run of the NPU, with newlib's printf, on an emulated Cortex-M55."""
    done = run(elf, tmp_path, image_of(1, "1.0.0"), b"")
    depth = re.search(r"stack: (\d+) bytes\n$", done.output)
    page = (HERE.parents[1] / "docs" / "firmware.md").read_text(encoding="utf-8")
    reported = re.search(r"without ExecuTorch take ([\d,]+) bytes of stack", page)
    assert depth is not None and reported is not None
    assert int(reported[1].replace(",", "")) - 256 <= int(depth[1]) <= int(reported[1].replace(",", ""))


def test_another_npu_is_noticed_before_the_first_run(elf: Path, tmp_path: Path) -> None:
    done = run(elf, tmp_path, image_of(1, "1.0.0"), b"", npu="ethos-u55-256")
    assert (
        "micronpu: the NPU is an Ethos-U55 with 256 MACs a cycle, but the program is for ethos-u55-128\n" in done.output
    )
    assert done.status == 4 and not done.runs
    done = run(elf, tmp_path, image_of(1, "1.0.0"), b"", npu="ethos-u65-256")
    assert "is an Ethos-U65 with 256 MACs" in done.output and not done.runs


def test_a_time_limit_without_a_clock_does_not_link(tmp_path: Path, elf: Path) -> None:
    """The weak clock, which stands still, is there only where there is no limit."""
    folder, more = elf.parent / "out", (f"-I{elf.parent / 'out'}", f"-I{HERE / 'driver'}")
    for limit, symbol in (("0", "W"), ("50u", "U")):
        made = firmware.compile_source(
            folder / "micronpu_npu.c", tmp_path, "cortex-m55", *more, f"-DMICRONPU_NPU_MILLISECONDS={limit}"
        )
        listed = subprocess.run(["arm-none-eabi-nm", str(made)], capture_output=True, text=True, check=True).stdout
        assert re.search(rf" {symbol} micronpu_milliseconds$", listed, re.M), listed


def test_a_run_that_never_ends_is_given_up(tmp_path: Path, elf: Path) -> None:
    """With a time limit, which is a setting of the build."""
    folder = elf.parent / "out"
    more = (f"-I{folder}", f"-I{HERE / 'driver'}", "-DMICRONPU_NPU_MILLISECONDS=50u")
    own = [p for p in elf.parent.glob("*.o") if not p.name.startswith(("micronpu_npu", "startup", "semihosting"))]
    limited = firmware.compile_source(folder / "micronpu_npu.c", tmp_path, "cortex-m55", *more)
    image = firmware.link([*own, limited], "mps3-an547", tmp_path)
    done = run(image, tmp_path, image_of(1, "1.0.0"), b"", fault="hang")
    assert done.output.endswith("FAIL: the NPU was not done within the time limit\n") and done.status == 2
    assert "ethos-u55-128: still running; STATUS 0x00000001" in done.line()


def test_the_status_of_an_npu_that_failed_is_decoded(tmp_path: Path, elf: Path) -> None:
    done = run(elf, tmp_path, image_of(1, "1.0.0"), b"", fault="bus")
    assert done.status == 2 and "micronpu: STATUS of ethos-u55-128 is 0x" in done.output
    assert "ethos-u55-128: bus abort: an address that it must not access" in done.line()
    for word, said in (
        (0x2804, "bus abort: an address that it must not access, or no memory (weights, AXI port 1)"),
        (0x10, "command that it cannot parse"),
        (0x88, "reset that has not ended; weights that it cannot decode"),
        (0x22, "stopped, at the end; STATUS 0x00000022"),
    ):
        assert said in npu_status(word, "ethos-u55-128")
    assert "AXI" not in npu_status(0x2804, "ethos-u85-256")


def test_a_debugger_finds_the_npu_of_a_firmware_that_hangs(elf: Path) -> None:
    """By the symbol of the table, which is not folded into the code."""
    image, board = Elf.read(elf), Board()
    place, base = image.symbol("micronpu_npu_places"), 0x48102000
    board.memories[place] = bytearray(struct.pack("<I", base))
    board.memories[base] = bytearray(struct.pack("<II", 0x10061000, 1) + bytes(0x20) + struct.pack("<I", 0x00000007))
    with served(board) as address, Remote(address, 20) as remote:
        assert npus_of(remote, image) == "ethos-u55: still running; STATUS 0x00000001"
        del board.memories[base]
        assert npus_of(remote, image) == ""


def test_beats_that_the_npu_counts_are_printed(elf: Path, tmp_path: Path) -> None:
    folder = elf.parent / "out"
    more = (f"-I{folder}", f"-I{HERE / 'driver'}", "-DMICRONPU_RUNS=1")
    own = [
        p for p in elf.parent.glob("*.o") if not p.name.startswith(("micronpu_npu", "startup", "semihosting", "field"))
    ]
    own += [firmware.compile_source(folder / f"{name}.c", tmp_path, "cortex-m55", *more) for name in COUNTED]
    own.append(firmware.compile_source(HERE / "field.c", tmp_path, "cortex-m55", *more, *FLAGS))
    image = firmware.link(own, "mps3-an547", tmp_path, "-DBOARD_STACK")
    done = run(image, tmp_path, image_of(1, "1.0.0"), b"")
    found = read_measurement(done.output.encode(), "console")
    (row,) = found.of(NPU)
    assert row.ticks == sum(run.cycles for run in done.runs)
    (npu_run,) = done.runs  # the tests' driver leaves all regions on the first port
    reads, writes = (
        sum(-(-sum(r.size for r in getattr(o, side) if r.region < REGIONS) // 8) for o in npu_run.operations)
        for side in ("reads", "writes")
    )
    assert found.beats == {
        "AXI0_RD_DATA_BEAT_RECEIVED": reads,
        "AXI0_WR_DATA_BEAT_WRITTEN": writes,
        "AXI1_RD_DATA_BEAT_RECEIVED": 0,
        "AXI1_WR_DATA_BEAT_WRITTEN": 0,
    }
    assert reads > 100 and writes > 100
    data = [part for i, at in enumerate((*SLOTS, INPUT)) for part in ("--data", f"{tmp_path}/{i}.bin@{at:#x}")]
    told = CliRunner().invoke(app, ["board", "run", str(image), *data, "--measurement", str(tmp_path / "m.toml")])
    assert told.exit_code == 0, told.output
    kept = read_measurement((tmp_path / "m.toml").read_bytes(), "m.toml")
    assert kept.is_emulated and kept.beats == found.beats and kept.rows == found.rows
    assert kept.board == "corstone300" and kept.tools["compiler"].startswith("GCC: ")


RANGES = """
#include <stdint.h>
#include <stdio.h>
unsigned char pool[128] __attribute__((aligned(32)));
static void told(uintptr_t address, int forgets) {
  printf("%s %ld\\n", forgets ? "forget" : "write", (long)(address - (uintptr_t)pool));
}
#define MICRONPU_CACHE_IS_ON() 1
#define MICRONPU_CACHE_LINE(address, forgets) told(address, forgets)
#include "micronpu_npu.c"
micronpu_status use(void);
int ethosu_init(struct ethosu_driver *d, void *b, const void *f, size_t s, uint32_t e, uint32_t p) {
  return d == NULL || b == NULL || f != NULL || s + e + p == 0;
}
void ethosu_deinit(struct ethosu_driver *d) { (void)d; }
void ethosu_irq_handler(struct ethosu_driver *d) { (void)d; }
static uint32_t registers[64] = {0x10061000, [10] = 0x00000007};
int main(void) {
  static const unsigned char program[64] __attribute__((aligned(32)));
  const uint64_t begin[3] = {(uintptr_t)program, (uintptr_t)pool - 4, (uintptr_t)pool + 64};
  const size_t bytes[3] = {sizeof program, 40, 1000};
  ethosu_flush_dcache(begin, bytes, 3);
  puts("-");
  ethosu_invalidate_dcache(begin + 1, bytes + 1, 1);
  printf("%lx\\n", (unsigned long)ethosu_address_remap(0x20000010, 0));
  printf("%lx\\n", (unsigned long)ethosu_address_remap(0x30000010, 0));
  (void)registers;
  return 0;
}
"""


def test_the_cache_key_has_the_pools_and_nothing_else(tmp_path: Path) -> None:
    """Ranges of the driver are whole memories: what only the core reads, such as the program, stays as it is."""
    need("gcc")
    chip = micronpu.chips.shipped_chips()["alif-e8-hp"]
    for name, text in start_up_sources(
        EthosUFirmware(), "it", [Started("ethos-u55-256", chip)], [("pool", 128)]
    ).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "micronpu.h").write_text((HERE.parents[1] / "src/micronpu/deploy/templates/micronpu.h.in").read_text())
    (tmp_path / "ranges.c").write_text(RANGES)
    flags = ["-std=c11", "-Wall", "-Wextra", f"-I{tmp_path}", f"-I{HERE / 'driver'}", "-Wno-int-to-pointer-cast"]
    host(["gcc", *flags, str(tmp_path / "ranges.c"), "-o", str(tmp_path / "ranges")])
    written = ["write 0", "write 32", "write 64", "write 96"]
    forgotten = ["forget 0", "forget 32"]
    assert host([str(tmp_path / "ranges")]).split("\n")[:-1] == [*written, "-", *forgotten, "50800010", "30000010"]


def test_the_start_up_compiles_for_every_chip_without_a_warning(tmp_path: Path) -> None:
    """With gcc and clang; where a chip's file does not say where its NPU is, the build stops with a sentence."""
    need("arm-none-eabi-gcc", "clang")
    known = tried = 0
    shipped = micronpu.chips.shipped_chips()
    text = (HERE.parents[1] / "src/micronpu/chips/m55m1.toml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(base|interrupt) = .*\n", "", text.replace('"m55m1', '"nowhere'))
    nowhere = parse_chip(text, "nowhere.toml")
    for chip in (*shipped.values(), nowhere):
        if chip.npu is None or chip.npu.family != "ethos-u" or not chip.core.startswith("cortex-m"):
            continue
        folder = tmp_path / chip.name
        folder.mkdir()
        started = [Started(chip.npu.own.text("accelerator"), chip, 4096 if chip.name == "imx93-m33" else 0)]
        for name, text in start_up_sources(EthosUFirmware(), "it", started, [("pool", 128)]).items():
            (folder / name).write_text(text)
        header = HERE.parents[1] / "src/micronpu/deploy/templates/micronpu.h.in"
        (folder / "micronpu.h").write_text(header.read_text())
        source = folder / "micronpu_npu.c"
        base = () if chip.npu.own.optional_integer("base") is not None else ("-DMICRONPU_NPU_0_BASE=0x40001000u",)
        known, tried = known + (not base), tried + 1
        more = (f"-I{HERE / 'driver'}", "-Wno-int-to-pointer-cast")
        if base:
            with pytest.raises(AssertionError, match="It is not known where this NPU is"):
                firmware.compile_source(source, folder, "cortex-m55", *more)
        firmware.compile_source(source, folder, "cortex-m55", *base, *more)
        firmware.compile_source(source, folder, "cortex-m55", *base, "-DMICRONPU_ETHOSU_CACHE_BY_ADDRESS", *more)
        clang = ["clang", "--target=arm-none-eabi", "-mcpu=cortex-m55", "-mthumb", "-std=c11", "-fsyntax-only"]
        clang += ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-ffreestanding", f"-I{folder}"]
        include = subprocess.run(["arm-none-eabi-gcc", "-print-sysroot"], capture_output=True, text=True).stdout.strip()
        include = include or "/usr/lib/arm-none-eabi"
        host([*clang, f"-isystem{include}/include", "-isystem/usr/include/newlib", *base, *more, str(source)])
    assert known == tried - 1  # all that come with micronpu


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('[[memory]]\nname = "a"\nbytes = 4\nnpu_address = 8', "has an `npu_address`, but no `address`"),
        ('[[memory]]\nname = "a"\nbytes = 4\naddress = -1', "is a whole number of 32 bits"),
    ],
)
def test_places_of_a_chip_file_that_cannot_be(lines: str, words: str) -> None:
    head = 'name = "c"\ntitle = "C"\nsource = "s"\n[core]\nname = "cortex-m55"\n[[target]]\nname = "t"\ntitle = "T"\n'
    with pytest.raises(OptionError, match=words):
        parse_chip(head + lines, "c.toml")
