"""Signatures of the host's kernels: number and kinds of arguments.

ExecuTorch's own kernels are listed in `kernels.txt`, so that a program can be checked without torch; schemas of other
registered kernels come from torch.

ExecuTorch's kernels do not check their arguments: a value of another kind ends the process, and a missing one is read
out of bounds. The kernels that call CMSIS-NN are ours and check their arguments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from micronpu.upstream.pte import CORE_KERNELS
from micronpu.upstream.pte import KernelTypes as Kind

_NUMBER = frozenset((Kind.INT, Kind.BOOL, Kind.DOUBLE))
_KINDS: dict[str, frozenset[Kind]] = {
    "Tensor": frozenset((Kind.TENSOR,)),
    "int": frozenset((Kind.INT,)),
    "float": frozenset((Kind.DOUBLE,)),
    "bool": frozenset((Kind.BOOL,)),
    "number": _NUMBER,
    "str": frozenset((Kind.STRING,)),
    "List[int]": frozenset((Kind.INT_LIST,)),
    "List[float]": frozenset((Kind.DOUBLE_LIST,)),
    "List[bool]": frozenset((Kind.BOOL_LIST,)),
    "List[Tensor]": frozenset((Kind.TENSOR_LIST,)),
    "List[Optional[Tensor]]": frozenset((Kind.OPTIONAL_TENSOR_LIST, Kind.TENSOR_LIST)),
}
_OPTIONAL = re.compile(r"Optional\[(.*)\]")


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel: its name, the kinds that it may have, and whether the kernel writes into it."""

    name: str
    kinds: frozenset[Kind]
    written: bool = False


@dataclass(frozen=True)
class Signature:
    """The arguments of a kernel in order, including results that a kernel stores into the list of values.

    After them the program may name some results again (``repeated``), which the kernel does not read.
    """

    parameters: tuple[Parameter, ...]
    repeated: int = 0


def _numbers(count: int) -> Signature:
    return Signature(tuple(Parameter(f"argument {i}", _NUMBER) for i in range(count)))


_TENSOR, _INTEGERS, _INT = _KINDS["Tensor"], _KINDS["List[int]"], _KINDS["int"]
_UNARY = ("ceil", "neg", "round", "sym_float", "sym_int", "sym_not", "trunc")
# torch has no schemas of ExecuTorch's own operators; all but these two compute with sizes.
_PRIMITIVES = {
    "et_view.default": Signature(
        (Parameter("self", _TENSOR), Parameter("size", _INTEGERS), Parameter("out", _TENSOR, written=True)), 1
    ),
    "et_copy_index.tensor": Signature(
        (Parameter("copy_to", _TENSOR, written=True), Parameter("copy_from", _TENSOR), Parameter("index", _INT)), 1
    ),
    "sym_ite.Scalar": _numbers(4),
    **{f"{name}.Scalar": _numbers(2) for name in _UNARY},
}
_PRIMITIVE_SPACE = "executorch_prim::"
VIEW = "executorch_prim::et_view.default"
"""Its result aliases the memory of its input."""


_known: dict[str, Signature] = {}


def signature_of(operator: str) -> Signature | None:
    """Return the arguments of a kernel such as "aten::add.out"; None if unknown, as for kernels of a user's library."""
    if operator.startswith(_PRIMITIVE_SPACE):
        return _PRIMITIVES.get(operator.removeprefix(_PRIMITIVE_SPACE), _numbers(3))
    if operator not in _known:
        line = _listed().get(operator) or describe(operator)
        if line is None:  # not cached: the library with the schema may be imported later
            return None
        _known[operator] = _parse(line)
    return _known[operator]


def needs_torch(operators: Iterable[str]) -> bool:
    """True if an operator's schema is known to torch alone, so that its calls cannot be checked here."""
    return any(not name.startswith((_PRIMITIVE_SPACE, CORE_KERNELS)) and name not in _listed() for name in operators)


def describe(operator: str) -> str | None:
    """A kernel's line of `kernels.txt`, from torch's schema; None where torch has none.

    ``aten::abs.out(self: Tensor, out: Tensor!) repeats 1``: "!" marks arguments that the kernel writes; "repeats"
    counts results that the program may name again, "returns" those that the kernel stores itself.
    """
    if operator.startswith(CORE_KERNELS) and "torch" not in sys.modules:
        return None  # they check their arguments: not worth the import
    space, _, rest = operator.partition("::")
    name, _, overload = rest.partition(".")
    import torch

    from micronpu.upstream.torch import OpOverload, schema_of

    try:
        found: object = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
    except (AttributeError, RuntimeError, TypeError):
        return None
    if not isinstance(found, OpOverload):
        return None
    schema = schema_of(found)
    arguments = ", ".join(
        f"{a.name}: {a.type}{'!' if a.alias_info is not None and a.alias_info.is_write else ''}"
        for a in schema.arguments
    )
    word = "repeats" if any(a.is_out for a in schema.arguments) else "returns"
    # A list of results is named again too, although such a kernel returns nothing by its schema.
    lists = sum(a.is_out and str(a.type) == "List[Tensor]" for a in schema.arguments)
    return f"{operator}({arguments}) {word} {len(schema.returns) or lists}"


def listed_kernels(space: str) -> list[str]:
    """ExecuTorch's own kernels of a namespace such as "aten": ``aten::add.out``."""
    return [name for name in _listed() if name.startswith(f"{space}::")]


@cache
def _listed() -> dict[str, str]:
    """The lines of `kernels.txt` by operator."""
    text = Path(__file__).with_name("kernels.txt").read_text(encoding="utf-8")
    return {line.partition("(")[0]: line for line in text.splitlines()}


def _parse(line: str) -> Signature:
    body, _, results = line.partition("(")[2].rpartition(") ")
    word, _, count = results.partition(" ")
    parameters = []
    for argument in body.split(", ") if body else ():
        name, _, kind = argument.partition(": ")
        parameters.append(Parameter(name, _kinds(kind.removesuffix("!")), kind.endswith("!")))
    if word == "repeats":
        return Signature(tuple(parameters), int(count))
    returns = [Parameter("the result", frozenset(Kind)) for _ in range(int(count))]
    return Signature((*parameters, *returns))


def _kinds(text: str) -> frozenset[Kind]:
    if optional := _OPTIONAL.fullmatch(text):
        return _kinds(optional[1]) | {Kind.NULL}
    return _KINDS.get(text, frozenset(Kind))
