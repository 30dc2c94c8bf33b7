"""What learns, learns in double precision, so that sparse weights are the same on every processor."""

from __future__ import annotations

import torch
from tests.compile.small import Small
from torch import nn

from micronpu.quantize.float64 import as_learner, learner


def exported(model: nn.Module, x: torch.Tensor) -> torch.fx.GraphModule:
    return torch.export.export(model.eval(), (x,)).module()  # type: ignore[return-value]


def test_a_learner_has_the_names_of_the_module_and_its_weights_learn() -> None:
    x = torch.randn(2, 3, 8, 8)
    net = exported(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()), x)
    wide = learner(net, [(x,)])
    assert [n.name for n in wide.graph.nodes] == [n.name for n in net.graph.nodes]
    assert wide.state_dict().keys() == net.state_dict().keys()
    (y,) = as_learner(wide, (x,))
    found = wide(y)
    assert found.dtype == torch.float64 and torch.allclose(found.float(), net(x), atol=1e-6)
    found.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float64 for p in wide.parameters())
    assert all(p.dtype == torch.float32 for p in net.parameters())


def test_numbers_that_the_graph_makes_are_of_the_same_type() -> None:
    x = torch.randn(1, 4)
    net = exported(Small(lambda m, x: x + torch.ones(4) * torch.arange(4.0)), x)
    wide = learner(net, [(x,)])
    assert wide(x.double()).dtype == torch.float64


def test_what_has_no_kernel_for_it_stays_as_it_is() -> None:
    def single(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("no kernel")
        return x

    graph = torch.fx.Graph()
    weight = graph.get_attr("weight")
    graph.output(graph.call_function(single, (graph.call_function(torch.mul, (graph.placeholder("x"), weight)),)))
    root = nn.Module()
    root.weight = nn.Parameter(torch.ones(2))
    same = learner(torch.fx.GraphModule(root, graph), [(torch.zeros(2),)])
    assert same.weight.dtype == torch.float32 and as_learner(same, (torch.zeros(2),))[0].dtype == torch.float32
