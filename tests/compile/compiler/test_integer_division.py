"""The smallest integer divided by -1, which ends a process in C++: in programs and files of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.errors import UnsupportedError
from micronpu.frontend.model_files import read_model
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


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_of_others_divides(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.ones(1, 3)
    torch.export.save(torch.export.export(Divided(FUNCTIONS[name], dtype).eval(), (x,)), tmp_path / "m.pt2")
    loaded = torch.export.load(tmp_path / "m.pt2")
    assert len(micronpu.compile(loaded, (x,), "cortex-m55", calibration=[x, 2 * x]).buffer) > 100
    micronpu.check(torch.export.load(tmp_path / "m.pt2"), (x,), "cortex-m55")


def onnx_file(kind: str, given: dict[str, list[int]], folder: Path) -> str:
    """A file that adds to x, as floats, what an operator makes of a and b: constants, or inputs of the file."""
    onnx = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    constants = [onnx.numpy_helper.from_array(np.array(values, np.int64), name) for name, values in given.items()]
    nodes = [
        helper.make_node(kind, ["a", "b"], ["q"]),
        helper.make_node("Cast", ["q"], ["f"], to=types.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, types.FLOAT, [1, 2]) for name in ("x", "y"))
    others = [helper.make_tensor_value_info(name, types.INT64, [2]) for name in ("a", "b") if name not in given]
    graph = helper.make_graph(nodes, "g", [x, *others], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx")
    return str(folder / "m.onnx")


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "wanted"), [("Div", [-(1 << 63), -3]), ("Mod", [0, -1])])
def test_an_onnx_file_divides(kind: str, wanted: list[int], tmp_path: Path) -> None:
    path = onnx_file(kind, {"a": [-(1 << 63), 7], "b": [-1, -2]}, tmp_path)
    read = read_model(path)
    assert torch.equal(read.module(torch.zeros(1, 2)), torch.tensor([wanted]).float())
    micronpu.check(path, None, "cortex-m55")


@pytest.mark.parametrize("kind", ["Div", "Mod"])
@pytest.mark.parametrize("given", [{"a": [7, 8]}, {"a": [7, 8], "b": [2, 0]}, {"b": [2, -1]}, {}], ids=str)
def test_an_onnx_file_is_refused_whose_division_may_end_a_process(
    kind: str, given: dict[str, list[int]], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=f"{kind}.* divides integers by 0, by -1, or by what is not known"):
        read_model(onnx_file(kind, given, tmp_path))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float32], ids=str)
def test_the_quotient_is_that_of_torch(dtype: torch.dtype) -> None:
    x = torch.arange(-20, 20).to(dtype)
    for divisor in (torch.tensor(-1, dtype=dtype), torch.full_like(x, 3), -3, -1, 2):
        found, wanted = truncated_quotient(x, divisor), torch.div(x, divisor, rounding_mode="trunc")
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
