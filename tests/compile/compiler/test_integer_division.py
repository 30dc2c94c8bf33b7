"""The smallest integer divided by -1, which ends a process in C++: in programs and files of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.frontend.run import truncated_quotient

FUNCTIONS = {
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "number": lambda a, b: torch.div(a, -1, rounding_mode="trunc") + b - b,
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


class Divided(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("a", torch.tensor([torch.iinfo(dtype).min, 7, -7], dtype=dtype))
        self.register_buffer("b", torch.tensor([-1, -2, 3], dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.function(self.a, self.b).float()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_of_others_divides(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.ones(1, 3)
    torch.export.save(torch.export.export(Divided(FUNCTIONS[name], dtype).eval(), (x,)), tmp_path / "m.pt2")
    loaded = torch.export.load(tmp_path / "m.pt2")
    assert len(micronpu.compile(loaded, (x,), "cortex-m55", calibration=[x, 2 * x]).buffer) > 100
    micronpu.check(torch.export.load(tmp_path / "m.pt2"), (x,), "cortex-m55")


def test_an_onnx_file_divides(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, numbers = onnx.helper, onnx.numpy_helper
    given = [
        numbers.from_array(np.array(values, np.int64), name)
        for name, values in {"a": [-(1 << 63), 7], "b": [-1, -2]}.items()
    ]
    nodes = [
        helper.make_node("Div", ["a", "b"], ["q"]),
        helper.make_node("Cast", ["q"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    shape = onnx.TensorProto.FLOAT, [1, 2]
    ends = [[helper.make_tensor_value_info(name, *shape)] for name in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends, given), opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    micronpu.check(str(tmp_path / "m.onnx"), None, "cortex-m55")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float32], ids=str)
def test_the_quotient_is_that_of_torch(dtype: torch.dtype) -> None:
    x = torch.arange(-20, 20).to(dtype)
    for divisor in (torch.tensor(-1, dtype=dtype), torch.full_like(x, 3), -3, -1, 2):
        found, wanted = truncated_quotient(x, divisor), torch.div(x, divisor, rounding_mode="trunc")
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
