"""Scripts for ExecuTorch's own Ethos-U back end with nothing but their imports changed: each call of its pages."""

from __future__ import annotations

import json
from enum import Enum

import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e import FixedQParamsObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec

import micronpu
from micronpu.base.errors import MicroNpuError, OptionError, PayloadError
from micronpu.base.quiet import quiet
from micronpu.compat import (
    ArmPassPipelineConfig,
    QuantizeInfConfig,
    SoftmaxDecompositionConfig,
    VelaExternalBlockPlacements,
)
from micronpu.ethosu import (
    EthosUCompileSpec,
    EthosUOptions,
    EthosUPartitioner,
    EthosUQuantizer,
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from micronpu.frontend.program import is_quantize
from micronpu.runtime import HostProgram
from micronpu.targets.ethosu.payload import PayloadBlock, _parts, blocks, parse

SPEC = EthosUCompileSpec(target="ethos-u55-128", system_config="Ethos_U55_High_End_Embedded", memory_mode="Shared_Sram")
X = (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)


class Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()


def converted(model, inputs, quantizer, prepare=prepare_pt2e):
    with quiet():
        module = torch.export.export(model, inputs).module(check_guards=False)
        prepared = prepare(module, quantizer)
        prepared(*inputs)
        return convert_pt2e(prepared)


def lowered(module, inputs, partitioner):
    with quiet():
        edge = to_edge_transform_and_lower(
            torch.export.export(module, inputs),
            partitioner=[partitioner],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        return edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))


def test_the_tutorial():
    inputs = (torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    quantizer = EthosUQuantizer(SPEC)
    quantizer.set_global(get_symmetric_quantization_config())
    partitioner = EthosUPartitioner(SPEC)
    program = lowered(converted(Add().eval(), inputs, quantizer), inputs, partitioner)
    (y,) = HostProgram(bytes(program.buffer)).run(*inputs)
    assert torch.allclose(y, torch.full((1, 1, 1, 1), 2.0), atol=0.02) and not partitioner.report.host


class Decomposed(nn.Module):
    """Operators that ExecuTorch's `to_edge` takes apart unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.conv(x))
        y = self.linear(nn.functional.pixel_shuffle(nn.functional.silu(y), 2))
        return torch.stack((y, y.transpose(-1, -2).reshape(y.shape)))


@pytest.mark.sweep
def test_the_older_entry_with_operators_to_keep():
    module = converted(Decomposed().eval(), X, EthosUQuantizer(SPEC))
    with quiet():
        partitioner = EthosUPartitioner(SPEC)
        program = partitioner.transform_for_pre_decomposition(torch.export.export(module, X))
        kept, _ = partitioner.ops_to_not_decompose(program)
        config = EdgeCompileConfig(preserve_ops=kept, _check_ir_validity=False)
        edge = to_edge(program, compile_config=config).to_backend(partitioner)
        older = bytes(edge.to_executorch().buffer)
    newer = bytes(lowered(module, X, EthosUPartitioner(SPEC)).buffer)
    assert not partitioner.report.host and partitioner.report.partitions == 1
    assert torch.equal(HostProgram(older).run(*X)[0], HostProgram(newer).run(*X)[0])


def test_training_by_the_configuration():
    quantizer = EthosUQuantizer(SPEC, True)
    quantizer.set_global(get_symmetric_quantization_config(is_qat=True))
    assert quantizer.is_qat and quantizer.global_config == QuantizationConfig(is_qat=True)
    partitioner = EthosUPartitioner(SPEC)
    lowered(converted(net(), X, quantizer, prepare_qat_pt2e), X, partitioner)
    assert not partitioner.report.host
    with pytest.raises(OptionError, match="each need a quantizer"):
        quantizer.set_module_name("0", get_symmetric_quantization_config())


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("config", "activations", "largest"),
    [
        (get_symmetric_quantization_config(is_per_channel=False), torch.int8, 127),
        (get_symmetric_a8w4_quantization_config(is_qat=False), torch.int8, 7),
        (get_symmetric_a16w8_quantization_config(), torch.int16, 127),
    ],
)
def test_symmetric_configurations(config, activations, largest):
    quantizer = EthosUQuantizer(SPEC)
    quantizer.set_global(config)
    module = converted(net(), X, quantizer)
    weights = [b for b in module.buffers() if b.dtype is torch.int8]
    assert weights and max(int(w.abs().max()) for w in weights) == largest
    assert {n.args[-1] for n in module.graph.nodes if is_quantize(n)} == {activations}
    partitioner = EthosUPartitioner(SPEC)
    lowered(module, X, partitioner)
    assert not partitioner.report.host


def test_four_bits_of_one_layer_as_the_function_gives_them():
    quantizer = EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config())
    quantizer.set_module_name("0", get_symmetric_a8w4_quantization_config())  # says is_qat=True, as ExecuTorch's
    weights = [int(b.abs().max()) for b in converted(net(), X, quantizer).buffers() if b.dtype is torch.int8]
    assert weights == [7, 127]
    with pytest.raises(OptionError, match="`prepare_pt2e`, or a EthosUQuantizer\\(is_qat=True\\)"):
        converted(net(), X, quantizer, prepare_qat_pt2e)


class Finder:
    """As ExecuTorch's `NodeFinder`: a class of the user's with one method."""

    def find_nodes(self, model):
        return [n for n in model.graph.nodes if n.name == "conv2d_1"]


@pytest.mark.parametrize(
    "finder", [Finder(), "conv2d_1", ["conv2d_1"], lambda n: n.name == "conv2d_1", torch.ops.aten.conv2d.default]
)
def test_nodes_are_found(finder):
    quantizer = EthosUQuantizer(SPEC)
    quantizer.set_node_finder(None, finder)
    module = converted(net(), X, quantizer)
    quantized = [n for n in module.graph.nodes if "conv2d" in n.name and any(map(is_quantize, n.users))]
    assert [n.name for n in module.graph.nodes if "conv2d" in n.name and n not in quantized][-1:] == ["conv2d_1"]
    with pytest.raises(OptionError, match="finds no nodes"):
        quantizer.set_node_finder(None, 7)


def test_arguments_of_the_compile_spec(tmp_path):
    plain = EthosUCompileSpec("ethos-u55-128")
    assert EthosUCompileSpec("ethos-u55-128", None, None, None, "Arm/vela.ini") == plain
    assert EthosUCompileSpec("ethos-u55-128", config_ini=None, extra_flags=None) == plain
    idle = ["--output-format=raw", "--debug-force-regor", "--verbose-operators", "--recursion-limit", "1000"]
    idle += ["--verbose-cycle-estimate", "--enable-debug-db"]  # of `aot_arm_compiler.py`
    spec = EthosUCompileSpec("ethos-u55-128", extra_flags=[*idle, "--optimise=Size"])
    assert list(spec.options.vela_options().values()) == ["Size"]
    assert "--debug-force-regor" in spec.options.notes[0] and "--optimise" not in spec.options.notes[0]
    assert not plain.options.notes
    assert EthosUPartitioner(spec).device.policy().notes == spec.options.notes
    placed = VelaExternalBlockPlacements(weight_data="weights")
    spec = EthosUCompileSpec("ethos-u55-128", None, None, None, None, placed)
    assert (spec.options.external_commands, spec.options.external_weights) == ("", "weights")
    assert EthosUOptions.from_specs(spec.to_specs()) == spec.options
    with pytest.raises(OptionError, match="'other' and, in external_block_placements, 'weights'"):
        EthosUCompileSpec("ethos-u55-128", external_block_placements=placed, external_weights="other")
    assert plain.dump_intermediate_artifacts_to(tmp_path / "made") is plain
    partitioner = EthosUPartitioner(plain)
    lowered(converted(net(), X, EthosUQuantizer(plain)), X, partitioner)
    assert any((tmp_path / "made").iterdir())
    assert plain.dump_intermediate_artifacts_to(None).options.intermediates_dir == ""


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: VelaExternalBlockPlacements(cmd_data=""), "`cmd_data` is ''"),
        (lambda: EthosUCompileSpec("ethos-u55-128", external_block_placements="weights"), "is a str"),
        (lambda: EthosUCompileSpec("ethos-u55-128", extra_flags=["--output-format=tflite"]), "is 'tflite'"),
        (lambda: EthosUCompileSpec("ethos-u99"), "ethos-u99"),
        (lambda: get_symmetric_quantization_config(is_dynamic=True), "`is_dynamic` is True"),
        (lambda: get_symmetric_quantization_config(weight_qmin=-63, weight_qmax=63), "are not supported"),
        (lambda: SPEC.dump_debug_info("json"), "`debug_mode` is 'json'"),
        (lambda: SPEC.set_pass_pipeline_config("stable"), "`config` is a str"),
        (lambda: ArmPassPipelineConfig(softmax="stable"), "no SoftmaxDecompositionConfig"),
        (lambda: QuantizeInfConfig(neg_inf="-inf"), "`neg_inf` is '-inf'"),
        (lambda: QuantizationConfig(weight_bits=2), "`weight_bits` is 2"),
        (lambda: EthosUPartitioner(SPEC).register_custom_partition_op("relu"), "an overload of an operator"),
    ],
)
def test_wrong_arguments_are_value_errors(call, sentence):
    with pytest.raises(ValueError, match=sentence) as raised:
        call()
    assert isinstance(raised.value, MicroNpuError)


class Shifted:
    """As torchao's `Quantizer`: one operator on a grid of the user's own."""

    def __init__(self, name: str) -> None:
        self.name, self.asked = name, []

    def annotate(self, model):
        self.asked.append("annotate")
        (node,) = (n for n in model.graph.nodes if n.name == self.name)
        kind = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_affine}
        observer = FixedQParamsObserver.with_args(**kind, scale=0.5, zero_point=7)
        kinds = QuantizationSpec(**kind, observer_or_fake_quant_ctr=observer)
        node.meta["quantization_annotation"] = QuantizationAnnotation({node.args[0]: kinds}, kinds, _annotated=True)
        return model

    def validate(self, model):
        self.asked.append("validate")


def test_a_quantizer_that_is_asked_first():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3)).eval()
    other = Shifted("tanh")
    quantizer = EthosUQuantizer(SPEC).add_quantizer(other)
    module = converted(model, X, quantizer)
    assert other.asked == ["annotate", "validate"] * 2  # `convert_pt2e` quantizes the float program again
    (tanh,) = (n for n in module.graph.nodes if n.name == "tanh")
    assert [n.args[1:3] for n in tanh.users] == [(0.5, 7)]  # ours would be (1 / 128, 0)
    assert len([n for n in module.graph.nodes if is_quantize(n)]) == 4
    partitioner = EthosUPartitioner(SPEC)
    lowered(module, X, partitioner)
    assert not partitioner.report.host
    program = micronpu.compile(model, X, "ethos-u55-128", calibration=[X], quantization=quantizer)
    assert not program.report.host and other.asked == ["annotate", "validate"] * 3
    for wrong in (quantizer, torch.relu):
        with pytest.raises(OptionError, match="`add_quantizer` got"):
            quantizer.add_quantizer(wrong)


def test_setters_of_passes_and_of_what_is_written(tmp_path):
    quantizer = EthosUQuantizer(SPEC)
    quantizer.global_config = get_symmetric_a16w8_quantization_config()
    assert quantizer.global_config.activations == "int16"
    spec = EthosUCompileSpec("ethos-u55-128")
    spec.set_pass_pipeline_config(ArmPassPipelineConfig())
    assert not spec.notes
    spec.set_pass_pipeline_config(
        ArmPassPipelineConfig(softmax=SoftmaxDecompositionConfig.STABLE, quantize_inf=QuantizeInfConfig(neg_inf=-100.0))
    )
    assert spec.dump_debug_info(EthosUCompileSpec.DebugMode.JSON) is spec and spec.options.debug_info
    theirs = Enum("DebugMode", ["JSON", "TOSA"])  # of `ArmCompileSpec`, which a script may still import
    assert spec.dump_debug_info(None).dump_debug_info(theirs["TOSA"]).options.debug_info
    assert "without effect here: softmax, quantize_inf" in spec.notes[0] and "no folder" in spec.options.notes[0]
    spec.dump_intermediate_artifacts_to(tmp_path)
    partitioner = EthosUPartitioner(spec)
    lowered(converted(net(), X, EthosUQuantizer(spec)), X, partitioner)
    (file,) = tmp_path.rglob("debug.json")
    rows = json.loads(file.read_text())
    assert {row["computes"].split("{")[0] for row in rows} >= {"conv2d"}
    assert {row["module"] for row in rows} >= {"0", "2"} and any("relu" in row["computes"] for row in rows)
    assert all(row["nodes"] and row["debug_handles"] for row in rows)
    assert partitioner.report.notes[-1:] != () and any("softmax" in note for note in partitioner.report.notes)
    assert not spec.dump_debug_info(None).options.debug_info


def test_operators_of_ones_own_are_noted():
    partitioner = EthosUPartitioner(SPEC)
    partitioner.register_custom_partition_op(torch.ops.aten.erfinv.default)
    lowered(converted(net(), X, EthosUQuantizer(SPEC)), X, partitioner)
    assert any("aten.erfinv.default" in note for note in partitioner.report.notes)


def test_a_block_elsewhere_has_a_key_of_64_bytes():
    spec = EthosUCompileSpec("ethos-u55-128", external_block_placements=VelaExternalBlockPlacements("commands"))
    program = lowered(converted(net(), X, EthosUQuantizer(spec)), X, EthosUPartitioner(spec))
    (payload,) = program.executorch_program.backend_delegate_data
    parse(payload.data)
    cut = [PayloadBlock(b.name, b.data[:-1], True) if b.external else b for b in blocks(payload.data)]
    short = b"".join(part for block in cut for part in _parts(block))
    with pytest.raises(PayloadError, match="under a key of 63 bytes, not 64"):
        parse(short)
