"""TOSA programs on the host: the executor alone, and behind the plug-in in a `.pte`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cases import Case, case, i8, q, w8
from torch import nn

import micronpu
from micronpu.base.errors import PayloadError
from micronpu.emit.tosa import TosaEmitter, TosaTensor
from micronpu.ethosu import EthosUOptions
from micronpu.host.litert_executor import Buffer, Mode, OperatorTrace, scalar_type_of
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir import interpret
from micronpu.ops.convolution import Conv2d
from micronpu.ops.movement import Reshape
from micronpu.ops.quantization import Requantize
from micronpu.ops.slicing import Concat
from micronpu.program.pte import tosa_output_bytes
from micronpu.runtime import HostProgram
from micronpu.runtime.plugin import load_plugin
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.legalize import to_tosa

CONVOLUTION = case(Conv2d(), x=i8(1, 5, 6, 3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.3, -5))
JOIN = case(Concat(1), tensors=[i8(1, 2), i8(1, 3)])
SCALAR = case(Reshape(()), x=i8(1, 1))


def loaded(row: Case, mode: Mode = Mode.REFERENCE) -> TosaProgram:
    graph = row.graph()
    return TosaProgram(to_tosa(graph).data, mode)


def buffer(array: np.ndarray) -> Buffer:
    return Buffer(array.ctypes.data, array.nbytes, scalar_type_of(array.dtype))


@pytest.mark.parametrize("row", [CONVOLUTION, JOIN, SCALAR], ids=lambda row: row.op.name)
@pytest.mark.parametrize("mode", [Mode.REFERENCE, Mode.FAST])
def test_buffers(row: Case, mode: Mode):
    program, graph = loaded(row, mode), row.graph()
    for inputs in row.samples:
        (expected,) = interpret(graph, inputs)
        made = np.full(expected.shape, 99, np.int8)
        program.run([buffer(a) for a in inputs], [buffer(made)])
        np.testing.assert_array_equal(made, expected)


def test_a_traced_run_reports_the_whole():
    program, inputs = loaded(CONVOLUTION), CONVOLUTION.samples[4]
    (expected,) = interpret(CONVOLUTION.graph(), inputs)
    made, traces = np.zeros_like(expected), list[OperatorTrace]()
    program.run_traced([buffer(a) for a in inputs], [buffer(made)], traces.append)
    (trace,) = traces
    assert trace.name == "TOSA" and trace.index == program.num_operators - 1 and trace.nanoseconds > 0
    np.testing.assert_array_equal(trace.outputs[0], expected)
    np.testing.assert_array_equal(made, expected)


def test_buffers_of_another_size_or_type_are_refused():
    program, (x,) = loaded(CONVOLUTION), CONVOLUTION.samples[4]
    (y,) = interpret(CONVOLUTION.graph(), [x])
    with pytest.raises(PayloadError, match=r"Input 0 of the NPU partition has 90 bytes .* passes 89 bytes"):
        program.run([Buffer(x.ctypes.data, 89, 1)], [buffer(y)])
    with pytest.raises(PayloadError, match=r"Output 0 of the NPU partition has 96 bytes .* bytes of uint8"):
        program.run([buffer(x)], [Buffer(y.ctypes.data, y.nbytes, 0)])


def test_other_counts_are_refused():
    plugin, data = load_plugin(), to_tosa(JOIN.graph()).data
    held = ctypes.create_string_buffer(data)
    assert not plugin._create(b"", ctypes.addressof(held), len(data), 0, 0, int(Mode.REFERENCE), 1, 1)
    assert "has 1 input and 1 output, but the program inside the payload has 2 and 1" in str(plugin._local.cause)


@pytest.mark.parametrize("size", [0, 7, 16, 60, 200])
def test_a_truncated_program_is_refused(size: int):
    data = to_tosa(CONVOLUTION.graph()).data
    with pytest.raises(PayloadError, match="TOSA program inside the payload is corrupted"):
        TosaProgram(data[:size], Mode.REFERENCE)


def test_an_array_of_another_shape_is_an_error():
    with pytest.raises(PayloadError, match=r"Input 0 .* is int8\[1, 5, 6, 3\], and was given int8\[1, 4, 4, 9\]"):
        loaded(CONVOLUTION).call(np.zeros((1, 4, 4, 9), np.int8))


class TooFar(Requantize):
    """Scales its operand beyond what the specification has a result for."""

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        return emit.result(emit.rescale(emit.input(0), "INT32", [1 << 30], [3]))


def test_an_undefined_result_is_an_error():
    program = loaded(case(TooFar(), x=i8(4), out=q(0.1)))
    assert program.call(np.zeros(4, np.int8))[0].tolist() == [0] * 4
    with pytest.raises(PayloadError, match="has no defined result for these inputs"):
        program.call(np.full(4, 100, np.int8))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.first(x))
        b = torch.relu(self.second(a)) + a
        return torch.softmax(self.classes(b.mean((2, 3))), -1)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_program_runs_its_tosa_graph(target: str):
    data = [(torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(seed)),) for seed in range(4)]
    spec = EthosUOptions(target, via="tosa")
    program = micronpu.compile(Net().eval(), data[0], target=target, calibration=data, options=spec)
    (partition,) = program.partitions
    assert isinstance(partition, EthosUPartition) and partition.plan.format == "tosa"
    assert partition.model.data[4:8] == b"TOSA"
    runner = TosaProgram(partition.model.data, Mode.REFERENCE)
    (given,) = (t.type for t in partition.graph.inputs)
    (result,) = (t.type for t in partition.graph.outputs)
    with HostProgram(program.buffer) as host:
        for (x,) in data:
            quantized = torch.round(x / given.scale) + given.zero_point
            integers = quantized.clamp(*given.dtype.limits).to(torch.int8).numpy().reshape(given.shape)
            (expected,) = runner.call(integers)
            (got,) = host.run(x)
            reals = (expected.astype(np.float32) - result.zero_point) * np.float32(result.scale)
            np.testing.assert_array_equal(got.numpy().reshape(reals.shape), reals)


def test_the_records_of_a_program_are_bounded():
    data = to_tosa(JOIN.graph()).data
    assert tosa_output_bytes(b"container" + data) == 8 * 5 + 128
    assert tosa_output_bytes(data[:40]) == tosa_output_bytes(b"nothing") == 0


def test_a_profile_records_the_delegates_result(tmp_path: Path):
    x = torch.randn(1, 3, 12, 12)
    spec = EthosUOptions("ethos-u55-128", via="tosa")
    program = micronpu.compile(Net().eval(), (x,), target="ethos-u55-128", calibration=[(x,)], options=spec)
    with HostProgram(program.buffer) as host:
        (expected,) = host.run(x)
        (got,) = host.profile(x, etdump=tmp_path / "etdump")
    assert torch.equal(got, expected)
