"""Products of int16 matrices by their bytes: the interpreter's integers in TOSA's reference model and in the stream."""

from __future__ import annotations

import numpy as np
import pytest

from micronpu.base.errors import UnsupportedError
from micronpu.host.litert_executor import Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType, interpret
from micronpu.ir.arithmetic import quantize_multiplier
from micronpu.ops.matmul import BatchMatmul
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.host.simulator import EthosUSimulator
from micronpu.targets.ethosu.legalize import emitters_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import byte_products
from micronpu.targets.ethosu.rewrites.byte_products import BytesBatchMatmul
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
