"""Hints that are expressions do what they say."""

from __future__ import annotations

import itertools

import pytest
import torch

from micronpu.runtime.arguments import _reshaped

SHAPES = [
    ((1, 3, 64, 48), (0, 2, 3, 1)),
    ((1, 16, 8), (0, 2, 1)),
    ((2, 5, 7), (2, 0, 1)),
    ((1, 4, 6, 5, 3), (0, 2, 3, 4, 1)),
]


@pytest.mark.parametrize("wanted, order", SHAPES)
def test_a_permuted_tensor_is_permuted_back(wanted: tuple[int, ...], order: tuple[int, ...]) -> None:
    right = torch.randn(wanted)
    tensor = right.permute(order).contiguous()
    for given in (tensor, tensor.squeeze(0)) if wanted[0] == 1 else (tensor,):
        hint = _reshaped(tuple(given.shape), wanted)
        assert torch.equal(eval(hint, {"tensor": given}), right)


def test_only_ones_and_flattened_tensors_are_reshaped() -> None:
    for given, wanted in (((8, 4), (1, 8, 4)), ((1, 1, 8), (1, 8)), ((32,), (1, 8, 4))):
        assert _reshaped(given, wanted) == f"tensor.reshape{wanted}"
    assert _reshaped((1, 3), (1, 4)) == ""
    for given in itertools.permutations((1, 2, 3)):
        assert eval(_reshaped(given, (3, 2, 1)), {"tensor": torch.zeros(given)}).shape == (3, 2, 1)
