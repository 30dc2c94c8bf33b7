"""Products of int16 matrices by their bytes: the interpreter's integers in TOSA's reference model and in the stream."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from micronpu.base.errors import UnsupportedError
from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType, interpret
from micronpu.ir.arithmetic import quantize_multiplier
from micronpu.ops.convolution import Conv2d
from micronpu.ops.matmul import BatchMatmul
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.host.simulator import EthosUSimulator
from micronpu.targets.ethosu.legalize import emitters_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import byte_products
from micronpu.targets.ethosu.rewrites.byte_products import BytesBatchMatmul, BytesConv2d, byte_factors
from micronpu.targets.ethosu.rules import ethosu_policy

ROWS, INNER, COLUMNS = 36, 6, 8


def product(factor: float, op: BatchMatmul, shape: tuple[int, int, int, int] = (1, ROWS, INNER, COLUMNS)) -> Graph:
    """x [B, M, K] times z [B, K, N], each sum scaled by ``factor``."""
    b, m, k, n = shape
    builder = GraphBuilder()
    x, z = (builder.input(TensorType(s, DType.INT16, QParams.per_tensor(1.0, 0))) for s in ((b, m, k), (b, k, n)))
    return builder.finish(builder.emit(op, x, z, qparams=QParams.per_tensor(1 / factor, 0)))


def operands(random: np.random.Generator) -> list[np.ndarray]:
    """Of every magnitude, so that some sums are small, some nearly saturate, and some are as large as can be."""
    x = random.integers(-(2**15), 2**15, (1, ROWS, INNER))
    x[0, :2] = [[-(2**15)] * INNER, [2**15 - 1] * INNER]
    x[0, 2:] >>= np.arange(ROWS - 2)[:, None] // 2
    z = random.integers(-(2**15), 2**15, (1, INNER, COLUMNS)) >> np.arange(COLUMNS) * 2
    z[0, :, 0] = -(2**15)
    return [x.astype(np.int16), z.astype(np.int16)]


@pytest.mark.sweep
@pytest.mark.parametrize("right", [1, 7, 13, 14, 17, 21, 22, 26, 29, 30, 34, 37, 38, 45, 46, 60])
def test_every_shift(right: int) -> None:
    factor = 0.7071 * 2.0 ** (15 - right)
    graph = product(factor, BytesBatchMatmul())
    if right <= 46:  # below, every sum is zero
        assert 15 - quantize_multiplier(factor)[1] == right
    spec = EthosUOptions("ethos-u55-128", via="tosa", verify_streams=False)
    part = compile_graph(graph.clone(), spec)
    model, simulator = TosaProgram(part.model.data, Mode.REFERENCE), EthosUSimulator(spec.silicon)
    results = set()
    for seed in range(3):
        inputs = operands(np.random.default_rng(seed))
        (expected,) = interpret(product(factor, BatchMatmul()), inputs)
        np.testing.assert_array_equal(model.call(*inputs)[0], expected)
        np.testing.assert_array_equal(simulator.run(part.payload, inputs)[0].reshape(expected.shape), expected)
        results |= set(expected.ravel().tolist())
    assert len(results) >= 5 or right > 45  # not all of them are zero or saturated


def test_large_results_are_computed_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EthosUOptions("ethos-u65-256", via="tosa")  # the stream runs, and is compared
    used = []
    for most in (byte_products._MOST_ELEMENTS, 10**9):
        monkeypatch.setattr(byte_products, "_MOST_ELEMENTS", most)
        used.append(compile_graph(product(2.0**-18, BytesBatchMatmul(), (2, 260, 4, 140)), spec).program.sram_bytes)
    assert used[0] < 0.7 * used[1]


@pytest.mark.parametrize(
    ("target", "rewritten"), [("ethos-u55-128", True), ("ethos-u65-256", True), ("ethos-u85-256", False)]
)
def test_who_needs_it(target: str, rewritten: bool) -> None:
    decide = ethosu_policy(EthosUOptions(target)).decide
    found = decide(product(2.0**-20, BatchMatmul()).nodes[0])
    assert not isinstance(found, list)
    assert found.rewrites == (("multiply_bytes",) if rewritten else ())


def test_what_it_cannot_do_is_said() -> None:
    """A result whose step is far below that of the products would need more than 32 bits."""
    spec = EthosUOptions("ethos-u55-128")
    with pytest.raises(UnsupportedError, match=r"2\*\*-14"):
        emitters_of(spec)["tosa"](product(2.0**15, BytesBatchMatmul()))
    reasons = ethosu_policy(spec).decide(product(2.0**15, BatchMatmul()).nodes[0])
    assert isinstance(reasons, list)
    assert "IFM precision must be Int8" in reasons[0].detail


INPUTS, OUTPUTS = 64, 40


def convolution(
    op: Conv2d,
    factors: list[float],
    pixels: int = 2,
    y: DType = DType.INT16,
    inputs: int = INPUTS,
    weights: np.ndarray | None = None,
) -> Graph:
    """Pixels of int16 numbers; the sums of each channel are scaled by its factor, or all of them by one."""
    random, builder = np.random.default_rng(inputs), GraphBuilder()
    x = builder.input(TensorType((1, 1, pixels, inputs), DType.INT16, QParams.per_tensor(1.0, 0)))
    qparams = QParams.per_channel(factors, 0) if len(factors) > 1 else QParams.per_tensor(factors[0], 0)
    data = random.integers(-127, 128, (OUTPUTS, 1, 1, inputs)) if weights is None else weights
    weight = builder.constant(data, TensorType(data.shape, DType.INT8, qparams))
    bias = builder.constant(random.integers(-(2**9), 2**9, len(data)), TensorType((len(data),), DType.INT64, qparams))
    out = QParams.per_tensor(1.0, 3 if y is DType.INT8 else 0)
    return builder.finish(builder.emit(op, x, weight, bias, qparams=out))


def pixels_of(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Pixels of every byte, all of the smallest and all of the largest number, and random ones."""
    random = np.random.default_rng(1)
    count = int(np.prod(shape))
    made = [np.full(count, n) for n in (-(2**15), 2**15 - 1)]
    made += [np.resize(np.arange(first, first + 256), count) for first in (-(2**15), -128, 2**15 - 256)]
    made += [random.integers(-(2**15), 2**15, count) >> bits for bits in (0, 0, 4, 9, 15)]
    return [m.reshape(shape).astype(np.int16) for m in made]


FACTORS = {
    **{f"shift of {right}": [0.7071 * 2.0 ** (15 - right)] for right in range(18, 32)},
    "per channel": (2.0 ** -np.linspace(5, 15, OUTPUTS)).tolist(),
    "16 bits apart": (0.99 * 2.0 ** -np.linspace(0, 16, OUTPUTS)).tolist(),
}


@pytest.mark.parametrize("y", [DType.INT16, DType.INT8])
@pytest.mark.parametrize("name", FACTORS)
def test_a_convolution_of_bytes_is_exact(name: str, y: DType) -> None:
    graph = convolution(BytesConv2d(dtype=y), FACTORS[name], y=y)
    spec = EthosUOptions("ethos-u85-256", via="tosa", verify_streams=False)
    part = compile_graph(graph.clone(), spec)
    assert any(isinstance(n.op, BytesConv2d) for n in part.graph.nodes)
    model, simulator = TosaProgram(part.model.data, Mode.REFERENCE), EthosUSimulator(spec.silicon)
    results = set()
    for x in pixels_of(graph.inputs[0].shape):
        (expected,) = interpret(convolution(Conv2d(dtype=y), FACTORS[name], y=y), [x])
        np.testing.assert_array_equal(model.call(x)[0], expected)
        np.testing.assert_array_equal(simulator.run(part.payload, [x])[0].reshape(expected.shape), expected)
        results |= set(expected.ravel().tolist())
    assert len(results) > 5  # not all of them are saturated


@pytest.mark.parametrize(
    ("target", "used"), [("ethos-u85-256", True), ("ethos-u85-1024", False), ("ethos-u55-128", False)]
)
@pytest.mark.parametrize("inputs", [256, 300])
def test_bytes_are_used_where_they_cost_less(target: str, used: bool, inputs: int) -> None:
    """The stream runs, and is compared."""
    weights = np.random.default_rng(0).integers(-90, 91, (640, 1, 1, inputs))
    graphs = [convolution(Conv2d(), [2.0**-12], 1, inputs=inputs, weights=weights) for _ in range(2)]
    spec = EthosUOptions(target)
    part = compile_graph(graphs[0], spec)
    assert (part.rewrites == {"rows_of_bytes": 1}) == used
    plain = compile_graph(graphs[1], EthosUOptions(target, disabled_passes=("rows_of_bytes",)))
    assert part.program.cycles < 0.4 * plain.program.cycles if used else part.payload == plain.payload


def test_sums_are_within_32_bits() -> None:
    """For the largest weights and bias that are accepted, no sum of bytes exceeds int32, for any x."""
    type, y, weight = (TensorType((1,), DType.INT16, QParams.per_tensor(s, 0)) for s in (1.0, 1.0, 2.0**-9))
    weights = np.full((1, 1, 1, 512), 127)
    room = 2**31 - 1 - (2**15 + 2**7) * int(weights.sum())
    accepted = [b for b in (room, -room, room + 1, -room - 1) if byte_factors(type, weight, y, weights, np.array([b]))]
    assert accepted == [room, -room]
    total = int(weights.sum())
    for x, b in itertools.product((-(2**15), -(2**15) + 255, -256, -1, 0, 255, 2**15 - 256, 2**15 - 1), accepted):
        upper, lower = 256 * (x >> 8) * total, ((x & 255) - 128) * total
        assert upper + lower + b + 128 * total == x * total + b
        assert all(-(2**31) <= n < 2**31 for n in (upper, upper + lower, b + 128 * total, x * total + b))


@pytest.mark.parametrize(
    ("scales", "fits"), [([1.0], True), ([1.01], False), ([0.75, 0.75 * 2**-16], True), ([0.75, 0.75 * 2**-17], False)]
)
def test_factors_are_within_32_bits(scales: list[float], fits: bool) -> None:
    qparams = QParams.per_channel(scales, 0) if len(scales) > 1 else QParams.per_tensor(scales[0], 0)
    x, y = (TensorType((1,), DType.INT16, QParams.per_tensor(1.0, 0)) for _ in range(2))
    weight = TensorType((len(scales), 1, 1, 1), DType.INT8, qparams)
    found = byte_factors(x, weight, y, np.ones(weight.shape), np.zeros(len(scales)))
    assert (found is not None) == fits
