"""Integration into other builds: CMake, Zephyr, CMSIS, linker sections, upstream's runners.

Only documented interfaces are used: ExecuTorch's CMake package and Zephyr module, the components of the CMSIS pack
PyTorch::ExecuTorch, the options of `backends/arm/scripts` and of `examples/arm/executor_runner`.
"""

from __future__ import annotations

import functools

from micronpu.board.boards import boards
from micronpu.board.platforms import emulated_board
from micronpu.board.zephyr import zephyr_board, zephyr_npu
from micronpu.chips import Chip
from micronpu.deploy.application import c_sources
from micronpu.deploy.csource import Named, filled
from micronpu.deploy.kernels import Kernel, kernel_libraries
from micronpu.deploy.shared import ProgramSet
from micronpu.targets.board import DEDICATED_SRAM
from micronpu.targets.firmware import KernelLibrary
from micronpu.targets.registry import BACKENDS

RUN = "micronpu board run"
"""The command, in the comment of `CMakeLists.txt` from which `micronpu board build` takes its options."""
_RUNTIME = ("executorch", "executorch_core")
_FILES, _FILES_OPTION = "extension_flat_tensor", "-DEXECUTORCH_BUILD_EXTENSION_FLAT_TENSOR=ON"


def libraries(kernels: tuple[Kernel, ...]) -> list[str]:
    """Return CMake targets of ExecuTorch with the kernels and the runtime, each before those that it calls."""
    return [*(library.target for library in _used(kernels)), *_RUNTIME]


@functools.cache
def component_of(library: str) -> str:
    """Return what a library of a build is, with its name."""
    kinds = dict.fromkeys((*_RUNTIME, _FILES), "runtime")
    kinds |= dict.fromkeys((one.target for one in kernel_libraries().values()), "kernels")
    delegates = (firmware for backend in BACKENDS.values() if (firmware := backend.firmware()) is not None)
    kinds |= {name: "delegate" for firmware in delegates for name in firmware.whole_libraries}
    return f"{kinds[library]}: {library}" if library in kinds else library


def _used(kernels: tuple[Kernel, ...]) -> list[KernelLibrary]:
    """Return the libraries with the kernels, each before those that it calls."""
    names = {kernel.library for kernel in kernels}
    return [library for name, library in kernel_libraries().items() if name in names]


def _build_options(kernels: tuple[Kernel, ...]) -> set[str]:
    """Return the options of ExecuTorch's CMake that build the kernels."""
    return {library.build_option for library in _used(kernels) if library.build_option}


def cmake(program_set: ProgramSet) -> str:
    """Return `CMakeLists.txt`."""
    kernels = program_set.kernels
    options = sorted(_build_options(kernels))
    # The runtime itself has the operators without a kernel.
    whole = ["executorch"] if len(kernels) < len(program_set.operators) else []
    for firmware in program_set.firmware:
        options += firmware.build_options
        whole += firmware.whole_libraries
    files = [_FILES] if program_set.reads_files else []
    named = [name for name in c_sources(program_set) if name not in ("main.cpp", "micronpu_kernels.cpp")]
    calls = [n for n in named if n.endswith(".cpp") or n in program_set.start_up]  # sources that need other packages
    board = program_set.board
    chip = boards().get(board.chip.name) if board.chip is not None else None
    emulated = emulated_board(board.core, board.accelerator)
    return filled(
        "CMakeLists.txt",
        program_set,
        RUN=RUN,
        data=[name for name in named if name not in calls],
        calls=calls,
        whole=whole,
        libraries=[*files, *libraries(kernels)],
        options=[*options, *([_FILES_OPTION] if files else [])],
        emulated_npus=emulated.npus[:1] if emulated is not None and program_set.started else (),
        chip_npus=chip.npus[:1] if chip is not None and program_set.started else (),
        board_options=board_options(program_set),
    )


def board_options(program_set: ProgramSet) -> str:
    """Return options of `micronpu board run` that name the emulated board and its NPU; "" if there is none."""
    npu = program_set.board.accelerator if program_set.started else ""
    board = emulated_board(program_set.board.core, npu) if len(program_set.started) < 2 else None
    return "" if board is None else f"--board {board.name}" + (f" --npu {npu}" if npu else "")


def zephyr(program_set: ProgramSet) -> dict[str, str]:
    """Return the files of a Zephyr application."""
    settings = ["CONFIG_FP_HARDABI=y"] if program_set.board.has_helium else []
    settings += [line for firmware in program_set.firmware for line in firmware.zephyr]
    delegates = [name for firmware in program_set.firmware for name in firmware.whole_libraries]
    names = [library.target for library in _used(program_set.kernels)] + delegates
    names += [name for firmware in program_set.firmware for name in firmware.zephyr_libraries]
    words = {"sources": c_sources(program_set), "settings": settings, "libraries": names, "whole": delegates}
    return board_files(program_set.board.chip, program_set.board.accelerator, program_set) | {
        f"zephyr/{name}": filled(template, program_set, **words) for name, template in _ZEPHYR.items()
    }


_ZEPHYR = {
    "module.yml": "zephyr_module.yml",
    "module/Kconfig": "zephyr_module_Kconfig",
    "module/CMakeLists.txt": "zephyr_module_CMakeLists.txt",
    "sample.yaml": "zephyr_sample.yaml",
    "Kconfig": "zephyr_Kconfig",
    "CMakeLists.txt": "zephyr_CMakeLists.txt",
    "prj.conf": "prj.conf",
}
"""Files of the folder `zephyr`, with their templates."""


def board_files(chip: Chip | None, accelerator: str, of: Named) -> dict[str, str]:
    """Return overlay and configuration of a chip's board in Zephyr, by name; empty without one."""
    board = zephyr_board(chip, accelerator)
    if board is None or chip is None:
        return {}
    npu = zephyr_npu(board, chip, accelerator)
    size = next((memory.bytes for memory in chip.memories if memory.name == "sram"), 0)
    overlay = filled("zephyr_board.overlay", of, board=board, npu=npu, bytes=size)
    files = {f"zephyr/boards/{board.file}.overlay": overlay}
    if npu is not None:
        files[f"zephyr/boards/{board.file}.conf"] = filled("zephyr_board.conf", of, npu=npu)
    return files


def runtime_sources(program_set: ProgramSet) -> list[str]:
    """Return the files of ExecuTorch that a build without its CMake needs, by folder: a line each."""
    files = [*_CORE_SOURCES]
    if program_set.reads_files:
        files += _DATA_SOURCES
    for firmware in program_set.firmware:
        files += firmware.runtime_sources
    libraries = kernel_libraries()
    own = [f"{libraries[kernel.library].folder}/op_{_component(kernel)}.cpp" for kernel in program_set.kernels]
    helpers = dict.fromkeys(file for library in _used(program_set.kernels) for file in library.helpers)
    return [*files, *dict.fromkeys(own), *helpers]


_CORE_SOURCES = (
    "runtime/backend/interface.cpp",
    "runtime/core/{evalue,tag,tensor_layout}.cpp",
    "runtime/core/exec_aten/util/{tensor_shape_to_c_string,tensor_util_portable}.cpp",
    "runtime/core/portable_type/tensor_impl.cpp",
    "runtime/executor/{method,method_meta,program,pte_data_map,tensor_parser_exec_aten,tensor_parser_portable}.cpp",
    "runtime/kernel/operator_registry.cpp",
    "runtime/platform/{abort,log,platform,profiler,runtime}.cpp",
    "runtime/platform/default/minimal.cpp",
    "schema/extended_header.cpp",
    "kernels/prim_ops/{et_copy_index,et_view,register_prim_ops}.cpp",
)
"""Core sources of ExecuTorch 1.5: `EXECUTORCH_SRCS` and `EXECUTORCH_CORE_SRCS` of its build variables."""
_DATA_SOURCES = ("extension/flat_tensor/{flat_tensor_data_map,serialize/flat_tensor_header}.cpp",)


def build_options(program_set: ProgramSet) -> set[str]:
    """Return the options with which ExecuTorch is built for the core."""
    options = _build_options(program_set.kernels)
    options |= {option for firmware in program_set.firmware for option in firmware.build_options}
    return options | {_FILES_OPTION} if program_set.reads_files else options


def clayer(program_set: ProgramSet) -> str:
    """Return `micronpu.clayer.yml`."""
    used = _used(program_set.kernels)
    packs = [line for library in used for line in library.packs]
    components = [line for library in used for line in library.components]
    for kernel in program_set.kernels:
        components.append(
            f"    - component: Machine Learning:ExecuTorch Operators:{kernel_libraries()[kernel.library].category} "
            f"{_component(kernel)}"
        )
    for firmware in program_set.firmware:
        packs += firmware.packs
        components += firmware.components
    return filled("clayer.yml", program_set, packs=packs, components=components, sources=c_sources(program_set))


def _component(kernel: Kernel) -> str:
    """Return the name of the component: that of the kernel's file, `op_NAME.cpp`."""
    name = kernel.operator.partition("::")[2].partition(".")[0].lstrip("_")
    return kernel_libraries()[kernel.library].file_of(name)


def sections(program_set: ProgramSet) -> str:
    """Return `micronpu_sections.ld`."""
    named = dict.fromkeys(facts.section for facts in program_set.programs)
    return filled(
        "sections.ld",
        program_set,
        sections={f"micronpu_programs{f'_{i}' if i else ''}": section for i, section in enumerate(named)},
        is_dedicated=program_set.board.memory_mode.startswith(DEDICATED_SRAM),
    )
