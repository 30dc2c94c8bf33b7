"""Arguments of an operator's node by name."""

from __future__ import annotations

import torch
from torch.fx import Graph

from micronpu.frontend.program import arguments


def test_default_lists_belong_to_the_caller() -> None:
    """The schema is read once for all nodes of an operator."""
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    conv = graph.call_function(torch.ops.aten.conv2d.default, (x, weight))
    given = arguments(conv)
    assert given["stride"] == [1, 1] and given["padding"] == [0, 0]
    given["stride"].append(7)
    given["padding"][0] = 3
    assert arguments(conv)["stride"] == [1, 1] and arguments(conv)["padding"] == [0, 0]
    strided = graph.call_function(torch.ops.aten.conv2d.default, (x, weight, None, [2, 2]), {"groups": 4})
    assert arguments(strided)["stride"] == [2, 2] and arguments(strided)["groups"] == 4
    assert list(given)[:4] == ["input", "weight", "bias", "stride"]
