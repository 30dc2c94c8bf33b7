"""Every option of a Neutron compilation: validated, carried by key, and doing what it says."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import fields, replace

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx.passes.infra.pass_base import PassResult
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import micronpu
from micronpu.base.errors import FileError, OptionError
from micronpu.ir import DType, GraphBuilder, QParams, TensorType
from micronpu.neutron import (
    CustomDelegationOptions,
    NeutronCompileSpecBuilder,
    NeutronEdgePassManager,
    NeutronOptions,
    NeutronPartitioner,
    NeutronQuantizer,
    NeutronTargetSpec,
    generate_neutron_compile_spec,
    merge_kernel_selections,
)
from micronpu.ops.clamps import Relu
from micronpu.ops.elementwise import Add
from micronpu.partition.entry import split_dequantizes
from micronpu.runtime import HostProgram
from micronpu.targets.neutron.compile import compile_graph
from micronpu.targets.neutron.sdk import parse_selection, render_selection

OTHER = NeutronOptions(
    silicon="mcxn94x",
    extra_flags=("--a", "b=c d"),
    operators_not_to_delegate=("aten.add.Tensor",),
    use_neutron_for_format_conversion=False,
    fetch_constants_to_sram=True,
    dump_kernel_selection_code=True,
    profiling=True,
    intermediates_dir="somewhere/new",
    converter="reference",
    converter_flavor="SDK_25_09",
    converter_timeout=7.5,
    sdk_version="3.2.0",
    disabled_passes=("fuse_activations",),
    excluded_graph_passes=("MergeTranspose",),
)


# --- values and pairs ---------------------------------------------------------------------------------------------


def test_every_option_makes_the_round_trip_by_key():
    default = NeutronOptions()
    for field in fields(OTHER):
        assert getattr(OTHER, field.name) != getattr(default, field.name), f"the test leaves out {field.name}"
    specs = OTHER.to_specs()
    assert {s.key for s in specs} == {f.name for f in fields(OTHER)} - {"silicon"} | {"config"}
    assert NeutronOptions.from_specs(reversed(specs)) == OTHER
    assert NeutronOptions.from_specs([]) == default
    kept = {key for key, _ in OTHER.to_pairs(for_program=True)}
    assert kept == {s.key for s in specs} - {"intermediates_dir", "converter_timeout"}


def test_function_and_builder_know_every_option():
    values = {f.name: getattr(OTHER, f.name) for f in fields(OTHER) if f.name != "silicon"}
    made = generate_neutron_compile_spec("mcxn94x", **values)
    assert NeutronOptions.from_specs(made) == OTHER
    assert NeutronCompileSpecBuilder().neutron_compile_spec("mcxn94x", **values).build() == made
    assert generate_neutron_compile_spec("imxrt700", extra_flags="--a  --b")[1].value == b'["--a", "--b"]'


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("silicon", "imx93", "'imx93' has no Neutron"),
        ("extra_flags", "--a", "list of strings"),
        ("extra_flags", ("",), "filled strings"),
        ("operators_not_to_delegate", ("aten.ad.Tensor",), "no operator 'aten.ad.Tensor'"),
        ("operators_not_to_delegate", ("aten.add.Tenser",), "aten.add.Tensor"),
        ("operators_not_to_delegate", "aten.add.Tensor", "list of strings"),
        ("use_neutron_for_format_conversion", 1, "True or False"),
        ("fetch_constants_to_sram", "yes", "True or False"),
        ("dump_kernel_selection_code", None, "True or False"),
        ("profiling", 0, "True or False"),
        ("intermediates_dir", 3, "path of a folder"),
        ("converter", "vela", "one of auto, reference, sdk"),
        ("converter_flavor", "SDK_25_11", "one of SDK_25_06"),
        ("converter_timeout", 0, "positive number of seconds"),
        ("converter_timeout", "10", "positive number of seconds"),
        ("sdk_version", 3.2, "such as"),
        ("disabled_passes", ("no_such_pass",), "no pass 'no_such_pass'"),
        ("disabled_passes", ("split_pads",), "cannot be left out"),
    ],
)
def test_wrong_values_are_refused_at_construction(name, value, sentence):
    with pytest.raises(OptionError, match=sentence):
        replace(NeutronOptions(), **{name: value})
    spec = CompileSpec("config" if name == "silicon" else name, json.dumps(value).encode())
    if not isinstance(value, tuple):
        with pytest.raises(OptionError, match=sentence):
            NeutronOptions.from_specs([spec])


def test_pairs_that_are_no_options():
    for specs, sentence in (
        ([CompileSpec("fast", b"1")], "no compile spec 'fast'.*one of config"),
        ([CompileSpec("config", b'"imxrt700"')] * 2, "given twice"),
        ([CompileSpec("config", b"\xff")], "not JSON"),
    ):
        with pytest.raises(OptionError, match=sentence):
            NeutronOptions.from_specs(specs)
    with pytest.raises(OptionError, match="has no chip"):
        NeutronCompileSpecBuilder().build()


def test_intermediates_dir_that_is_a_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "deeper"):
        with pytest.raises(OptionError, match="is a file, not a folder"):
            NeutronOptions(intermediates_dir=str(path))
    options = NeutronOptions(intermediates_dir=str(tmp_path / "late"))
    (tmp_path / "late").write_text("")  # between the check and the work
    with pytest.raises(FileError, match="cannot be made"):
        compile_graph(chain(), options)


def test_delegation_options_are_typed():
    assert not CustomDelegationOptions().allow_no_op_partitions
    with pytest.raises(OptionError, match="True or False"):
        CustomDelegationOptions(allow_no_op_partitions=1)
    for arguments, sentence in (
        ({"custom_delegation_options": True}, "is True, not CustomDelegationOptions or None"),
        ({"neutron_target_spec": "imxrt700"}, "is .imxrt700., not NeutronTargetSpec or None"),
        ({"post_quantization_state_dict": [1]}, "is of type list, not Mapping or None"),
        ({"preserve_ops": ["aten.hardswish.default"]}, "no overload of an ATen operator"),
        ({"preserve_ops": [torch.ops.aten.hardswish]}, "no overload of an ATen operator"),
    ):
        with pytest.raises(OptionError, match=sentence):
            NeutronPartitioner(generate_neutron_compile_spec("imxrt700"), **arguments)


def test_compile_spec_and_target_must_be_one_device():
    spec = generate_neutron_compile_spec("imxrt700")
    with pytest.raises(OptionError, match="is for imxrt700 with the rules of latest, the target is imx95"):
        NeutronPartitioner(spec, NeutronTargetSpec("imx95"))
    older = generate_neutron_compile_spec("imxrt700", converter_flavor="SDK_25_09")
    with pytest.raises(OptionError, match="with those of SDK_25_12"):
        NeutronPartitioner(older, NeutronTargetSpec("imxrt700", "SDK_25_12"))
    # the default of one asks for nothing
    for given, target in ((older, NeutronTargetSpec("imxrt700")), (spec, NeutronTargetSpec("imxrt700", "SDK_25_09"))):
        assert NeutronPartitioner(given, target).options.converter_flavor == "SDK_25_09"
    alone = NeutronPartitioner(neutron_target_spec=NeutronTargetSpec("imx95", "SDK_25_12"))
    assert (alone.options.silicon, alone.options.converter_flavor) == ("imx95", "SDK_25_12")


# --- what they do -------------------------------------------------------------------------------------------------


def chain():
    """y = relu(a + b)"""
    builder = GraphBuilder()
    qparams = QParams.per_tensor(0.05, -10)
    a, b = (builder.input(TensorType((1, 8), DType.INT8, QParams.per_tensor(0.05, 3))) for _ in range(2))
    return builder.finish(builder.emit(Relu(), builder.emit(Add(), a, b, qparams=qparams), qparams=qparams))


def test_disabled_passes_stay_out():
    assert len(compile_graph(chain(), NeutronOptions()).graph.nodes) == 1
    apart = compile_graph(chain(), NeutronOptions(disabled_passes=("fuse_activations",)))
    assert [n.op.name for n in apart.graph.nodes] == ["add", "relu"]


def test_kernel_selection_of_the_reference_converter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compile_graph(chain(), NeutronOptions(dump_kernel_selection_code=True))
    text = (tmp_path / "partition_kernel_selection.c").read_text()
    assert parse_selection(text) == ("ADD",)
    assert "Derived from the LiteRT operators" in text and "vendor's converter was not" in text
    other = tmp_path / "other.c"
    other.write_text(render_selection(["SOFTMAX", "ADD", "CONV_2D"]))
    merged = merge_kernel_selections(["partition_kernel_selection.c", other], tmp_path / "all.c")
    assert parse_selection(merged.read_text()) == ("ADD", "CONV_2D", "SOFTMAX")
    compiler = next(c for c in ("cc", "gcc", "clang", "c++", "g++") if shutil.which(c))
    subprocess.run([compiler, "-x", "c", "-Wall", "-Werror", "-fsyntax-only", str(merged)], check=True)


def test_merging_refuses_what_it_cannot_merge(tmp_path):
    ours, theirs = tmp_path / "a.c", tmp_path / "b.c"
    ours.write_text(render_selection(["ADD"]))
    theirs.write_text("int32_t kernels[3];\n")
    with pytest.raises(OptionError, match="There are no kernel selections"):
        merge_kernel_selections([], tmp_path / "all.c")
    with pytest.raises(OptionError, match="one lists kernels, the other operators"):
        merge_kernel_selections([ours, theirs], tmp_path / "all.c")
    with pytest.raises(FileError, match="cannot be read: No such file"):
        merge_kernel_selections([tmp_path / "none.c"], tmp_path / "all.c")
    theirs.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="it is not text"):
        merge_kernel_selections([theirs], tmp_path / "all.c")
    with pytest.raises(FileError, match="does not exist"):
        merge_kernel_selections([ours], tmp_path / "nowhere" / "all.c")
    assert not (tmp_path / "all.c").exists()


class Net(torch.nn.Module):
    """A convolution, an addition and a softmax over 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 10)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return torch.softmax(self.linear((y + y).mean([2, 3])), 1)


X = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def compiled(**options):
    torch.manual_seed(0)
    chosen = NeutronOptions(**options)
    return micronpu.compile(Net().eval(), X, chosen.silicon, calibration=[X], options=chosen)


def test_intermediates_of_a_program(tmp_path):
    program = compiled(intermediates_dir=str(tmp_path / "a" / "b"))
    (part,) = program.partitions
    folder = tmp_path / "a" / "b" / part.name
    assert (folder / "payload.bin").read_bytes() == part.payload
    before, after = ((folder / f"graph_{w}.txt").read_text() for w in ("before", "after"))
    assert before.count("transpose") > after.count("transpose") and "conv2d" in after
    report = json.loads((folder / "report.json").read_text())
    assert report["kind"] == "reference" and report["bytes"]["payload"] == len(part.payload)
    assert str(tmp_path).encode() not in program.buffer
    assert compiled().buffer == program.buffer


def test_the_report_says_what_is_assumed_about_a_device():
    notes = " ".join(compiled(silicon="imx952").report.notes)
    assert "Assumed about the Neutron of NXP i.MX 952: 8 pipelines of 8 multipliers" in notes
    assert "Assumed" not in " ".join(compiled().report.notes)


def test_flavor_in_compile():
    class Exponential(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(8, 8, 3)

        def forward(self, x):
            return torch.exp(self.conv(x))

    def rules(flavor):
        options = NeutronOptions(converter_flavor=flavor)
        found = micronpu.check(Exponential().eval(), torch.randn(1, 8, 6, 6), "imxrt700-neutron", options=options)
        return {r.rule for v in found.report.host for r in v.reasons}

    assert rules("latest") == set()
    assert rules("SDK_25_12") == {"operator_exists"}


def test_options_for_another_chip_than_the_target():
    with pytest.raises(OptionError, match="target is imxrt700, but the options are for imx95"):
        micronpu.compile(Net().eval(), X, "imxrt700", calibration=[X], options=NeutronOptions(silicon="imx95"))


# --- the partitioner in ExecuTorch's flow -------------------------------------------------------------------------


def quantized(model, *examples):
    """The exported quantized program, as ExecuTorch's users have it."""
    module = torch.export.export(model.eval(), examples).module()
    prepared = prepare_pt2e(module, NeutronQuantizer())
    prepared(*examples)
    return torch.export.export(convert_pt2e(prepared), examples)


def lowered(program, partitioner, transform_passes=None, config=None):
    config = config or EdgeCompileConfig(_check_ir_validity=False)
    return to_edge_transform_and_lower(
        program, partitioner=[partitioner], transform_passes=transform_passes, compile_config=config
    )


def calls(edge) -> int:
    return sum("executorch_call_delegate" in str(n.target) for n in edge.exported_program().graph.nodes)


class Moves(torch.nn.Module):
    def forward(self, x):
        return x.reshape(2, 12).unsqueeze(1)


class Nothing(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, training=False)


def test_partitions_that_only_move_values():
    x = torch.randn(2, 3, 4)
    program = quantized(Moves(), x)
    careful = NeutronPartitioner()
    assert calls(lowered(program, careful)) == 0
    assert {r.rule for v in careful.report.host for r in v.reasons} == {"computes"}
    bold = NeutronPartitioner(custom_delegation_options=CustomDelegationOptions(allow_no_op_partitions=True))
    edge = lowered(program, bold)
    assert calls(edge) == 1 and not bold.report.host
    (y,) = HostProgram(bytes(edge.to_executorch().buffer)).run(x)
    assert torch.equal(y, program.module()(x))


class Shuffle(torch.nn.Module):
    """Channels of two groups interleaved: a reshape of something transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = self.conv(x)
        return self.conv(y.view(1, 2, 4, 4, 4).transpose(1, 2).reshape(1, 8, 4, 4))


@pytest.mark.sweep
@pytest.mark.parametrize("wanted", [True, False])
def test_a_reshape_of_something_transposed_stays_in_one_partition(wanted):
    x = torch.randn(1, 8, 4, 4)
    program = quantized(Shuffle(), x)
    before = str(program.graph)
    excluded = [] if wanted else ["aten.reshape.default", "aten._reshape_copy.default"]
    partitioner = NeutronPartitioner(generate_neutron_compile_spec("imxrt700", operators_not_to_delegate=excluded))
    edge = lowered(program, partitioner, config=EdgeCompileConfig())  # checks the edge program, as is the default
    assert calls(edge) == (1 if wanted else 2)
    assert str(program.graph) == before
    (y,) = HostProgram(bytes(edge.to_executorch().buffer)).run(x)
    assert torch.allclose(y, program.module()(x), atol=0.05)


def test_no_partition_with_nothing_to_run():
    bold = NeutronPartitioner(custom_delegation_options=CustomDelegationOptions(allow_no_op_partitions=True))
    assert calls(lowered(quantized(Nothing(), torch.randn(2, 3)), bold)) == 0


@pytest.mark.sweep
def test_edge_pass_manager():
    program = quantized(Net(), X)
    plain, managed = NeutronPartitioner(), NeutronPartitioner()
    without = lowered(program, plain)
    edge = lowered(program, managed, NeutronEdgePassManager())
    assert calls(edge) == calls(without) == 1
    assert edge.to_executorch().buffer == without.to_executorch().buffer
    seen = []

    def look(module):
        seen.append(len(module.graph.nodes))
        return PassResult(module, False)

    lowered(program, NeutronPartitioner(), NeutronEdgePassManager([look]))
    assert len(seen) == 1 and seen[0] > 10


class Shared(torch.nn.Module):
    """One value that the NPU reads, and the host with operators that read it more than once."""

    def forward(self, x):
        y = torch.relu(x)
        return torch.atan2(y, y) + y, torch.tanh(y)


def join(module):
    """One dequantize for all readers of the same integers, as nobody should."""
    first = {}
    for node in list(module.graph.nodes):
        if "dequantize_per_tensor" in str(node.target):
            kept = first.setdefault(node.args, node)
            if kept is not node:
                node.replace_all_uses_with(kept)
                module.graph.erase_node(node)
    module.recompile()
    return PassResult(module, True)


@pytest.mark.sweep
@pytest.mark.parametrize("joined", [False, True])
def test_a_dequantize_that_the_host_reads_too(joined):
    x = torch.randn(2, 8)
    program = quantized(Shared(), x)
    expected = program.module()(x)
    if joined:
        join(program.graph_module)
    before = str(program.graph)
    for passes in (None, NeutronEdgePassManager()):
        partitioner = NeutronPartitioner()
        edge = lowered(program, partitioner, passes)
        assert calls(edge) >= 1
        assert str(program.graph) == before  # it belongs to the user
        results = HostProgram(bytes(edge.to_executorch().buffer)).run(x)
        assert all(torch.allclose(a, b, atol=0.05) for a, b in zip(results, expected, strict=True))


def test_a_shared_dequantize_at_the_last_moment():
    """Someone joins the dequantizes again behind our back: a reason, or the pass manager, and never an abort."""
    program = quantized(Shared(), torch.randn(2, 8))
    partitioner = NeutronPartitioner()
    lowered(program, partitioner, [join])
    assert "dequantize_is_its_own" in {r.rule for v in partitioner.report.host for r in v.reasons}
    for passes in (NeutronEdgePassManager([join]), [join, split_dequantizes]):
        cured = NeutronPartitioner()
        lowered(program, cured, passes)
        assert "dequantize_is_its_own" not in {r.rule for v in cured.report.host for r in v.reasons}
        assert cured.report.delegated > partitioner.report.delegated


class Mixed(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.hardswish(x) + torch.relu(x)


def test_preserve_ops_never_aborts_and_is_explained(caplog):
    """An operator that cannot be delegated, here because the user says so, is decomposed in spite of the list."""
    x = torch.randn(1, 8)
    wanted = [torch.ops.aten.hardswish.default]
    spec = generate_neutron_compile_spec("imxrt700", operators_not_to_delegate=["aten.hardswish.default"])
    partitioner = NeutronPartitioner(spec, preserve_ops=wanted, post_quantization_state_dict={})
    edge = lowered(quantized(Mixed(), x), partitioner)
    assert calls(edge) >= 1
    notes = [n for n in partitioner.report.notes if "preserve_ops" in n]
    assert len(notes) == 1 and notes[0].startswith("hardswish.default is in preserve_ops, but is not kept whole")
    assert "operators_not_to_delegate" in notes[0]
    assert not any("hardswish" in v.operator for v in partitioner.report.verdicts)
    assert "ignored because" not in caplog.text  # ExecuTorch warns of requests that mean nothing

    kept = NeutronPartitioner(preserve_ops=wanted)
    lowered(quantized(Mixed(), x), kept)
    assert [v.operator for v in kept.report.verdicts if v.delegated].count("hardswish.default") == 1
    assert not any("preserve_ops" in n for n in kept.report.notes)
    plain = NeutronPartitioner()
    lowered(quantized(Mixed(), x), plain)
    assert plain.report == kept.report
