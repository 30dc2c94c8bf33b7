"""What crosses the bus, counted by hand, and what waits for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.ethosu_stream import CONSTANTS, SCRATCH, Stream

from micronpu.targets.ethosu.accelerators import default_ini, find_accelerator, ports_of, with_entries
from micronpu.targets.ethosu.schedule.engines import Port
from micronpu.targets.ethosu.schedule.traffic import RegionTraffic, Traffic, arithmetic_of, busy, traffic_of
from micronpu.targets.ethosu.stream import actions_of


def moved(stream: Stream, family: str = "u55", port: int = 8) -> Traffic:
    (found,) = traffic_of(actions_of(stream.payload().commands), family, port)
    return found


def convolution(block: tuple[int, int, int], bricks: bool = False, depth: int = 16) -> Stream:
    """A window of 3x3 over int8 [8, 8, depth], padded by 1, to as many channels, with 100 bytes of weights."""
    stream = Stream().map("IFM", 0, (8, 8, depth), bricks=bricks).map("OFM", 2048, (8, 8, depth), bricks=bricks)
    stream.window(3, 3, pad=(1, 1, 1, 1))
    height, width, channels = (size - 1 for size in block)
    stream.set(OFM_BLK_HEIGHT_M1=height, OFM_BLK_WIDTH_M1=width, OFM_BLK_DEPTH_M1=channels)
    stream.set(WEIGHT_REGION=CONSTANTS, WEIGHT_BASE=0, WEIGHT_LENGTH=96)
    stream.set(SCALE_REGION=CONSTANTS, SCALE_BASE=96, SCALE_LENGTH=160)
    return stream


def test_one_block_reads_everything_once() -> None:
    found = moved(convolution((8, 8, 16)).run("CONV"))
    assert found.regions == {
        SCRATCH: RegionTraffic(1024, 1024, 128, 128),
        CONSTANTS: RegionTraffic(256, 0, 32, 0),
    }
    assert found.work == 8 * 8 * 16 * 9 * 16


def test_blocks_share_rows_and_columns_and_read_weights_and_channels_again() -> None:
    """Blocks of 4x4x8: of 8 rows the first four need 5 and the last four 5, so that 10 by 10 are read, twice."""
    found = moved(convolution((4, 4, 8)).run("CONV"))
    # Rows of five pixels of 16 channels: 80 bytes, ten beats. Each of the two blocks of channels reads all of them.
    assert found.regions[SCRATCH].read == 10 * 10 * 16 * 2
    assert found.regions[SCRATCH].read_beats == 10 * 2 * 10 * 2
    assert found.regions[SCRATCH].written == 8 * 8 * 16
    assert found.regions[CONSTANTS] == RegionTraffic(4 * 256, 0, 4 * 32, 0)


def test_a_depthwise_window_reads_the_channels_of_its_block_alone() -> None:
    found = moved(convolution((4, 4, 8)).run("DEPTHWISE"))
    assert found.regions[SCRATCH].read == 10 * 10 * 16
    assert found.work == 8 * 8 * 16 * 9


def test_a_beat_is_as_wide_as_the_port_and_a_piece_does_not_share_one() -> None:
    """Three channels: a row of eight pixels is 24 bytes, three beats of 8, or two of 16."""
    narrow, wide = (moved(convolution((8, 8, 3), depth=3).run("CONV"), port=port) for port in (8, 16))
    assert narrow.regions[SCRATCH] == RegionTraffic(192, 192, 24, 24)
    assert wide.regions[SCRATCH] == RegionTraffic(192, 192, 16, 16)
    # As bricks each pixel has its own 16 bytes, of which three are read.
    bricks = moved(convolution((8, 8, 3), bricks=True, depth=3).run("CONV"))
    assert bricks.regions[SCRATCH] == RegionTraffic(192, 192, 64, 64)


def test_an_operand_that_is_spread_is_read_once_a_block() -> None:
    stream = Stream().map("IFM", 0, (4, 4, 16)).map("IFM2", 512, (1, 1, 16)).map("OFM", 1024, (4, 4, 16))
    stream.set(OFM_BLK_HEIGHT_M1=1, OFM_BLK_WIDTH_M1=3, OFM_BLK_DEPTH_M1=15, IFM2_BROADCAST=3, IFM_UPSCALE=0)
    assert moved(stream.run("ELEMENTWISE", 1)).regions == {SCRATCH: RegionTraffic(256 + 2 * 16, 256, 32 + 2 * 2, 32)}
    stream.set(IFM2_BROADCAST=0x80)  # a scalar of a register
    found = traffic_of(actions_of(stream.run("ELEMENTWISE", 1).payload().commands), "u55", 8)
    assert found[-1].regions == {SCRATCH: RegionTraffic(256, 256, 32, 32)}


def test_a_table_goes_into_the_npu_and_other_transfers_are_read_and_written() -> None:
    table = moved(Stream().transfer((CONSTANTS, 0), (0x100, 0), 256))
    assert table.regions == {CONSTANTS: RegionTraffic(256, 0, 32, 0)}
    brought = moved(Stream().transfer((CONSTANTS, 0), (SCRATCH, 0), 100))
    assert brought.regions == {CONSTANTS: RegionTraffic(100, 0, 13, 0), SCRATCH: RegionTraffic(0, 100, 0, 13)}


PORTS = {0: Port("AXI1", "Flash", 1.0, 8), 1: Port("AXI0", "Sram", 8.0, 8)}


@pytest.mark.parametrize(
    ("arithmetic", "ports", "cycles"),
    [
        (5000.0, PORTS, 5000),
        (10.0, PORTS, 256),  # of flash
        (10.0, {0: PORTS[0], 1: Port("AXI0", "Sram", 0.5, 8)}, 4096),
        (10.0, {0: PORTS[1], 1: PORTS[1]}, 288),  # one memory for all of it
    ],
)
def test_the_slowest_of_arithmetic_and_memories_decides(arithmetic: float, ports: dict[int, Port], cycles: int) -> None:
    actions = actions_of(convolution((8, 8, 16)).run("CONV").payload().commands)
    found, _ = busy(actions, traffic_of(actions, "u55", 8), [arithmetic], ports, "u55")
    assert found.cycles == cycles and [end for _, end in found.spans] == [cycles]


def test_the_operations_of_a_layer_share_its_arithmetic() -> None:
    made = [Traffic(work=30), Traffic(work=10), Traffic(), Traffic(work=7)]
    assert arithmetic_of(made, [0, 0, 0, -1], [80]) == [60.0, 20.0, 0.0, 0.0]


def test_regions_lie_behind_the_ports_of_the_memory_mode() -> None:
    u65 = find_accelerator("ethos-u65-256")
    ini = with_entries(default_ini(), "Ethos_U65_High_End", ("Dram_clock_scale=0.375",))
    ports = ports_of(ini, "Ethos_U65_High_End", "Dedicated_Sram_384KB", u65)
    assert (ports[0], ports[2]) == (Port("AXI1", "Dram", 6.0, 16), Port("AXI0", "Sram", 16.0, 16))
    assert ports[1] == ports[3] == ports[4] == ports[0]
    only = ports_of(default_ini(), "Ethos_U65_High_End", "Sram_Only", u65)
    assert {port.name for port in only.values()} == {"AXI0"}


def test_random_blocks_cover_at_least_the_map() -> None:
    """Whatever the blocks are, all is read, and a whole block of everything reads it once."""
    for block in itertools.product((1, 3, 8), (2, 5, 8), (8, 16)):
        found = moved(convolution(block).run("CONV"))
        least = 1024 * int(np.ceil(16 / block[2]))
        assert found.regions[SCRATCH].read >= least
        assert (found.regions[SCRATCH].read == least) == (block[:2] == (8, 8))
