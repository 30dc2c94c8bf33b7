"""What the host's kernels are given."""

from __future__ import annotations

import pytest
import torch

from micronpu.frontend.program import overload_of
from micronpu.partition.kernels import promotes


@pytest.mark.parametrize(
    "overload", ["add.Tensor", "sub.Tensor", "div.Tensor_mode", "minimum.default", "maximum.default", "fmod.Tensor"]
)
def test_both_operands_have_the_type_of_the_result(overload: str) -> None:
    x, y = torch.tensor([-3, 4, 7], dtype=torch.int32), torch.tensor([1.5, -2.0, 9.0])
    operator = overload_of(overload)
    named = {"rounding_mode": "floor"} if overload.endswith("mode") else {}
    result = operator(x, y, **named)
    assert promotes(operator) and torch.equal(operator(x.to(result.dtype), y.to(result.dtype), **named), result)


@pytest.mark.parametrize("overload", ["add.Scalar", "where.self", "mm.default", "cat.default", "gather.default"])
def test_operands_keep_their_types(overload: str) -> None:
    assert not promotes(overload_of(overload))
