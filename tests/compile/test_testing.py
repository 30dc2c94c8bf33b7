"""`micronpu.testing`: what passes, and that what is wrong does not."""

from __future__ import annotations

import pytest
import torch

import micronpu
from micronpu.base.errors import ModelError, OptionError
from micronpu.testing import ComparisonError, Tester

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(torch.nn.Module):
    """A convolution, and an operator of two values that no NPU has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.conv(x))
        return y, torch.atan2(y, y.mean((2, 3), True))


@pytest.mark.parametrize("target", ["imxrt700-neutron", "ethos-u55-128"])
@pytest.mark.parametrize("io", [None, "int8"])
def test_from_model_to_outputs(target: str, io: str | None) -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    x = torch.randn(1, 3, 8, 8)
    tester = Tester(network, x).quantize(micronpu.Quantization(io=io)).compile(target)
    assert tester.check_delegated().check_count({"aten.conv2d.default": 1, "relu": 1}).run_and_compare() is tester
    tester.run_and_compare(torch.randn(1, 3, 8, 8))


def test_what_is_wrong_is_found() -> None:
    tester = Tester(Net().eval(), (torch.randn(1, 3, 8, 8),)).quantize().compile("ethos-u55-128")
    tester.check_delegated("conv2d", "aten.relu.default").check_not_delegated("atan2").run_and_compare()
    tester.check_count({"atan2": 1}, delegated=False)
    with pytest.raises(ComparisonError, match=r"`.*atan2.*` is not on the NPU"):
        tester.check_delegated()
    with pytest.raises(ComparisonError, match=r"`.*conv2d.*` is on the NPU"):
        tester.check_not_delegated("conv2d")
    with pytest.raises(ComparisonError, match="The model does not call softmax"):
        tester.check_delegated("softmax")
    with pytest.raises(AssertionError, match=r"1 call of conv2d on the NPU, and the test says 2\."):
        tester.check_count({"conv2d": 2})
    run = tester.program.run

    def wrong(*inputs: torch.Tensor, **more: object) -> tuple[torch.Tensor, ...]:
        first, second = run(*inputs, **more)
        first = first.clone()
        first[0, 1, 2, 3] += 10
        return first, second

    tester.program.run = wrong
    with pytest.raises(ComparisonError, match=r"Output 0 of the program is .* at \[0, 1, 2, 3\] .* 1 of 144 elements"):
        tester.run_and_compare()
    tester.run_and_compare(atol=11)


def test_bad_calls() -> None:
    for inputs in (([1.0],), 5, ()):
        with pytest.raises(ModelError, match="it is a tuple of tensors"):
            Tester(torch.nn.ReLU(), inputs)
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(ModelError, match="is nested"):
        Tester(torch.nn.ReLU(), nested)
    tester = Tester(torch.nn.ReLU(), torch.zeros(1, 4))
    with pytest.raises(OptionError, match="The model is not compiled yet"):
        tester.run_and_compare()
    with pytest.raises(OptionError, match="quantization"):
        tester.quantize("int8")
