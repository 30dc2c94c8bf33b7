"""Integration into other builds: CMake, Zephyr, CMSIS, linker sections, upstream's runners.

Only documented interfaces are used: ExecuTorch's CMake package and Zephyr module, the components of the CMSIS pack
PyTorch::ExecuTorch, the options of `backends/arm/scripts` and of `examples/arm/executor_runner`.
"""

from __future__ import annotations

import functools

from micronpu.board import zephyr as zephyr_boards
from micronpu.board.boards import boards
from micronpu.board.platforms import emulated_board
from micronpu.chips.core import USUAL
from micronpu.deploy.application import c_sources
from micronpu.deploy.csource import ALIGNMENT, Facts, filled
from micronpu.deploy.kernels import Kernel, kernel_libraries
from micronpu.deploy.shared import SHARED, ProgramSet
from micronpu.targets.board import DEDICATED_SRAM
from micronpu.targets.firmware import TOOLCHAIN, KernelLibrary
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
    kernels, programs = program_set.kernels, program_set.programs
    delegate, options = "", sorted(_build_options(kernels))
    whole = []
    if len(kernels) < len(program_set.operators):
        whole.append("executorch")  # with the operators of the runtime itself
    for firmware in program_set.firmware:
        options += firmware.build_options
        whole += firmware.whole_libraries
        delegate += firmware.cmake.format(name=SHARED, upper=SHARED.upper())
    if any(facts.data for facts in programs):
        options.append(_FILES_OPTION)
    named = [name for name in c_sources(program_set) if name not in ("main.cpp", "micronpu_kernels.cpp")]
    calls = [
        name for name in named if name.endswith(".cpp") or name in program_set.start_up
    ]  # sources that need other packages
    emulated, on_chip = _board_npu(program_set)
    return shared(
        "CMakeLists.txt",
        program_set,
        ASSEMBLED=" ".join(f"{name}.S" for name in program_set.file_names),
        PROGRAMS=" ".join(f"{name}.pte" for name in program_set.file_names),
        DATA=" ".join(name for name in named if name not in calls),
        CALLS=" ".join(calls),
        CORE_TITLE=program_set.board.core or "that of your board",
        FLAGS=program_set.board.flags,
        WHOLE=" ".join(whole),
        LIBRARIES=" ".join([*([_FILES] if any(facts.data for facts in programs) else []), *libraries(kernels)]),
        BUILD_OPTIONS=" ".join(options) or "its defaults",
        DELEGATE=delegate,
        BOARD_NPU=emulated,
        CHIP_NPU=on_chip,
        EMULATED=_emulated(program_set),
    )


def _board_npu(program_set: ProgramSet) -> tuple[str, str]:
    """Return lines of CMake with the NPU's place on the emulated board, and with its interrupt on the chip itself."""
    if not program_set.started:
        return "", ""
    chip = boards().get(program_set.board.chip.name) if program_set.board.chip is not None else None
    emulated = emulated_board(program_set.board.core, program_set.board.accelerator)
    lines = []
    for board, names in ((emulated, "MICRONPU_NPU_0_BASE={}u MICRONPU_NPU_0_IRQ={}"), (chip, "BOARD_NPU_IRQ={1}")):
        places = board.npus[:1] if board is not None else ()
        line = [names.format(f"0x{place.base:08x}", place.irq) for place in places]
        lines += [f"    target_compile_definitions({SHARED}_app PRIVATE {one})\n" for one in line] or [""]
    return lines[0], lines[1]


def _emulated(program_set: ProgramSet) -> str:
    """Return the line with the command that runs the application on an emulated board."""
    options = board_options(program_set)
    return f"#   {RUN} build/{SHARED}_app {options}\n" if options else ""


def board_options(program_set: ProgramSet) -> str:
    """Return options of `micronpu board run` that name the emulated board and its NPU; "" if there is none."""
    npu = program_set.board.accelerator if program_set.started else ""
    board = emulated_board(program_set.board.core, npu) if len(program_set.started) < 2 else None
    return "" if board is None else f"--board {board.name}" + (f" --npu {npu}" if npu else "")


def zephyr(program_set: ProgramSet) -> dict[str, str]:
    """Return the files of a Zephyr application."""
    own = ["CONFIG_FP_HARDABI=y"] if program_set.board.has_helium else []
    own += [line for firmware in program_set.firmware for line in firmware.zephyr]
    delegates = [name for firmware in program_set.firmware for name in firmware.whole_libraries]
    names = [library.target for library in _used(program_set.kernels)] + delegates
    names += [name for firmware in program_set.firmware for name in firmware.zephyr_libraries]
    pools = program_set.pools
    sizes = {"METHOD": str(pools.method), "TEMPORARY": str(max(pools.temporary, 1))}
    programs = program_set.programs
    named = {"NAMES": ", ".join(program_set.file_names)}
    vectors = sum(len(facts.vectors) for facts in programs if facts.vectors is not None)
    parts = [f"${{folder}}/{name}" for name in c_sources(program_set) if name != "main.cpp"]
    return zephyr_boards.board_files(program_set.board.chip, program_set.board.accelerator, program_set.header) | {
        "zephyr/module.yml": shared("zephyr_module.yml", program_set),
        "zephyr/module/Kconfig": shared("zephyr_module_Kconfig", program_set, **named, **sizes),
        "zephyr/module/CMakeLists.txt": shared(
            "zephyr_module_CMakeLists.txt",
            program_set,
            SOURCES=" ".join(parts),
            ASSEMBLED=" ".join(f"${{folder}}/{name}.S" for name in program_set.file_names),
        ),
        "zephyr/sample.yaml": shared("zephyr_sample.yaml", program_set, VECTORS=str(vectors), **named),
        "zephyr/Kconfig": shared("zephyr_Kconfig", program_set, **sizes),
        "zephyr/CMakeLists.txt": shared(
            "zephyr_CMakeLists.txt",
            program_set,
            LIBRARIES=" ".join(names),
            WHOLE=" ".join(delegates),
            PROGRAM=f"{program_set.file_names[0]}.pte",
            SOURCES=" ".join(f"../{name}" for name in c_sources(program_set)),
            ASSEMBLED=" ".join(f"${{CMAKE_CURRENT_LIST_DIR}}/../{name}.S" for name in program_set.file_names),
        ),
        "zephyr/prj.conf": shared(
            "prj.conf", program_set, OWN="\n".join(own) or "# No driver of an NPU is needed from Zephyr.", **sizes
        ),
    }


def runtime_sources(program_set: ProgramSet) -> list[str]:
    """Return the files of ExecuTorch that a build without its CMake needs, by folder: a line each."""
    files = [*_CORE_SOURCES]
    if any(facts.data for facts in program_set.programs):
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


def executorch_lines(program_set: ProgramSet) -> list[str]:
    """Return the commands that build ExecuTorch for the core, in the version that the programs were made with."""
    version = program_set.programs[0].versions.get("executorch", "1.5.1").partition("+")[0]
    options = _build_options(program_set.kernels)
    options |= {option for firmware in program_set.firmware for option in firmware.build_options}
    if any(facts.data for facts in program_set.programs):
        options.add(_FILES_OPTION)
    core = program_set.board.core or USUAL.name
    more = [f"  {option} \\" for option in sorted(options)]
    return [
        f"git clone --depth 1 --branch v{version} --recurse-submodules --shallow-submodules "
        "https://github.com/pytorch/executorch",
        "cd executorch",
        "cmake --preset arm-baremetal -B build-arm -DCMAKE_BUILD_TYPE=Release \\",
        f"  -DCMAKE_TOOLCHAIN_FILE=$PWD/{TOOLCHAIN} -DTARGET_CPU={core} \\",
        "  -DEXECUTORCH_BAREMETAL_SKIP_INSTALL=OFF -DEXECUTORCH_ENABLE_LOGGING=OFF \\",
        *more,
        "  -DCMAKE_INSTALL_PREFIX=$PWD/installed-arm",
        "cmake --build build-arm --target install -j",
    ]


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
    return shared(
        "clayer.yml",
        program_set,
        NAMES=", ".join(program_set.file_names),
        PACKS="\n".join(packs),
        COMPONENTS="\n".join(dict.fromkeys(components)),
        FILES="\n".join(f"        - file: ./{name}" for name in c_sources(program_set)),
    ).replace("\n\n", "\n")


def shared(template: str, program_set: ProgramSet, **more: str) -> str:
    """Return a template filled for all programs of a folder."""
    words = {"HEADER": program_set.header, "name": SHARED, "NAME": SHARED.upper(), **more}
    return filled(template, program_set.programs[0], **words)


def _component(kernel: Kernel) -> str:
    """Return the name of the component: that of the kernel's file, `op_NAME.cpp`."""
    name = kernel.operator.partition("::")[2].partition(".")[0].lstrip("_")
    return kernel_libraries()[kernel.library].file_of(name)


def sections(program_set: ProgramSet) -> str:
    """Return `micronpu_sections.ld`."""
    board = program_set.board
    model, far = board.flash.upper(), board.sram.upper()
    explain = [
        f" * The programs are in {board.flash}, from which the NPU reads its weights too; the pools in {board.sram},",
        " * which it shares with the core.",
    ]
    if board.is_resident:
        model = f"{model} AT > {board.stored.upper()}"
        explain = [
            f" * Programs and pools are in {board.sram}, where the NPU reads its weights fastest. The programs are",
            f" * stored in {board.stored}: the start-up copies the words from micronpu_programs_load to",
            " * micronpu_programs_start up to micronpu_programs_end, as board/startup.c does.",
        ]
    elif board.memory_mode.startswith(DEDICATED_SRAM):
        far = board.far.upper()
        explain = [
            f" * Programs and the NPU's scratch memory are in {board.far}; the SRAM that the NPU has for itself is",
            *(line for firmware in program_set.firmware for line in firmware.fast_scratch),
        ]
    explain += [line for firmware in program_set.firmware for line in firmware.sections]
    alignment, sram = program_set.pools.alignment, board.sram.upper()
    named = list(dict.fromkeys(facts.section for facts in program_set.programs))
    names = [f"micronpu_programs{f'_{i}' if i else ''}" for i in range(len(named))]
    begin, end = ("{0}_start = .; ", " {0}_end = .;") if board.is_resident else ("", "")
    rows = [
        f".{name} : {{ . = ALIGN({ALIGNMENT}); {begin.format(name)}KEEP(*({section})) . = ALIGN({ALIGNMENT});"
        f"{end.format(name)} }} > {model}"
        for name, section in zip(names, named, strict=True)
    ]
    rows += [f"{name}_load = LOADADDR(.{name});" for name in names if board.is_resident]
    rows += [
        f".micronpu_pools (NOLOAD) : {{ . = ALIGN({alignment}); *(.micronpu.pools) }} > {sram}",
        f".micronpu_scratch (NOLOAD) : {{ . = ALIGN({alignment}); *(.micronpu.scratch) }} > {far}",
    ]
    if program_set.pools.hot:
        rows.append(f".micronpu_hot (NOLOAD) : {{ . = ALIGN({alignment}); *(.micronpu.hot) }} > {board.hot.upper()}")
    if board.fast_scratch:
        rows.append(f".micronpu_fast (NOLOAD) : {{ . = ALIGN(16); *(.micronpu.fast_scratch) }} > {sram}")
    # An unused program is discarded with its pools; a used one has a pool of the method allocator.
    rows += [
        "PROVIDE(micronpu_sections_ld = ADDR(.micronpu_pools));",
        f".micronpu_placed (NOLOAD) : {{ *(.micronpu_placed) }} > {sram}",
        'ASSERT(SIZEOF(.micronpu_placed) == 0 || SIZEOF(.micronpu_pools) > 0, "micronpu: another section has the '
        'pools; include micronpu_sections.ld before *(.micronpu.*), or build with -DMICRONPU_POOLS_IN_BSS")',
    ]
    return shared(
        "sections.ld",
        program_set,
        MODE=board.memory_mode or "none",
        EXPLAIN="\n".join(explain),
        SECTIONS="\n".join(rows),
    )


def runner_commands(facts: Facts) -> list[str]:
    """Return command lines of upstream's runner for Arm's virtual platforms, in a checkout of ExecuTorch with its
    tools."""
    board, pools = facts.board, facts.pools
    npu = board.accelerator
    if not any(firmware.has_platform(npu) for firmware in facts.firmware):
        return []
    flags = (
        f"-DET_ARM_BAREMETAL_METHOD_ALLOCATOR_POOL_SIZE={pools.method + sum(pools.planned) + _RUNNER_EXTRA} "
        f"-DET_ARM_BAREMETAL_SCRATCH_TEMP_ALLOCATOR_POOL_SIZE={pools.temporary}"
    )
    # The runner has all but the portable kernels; those cannot be derived from a bundled program.
    portable = [o for o in facts.plan.operators if o.startswith(("aten::", "dim_order_ops::"))]
    selected = f" --select_ops_list={','.join(portable)}" if portable else ""
    return [
        f"backends/arm/scripts/build_executor_runner.sh --pte=$DEPLOYED/{facts.name}.bpte --bundleio{selected} \\",
        f"  --target={npu} --system_config={board.system_config} --memory_mode={board.memory_mode} \\",
        f'  --output=$DEPLOYED/runner --extra_build_flags="{flags}"',
        f"backends/arm/scripts/run_fvp.sh --elf=$DEPLOYED/runner/arm_executor_runner --target={npu}",
    ]


_RUNNER_EXTRA = 16384
"""Bytes that upstream's runner takes from the same pool: spans, inputs, copies of a bundle's tensors."""
