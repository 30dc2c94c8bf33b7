"""Loops in a plan: backward jumps that ExecuTorch's compiler writes for a scan, and their number of iterations.

    n = sym_size(x, 0); i = 0
    first: ...; i = i + 1; done = i == n; jump to first unless done; i = i - n

Only loops of this form are known to terminate, and their number of iterations is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from micronpu.base.flatbuffer import Table
from micronpu.upstream.pte import Instruction, InstructionArguments, JumpFalseCall, KernelCall, MoveCall

_SIZE, _ADD, _EQUAL, _SUBTRACT = (
    "aten::sym_size.int",
    "executorch_prim::add.Scalar",
    "executorch_prim::eq.Scalar",
    "executorch_prim::sub.Scalar",
)
_BY_INDEX = {"aten::select_copy.int_out": 2, "executorch_prim::et_copy_index.tensor": 2}
"""Operators that read the counter as an index, and the position of that argument."""


@dataclass(frozen=True)
class ChainLoop:
    """A loop of a chain.

    Attributes:
        first, last: repeated instructions; the last one jumps back.
        tensor, axis: values: the sequence, and the axis whose size is the number of iterations.
    """

    first: int
    last: int
    tensor: int
    axis: int


def loops_of(
    instructions: Sequence[Table], operators: Sequence[str], number: Callable[[int], object]
) -> list[ChainLoop]:
    """Return the loops of a chain; any other backward jump may never end.

    Args:
        number: returns the content of a value that is a number; None for others.
    """
    calls: list[tuple[str, tuple[int, ...]]] = []
    for instruction in instructions:
        body = instruction.table(Instruction.INSTR_ARGS)
        kind = instruction.integer(Instruction.INSTR_ARGS_TYPE, "<B")
        if body is None or kind not in (InstructionArguments.KERNEL_CALL, InstructionArguments.MOVE_CALL):
            calls.append(("", ()))
        elif kind == InstructionArguments.MOVE_CALL:
            calls.append(("move", (body.integer(MoveCall.MOVE_FROM), body.integer(MoveCall.MOVE_TO))))
        else:
            index = body.integer(KernelCall.OP_INDEX)
            name = operators[index] if 0 <= index < len(operators) else ""
            calls.append((name, body.vector(KernelCall.ARGS).integers()))
    found = []
    for place, instruction in enumerate(instructions):
        kind, body = instruction.integer(Instruction.INSTR_ARGS_TYPE, "<B"), instruction.table(Instruction.INSTR_ARGS)
        if kind != InstructionArguments.JUMP_FALSE_CALL or body is None:
            continue
        first = body.integer(JumpFalseCall.DESTINATION_INSTRUCTION)
        if not 0 <= first <= place - 2:
            continue
        loop = _loop(calls, place, first, body.integer(JumpFalseCall.COND_VALUE_INDEX), number)
        if loop is not None:
            found.append(loop)
    return found


def _counting(
    calls: Sequence[tuple[str, tuple[int, ...]]], place: int, condition: int, number: Callable[[int], object]
) -> tuple[int, int] | None:
    """Match `i = i + 1; done = i == n` before a jump and `i = i - n` after it; return (i, n), or None."""
    (added, add), (compared, equal) = calls[place - 2], calls[place - 1]
    if added != _ADD or compared != _EQUAL or len(add) != 3 or len(equal) != 3 or place + 1 >= len(calls):
        return None
    counter, size = equal[:2]
    if equal[2] != condition or add[0] != counter or add[2] != counter or number(add[1]) != 1 or number(counter) != 0:
        return None
    return (counter, size) if calls[place + 1] == (_SUBTRACT, (counter, size, counter)) else None


def _loop(
    calls: Sequence[tuple[str, tuple[int, ...]]],
    place: int,
    first: int,
    condition: int,
    number: Callable[[int], object],
) -> ChainLoop | None:
    counting = _counting(calls, place, condition, number)
    if counting is None:
        return None
    counter, size = counting
    sizes = [args for i, (name, args) in enumerate(calls) if name == _SIZE and args[-1:] == (size,) and i < first]
    if len(sizes) != 1 or len(sizes[0]) != 3:
        return None
    own = {place - 2, place - 1, place + 1}
    rest = [call for i, call in enumerate(calls) if i not in own and call != (_SIZE, sizes[0])]
    if any({counter, size, condition} & set(_read(name, args, counter)) for name, args in rest):
        return None
    return ChainLoop(first, place, sizes[0][0], sizes[0][1])


def _read(name: str, args: tuple[int, ...], counter: int) -> list[int]:
    """Return the values that a call reads, except the counter used as a row index."""
    return [a for n, a in enumerate(args) if not (a == counter and _BY_INDEX.get(name) == n)]
