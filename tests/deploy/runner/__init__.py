"""ExecuTorch for a core, without its sources: an installation made of Arm's ExecuTorch runner for Corstone-300.

The sources of the runtime are in no package, but the runner of `micronpu board install` is a whole image with its
symbols: ExecuTorch of early 2026 with all portable kernels, Arm's delegate and Arm's driver, built by Arm with gcc for
a Cortex-M55.  What is made here looks to CMake like an installed ExecuTorch; its library has the bytes of the image,
the addresses of its functions, and `adapter.cpp`, which says what differs between that runtime and the headers of the
version that micronpu wants.  A deployed folder is built as its README says, at addresses that the image leaves free.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

from micronpu.board.check import Finished, MachineOptions, run_firmware
from micronpu.board.runners import find_runner
from micronpu.chips import core as machines
from micronpu.deploy import integration
from tests import tools
from tests.board.needed import need_runners
from tests.deploy import firmware
from tests.deploy.host_build import host

HERE = Path(__file__).parent
_VECTORS = 1984
"""Bytes of the image's own vectors; the folder's stand in their place."""
_CODE, _MODEL, _DATA = (0x10057000, "164K"), (0x70800000, "8M"), (0x71000000, "2M")
"""What the image leaves free."""
_ALIAS = 0x10000000
"""Of the instruction memory at 0."""
_NAMES = re.compile(r"_Z\w*(executorch|torch|cortex_m)\w*|ethosu_\w+|ETHOSU_\w+|et_pal_\w+")
_CONSTRUCTORS = ("_GLOBAL__sub_I_register_prim_ops.cpp", "_GLOBAL__sub_I_EthosUBackend.cpp")
_EMPTY = (
    *("executorch", "executorch_delegate_ethos_u", "ethosu_core_driver"),
    *("portable_kernels", "portable_ops_lib", "quantized_kernels", "quantized_ops_lib", "kernels_util_all_deps"),
    *("cortex_m_kernels", "cortex_m_ops_lib", "cmsis-nn"),
)
_CONFIG = """
set(EXECUTORCH_INCLUDE_DIRS {include})
add_library(executorch_core STATIC IMPORTED)
set_target_properties(executorch_core PROPERTIES IMPORTED_LOCATION {library} INTERFACE_LINK_OPTIONS "{options}")
set(executorch_FOUND ON)
"""


def need() -> None:
    """Skips a test where a tool or the runner is missing; CI installs them."""
    tools.need("arm-none-eabi-gcc", "arm-none-eabi-g++", "cmake")
    need_runners()


def _image() -> Path:
    return find_runner("corstone300", "pte", "u55").image()


@functools.cache
def _symbols() -> dict[str, int]:
    """Addresses, those of functions with the lowest bit set."""
    rows = (row.split() for row in host(["arm-none-eabi-readelf", "-sW", str(_image())]).splitlines())
    return {row[7]: int(row[1], 16) for row in rows if len(row) == 8 and row[6].isdigit()}


def _segments() -> list[tuple[int, int, int]]:
    """Virtual address, place in the file and size of what the image loads."""
    data = _image().read_bytes()
    begin, size, count = struct.unpack_from("<I", data, 28)[0], *struct.unpack_from("<2H", data, 42)
    found = []
    for number in range(count):
        kind, place, address, _, length, *_ = struct.unpack_from("<8I", data, begin + number * size)
        if kind == 1 and length:
            skipped = _VECTORS if address == 0 else 0
            found.append((address + skipped, place + skipped, length - skipped))
    return found


def _assembly() -> tuple[str, str]:
    """The image's bytes and names, weak, so that what the folder has of a name comes first; and what is patched."""
    names = {name: at for name, at in _symbols().items() if _NAMES.fullmatch(name)}
    held = [".syntax unified", ".thumb"]
    for number, (_, place, size) in enumerate(_segments()):
        held += [f'.section .runner{number}, "awx", %progbits', f".global runner_{number}", f"runner_{number}:"]
        held += [f'.incbin "{_image()}", {place}, {size}']
    for name, at in names.items():
        held += [f".weak {name}", f".type {name}, {'%function' if at & 1 else '%object'}", f".set {name}, {at:#x}"]
    # A file of its own: the assembler would take the names of the same file for what they are there.
    table = ['.section .rodata.runner, "a"', ".balign 4", ".global runner_patches", "runner_patches:"]
    table += [f".word {at & ~1:#x}, {name}" for name, at in names.items() if name.startswith("ethosu_") and at & 1]
    table += [f".word {names['et_pal_emit_log_message'] & ~1:#x}, runner_log"]
    table += [f".word {_symbols()['_write'] & ~1:#x}, _write", ".word 0, 0"]  # its own waits for a UART
    table += [".global runner_constructors", "runner_constructors:"]
    table += [f".word {_symbols()[name] | 1:#x}" for name in _CONSTRUCTORS] + [".word 0"]
    table += [f".word runner_{n}" for n in range(len(_segments()))]
    return "\n".join(held) + "\n", "\n".join(table) + "\n"


@functools.cache
def installed(folder: Path) -> Path:
    """An installation of ExecuTorch for a Cortex-M55 in a folder: its `executorch_DIR`."""
    for name, text in zip(("runner.S", "patches.S"), _assembly(), strict=True):
        (folder / name).write_text(text)
    relaxed = ("-Wno-pedantic", "-Wno-conversion", "-Wno-int-to-pointer-cast", "-Wno-stringop-overread")
    adapter = firmware.compile_source(
        HERE / "adapter.cpp", folder, "cortex-m55", *relaxed, *firmware.executorch_flags()
    )
    assembled = [firmware.compile_source(folder / name, folder, "cortex-m55") for name in ("runner.S", "patches.S")]
    objects = [str(path) for path in (adapter, *assembled)]
    host(["arm-none-eabi-ar", "rcs", str(folder / "libexecutorch_core.a"), *objects])
    for name in _EMPTY:
        host(["arm-none-eabi-ar", "rcs", str(folder / f"lib{name}.a")])
    package = folder / "cmake" / "ExecuTorch"
    package.mkdir(parents=True)
    starts = [f"-Wl,--section-start=.runner{n}={a:#x}" for n, (a, _, _) in enumerate(_placed())]
    flags = firmware.executorch_flags()
    config = _CONFIG.format(
        include=f"{flags[2]} {flags[4]}", library=folder / "libexecutorch_core.a", options=";".join(starts)
    )
    (package / "executorch-config.cmake").write_text(config)
    return package


def _placed() -> list[tuple[int, int, int]]:
    return [(a + (_ALIAS if a < 0x80000 else 0), place, size) for a, place, size in _segments()]


def move(folder: Path) -> None:
    """Gives `board/link.ld` the addresses that the image leaves free."""
    path = folder / "board" / "link.ld"
    sections = re.findall(r"KEEP\(\*\((\w+)\)\)", path.read_text())
    machine = next(m for m in machines.MACHINES if m.name == "mps3-an547")
    script = integration.linker_script(
        dataclasses.replace(machine, code=_CODE, model=_MODEL, data=_DATA), sections, "A test"
    )
    # The core finds its vectors where the memory begins.
    vectors = "KEEP(*(.vectors))"
    path.write_text(
        script.replace(vectors, "").replace("SECTIONS\n{", f"SECTIONS\n{{ .vectors {_ALIAS:#x} : {{ {vectors} }}")
    )


def commands(folder: Path) -> list[str]:
    """The lines of the folder's README that build the application, the last of which runs it."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(cmake -S \. -B build .*?)```", text, re.S)
    assert block is not None
    return block[1].replace("\\\n", " ").strip().split("\n")


def build(folder: Path, installation: Path, *definitions: str) -> None:
    """Builds the application of a folder by the commands of its README, at addresses that are free."""
    move(folder)
    driver = installation.parents[1] / "libethosu_core_driver.a"
    ours = {
        "-Dexecutorch_DIR=.../installed-arm/lib/cmake/ExecuTorch": f"-Dexecutorch_DIR={installation}",
        "-DMICRONPU_ETHOSU_DRIVER=...": f"-DMICRONPU_ETHOSU_DRIVER={driver}",
        "-DMICRONPU_ETHOSU_INCLUDE=...": f"-DMICRONPU_ETHOSU_INCLUDE={HERE.parent / 'driver'}",
        "$PWD": str(folder),
    }
    configure, make, _ = commands(folder)
    for theirs, mine in ours.items():
        configure = configure.replace(theirs, mine)
    assert "..." not in configure
    for command in ([*configure.split(), *definitions], make.split()):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def run(folder: Path, **options: Any) -> Finished:
    """What the application prints, run by the last command of the README."""
    found = re.fullmatch(r"micronpu board run (\S+) --board (\S+)(?: --npu (\S+))?", commands(folder)[-1])
    assert found is not None
    return run_firmware(
        folder / found[1], found[2], MachineOptions(**{"npu": found[3] or "", "seconds": 60, **options})
    )
