"""What ExecuTorch's Inspector shows of a program: a row per NPU operation, and the user's operators behind each."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from executorch.devtools import Inspector
from executorch.exir import to_edge_transform_and_lower
from tests.compile.partition.test_edge_entry import partitioner
from tests.compile.small import Small, batches, conv, image, linear, quantized
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import FileError, ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.cli.main import app
from micronpu.ethosu import EthosUOptions, EthosUPartitioner, EthosUQuantizer
from micronpu.runtime import HostProgram
from micronpu.runtime.program import VALUES
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


def test_rows_of_compile(tmp_path):
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
    options = EthosUOptions(target, via=via)
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
            handles = part.debug_handles[event.delegate_debug_identifier]
            assert set(handles) >= set(node.origin.debug_handles)  # and those of what Vela computes with it
            assert node.origin.source
    assert kinds.count("convolution") >= 2 and "max pool" in kinds


def inspected(etdump: Path, etrecord: Path) -> Inspector:
    with quiet():
        return Inspector(etdump_path=str(etdump), etrecord=str(etrecord), debug_buffer_path=f"{etdump}{VALUES}")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("imxrt700-neutron", None),
        ("ethos-u55-128", EthosUOptions("ethos-u55-128", via="litert")),
        ("ethos-u55-128", EthosUOptions("ethos-u55-128", via="tosa")),
    ],
)
def test_compile_writes_both_files(tmp_path, target, options):
    """Every row names the lines of the user, and every operator's values are those of the quantized model."""
    etdump, etrecord = tmp_path / "etdump", tmp_path / "etrecord"
    program = micronpu.compile(
        model(), (image(),), target, calibration=batches((image(),)), options=options, verify=False
    )
    program.save_etrecord(etrecord)
    assert torch.equal(program.run(image(), profile=etdump), program.run(image()))
    inspector = inspected(etdump, etrecord)
    (block,) = (b for b in inspector.event_blocks if b.name == "Execute")
    events = [e for e in block.events if e.delegate_debug_identifier is not None]
    assert len(events) >= 4
    for event in events:
        assert event.op_types and event.is_delegated_op
        assert any("test_profiling.py" in (t or "") for t in event.stack_traces.values()), event.op_types
    gap = inspector.calculate_numeric_gap(micronpu.NumericGap("steps"))
    compared = {op: gap for row, (gap,) in zip(gap["aot_ops"], gap["gap"], strict=True) for op in row}
    assert {"conv2d", "max_pool2d", "linear", "softmax"} <= set(compared)
    # The reference rounds nothing behind an operator, so that half a step is what is rounded, and one what differs.
    assert all(steps <= 1.01 for steps in compared.values()), compared
    sqnr = inspector.calculate_numeric_gap(micronpu.NumericGap("SNR"))
    assert all(value > 30 for (value,) in sqnr["gap"])
    with quiet():
        without = Inspector(etdump_path=str(etdump), etrecord=str(etrecord))
    with pytest.raises(micronpu.OptionError, match=r"no debug buffer.*debug_buffer_path"):
        without.calculate_numeric_gap(micronpu.NumericGap("steps"))


def test_results_that_are_zeros_are_compared(tmp_path):
    etdump, etrecord = tmp_path / "etdump", tmp_path / "etrecord"
    net = torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False), torch.nn.ReLU()).eval()
    torch.nn.init.zeros_(net[0].weight)
    x = torch.randn(1, 8)
    program = micronpu.compile(net, x, "cortex-m55", calibration=[x], verify=False)
    program.save_etrecord(etrecord)
    program.run(x, profile=etdump)
    gap = inspected(etdump, etrecord).calculate_numeric_gap(micronpu.NumericGap("L1"))
    assert all(value == 0 for (value,) in gap["gap"])


def test_kernels_of_a_core_alone_name_the_operators_that_they_compute(tmp_path):
    etdump, etrecord = tmp_path / "etdump", tmp_path / "etrecord"
    torch.manual_seed(0)  # with other weights a range may leave the largest values out, by more than a step
    x = torch.randn(1, 3, 8, 8)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()).eval()
    program = micronpu.compile(net, x, "cortex-m55", calibration=[x], verify=False)
    program.save_etrecord(etrecord)
    program.run(x, profile=etdump)
    inspector = inspected(etdump, etrecord)
    found = {e.name: e.op_types for b in inspector.event_blocks for e in b.events if e.name.startswith("cortex_m::")}
    assert set(found["cortex_m::quantized_conv2d_nhwc.out"]) == {"conv2d.default", "relu.default"}
    assert not found["cortex_m::quantize_per_tensor.out"], "no operator of the model"
    gap = inspector.calculate_numeric_gap(micronpu.NumericGap("steps"))
    assert [row for row in gap["aot_ops"] if "conv2d" in row] and all(steps <= 1.01 for (steps,) in gap["gap"])


def test_what_is_flattened_in_channels_last_order_is_compared_as_the_program_has_it(tmp_path):
    etdump, etrecord = tmp_path / "etdump", tmp_path / "etrecord"
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    layers = (torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    net = torch.nn.Sequential(*layers).eval()
    program = micronpu.compile(net, x, "imxrt700-neutron", calibration=[x], verify=False)
    program.save_etrecord(etrecord)
    program.run(x, profile=etdump)
    gap = inspected(etdump, etrecord).calculate_numeric_gap(micronpu.NumericGap("steps"))
    compared = {op: steps for row, (steps,) in zip(gap["aot_ops"], gap["gap"], strict=True) for op in row}
    assert "flatten" in compared and all(steps <= 1.01 for steps in compared.values()), compared


@pytest.mark.sweep
@pytest.mark.parametrize("via", ["litert", "tosa"])
def test_the_gap_of_the_second_entry(tmp_path, via):
    """ExecuTorch's own flow for an Ethos-U; its reference quantizes as the NPU does."""
    spec = EthosUOptions("ethos-u55-128", via=via)
    with quiet():
        exported = torch.export.export(quantized(model(), (image(),), EthosUQuantizer(spec)), (image(),))
        lowered = to_edge_transform_and_lower(exported, partitioner=[EthosUPartitioner(spec)], generate_etrecord=True)
        program = lowered.to_executorch()
        record = program.get_etrecord()
        record.update_representative_inputs([image()])
        record.save(str(tmp_path / "etrecord"))
    with HostProgram(program.buffer) as host:
        host.record(image(), path=tmp_path / "etdump")
    gap = inspected(tmp_path / "etdump", tmp_path / "etrecord").calculate_numeric_gap(micronpu.NumericGap("steps"))
    compared = {op for row in gap["aot_ops"] for op in row}
    assert {"conv2d", "max_pool2d", "linear", "softmax"} <= compared
    assert all(steps < 0.01 or "erf" in row for row, (steps,) in zip(gap["aot_ops"], gap["gap"], strict=True))


def test_what_is_large_inside_of_a_stream_has_its_place(tmp_path):
    """The runtime ends the process where the values are more than was set aside for them."""
    wide = torch.nn.Sequential(torch.nn.Conv2d(1, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 1, 1)).eval()
    x = torch.randn(1, 1, 8, 8)
    program = micronpu.compile(wide, x, "ethos-u55-128", calibration=[x])
    program.run(x, profile=tmp_path / "e")
    assert (tmp_path / f"e{VALUES}").stat().st_size > 64 * 64


def test_values_that_are_wrong_are_seen(tmp_path):
    """What an operation wrote, set to zero in the record, shows in the row of its operator."""
    etdump, etrecord = tmp_path / "etdump", tmp_path / "etrecord"
    program = micronpu.compile(
        linear().eval(), (torch.ones(1, 8),), "imxrt700", calibration=batches((torch.ones(1, 8),)), verify=False
    )
    program.save_etrecord(etrecord, torch.ones(1, 8))
    program.run(torch.ones(1, 8), profile=etdump)
    inspector = inspected(etdump, etrecord)
    ((steps,),) = inspector.calculate_numeric_gap(micronpu.NumericGap("steps"))["gap"]
    assert steps <= 1.01
    (event,) = (e for b in inspector.event_blocks for e in b.events if e.delegate_debug_identifier is not None)
    event.debug_data[0].zero_()
    ((steps,),) = inspector.calculate_numeric_gap(micronpu.NumericGap("steps"))["gap"]
    assert steps > 10


def test_what_cannot_be_asked_for(tmp_path):
    with pytest.raises(OptionError, match=r"`measure` is 'PSNR'. Try: one of SNR, MSE, L1, steps"):
        micronpu.NumericGap("PSNR")
    program = micronpu.compile(
        linear().eval(), (torch.ones(1, 8),), "imxrt700", calibration=batches((torch.ones(1, 8),))
    )
    (method,) = program._methods.values()
    parts = tuple(replace(part, debug_handles={}) for part in method.partitions)
    bare = replace(program, _methods={"": replace(method, partitions=parts)})
    with pytest.raises(ModelError, match=r"compiled without debug handles.* Try: "):
        bare.save_etrecord(tmp_path / "etrecord")
    with pytest.raises(FileError, match="cannot be written"):
        program.save_etrecord(tmp_path / "none" / "etrecord")


def test_the_command_profiles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = micronpu.compile(
        linear().eval(), (torch.ones(1, 8),), "imxrt700", calibration=batches((torch.ones(1, 8),))
    )
    program.save("p.pte")
    np.save("x.npy", np.ones((1, 8), np.float32))
    done = CliRunner().invoke(app, ["run", "p.pte", "-i", "x.npy", "--profile", "p.etdump", "-o", "."])
    assert done.exit_code == 0 and "Wrote p.etdump and p.etdump.values." in done.output, done.output
    assert np.array_equal(np.load("output_0.npy"), program.run(torch.ones(1, 8)).numpy())
    assert [e.name for call in rows(Path("p.etdump")) for e in call]
    done = CliRunner().invoke(app, ["run", "p.pte", "-i", "x.npy", "--profile", "p.etdump", "--rows"])
    assert done.exit_code == 1 and "--profile records one run" in done.stderr


def test_the_page_shows_what_is_printed(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "profiling.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (_, model_file), (_, script), (_, shown) = blocks
    (tmp_path / "net.py").write_text(model_file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    exec(compile(script, "script", "exec"), {})
    assert capsys.readouterr().out == shown
