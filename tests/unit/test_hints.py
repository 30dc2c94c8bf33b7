"""Hints that are expressions do what they say, and messages count as one does."""

from __future__ import annotations

import ast
import itertools
import math
import re
from pathlib import Path

import pytest
import torch

import micronpu
from micronpu.base.texts import inside
from micronpu.deploy.build import _tool_error
from micronpu.runtime.arguments import _reshaped

SHAPES = [
    ((1, 3, 64, 48), (0, 2, 3, 1)),
    ((1, 16, 8), (0, 2, 1)),
    ((2, 5, 7), (2, 0, 1)),
    ((1, 4, 6, 5, 3), (0, 2, 3, 4, 1)),
]


@pytest.mark.parametrize("wanted, order", SHAPES)
def test_a_permuted_tensor_is_permuted_back(wanted: tuple[int, ...], order: tuple[int, ...]) -> None:
    right = torch.randn(wanted)
    tensor = right.permute(order).contiguous()
    for given in (tensor, tensor.squeeze(0)) if wanted[0] == 1 else (tensor,):
        hint = _reshaped(tuple(given.shape), wanted)
        assert torch.equal(eval(hint, {"tensor": given}), right)


def test_only_ones_and_flattened_tensors_are_reshaped() -> None:
    for given, wanted in (((8, 4), (1, 8, 4)), ((1, 1, 8), (1, 8)), ((32,), (1, 8, 4))):
        assert _reshaped(given, wanted) == f"tensor.reshape{wanted}"
    assert _reshaped((1, 3), (1, 4)) == ""
    for given in itertools.permutations((1, 2, 3)):
        assert eval(_reshaped(given, (3, 2, 1)), {"tensor": torch.zeros(given)}).shape == (3, 2, 1)


@pytest.mark.parametrize("wanted", [(1, 3, 64, 48), (2, 8, 5), (1, 4, 6, 5, 3)])
def test_channels_last_are_moved_and_never_reshaped(wanted: tuple[int, ...]) -> None:
    right = torch.randn(wanted)
    tensor = right.movedim(1, -1)
    assert _reshaped(tuple(tensor.shape), wanted) == "tensor.movedim(-1, 1)"
    assert torch.equal(tensor.movedim(-1, 1), right)
    assert _reshaped((wanted[0], math.prod(wanted[2:]), wanted[1]), wanted) == (
        "" if len(wanted) > 3 else "tensor.movedim(-1, 1)"
    )


BUILDS = [
    (
        ("/usr/ld: cannot open linker script x", "collect2: error: ld returned 1 exit status"),
        "cannot open",
    ),
    (
        (
            "/usr/ld: a.elf section `.text' will not fit",
            "/usr/ld: region `FLASH' overflowed by 9 bytes",
        ),
        "region",
    ),
    (("/usr/ld: a.o: in function `f':", "/usr/ld: a.o: warning: x", "/usr/ld: a.o: bad thing"), "a.o: bad thing"),
    (("collect2: fatal error: cannot find 'ld'",), "collect2: fatal"),
    (("a.c:1:2: error: no", "collect2: error: ld returned 1 exit status"), "a.c:1:2: error: no"),
]


@pytest.mark.parametrize("lines, said", BUILDS)
def test_a_build_quotes_the_linker_and_not_its_caller(lines: tuple[str, ...], said: str) -> None:
    assert _tool_error(lines).startswith(said)


COUNTED = re.compile(r" (inputs|outputs|methods)\b")


def test_messages_do_not_say_one_inputs() -> None:
    """A count before a plural is `plural(count, noun)`, unless it is the second of two, as in "1 of 3 inputs"."""
    found = []
    for path in Path(micronpu.__file__).parent.rglob("*.py"):
        for text in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.JoinedStr)):
            for before, count, after in zip(["", *map(said, text.values)], text.values, text.values[1:], strict=False):
                if (
                    isinstance(count, ast.FormattedValue)
                    and COUNTED.match(said(after))
                    and not before.endswith(("of ", "most "))
                ):
                    found.append(f"{path.name}:{text.lineno}{said(after)}")
    assert not found


def said(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else ""


def test_an_unnamed_program_is_named_within_a_sentence() -> None:
    assert (inside("The program"), inside("net.pte")) == ("the program", "net.pte")
