"""Pairs of operators: one that hands a grid on, dictates one or has one with others, and one that reads its result.

Which operators these are is read off their own declarations, so that a new one is in the table at once.  A pair is
judged by its float model, and where that is far by a plain reference: every result of the exported program on an int8
grid of its own smallest and largest value.  What is far there as well is so by the nature of int8: a quotient near 0.

The whole table is judged as `chains` does it: one pair after the other, as the quantizer of each family makes it, on
the rows that calibrated it.  With the name of a target, pairs are judged as finished programs of it, twelve in one, on
rows that calibration has not seen.

python -m tests.compile.quantize.pairs 0 600                      pairs 0 to 599 of all, quantized for every family
python -m tests.compile.quantize.pairs 3 11781 7                  every seventh from the third on
python -m tests.compile.quantize.pairs 0 600 1 ethos-u55-128      as finished programs of a target
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as _edge_ops  # noqa: F401  (registers dim_order_ops)
from tests.compile.quantize.chains import (
    BESIDE,
    ENOUGH,
    Chain,
    Far,
    Refused,
    decibels_of,
    draw,
    judged,
    links_of,
    plain_decibels,
    results,
    says_nothing,
)
from tests.support_rows import is_in_place, overloads
from torch import Tensor, nn

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.ir.lowering import LOWERINGS, Decomposition
from micronpu.ir.op import OutputQuantization
from micronpu.ir.registry import ATEN_IMPORTS, AtenImport

AT_ONCE = 12
"""Pairs in a program."""

Pair = tuple[str, str]


def handing_on() -> list[str]:
    """An overload of each kind whose result has a grid that is not its own, or may be such by its arguments."""
    return _of_each_kind(name for name in overloads() if _hands_on(name))


def reading() -> list[str]:
    """An overload of each kind that computes with floats."""
    return _of_each_kind(overloads())


def _hands_on(overload: str) -> bool:
    for lowering in LOWERINGS[overload]:
        if isinstance(lowering, Decomposition) and lowering.decides:
            return True
        if isinstance(lowering, AtenImport) and (
            callable(lowering.quantization) or lowering.quantization.output is not OutputQuantization.OWN
        ):
            return True
    return False


def _of_each_kind(names: Iterable[str]) -> list[str]:
    """The first overload of those that become the same in the same way."""
    kinds: dict[Any, str] = {}
    for name in names:
        entry = ATEN_IMPORTS.get(name)
        decomposed = tuple(lowering.name for lowering in LOWERINGS[name] if isinstance(lowering, Decomposition))
        rule = entry.quantization if entry is not None else None
        made = entry.build if entry is not None else None
        kinds.setdefault((made, rule if callable(rule) else repr(rule), decomposed), name)
    return sorted(kinds.values())


def pairs() -> list[Pair]:
    """All of them."""
    return [(first, second) for first in handing_on() for second in reading()]


def triples(count: int, seed: int = 0) -> list[Chain]:
    """Three in a row of which the first two hand grids on, at random."""
    generator, movers, readers = random.Random(seed), handing_on(), reading()
    return [(generator.choice(movers), generator.choice(movers), generator.choice(readers)) for _ in range(count)]


def sample(count: int, seed: int = 0) -> list[Pair]:
    """Some of them, the same every time as long as the operators are."""
    return random.Random(seed).sample(pairs(), count)


class Pairs(nn.Module):
    """Pairs side by side, each with an input of its own size, so that no grid is shared by accident."""

    def __init__(self, chosen: Sequence[Pair]) -> None:
        super().__init__()
        assert not any(is_in_place(name) for pair in chosen for name in pair)
        self.links = nn.ModuleList(nn.ModuleList(links_of(pair)) for pair in chosen)
        self.eval()

    def forward(self, *given: Tensor) -> list[Tensor]:
        results = []
        for number, (first, second) in enumerate(self.links):
            size = 1 + 0.05 * number
            x, y, image, volume, positions, equal = (t * size if t.is_floating_point() else t for t in given)
            results.append(second(first(x, y, image, volume, positions, equal), y, positions, equal))
        return results


@dataclass(frozen=True)
class FarProgram:
    """A pair whose program is far from its float model.

    Attributes:
        program, plain: dB of the program and of the plain reference.
    """

    pair: Pair
    program: float
    plain: float

    @property
    def is_wrong(self) -> bool:
        """Whether int8 alone is no reason."""
        return self.program < self.plain - BESIDE

    def __str__(self) -> str:
        word = "wrong" if self.is_wrong else "far"
        return f"{word} {' -> '.join(self.pair)}: {self.program:.1f} dB, plain {self.plain:.1f}"


def far(chosen: Sequence[Pair], target: str) -> list[FarProgram]:
    """The pairs of one program that are below `ENOUGH`."""
    generator = torch.Generator().manual_seed(0)
    model = Pairs(chosen)
    calibration = [draw(generator) for _ in range(24)]
    held_out = [draw(generator) for _ in range(6)]
    program = micronpu.compile(model, calibration[0], target, calibration=calibration)
    wanted, given = results(model, held_out), results(program.run, held_out)
    plain = plain_decibels(torch.export.export(model, calibration[0]).module(), calibration, held_out, wanted)
    found = []
    for pair, exact, made, best in zip(chosen, wanted, given, plain, strict=True):
        if (own := decibels_of(exact, made)) < ENOUGH and not says_nothing(exact):
            found.append(FarProgram(pair, own, best))
    return found


def main(start: str = "0", stop: str = "", step: str = "1", target: str = "") -> int:
    """Prints the pairs that are far; 1 where int8 alone is no reason for one."""
    chosen = pairs()[int(start) : int(stop or len(pairs())) : int(step)]
    wrong = refused = 0
    found: Iterable[Any] = (judged(pair) for pair in chosen)
    if target:
        groups = (chosen[first : first + AT_ONCE] for first in range(0, len(chosen), AT_ONCE))
        found = (each for group in groups for each in _far_or_refused(group, target))
    gc.set_threshold(100_000, 50, 100)
    for each in found:
        if each is not None:
            refused += isinstance(each, Refused)
            wrong += bool(each.wrong) if isinstance(each, Far) else isinstance(each, FarProgram) and each.is_wrong
            print(each, flush=True)
    print(f"{len(chosen)} pairs of {len(pairs())}, {wrong} wrong, {refused} refused")
    return int(wrong > 0 or refused > 0)


def _far_or_refused(chosen: Sequence[Pair], target: str) -> list[FarProgram | Refused]:
    """As `far`; of a program that cannot be made or run the pairs by themselves, and what is said of one of them."""
    try:
        return [*far(chosen, target)]
    except MicroNpuError as error:
        if len(chosen) == 1:
            return [Refused(chosen[0], target, str(error))]
    half = len(chosen) // 2
    return _far_or_refused(chosen[:half], target) + _far_or_refused(chosen[half:], target)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
