"""`README.md` of the folder."""

from __future__ import annotations

from micronpu.deploy.csource import Facts
from micronpu.deploy.integration import runner_commands
from micronpu.deploy.kernels import Kernel
from micronpu.program.border import Border

_CODE = "38 to 51 kB of code in the programs that were measured, without ExecuTorch's log lines"


def readme(facts: Facts, kernels: tuple[Kernel, ...], files: list[str], data_files: list[str]) -> str:
    """The text."""
    board = facts.board
    parts = [
        f"# {facts.name}: a program for {board.chip.title if board.chip is not None else board.name or 'a Cortex-M'}",
        _lead(facts),
        "## Sizes",
        _sizes(facts),
        "## Inputs and outputs",
        _borders(facts),
        "## Files",
        _files(facts, files, data_files),
        "## Check on the board",
        _check(facts),
        "## Into your build",
        _build(facts, kernels),
    ]
    commands = runner_commands(facts)
    if commands and facts.vectors is not None:
        parts += [
            "## On Arm's virtual platform",
            "Upstream's runner checks the bundled program by itself. In a checkout of ExecuTorch "
            "whose Arm tools are set up, "
            "with `DEPLOYED` the path of this folder:\n\n" + "\n".join(["```sh", *commands, "```"]),
        ]
    parts += [part for firmware in facts.firmware if (part := firmware.section(board.on_device))]
    return "\n\n".join(parts) + "\n"


def _lead(facts: Facts) -> str:
    versions = ", ".join(f"{tool} {version}" for tool, version in facts.versions.items())
    text = (
        f"Made by {versions}. The program is `model.pte`, {len(facts.program):,} bytes, "
        f"SHA-256\n`{facts.sha256}`: what "
        "was compiled, without what only a laptop needs.\n"
        "Behind them the file has their digest, which is not in the firmware: `micronpu run` tells damage by it."
    )
    if not facts.board.on_device:
        why = " ".join(firmware.laptop_only for firmware in facts.firmware if firmware.laptop_only)
        text = f"**This program runs on a laptop only.** {why}\n\n{text}"
    return text


def _sizes(facts: Facts) -> str:
    regions = facts.board.regions(len(facts.program), facts.pools)
    lines = ["| memory | what | bytes |", "|---|---|---:|"]
    lines += [f"| {region.name} | {item.what} | {item.bytes:,} |" for region in regions for item in region.items]
    lines += ["", "| memory | in all | of the chip | |", "|---|---:|---:|---|"]
    for total in regions:
        size = f"{total.capacity:,}" if total.capacity is not None else ""
        lines.append(f"| {total.name} | {total.bytes:,} | {size} | {total.verdict} |")
    lines += [
        "",
        "The pools are exact: what ExecuTorch 1.5 hands out on a 32-bit core, counted from the "
        "program. Beside them come "
        f"the runtime and its kernels ({_CODE}), and the stack.",
        *facts.pools.open,
    ]
    return "\n".join(lines)


def _borders(facts: Facts) -> str:
    lines = ["| | type | shape | layout | means |", "|---|---|---|---|---|"]
    for border in (*facts.inputs, *facts.outputs):
        shape = " x ".join(map(str, border.tensor.shape)) or "one element"
        lines.append(f"| {border.name} | {border.tensor.dtype} | {shape} | {border.layout} | {_meaning(border)} |")
    if facts.states:
        lines += ["", "| state | type | shape | bytes | means |", "|---|---|---|---:|---|"]
        for state in facts.states:
            shape = " x ".join(map(str, state.shape)) or "one element"
            means = "the number itself" if state.scale is None else f"{state.scale:.9g} * (q - {state.zero_point})"
            lines.append(f"| `{state.name}` | {state.dtype} | {shape} | {state.bytes:,} | {means} |")
        lines += [
            "",
            "States live on from call to call, in the planned memories, whose sizes count them: keep these memories "
            f"for this program alone. `{facts.name}_reset` in `{facts.name}.h` begins a new sequence.",
        ]
    if any(b.scale is not None for b in (*facts.inputs, *facts.outputs)):
        lines += ["", f"`{facts.name}.h` has a function for each that turns numbers into these integers and back."]
    return "\n".join(lines)


def _meaning(border: Border) -> str:
    if border.scale is not None:
        return f"{border.scale:.9g} * (q - {border.zero_point})"
    if border.is_integer:
        return "not recorded in the program"
    if border.grid is not None:
        return f"the number itself; inside, steps of {border.grid[0]:.6g}"
    return "the number itself"


def _files(facts: Facts, files: list[str], data_files: list[str]) -> str:
    name = facts.name
    words = {
        "model.pte": "the program",
        f"{name}.S": f"the program in the section `{facts.section}`, through `.incbin`",
        f"{name}_data.h": f"the same as a C array, for toolchains without `.incbin`; in the place of `{name}.S`",
        f"{name}.h": "sizes of program and pools, inputs and outputs, functions between numbers and integers",
        f"{name}_kernels.cpp": "registers the kernels that the program calls, and no others",
        "selected_operators.yaml": "the same for ExecuTorch's selective build",
        f"{name}_vectors.c": "golden vectors and a function that compares",
        f"{name}_vectors.h": "its header",
        "model.bpte": "program and vectors as a bundled program of ExecuTorch, for upstream's runners",
        "main.cpp": "an application: runs the vectors, prints PASS or FAIL",
        "CMakeLists.txt": "builds the program as a library, and the application where ExecuTorch is installed",
        "zephyr/CMakeLists.txt": "the application for Zephyr with upstream's ExecuTorch module",
        "zephyr/Kconfig": "its options: sizes of the pools",
        "zephyr/prj.conf": "its configuration",
        f"{name}.clayer.yml": "a layer for csolution projects with the components of the pack PyTorch::ExecuTorch",
        f"{name}_sections.ld": "what goes where, for the board's linker script",
        "README.md": "this page",
    }
    lines = ["| file | is |", "|---|---|"]
    lines += [f"| `{file}` | {words.get(file, 'data that the program looks up by name')} |" for file in files]
    if data_files:
        lines += [
            "",
            f"The program looks up data by name that stands outside of it: {', '.join(data_files)}, "
            "which the compiler wrote "
            "beside the program. The firmware gives it to the runtime as a named data map.",
        ]
    return "\n".join(lines)


def _check(facts: Facts) -> str:
    if facts.vectors is None:
        return (
            "There are no golden vectors: this machine cannot run the program, and none were given with their outputs. "
            "`micronpu deploy --vectors x.npz` takes inputs, and outputs as output_0 and so on."
        )
    count = len(facts.vectors)
    return (
        f"1. Build `main.cpp` with the other sources of this folder, and flash it.\n"
        f"2. It runs {count} golden vectors ({facts.vectors.source}) and compares every element with what this machine "
        f"computed. The last line is `PASS: {count} vectors, 0 elements differ`.\n"
        "3. Otherwise the line before says which element of which output differs first. Whole "
        "outputs that differ point "
        "at the input's layout or at a program that is not aligned; single elements by one step at a "
        "core with another "
        f"rounding; a sentence with an error number at a pool or a kernel that is missing."
    )


def _build(facts: Facts, kernels: tuple[Kernel, ...]) -> str:
    called = ", ".join(f"`{k.operator}`" for k in kernels) or "none: the NPU computes everything"
    lines = [
        f"Kernels that the program calls: {called}.",
        "",
        "- **CMake**, for an ExecuTorch that is built and installed for the core: `CMakeLists.txt`. "
        "Flags of gcc: `-mthumb "
        f"{facts.board.flags}`.{_table(facts, kernels)}",
        "- **Zephyr** with upstream's ExecuTorch module: `west build -b <board> zephyr`.",
        f"- **MCUXpresso, Keil, CMSIS-Toolbox**: add `{facts.name}.clayer.yml` to the project.",
        f"- **Linker script**: the sections of `{facts.name}_sections.ld`.",
    ]
    named = {"accelerator": facts.board.accelerator or "the NPU", "memory_mode": facts.board.memory_mode}
    lines += [firmware.build_note.format(**named) for firmware in facts.firmware if firmware.build_note]
    return "\n".join(lines)


def _table(facts: Facts, kernels: tuple[Kernel, ...]) -> str:
    """How large ExecuTorch's table of kernels has to be, where it holds nothing but those of the program."""
    if not kernels or len(kernels) < len(facts.plan.operators):
        return ""
    return f" Build ExecuTorch with `-DMAX_KERNEL_NUM={len(kernels)}` or more to save the RAM of its table."
