"""What ExecuTorch's Inspector shows of a program: a row per NPU operation, and the user's operators behind each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from executorch.devtools import Inspector
from executorch.exir import to_edge_transform_and_lower
from tests.compile.partition.test_edge_entry import partitioner
from tests.compile.small import Small, batches, conv, image, linear, quantized

import micronpu
from micronpu.ethosu import EthosUCompileSpec
from micronpu.quiet import quiet
from micronpu.runtime import HostProgram
from micronpu.targets.ethosu.stream import STREAM_IDENTIFIERS

QUANTIZATION = "quantized_decomposed."


def model() -> Small:
    """Two partitions with a host operator between."""

    def forward(s, x):
        y = F.max_pool2d(F.relu(s.c(x)), 2)
        return F.softmax(s.l(torch.erf(y).flatten(1)), -1)

    return Small(forward, c=conv(), l=linear(72, 5))


def rows(etdump: Path, **files) -> list[list]:
    """The events of each delegate call of the one recorded run, in order."""
    with quiet():
        inspector = Inspector(etdump_path=str(etdump), **{k: str(v) for k, v in files.items()})
    (block,) = (b for b in inspector.event_blocks if b.name == "Execute")
    calls: list[list] = [[]]
    for event in block.events:
        if event.delegate_debug_identifier is not None:
            calls[-1].append(event)
        elif event.name == "DELEGATE_CALL":
            calls.append([])
    assert calls.pop() == [], "an NPU operation outside of a delegate call"
    return calls


@pytest.fixture(scope="module")
def edge(tmp_path_factory):
    """A run of the second entry's program, recorded, with its ETRecord."""
    folder = tmp_path_factory.mktemp("edge")
    with quiet():
        exported = torch.export.export(quantized(model(), (image(),)), (image(),))
        lowered = to_edge_transform_and_lower(exported, partitioner=[partitioner()], generate_etrecord=True)
        program = lowered.to_executorch()
        program.get_etrecord().save(str(folder / "etrecord.bin"))
    with HostProgram(program.buffer) as host:
        host.profile(image(), etdump=folder / "etdump", debug_buffer=folder / "values")
    files = {"etrecord": folder / "etrecord.bin", "debug_buffer_path": folder / "values"}
    return SimpleNamespace(program=program, calls=rows(folder / "etdump", **files))


def test_rows_name_the_operators_of_the_user(edge):
    operators = [
        [[t for t in event.op_types if not t.startswith(QUANTIZATION)] for event in call] for call in edge.calls
    ]
    layer, pool = ["aten.conv2d.default", "aten.relu.default"], ["aten.max_pool2d.default"]
    # The conversions between the layouts of program and NPU count for the operators that need them.
    assert operators == [
        [layer, layer, pool, pool],
        [["aten.view_copy.default"], ["aten.linear.default"], ["aten.softmax.int"]],
    ]


def test_rows_name_the_lines_of_the_user(edge):
    for call in edge.calls:
        for event in call:
            traces = [t for name, t in event.stack_traces.items() if name.startswith("aten_")]
            assert traces and all("small.py" in t for t in traces)


def test_rows_name_the_modules_of_the_user(edge):
    convolution = edge.calls[0][1]
    hierarchy = next(v for k, v in convolution.module_hierarchy.items() if k.startswith("aten_conv2d"))
    assert any("Conv2d" in str(entry) for entry in hierarchy.values())


def test_rows_are_numbered_as_the_map_in_the_program(edge):
    maps = [entry["delegate_map"] for entry in edge.program.delegate_map["forward"].values()]
    assert [[e.delegate_debug_identifier for e in call] for call in edge.calls] == [list(m) for m in maps]
    for call, handles in zip(edge.calls, maps, strict=True):
        for event in call:
            assert tuple(event.debug_handles) == handles[event.delegate_debug_identifier]


def test_rows_have_times_and_values(edge):
    shapes = [[tuple(v.shape) for e in call for v in e.debug_data] for call in edge.calls]
    assert shapes == [[(1, 6, 6, 8), (1, 6, 6, 8), (1, 3, 3, 8), (1, 8, 3, 3)], [(1, 72), (1, 5), (1, 5)]]
    assert all(e.perf_data.avg > 0 and e.is_delegated_op for call in edge.calls for e in call)


def test_rows_of_the_front_door(tmp_path):
    """There is no ETRecord; the operations of the report are in the order of the rows."""
    program = micronpu.compile(model(), (image(),), "imxrt700-neutron", calibration=batches((image(),)))
    with HostProgram(program.buffer) as host:
        host.profile(image(), etdump=tmp_path / "etdump")
    calls = rows(tmp_path / "etdump")
    assert len(calls) == len(program.partitions) == 2
    for number, (call, part) in enumerate(zip(calls, program.partitions, strict=True)):
        assert [e.delegate_debug_identifier for e in call] == list(range(len(part.litert.nodes)))
        operations = [o for o in program.report.operations if o.partition == number]
        # Every LiteRT operator stems from one operation of the report; here each is one.
        assert [operations[i].name for i in part.litert.nodes] == [o.name for o in operations]
        for operation, event in zip(operations, call, strict=True):
            kind = event.delegate_debug_metadatas[0].decode().lower().replace("_", "")
            assert operation.name.split(" ")[0].replace("_", "").startswith(kind), kind
        assert all(o.origin.nodes for o in operations)
    assert [o.name for o in program.report.operations] == [
        "transpose",
        "conv2d + relu",
        "max_pool2d",
        "transpose",
        "reshape",
        "fully_connected",
        "softmax",
    ]


@pytest.mark.parametrize("via", ["litert", "tosa"])
def test_a_row_per_operation_of_a_stream(tmp_path, via):
    """The operations of the command stream, under the identifiers that lead to the lines of the user."""
    target = "ethos-u55-128"
    options = EthosUCompileSpec(target, via=via)
    program = micronpu.compile(model(), (image(),), target, calibration=batches((image(),)), options=options)
    with HostProgram(program.buffer) as host:
        host.profile(image(), etdump=tmp_path / "etdump")
    calls = rows(tmp_path / "etdump")
    assert len(calls) == len(program.partitions)
    kinds = []
    for call, part in zip(calls, program.partitions, strict=True):
        assert [e.delegate_debug_identifier for e in call] == [STREAM_IDENTIFIERS + k for k in range(len(call))]
        assert len(call) == len(part.program.sources)
        for event in call:
            kind = event.delegate_debug_metadatas[0].decode()
            if kind == "transfer":
                continue
            kinds.append(kind)
            source = part.program.sources[event.delegate_debug_identifier - STREAM_IDENTIFIERS]
            node = part.graph.nodes[part.model.nodes[source]]
            assert part.debug_handles[event.delegate_debug_identifier] == node.origin.debug_handles
            assert node.origin.source
    assert kinds.count("convolution") >= 2 and "max pool" in kinds
