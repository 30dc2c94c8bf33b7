"""Programs for Ethos-U in the ExecuTorch runtime of this machine, and what the device would read of them."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.partitioner import Partitioner
from torch import nn
from torch.fx.passes.operator_support import OperatorSupportBase

import micronpu
from micronpu.base.errors import MicroNpuError, NotOnHostError, OptionError, PayloadError
from micronpu.cli.inspection import inspect_pte
from micronpu.compiler.program import CompiledProgram
from micronpu.ethosu import EthosUOptions, EthosUPartitioner, EthosUQuantizer, calibrate_and_quantize
from micronpu.ir import interpret
from micronpu.program.pte import read_pte
from micronpu.runtime import HostProgram, RunOptions
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, NotModelledError
from micronpu.targets.ethosu.payload import BLOCKS, blocks, parse
from micronpu.targets.ethosu.vela.compiler import compile_flatbuffer

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")


class Net(nn.Module):
    """Two inputs, two outputs, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.classes = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.relu(self.first(x)) + y
        b = torch.relu(self.second(a)) + a
        return self.classes(b.mean((2, 3))), b


def inputs(seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 3, 12, 12, generator=generator), torch.randn(1, 8, 12, 12, generator=generator)


CALIBRATION = [inputs(seed) for seed in range(4)]


def compiled(target: str = "ethos-u55-128", **options: object) -> CompiledProgram:
    spec = EthosUOptions(target, **options)  # type: ignore[arg-type]
    return micronpu.compile(Net().eval(), inputs(), target=target, calibration=CALIBRATION, options=spec)


@pytest.mark.parametrize("target", TARGETS)
def test_program_runs_its_command_stream(target: str) -> None:
    program = compiled(target)
    assert program.report.share == 1.0 and program.report.partitions == 1
    (part,) = program.partitions
    assert isinstance(part, EthosUPartition)
    expected = program.quantized(*inputs(9))
    results = program.run(*inputs(9))
    for got, wanted in zip(results, expected, strict=True):
        assert got.shape == wanted.shape
        assert (got - wanted).abs().max() <= 3 * wanted.abs().max() / 127


def test_host_is_the_interpreter() -> None:
    """The whole integer path, element for element, on the integers that the program's own quantizes make."""
    program = compiled(via="litert")
    (part,) = program.partitions
    integers = []
    for tensor, x in zip(part.graph.inputs, inputs(5), strict=True):
        q = tensor.type.qparams
        assert q is not None
        quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
        integers.append(quantize(x, q.scale[0], q.zero_point[0], -128, 127, torch.int8).numpy())
    wanted = interpret(part.graph, [i.reshape(t.shape) for i, t in zip(integers, part.graph.inputs, strict=True)])
    results = {result.numel(): result for result in program.run(*inputs(5))}  # a partition orders its outputs itself
    for integer, tensor in zip(wanted, part.graph.outputs, strict=True):
        got = results[tensor.type.size]
        q = tensor.type.qparams
        assert q is not None
        real = (integer.astype(np.float32) - q.zero_point[0]) * np.float32(q.scale[0])
        np.testing.assert_array_equal(got.numpy().reshape(real.shape), real)


def test_the_weights_of_a_program_are_there_once() -> None:
    """In the bytes of the program, of which payload, Vela's result and what the simulator reads are parts."""
    program = compiled()
    (part,) = program.partitions
    host = program._loaded()
    (stream,) = [p for p in host._plugin._programs.values() if getattr(p, "_content", None) is not None][-1:]
    for data in (part.data, part.program.constants, stream._content.constants, *host._summary.payloads):  # type: ignore[attr-defined,union-attr]
        assert isinstance(data, memoryview) and data.obj is program.buffer
    assert part.payload == read_pte(program.buffer).payloads[0][1]
    assert part.within(bytes(64)).data is part.data
    assert part.model.nodes == part.written and program.to_litert(vela=True)  # type: ignore[attr-defined]
    assert compile_flatbuffer(part.model.data, part.spec).constants == part.program.constants  # type: ignore[attr-defined]


def test_both_entries_give_the_same_payload() -> None:
    program = compiled()
    spec = EthosUOptions("ethos-u55-128")
    quantized = calibrate_and_quantize(torch.export.export(Net().eval(), inputs()), CALIBRATION, EthosUQuantizer(spec))
    buffer = lowered(quantized, EthosUPartitioner(spec))
    assert read_pte(buffer).payloads == read_pte(program.buffer).payloads
    with HostProgram(buffer) as other:
        for got, wanted in zip(other.run(*inputs(3)), program.run(*inputs(3)), strict=True):
            assert torch.equal(got, wanted)


def test_another_back_end_of_the_same_name_is_not_taken() -> None:
    """ExecuTorch's back end for Cortex-M, which programs for a core import, brings along one."""
    importlib.import_module("executorch.backends.cortex_m.passes")
    assert sum(c.__name__ == "EthosUBackend" for c in BackendDetails.__subclasses__()) > 1
    program = compiled()
    buffer = lowered(program.quantized, EthosUPartitioner(EthosUOptions("ethos-u55-128")))  # type: ignore[arg-type]
    assert read_pte(buffer).payloads == read_pte(program.buffer).payloads


def lowered(quantized: torch.fx.GraphModule, partitioner: Partitioner) -> bytes:
    edge = to_edge_transform_and_lower(torch.export.export(quantized, inputs()), partitioner=[partitioner])
    config = ExecutorchBackendConfig(extract_delegate_segments=False)
    return bytes(edge.to_executorch(config=config).buffer)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_stream_and_carried_graph_compute_the_same(target: str) -> None:
    flags = ("--cop-format=COP2",) if target == "ethos-u65-512" else ()
    with_graph, without = compiled(target, carry_graph=True, extra_flags=flags), compiled(target, extra_flags=flags)
    assert read_pte(with_graph.buffer).payloads == read_pte(without.buffer).payloads
    assert len(without.buffer) < len(with_graph.buffer)
    with HostProgram(with_graph.buffer) as stream, HostProgram(with_graph.buffer, RunOptions(graph=True)) as graph:
        for seed in range(4):
            results = [program.run(*inputs(seed)) for program in (stream, graph)]
            assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
    with pytest.raises(MicroNpuError, match=r"carries no integer graph.*carry_graph=True"):
        HostProgram(without.buffer, RunOptions(graph=True))


def test_graph_runs_where_the_simulator_knows_no_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise NotModelledError("The stream sets the register 0x1ff.")

    with HostProgram(compiled(carry_graph=True).buffer, RunOptions(graph=True)) as graph:
        wanted = graph.run(*inputs(3))
    monkeypatch.setattr(EthosUSimulator, "run", unknown)
    with pytest.warns(UserWarning, match="register 0x1ff"), HostProgram(compiled(carry_graph=True).buffer) as program:
        got = program.run(*inputs(3))
    assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))
    with pytest.raises(NotOnHostError, match=r"cannot run here: The stream sets .* carry_graph=True"):
        HostProgram(compiled(verify_streams=False).buffer).run(*inputs(3))


def test_damage_in_a_stream_is_a_sentence() -> None:
    buffer = compiled().buffer
    for place, what in ((0, "COP1 or COP2"), (64, r"Ethos-U program fails: .*command")):
        at = buffer.index(b"COP1") + place
        damaged = buffer[:at] + bytes(x ^ 0x5A for x in buffer[at : at + 9]) + buffer[at + 9 :]
        with pytest.raises(MicroNpuError, match=what):
            HostProgram(damaged, RunOptions(isolated=True)).run(*inputs())


def test_blocks_stand_elsewhere(tmp_path: Path) -> None:
    inside = compiled()
    outside = compiled(external_commands="commands", external_weights="weights")
    (blob,) = (data for _, data in read_pte(outside.buffer).payloads)
    plain = parse(inside.partitions[0].payload)
    external = {b.name: b.data for b in blocks(blob) if b.external}
    assert set(external) == {"cmd_data", "weight_data"} and all(len(key) == 64 for key in external.values())
    assert set(outside.data_files) == {"commands.ptd", "weights.ptd"}
    assert plain.commands in outside.data_files["commands.ptd"]
    assert plain.constants in outside.data_files["weights.ptd"]
    outside.save(tmp_path / "net.pte")
    assert {f.name for f in tmp_path.iterdir()} == {"net.pte", "commands.ptd", "weights.ptd"}
    for got, wanted in zip(outside.run(*inputs(2)), inside.run(*inputs(2)), strict=True):
        assert torch.equal(got, wanted)


def test_inspection() -> None:
    found = inspect_pte(compiled("ethos-u85-256").buffer)
    (delegate,) = found.delegates
    assert delegate.backend == "EthosUBackend" and "Ethos-U85 with 256 MACs" in delegate.kind
    assert tuple(s.name for s in delegate.sections) == BLOCKS
    assert [math.prod(t.shape) for t in delegate.tensors[:2]] == [3 * 12 * 12, 8 * 12 * 12]
    assert [t.name for t in delegate.tensors] == ["input 0", "input 1", "output 0", "output 1"]
    carried = inspect_pte(compiled("ethos-u85-256", carry_graph=True).buffer)
    assert any("integer graph" in s.detail for s in carried.named_data)
    assert json.dumps(found.to_dict())


def test_inspection_of_a_payload_that_the_device_would_refuse() -> None:
    program = compiled()
    found = inspect_pte(program.buffer.replace(b"scratch_size", b"scratch_sise"))
    assert "unknown block 'scratch_sise'" in found.delegates[0].objection
    with pytest.raises(PayloadError, match="is not an ExecuTorch program"):
        inspect_pte(b"no program at all")


class NoAdd(OperatorSupportBase):
    def is_node_supported(self, submodules: object, node: torch.fx.Node) -> bool:
        return "aten.add" not in str(node.target)


def test_checks_of_the_user() -> None:
    spec = EthosUOptions("ethos-u55-128")
    quantized = calibrate_and_quantize(torch.export.export(Net().eval(), inputs()), CALIBRATION, EthosUQuantizer(spec))
    partitioner = EthosUPartitioner(spec, additional_checks=[NoAdd()])
    buffer = lowered(quantized, partitioner)
    assert partitioner.report is not None
    assert {v.operator for v in partitioner.report.host} == {"add.Tensor"}
    assert all("NoAdd refuses it" in v.reasons[0].detail for v in partitioner.report.host)
    with HostProgram(buffer) as program:
        for got, wanted in zip(program.run(*inputs(4)), quantized(*inputs(4)), strict=True):
            assert (got - wanted).abs().max() <= 3 * wanted.abs().max() / 127


def test_wrong_arguments_of_the_partitioner() -> None:
    with pytest.raises(OptionError, match=r"`compile_spec` is 'ethos-u55-128'\. Try: EthosUOptions"):
        EthosUPartitioner("ethos-u55-128")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="which is no OperatorSupportBase"):
        EthosUPartitioner(EthosUOptions("ethos-u55-128"), additional_checks=[print])  # type: ignore[list-item]


def test_options_of_another_backend() -> None:
    with pytest.raises(OptionError, match="The target imxrt700-neutron takes NeutronOptions, but"):
        micronpu.compile(Net().eval(), inputs(), target="imxrt700-neutron", options=EthosUOptions("ethos-u55-128"))
    with pytest.raises(OptionError, match="The target is ethos-u85-256, but the options are for ethos-u55-128"):
        micronpu.check(Net().eval(), inputs(), target="ethos-u85-256", options=EthosUOptions("ethos-u55-128"))


def test_sram_that_is_not_there() -> None:
    program = compiled()
    needed = max(p.program.sram_bytes for p in program.partitions if isinstance(p, EthosUPartition))
    enough = compiled(max_sram_bytes=needed)
    assert any(f"needs {needed:,} bytes of the {needed:,} (100%) of SRAM" in note for note in enough.report.details)
    with pytest.raises(MicroNpuError, match=r"bytes of SRAM with the memory mode Shared_Sram; there are 1,024"):
        compiled(max_sram_bytes=1024)
    with pytest.raises(OptionError, match="`max_sram_bytes` is -1"):
        compiled(max_sram_bytes=-1)


def test_sram_of_the_chip() -> None:
    program = micronpu.compile(Net().eval(), inputs(), target="corstone300-ethosu", calibration=CALIBRATION)
    assert any("of the 2,097,152" in note for note in program.report.details)


@pytest.mark.parametrize(("target", "has_fast"), [("ethos-u55-128", False), ("ethos-u65-256", True)])
def test_report_counts_what_the_firmware_sets_aside(target: str, has_fast: bool) -> None:
    program = compiled(target)
    programs = [p.program for p in program.partitions if isinstance(p, EthosUPartition)]
    (note,) = [note for note in program.report.details if "of SRAM at the peak" in note]
    assert f"temporary pool holds {max(p.scratch_size for p in programs):,} bytes of scratch memory" in note
    fast = max(p.fast_scratch_size for p in programs)
    assert (fast > 0) == has_fast == (f"fast scratch memory {fast:,} bytes" in note)
