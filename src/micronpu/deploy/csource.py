"""Templates of the folder's files: what they know about a program, and how values are written in C.

The files in the folder `templates` are written in Jinja's language, with delimiters that C, CMake and YAML do not have:
``@value@``, ``%% for`` and the like at the beginning of a line, ``<% if %>`` within one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Protocol

import jinja2
import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.texts import affine
from micronpu.deploy.vectors import Vectors
from micronpu.program.file_facts import FileFacts
from micronpu.program.io import ProgramIO, StoredState
from micronpu.program.plan import Plan, PlanValue
from micronpu.program.pte import ELEMENT_BYTES, TensorValue
from micronpu.targets.board import Board, Pools
from micronpu.targets.firmware import Firmware
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
    "bool": ("uint8_t", "ELEMENT_UINT8", "Bool"),
    "uint8": ("uint8_t", "ELEMENT_UINT8", "Byte"),
    "int8": ("int8_t", "ELEMENT_INT8", "Char"),
    "int16": ("int16_t", "ELEMENT_INT16", "Short"),
    "int32": ("int32_t", "ELEMENT_INT32", "Int"),
    "int64": ("int64_t", "ELEMENT_INT64", "Long"),
    "float32": ("float", "ELEMENT_FLOAT", "Float"),
}
"""Type in C, name in the sources of vectors, and ExecuTorch's name, by element type."""
FLOAT_TOLERANCE = 1e-5
"""Tolerance for outputs of float kernels: C libraries differ in `exp` and similar functions."""


@dataclass(frozen=True)
class Limit:
    """Upper limit of integers of an input or a state that select rows.

    Attributes:
        input: its index; None for a state.
        memory, offset: of the state.
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
        file_facts: names, labels and normalization of the model file.
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
    file_facts: FileFacts = FileFacts()  # noqa: RUF009 (a frozen value)

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


class Named(Protocol):
    """Subject of a file of the folder: a method, a program, or all programs."""

    @property
    def name(self) -> str: ...
    @property
    def upper(self) -> str: ...
    @property
    def header(self) -> str: ...


def filled(template: str, of: Named, **words: object) -> str:
    """Return a template of the folder `templates`, which reads ``of`` and further words."""
    own = {"of": of, "name": of.name, "NAME": of.upper, "HEADER": of.header, "ALIGNMENT": ALIGNMENT}
    return _templates().get_template(f"templates/{template}.in").render(own | words)


def rendered(text: str, **words: object) -> str:
    return _templates().from_string(_with_blocks(text)).render(words)


def text_of(path: str) -> str:
    return resources.files("micronpu.deploy").joinpath(*path.split("/")).read_text(encoding="utf-8")


@functools.cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="@",
        variable_end_string="@",
        comment_start_string="<#",
        comment_end_string="#>",
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(lambda path: _with_blocks(text_of(path))),
    )
    filters: dict[str, Callable[..., object]] = {
        "affine": affine,
        "c_type": lambda io: _C_TYPES[io.tensor.dtype][0],
        "element": lambda io: _C_TYPES[io.tensor.dtype][1],
        "scalar_type": lambda io: _C_TYPES[io.tensor.dtype][2],
        "limits": lambda io: np.iinfo(io.tensor.dtype),
        "tolerance": lambda io: FLOAT_TOLERANCE if io.tensor.dtype == "float32" and io.qparams is None else 0.0,
        "float_constant": lambda value: f"{float(np.float32(value))!r}f",
        "c_string": c_string,
        "markdown": lambda text: re.sub(r"([\\`|<>*_\[\]&])", r"\\\1", text),
        "kind": kind_of,
        "filled": rendered,
        "numbers": _numbers,
        "printed": lambda facts: [one for one in computed(facts.plan) if one.bytes],
    }
    found.filters.update(filters)
    return found


def _with_blocks(text: str) -> str:
    """Return a template with its lines of control as blocks: Jinja's own would remove empty lines after them, too."""
    return re.sub(r"^%%(.*)\n", r"<%\1 %>", text, flags=re.MULTILINE)


def c_string(text: str) -> str:
    """Return an untrusted text as a C string literal; octal digits end after three, unlike hexadecimal ones."""
    plain = {*range(32, 127)} - set(b'"\\?')  # ? begins trigraphs
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode("utf-8", "replace")) + '"'


def is_known(io: ProgramIO) -> bool:
    """Return True if there is a C type for the elements."""
    return io.tensor.dtype in _C_TYPES


def kind_of(tensor: TensorValue) -> str:
    """Return type, shape and order of axes of a printed value as one word: "int8:1x8x4x4:0,2,3,1"."""
    return f"{tensor.dtype}:{'x'.join(map(str, tensor.shape))}:{','.join(map(str, tensor.dim_order))}"


@dataclass(frozen=True)
class Computed:
    """A tensor in planned memory, with the first instruction that refers to it, which computes it."""

    instruction: int
    number: int
    value: PlanValue

    @property
    def bytes(self) -> int:
        tensor = self.value.tensor
        assert tensor is not None
        return math.prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype]


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


def _numbers(values: Array | bytes, dtype: str) -> str:
    flat = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
    if dtype == "float32":
        words = [_exact(v) for v in flat.tolist()]
    elif dtype == "int64":
        words = [f"INT64_C({v})" if v > -(1 << 63) else "INT64_MIN" for v in flat.tolist()]
    elif dtype == "int32":
        words = [str(v) if v > -(1 << 31) else "INT32_MIN" for v in flat.tolist()]
    else:
        words = [str(int(v)) for v in flat.tolist()]
    step = 8 if dtype in ("float32", "int64", "int32") else 20
    return "\n".join(f"    {', '.join(words[i : i + step])}," for i in range(0, len(words), step)) or "    0,"


def _exact(value: float) -> str:
    """Return a float32 as a C constant of the same bits."""
    if np.isfinite(value):
        return f"{float(value).hex()}f"
    return '__builtin_nanf("")' if np.isnan(value) else f"{'-' if value < 0 else ''}__builtin_inff()"
