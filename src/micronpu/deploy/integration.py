"""The files of a folder: sources of its programs, their integration into builds, an emulated board, and `README.md`.

Builds are CMake, Zephyr, CMSIS, linker sections and upstream's runners. Only documented interfaces are used:
ExecuTorch's CMake package and Zephyr module, the components of the CMSIS pack PyTorch::ExecuTorch, the options of
`backends/arm/scripts` and of `examples/arm/executor_runner`.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence

from micronpu.base.parsing import parse_toml
from micronpu.board.boards import boards, core_of, emulated_board, fvp_lines, zephyr_board, zephyr_npu
from micronpu.chips import Chip
from micronpu.chips.core import QemuMachine, machine_of
from micronpu.deploy.csource import Facts, Named, filled, rendered, text_of
from micronpu.deploy.image import MOST_PLANNED, kernel_names
from micronpu.deploy.kernels import Kernel, kernel_libraries
from micronpu.deploy.shared import LINE, SHARED, ProgramSet
from micronpu.deploy.vectors import Vectors, bundle
from micronpu.program.digest import seal
from micronpu.targets.board import DEDICATED_SRAM
from micronpu.targets.firmware import TOOLCHAIN, KernelLibrary
from micronpu.targets.registry import BACKENDS

RUN = "micronpu board run"
"""The command, in the comment of `CMakeLists.txt` from which `micronpu board build` takes its options."""
_RUNTIME = ("executorch", "executorch_core")
_FILES, _FILES_OPTION = "extension_flat_tensor", "-DEXECUTORCH_BUILD_EXTENSION_FLAT_TENSOR=ON"


def libraries(kernels: tuple[Kernel, ...]) -> list[str]:
    """Return CMake targets of ExecuTorch with the kernels and the runtime, each before those that it calls."""
    return [*(name for library in _used(kernels) for name in (library.target, *library.calls)), *_RUNTIME]


@functools.cache
def component_of(library: str) -> str:
    """Return what a library of a build is, with its name."""
    kinds = dict.fromkeys((*_RUNTIME, _FILES), "runtime")
    kinds |= dict.fromkeys(
        (name for one in kernel_libraries().values() for name in (one.target, *one.calls)), "kernels"
    )
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
    named = dict.fromkeys(facts.section for facts in program_set.programs)
    return filled(
        "sections.ld",
        program_set,
        sections={f"micronpu_programs{f'_{i}' if i else ''}": section for i, section in enumerate(named)},
        is_dedicated=program_set.board.memory_mode.startswith(DEDICATED_SRAM),
    )


FIXED = (
    "micronpu.h",
    "micronpu.c",
    "micronpu_image.h",
    "micronpu_image.c",
    "micronpu_model.hpp",
    "micronpu_model.cpp",
    "micronpu_profile.c",
)
"""Files that are the same for every program."""
DATA = ("micronpu_data.hpp", "micronpu_data.cpp")
"""Further such files, for programs that read data from files."""


def shared_sources(program_set: ProgramSet) -> dict[str, str]:
    """Return the files that all programs of a folder share, by name."""
    # Reports contain the hash of the first payload, also for a program whose file was stripped.
    payloads = {f.name: f.plan.delegates[0].payload for f in program_set.programs if f.plan.delegates}
    digests = {name: hashlib.sha256(payload).hexdigest() for name, payload in payloads.items()}
    names = [*FIXED, *_data(program_set), "micronpu_pools.c", "micronpu_programs.c"]
    names += [f"micronpu_{function}.{suffix}" for function in program_set.functions for suffix in "hc"]
    return {name: filled(name, program_set, digests=digests, LINE=LINE) for name in names} | program_set.start_up


def _data(program_set: ProgramSet) -> Sequence[str]:
    return DATA if program_set.reads_files else ()


def program_sources(methods: Sequence[Facts], program_set: ProgramSet) -> dict[str, str]:
    """Return the sources of a program and its methods, by name: data, headers, calls, requirements on an image."""
    facts = methods[0].whole
    memories = {"planned": program_set.planned(facts), "temporary": program_set.temporary(facts)}
    own = {
        f"{facts.name}.h": filled(
            "program.h",
            facts,
            is_one=len(methods) == 1,
            kernels=len({operator for own in methods for operator in own.plan.operators}),
        ),
        f"{facts.name}.S": filled("model.S", facts),
        f"{facts.name}_data.h": filled("data.h", facts),
        f"{facts.name}.cpp": filled(
            "model.cpp",
            facts,
            methods=methods,
            method=program_set.method(facts),
            npu=program_set.npu(facts),
            **memories,
        ),
        f"{facts.name}_image.c": filled(
            "image.c",
            facts,
            kernels=[f"0x{zlib.crc32(n.encode()):08x}u" for n in kernel_names([own.plan for own in methods])],
            most_planned=MOST_PLANNED,
            **memories,
        ),
    }
    return own | {f"{own.name}.h": filled("method.h", own) for own in methods if not own.is_whole}


def vector_sources(facts: Facts, vectors: Vectors) -> dict[str, str]:
    """Return the sources with the golden vectors of a method, by name."""
    sides = {
        "inputs": [*zip(facts.inputs, zip(*vectors.inputs, strict=True), strict=True)],
        "outputs": [*zip(facts.outputs, zip(*vectors.outputs, strict=True), strict=True)],
    }
    return {f"{facts.name}_{name}": filled(name, facts, **sides) for name in ("vectors.h", "vectors.c")}


def application(program_set: ProgramSet) -> str:
    """Return `main.cpp`: it runs the golden vectors of every program that has some."""
    programs = [facts for facts in program_set.programs if facts.vectors is not None]
    return filled("main.cpp", program_set, programs=programs, most_inputs=max(len(f.inputs) for f in programs))


def c_sources(program_set: ProgramSet) -> list[str]:
    programs = program_set.programs
    own = [f"{methods[0].file}{suffix}" for methods in program_set.groups for suffix in (".S", ".cpp", "_image.c")]
    own += [f"{facts.name}_vectors.c" for facts in programs if facts.vectors is not None]
    fixed = [
        *FIXED,
        *_data(program_set),
        *program_set.start_up,
        *(f"micronpu_{name}.c" for name in program_set.functions),
        "micronpu_pools.c",
        "micronpu_programs.c",
    ]
    fixed = [name for name in fixed if not name.endswith((".h", ".hpp"))]
    return [*own, *fixed, "micronpu_kernels.cpp", "main.cpp"]


_SOURCES = ("startup.c", "semihosting.c")


def linker_script(machine: QemuMachine, sections: Iterable[str], header: str, *, resident: bool = False) -> str:
    """Return the linker script.

    Args:
        resident: programs are stored with the code, and copied into the memory for activations at the start.
    """
    memories = {"CODE": machine.code, "MODEL": machine.model, "DATA": machine.data}
    return rendered(
        text_of("port/link.ld.in"),
        HEADER=header,
        machine=machine,
        memories=memories,
        sections=list(sections),
        resident=resident,
    )


def emulated_files(
    core: str, flags: str, sections: Iterable[str], header: str, *, resident: bool = False
) -> dict[str, str]:
    """Return the files of the folder `board`, by name; empty if QEMU has no such core."""
    core = core_of(core)
    machine = machine_of(core)
    if machine is None:
        return {}
    return {f"board/{name}": text_of(f"port/{name}") for name in _SOURCES} | {
        "board/link.ld": linker_script(machine, sections, header, resident=resident),
        "board/toolchain.cmake": rendered(text_of("port/toolchain.cmake.in"), HEADER=header, CORE=core, FLAGS=flags),
    }


LINUX_TOOLCHAIN = "aarch64-linux.cmake"


def linux_files(program_set: ProgramSet, missing: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of the folder for a core that runs Linux, by name.

    Under Linux ExecuTorch's own `executor_runner` runs the program, and a kernel driver the NPU: there is nothing to
    link, so that there are vectors as files, and instructions instead of C sources. Sources: ExecuTorch's
    `backends/arm/CMakeLists.txt`, `EthosUBackend_Cortex_A.cpp` and `examples/portable/executor_runner`.
    """
    found = {file: content for facts in program_set.programs for file, content in facts.data}
    for facts in program_set.programs:
        found[f"{facts.file}.pte"] = seal(facts.program)
        if facts.vectors is None:
            continue
        found[f"{facts.name}.bpte"] = bundle(facts.program, facts.plan.name, facts.inputs, facts.outputs, facts.vectors)
        for number in range(_checked(facts, program_set)):
            inputs, outputs = facts.vectors.inputs[number], facts.vectors.outputs[number]
            for kind, side, arrays in (("input", facts.inputs, inputs), ("output", facts.outputs, outputs)):
                for index, (io, array) in enumerate(zip(side, arrays, strict=True)):
                    found[f"vectors/{facts.name}/{number}/{kind}-{index}.bin"] = io.flat(array).tobytes()
    if any(facts.vectors is not None for facts in program_set.programs):
        checks = [(f, number) for f in program_set.programs for number in range(_checked(f, program_set))]
        found["check.sh"] = filled("linux_check.sh", program_set, checks=checks).encode()
    found[LINUX_TOOLCHAIN] = filled("linux_toolchain.cmake", program_set).encode()
    options = [*_build_options(program_set.kernels), *([_FILES_OPTION] if program_set.reads_files else [])]
    options += [option for firmware in program_set.firmware for option in firmware.linux_options]
    words = {"options": options, "files": [*found, "README.md"], "missing": missing, "in_c": False}
    found["README.md"] = filled("linux_README.md", program_set, **words).encode()
    return dict(sorted(found.items()))


def _checked(facts: Facts, program_set: ProgramSet) -> int:
    """Return the number of vectors that can be checked.

    Each runs in a separate process. With states, a later vector depends on earlier ones; the runner calls only the
    first method of a program.
    """
    if facts.vectors is None or not any(facts is methods[0] for methods in program_set.groups):
        return 0
    return min(len(facts.vectors), 1) if facts.states else len(facts.vectors)


def readme(program_set: ProgramSet, files: Sequence[str], data_files: Sequence[str]) -> str:
    """Return `README.md`."""
    board, first = program_set.board, program_set.programs[0]
    core, npu = core_of(board.core), board.accelerator if program_set.started else ""
    text = filled(
        "README.md",
        program_set,
        LINE=LINE,
        RUN=RUN,
        TOOLCHAIN=TOOLCHAIN,
        regions=board.regions(program_set.files, program_set.pools),
        files=_described(program_set, files),
        missing=data_files,
        in_c=True,
        core=core,
        build_options=sorted(build_options(program_set)),
        build_notes=[library.build_note for library in _used(program_set.kernels) if library.build_note],
        runtime_sources=runtime_sources(program_set),
        zephyr=zephyr_board(board.chip, board.accelerator),
        machine=machine_of(core),
        emulated=emulated_board(core, npu),
        board_options=board_options(program_set),
        fvp=fvp_lines(core, npu, f"build/{SHARED}_app"),
        has_platform=first.vectors is not None and any(f.has_platform(first.board.accelerator) for f in first.firmware),
        # The runner has all but the portable kernels; those cannot be derived from a bundled program.
        portable=[o for o in first.plan.operators if o.startswith(("aten::", "dim_order_ops::"))],
    )
    return text.rstrip("\n") + "\n"


def _described(program_set: ProgramSet, files: Sequence[str]) -> dict[str, str]:
    """Return the description of each file, by name; first those that most need."""
    known = parse_toml(text_of("files.toml"))
    words: dict[str, str] = {}
    for methods in program_set.groups:
        own = _named(known["program"], methods[0].file)
        words |= {name: text.replace("@section@", methods[0].section) for name, text in own.items()}
    for facts in program_set.programs:
        words |= _named(known["method"], facts.name)
    words |= known["shared"]
    boards = {True: "the NPU and the SRAM for Zephyr's board", False: "the NPU's size"}
    words |= {file: boards[file.endswith(".overlay")] for file in files if file.startswith("zephyr/boards/")}
    files = sorted(files, key=lambda file: [*words, file].index(file))
    return {file: words.get(file, "data that the program looks up by name") for file in files}


def _named(texts: Mapping[str, str], name: str) -> dict[str, str]:
    return {file.replace("@name@", name): text.replace("@name@", name) for file, text in texts.items()}
