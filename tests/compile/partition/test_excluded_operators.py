"""Operators that the user leaves to the host: by any name, in both entries, and nothing else with them."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional as F

import micronpu
from micronpu.base.errors import OptionError
from micronpu.neutron import (
    NeutronPartitioner,
    NeutronQuantizer,
    calibrate_and_quantize,
    generate_neutron_compile_spec,
)
from micronpu.report.delegation import DelegationReport
from micronpu.report.verdict import Verdict
from micronpu.runtime import HostProgram
from micronpu.targets.neutron.options import NeutronOptions


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.pool = nn.Conv2d(3, 8, 3), nn.Linear(8, 4), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(F.max_pool2d(F.relu(self.conv(x)), 2)).flatten(1)
        return F.softmax(F.gelu(self.linear(y)), -1)


EXCLUDED: dict[str, set[str]] = {
    "aten.conv2d.default": {"conv2d", "relu"},  # between the two nothing is quantized
    "aten::convolution": {"conv2d", "relu"},
    "aten_relu_default": {"relu"},
    "aten::relu": {"relu"},
    "aten_max_pool2d_with_indices_default": {"max_pool2d"},
    "aten.adaptive_avg_pool2d.default": {"adaptive_avg_pool2d"},
    "aten.mean.dim": {"adaptive_avg_pool2d"},
    "aten.linear.default": {"linear"},
    "aten.addmm.default": {"linear"},
    "aten.softmax.int": {"softmax"},
    "aten._softmax.default": {"softmax"},
    "aten.gelu.default": {"gelu"},
}
WRITTEN = {
    "conv2d": ("conv2d", "convolution"),
    "relu": ("relu",),
    "max_pool2d": ("max_pool2d", "max_pool2d_with_indices"),
    "adaptive_avg_pool2d": ("adaptive_avg_pool2d", "mean"),
    "linear": ("linear", "addmm"),
    "softmax": ("softmax", "_softmax"),
}
"""By what somebody may write, what it is called on the host."""


@pytest.fixture(scope="module")
def classifier() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Classifier().eval(), torch.randn(1, 3, 8, 8)


def on_host(report: DelegationReport) -> set[str]:
    return {v.operator.split(".")[0] for v in report.host}


def delegated(report: DelegationReport) -> set[str]:
    return {v.operator.split(".")[0] for v in report.verdicts if v.delegated}


def check_excluded(report: DelegationReport, name: str) -> None:
    for written, called in WRITTEN.items():
        if written in EXCLUDED[name]:
            assert set(called) & on_host(report), (name, written)
            assert not set(called) & delegated(report)
        else:
            assert set(called) & delegated(report), (name, written)
    assert ("gelu" in EXCLUDED[name]) == any("in operators_not_to_delegate" in str(v.reasons) for v in gelu(report))


def gelu(report: DelegationReport) -> list[Verdict]:
    """What the rewrites make of the gelu: anything but the operators above."""
    known = {name for names in WRITTEN.values() for name in names} | {"flatten", "view_copy", "view", "permute_copy"}
    found = [v for v in report.verdicts if v.operator.split(".")[0] not in known]
    assert found
    return found


FIRST = {frozenset(excluded): name for name, excluded in reversed(EXCLUDED.items())}.values()
"""A name for each set of operators; the others are further ways to write it."""


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXCLUDED)
def test_excluded_operators_stay_on_the_host_in_compile(name, classifier):
    model, x = classifier
    options = NeutronOptions("imxrt700", operators_not_to_delegate=(name,))
    if name not in FIRST:
        check_excluded(micronpu.check(model, x, "imxrt700-neutron", options=options).report, name)
        return
    program = micronpu.compile(model, x, "imxrt700-neutron", calibration=[x], options=options)
    check_excluded(program.report, name)
    assert float((program.run(x) - program.quantized(x)).abs().max()) <= 1 / 256


@pytest.fixture(scope="module")
def quantized(classifier) -> GraphModule:
    model, x = classifier
    return calibrate_and_quantize(torch.export.export(model, (x,)), [(x,)], NeutronQuantizer())


SOME = ("aten::relu", "aten.addmm.default", "aten._softmax.default")
"""Names of what ExecuTorch has decomposed by then, and of what it has not."""


@pytest.mark.sweep
@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in EXCLUDED])
def test_excluded_operators_stay_on_the_host_in_executorchs_flow(name, classifier, quantized):
    x = classifier[1]
    partitioner = NeutronPartitioner(generate_neutron_compile_spec("imxrt700", operators_not_to_delegate=[name]))
    edge = to_edge_transform_and_lower(torch.export.export(quantized, (x,)), partitioner=[partitioner])
    check_excluded(partitioner.report, name)
    got = HostProgram(bytes(edge.to_executorch().buffer)).run(x)[0]
    assert float((got - quantized(x)).abs().max()) <= 1 / 256


def test_an_excluded_clamp_leaves_the_numbers_as_they_are(classifier):
    """A convolution without its relu gives the numbers of both, since the grid cuts off what the relu would."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6(), nn.Conv2d(8, 4, 3)).eval(), classifier[1]
    options = NeutronOptions("imxrt700", operators_not_to_delegate=("aten::hardtanh",))
    apart = micronpu.compile(model, x, "imxrt700-neutron", calibration=[x], options=options)
    assert on_host(apart.report) == {"hardtanh"}
    assert [v.operator for v in apart.report.verdicts if v.delegated] == ["conv2d.default"] * 2
    assert torch.equal(apart.run(x), micronpu.compile(model, x, "imxrt700-neutron", calibration=[x]).run(x))


def test_an_operator_that_is_none_cannot_be_excluded():
    with pytest.raises(OptionError, match="There is no operator 'aten::convolute' in `operators_not_to_delegate`"):
        NeutronOptions("imxrt700", operators_not_to_delegate=("aten::convolute",))
