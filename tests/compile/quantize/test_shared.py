"""Methods that cannot agree on the integers of a state are refused by their names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace

from micronpu.base.errors import ModelError
from micronpu.frontend.tensors import KEY, State, States
from micronpu.quantize.shared import check_qparams


def method(dtype: torch.dtype, scale: float | None, zero_point: int | None = 0) -> GraphModule:
    module = symbolic_trace(nn.ReLU())
    module.meta[KEY] = States((State("keys", "state_keys", torch.zeros(2, dtype=dtype), scale, zero_point),))
    return module


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (method(torch.int8, 0.25), "int16 with steps of 0.5 from 0 in the one and int8 with steps of 0.25 from 0"),
        (method(torch.int16, 0.25), "steps of 0.5 from 0 in the one and int16 with steps of 0.25 from 0 in the other"),
        (method(torch.int16, 0.5, 3), "from 0 in the one and int16 with steps of 0.5 from 3 in the other"),
        (method(torch.float32, None, None), "and float32 in the other"),
    ],
)
def test_qparams_that_differ(other: GraphModule, words: str) -> None:
    one = method(torch.int16, 0.5)
    check_qparams({"prefill": one, "again": method(torch.int16, 0.5)})
    with pytest.raises(
        ModelError, match=rf"`prefill` and `decode` cannot share the qparams of the state `keys`.*{words}"
    ):
        check_qparams({"prefill": one, "decode": other})
