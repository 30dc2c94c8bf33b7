"""Programs that a quantizer of another package has quantized."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer

import micronpu
from micronpu.base.errors import OptionError
from micronpu.frontend.program import is_quantize
from micronpu.targets.registry import device_for

VALUES = QuantizationSpec(torch.int8, MinMaxObserver, -128, 127, torch.per_tensor_affine)


class Theirs(Quantizer):
    """Quantizes operators with weights, with a scale for each index of an axis of the weights."""

    def __init__(self, axis: int) -> None:
        per_axis = torch.per_channel_symmetric
        self.weights = QuantizationSpec(torch.int8, PerChannelMinMaxObserver, -127, 127, per_axis, axis)

    def annotate(self, model: GraphModule) -> GraphModule:
        for node in model.graph.nodes:
            if node.op == "call_function" and len(node.args) > 2:
                inputs = {node.args[0]: VALUES, node.args[1]: self.weights}
                node.meta["quantization_annotation"] = QuantizationAnnotation(inputs, VALUES, _annotated=True)
        return model

    def validate(self, model: GraphModule) -> None: ...


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("layer", "axis", "delegated"),
    [
        (nn.Conv2d(4, 4, 3), 1, False),
        (nn.Conv2d(3, 4, 3), 1, False),
        (nn.Conv2d(4, 4, 3, groups=2), 1, False),
        (nn.Conv2d(4, 4, 3, groups=4), 1, True),  # one scale, whichever the axis
        (nn.Conv1d(4, 4, 3), 1, False),
        (nn.Linear(8, 8), 1, False),
        (nn.ConvTranspose2d(4, 4, 2), 0, False),
        (nn.ConvTranspose2d(4, 4, 2), 1, True),
    ],
    ids=str,
)
def test_weights_with_a_scale_for_each_index_of_an_axis(layer: nn.Module, axis: int, delegated: bool) -> None:
    """Scales of the inputs of a square layer are as many as those of its outputs."""
    torch.manual_seed(0)
    weight = layer.weight.data
    unequal = torch.logspace(-2, 0, weight.shape[1]).reshape(-1, *[1] * (weight.ndim - 2))
    weight.copy_(torch.randn(weight.shape) * unequal)
    x = (
        torch.randn(2, 8)
        if isinstance(layer, nn.Linear)
        else torch.randn(1, layer.in_channels, *[8] * (weight.ndim - 2))
    )
    prepared = prepare_pt2e(torch.export.export(layer.eval(), (x,)).module(), Theirs(axis))
    prepared(x)
    quantized = convert_pt2e(prepared)
    program = micronpu.compile(quantized, x, "ethos-u55-128", verify=False)
    assert (program.report.share == 1) is delegated
    if not delegated:
        assert "not per output channel" in str(program.report)
    (*_, last) = (node for node in quantized.graph.nodes if is_quantize(node))
    torch.testing.assert_close(program.run(x), quantized(x).detach(), rtol=0, atol=1.01 * last.args[1])


class Bytes(Quantizer):
    """Quantizes hard sigmoids as uint8."""

    def annotate(self, model: GraphModule) -> GraphModule:
        spec = QuantizationSpec(torch.uint8, MinMaxObserver, 0, 255, torch.per_tensor_affine)
        for node in model.graph.nodes:
            if "hardsigmoid" in str(node.target):
                note = QuantizationAnnotation({node.args[0]: spec}, spec, _annotated=True)
                node.meta["quantization_annotation"] = note
        return model

    def validate(self, model: GraphModule) -> None: ...


@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700", "cortex-m55"])
def test_unsigned_values_between_signed_ones(target: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardsigmoid(), nn.Conv2d(4, 4, 3)).eval()
    x, *data = torch.randn(9, 1, 3, 12, 12)
    quantizer = device_for(target).quantizer().add_quantizer(Bytes())
    program = micronpu.compile(model, x, target, calibration=data, quantization=quantizer)
    torch.testing.assert_close(program.run(x), model(x).detach(), rtol=0, atol=0.02)


def test_a_quantizer_of_another_package_is_no_setting() -> None:
    with pytest.raises(OptionError, match="Try: one of micronpu's quantizers with `add_quantizer"):
        micronpu.compile(nn.Hardsigmoid(), torch.zeros(1, 4), "cortex-m55", quantization=Bytes())
