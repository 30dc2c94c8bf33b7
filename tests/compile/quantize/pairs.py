"""Pairs of operators: one that hands a grid on, dictates one or has one with others, and one that reads its result.

Which operators these are is read off their own declarations, so that a new one is in the table at once.  A pair is
judged by its float model, and where that is far by a plain reference: every result of the exported program on an int8
grid of its own smallest and largest value.  What is far there as well is so by the nature of int8: a quotient near 0.

python -m tests.compile.quantize.pairs ethos-u55-128 0 600      pairs 0 to 599 of all, on a target
python -m tests.compile.quantize.pairs cortex-m55 3 11781 7     every seventh from the third on
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as _edge_ops  # noqa: F401  (registers dim_order_ops)
from tests.compile.nearness import sqnr_of
from tests.support_rows import Inputs, Row, is_in_place, overloads
from torch import Tensor, nn
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.ir.op import OutputQuantization
from micronpu.ir.registry import ATEN_IMPORTS, AtenImport
from micronpu.ir.way import WAYS, Composition

ENOUGH = 20.0
"""dB from which a pair is near enough."""
BESIDE = 3.0
"""dB by which a pair may be below the plain reference where both are far."""
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
    for way in WAYS[overload]:
        if isinstance(way, Composition) and way.decides:
            return True
        if isinstance(way, AtenImport) and (
            callable(way.quantization) or way.quantization.output is not OutputQuantization.OWN
        ):
            return True
    return False


def _of_each_kind(names: Iterable[str]) -> list[str]:
    """The first overload of those that become the same in the same way."""
    kinds: dict[Any, str] = {}
    for name in names:
        entry = ATEN_IMPORTS.get(name)
        composed = tuple(way.name for way in WAYS[name] if isinstance(way, Composition))
        rule = entry.quantization if entry is not None else None
        made = entry.build if entry is not None else None
        kinds.setdefault((made, rule if callable(rule) else repr(rule), composed), name)
    return sorted(kinds.values())


def pairs() -> list[Pair]:
    """All of them."""
    return [(first, second) for first in handing_on() for second in reading()]


def sample(count: int, seed: int = 0) -> list[Pair]:
    """Some of them, the same every time as long as the operators are."""
    return random.Random(seed).sample(pairs(), count)


class Pairs(nn.Module):
    """Pairs side by side, each with an input of its own size, so that no grid is shared by accident."""

    def __init__(self, chosen: Sequence[Pair]) -> None:
        super().__init__()
        assert not any(is_in_place(name) for pair in chosen for name in pair)
        self.rows = nn.ModuleList(nn.ModuleList([Row(first), Row(second)]) for first, second in chosen)
        self.eval()

    def forward(self, x: Tensor, y: Tensor, image: Tensor, volume: Tensor, positions: Tensor) -> list[Tensor]:
        results = []
        for number, (first, second) in enumerate(self.rows):
            size = 1 + 0.05 * number
            made = _first(first(_inputs(x * size, y * size, image * size, volume * size, positions)))
            flat = made.float().reshape(-1)
            flat = flat[:64] if len(flat) >= 64 else flat.repeat(-(-64 // len(flat)))[:64]
            x2, y2 = flat.reshape(1, 8, 8), y * size
            image2 = x2[:, None].expand(1, 8, 8, 8) * 1.0
            volume2 = flat[:36].reshape(1, 1, 1, 6, 6).expand(1, 2, 4, 6, 6) * 1.0
            results.append(_first(second(_inputs(x2, y2, image2, volume2, positions))).float())
        return results


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else next(r for r in result if isinstance(r, Tensor))


def _inputs(x: Tensor, y: Tensor, image: Tensor, volume: Tensor, positions: Tensor) -> Inputs:
    return Inputs(x, y, x[0], y[0], image, volume, positions, x.abs() + 0.5, x.abs() + 1.5, x.clamp(-0.9, 0.9))


def _draw(generator: torch.Generator) -> tuple[Tensor, ...]:
    """Values beside whole and half numbers, so that rounding moves none to the other side of what compares them."""
    shapes = ((1, 8, 8), (1, 8, 8), (1, 8, 8, 8), (1, 2, 4, 6, 6))
    values = [(torch.randn(s, generator=generator) * 3).round() / 3 + 0.1 for s in shapes]
    return (*values, torch.randint(0, 5, (3, 2), generator=generator))


class _Plain(Interpreter):
    """Runs an exported program; once ranges are known, with each float result rounded to 256 steps of its own."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.ranges: dict[Node, tuple[float, float]] = {}
        self.rounds = False

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op not in ("placeholder", "call_function") or not isinstance(result, Tensor):
            return result
        if result.dtype is not torch.float32 or not result.numel():
            return result
        if not self.rounds:
            finite = result.nan_to_num(posinf=0.0, neginf=0.0)
            low, high = self.ranges.get(n, (0.0, 0.0))
            self.ranges[n] = (min(low, float(finite.min())), max(high, float(finite.max())))
            return result
        low, high = self.ranges[n]
        step = max((high - low) / 255, 2.0**-16)
        return (result / step).round().clamp(round(low / step), round(high / step)) * step


@dataclass(frozen=True)
class Far:
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


def far(chosen: Sequence[Pair], target: str) -> list[Far]:
    """The pairs of one program that are below `ENOUGH`."""
    generator = torch.Generator().manual_seed(0)
    model = Pairs(chosen)
    calibration = [_draw(generator) for _ in range(8)]
    held_out = [_draw(generator) for _ in range(6)]
    program = micronpu.compile(model, calibration[0], target, calibration=calibration)
    plain = _Plain(torch.export.export(model, calibration[0]).module())
    with torch.no_grad():
        for row in calibration:
            plain.run(*row)
        plain.rounds = True
        rows = [tuple(map(tree_leaves, (model(*row), program.run(*row), plain.run(*row)))) for row in held_out]
    found = []
    for number, pair in enumerate(chosen):
        wanted, given, rounded = (torch.cat([row[k][number].flatten() for row in rows]) for k in range(3))
        finite = wanted.isfinite() & rounded.isfinite()
        if not bool(wanted[finite].abs().max() > 1e-3) or bool((wanted[finite] == wanted[finite][0]).all()):
            continue  # nothing, or the same everywhere
        own = sqnr_of(wanted[finite], given[finite])
        if own < ENOUGH:
            found.append(Far(pair, own, sqnr_of(wanted[finite], rounded[finite])))
    return found


def main(target: str, start: str, stop: str, step: str = "1") -> int:
    """Prints the pairs that are far; 1 where int8 alone is no reason for one."""
    chosen = pairs()[int(start) : int(stop) : int(step)]
    wrong = refused = 0
    for first in range(0, len(chosen), AT_ONCE):
        for found in _far_or_refused(chosen[first : first + AT_ONCE], target):
            refused += isinstance(found, str)
            wrong += isinstance(found, Far) and found.is_wrong
            print(found, flush=True)
    print(f"{len(chosen)} pairs of {len(pairs())}, {wrong} wrong, {refused} refused")
    return int(wrong > 0 or refused > 0)


def _far_or_refused(chosen: Sequence[Pair], target: str) -> list[Far | str]:
    """As `far`; of a program that cannot be made or run the pairs by themselves, and what is said of one of them."""
    try:
        return [*far(chosen, target)]
    except MicroNpuError as error:
        if len(chosen) == 1:
            return [f"refused {' -> '.join(chosen[0])}: {error}"]
    half = len(chosen) // 2
    return _far_or_refused(chosen[:half], target) + _far_or_refused(chosen[half:], target)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
