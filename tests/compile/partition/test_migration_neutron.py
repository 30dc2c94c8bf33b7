"""Scripts for ExecuTorch's own Neutron back end with nothing but their imports changed: each call of its pages."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from torch import nn
from torchao.quantization.pt2e import move_exported_model_to_eval, move_exported_model_to_train
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from micronpu.base.errors import MicroNpuError, OptionError
from micronpu.base.quiet import quiet
from micronpu.compat import (
    NeutronHWVersion,
    RemoveAdditionalQDQClustersPass,
    RemoveIOQuantOpsPass,
    core_aten_ops_exception_list,
)
from micronpu.neutron import (
    NeutronCompileSpecBuilder,
    NeutronEdgePassManager,
    NeutronOptions,
    NeutronPartitioner,
    NeutronQuantizer,
    NeutronTargetSpec,
    calibrate_and_quantize,
    generate_neutron_compile_spec,
)
from micronpu.runtime import HostProgram

X = (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)


class Net(nn.Module):
    """A convolution with batch norm, a clamp, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))


def options_of(specs) -> NeutronOptions:
    return NeutronOptions.from_specs(specs)


@pytest.fixture(scope="module")
def quantized():
    """Steps 1 to 5 of the page on quantization."""
    target = NeutronTargetSpec(target="imxrt700", converter_flavor="SDK_25_09")
    quantizer = NeutronQuantizer(target)
    with quiet():
        prepared = prepare_pt2e(torch.export.export(Net().eval(), X).module(), quantizer)
        prepared(*X)
        return convert_pt2e(prepared)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "partitioner",
    [
        # release 1.0: the flavor in the compile spec, and no target
        lambda: NeutronPartitioner(
            compile_spec=generate_neutron_compile_spec(
                "imxrt700", operators_not_to_delegate=None, neutron_converter_flavor="SDK_25_06"
            )
        ),
        # later ones: a target beside it, of one flavor or another name of it
        lambda: NeutronPartitioner(
            compile_spec=generate_neutron_compile_spec("imxrt700", operators_not_to_delegate=None),
            neutron_target_spec=NeutronTargetSpec(target="imxrt700", neutron_converter_flavor="SDK_25_12"),
        ),
        lambda: NeutronPartitioner(
            generate_neutron_compile_spec("imxrt700"), NeutronTargetSpec("imxrt700"), check_op_support=lambda node: True
        ),
    ],
)
def test_the_lowering_of_the_page_on_quantization(quantized, partitioner):
    chosen = partitioner()
    with quiet():
        program = to_edge_transform_and_lower(
            torch.export.export(quantized, X), partitioner=[chosen], compile_config=EdgeCompileConfig()
        ).to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
    assert chosen.report is not None and not chosen.report.host
    (y,) = HostProgram(bytes(program.buffer)).run(*X)
    assert torch.allclose(y, quantized(*X), atol=0.05)


@pytest.mark.sweep
@pytest.mark.parametrize("train", [False, True])
def test_calibrate_and_quantize_trains(train):
    steps = []

    def train_fn(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            module(*X).square().mean().backward()
            optimizer.step()
            steps.append(1)

    with quiet():
        module = calibrate_and_quantize(
            torch.export.export(Net().eval(), X),
            [X],
            NeutronQuantizer(NeutronTargetSpec("imxrt700"), True),
            is_qat=True,
            train_fn=train_fn if train else None,
        )
        chosen = NeutronPartitioner(generate_neutron_compile_spec("imxrt700"), NeutronTargetSpec("imxrt700"))
        to_edge_transform_and_lower(torch.export.export(module, X), partitioner=[chosen])
    assert len(steps) == 2 * train and not chosen.report.host
    if not train:
        assert torch.allclose(module(*X), Net().eval()(*X), atol=0.1)
    with pytest.raises(OptionError, match="`is_qat` is False"):
        calibrate_and_quantize(module, [X], NeutronQuantizer(), train_fn=train_fn)


def test_the_steps_of_the_page_on_training():
    quantizer = NeutronQuantizer(neutron_target_spec=NeutronTargetSpec(target="imxrt700"), is_qat=True)
    with quiet():
        prepared = prepare_qat_pt2e(torch.export.export(Net().eval(), X).module(), quantizer)
        prepared = move_exported_model_to_train(prepared)
        prepared(*X).square().mean().backward()
        module = convert_pt2e(move_exported_model_to_eval(prepared))
        chosen = NeutronPartitioner()
        to_edge_transform_and_lower(torch.export.export(module, X), partitioner=[chosen])
    assert not chosen.report.host


def test_a_check_of_ones_own_keeps_operators_on_the_host(quantized):
    def no_clamps(node) -> bool:
        return "relu" not in str(node.target)

    chosen = NeutronPartitioner(generate_neutron_compile_spec("imxrt700"), check_op_support=no_clamps)
    with quiet():
        to_edge_transform_and_lower(torch.export.export(quantized, X), partitioner=[chosen])
    refused = [r for v in chosen.report.host for r in v.reasons if r.rule == "additional_check"]
    assert refused and all("no_clamps refuses it" in r.detail for r in refused)
    with pytest.raises(OptionError, match="cannot be called"):
        NeutronPartitioner(check_op_support="relu")


@pytest.mark.sweep
def test_integer_io_of_an_edge_program(quantized):
    def lowered():
        return to_edge_transform_and_lower(
            torch.export.export(quantized, X),
            partitioner=[NeutronPartitioner()],
            compile_config=EdgeCompileConfig(_core_aten_ops_exception_list=core_aten_ops_exception_list),
        )

    with quiet():
        floats = HostProgram(bytes(lowered().to_executorch().buffer)).run(*X)[0]
        edge = lowered()
        edge = edge.transform([RemoveIOQuantOpsPass(edge_program_manager=edge)])
        program = HostProgram(bytes(edge.to_executorch().buffer))
    dequantize = next(n for n in reversed(quantized.graph.nodes) if "dequantize_per_tensor" in str(n.target))
    quantize = next(n for n in quantized.graph.nodes if "quantize_per_tensor" in str(n.target))
    scale, zero_point = quantize.args[1:3]
    integers = torch.clamp(torch.round(X[0] / scale) + zero_point, -128, 127).to(torch.int8)
    (y,) = program.run(integers)
    assert y.dtype is torch.int8
    assert torch.equal((y.float() - dequantize.args[2]) * dequantize.args[1], floats)
    with pytest.raises(OptionError, match="to_edge_transform_and_lower"):
        RemoveIOQuantOpsPass(edge.exported_program())


class Turned(nn.Module):
    """What only moves values, between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = self.first(x)
        return self.last(torch.cat([y.permute(0, 1, 3, 2), y], 2))


def test_what_the_host_moves_stays_integers_after_the_last_step_of_the_script():
    spec = generate_neutron_compile_spec("imxrt700", operators_not_to_delegate=["aten::permute", "aten::cat"])
    with quiet():
        module = calibrate_and_quantize(torch.export.export(Turned().eval(), X), [X], NeutronQuantizer())
        edge = to_edge_transform_and_lower(
            torch.export.export(module, X),
            transform_passes=NeutronEdgePassManager(),
            partitioner=[NeutronPartitioner(spec)],
            compile_config=EdgeCompileConfig(_core_aten_ops_exception_list=core_aten_ops_exception_list),
        )
        floats = deepcopy(edge)
        integers = edge.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))
        moved = integers.exported_program().graph.nodes
        kinds = {n.name: n.meta["val"].dtype for n in moved if n.name.startswith("aten")}
        results = [HostProgram(bytes(e.to_executorch().buffer)).run(*X)[0] for e in (floats, integers)]
    assert kinds == {"aten_permute_copy_default": torch.int8, "aten_cat_default": torch.int8}
    assert torch.equal(*results)


def test_names_and_places_of_the_compile_spec(tmp_path):
    by_place = generate_neutron_compile_spec(
        "imxrt700", None, "--verbose", str(tmp_path), ["aten::relu"], False, True, True, True
    )
    by_name = generate_neutron_compile_spec(
        "imxrt700",
        system_config=None,
        extra_flags="--verbose",
        intermediates_dir=str(tmp_path),
        operators_not_to_delegate=["aten_relu_default"],
        use_neutron_for_format_conversion=False,
        fetch_constants_to_sram=True,
        dump_kernel_selection_code=True,
        use_profiling=True,
    )
    built = NeutronCompileSpecBuilder().neutron_compile_spec(
        "imxrt700", str(tmp_path), "--verbose", ["aten::relu"], False, True, True, True
    )
    assert options_of(by_place) == options_of(built.build())
    assert options_of(by_place).profiling and options_of(by_name).profiling
    assert options_of(by_name).excluded(["relu.default"]) and options_of(by_place).excluded(["relu.default"])
    # the second argument of the first releases
    assert options_of(generate_neutron_compile_spec("imxrt700", "SDK_25_06")).converter_flavor == "SDK_25_06"
    assert options_of(generate_neutron_compile_spec("imxrt700", "board")) == options_of(
        generate_neutron_compile_spec("imxrt700")
    )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: NeutronTargetSpec("imxrt9000"), "has no Neutron"),
        (lambda: generate_neutron_compile_spec("imxrt9000"), "has no Neutron"),
        (lambda: generate_neutron_compile_spec("imxrt700", neutron_converter_flavor="SDK_25_03"), "SDK_25_06.*latest"),
        (lambda: generate_neutron_compile_spec("imxrt700", "SDK_25_09", converter_flavor="SDK_25_12"), "several names"),
        (lambda: NeutronTargetSpec("imxrt700", "SDK_25_09", "SDK_25_12"), "'SDK_25_09' and 'SDK_25_12'"),
        (lambda: generate_neutron_compile_spec("imxrt700", 7), "`system_config` is 7"),
        (lambda: NeutronQuantizer("imxrt700"), "not NeutronTargetSpec"),
        (lambda: NeutronCompileSpecBuilder().neutron_compile_spec("imxrt9000"), "has no Neutron"),
    ],
)
def test_wrong_arguments_are_value_errors(call, sentence):
    with pytest.raises(ValueError, match=sentence) as raised:
        call()
    assert isinstance(raised.value, MicroNpuError)


def test_getters_of_the_target():
    spec = NeutronTargetSpec("imxrt700")
    assert (spec.get_name(), spec.is_subsystem(), spec.get_hw_version()) == ("imxrt700", False, NeutronHWVersion.N3)
    assert (spec.get_num_units(), spec.get_num_pipes(), spec.get_num_macs()) == (1, 8, 8)
    assert NeutronTargetSpec("imx95").is_subsystem() and NeutronTargetSpec("imx95").get_num_units() == 1
    assert NeutronTargetSpec("mcxn94x").get_hw_version() is NeutronHWVersion.N1
    info = spec.neutron_target_info
    with quiet():
        program = torch.export.export(Net().eval(), X)
        edge = to_edge(program).exported_program()
    for graph, fuses, clamps in (
        (program.graph, info.is_fusable_conv_or_linear__aten, info.is_supported_fused_activation__aten),
        (edge.graph, info.is_fusable_conv_or_linear__edge, info.is_supported_fused_activation__edge),
    ):
        assert [n.name.split("_")[-1 if "aten" not in n.name else 1] for n in graph.nodes if clamps(n)] == ["relu"]
        assert len([n for n in graph.nodes if fuses(n)]) == 2
