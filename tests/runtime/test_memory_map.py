"""Memory over time, against the definition: a byte is alive from its write to its last read."""

from __future__ import annotations

import random

import pytest

from micronpu.targets.ethosu.host.disassembly import GRAIN, Use, memory_map, sources
from micronpu.targets.ethosu.host.simulator import Bytes


def alive(uses: list[Use], outputs: list[Bytes], step: int, grain: int) -> bool:
    """Whether a grain of region 1 holds during a step what is read then or later, or is written then."""

    def touches(spans: tuple[Bytes, ...] | list[Bytes]) -> bool:
        return any(
            s.region == 1 and s.address < (grain + 1) * GRAIN and s.address + s.size > grain * GRAIN for s in spans
        )

    if touches(uses[step].writes):
        return True
    for later in uses[step:]:
        if touches(later.reads):
            return True
        if touches(later.writes):
            return False
    return touches(outputs)


@pytest.mark.parametrize("seed", range(20))
def test_live_bytes_are_those_of_the_definition(seed: int) -> None:
    dice = random.Random(seed)

    def span() -> Bytes:
        return Bytes(dice.choice((0, 1, 1, 1)), dice.randrange(0, 30 * GRAIN), dice.randrange(1, 5 * GRAIN))

    uses = [Use((span(), span()), (span(),)) for _ in range(12)]
    outputs = [span()]
    found = memory_map(uses, 1, outputs, columns=1000)
    grains = -(-found.size // GRAIN)
    assert all(s.address + s.size <= found.size for u in uses for s in (*u.reads, *u.writes) if s.region == 1)
    for step in range(len(uses)):
        wanted = [alive(uses, outputs, step, g) for g in range(grains)]
        assert found.live[step] == sum(wanted) * GRAIN
        assert [c != "." for c in found.picture[step]] == wanted
    assert found.peak == max(found.live) == found.live[found.busiest]


def test_a_picture_shows_who_reads_and_writes() -> None:
    uses = [
        Use((Bytes(1, 0, 32),), (Bytes(1, 64, 32),)),
        Use((Bytes(1, 64, 32),), (Bytes(1, 80, 32),)),
        Use((Bytes(0, 0, 99),), ()),
    ]
    found = memory_map(uses, 1, [Bytes(1, 96, 16)])
    assert found.picture == ("rr..ww.", "....rxw", "......#")
    assert (found.size, found.live, found.busiest) == (112, (64, 48, 16), 0)
    assert memory_map(uses, 2, []).peak == 0


@pytest.mark.parametrize("seed", range(20))
def test_sources_are_those_of_the_definition(seed: int) -> None:
    """Byte by byte: whoever wrote it last; spans touch, overlap and are empty."""
    dice = random.Random(seed)

    def spans() -> tuple[Bytes, ...]:
        return tuple(
            Bytes(dice.choice((1, 1, 2)), dice.randrange(40), dice.randrange(9)) for _ in range(dice.randrange(4))
        )

    uses = [Use(spans(), spans()) for _ in range(20)]
    inputs, outputs = spans(), spans()
    writer: dict[tuple[int, int], int] = {}

    def places(span: Bytes) -> list[tuple[int, int]]:
        return [(span.region, span.address + i) for i in range(span.size)]

    for number, own in enumerate(inputs):
        writer |= dict.fromkeys(places(own), -1 - number)
    wanted = []
    for number, use in enumerate(uses):
        wanted.append(tuple(sorted({writer[p] for span in use.reads for p in places(span) if p in writer})))
        writer |= {p: number for span in use.writes for p in places(span)}
    wanted += [tuple(sorted({writer[p] for p in places(span) if p in writer})) for span in outputs]
    assert sources(uses, inputs, outputs) == wanted


def test_sources_of_rows_are_found_in_time_that_grows_with_their_number() -> None:
    """Rows of one operation become one part; 20,000 took minutes where each was compared with all before."""
    rows = [Bytes(1, 64 * i, 64) for i in range(20_000)]
    found = sources([Use((), tuple(rows)), Use(tuple(rows), tuple(reversed(rows)))], [], rows[:2])
    assert found == [(), (0,), (1,), (1,)]
