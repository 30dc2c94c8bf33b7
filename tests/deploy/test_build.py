"""`micronpu board build`: deployed folders built by CMake, sizes by component, and every way in which that fails."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from micronpu.base.errors import FileError, OptionError
from micronpu.board.boards import find_board
from micronpu.board.debug import DebugServer
from micronpu.board.machine import Machine
from micronpu.cli import doctor
from micronpu.cli.main import app
from micronpu.deploy import build as building
from micronpu.deploy import toolchain
from micronpu.deploy.build import BuildError, BuildOptions, build
from micronpu.deploy.footprint import footprint
from tests.deploy import firmware, programs, runner
from tests.deploy.host_build import host
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")
TOOLS = ("cmake", "ninja", "arm-none-eabi-gcc", "arm-none-eabi-g++")


@pytest.fixture(scope="module")
def core_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of kernels for a Cortex-M33."""
    folder = tmp_path_factory.mktemp("build") / "core"
    programs.program("core").deploy(folder, target="cortex-m33")
    return folder


@pytest.fixture(scope="module")
def npu_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build") / "npu"
    programs.program("ethosu_int8").deploy(folder, target="corstone300")
    return folder


@pytest.fixture(scope="module")
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation of ExecuTorch with its headers and with libraries that have nothing in them."""
    need(*TOOLS)
    folder = tmp_path_factory.mktemp("hollow")
    package = folder / "lib" / "cmake" / "ExecuTorch"
    package.mkdir(parents=True)
    flags = firmware.executorch_flags()
    (package / "executorch-config.cmake").write_text(f"set(EXECUTORCH_INCLUDE_DIRS {flags[2]} {flags[4]})\n")
    for name in ("executorch", "executorch_core", "cortex_m_kernels", "portable_kernels", "quantized_kernels"):
        host(["arm-none-eabi-ar", "rcs", str(folder / "lib" / f"lib{name}.a")])
    host(["arm-none-eabi-ar", "rcs", str(folder / "libcmsis-nn.a")])  # installed elsewhere
    for name in ("executorch_delegate_ethos_u", "ethosu_core_driver"):
        host(["arm-none-eabi-ar", "rcs", str(folder / "lib" / f"lib{name}.a")])
    return folder


def plain(folder: Path, *files: str) -> Path:
    """A folder that has the files of a deployed one, and nothing to compile."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("project(micronpu_firmware LANGUAGES C CXX ASM)\n")
    return folder


def test_what_cannot_be_built(tmp_path: Path) -> None:
    """Each says what the folder is instead, and nothing is written."""
    (tmp_path / "file").write_text("")
    rows: list[tuple[Path, str]] = [
        (tmp_path / "nothing", "nothing does not exist"),
        (tmp_path / "file", "file is a file"),
        (plain(tmp_path / "other", "main.c"), "is not a folder that `micronpu deploy` wrote"),
        (plain(tmp_path / "linux", "aarch64-linux.cmake"), "core with Linux"),
        (plain(tmp_path / "bare", "micronpu.h"), "no golden vectors"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for folder, said in rows:
        with pytest.raises(FileError, match=said):
            build(folder, BuildOptions())
    assert sorted(tmp_path.rglob("*")) == before


def test_options_that_cannot_be_used(tmp_path: Path) -> None:
    folder = plain(tmp_path / "folder", "CMakeLists.txt")
    with pytest.raises(OptionError, match="no emulated board has the core of this folder"):
        build(folder, BuildOptions())
    plain(folder, "board/toolchain.cmake", "output/other")
    sources = plain(tmp_path / "sources", "runtime/executor/method.cpp")
    rows: list[tuple[BuildOptions, str]] = [
        (BuildOptions(runtime=tmp_path / "none"), "none does not exist"),
        (BuildOptions(runtime=folder), "no ExecuTorch that is installed for a core.*README.md"),
        (BuildOptions(runtime=sources), "has ExecuTorch's sources.*README.md"),
        (BuildOptions(linker=tmp_path / "none.ld"), "no linker script"),
        (BuildOptions(toolchain=tmp_path / "none.cmake"), "no toolchain file"),
        (BuildOptions(definitions=["MICRONPU_RUNS"]), "no NAME=VALUE"),
        (BuildOptions(definitions=["A B=1"]), "no NAME=VALUE"),
    ]
    for options, said in rows:
        with pytest.raises(OptionError, match=said):
            build(folder, options)
    with pytest.raises(FileError, match="is not the folder of an earlier build"):
        build(folder, BuildOptions(output=folder / "output"))
    assert not (folder / "build").exists()


def test_a_cmsis_nn_that_cannot_be_used(tmp_path: Path) -> None:
    folder = plain(tmp_path / "folder", "CMakeLists.txt", "board/toolchain.cmake")
    with pytest.raises(OptionError, match=r"No kernel of this folder calls CMSIS-NN\. Try: leave out --cmsis-nn"):
        build(folder, BuildOptions(cmsis_nn=tmp_path))
    with (folder / "CMakeLists.txt").open("a") as file:
        file.write("foreach(library IN ITEMS cmsis-nn)")
    for path, said in (
        (tmp_path, "has neither CMSIS-NN's sources nor its library"),
        (tmp_path / "no", "does not exist"),
    ):
        with pytest.raises(OptionError, match=f"{said}: there is no Include/arm_nnfunctions.h, no libcmsis-nn.a"):
            build(folder, BuildOptions(cmsis_nn=path))


def test_sources_of_cmsis_nn_are_compiled(core_folder: Path, hollow: Path, tmp_path: Path) -> None:
    """For the core of the folder, by their own CMakeLists.txt; an ExecuTorch that has CMSIS-NN is not overruled."""
    sources = plain(tmp_path / "CMSIS-NN", "Include/arm_nnfunctions.h")
    (sources / "one.c").write_text("#if __ARM_ARCH != 8\n#error another core\n#endif\nint one(void) { return 1; }\n")
    (sources / "CMakeLists.txt").write_text("add_library(cmsis-nn STATIC one.c)\n")
    options = BuildOptions(hollow, tmp_path / "out", cmsis_nn=sources)
    with pytest.raises(BuildError, match="undefined reference to executorch::"):
        build(core_folder, options)
    assert [path.name for path in (tmp_path / "out" / "cmsis-nn").glob("*.a")] == ["libcmsis-nn.a"]
    own = tmp_path / "own"
    shutil.copytree(hollow, own)
    with (own / "lib/cmake/ExecuTorch/executorch-config.cmake").open("a") as file:
        file.write("add_library(cmsis-nn STATIC IMPORTED)\n")
    with pytest.raises(BuildError, match="This ExecuTorch has CMSIS-NN already: leave out --cmsis-nn"):
        build(core_folder, dataclasses.replace(options, runtime=own))


def test_tools_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message names all of them, and `doctor` each."""
    folder = plain(tmp_path, "CMakeLists.txt", "board/toolchain.cmake", "bin/empty", "my.cmake")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain.sys, "platform", "linux")
    with pytest.raises(BuildError, match=r"with cmake, ninja, arm-none-eabi-g\+\+, and no.*apt-get install ninja-"):
        build(folder, BuildOptions())
    with pytest.raises(BuildError, match="with cmake, ninja, and no"):
        build(folder, BuildOptions(toolchain=folder / "my.cmake"))
    found = {one.name: one for one in doctor.examine_build()}
    assert not any(one.good or one.needed for one in found.values()) and set(found) == {*TOOLS, "executorch_DIR"} - {
        TOOLS[2]
    }
    assert "apt-get install gcc-arm-none-eabi libstdc++" in found["arm-none-eabi-g++"].remedy


def test_a_compiler_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian packages it apart: the compiler is installed, and no program builds."""
    folder = plain(tmp_path, "CMakeLists.txt", "board/toolchain.cmake")
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        (tmp_path / "bin" / name).write_text(
            "#!/bin/sh\necho 'fatal error: atomic: No such file or directory' >&2; exit 1\n"
        )
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(toolchain.sys, "platform", "linux")
    with pytest.raises(BuildError, match=r"arm-none-eabi-g\+\+, and no.*apt-get install gcc-arm-none-eabi libstdc"):
        build(folder, BuildOptions())


def test_without_executorch(core_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(*TOOLS)
    monkeypatch.delenv("executorch_DIR", raising=False)
    with pytest.raises(BuildError, match=r"needs ExecuTorch, .*CMake finds none.*--runtime PATH.*README\.md"):
        build(core_folder, BuildOptions(output=tmp_path / "out"))


def test_without_the_driver(npu_folder: Path, hollow: Path, tmp_path: Path) -> None:
    """What CMake refuses, in one sentence; the log has the whole."""
    with pytest.raises(BuildError, match="cannot be built: The programs need Arm's core driver for the Ethos-U: set "):
        build(npu_folder, BuildOptions(runtime=hollow, output=tmp_path / "out"))
    assert "CMake Error" in (tmp_path / "out" / "micronpu-build.log").read_text()
    with pytest.raises(BuildError, match="MICRONPU_RUNS is many, but it is a number of runs: 10, for example"):
        build(npu_folder, BuildOptions(hollow, tmp_path / "out", definitions=["MICRONPU_RUNS=many"]))


@pytest.mark.sweep
def test_what_the_linker_does_not_find(core_folder: Path, hollow: Path, tmp_path: Path) -> None:
    """All sources compile with ExecuTorch's headers; the names that a hollow ExecuTorch lacks, and how many more."""
    steps: list[float] = []
    with pytest.raises(BuildError, match=r"has no cmsis-nn, .* Try: --cmsis-nn PATH of CMSIS-NN's sources"):
        build(core_folder, BuildOptions(hollow, tmp_path / "out"))
    options = BuildOptions(hollow, tmp_path / "out", cmsis_nn=hollow)
    with pytest.raises(BuildError, match=r"undefined reference to executorch::[\w:]+, .* and \d+ more.*an ExecuTorch"):
        build(core_folder, options, lambda name, part: steps.append(part))
    assert steps == sorted(steps) and len(steps) > 8 and steps[-1] == 1.0
    objects = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.obj")}
    done = CliRunner().invoke(
        app,
        [
            "board",
            "build",
            str(core_folder),
            "--runtime",
            str(hollow),
            "-o",
            str(options.output),
            "--cmsis-nn",
            str(hollow),
        ],
    )
    assert done.exit_code == 1 and "undefined reference to executorch::" in done.output
    assert objects and all(path.stat().st_mtime_ns == time for path, time in objects.items())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a.c:3:10: fatal error: executorch/x/y.h: No such file or directory\n",
            "error: executorch.*an ExecuTorch of",
        ),
        ("/usr/bin/ld: region `CODE' overflowed by 12 bytes\n", "built: region `CODE' overflowed.*--linker"),
        ("ld: a.o uses VFP register arguments, b.elf does not\n", "VFP.*built for the core"),
        ("a.o: undefined reference to `ethosu_init'\n", "to ethosu_init. Try: an ExecuTorch of"),
        ("ninja: error: 'x.a', needed by 'app', missing\n", "'x.a', needed by 'app', missing"),
        ("something\n", "cmake ends with 3"),
    ],
)
def test_errors_of_the_tools(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plain(tmp_path, "CMakeLists.txt", "board/toolchain.cmake")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "cmake"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setattr(building, "missing_tools", dict)
    (tmp_path / "build").mkdir()
    with pytest.raises(BuildError, match=said):
        build(folder, BuildOptions())
    assert text in (tmp_path / "build" / "micronpu-build.log").read_text()


C = """
const double {name}_a = 1.25, {name}_b[2] = {{2.5, 1.25}};
int {name}_variable = 3, {name}_zero[{zeros}];
const char *{name}_text(void); const char *{name}_text(void) {{ return "the same text"; }}
double {name}_run(int i); double {name}_run(int i) {{ return i * 1.25 + {name}_b[i & 1] + {name}_variable++; }}
"""
MAIN = """
extern double core_run(int), kernel_run(int); extern unsigned char pool[], model[];
int main(void); int main(void) { return (int)(core_run(1) + kernel_run(2)) + pool[3] + model[1]; }
"""
SCRIPT = """
MEMORY { CODE (rx) : ORIGIN = 0, LENGTH = 64K  FAR (r) : ORIGIN = 0x21000000, LENGTH = 64K
  DATA (rw) : ORIGIN = 0x20000000, LENGTH = 64K }
ENTRY(main)
SECTIONS {
  .text : { *(.text*) *(.rodata*) . = ALIGN(64); } > CODE
  .ARM.exidx : { *(.ARM.exidx*) } > CODE
  .model : { *(network) } > DATA AT > FAR
  .data : { *(.data*) } > DATA AT > CODE
  .bss : { *(.bss*) *(COMMON) } > DATA
  .pools (NOLOAD) : { *(.micronpu.*) } > DATA
  .stack (NOLOAD) : { . += 4096; } > DATA
}
"""


def test_sizes_of_a_firmware(tmp_path: Path) -> None:
    """Sums are those of binutils; merged constants count once; what is copied to RAM counts twice."""
    need("arm-none-eabi-gcc")

    def compiled(name: str, text: str, archive: str = "") -> str:
        source, made = tmp_path / name, tmp_path / f"{name}.obj"
        source.write_text(text)
        flags = ["-mthumb", *firmware.CORES["cortex-m4"], "-O1", "-ffunction-sections", "-fdata-sections"]
        host(["arm-none-eabi-gcc", *flags, "-c", str(source), "-o", str(made)])
        if archive:
            host(["arm-none-eabi-ar", "rcs", str(tmp_path / f"lib{archive}.a"), str(made)])
        return str(tmp_path / f"lib{archive}.a") if archive else str(made)

    (tmp_path / "link.ld").write_text(SCRIPT)
    image, written = tmp_path / "f.elf", tmp_path / "f.map"
    objects = [
        compiled("main.c", MAIN),
        compiled("micronpu_pools.c", '__attribute__((section(".micronpu.pools"), nocommon)) unsigned char pool[512];'),
        compiled("model.S", '.section network,"a"\n.global model\nmodel: .zero 300\n'),
        compiled("core.c", C.format(name="core", zeros=25), "executorch_core"),
        compiled("kernel.c", C.format(name="kernel", zeros=1), "cortex_m_kernels"),
        compiled("other.c", "", "somebody"),
    ]
    command = ["arm-none-eabi-gcc", "-mthumb", *firmware.CORES["cortex-m4"], "-nostartfiles", f"-T{tmp_path}/link.ld"]
    host([*command, *objects, f"-Wl,-Map={written}", "-o", str(image)])
    found = {one.name: one for one in footprint(image, written)}
    text, data, bss = map(int, host(["arm-none-eabi-size", str(image)]).splitlines()[1].split()[:3])
    assert sum(one.flash for one in found.values()) == text + data
    assert sum(one.ram for one in found.values()) == data + bss + 300  # the program is copied
    assert (found["program"].flash, found["program"].ram) == (300, 300)
    assert (found["pools"].flash, found["pools"].ram) == (0, 512) and found["stack"].ram == 4096
    core, kernels = found["runtime: executorch_core"], found["kernels: cortex_m_kernels"]
    assert core.ram - kernels.ram == 24 * 4 and kernels.ram == 8 and core.flash > kernels.flash > 0
    assert found["C library"].flash > 0 and found["alignment"].flash >= 0 and "somebody" not in found
    assert all(one.flash >= 0 and one.ram >= 0 for one in found.values())


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(*TOOLS)
    runner.need()
    return runner.installed(tmp_path_factory.mktemp("executorch"))


def invoked(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_from_deploy_to_pass(npu_folder: Path, installation: Path, tmp_path: Path) -> None:
    """Build and run, with ExecuTorch, delegate and driver of Arm's runner; then all in one through a GDB connection."""
    folder = tmp_path / "firmware"
    shutil.copytree(npu_folder, folder)
    runner.move(folder)
    how = ["--runtime", installation, "-D", f"MICRONPU_ETHOSU_INCLUDE={runner.HERE.parent / 'driver'}"]
    how += ["-D", f"MICRONPU_ETHOSU_DRIVER={installation.parents[1] / 'libethosu_core_driver.a'}"]
    status, output = invoked("board", "build", folder, *how, "--json")
    assert status == 0, output
    told = json.loads(output)
    sizes = {one["name"]: one for one in told["components"]}
    assert sizes["program"]["flash"] >= (folder / "model.pte").stat().st_size - 64 and sizes["program"]["ram"] == 0
    assert {"application", "pools", "C library", "runtime: executorch_core", "heap", "stack"} <= set(sizes)
    pools = sum(map(int, re.findall(r"uint8_t \w+\[(\d+)\]", (folder / "micronpu_pools.c").read_text())))
    assert 0 <= sizes["pools"]["ram"] - pools < 32 * 4
    status, output = invoked(*told["run"].split()[1:])
    assert status == 0 and "PASS: 4 vectors, 0 elements differ" in output
    image = folder / "build" / "micronpu_app"
    before = image.stat().st_mtime_ns
    assert invoked("board", "build", folder, *how)[0] == 0 and image.stat().st_mtime_ns == before
    model = folder / "model.pte"
    # A linker script of a board: the NPU is where the chip's file says, and its interrupt as well.
    how += ["--linker", folder / "board" / "link.ld", "--for", "corstone300", "-o", tmp_path / "again"]
    with Machine(find_board("corstone300"), image, ["ethos-u55-128"]) as machine:
        server = DebugServer(machine)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(server.serve, 60)
            status, output = invoked("board", "run", model, "--gdb", f"127.0.0.1:{server.port}", *how)
            assert status == 0, output
            served.result(timeout=30)
        assert len(machine.npus[0].runs) == 4
    assert "PASS: micronpu_app on Cortex-M55" in output
    assert "runtime: executorch_core" in output and (tmp_path / "again" / "build" / "micronpu_app").is_file()


def test_options_of_a_model_on_a_board(tmp_path: Path) -> None:
    """Each is refused where nothing would be built, before anything is written or connected."""
    (tmp_path / "f.elf").write_bytes(b"\x7fELF")
    (tmp_path / "model.pte").write_bytes(b"program")
    rows: list[tuple[list[object], str]] = [
        ([tmp_path / "model.pte", "-D", "A=1"], "nothing is built"),
        ([tmp_path / "f.elf", "--gdb", "127.0.0.1:1", "--for", "corstone300"], "nothing is built"),
        ([tmp_path / "f.elf", "--gdb", "127.0.0.1:1", "-D", "A=1"], "nothing is built"),
        ([tmp_path / "model.pte", "--gdb", "127.0.0.1:1", "--reference", "x.pte"], "--reference is for a firmware"),
    ]
    for words, said in rows:
        status, output = invoked("board", "run", *words)
        assert status == 1 and said in output, output
