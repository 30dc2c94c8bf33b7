"""What the kernels of the host take: count and kinds of arguments, from the schemas that torch has of them.

ExecuTorch's kernels do not look: a value of another kind ends the process, and a missing one is read from whatever lies
behind the list.  The kernels of `cortex_m::*` are ours and look for themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """The union `KernelTypes` of `program.fbs`."""

    NULL = 1
    INT = 2
    BOOL = 3
    DOUBLE = 4
    TENSOR = 5
    STRING = 6
    INT_LIST = 7
    DOUBLE_LIST = 8
    BOOL_LIST = 9
    TENSOR_LIST = 10
    OPTIONAL_TENSOR_LIST = 11

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


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
    """The arguments of a kernel.

    Attributes:
        parameters: in order; results that a kernel puts into the list of values are among them.
        repeated: how many results the program may name again after them, which the kernel does not read.
    """

    parameters: tuple[Parameter, ...]
    repeated: int = 0


def _numbers(count: int) -> Signature:
    return Signature(tuple(Parameter(f"argument {i}", _NUMBER) for i in range(count)))


_TENSOR, _INTEGERS, _INT = _KINDS["Tensor"], _KINDS["List[int]"], _KINDS["int"]
_UNARY = ("ceil", "neg", "round", "sym_float", "sym_int", "sym_not", "trunc")
# Of ExecuTorch's own operators torch knows nothing; they compute with sizes, but for these two.
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
"""It gives its result the memory of its input."""


_known: dict[str, Signature] = {}


def signature_of(operator: str) -> Signature | None:
    """What a kernel such as "aten::add.out" takes; None where nobody has said, as for kernels of the user's library."""
    if operator.startswith(_PRIMITIVE_SPACE):
        return _PRIMITIVES.get(operator.removeprefix(_PRIMITIVE_SPACE), _numbers(3))
    if operator not in _known:
        found = _from_torch(operator)
        if found is None:  # asked again: the library that says it may be imported by then
            return None
        _known[operator] = found
    return _known[operator]


def _from_torch(operator: str) -> Signature | None:
    import torch

    space, _, rest = operator.partition("::")
    name, _, overload = rest.partition(".")
    try:
        schema = torch._C._get_schema(f"{space}::{name}", overload)
    except RuntimeError:
        return None
    parameters = [
        Parameter(a.name, _kinds(str(a.type)), a.alias_info is not None and a.alias_info.is_write)
        for a in schema.arguments
    ]
    returns = [Parameter("the result", frozenset(Kind)) for _ in schema.returns]
    if any(a.is_out for a in schema.arguments):
        return Signature(tuple(parameters), len(returns))
    return Signature((*parameters, *returns))


def _kinds(text: str) -> frozenset[Kind]:
    if optional := _OPTIONAL.fullmatch(text):
        return _kinds(optional[1]) | {Kind.NULL}
    return _KINDS.get(text, frozenset(Kind))
