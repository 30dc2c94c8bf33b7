"""Sources that run the programs of a folder: pools, a C interface for each, an application with the vectors."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from micronpu.deploy.csource import Facts, filled, scalar_type
from micronpu.deploy.image import kernel_names
from micronpu.deploy.shared import LINE, Array, ProgramSet
from micronpu.program.plan import ELEMENT_BYTES, Plan, PlanValue

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
    texts = {name: _plain(name, program_set) for name in FIXED}
    if any(facts.data for facts in program_set.programs):
        texts |= {name: _plain(name, program_set) for name in DATA}
    texts |= program_set.start_up
    for function in program_set.functions:
        texts |= {name: _plain(name, program_set) for name in (f"micronpu_{function}.h", f"micronpu_{function}.c")}
    texts["micronpu_pools.c"] = pools_source(program_set)
    texts["micronpu_programs.c"] = programs_source(program_set)
    return texts


def _plain(name: str, program_set: ProgramSet) -> str:
    template = resources.files("micronpu.deploy") / "templates" / f"{name}.in"
    text = template.read_text(encoding="utf-8").replace("@HEADER@", program_set.header)
    # Reports contain the hash of the first payload, also for a program whose file was stripped.
    payloads = {f.name: f.plan.delegates[0].payload for f in program_set.programs if f.plan.delegates}
    rows = [f'    {{"{name}", "{hashlib.sha256(payload).hexdigest()}"}},\n' for name, payload in payloads.items()]
    chip = f'  puts("micronpu-chip {program_set.board.chip.name}");\n' if program_set.board.chip is not None else ""
    text = text.replace("@CHIP@\n", chip)
    return text.replace("@PROGRAMS@", "".join(rows) or '    {"", ""},\n')


def pools_source(program_set: ProgramSet) -> str:
    """Return `micronpu_pools.c`."""
    lines = [
        f"/* {program_set.header}",
        f" * The memories and pools of the programs, aligned and padded to {LINE} bytes, a line of the core's data",
        " * cache, in the sections that micronpu_sections.ld places.",
        " */",
        '#include "micronpu.h"',
        "",
    ]
    for array in program_set.arrays:
        padded = -(-max(array.size, 1) // LINE) * LINE
        lines += [
            f"/* {array.what[0].upper()}{array.what[1:]}: {array.size} bytes are needed. */",
            _declared(array) + ";",
            f'uint8_t {array.name}[{padded}] __attribute__((aligned({LINE}))) MICRONPU_SECTION("{array.section}");',
            "",
        ]
    return "\n".join(lines[:-1]) + "\n"


def _declared(array: Array) -> str:
    return f"extern uint8_t {array.name}[]"


def programs_source(program_set: ProgramSet) -> str:
    """Return `micronpu_programs.c`: the programs by name."""
    names = [facts.name for facts in program_set.programs]
    calls = ("init", "invoke", "reset", "version", "error")
    rows = []
    for facts in program_set.programs:
        own = (f"{facts.name if call == 'invoke' else facts.file}_{call}" for call in calls)
        rows.append(f'    {{"{facts.name}", ' + ", ".join(own) + "},")
    lines = [
        f"/* {program_set.header} */",
        '#include "micronpu.h"',
        "",
        *(f'#include "{name}.h"' for name in names),
        "",
        "const micronpu_program micronpu_programs[] = {",
        *rows,
        "};",
        "",
        "const size_t micronpu_program_count = sizeof micronpu_programs / sizeof micronpu_programs[0];",
    ]
    return "\n".join(lines) + "\n"


def _io(facts: Facts) -> str:
    """Return C code with shapes and types of a method's inputs and outputs."""
    inputs: list[str] = []
    for io in facts.inputs:
        name, rank = f"{facts.upper}_{io.name.upper()}", max(len(io.tensor.shape), 1)
        inputs += [
            f"const int32_t {io.name}_sizes[{rank}] = {name}_SHAPE;",
            f"const uint8_t {io.name}_order[{rank}] = {name}_DIM_ORDER;",
            f"const int32_t {io.name}_strides[{rank}] = {name}_STRIDES;",
        ]
    rows = [
        f"    {{ScalarType::{scalar_type(b)}, {facts.upper}_{b.name.upper()}_RANK, {b.name}_sizes, {b.name}_order, "
        f"{b.name}_strides}},"
        for b in facts.inputs
    ]
    inputs += [f"const micronpu::Input inputs[{facts.upper}_INPUTS] = {{", *rows, "};"]
    sizes = ", ".join(f"{facts.upper}_{b.name.upper()}_BYTES" for b in facts.outputs)
    lines = [*inputs, "", f"const std::size_t output_bytes[{facts.upper}_OUTPUTS] = {{{sizes}}};", ""]
    return "\n".join([*lines, *_limits(facts), *_values(facts)])


def _limits(facts: Facts) -> list[str]:
    """Return C code with the limits of integer inputs and states, which are checked before a call."""
    if not facts.limits:
        return []
    rows = [
        f"    {{{-1 if limit.input is None else limit.input}, {limit.memory}u, {limit.offset}u, {limit.count}u, "
        f"{str(limit.dtype == 'int64').lower()}, INT64_C({limit.below})}},"
        for limit in facts.limits
    ]
    return ["const micronpu::Limit limits[] = {", *rows, "};", ""]


def kind_of(dtype: str, shape: Sequence[int], order: Sequence[int]) -> str:
    """Return type, shape and order of axes of a printed value as one word: "int8:1x8x4x4:0,2,3,1"."""
    return f"{dtype}:{'x'.join(map(str, shape))}:{','.join(map(str, order))}"


@dataclass(frozen=True)
class Computed:
    """A tensor in planned memory, with the first instruction that refers to it, which computes it."""

    instruction: int
    number: int
    value: PlanValue


def computed(plan: Plan) -> list[Computed]:
    """Return all tensors that the instructions of a method compute, in order; none for a method with loops.

    Inputs, constants and states are excluded. Tensors that share memory are printed one after the other.
    """
    seen = {*plan.inputs}
    found: list[Computed] = []
    if len(plan.chains) != 1:
        return found
    for number, call in enumerate(plan.chains[0]):
        named = [i for argument in call.arguments for i in (argument, *plan.values[argument].items) if i >= 0]
        for index in dict.fromkeys(named):
            value = plan.values[index]
            if index in seen or value.tensor is None or not value.planned or value.initial is not None:
                continue
            seen.add(index)
            if value.tensor.dtype in ELEMENT_BYTES:
                found.append(Computed(number, index, value))
    return found


def _values(facts: Facts) -> list[str]:
    """Return C code with the values of instructions, for builds that print them."""
    rows = []
    for one in computed(facts.plan):
        tensor, value = one.value.tensor, one.value
        assert tensor is not None
        size = math.prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype]
        kind = kind_of(tensor.dtype, tensor.shape, tensor.dim_order)
        if size:
            rows.append(
                f'    {{{one.instruction}u, {one.number}u, {value.planned}u, {value.offset}u, {size}u, "{kind}"}},'
            )
    name, space = f"{facts.upper}_PRINTED", "" if facts.is_whole else f"{facts.name}_values::"
    if not rows:
        return [f"#define {name} nullptr, 0", ""]
    table = ["const micronpu::Value values[] = {", *rows, "};"]
    if space:
        table = [f"namespace {facts.name}_values {{", *table, "}"]
    return [
        "#if defined(MICRONPU_PRINT_VALUES)",
        *table,
        f"#define {name} {space}values, {len(rows)}",
        "#else",
        f"#define {name} nullptr, 0",
        "#endif",
        "",
    ]


def _invoked(number: int, facts: Facts) -> str:
    return (
        f"micronpu_status {facts.name}_invoke(const void* const* given, void* const* results) {{\n"
        f"  return model.invoke({number}, given, results);\n"
        "}\n\n"
    )


def model_source(methods: Sequence[Facts], program_set: ProgramSet) -> str:
    """Return `NAME.cpp`: the C interface of a program and its methods to ExecuTorch's runtime."""
    facts = methods[0].whole
    planned, method, temporary = program_set.planned(facts), program_set.method(facts), program_set.temporary(facts)
    tensors, rows = [], []
    for number, own in enumerate(methods):
        space = "" if own.is_whole else f"method_{number}::"
        tensors.append(_io(own) if own.is_whole else f"namespace method_{number} {{\n{_io(own)}}}\n")
        name = f"{own.upper}_METHOD"
        rows.append(
            f'    {{"{own.name}", {name}, {space}inputs, {own.upper}_INPUTS, {space}output_bytes, '
            f"{own.upper}_OUTPUTS, {f'{space}limits, {len(own.limits)}' if own.limits else 'nullptr, 0'}, "
            f"{own.upper}_PRINTED}},\n"
        )
    memories = [
        f"    {{{array.name}, {array.size}, {facts.upper}_PLANNED_{number}_BYTES}},"
        for number, array in enumerate(planned, 1)
    ]
    table = ["const micronpu::Memory planned[] = {", *memories, "};", ""] if planned else []
    includes, data = _data(facts)
    includes += "".join(f'#include "{own.name}.h"\n' for own in methods if not own.is_whole)
    started = _started(program_set.npu(facts))
    return filled(
        "model.cpp",
        facts,
        INCLUDES=includes + (started[0] if started else ""),
        DATA=data + (started[1] if started else ""),
        NPU="start, micronpu_npu_rest, micronpu_npu_why" if started else "nullptr, nullptr, nullptr",
        DATA_MAP="data_map" if facts.data else "nullptr",
        POOLS="".join(f"{_declared(array)};\n" for array in (*planned, method, temporary)),
        BORDERS="\n".join(tensors),
        METHODS="".join(rows),
        METHODS_COUNT=str(len(methods)),
        INVOKES="".join(_invoked(number, own) for number, own in enumerate(methods)),
        PLANNED="\n".join(table),
        PLANNED_ARRAY="planned" if planned else "nullptr",
        TEMPORARY=temporary.name,
        TEMPORARY_BYTES=str(temporary.size),
        RESET=f"  {facts.name}_reset_states(memories);" if facts.states else "  static_cast<void>(memories);",
    )


def _started(number: int | None) -> tuple[str, str] | None:
    """Return the include and the function by which a program starts its NPU."""
    if number is None:
        return None
    lines = [
        "micronpu_status start(const void* program, std::size_t bytes) {",
        f"  return micronpu_npu_use({number}, program, bytes);",
        "}",
        "",
    ]
    return '#include "micronpu_npu.h"\n', "\n".join(lines) + "\n"


def _data(facts: Facts) -> tuple[str, str]:
    """Return the include and the code by which a program finds data in files."""
    if not facts.data:
        return "", ""
    rows = [f"    {{{facts.name}_ptd_{i}, {facts.upper}_PTD_{i}_BYTES}}," for i in range(len(facts.data))]
    lines = [
        "const micronpu::Blob blobs[] = {",
        *rows,
        "};",
        "micronpu::Slot<micronpu::Data> files;",
        "",
        "const executorch::runtime::NamedDataMap* data_map() {",
        f"  const micronpu::Data* made = files.make(blobs, std::size_t{{{len(facts.data)}}});",
        "  return made->ok() ? made : nullptr;",
        "}",
        "",
    ]
    return '#include "micronpu_data.hpp"\n', "\n".join(lines) + "\n"


def image_source(methods: Sequence[Facts], program_set: ProgramSet) -> str:
    """Return `NAME_image.c`: memory and kernels that the firmware offers to an image which replaces the program."""
    facts = methods[0].whole
    kernels = kernel_names([own.plan for own in methods])
    planned, temporary = program_set.planned(facts), program_set.temporary(facts)
    numbers = ", ".join(f"0x{zlib.crc32(name.encode()):08x}u" for name in kernels) or "0"
    values = [
        ("runtime", f'"{facts.versions.get("executorch", "")}"'),
        ("accelerator", f'"{facts.board.accelerator}"'),
        ("memory_mode", f'"{facts.board.memory_mode}"'),
        ("method_pool", f"{facts.pools.method}u"),
        ("temporary_pool", f"{temporary.size}u"),
        ("planned_count", f"{len(planned)}u"),
        ("planned", "{" + (", ".join(f"{array.size}u" for array in planned) or "0") + "}"),
        ("border", f"0x{facts.io_crc:08x}u"),
        ("kernel_count", f"{len(kernels)}u"),
        ("kernels", "kernels"),
    ]
    lines = [
        f"/* {facts.header} */",
        f'#include "{facts.name}.h"',
        "",
        f"static const uint32_t kernels[] = {{{numbers}}};",
        "",
        f"const micronpu_image_firmware {facts.name}_image_firmware = {{",
        *(f"    .{name} = {value}," for name, value in values),
        "};",
    ]
    return "\n".join(lines) + "\n"


def application(program_set: ProgramSet) -> str:
    """Return `main.cpp`: it runs the golden vectors of every program that has some."""
    programs = [facts for facts in program_set.programs if facts.vectors is not None]
    room: list[str] = []
    rows = []
    for facts in programs:
        for io in facts.outputs:
            room.append(f"alignas(16) uint8_t {facts.name}_{io.name}[{facts.upper}_{io.name.upper()}_BYTES];")
        places = ", ".join(f"{facts.name}_{io.name}" for io in facts.outputs)
        room.append(f"void* const {facts.name}_results[{facts.upper}_OUTPUTS] = {{{places}}};")
        sizes = ", ".join(f"{facts.upper}_{io.name.upper()}_BYTES" for io in facts.outputs)
        kinds = ", ".join(f'"{kind_of(b.tensor.dtype, b.tensor.shape, b.tensor.dim_order)}"' for b in facts.outputs)
        room.append(f"const std::size_t {facts.name}_bytes[{facts.upper}_OUTPUTS] = {{{sizes}}};")
        room.append(f"const char* const {facts.name}_kinds[{facts.upper}_OUTPUTS] = {{{kinds}}};")
        rows.append(
            f'    {{"{facts.name}", {facts.upper}_VECTORS, {facts.upper}_INPUTS, {facts.upper}_OUTPUTS, '
            f"{facts.name}_vector_input,\n        {facts.name}_compare, {facts.name}_results, {facts.name}_bytes, "
            f"{facts.name}_kinds}},"
        )
    included = [f'#include "{facts.name}.h"\n#include "{facts.name}_vectors.h"\n' for facts in programs]
    return filled(
        "main.cpp",
        programs[0],
        HEADER=program_set.header,
        INCLUDES="".join(included),
        ROOM="\n".join(room) + "\n",
        ROWS="\n".join(rows) + "\n",
        MOST_INPUTS=str(max(len(facts.inputs) for facts in programs)),
    )


def c_sources(program_set: ProgramSet) -> list[str]:
    """Return the sources of a build, in order."""
    programs = program_set.programs
    own = [f"{methods[0].file}{suffix}" for methods in program_set.groups for suffix in (".S", ".cpp", "_image.c")]
    own += [f"{facts.name}_vectors.c" for facts in programs if facts.vectors is not None]
    more = DATA if any(facts.data for facts in programs) else ()
    fixed = [
        *FIXED,
        *more,
        *program_set.start_up,
        *(f"micronpu_{name}.c" for name in program_set.functions),
        "micronpu_pools.c",
        "micronpu_programs.c",
    ]
    fixed = [name for name in fixed if not name.endswith((".h", ".hpp"))]
    return [*own, *fixed, "micronpu_kernels.cpp", "main.cpp"]
