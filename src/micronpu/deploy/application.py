"""Sources that run the programs of a folder: pools, a C interface for each, an application with the vectors."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

from micronpu.deploy.csource import Facts, filled
from micronpu.deploy.image import kernel_names
from micronpu.deploy.shared import LINE, ProgramSet
from micronpu.deploy.vectors import Vectors

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
    """Return the sources of a build, in order."""
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
