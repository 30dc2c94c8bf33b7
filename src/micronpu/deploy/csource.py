"""C sources of the folder: the program as data, its header, its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import TypeAlias

import numpy as np

from micronpu.deploy.vectors import Array, Vectors
from micronpu.program.io import ProgramIO
from micronpu.program.plan import Plan
from micronpu.program.states import StoredState
from micronpu.targets.board import Board
from micronpu.targets.firmware import Firmware
from micronpu.targets.pools import Pools
from micronpu.targets.registry import firmware_of

ALIGNMENT = 32
"""Alignment of the program in bytes: an Ethos-U needs 16, and a line of the core's cache has 32."""
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if import inline int long module
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename typeof typeof_unqual union unsigned using virtual
    void volatile wchar_t while xor xor_eq
"""
"""Keywords of C23 and C++20."""
_HEADERS = """
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
    stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string strings tgmath threads time uchar unistd
    wchar wctype
"""
"""Headers of the C library, which NAME.h would hide."""
_SECTIONS = "text data bss rodata stack heap init fini"
"""Sections of every linker script; the folder's script adds .NAME."""
RESERVED = frozenset((*_KEYWORDS.split(), *_HEADERS.split(), *_SECTIONS.split(), "main"))
"""Names that files, C names and sections cannot have."""
_C_TYPES = {
    "bool": ("uint8_t", "ELEMENT_UINT8"),
    "uint8": ("uint8_t", "ELEMENT_UINT8"),
    "int8": ("int8_t", "ELEMENT_INT8"),
    "int16": ("int16_t", "ELEMENT_INT16"),
    "int32": ("int32_t", "ELEMENT_INT32"),
    "int64": ("int64_t", "ELEMENT_INT64"),
    "float32": ("float", "ELEMENT_FLOAT"),
}
FLOAT_TOLERANCE = 1e-5
"""Tolerance for outputs of float kernels: C libraries differ in `exp` and similar functions."""


@dataclass(frozen=True)
class Limit:
    """Upper limit of integers of an input or a state that select rows.

    Attributes:
        input: its index; None for a state.
        memory, offset: of the state.
        count: number of integers.
        dtype: "int32" or "int64".
    """

    input: int | None
    count: int
    dtype: str
    below: int
    memory: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Facts:
    """Facts about a method for the files of the folder; most programs have only one.

    Methods of one program share `file`, `program`, `pools`, `board`, `states`, `io_crc` and `data`, which belong to the
    whole program.

    Attributes:
        name: prefix of files and C names.
        file: prefix of the whole program's; differs from `name` if it has several methods.
        header: first line of each file.
        section: name of the program's linker section.
        program: the stripped `.pte`.
        sha256: of it, as text.
        versions: tool to version.
        states: values that persist in the planned memories from call to call.
        io_crc: CRC-32 of the description of inputs and outputs, by which images are compared.
        data: files from which the program reads data, by name.
        limits: of integers that select rows.
    """

    name: str
    file: str
    header: str
    section: str
    program: bytes
    sha256: str
    versions: dict[str, str]
    plan: Plan
    pools: Pools
    board: Board
    inputs: tuple[ProgramIO, ...]
    outputs: tuple[ProgramIO, ...]
    vectors: Vectors | None
    states: tuple[StoredState, ...] = ()
    io_crc: int = 0
    data: tuple[tuple[str, bytes], ...] = ()
    limits: tuple[Limit, ...] = ()

    @property
    def upper(self) -> str:
        return self.name.upper()

    @property
    def title(self) -> str:
        """The program's file, with the method if there are several."""
        return f"{self.file}.pte" if self.is_whole else f"{self.file}.pte, {self.plan.name}"

    @property
    def is_whole(self) -> bool:
        """True if it is its program's only method."""
        return self.file == self.name

    @property
    def whole(self) -> Facts:
        """Return a copy with the names of the whole program."""
        return self if self.is_whole else replace(self, name=self.file)

    @property
    def firmware(self) -> list[Firmware]:
        """Firmware requirements of each of the program's delegates."""
        return [found for backend in self.plan.backends if (found := firmware_of(backend)) is not None]


def filled(template: str, facts: Facts, **more: str) -> str:
    """Return a template of the folder `templates` with its ``@WORDS@`` replaced."""
    text = (resources.files("micronpu.deploy") / "templates" / f"{template}.in").read_text(encoding="utf-8")
    words = {"name": facts.name, "NAME": facts.upper, "HEADER": facts.header, **more}
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def assembly(facts: Facts) -> str:
    """Return `model.S`."""
    lines: list[str] = []
    for number, (file, data) in enumerate(facts.data):
        name = f"{facts.name}_ptd_{number}"
        lines += [f".global {name}", f".type {name}, %object", f".size {name}, {len(data)}"]
        lines += [f"{name}:", f'.incbin "{file}", 0, {len(data)}', ".balign 32"]
    text = "".join(f"{line}\n" if line.endswith(":") else f"\t{line}\n" for line in lines)
    return filled("model.S", facts, SECTION=facts.section, PTE_BYTES=str(len(facts.program)), DATA=text)


def data_header(facts: Facts) -> str:
    """Return the program as an array, for toolchains without `.incbin`; to be included in one file."""
    lines = [
        f"/* {facts.header}",
        f" * The program as a C array, instead of {facts.name}.S: include it in one file of the firmware.",
        " */",
        f"#ifndef {facts.upper}_DATA_H",
        f"#define {facts.upper}_DATA_H",
        "",
        f'#include "{facts.name}.h"',
        "",
        f"#ifndef {facts.upper}_SECTION",
        f'#define {facts.upper}_SECTION "{facts.section}"',
        "#endif",
        "",
        f"__attribute__((section({facts.upper}_SECTION), aligned({ALIGNMENT}), used))",
        f"const unsigned char {facts.name}_pte[{facts.upper}_PTE_BYTES] = {{",
        *_numbers(np.frombuffer(facts.program, np.uint8), "uint8"),
        "};",
        "",
    ]
    for number, (_, data) in enumerate(facts.data):
        size = f"{facts.upper}_PTD_{number}_BYTES"
        lines += [
            f"__attribute__((section({facts.upper}_SECTION), aligned({ALIGNMENT}), used))",
            f"const unsigned char {facts.name}_ptd_{number}[{size}] = {{",
            *_numbers(np.frombuffer(data, np.uint8), "uint8"),
            "};",
            "",
        ]
    lines += [
        "#endif",
    ]
    return "\n".join(lines) + "\n"


_Define: TypeAlias = tuple[str, str] | str
"""A constant's name and value, or a comment."""


def headers(methods: Sequence[Facts]) -> dict[str, str]:
    """Return `model.h`, and a header for each of several methods, by file name."""
    whole, is_one = methods[0].whole, len(methods) == 1
    operators = {operator for facts in methods for operator in facts.plan.operators}
    define = _program_constants(whole, len(operators), is_one=is_one)
    define += [*_method_constants(whole), *_data_constants(whole)] if is_one else _data_constants(whole)
    define += _io_constants(whole) if is_one else []
    define += _states_constants(whole)
    includes = [
        '#include "micronpu.h"',
        '#include "micronpu_image.h"',
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
    ]
    includes += ["#include <string.h>", ""] if whole.states else [""]
    body = [f"extern const unsigned char {whole.name}_pte[];"]
    body += [f"extern const unsigned char {whole.name}_ptd_{number}[];" for number in range(len(whole.data))]
    body += ["", *_calls(whole, methods)]
    body += _conversions(whole) if is_one else []
    body += _reset(whole)
    found = {f"{whole.name}.h": _header(whole, includes, define, body)}
    for facts in methods if not is_one else ():
        define = [
            *_method_constants(facts),
            *(c for b in (*facts.inputs, *facts.outputs) for c in _constants_of(b)),
        ]
        body = [*_invoke(facts), *_conversions(facts)]
        found[f"{facts.name}.h"] = _header(facts, [f'#include "{facts.file}.h"', ""], define, body)
    return found


def _header(facts: Facts, includes: Sequence[str], define: Sequence[_Define], body: Sequence[str]) -> str:
    lines = [f"/* {facts.header} */", f"#ifndef {facts.upper}_H", f"#define {facts.upper}_H", "", *includes]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    for entry in define:
        lines += ["", f"/* {entry} */"] if isinstance(entry, str) else [f"#define {facts.upper}_{entry[0]} {entry[1]}"]
    lines += ["", *body, "", "#ifdef __cplusplus", "}", "#endif", "", "#endif"]
    return "\n".join(lines) + "\n"


def _method_constants(facts: Facts) -> list[_Define]:
    own: list[_Define] = [("METHOD", f'"{facts.plan.name}"')] if not facts.is_whole else []
    return [*own, ("INPUTS", str(len(facts.inputs))), ("OUTPUTS", str(len(facts.outputs)))]


def _data_constants(facts: Facts) -> list[_Define]:
    found: list[_Define] = []
    for number, (file, data) in enumerate(facts.data):
        found += [f"`{file}`, in which the program looks up data.", (f"PTD_{number}_BYTES", str(len(data)))]
    return found


def _states_constants(facts: Facts) -> list[_Define]:
    if not facts.states:
        return []
    found: list[_Define] = [
        "States: what lives on in the planned memories from call to call, counted in them.",
        ("STATES", str(len(facts.states))),
        ("STATE_BYTES", str(sum(state.bytes for state in facts.states))),
    ]
    return found + [c for number, state in enumerate(facts.states) for c in _state_constants(number, state)]


def _program_constants(facts: Facts, kernels: int, *, is_one: bool) -> list[_Define]:
    """Return constants of the whole program.

    Args:
        kernels: number of kernels that it calls.
        is_one: it has one method.
    """
    pools = facts.pools
    return [
        "The program.",
        ("PTE_BYTES", str(len(facts.program))),
        ("PTE_ALIGNMENT", str(ALIGNMENT)),
        ("PTE_SHA256", f'"{facts.sha256}"'),
        ("VERSION", f'"{facts.name} {facts.sha256[:12]}, micronpu {facts.versions["micronpu"]}"'),
        *([("METHOD", f'"{facts.plan.name}"')] if is_one else []),
        ("TARGET", f'"{facts.board.name}"'),
        *((f"VERSION_{tool.upper().replace('-', '_')}", f'"{v}"') for tool, v in facts.versions.items()),
        "1 where a board runs the program, 0 where only a laptop does: its NPU part is a reference container.",
        ("ON_DEVICE", str(int(facts.board.on_device))),
        "Pools, in bytes: planned memories one by one, method allocator, temporary allocator with the NPU's scratch.",
        ("PLANNED_MEMORIES", str(len(pools.planned))),
        *((f"PLANNED_{i}_BYTES", str(size)) for i, size in enumerate(pools.planned, 1)),
        ("METHOD_POOL_BYTES", str(pools.method)),
        ("TEMPORARY_POOL_BYTES", str(pools.temporary)),
        ("POOL_ALIGNMENT", str(pools.alignment)),
        "Kernels that the program calls; ExecuTorch's MAX_KERNEL_NUM is at least as large.",
        ("KERNELS", str(kernels)),
    ]


def _conversions(facts: Facts) -> list[str]:
    lines = [line for io in facts.inputs for line in _conversion(facts, io, quantizes=True)]
    return lines + [line for io in facts.outputs for line in _conversion(facts, io, quantizes=False)]


def _calls(facts: Facts, methods: Sequence[Facts]) -> list[str]:
    """Return declarations of the functions that an application calls."""
    name = facts.name
    called = _invoke(facts) if len(methods) == 1 else []
    loads = "the program" if called else "the program with all of its methods"
    return [
        f"/* Loads {loads}. Call it first; a second call reloads it. */",
        f"micronpu_status {name}_init(void);",
        "",
        f"/* The same with a program that stands elsewhere, such as one that came later: at a multiple of {ALIGNMENT}, "
        "with",
        " * the inputs, outputs and kernels of this header and no larger pools. */",
        f"micronpu_status {name}_init_from(const void *program, size_t bytes);",
        "",
        *called,
        *([""] if called else []),
        "/* Begins a new sequence: states are as they were when the program was loaded. */",
        f"micronpu_status {name}_reset(void);",
        "",
        "/* Name, the first digits of the program's SHA-256, version of micronpu. */",
        f"const char *{name}_version(void);",
        "",
        "/* Why the last call did not succeed: micronpu_error_text makes a sentence of it. */",
        f"const micronpu_error *{name}_error(void);",
        "",
        "/* Requirements an update image must meet; see micronpu_image.h. */",
        f"extern const micronpu_image_firmware {name}_image_firmware;",
    ]


def _invoke(facts: Facts) -> list[str]:
    name, upper = facts.name, facts.upper
    what = "the program" if facts.is_whole else f"the method {facts.plan.name}"
    return [
        f"/* Runs {what} once. inputs: an address for each, of elements as described below, aligned to their type;",
        " * they are not written. outputs: an address for each, which takes that many bytes. */",
        f"micronpu_status {name}_invoke(const void *const inputs[{upper}_INPUTS], "
        f"void *const outputs[{upper}_OUTPUTS]);",
    ]


def _state_constants(number: int, state: StoredState) -> list[_Define]:
    name = f"STATE_{number}"
    words = f"`{state.name}`: {state.dtype}, {' x '.join(map(str, state.shape)) or 'one element'}, in a planned memory."
    found: list[_Define] = [
        words,
        (f"{name}_MEMORY", str(state.memory)),
        (f"{name}_OFFSET", str(state.offset)),
        (f"{name}_BYTES", str(state.bytes)),
    ]
    if state.scale is not None:
        found += [(f"{name}_SCALE", _float(state.scale)), (f"{name}_ZERO_POINT", f"({state.zero_point})")]
    return found


def _reset(facts: Facts) -> list[str]:
    """Return an inline function that starts a new sequence without loading the method again."""
    if not facts.states:
        return []
    lines = [
        "",
        "/* Sets the states back to their first values, as loading the method does: the next call begins a sequence.",
        " * memories: the addresses of the planned memories, in order. */",
        f"static inline void {facts.name}_reset_states(uint8_t* const* memories) {{",
    ]
    for number, state in enumerate(facts.states):
        place = f"memories[{facts.upper}_STATE_{number}_MEMORY - 1] + {facts.upper}_STATE_{number}_OFFSET"
        size = f"{facts.upper}_STATE_{number}_BYTES"
        if len(set(state.initial)) == 1:
            lines.append(f"  memset({place}, {state.initial[0]}, {size});")
            continue
        flat = np.frombuffer(state.initial, np.uint8)
        lines += [f"  static const uint8_t state_{number}[] = {{", *(f"  {line}" for line in _numbers(flat, "uint8"))]
        lines += ["  };", f"  memcpy({place}, state_{number}, {size});"]
    return [*lines, "}"]


def _io_constants(facts: Facts) -> list[_Define]:
    return [constant for io in (*facts.inputs, *facts.outputs) for constant in _constants_of(io)]


def _constants_of(io: ProgramIO) -> list[_Define]:
    tensor, name = io.tensor, io.name.upper()
    shape = " x ".join(map(str, tensor.shape)) or "one element"
    words = f"{io.name.replace('_', ' ').capitalize()}: {tensor.dtype}, {shape}, {io.layout}."
    if io.is_integer and io.scale is None:
        words += " The program does not record its qparams."
    found: list[_Define] = [
        words,
        (f"{name}_TYPE", c_type(io)),
        (f"{name}_RANK", str(len(tensor.shape))),
        (f"{name}_SHAPE", _braces(tensor.shape)),
        (f"{name}_DIM_ORDER", _braces(tensor.dim_order)),
        (f"{name}_STRIDES", _braces(tensor.strides)),
        (f"{name}_ELEMENTS", str(io.elements)),
        (f"{name}_BYTES", str(io.bytes)),
        (f"{name}_CHANNELS_LAST", str(int(io.layout == "channels last"))),
    ]
    if io.scale is not None:
        found += [(f"{name}_SCALE", _float(io.scale)), (f"{name}_ZERO_POINT", f"({io.zero_point})")]
    return found


def c_type(io: ProgramIO) -> str:
    """Return the C type of an element."""
    return _C_TYPES[io.tensor.dtype][0]


def is_known(io: ProgramIO) -> bool:
    """Return True if there is a C type for the elements."""
    return io.tensor.dtype in _C_TYPES


def _braces(numbers: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, numbers or (0,))) + "}"


def _float(value: float) -> str:
    """Return a C constant of the float32 nearest to a number."""
    text = repr(float(np.float32(value)))
    return f"{text}f"


def _conversion(facts: Facts, io: ProgramIO, *, quantizes: bool) -> list[str]:
    """Return an inline function for conversion between a float and the integer of an input or output."""
    if io.scale is None:
        return []
    limits, kind = np.iinfo(io.tensor.dtype), c_type(io)
    zero, scale = f"{facts.upper}_{io.name.upper()}_ZERO_POINT", f"{facts.upper}_{io.name.upper()}_SCALE"
    if not quantizes:
        return [
            "",
            f"/* Dequantizes an element of {io.name.replace('_', ' ')}. */",
            f"static inline float {facts.name}_dequantize_{io.name}({kind} value) {{",
            f"  return (float)((int32_t)value - {zero}) * {scale};",
            "}",
        ]
    return [
        "",
        f"/* The integer of {io.name.replace('_', ' ')} for a number: nearest, ties to even, kept inside of its range;",
        " * what is no number becomes the lowest. */",
        f"static inline {kind} {facts.name}_quantize_{io.name}(float value) {{",
        f"  const float steps = __builtin_rintf(value / {scale}) + (float){zero};",
        f"  if (!(steps > {limits.min}.0f)) {{",
        f"    return {limits.min};",
        "  }",
        f"  return steps < {limits.max}.0f ? ({kind})steps : {limits.max};",
        "}",
    ]


def vectors_header(facts: Facts, vectors: Vectors) -> str:
    """Return `model_vectors.h`."""
    return filled("vectors.h", facts, SOURCE=vectors.source, COUNT=str(len(vectors)))


def vectors_source(facts: Facts, vectors: Vectors) -> str:
    """Return `model_vectors.c`."""
    arrays: list[str] = []
    sides = []
    for tensors, rows in ((facts.inputs, vectors.inputs), (facts.outputs, vectors.outputs)):
        ports = []
        for number, io in enumerate(tensors):
            names = []
            for vector, row in enumerate(rows):
                names.append(f"{io.name}_{vector}")
                arrays += _array(names[-1], io, row[number])
            element = _C_TYPES[io.tensor.dtype][1]
            tolerance = FLOAT_TOLERANCE if element == "ELEMENT_FLOAT" and io.qparams is None else 0.0
            ports.append(f"    {{{{{', '.join(names)}}}, {io.elements}, {element}, {_float(tolerance)}}},\n")
        sides.append("".join(ports))
    return filled("vectors.c", facts, ARRAYS="\n".join(arrays), INPUTS=sides[0], OUTPUTS=sides[1])


def _array(name: str, io: ProgramIO, array: Array) -> list[str]:
    flat = io.flat(array)
    # Aligned, because an NPU's driver may read inputs in place.
    return [
        f"static const {c_type(io)} {name}[{max(len(flat), 1)}] __attribute__((aligned(16))) = {{",
        *_numbers(flat, io.tensor.dtype),
        "};",
        "",
    ]


def _numbers(flat: Array, dtype: str) -> list[str]:
    """Return lines with several numbers each."""
    if dtype == "float32":
        words = [_exact(v) for v in flat.tolist()]
    elif dtype == "int64":
        words = [f"INT64_C({v})" if v > -(1 << 63) else "INT64_MIN" for v in flat.tolist()]
    elif dtype == "int32":
        words = [str(v) if v > -(1 << 31) else "INT32_MIN" for v in flat.tolist()]
    else:
        words = [str(int(v)) for v in flat.tolist()]
    step = 8 if dtype in ("float32", "int64", "int32") else 20
    return [f"    {', '.join(words[i : i + step])}," for i in range(0, len(words), step)] or ["    0,"]


def _exact(value: float) -> str:
    """Return a float32 as a C constant of the same bits."""
    if np.isfinite(value):
        return f"{float(value).hex()}f"
    return '__builtin_nanf("")' if np.isnan(value) else f"{'-' if value < 0 else ''}__builtin_inff()"


def scalar_type(io: ProgramIO) -> str:
    """Return ExecuTorch's name of an element type."""
    return _SCALARS[io.tensor.dtype]


_SCALARS = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float32": "Float",
}
