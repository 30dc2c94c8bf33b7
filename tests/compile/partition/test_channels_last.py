"""Programs that keep their pictures channels-last: nothing is transposed at the border, and the numbers are right."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import DelegateCall
from torch import Tensor, nn

import micronpu
from micronpu.base.errors import ModelError
from micronpu.base.quiet import quiet
from micronpu.container.payload import TensorSlot, parse
from micronpu.container.trace import graph_key
from micronpu.ethosu import EthosUOptions, EthosUPartitioner
from micronpu.ir import interpret
from micronpu.neutron import NeutronPartitioner, NeutronQuantizer, calibrate_and_quantize
from micronpu.partition import entry
from micronpu.program.pte import read_pte
from micronpu.runtime import HostProgram

LAST = torch.channels_last
ETHOS_U = "ethos-u55-128"


def last(x: Tensor) -> Tensor:
    return x.to(memory_format=LAST)


class Pictures(nn.Module):
    """Picture in, picture out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 7, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


class TwoLayouts(nn.Module):
    """One picture channels-last, one contiguous, and a vector that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(a) + self.b(b)
        return x, self.fc(x.mean((2, 3)))


class WithHost(nn.Module):
    """An operator that stays in float between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.erf(self.first(x)))


def compiled(model: nn.Module, *examples: Tensor) -> micronpu.CompiledProgram:
    torch.manual_seed(1)
    data = [tuple(torch.randn(e.shape).to(memory_format=_layout(e)) for e in examples) for _ in range(4)]
    return micronpu.compile(model.eval(), examples, "imxrt700-neutron", calibration=data)


def _layout(x: Tensor) -> torch.memory_format:
    return torch.contiguous_format if x.is_contiguous() else LAST


def transposes(program: micronpu.CompiledProgram) -> int:
    return sum(n.op.name == "transpose" for p in program.partitions for n in p.graph.nodes)


@pytest.fixture(scope="module")
def pictures() -> micronpu.CompiledProgram:
    torch.manual_seed(0)
    return compiled(Pictures().to(memory_format=LAST), last(torch.randn(1, 3, 8, 10)))


def test_no_transpose_at_the_boundary(pictures: micronpu.CompiledProgram) -> None:
    assert transposes(pictures) == 0
    layout = parse(pictures.partitions[0].payload).layout
    assert [slot.channels_last for slot in (*layout.inputs, *layout.outputs)] == [True, True]


def test_numbers_are_those_of_the_quantized_model_and_of_the_interpreter(pictures: micronpu.CompiledProgram) -> None:
    graph = pictures.partitions[0].graph
    input_type, output_type = graph.inputs[0].type, graph.outputs[0].type
    for _ in range(5):
        x = last(torch.randn(1, 3, 8, 10))
        y = pictures.run(x)
        assert y.is_contiguous(memory_format=LAST)
        steps = (y - pictures.quantized(x)).abs().max().item() / output_type.scale
        assert steps <= 2.01  # one of each convolution
        integers = torch.clamp(torch.round(x / input_type.scale) + input_type.zero_point, -128, 127).to(torch.int8)
        (expected,) = interpret(graph, [integers.permute(0, 2, 3, 1).contiguous().numpy()])
        real = (torch.from_numpy(expected).permute(0, 3, 1, 2).float() - output_type.zero_point) * output_type.scale
        torch.testing.assert_close(y, real, rtol=0, atol=1e-5)


def test_contiguous_program_pays_two_transposes_for_the_same_network() -> None:
    torch.manual_seed(0)
    assert transposes(compiled(Pictures(), torch.randn(1, 3, 8, 10))) == 2


def test_other_layout_at_run_time_is_a_sentence(pictures: micronpu.CompiledProgram) -> None:
    with pytest.raises(ModelError, match=r"compiled for channels-last inputs\. Try: x\.to\(memory_format="):
        pictures.run(torch.randn(1, 3, 8, 10))
    torch.manual_seed(0)
    contiguous = HostProgram(compiled(Pictures(), torch.randn(1, 3, 8, 10)).buffer)
    with pytest.raises(ModelError, match=r"compiled for contiguous inputs\. Try: x\.contiguous\(\)"):
        contiguous.run(last(torch.randn(1, 3, 8, 10)))


def test_one_channel_is_both_layouts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()).to(memory_format=LAST)
    program = compiled(model, last(torch.randn(1, 1, 6, 6)))
    x = torch.randn(1, 1, 6, 6)
    assert torch.equal(program.run(x), program.run(last(x)))


def test_mixed_layouts() -> None:
    torch.manual_seed(0)
    program = compiled(TwoLayouts(), last(torch.randn(1, 3, 6, 6)), torch.randn(1, 3, 6, 6))
    a, b = last(torch.randn(1, 3, 6, 6)), torch.randn(1, 3, 6, 6)
    expected = program.quantized(a, b)
    for y, wanted, output in zip(program.run(a, b), expected, program.partitions[0].graph.outputs, strict=True):
        assert (y - wanted).abs().max().item() <= 2.01 * output.type.scale


def test_host_operator_between_two_partitions() -> None:
    torch.manual_seed(0)
    program = compiled(WithHost().to(memory_format=LAST), last(torch.randn(1, 3, 8, 8)))
    assert program.report.partitions == 2
    x = last(torch.randn(1, 3, 8, 8))
    step = program.partitions[-1].graph.outputs[0].type.scale
    assert (program.run(x) - program.quantized(x)).abs().max().item() <= 4 * step


class Twice(WithHost):
    """As well with a result that the next partition, the host and the caller read."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        y = torch.relu(self.first(x))
        return self.second(torch.atan2(y, y + 1)), y


class HostFirst(WithHost):
    """The host reads the picture before a partition does."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(torch.atan2(x, x + 1))))


def ethosu_entry(program: micronpu.CompiledProgram, example: Tensor) -> bytes:
    """The same quantized model through ExecuTorch's own entry."""
    with quiet():
        exported = torch.export.export(program.quantized, (example,))
        partitioner = EthosUPartitioner(EthosUOptions(ETHOS_U, carry_graph=True))
        edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])
        config = ExecutorchBackendConfig(extract_delegate_segments=False)
        return bytes(edge.to_executorch(config=config).buffer)


def calls(buffer: bytes) -> list[tuple[list[list[int]], list[TensorSlot]]]:
    """For every call of an Ethos-U: the orders of its tensors in memory, and what its program takes them for."""
    blob = deserialize_pte_binary(buffer)
    assert blob.named_data is not None
    entries = {k: e for k, e in blob.named_data.pte_data.items() if k.startswith("micronpu_graph_")}
    graphs = {k: parse(bytes(blob.named_data.buffers[e.buffer_index])).layout for k, e in entries.items()}
    (plan,) = blob.program.execution_plan
    found = []
    for instruction in plan.chains[0].instructions:
        call = instruction.instr_args
        if isinstance(call, DelegateCall):
            payload = bytes(
                blob.program.backend_delegate_data[plan.delegates[call.delegate_index].processed.index].data
            )
            layout = graphs[graph_key(payload)]
            orders = [list(plan.values[i].val.dim_order) for i in call.args]
            found.append((orders, [*layout.inputs, *layout.outputs]))
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("model", [Pictures, Twice, HostFirst])
def test_ethosu_reads_and_writes_the_order_that_the_program_has(model: type[nn.Module]) -> None:
    """The runtime on the board copies bytes and reorders nothing, so that both must agree on the order."""
    torch.manual_seed(0)
    x = [last(torch.randn(1, 3, 10, 9)) for _ in range(4)]
    network = model().eval().to(memory_format=LAST)
    program = micronpu.compile(
        network, (x[0],), ETHOS_U, options=EthosUOptions(ETHOS_U, carry_graph=True), calibration=[(b,) for b in x]
    )
    wanted = program.quantized(x[1])
    for buffer in (program.buffer, ethosu_entry(program, x[0])):
        for orders, slots in calls(buffer):
            assert [order == [0, 2, 3, 1] for order in orders] == [slot.channels_last for slot in slots]
        results = HostProgram(buffer).run(x[1])
        for y, expected in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert (y - expected).abs().max() <= 0.02 * expected.abs().max()
    assert any(slot.channels_last for _, slots in calls(program.buffer) for slot in slots)


AMBIGUOUS = [(1, 8, 1, 1), (1, 1, 6, 6), (2, 1, 1, 5), (1, 1, 1, 1), (1, 3, 6, 6)]


def _orders(buffer: bytes) -> list[tuple[tuple[int, ...], bool]]:
    """For every tensor of the delegate call the order of its axes, and whether the payload says channels last."""
    (plan,) = deserialize_pte_binary(buffer).program.execution_plan
    (call,) = (i.instr_args for i in plan.chains[0].instructions if isinstance(i.instr_args, DelegateCall))
    given = [plan.values[v].val for v in call.args]
    orders = [tuple(value.dim_order) for value in given if hasattr(value, "dim_order")]
    layout = parse(read_pte(buffer).payloads[0][1]).layout
    flags = [slot.channels_last for slot in (*layout.inputs, *layout.outputs)]
    return list(zip(orders, flags, strict=True))


@pytest.mark.sweep
@pytest.mark.parametrize("shape", AMBIGUOUS)
def test_flag_and_order_of_axes_agree_as_the_device_checks_them(shape):
    """With H = W = 1 or one channel, the bytes are the same in both orders, but the delegate compares the orders."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    model = torch.nn.Conv2d(shape[1], 4, 1).eval()
    front = micronpu.compile(model, x, "imxrt700-neutron", calibration=[x])
    quantized = calibrate_and_quantize(torch.export.export(model, (x,)), [(x,)], NeutronQuantizer())
    edge = to_edge_transform_and_lower(torch.export.export(quantized, (x,)), partitioner=[NeutronPartitioner()])
    other = bytes(edge.to_executorch().buffer)
    for buffer in (front.buffer, other):
        for order, flag in _orders(buffer):
            assert order == ((0, 2, 3, 1) if flag else (0, 1, 2, 3))
        assert torch.equal(HostProgram(buffer).run(x)[0], front.run(x))


def test_a_result_of_one_channel_is_copied_by_the_npu_or_stays_on_the_host(monkeypatch):
    """Its strides say (0, 2, 1, 3), which no payload can name."""
    x = torch.randn((1, 3, 6, 6), generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 1, 2)).eval()
    front = micronpu.compile(model, x, "imxrt700-neutron", calibration=[x])

    def lowered() -> tuple[NeutronPartitioner, bytes]:
        chosen = NeutronPartitioner()
        exported = torch.export.export(front.quantized, (x,))
        return chosen, bytes(to_edge_transform_and_lower(exported, [], [chosen]).to_executorch().buffer)

    chosen, program = lowered()
    assert not chosen.report.host and torch.equal(HostProgram(program).run(x)[0], front.run(x))
    monkeypatch.setattr(entry, "order_results", lambda *_: None)
    (verdict,) = lowered()[0].report.host
    assert (verdict.operator, verdict.reasons[0].rule) == ("conv2d.default", entry.RULE)
    assert "has the order of axes (0, 2, 1, 3)" in str(verdict.reasons[0])
