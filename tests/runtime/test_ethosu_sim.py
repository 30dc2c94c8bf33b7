"""The simulator of Ethos-U on streams that are written by hand: what it computes, and what it refuses."""

from __future__ import annotations

import ctypes
import math
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ethosu import mlw_codec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ethosu_stream import CONSTANTS, FAST, SCRATCH, TABLES_OF_128, Stream, copy

from micronpu.base.errors import ModelError
from micronpu.host.build import find_compiler, source_directory
from micronpu.targets.ethosu.host.simulator import (
    EthosUSimulator,
    NotModelledError,
    SimulatedOperation,
    SimulationError,
    TooEarlyError,
    load_simulator,
)
from micronpu.targets.ethosu.payload import EthosUPayload

IN, OUT = (0, (1, 4, 16), 1), (64, (1, 4, 16), 1)
RNG = np.random.default_rng(0)
X = RNG.integers(-128, 128, (1, 4, 16)).astype(np.int8)


def simulator(target: str = "ethos-u55-128") -> EthosUSimulator:
    return EthosUSimulator(target)


def ran(stream: Stream, x: np.ndarray = X, out: tuple[int, tuple[int, ...], int] = OUT, **more: object) -> np.ndarray:
    payload = stream.payload(inputs=[(0, x.shape, x.itemsize)], outputs=[out], **more)
    return simulator().run(payload, [x])[0]


def test_copy() -> None:
    assert (ran(copy()) == X).all()


def test_operations_are_watched() -> None:
    seen: list[SimulatedOperation] = []
    payload = copy().payload(inputs=[IN], outputs=[OUT])
    simulator().run(payload, [X], watch=seen.append)
    (operation,) = seen
    assert (operation.name, operation.shape, operation.address, operation.index) == ("max pool", (1, 4, 16), 64, 0)
    assert operation.value is not None and (operation.value == X).all()


def test_a_watcher_may_raise() -> None:
    def refuse(_: SimulatedOperation) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulator().run(copy().payload(inputs=[IN], outputs=[OUT]), [X], watch=refuse)


def raw(*words: int) -> Callable[[], Stream]:
    """A copy, and in front of it words as they are."""

    def made() -> Stream:
        stream = copy()
        stream.words[:0] = words
        return stream

    return made


def waiting(between: Callable[[Stream], Stream]) -> Stream:
    """A transfer to where the copy then reads, and something between."""
    stream = Stream().transfer((SCRATCH, 0), (SCRATCH, 128), 64)
    return joined(between(stream), copy(128, 64))


def joined(*streams: Stream) -> Stream:
    result = Stream()
    for stream in streams:
        result.words += stream.words
    return result


def reversed_copy() -> Stream:
    return copy().set(IFM_STRIDE_Y=-64, IFM_HEIGHT0_M1=1, OFM_HEIGHT_M1=1).run("POOL", 0)


REFUSED: list[tuple[str, Callable[[], Stream], str]] = [
    ("outside", lambda: copy(destination=4096 - 16), "needs bytes 0xff0 to 0x1030 of region 1, which has 4096 bytes"),
    (
        "before",
        lambda: copy().set(IFM_STRIDE_Y=-64, IFM_HEIGHT0_M1=1, OFM_HEIGHT_M1=1).run("POOL", 0),
        "begins before its region",
    ),
    ("unwritten", lambda: copy(source=16), "but nobody has written byte 0x40"),
    ("constant", lambda: copy().set(OFM_REGION=CONSTANTS).run("POOL", 0), "which holds constants"),
    ("no region", lambda: copy().set(IFM_REGION=5).run("POOL", 0), "of region 5, which has 0 bytes"),
    ("never set", lambda: Stream().run("POOL", 0), "NPU_SET_OFM_PRECISION was never set"),
    ("unknown register", raw(0x1FE), "there is no command 0x1fe on this NPU"),
    ("unknown value", raw(0x40F0, 0), "there is no command 0x40f0"),
    ("unknown operation", raw(0x00F), "there is no command 0xf "),
    ("reserved bits", raw(0x0800), "there is no command 0x800"),
    ("of u65", raw(0x123), "there is no command 0x123"),
    ("no wait for a transfer", lambda: waiting(lambda s: s), "is still writing: a wait is missing"),
    ("alignment", lambda: Stream().transfer((SCRATCH, 4), (SCRATCH, 64), 16), "multiples of 16"),
    ("clamp", lambda: copy().clamp(5, 4).run("POOL", 0), "is greater than NPU_SET_ACTIVATION_MAX"),
    ("no table", lambda: copy().clamp(-128, 127, 16).run("POOL", 0), "of the table memory, but nobody has written"),
    ("padding", lambda: copy().window(1, 2, pad=(0, 3, 0, 3)).run("POOL", 0), "more padding than the kernel reaches"),
]


@pytest.mark.parametrize(("stream", "sentence"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(stream: Callable[[], Stream], sentence: str) -> None:
    with pytest.raises(SimulationError) as error:
        ran(stream(), constants=bytes(256))
    assert sentence in error.value.what
    assert error.value.what.startswith("Command ") and error.value.offset is not None


def test_a_wait_is_enough() -> None:
    assert (ran(waiting(lambda s: s.run("DMA_WAIT"))) == X).all()


def test_a_transfer_waits_for_the_operation() -> None:
    def late(*waits: str) -> Stream:
        stream = copy()
        for wait in waits:
            stream.run(wait)
        return stream.transfer((SCRATCH, 64), (SCRATCH, 128), 64)

    out = (128, (1, 4, 16), 1)
    assert (ran(late("KERNEL_WAIT"), out=out) == X).all()
    with pytest.raises(SimulationError, match="which the kernel of operation 0 is still writing"):
        ran(late(), out=out)
    with pytest.raises(SimulationError, match="which the kernel of operation 0 is still writing"):
        ran(late("DMA_WAIT"), out=out)


@pytest.mark.parametrize(
    ("blockdep", "source", "refused"),
    [
        (0, 64, False),  # one after the other
        (1, 64, False),  # the first half, while the second half is still being written
        (2, 64, True),  # the second half as well
        (3, 64, True),
        (3, 0, False),  # what nobody writes
        (1, 96, True),  # the half that is written last
    ],
)
def test_operations_begin_early_as_far_as_blocks_allow(blockdep: int, source: int, refused: bool) -> None:
    """The blocks of `copy` are two pixels of 16 channels, of four pixels."""
    shape = (1, 4 if source < 96 else 2, 16)
    stream = joined(copy(), copy(source, 192, shape).set(BLOCKDEP=blockdep))
    del stream.words[len(copy().words) * 2 - 1]  # the operation stands before its BLOCKDEP
    stream.run("POOL", 0)
    payload = stream.payload(inputs=[IN], outputs=[(192, shape, 1)])
    if refused:
        with pytest.raises(TooEarlyError, match=f"NPU_SET_BLOCKDEP = {blockdep} lets job"):
            simulator().run(payload, [X])
    else:
        simulator().run(payload, [X])


def test_no_stop() -> None:
    with pytest.raises(SimulationError, match="ends without NPU_OP_STOP"):
        simulator().run(copy().payload(inputs=[IN], outputs=[OUT], stop=False), [X])


def test_value_missing_at_the_end() -> None:
    stream = Stream()
    stream.words.append(0x4000)
    with pytest.raises(SimulationError, match="ends before the value of this command"):
        simulator().run(stream.payload(stop=False), [])


def test_other_accelerator() -> None:
    with pytest.raises(SimulationError, match="compiled for Ethos-U55 with 256 MACs"):
        simulator().run(copy().payload(inputs=[IN], outputs=[OUT], config=8), [X])


@pytest.mark.parametrize("cut", [0, 3, 4, 16, 32, 60])
def test_cut_driver_actions(cut: int) -> None:
    payload = copy().payload(inputs=[IN], outputs=[OUT])
    short = EthosUPayload(payload.commands[:cut], b"", payload.scratch_size, payload.inputs, payload.outputs)
    with pytest.raises(SimulationError, match="driver actions"):
        simulator().run(short, [X])


def test_output_not_written() -> None:
    with pytest.raises(SimulationError, match=r"has not computed output 0: it has not written byte 64 of its 80"):
        simulator().run(copy().payload(inputs=[IN], outputs=[(64, (1, 5, 16), 1)]), [X])


def test_inputs_that_do_not_fit() -> None:
    payload = copy().payload(inputs=[IN], outputs=[OUT])
    with pytest.raises(ModelError, match="1 input, but 0"):
        simulator().run(payload, [])
    with pytest.raises(ModelError, match="Input 0 has 4 elements"):
        simulator().run(payload, [X[0, :, 0]])
    with pytest.raises(ModelError, match="Input 0 has 64 elements of 2 bytes"):
        simulator().run(payload, [X.astype(np.int16)])


def test_not_modelled_names_the_register() -> None:
    with pytest.raises(NotModelledError, match="NPU_SET_IFM_UPSCALE = 0x3"):
        ran(copy().set(IFM_UPSCALE=3).run("POOL", 0))


def test_work_limit() -> None:
    limited = EthosUSimulator("ethos-u55-128", work_limit=100)
    with pytest.raises(NotModelledError, match="more than the 100 multiplications"):
        limited.run(copy().payload(inputs=[IN], outputs=[OUT]), [X])


def test_cop2() -> None:
    stream = copy()
    words = [*stream.words, 0xFFFF0000]
    metadata = [0x1807, 0x10010000, 1, 0, 0]
    padding = [0xFFFFFFFF]
    body = [32 + 4 * len(padding), 0x4D554556, 1, 20, *metadata, *padding, *words]
    head = [0x32504F43, 1, 8 + 4 * len(body), 0, 1, 4 * len(body)]
    payload = stream.payload(inputs=[IN], outputs=[OUT])
    commands = struct.pack(f"<{len(head) + len(body)}I", *head, *body)
    same = EthosUPayload(commands, b"", payload.scratch_size, payload.inputs, payload.outputs)
    assert (simulator().run(same, [X])[0] == X).all()


def test_transfer_in_planes() -> None:
    """Two planes of two rows of 16 bytes, spread: only Ethos-U65 can."""
    stream = Stream().set(
        DMA0_SRC_REGION=SCRATCH, DMA0_SRC=0, DMA0_DST_REGION=SCRATCH | 2 << 9, DMA0_DST=64, DMA0_LEN=16,
        DMA0_SIZE0=2, DMA0_SIZE1=2, DMA0_SKIP0=8, DMA0_SKIP1=32,
    )  # fmt: skip
    stream.run("DMA_START").run("DMA_WAIT").transfer((SCRATCH, 0), (SCRATCH, 80), 8).run("DMA_WAIT")
    stream.transfer((SCRATCH, 0), (SCRATCH, 104), 24).run("DMA_WAIT").transfer((SCRATCH, 0), (SCRATCH, 144), 8)
    payload = stream.payload(inputs=[IN], outputs=[(64, (1, 1, 104), 1)], config=0x10003008)
    (got,) = EthosUSimulator("ethos-u65-256").run(payload, [X])
    flat, x = got.reshape(-1), X.reshape(-1)
    for plane, row in ((0, 0), (0, 1), (1, 0), (1, 1)):
        at, begin = plane * 64 + row * 24, plane * 32 + row * 16
        assert (flat[at : at + 16] == x[begin : begin + 16]).all()


def test_tables_are_forgotten_where_accumulators_take_their_place() -> None:
    """On U55-32 and U55-64 an operation without table destroys the tables; U55-128 keeps them apart."""
    table = bytes(range(128, 256)) + bytes(range(128))  # maps every int8 to itself

    def stream(tables: int, config: int) -> EthosUPayload:
        loaded = Stream().transfer((CONSTANTS, 0), (0x103, tables), 256).run("DMA_WAIT")
        looked_up = copy(64, 128).clamp(-128, 127, 16)
        looked_up.words.remove(0x00000005)  # the pool, that the clamp stands behind
        looked_up.run("POOL", 0)
        return joined(loaded, copy(), looked_up).payload(
            inputs=[IN], outputs=[(128, (1, 4, 16), 1)], constants=table, config=config
        )

    (got,) = simulator().run(stream(TABLES_OF_128, 0x1807), [X])
    assert (got == X).all()
    with pytest.raises(SimulationError, match="of the table memory, but nobody has written"):
        simulator("ethos-u55-64").run(stream(14 * 1024, 0x1006), [X])


@pytest.mark.parametrize("zero", [0, -7])
def test_padded_average_divides_by_what_is_inside(zero: int) -> None:
    stream = Stream().map("IFM", 0, (5, 6, 3), zero=zero).map("OFM", 256, (5, 6, 3), zero=zero, bits=2 << 14 | 1 << 8)
    stream.window(3, 3, pad=(1, 1, 1, 1)).clamp(-128, 127).scale("OFM_SCALE", 1).run("POOL", 1)
    x = RNG.integers(-128, 128, (5, 6, 3)).astype(np.int8)
    got = ran(stream, x, (256, (5, 6, 3), 1))
    for y, column, c in np.ndindex(5, 6, 3):
        window = x[max(0, y - 1) : y + 2, max(0, column - 1) : column + 2, c].astype(int) - zero
        mean = window.sum() / window.size
        expected = math.floor(abs(mean) + 0.5) * (1 if mean >= 0 else -1) + zero
        assert got[y, column, c] == expected


def elementwise(mode: int, dtype: str, **more: int) -> Stream:
    shape = (1, 2, 8)
    stream = Stream().map("IFM", 0, shape, dtype).map("OFM", 128, shape, dtype, bits=1 << 8)
    stream.map("IFM2", 64, shape, dtype).clamp(-32768, 32767).set(IFM_UPSCALE=0, IFM2_BROADCAST=more.get("order", 0))
    stream.scale("OPA_SCALE", 1).scale("OPB_SCALE", 1).scale("OFM_SCALE", more.get("scale", 1), more.get("shift", 0))
    return stream.run("ELEMENTWISE", mode)


def test_swapped_operands() -> None:
    x, y = RNG.integers(-100, 100, (2, 1, 2, 8)).astype(np.int16)
    for order, expected in ((0, x - y), (64, y - x)):
        payload = elementwise(2, "int16", order=order).payload(
            inputs=[(0, x.shape, 2), (64, y.shape, 2)], outputs=[(128, x.shape, 2)]
        )
        assert (simulator().run(payload, [x, y])[0] == expected).all()


def test_leaky_relu_scales_what_is_negative() -> None:
    x = RNG.integers(-30000, 30000, (1, 2, 8)).astype(np.int16)
    payload = elementwise(5, "int16", scale=1 << 29, shift=31).payload(
        inputs=[(0, x.shape, 2)], outputs=[(128, x.shape, 2)]
    )
    wide = x.astype(np.int64)
    expected = np.where(wide >= 0, wide, (wide * (1 << 29) + (1 << 30)) >> 31)
    assert (simulator().run(payload, [x])[0] == expected).all()


def test_shift_and_leading_zeros() -> None:
    x = RNG.integers(-(2**31), 2**31, (1, 2, 8)).astype(np.int32)
    y = RNG.integers(0, 31, (1, 2, 8)).astype(np.int32)
    inputs = [(0, x.shape, 4), (64, y.shape, 4)]
    (left,) = simulator().run(elementwise(9, "int32").payload(inputs=inputs, outputs=[(128, x.shape, 4)]), [x, y])
    assert (left == (x.astype(np.int64) << y).astype(np.int32)).all()
    zeros = elementwise(7, "int32").payload(inputs=inputs[:1], outputs=[(128, x.shape, 4)])
    expected = [32 - int(v).bit_length() for v in x.reshape(-1).view(np.uint32)]
    assert simulator().run(zeros, [x])[0].reshape(-1).tolist() == expected


def decoded(stream: bytes, capacity: int) -> list[int] | None:
    out = (ctypes.c_int16 * max(1, capacity))()
    library = load_simulator()
    library.ethosu_sim_decode_weights.restype = ctypes.c_int64
    library.ethosu_sim_decode_weights.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
    count = library.ethosu_sim_decode_weights(stream, len(stream), out, capacity)
    return None if count < 0 else out[:count]


RUNS = st.lists(
    st.one_of(
        st.lists(st.integers(-255, 255), min_size=1, max_size=60),
        st.lists(st.sampled_from([0, 0, 0, 0, 0, 3, -7]), min_size=1, max_size=300),
        st.lists(st.integers(-2, 2), min_size=1, max_size=300),
        st.builds(lambda n, v: [v] * n, st.integers(1, 2000), st.integers(-255, 255)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(RUNS)
def test_decoder_is_velas(runs: list[list[int]]) -> None:
    weights = [w for run in runs for w in run]
    encoded = bytes(mlw_codec.encode(weights))
    assert decoded(encoded, len(weights)) == weights == list(mlw_codec.decode(bytearray(encoded)))
    assert decoded(encoded, len(weights) - 1) is None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_decoder_takes_any_bytes(stream: bytes) -> None:
    result = decoded(stream, 10_000)
    assert result is None or all(-255 <= w <= 255 for w in result)


DRIVER_PROGRAM = r"""
#include "ethosu_driver.h"
#include <stdio.h>
#include <string.h>
static int begun = 0;
void ethosu_inference_begin(struct ethosu_driver* driver, void* user) { (void)driver; begun += *(int*)user; }
static _Alignas(16) unsigned char stream[1 << 16], weights[16], scratch[4096];
int main(int argc, char** argv) {
  FILE* file = fopen(argv[argc - 1], "rb");
  int size = (int)fread(stream, 1, sizeof stream, file), one = 1;
  fclose(file);
  for (int i = 0; i < 64; ++i) scratch[i] = (unsigned char)(3 * i);
  uint64_t bases[2] = {(uint64_t)(uintptr_t)weights, (uint64_t)(uintptr_t)scratch};
  size_t sizes[2] = {sizeof weights, sizeof scratch};
  struct ethosu_driver* driver = ethosu_reserve_driver();
  int status = ethosu_invoke_v3(driver, stream, size, bases, sizes, 2, &one);
  printf("%d %d %d\n", status, begun, memcmp(scratch, scratch + 64, 64));
  sizes[1] = 100;
  printf("%d\n", ethosu_invoke_v3(driver, stream, size, bases, sizes, 2, &one));
  bases[1] += 4;
  status = ethosu_invoke_v3(driver, stream, size, bases, sizes, 2, &one);
  printf("%d %s\n", status, ethosu_sim_driver_error(driver));
  ethosu_release_driver(driver);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_firmware_for_the_core_driver(tmp_path: Path) -> None:
    """A C program that knows nothing but the driver's interface."""
    sources = source_directory() / "ethosu_sim"
    (tmp_path / "main.c").write_text(DRIVER_PROGRAM)
    (tmp_path / "stream.bin").write_bytes(copy().commands())

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True, cwd=tmp_path)

    run("cc", "-c", "-Wall", "-Werror", "-I", sources / "driver", "main.c")
    library = Path(load_simulator()._name)
    driver = sources / "driver" / "ethosu_driver.cpp"
    run(*find_compiler(), "-std=c++17", "main.o", driver, library, f"-Wl,-rpath,{library.parent}", "-o", "firmware")
    done = run(tmp_path / "firmware", "stream.bin")
    first, second, third = done.stdout.splitlines()
    assert first == "0 1 0"
    assert second == "-1" and "of region 1, which has 100 bytes" in done.stderr
    assert third == "-1 Base address 1 is no multiple of 16."


def test_fast_memory_of_dedicated_modes() -> None:
    stream = joined(Stream().transfer((SCRATCH, 0), (FAST, 32), 64).run("DMA_WAIT"), copy(32, 64))
    stream.words.pop()
    stream.set(IFM_REGION=FAST).run("POOL", 0)
    assert (ran(stream) == X).all()
    payload = stream.payload(inputs=[IN], outputs=[OUT])
    with pytest.raises(SimulationError, match="of region 2, which has 64 bytes"):
        EthosUSimulator("ethos-u55-128", fast_scratch_bytes=64).run(payload, [X])
