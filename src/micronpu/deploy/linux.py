"""The folder for a core that runs Linux: the program, its vectors as files, and instructions instead of C sources.

Under Linux ExecuTorch's own `executor_runner` runs the program, and a kernel driver the NPU: there is nothing to link.
Sources: ExecuTorch's `backends/arm/CMakeLists.txt`, `EthosUBackend_Cortex_A.cpp` and
`examples/portable/executor_runner`.
"""

from __future__ import annotations

from collections.abc import Sequence

from micronpu.deploy.bundled import bundle
from micronpu.deploy.csource import Facts, filled
from micronpu.deploy.shared import ProgramSet
from micronpu.program.digest import seal

TOOLCHAIN = "aarch64-linux.cmake"
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
        checks = [(f, number) for f in program_set.programs for number in range(_checked(f, program_set))]
        found["check.sh"] = filled("linux_check.sh", program_set, checks=checks).encode()
    found[TOOLCHAIN] = filled("linux_toolchain.cmake", program_set).encode()
    options = [_QUANTIZED] if any(kernel.library == "quantized" for kernel in program_set.kernels) else []
    options += [_FILES] if program_set.reads_files else []
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
