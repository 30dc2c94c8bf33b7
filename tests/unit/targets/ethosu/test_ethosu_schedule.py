"""Engines over time, sets of bytes, free memory, waits: each against what can be counted by hand or in a slow way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ethosu_stream import CONSTANTS, SCRATCH, Stream

from micronpu.targets.ethosu.payload import EthosUPayload
from micronpu.targets.ethosu.registers import KERNEL_WAIT, TRANSFER, TRANSFER_WAIT
from micronpu.targets.ethosu.schedule.constants import weights_of
from micronpu.targets.ethosu.schedule.engines import Engines, EngineWork, Memories, _Port
from micronpu.targets.ethosu.schedule.prefetch import Order, missing_waits
from micronpu.targets.ethosu.schedule.ranges import Ranges, Space
from micronpu.targets.ethosu.stream import Action, actions_of, operation_offsets, with_actions, words_of

_CONV = 0x002
_FLASH = Memories("OffChipFlash", "Sram", 0.5, 8.0, 64, 32)


def commands(stream: Stream) -> bytes:
    made = stream.payload()
    assert isinstance(made, EthosUPayload)
    return made.commands


# Engines


def test_a_transfer_runs_beside_an_operation_and_a_wait_stops_the_next() -> None:
    engines = Engines("u55")
    engines.transfer(100)
    engines.kernel(40)
    engines.wait_for_transfers(0)
    engines.kernel(10)
    assert engines.transfers == [(0, 100)]
    assert engines.kernels == [(0, 40), (100, 110)]
    assert engines.end == 110


def test_the_command_processor_runs_two_operations_early_and_no_more() -> None:
    engines = Engines("u55")
    for _ in range(3):
        engines.kernel(50)
    engines.transfer(10)  # behind the third, which is taken when the first has ended
    assert engines.kernels == [(0, 50), (50, 100), (100, 150)]
    assert engines.transfers == [(50, 60)]


@pytest.mark.parametrize(("family", "begins"), [("u55", 100), ("u65", 0), ("u85", 0)])
def test_a_second_transfer_stops_what_follows_where_the_channel_holds_one(family: str, begins: int) -> None:
    engines = Engines(family)
    engines.transfer(100)
    engines.transfer(100)
    engines.kernel(10)
    assert engines.transfers == [(0, 100), (100, 200)]
    assert engines.kernels == [(begins, begins + 10)]


def test_an_operation_that_reads_flash_and_a_transfer_share_its_port() -> None:
    engines = Engines("u55")
    engines.kernel(10, stored=80)
    engines.transfer(20)
    assert engines.kernels == [(0, 80)]
    assert engines.transfers == [(0, 100)]
    engines.kernel(10, stored=30)
    assert engines.kernels[1] == (80, 130)  # from 100 on, when the port is free


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30))
def test_a_port_gives_each_cycle_once_and_the_first_that_are_free(asked: list[tuple[int, int]]) -> None:
    port, taken = _Port(), np.zeros(1200, np.bool_)
    for start, cycles in asked:
        free = np.flatnonzero(~taken[start:])[:cycles] + start
        taken[free] = True
        assert port.take(start, cycles) == (int(free[-1]) + 1 if cycles else start)


def test_what_an_operation_takes_with_its_weights_here_and_there() -> None:
    work = EngineWork(arithmetic=100, feature_maps=90, weight_bytes=160)
    assert work.near(_FLASH) == 110  # 90 and 160 bytes at 8 a cycle
    assert work.direct(_FLASH) == (100, 320)
    assert _FLASH.transfer(1000) == 2064


# Sets of bytes

_SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 45)), max_size=12)


def slowly(spans: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(region, byte) for region, begin, end in spans for byte in range(begin, end)}


@given(_SPANS, _SPANS)
def test_ranges_are_sets_of_bytes(a: list[tuple[int, int, int]], b: list[tuple[int, int, int]]) -> None:
    x, y = Ranges(a), Ranges(b)
    assert slowly(list(x)) == slowly(a)
    assert slowly(list(x | y)) == slowly(a) | slowly(b)
    assert slowly(list(x - y)) == slowly(a) - slowly(b)
    assert x.meets(y) == bool(slowly(a) & slowly(b))
    for region in range(3):
        spans = x.of(region)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


# Free memory

_ROWS = st.lists(st.tuples(_SPANS, _SPANS), min_size=1, max_size=6)


@settings(deadline=None)
@given(_ROWS, _SPANS, st.integers(1, 64), st.data())
def test_a_place_holds_nothing_that_is_needed(
    rows: list[tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]],
    outputs: list[tuple[int, int, int]],
    size: int,
    data: st.DataObject,
) -> None:
    times = [(Ranges(r), Ranges(w)) for r, w in rows]
    space = Space([r for r, _ in times], [w for _, w in times], Ranges(outputs), 1, 48, 128)
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first, len(rows) - 1))
    place = space.find(size, first, last)
    # Byte by byte and backwards: what is read, or written, or written before and read later.
    alive, taken = {b for r, b in slowly(outputs) if r == 1}, set[int]()
    for time in range(len(rows) - 1, -1, -1):
        reads, writes = ({b for r, b in slowly(x) if r == 1} for x in rows[time])
        if first <= time <= last:
            taken |= alive | reads | writes
        alive = (alive - writes) | reads
    if place is not None:
        assert place % 16 == 0 and place + size <= 128
        assert not taken & set(range(place, place + size))
        assert space.earliest(size, 0, first, last) is not None
        space.take(place, size, first, last)
        assert space.find(size, first, last) != place
        space.give(place, size, first, last)
        assert space.find(size, first, last) == place
    else:
        grains = {b // 16 for b in taken}
        free = [all(g not in grains for g in range(at, at + -(-size // 16))) for at in range(8 - -(-size // 16) + 1)]
        assert not any(free)


def test_the_place_that_is_free_the_longest_ago_is_the_earliest() -> None:
    busy, none = Ranges([(1, 0, 64)]), Ranges()
    space = Space([none, busy, none, none], [busy, none, none, none], none, 1, 64, 64)
    assert space.earliest(64, 0, 3, 3) == 2
    assert space.earliest(64, 3, 3, 3) == 3
    assert space.earliest(65, 0, 3, 3) is None


# Streams


def two_convolutions() -> Stream:
    stream = Stream().set(IFM_REGION=1, IFM_BASE0=0, WEIGHT_REGION=CONSTANTS, WEIGHT_BASE=64, WEIGHT_LENGTH=80)
    stream.set(SCALE_REGION=CONSTANTS, SCALE_BASE=32, SCALE_LENGTH=20).run("CONV")
    stream.set(DMA0_SRC_REGION=0, DMA0_DST_REGION=1, DMA0_SRC=160, DMA0_DST=4096, DMA0_LEN=96).run("DMA_START")
    stream.set(WEIGHT_REGION=SCRATCH, SCALE_REGION=SCRATCH, WEIGHT_BASE=4128, WEIGHT_LENGTH=64, SCALE_BASE=4096)
    return stream.run("DMA_WAIT").run("CONV")


def test_a_stream_is_what_its_operations_see() -> None:
    actions = actions_of(commands(two_convolutions()))
    kernels = [a for a in actions if a.is_kernel]
    assert [a.code for a in actions] == [_CONV, TRANSFER, TRANSFER_WAIT, _CONV, 0]
    assert [a.address(0x20) for a in kernels] == [64, 4128]
    assert [a.number(0x128) for a in kernels] == [0, 1]
    assert [a.address(0x23) for a in kernels] == [20, 20]  # set once
    assert actions[1].address(0x32) == 96 and not kernels[1].address(0x32)


def test_written_again_a_stream_says_what_it_said() -> None:
    old = commands(two_convolutions())
    new = with_actions(old, actions_of(old))
    assert actions_of(new) == actions_of(old)
    assert len(operation_offsets(new)) == 3
    assert len(words_of(new)) == len(words_of(old))


def test_an_operation_in_front_of_another_sees_its_own_registers() -> None:
    old = commands(two_convolutions())
    first, transfer, wait, second, stop = actions_of(old)
    new = actions_of(with_actions(old, [transfer, wait, second, first, stop]))
    assert [a.code for a in new] == [TRANSFER, TRANSFER_WAIT, _CONV, _CONV, 0]
    for found, wanted in ((new[0], transfer), (new[2], second), (new[3], first)):
        assert wanted.registers.items() <= found.registers.items()


def test_weights_are_found_wherever_the_stream_has_put_them() -> None:
    actions = actions_of(commands(two_convolutions()))
    found = weights_of(actions, "u55")
    assert found.weights[0].segments == ((32, 112),)
    assert found.weights[3].segments == ((160, 96),)
    assert [origin for _, origin in found.weights[3].origins] == [192, 160]
    assert found.weights[3].offset(192) == 32
    assert found.bringing == {1}


def test_weights_that_no_transfer_has_brought_stay_where_they_are() -> None:
    stream = Stream().set(DMA0_SRC_REGION=0, DMA0_DST_REGION=1, DMA0_SRC=0, DMA0_DST=0, DMA0_LEN=32).run("DMA_START")
    stream.set(WEIGHT_REGION=SCRATCH, SCALE_REGION=SCRATCH, WEIGHT_BASE=16, WEIGHT_LENGTH=32, SCALE_BASE=0)
    stream.set(SCALE_LENGTH=10).run("DMA_WAIT").run("CONV")  # 16 bytes of the weights are from elsewhere
    found = weights_of(actions_of(commands(stream)), "u55")
    assert not found.weights and not found.bringing


# Waits


_A, _B, _NONE = Ranges([(1, 0, 16)]), Ranges([(1, 16, 32)]), Ranges()


@pytest.mark.parametrize(
    ("actions", "accesses", "missing"),
    [
        # reads what a transfer brings
        ([Action(TRANSFER), Action(_CONV)], [(_NONE, _A), (_A, _B)], [(1, TRANSFER_WAIT, 0)]),
        ([Action(TRANSFER), Action(TRANSFER_WAIT), Action(_CONV)], [(_NONE, _A), (_A, _B)], []),
        # another transfer may still be at work
        (
            [Action(TRANSFER), Action(TRANSFER), Action(TRANSFER_WAIT, 1), Action(_CONV)],
            [(_NONE, _A), (_NONE, _B), (_A, _NONE)],
            [],
        ),
        (
            [Action(TRANSFER), Action(TRANSFER), Action(TRANSFER_WAIT, 1), Action(_CONV)],
            [(_NONE, _A), (_NONE, _B), (_B, _NONE)],
            [(2, TRANSFER_WAIT, 0)],
        ),
        # a transfer over what an operation reads, or writes
        ([Action(_CONV), Action(TRANSFER)], [(_A, _B), (_NONE, _A)], [(1, KERNEL_WAIT, 0)]),
        ([Action(_CONV), Action(TRANSFER)], [(_A, _B), (_NONE, _B)], [(1, KERNEL_WAIT, 0)]),
        ([Action(_CONV), Action(_CONV), Action(TRANSFER)], [(_A, _B), (_B, _B), (_NONE, _A)], [(2, KERNEL_WAIT, 1)]),
        ([Action(_CONV), Action(KERNEL_WAIT), Action(TRANSFER)], [(_A, _B), (_NONE, _A)], []),
        # three operations: the engine holds two, so that the first has ended
        ([Action(_CONV)] * 3 + [Action(TRANSFER)], [(_A, _B), (_B, _B), (_B, _B), (_NONE, _A)], []),
        # two transfers of the same bytes
        ([Action(TRANSFER), Action(TRANSFER)], [(_NONE, _A), (_NONE, _A)], [(1, TRANSFER_WAIT, 0)]),
    ],
)
def test_missing_waits(
    actions: list[Action], accesses: list[tuple[Ranges, Ranges]], missing: list[tuple[int, int, int]]
) -> None:
    found = missing_waits(actions, accesses, "u55")
    assert [(number, wait.code, wait.parameter) for number, wait in found] == missing


def test_the_waits_that_are_missing_are_enough() -> None:
    rng = np.random.default_rng(0)
    for family in ("u55", "u65", "u85"):
        order = Order(family)
        actions, accesses = [], []
        for _ in range(200):
            reads, writes = (Ranges([(1, int(x), int(x) + 8)]) for x in rng.integers(0, 64, 2))
            action = Action(TRANSFER if rng.random() < 0.4 else _CONV)
            for wait in order.waits_for(action.is_transfer, reads, writes):
                order.waited(wait)
                actions.append(wait)
            order.add(action.is_transfer, reads, writes)
            actions.append(action)
            accesses.append((reads, writes))
        assert not missing_waits(actions, accesses, family)
        waits = [i for i, a in enumerate(actions) if not a.is_operation]
        assert len(waits) > 20
        for left_out in waits:
            assert missing_waits([a for i, a in enumerate(actions) if i != left_out], accesses, family)
