"""`README.md` of the folder."""

from __future__ import annotations

from collections.abc import Sequence

from micronpu.board.platforms import core_of, emulated_board, fvp_lines
from micronpu.board.zephyr import zephyr_board
from micronpu.chips.core import ANY
from micronpu.chips.machines import machine_of
from micronpu.deploy.csource import Facts, c_type
from micronpu.deploy.integration import RUN, board_options, executorch_lines, runner_commands, runtime_sources
from micronpu.deploy.shared import LINE, SHARED, ProgramSet
from micronpu.program.io import ProgramIO

_CODE = "38 to 51 kB of code in the programs that were measured, without ExecuTorch's log lines"


def readme(program_set: ProgramSet, files: list[str], data_files: list[str]) -> str:
    """Return the text."""
    board, programs = program_set.board, program_set.programs
    names = ", ".join(program_set.file_names)
    where = board.chip.title if board.chip is not None else board.name or ANY
    parts = [
        f"# {names}: {'a program' if len(program_set.groups) == 1 else 'programs'} for {where}",
        lead(program_set),
        "## Sizes",
        _sizes(program_set),
        "## Inputs and outputs",
    ]
    for facts in programs:
        parts += [*([f"### {facts.name}"] if len(programs) > 1 else []), io_table(facts)]
    parts += [
        "## Call it",
        _calls(program_set),
        "## Files",
        _files(program_set, files, data_files),
        "## Check on the board",
        _check(program_set),
        "## Into your build",
        _build(program_set),
    ]
    npus = " and ".join(one.accelerator for one in program_set.started)
    named = {"accelerator": npus or "the NPU", "memory_mode": board.memory_mode or "of the program"}
    notes = [firmware.start_note.format(**named) for firmware in program_set.firmware if firmware.start_note]
    if program_set.started:
        several = [firmware.several_note for firmware in program_set.firmware if len(program_set.started) > 1]
        parts += ["## Start-up", "\n".join([*notes, *filter(None, several)])]
    if vectors_of(program_set):
        parts += ["## ExecuTorch, and the emulated board", _executorch(program_set)]
    commands = runner_commands(programs[0])
    if commands and programs[0].vectors is not None:
        parts += [
            "## On Arm's virtual platform",
            "Upstream's runner checks the bundled program. In a checkout of ExecuTorch "
            "whose Arm tools are set up, "
            "with `DEPLOYED` the path of this folder:\n\n" + "\n".join(["```sh", *commands, "```"]),
        ]
    parts += [part for firmware in program_set.firmware if (part := firmware.section(board.on_device))]
    return "\n\n".join(parts) + "\n"


def lead(program_set: ProgramSet) -> str:
    """Return the introduction: the programs, and the tools that made them."""
    versions = ", ".join(f"{tool} {version}" for tool, version in program_set.programs[0].versions.items())
    lines = [f"Made by {versions}. What was compiled, without what only a laptop needs:", ""]
    for methods in program_set.groups:
        whole = methods[0]
        said = f", methods {', '.join(f'`{facts.plan.name}`' for facts in methods)}" if len(methods) > 1 else ""
        lines.append(f"- `{whole.file}.pte`, {len(whole.program):,} bytes, SHA-256 `{whole.sha256}`{said}")
    lines += [
        "",
        "Each `.pte` ends with a digest for `micronpu run`, which is not linked.",
    ]
    text = "\n".join(lines)
    if not all(facts.board.on_device for facts in program_set.programs):
        why = " ".join(firmware.laptop_only for firmware in program_set.firmware if firmware.laptop_only)
        text = f"**This program runs on a laptop only.** {why}\n\n{text}"
    return text


def _sizes(program_set: ProgramSet) -> str:
    regions = program_set.board.regions(program_set.files, program_set.pools)
    lines = ["| memory | what | bytes |", "|---|---|---:|"]
    lines += [f"| {region.name} | {item.what} | {item.bytes:,} |" for region in regions for item in region.items]
    lines += ["", "| memory | in all | of the chip | |", "|---|---:|---:|---|"]
    for total in regions:
        size = f"{total.capacity:,}" if total.capacity is not None else ""
        lines.append(f"| {total.name} | {total.bytes:,} | {size} | {total.verdict} |")
    lines += [
        "",
        "Pool sizes are exact for ExecuTorch 1.5 on 32-bit cores. "
        f"`micronpu_pools.c` pads each to {LINE} bytes, a line of the data cache. Add the runtime and its kernels "
        f"({_CODE}) and the stack.",
        *program_set.pools.open,
    ]
    if len(program_set.groups) > 1 and not program_set.concurrent:
        lines += [
            "",
            "The programs run one after the other: they share the temporary pool, and planned memories where they hold "
            "no states. Deploy with `--concurrent` for programs that run at the same time.",
        ]
    return "\n".join(lines)


def _calls(program_set: ProgramSet) -> str:
    """Return an example of the C interface."""
    facts = program_set.programs[0]
    name, upper = facts.name, facts.upper
    lines = ["```c", f'#include "{name}.h"', ""]
    for io, kind in (*((b, "in") for b in facts.inputs), *((b, "out") for b in facts.outputs)):
        elements = f"{upper}_{io.name.upper()}_ELEMENTS"
        lines.append(f"static {c_type(io)} {io.name}[{elements}]; /* {kind} */")
    given = ", ".join(io.name for io in facts.inputs)
    taken = ", ".join(io.name for io in facts.outputs)
    lines += [
        "",
        f"const void *const inputs[] = {{{given}}};",
        f"void *const outputs[] = {{{taken}}};",
        f"if ({facts.file}_init() != MICRONPU_OK || {name}_invoke(inputs, outputs) != MICRONPU_OK) {{",
        "  char text[160];",
        f"  micronpu_error_text({facts.file}_error(), text, sizeof text); /* the pool ... is too small by 12 bytes */",
        "}",
        "```",
        "",
        *[line for methods in program_set.groups for line in _several(methods)],
        "`micronpu.h` has the error codes and the table of programs by name. No call allocates memory or throws. A "
        "call blocks until the program is done"
        + (
            ", and programs run at the same time, each in one thread."
            if program_set.concurrent
            else "; the calls of all programs of this folder come from one thread, or under one lock."
        ),
    ]
    return "\n".join(lines)


def _several(methods: Sequence[Facts]) -> list[str]:
    """Return how methods of one program are called."""
    if len(methods) == 1:
        return []
    file, states = methods[0].file, methods[0].states
    calls = " and ".join(f"`{facts.name}_invoke`" for facts in methods)
    text = (
        f"`{file}_init` loads all methods of `{file}.pte`, and none of them later: to load one writes the first values "
        f"of the states. Then {calls} are called in any order"
    )
    if states:
        text += f"; each finds the states as the one before has left them, and `{file}_reset` sets them back"
    return [f"{text}.", ""]


def io_table(facts: Facts, *, in_c: bool = True) -> str:
    """Return tables of a program's inputs, outputs and states.

    Args:
        in_c: the folder has C functions.
    """
    lines = ["| | type | shape | layout | means |", "|---|---|---|---|---|"]
    for io in (*facts.inputs, *facts.outputs):
        shape = " x ".join(map(str, io.tensor.shape)) or "one element"
        lines.append(f"| {io.name} | {io.tensor.dtype} | {shape} | {io.layout} | {_meaning(io)} |")
    if facts.states:
        lines += ["", "| state | type | shape | bytes | means |", "|---|---|---|---:|---|"]
        for state in facts.states:
            shape = " x ".join(map(str, state.shape)) or "one element"
            means = "the number itself" if state.scale is None else f"{state.scale:.9g} * (q - {state.zero_point})"
            lines.append(f"| `{state.name}` | {state.dtype} | {shape} | {state.bytes:,} | {means} |")
        kept = (
            "in the planned memories, whose sizes count them: keep these memories for this program alone. "
            f"`{facts.file}_reset` begins a new sequence."
        )
        lines += ["", f"States live on from call to call{', ' + kept if in_c else ' of one process.'}"]
    if in_c and any(b.scale is not None for b in (*facts.inputs, *facts.outputs)):
        lines += ["", f"`{facts.name}.h` has a function for each that turns numbers into these integers and back."]
    return "\n".join(lines)


def _meaning(io: ProgramIO) -> str:
    if io.scale is not None:
        return f"{io.scale:.9g} * (q - {io.zero_point})"
    if io.is_integer:
        return "not recorded in the program"
    if io.qparams is not None:
        return f"the number itself; inside, steps of {io.qparams[0]:.6g}"
    return "the number itself"


_WORDS = {
    "micronpu.h": "public interface: error codes and messages, the programs by name",
    "micronpu.c": "error messages",
    "micronpu_image.h": "an image of `micronpu image`: checked before it replaces a program",
    "micronpu_image.c": "verification of update images: implementation",
    "micronpu_model.hpp": "a program in ExecuTorch's runtime, without a heap",
    "micronpu_model.cpp": "glue to ExecuTorch's runtime: implementation",
    "micronpu_resize.h": "a camera's picture, or a part of it, in the size and the integers of a network",
    "micronpu_resize.c": "resize: implementation",
    "micronpu_ssd_decode.h": "boxes of an SSD's anchors",
    "micronpu_ssd_decode.c": "SSD box decoder: implementation",
    "micronpu_nms.h": "the best of boxes that overlap",
    "micronpu_nms.c": "non-maximum suppression: implementation",
    "micronpu_smooth.h": "scores of call after call as events",
    "micronpu_smooth.c": "score smoothing: implementation",
    "micronpu_topk.h": "the highest scores of many, such as the next tokens of a language model",
    "micronpu_topk.c": "top-k: implementation",
    "micronpu_npu.h": "start-up of the NPU: what an application may define for itself",
    "micronpu_npu.c": "start-up of the NPU: check, interrupt, caches, semaphores, time limit, clock",
    "micronpu_data.hpp": "data that programs look up in files",
    "micronpu_data.cpp": "data files: implementation",
    "micronpu_pools.c": "the memories and pools",
    "micronpu_programs.c": "the programs by name",
    "micronpu_profile.c": "prints what a build asks for: cycles of runs, kernels and NPU calls; bytes",
    "micronpu_kernels.cpp": "registers the kernels that are called, and no others",
    "selected_operators.yaml": "kernels for ExecuTorch's selective build",
    "main.cpp": "an application: runs the vectors, prints PASS or FAIL",
    "CMakeLists.txt": "builds the programs as a library, and the application where ExecuTorch is installed",
    "zephyr/CMakeLists.txt": "the application for Zephyr with upstream's ExecuTorch module",
    "zephyr/module.yml": "the folder as a module of Zephyr",
    "zephyr/module/Kconfig": "option of the Zephyr module",
    "zephyr/module/CMakeLists.txt": "sources of the Zephyr module",
    "zephyr/sample.yaml": "the application as a test of twister",
    "board/startup.c": "start-up code of the emulated board",
    "board/semihosting.c": "console of the emulated board",
    "board/link.ld": "linker script of the emulated board",
    "board/toolchain.cmake": "Arm's GNU toolchain for the core",
    "zephyr/Kconfig": "options of the Zephyr application: pool sizes",
    "zephyr/prj.conf": "configuration of the Zephyr application",
    "micronpu.clayer.yml": "a layer for csolution projects with the components of the pack PyTorch::ExecuTorch",
    "micronpu_sections.ld": "what goes where, for the board's linker script",
    "README.md": "this page",
}
"""Description of each file of the folder."""


def _files(program_set: ProgramSet, files: list[str], data_files: list[str]) -> str:
    words = dict(_WORDS)
    for file in files:
        if file.startswith("zephyr/boards/"):
            words[file] = "the NPU and the SRAM for Zephyr's board" if file.endswith(".overlay") else "the NPU's size"
    for methods in program_set.groups:
        facts, name = methods[0], methods[0].file
        words |= {
            f"{name}.pte": "the program",
            f"{name}.S": f"the program in the section `{facts.section}`, through `.incbin`",
            f"{name}_data.h": f"the program as a C array, for toolchains without `.incbin`; instead of `{name}.S`",
            f"{name}.cpp": "the calls",
            f"{name}_image.c": "what the firmware gives to an image that replaces the program",
        }
        words |= {f"{name}.h": "calls of the whole program, sizes, states"} if not facts.is_whole else {}
    for facts in program_set.programs:
        name = facts.name
        words |= {
            f"{name}.h": "calls, sizes, inputs and outputs, functions between numbers and integers",
            f"{name}_vectors.c": "golden vectors and a function that compares",
            f"{name}_vectors.h": f"header of `{name}_vectors.c`",
            f"{name}.bpte": "program and vectors as a bundled program of ExecuTorch, for upstream's runners",
        }
    lines = ["| file | is |", "|---|---|"]
    lines += [f"| `{file}` | {words.get(file, 'data that the program looks up by name')} |" for file in files]
    if data_files:
        lines += [
            "",
            f"The program looks up data by name that stands outside of it: {', '.join(data_files)}, "
            "which the compiler wrote beside the program. They are not here: put them beside it, and deploy again.",
        ]
    return "\n".join(lines)


def _check(program_set: ProgramSet) -> str:
    made = [facts.vectors for facts in program_set.programs if facts.vectors is not None]
    if not made:
        return (
            "There are no golden vectors: this machine cannot run the program, and none were given with their outputs. "
            "`micronpu deploy --vectors x.npz` takes inputs, and outputs as output_0 and so on."
        )
    count, sources = sum(map(len, made)), ", ".join(dict.fromkeys(vectors.source for vectors in made))
    return (
        f"1. Build `main.cpp` with the other sources of this folder, and flash it.\n"
        f"2. It runs {count} golden vectors ({sources}) and compares every element with what this machine "
        f"computed. The last line is `PASS: {count} vectors, 0 elements differ`.\n"
        "3. Otherwise the line before says which element of which output differs first, or which pool or kernel is "
        "missing. Whole outputs that differ point at the input's layout or at a program that is not aligned; single "
        "elements by one step at a core with another rounding.\n\n"
        "For time and numbers, define in all sources (CMake: `-DNAME=ON`): `MICRONPU_RUNS=10` for the cycles of "
        "each of ten runs, `MICRONPU_PROFILE` for those of each kernel and NPU call, `MICRONPU_PRINT_OUTPUTS` and "
        "`MICRONPU_PRINT_VALUES` for outputs and what each call computes, `MICRONPU_ETDUMP` for ExecuTorch's record. "
        "`micronpu board log` reads what is printed."
    )


def _build(program_set: ProgramSet) -> str:
    called = ", ".join(f"`{k.operator}`" for k in program_set.kernels) or "none: the NPU computes everything"
    lines = [
        f"Kernels that are called: {called}.",
        "",
        "- **CMake**, for an ExecuTorch that is built and installed for the core: `CMakeLists.txt`. "
        "Flags of gcc: `-mthumb "
        f"{program_set.board.flags}`.{_table(program_set)}",
        f"- **Zephyr** with upstream's ExecuTorch module: `west build -b {_west(program_set)} zephyr` runs the "
        "vectors; the folder is a module as well (`zephyr/module.yml`, `CONFIG_MICRONPU=y`), for an application "
        "of yours.",
        "- **MCUXpresso, Keil, CMSIS-Toolbox**: add `micronpu.clayer.yml` to the project.",
        "- **Linker script**: the sections of `micronpu_sections.ld`.",
    ]
    named = {"accelerator": program_set.board.accelerator or "the NPU", "memory_mode": program_set.board.memory_mode}
    lines += [firmware.build_note.format(**named) for firmware in program_set.firmware if firmware.build_note]
    return "\n".join(lines)


def _west(program_set: ProgramSet) -> str:
    """Return Zephyr's name of the board, if the folder has files for it."""
    board = zephyr_board(program_set.board.chip, program_set.board.accelerator)
    return board.name if board is not None else "<board>"


def vectors_of(program_set: ProgramSet) -> int:
    """Return the number of golden vectors of all programs."""
    return sum(len(facts.vectors) for facts in program_set.programs if facts.vectors is not None)


def _executorch(program_set: ProgramSet) -> str:
    """Return the commands from sources to PASS."""
    lines = ["ExecuTorch for the core, from its own sources (`-DTARGET_CPU` chooses the core):", "", "```sh"]
    lines += [*executorch_lines(program_set), "```", ""]
    lines += _emulated(program_set)
    lines += [
        "Without ExecuTorch's CMake these of its files suffice:",
        "",
        "```text",
        *runtime_sources(program_set),
        "```",
    ]
    return "\n".join(lines)


def _emulated(program_set: ProgramSet) -> list[str]:
    """Return the commands that run the application on the emulated board, and on Arm's virtual platform."""
    core, started = core_of(program_set.board.core), program_set.started
    machine, npu = machine_of(core), program_set.board.accelerator if started else ""
    if machine is None:
        return []
    about = f"`board/` has start-up code, console and linker script for QEMU's {machine.name}, a {machine.title}"
    board = emulated_board(core, npu)
    if board is None:
        return [f"{about}. No emulated board has an NPU beside it.", ""]
    if len(started) > 1:
        return [f"{about}. An emulated board has one NPU: deploy a single program to run it there.", ""]
    driver = "".join(firmware.driver for firmware in program_set.firmware) if started else ""
    lines = [
        f"{about}; `micronpu board run` adds the NPU. In this folder:" if npu else f"{about}. In this folder:",
        "",
        "```sh",
        "cmake -S . -B build -DMICRONPU_BOARD=ON -DCMAKE_TOOLCHAIN_FILE=$PWD/board/toolchain.cmake \\",
        f"  -Dexecutorch_DIR=.../installed-arm/lib/cmake/ExecuTorch{driver}",
        "cmake --build build",
        f"{RUN} build/{SHARED}_app {board_options(program_set)}",
        "```",
        "",
        f"The last line is `PASS: {vectors_of(program_set)} vectors, 0 elements differ`. With "
        "`-DMICRONPU_BOARD_STACK=ON` the depth of the stack follows.",
        "",
    ]
    fvp = fvp_lines(core, npu, f"build/{SHARED}_app")
    if fvp:
        line = "The same application on Arm's FVP of Corstone-300, where that is installed (it was not run there):"
        lines += [line, "", "```sh", *fvp, "```", ""]
    return lines


def _table(program_set: ProgramSet) -> str:
    """Return the required size of ExecuTorch's table of kernels, if it only has those of the programs."""
    if not program_set.kernels or len(program_set.kernels) < len(program_set.operators):
        return ""
    return f" Build ExecuTorch with `-DMAX_KERNEL_NUM={len(program_set.kernels)}` or more to save the RAM of its table."
