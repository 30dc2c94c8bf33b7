"""What `deploy` writes compiles without a warning for each core, and does on emulated boards what it says."""

from __future__ import annotations

import re
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

import micronpu
from micronpu.deploy.csource import _exact
from micronpu.program.digest import unsealed
from tests.compile.small import batches, conv, image
from tests.deploy import firmware, programs
from tests.deploy.host_build import host
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")


PRINTS = ("-DMICRONPU_RUNS=3", "-DMICRONPU_PRINT_OUTPUTS", "-DMICRONPU_PRINT_VALUES")


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("firmware") / "out"
    programs.program("ethosu_int8").deploy(folder, target="corstone300")
    return folder


ROWS = [("core", "cortex-m3"), ("core", "cortex-m85"), ("ethosu_int8", "cortex-m55"), ("two", "cortex-m33")]
MORE_ROWS = [("core", core) for core in firmware.CORES if ("core", core) not in ROWS]
"""The same sources for cores between these, twenty seconds each."""


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "core"), [*ROWS, *(pytest.param(*row, marks=pytest.mark.slow) for row in MORE_ROWS)])
def test_no_warning(kind: str, core: str, tmp_path: Path) -> None:
    need("arm-none-eabi-gcc", "arm-none-eabi-g++")
    folder = tmp_path / "out"
    programs.program(kind).deploy(folder, name="net")
    (folder / "data.c").write_text('#include "net_data.h"\n')
    (folder / "from_cpp.cpp").write_text('#include "net.h"\n#include "net_vectors.h"\n')
    for name in ("net.S", "net_vectors.c", "data.c", "from_cpp.cpp"):
        firmware.compile_source(folder / name, tmp_path, core)
    for name in ("micronpu.c", "micronpu_pools.c", "micronpu_programs.c", "micronpu_profile.c", "net_image.c"):
        firmware.compile_source(folder / name, tmp_path, core)
        firmware.compile_source(folder / name, tmp_path, core, "-DMICRONPU_PROFILE")
        firmware.compile_source(folder / name, tmp_path, core, *PRINTS)
    for name in ("main.cpp", "micronpu_kernels.cpp", "micronpu_model.cpp", "net.cpp"):
        firmware.compile_source(folder / name, tmp_path, core, *firmware.executorch_flags())
        if '#include "' in (folder / name).read_text():  # else nothing in it depends on our definitions
            firmware.compile_source(folder / name, tmp_path, core, *firmware.executorch_flags(), *PRINTS)
            firmware.compile_source(folder / name, tmp_path, core, *firmware.executorch_flags(), "-DMICRONPU_ETDUMP")


def test_the_c_of_the_pages_compiles_as_it_stands(int8_folder: Path, tmp_path: Path) -> None:
    """A file, and the body of a function behind the names that the pages say are the reader's."""
    need("arm-none-eabi-gcc")
    docs = Path(__file__).parents[2] / "docs"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in ("deploy.md", "firmware.md"))
    whole, body = re.findall(r"^```c\n(.*?)^```", page, re.S | re.M)
    start = "void start(const void *slot_a, const void *slot_b)"
    given = f"#define SLOT_BYTES 65536\nint classify(void);\n{whole}{start};\n{start} {{\n{body}}}\n"
    (tmp_path / "page.c").write_text(given)
    firmware.compile_source(tmp_path / "page.c", tmp_path, "cortex-m55", f"-I{int8_folder}")


def test_the_port_has_no_warning_and_no_heap(tmp_path: Path) -> None:
    """Start-up and console of the emulated boards, with gcc and clang."""
    need("arm-none-eabi-gcc", "clang")
    for core in firmware.CORES:
        for name in ("startup.c", "semihosting.c"):
            firmware.compile_source(firmware.PORT / name, tmp_path, core)
            firmware.compile_source(firmware.PORT / name, tmp_path, core, "-DBOARD_STACK")


def test_the_folder_builds_with_its_toolchain_file(int8_folder: Path, tmp_path: Path) -> None:
    """As its README says, as far as it goes without ExecuTorch: the library of programs, pools, images and vectors."""
    need("arm-none-eabi-gcc", "cmake")
    command = ["cmake", "-S", str(int8_folder), "-B", str(tmp_path), "-DMICRONPU_BOARD=ON"]
    toolchain = int8_folder / "board" / "toolchain.cmake"
    printed = host([*command, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"])
    assert "ExecuTorch is not found: only the library micronpu is built" in printed
    host(["cmake", "--build", str(tmp_path)])
    assert (tmp_path / "libmicronpu.a").stat().st_size > 10_000


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("board", "resident"),
    [*((board, False) for board in (*firmware.BOARDS, *firmware.MORE_BOARDS)), ("mps3-an547", True)],
)
def test_on_an_emulated_board(int8_folder: Path, board: str, resident: bool, tmp_path: Path) -> None:
    need("arm-none-eabi-gcc", "qemu-system-arm")
    integer_io = programs.program("ethosu_int8").integer_io
    assert integer_io is not None and integer_io.outputs[0] is not None
    io, result = integer_io.inputs[0], integer_io.outputs[0]
    edges = (np.arange(-200, 200) + 0.5).astype(np.float32) * np.float32(io.scale)
    numbers = np.concatenate([edges, np.linspace(-9, 9, 301, dtype=np.float32), np.float32([1e30, -1e30, 0.0])])
    steps = np.rint(numbers / np.float32(io.scale)) + io.zero_point
    integers = np.clip(steps, -128, 127).astype(int)
    reals = (np.arange(-128, 128) - result.zero_point).astype(np.float32) * np.float32(result.scale)
    adler = zlib.adler32(unsealed((int8_folder / "model.pte").read_bytes()))
    (tmp_path / "expected.h").write_text(
        f"#define EXPECTED_ADLER {adler}u\n"
        f"static const float numbers[] = {{{', '.join(map(_exact, numbers.tolist()))}}};\n"
        f"static const int8_t integers[] = {{{', '.join(map(str, integers))}}};\n"
        f"static const float reals[] = {{{', '.join(map(_exact, reals.tolist()))}}};\n"
    )
    core = (firmware.BOARDS | firmware.MORE_BOARDS)[board]
    check = Path(__file__).parent / "check.c"
    objects = [
        firmware.compile_source(check, tmp_path, core, f"-I{int8_folder}", f"-I{tmp_path}"),
        *(firmware.compile_source(int8_folder / name, tmp_path, core) for name in ("model.S", "model_vectors.c")),
    ]
    image = firmware.link(objects, board, tmp_path, resident=resident)
    headers = host(["arm-none-eabi-objdump", "-h", str(image)]).split("\n")
    (place, load) = next(line.split()[3:5] for line in headers if " .model " in line)
    assert (place != load) is resident  # and it is read where it was copied to
    printed = firmware.run(image, board)
    golden = int(programs.program("ethosu_int8").run(programs.program("ethosu_int8").rows[0][0]).reshape(-1)[3])
    sentence = f"vector 0, output 0, element 3: expected {golden}, computed {golden ^ 1}\n"
    assert printed == f"{sentence}DONE 4 vectors\n"


VENDOR = """
MEMORY {
  FLASH (rx) : ORIGIN = 0x00000000, LENGTH = 2M
  DTCM (rw) : ORIGIN = 0x20000000, LENGTH = 512K
  SRAM (rw) : ORIGIN = 0x21000000, LENGTH = 4M
  DDR (rw) : ORIGIN = 0x60000000, LENGTH = 16M
}
ENTRY(main)
SECTIONS {
  .text : { *(.text*) *(.rodata*) } > FLASH
  ABOVE
  .data : { *(.data*) } > DTCM AT > FLASH
  .bss : { *(.bss*) *(COMMON) } > DTCM
  BELOW
}
"""
"""As vendors write it: `.bss` takes all that begins so, in a memory which the NPU does not see."""


@pytest.mark.sweep
@pytest.mark.parametrize(("place", "use"), [("ABOVE", True), ("BELOW", True), (None, True), ("BELOW", False)])
def test_the_pools_in_a_script_of_a_vendor(int8_folder: Path, place: str | None, use: bool, tmp_path: Path) -> None:
    """In the SRAM wherever the script includes the folder's sections; else the linker says what is missing.

    Sections that nothing uses are discarded: the pools of a program that is called stay, those of another do not.
    """
    need("arm-none-eabi-gcc", "arm-none-eabi-g++")
    flags = firmware.executorch_flags()
    files = ("micronpu_pools.c", "micronpu_model.cpp", "model.cpp")
    objects = [firmware.compile_source(int8_folder / name, tmp_path, "cortex-m55", *flags) for name in files]
    calls = "return model_init();" if use else "return 0;"
    (tmp_path / "main.c").write_text(f"int model_init(void);\nint main(void);\nint main(void) {{ {calls} }}\n")
    objects.append(firmware.compile_source(tmp_path / "main.c", tmp_path, "cortex-m55"))
    (tmp_path / "micronpu_sections.ld").write_text((int8_folder / "micronpu_sections.ld").read_text())
    text = VENDOR
    for mark in ("ABOVE", "BELOW"):
        text = text.replace(mark, "INCLUDE micronpu_sections.ld" if mark == place else "")
    (tmp_path / "vendor.ld").write_text(text)
    # ExecuTorch is not linked: of what is undefined, only the symbol of the sections matters.
    keep = "-Wl,--warn-unresolved-symbols,--gc-sections"
    command = ["arm-none-eabi-gcc", "-mthumb", *firmware.CORES["cortex-m55"], "-nostdlib", f"-L{tmp_path}", keep]
    command += ["-T", str(tmp_path / "vendor.ld"), *map(str, objects), "-o", str(tmp_path / "v.elf")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("micronpu_sections_ld" in done.stderr) is (place is None), done.stderr
    listed = host(["arm-none-eabi-nm", str(tmp_path / "v.elf")])
    found = re.findall(r"^(\w+) . (model_(?:planned_\d+|method_pool|temporary_pool))$", listed, re.M)
    if place is None:
        return
    assert len(found) == (3 if use else 0), listed
    assert all(address.startswith("21") for address, _ in found), listed
    host(["arm-none-eabi-objcopy", "-O", "binary", str(tmp_path / "v.elf"), str(tmp_path / "v.bin")])
    assert (tmp_path / "v.bin").stat().st_size < 1 << 20  # the pools are not stored


@pytest.mark.sweep
def test_calls_are_exclusive_and_interrupts_stay_masked(int8_folder: Path, tmp_path: Path) -> None:
    """As the compiler has written it: an exclusive store of `running_`, and no CPSIE, whatever PRIMASK was."""
    need("arm-none-eabi-gcc", "arm-none-eabi-g++")
    driver = Path(__file__).parent / "driver"

    def function(source: str, name: str, *more: str) -> str:
        flags = (*firmware.executorch_flags(), f"-I{driver}", *more)
        made = firmware.compile_source(int8_folder / source, tmp_path, "cortex-m55", *flags)
        listed = host(["arm-none-eabi-objdump", "-d", "--demangle", str(made)])
        (text,) = re.findall(rf"^\w+ <{re.escape(name)}>:\n(.*?)(?:\n\n|\Z)", listed, re.M | re.S)
        return str(text).lower()

    invoke = "micronpu::Model::invoke(unsigned int, void const* const*, void* const*)"
    assert re.search(r"strexb|stlexb", function("micronpu_model.cpp", invoke))
    small = ("-mcpu=cortex-m0plus", "-mfloat-abi=soft")
    for code in (
        function("micronpu_model.cpp", invoke, *small),
        function("micronpu_npu.c", "ethosu_semaphore_take"),
    ):
        assert re.search(r"mrs\s+\w+, primask.*cpsid\s+i.*msr\s+primask", code, re.S) and "cpsie" not in code, code


@pytest.mark.parametrize("target", ["imxrt700", "corstone300"])
def test_folder_and_report_count_the_same_memory(target: str, tmp_path: Path) -> None:
    x = (image(),)
    program = micronpu.compile(conv(8, 8).eval(), x, target, calibration=batches(x, 2), quantization="int8")
    program.deploy(tmp_path / "out", target=target)
    memory = program.report.memory
    assert memory is not None and memory.sram > 1000
    assert f"| sram | {memory.sram:,} | " in (tmp_path / "out" / "README.md").read_text()


def test_the_folder_says_its_files_and_its_alignment(int8_folder: Path) -> None:
    text = (int8_folder / "README.md").read_text()
    named = re.findall(r"^\| `([^`]+)` \|", text.partition("## Files")[2].partition("##")[0], re.M)
    assert sorted(named) == sorted(str(p.relative_to(int8_folder)) for p in int8_folder.rglob("*") if p.is_file())
    assert named[0] == "model.h" and named.index("main.cpp") < named.index("board/link.ld")
    assert "| `board/link.ld` | linker script of" in text and "| `micronpu_sections.ld` | what goes where" in text
    (told,) = re.findall(r"#define MODEL_POOL_ALIGNMENT (\d+)", (int8_folder / "model.h").read_text())
    aligned = re.findall(r"aligned\((\d+)\)", (int8_folder / "micronpu_pools.c").read_text())
    assert len(aligned) > 1 and set(aligned) == {told}
