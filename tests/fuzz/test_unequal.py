"""Networks with channels of unequal size are as near to float as others can make them, or the report says that not."""

from __future__ import annotations

import pytest
import torch
from tests.fuzz.unequal import Unequal, look


@pytest.mark.sweep
@pytest.mark.parametrize(
    "seed", [4, 10, pytest.param(15, marks=pytest.mark.slow), pytest.param(18, marks=pytest.mark.slow)]
)
def test_no_program_is_far_from_float_without_a_word(seed: int) -> None:
    row = look(seed, "imxrt700")
    assert isinstance(row["grids"], list), row["grids"]
    assert row["wrong"] == []


def test_channels_are_of_unequal_size() -> None:
    model = Unequal(4)
    (x, *_) = model.inputs(0)
    sizes = x.abs().amax([a for a in range(x.dim()) if a != 1])
    assert float(sizes.max() / sizes.min()) > 2
    again = Unequal(4)
    assert all(torch.equal(a, b) for a, b in zip(model.inputs(3), again.inputs(3), strict=True))
