"""The folder for a core that runs Linux: the program, its vectors as files, and instructions instead of C sources.

Under Linux ExecuTorch's own `executor_runner` runs the program, and a kernel driver the NPU: there is nothing to link.
Sources: ExecuTorch's `backends/arm/CMakeLists.txt`, `EthosUBackend_Cortex_A.cpp` and
`examples/portable/executor_runner`.
"""

from __future__ import annotations

from collections.abc import Sequence

from micronpu.deploy.bundled import bundle
from micronpu.deploy.csource import Facts
from micronpu.deploy.readme import io_table, lead
from micronpu.deploy.shared import ProgramSet
from micronpu.program.digest import seal

TOOLCHAIN, CHECK = "aarch64-linux.cmake", "check.sh"
_BUILD = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DEXECUTORCH_BUILD_EXECUTOR_RUNNER=ON",
    "-DEXECUTORCH_BUILD_EXTENSION_EVALUE_UTIL=ON",
    "-DEXECUTORCH_BUILD_EXTENSION_RUNNER_UTIL=ON",
)
_QUANTIZED = "-DEXECUTORCH_BUILD_KERNELS_QUANTIZED=ON"
_FILES = "-DEXECUTORCH_BUILD_EXTENSION_FLAT_TENSOR=ON"


def linux_files(program_set: ProgramSet, missing: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of the folder, by name.

    Args:
        missing: files from which programs read data, and that were not given.
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
        found[CHECK] = _check(program_set).encode()
    found[TOOLCHAIN] = _toolchain(program_set).encode()
    found["README.md"] = _readme(program_set, [*found, "README.md"], missing).encode()
    return dict(sorted(found.items()))


def _checked(facts: Facts, program_set: ProgramSet) -> int:
    """Return the number of vectors that can be checked.

    Each runs in a separate process. With states, a later vector depends on earlier ones; the runner calls only the
    first method of a program.
    """
    if facts.vectors is None or not any(facts is methods[0] for methods in program_set.groups):
        return 0
    return min(len(facts.vectors), 1) if facts.states else len(facts.vectors)


def _toolchain(program_set: ProgramSet) -> str:
    core = program_set.board.core
    return (
        f"# {program_set.header}\n"
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        "set(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        "set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)\n"
        "set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)\n"
        f"set(CMAKE_C_FLAGS_INIT -mcpu={core})\n"
        f"set(CMAKE_CXX_FLAGS_INIT -mcpu={core})\n"
        "set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)\n"
        "set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)\n"
        "set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)\n"
    )


def _check(program_set: ProgramSet) -> str:
    """Return a script that runs every vector in the runner, one process each, and compares bytes."""
    lines = [
        "#!/bin/sh",
        f"# {program_set.header}",
        "# On the board: ./check.sh PATH/executor_runner. Exit status 1 where an output differs.",
        "set -eu",
        'runner=${1:?"the path of executor_runner"}',
        'here=$(cd "$(dirname "$0")" && pwd)',
        "out=$(mktemp -d)",
        "trap 'rm -rf \"$out\"' EXIT",
        "failed=0",
        "check() { # NAME NUMBER INPUTS OUTPUTS PROGRAM",
        '  rows="$here/vectors/$1/$2" files="" index=0',
        '  while [ "$index" -lt "$3" ]; do',
        '    files="$files${files:+,}$rows/input-$index.bin" index=$((index + 1))',
        "  done",
        '  rm -f "$out"/*',
        '  "$runner" --model_path "$here/$5.pte" --inputs "$files" --output_file "$out/output" >"$out/log" 2>&1 || {',
        '    cat "$out/log"',
        '    echo "FAIL: $1, vector $2: the runner ends with an error"',
        "    failed=1",
        "    return",
        "  }",
        "  index=0",
        '  while [ "$index" -lt "$4" ]; do',
        '    if ! cmp -s "$out/output-$index.bin" "$rows/output-$index.bin"; then',
        '      echo "FAIL: $1, vector $2, output $index differs"',
        "      failed=1",
        "    fi",
        "    index=$((index + 1))",
        "  done",
        "}",
    ]
    count = 0
    for facts in program_set.programs:
        for number in range(_checked(facts, program_set)):
            lines.append(f"check {facts.name} {number} {len(facts.inputs)} {len(facts.outputs)} {facts.file}")
            count += 1
    lines += ['[ "$failed" -eq 0 ] || exit 1', f'echo "PASS: {count} vectors, no output differs"']
    return "\n".join(lines) + "\n"


def _readme(program_set: ProgramSet, files: Sequence[str], missing: Sequence[str]) -> str:
    board, programs = program_set.board, program_set.programs
    names = ", ".join(program_set.file_names)
    where = board.chip.title if board.chip is not None else board.name
    options = [*_BUILD]
    if any(kernel.library == "quantized" for kernel in program_set.kernels):
        options.append(_QUANTIZED)
    if any(facts.data for facts in programs):
        options.append(_FILES)
    notes = []
    for firmware in program_set.firmware:
        options += firmware.linux_options
        notes += [firmware.linux_note] if firmware.linux_note else []
    what = "a program" if len(program_set.groups) == 1 else "programs"
    parts = [
        f"# {names}: {what} for Linux on the {board.core} of {where}",
        lead(program_set),
        "## Inputs and outputs",
    ]
    for facts in programs:
        parts += [*([f"### {facts.name}"] if len(programs) > 1 else []), io_table(facts, in_c=False)]
    parts += [
        "## Build the runner",
        f"The {board.core} runs Linux: there is no firmware to link, and none of the C sources that `micronpu deploy` "
        "writes for a microcontroller. ExecuTorch's `executor_runner` loads the program. In a checkout of ExecuTorch, "
        "on a machine with `aarch64-linux-gnu-g++`, with `DEPLOYED` the path of this folder:",
        "```sh\ncmake -B build-linux -DCMAKE_TOOLCHAIN_FILE=$DEPLOYED/"
        + TOOLCHAIN
        + " \\\n  "
        + " \\\n  ".join(options)
        + "\ncmake --build build-linux --target executor_runner -j\n```",
        *notes,
    ]
    if CHECK in files:
        parts += [
            "## Check on the board",
            f"Copy this folder and `executor_runner` to the board:\n\n```sh\nsh {CHECK} ./executor_runner\n```\n\n"
            "Each vector runs in a separate process, and every byte of its outputs is compared with those of this "
            "machine. A program with states runs the first vector of its sequence"
            + (
                ", a program with several methods the first method." if len(programs) > len(program_set.groups) else "."
            ),
        ]
    parts += ["## Files", "\n".join(f"- `{name}`" for name in sorted(files) if not name.startswith("vectors/"))]
    if CHECK in files:
        parts.append("`vectors/NAME/NUMBER/` has the inputs and outputs of each vector, as they are in memory.")
    if missing:
        parts.append(f"The program looks up data in files that are not here: {', '.join(dict.fromkeys(missing))}.")
    return "\n\n".join(parts) + "\n"
