"""Configurations of torchao's specs, with observers of the user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationSpec

import micronpu
from micronpu.base.errors import OptionError
from micronpu.compat import TOSAQuantizationConfig
from micronpu.ethosu import EthosUOptions, EthosUQuantizer, QuantizationConfig

SPEC = EthosUOptions("ethos-u55-128")
X = torch.linspace(-1, 1, 48).reshape(1, 3, 4, 4)


class Threefold(MinMaxObserver):
    """A range three times what was seen."""

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = super().calculate_qparams()
        return scale * 3, zero_point


def spec(observer: object = Threefold, **more: object) -> QuantizationSpec:
    given = {"quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_affine} | more
    return QuantizationSpec(given.pop("dtype", torch.int8), observer, **given)


def test_an_observer_of_ones_own_chooses_the_qparams():
    model = nn.Conv2d(3, 4, 1).eval()
    of_weights = spec(PerChannelMinMaxObserver, quant_min=-127, qscheme=torch.per_channel_symmetric, ch_axis=0)
    usual = micronpu.compile(model, X, "ethos-u55-128", calibration=[X], quantization=EthosUQuantizer(SPEC))
    quantizer = EthosUQuantizer(SPEC).set_global(
        QuantizationConfig(output_spec=spec(), input_spec=spec(MinMaxObserver), weight_spec=of_weights)
    )
    program = micronpu.compile(model, X, "ethos-u55-128", calibration=[X], quantization=quantizer)
    assert program.report.share == 1.0
    (own,), (other,) = ([n for n in p.partitions[0].graph.nodes if n.op.name == "conv2d"] for p in (program, usual))
    assert own.output.type.scale == pytest.approx(3 * other.output.type.scale, rel=0.01)
    assert own.input_types[0].scale == pytest.approx(other.input_types[0].scale, rel=0.01)
    assert own.input_types[1].qparams.scale == pytest.approx(other.input_types[1].qparams.scale, rel=0.01)
    torch.testing.assert_close(program.run(X), model(X).detach(), rtol=0, atol=2 * own.output.type.scale)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuantizationConfig(output_spec=spec(quant_min=-127)), r"`output_spec` is torch.int8 in \[-127, 127\]"),
        (lambda: QuantizationConfig(output_spec=spec(dtype=torch.int16)), "is torch.int16"),
        (lambda: QuantizationConfig(weight_spec=spec()), "`weight_spec` is torch.int8"),
        (lambda: QuantizationConfig(input_spec=QuantizationSpec), "`input_spec` is"),
        (lambda: QuantizationConfig(input_spec=torch.int8), "`input_spec` is"),
        (lambda: TOSAQuantizationConfig(spec(is_dynamic=True), None, None, None), "not dynamic"),
        (lambda: EthosUQuantizer(SPEC).set_node_name(["conv2d", ""], None), "takes the name of a node"),
        (lambda: EthosUQuantizer(SPEC).set_node_name([], None), "takes the name of a node"),
    ],
)
def test_qparams_that_no_npu_has_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()
