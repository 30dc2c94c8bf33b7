"""Rewrites that make an operator fit: what they cost, that they are exact, and when they are chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.rewriting import LATEST, PUBLISHED, neutron_choice, neutron_graph
from torch import nn

import micronpu
from micronpu.ir import DType, Graph, GraphBuilder, QParams, TensorType, interpret, verify
from micronpu.ir.op import Op
from micronpu.ops.elementwise import Mul
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.softmax import Softmax
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rules import check_node

Q = QParams.per_tensor(0.1, -5)


def graph_of(op: Op, *shapes: tuple[int, ...]) -> Graph:
    builder = GraphBuilder()
    inputs = [builder.input(TensorType(shape, DType.INT8, Q)) for shape in shapes]
    return builder.finish(builder.emit(op, *inputs, qparams=QParams.per_tensor(0.2, 3)))


CURABLE = [
    (MaxPool2d((2, 2), (2, 2)), (1, 8, 8, 10)),
    (MaxPool2d((3, 3), (1, 1)), (1, 5, 7, 1)),
    (ResizeNearest((8, 8)), (1, 4, 4, 3)),
    (Softmax(), (4, 10)),
    (Mul(), (3, 5), (3, 5)),
]


@pytest.mark.parametrize("row", CURABLE, ids=str)
def test_rewrite_keeps_every_rule_and_the_result(row: tuple[Op, ...]) -> None:
    op, *shapes = row
    graph = graph_of(op, *shapes)  # type: ignore[arg-type]
    assert check_node(graph.nodes[0], PUBLISHED.target_spec)
    cured = neutron_graph(graph, PUBLISHED)
    assert len(cured.nodes) > 1
    assert [check_node(node, PUBLISHED.target_spec) for node in cured.nodes] == [[]] * len(cured.nodes)
    verify(cured)
    rng = np.random.default_rng(0)
    for _ in range(5):
        inputs = [rng.integers(-128, 128, t.shape).astype(np.int8) for t in graph.inputs]
        if isinstance(op, Softmax):
            inputs[0][:, 0] = 100  # s * (max + 128) = 22.8: the added lanes weigh nothing
        np.testing.assert_array_equal(interpret(graph, inputs)[0], interpret(cured, inputs)[0])


@pytest.mark.parametrize("scale", [0.001, 0.01, 0.03, 0.06])
def test_softmax_of_a_small_scale_keeps_its_sum(scale: float) -> None:
    """Where every value of the grid weighs, the added lanes must not."""
    builder = GraphBuilder()
    x = builder.input(TensorType((64, 10), DType.INT8, QParams.per_tensor(scale, 7)))
    graph = builder.finish(builder.emit(Softmax(), x))
    cured = neutron_graph(graph, PUBLISHED)
    data = np.random.default_rng(0).integers(-128, 128, (64, 10)).astype(np.int8)
    exact, padded = (interpret(g, [data])[0].astype(int) + 128 for g in (graph, cured))
    logits = np.exp(scale * (data.astype(float) - 7))
    probability = logits / logits.sum(axis=1, keepdims=True)
    rounding = (scale + 8 / 255) / 2
    bound = 256 * 2 * probability * (1 - probability) * (np.exp(rounding) - 1) + 2
    assert (np.abs(exact - padded) <= bound).all()
    assert np.abs(padded.sum(axis=1) - 256).max() <= 6


@pytest.mark.parametrize("highest", [-128, -120, -100, -60, -48, 0, 127])
def test_error_of_a_padded_softmax_is_what_the_rewrite_says(highest: int) -> None:
    graph = graph_of(Softmax(), (1, 10))
    cured = neutron_graph(graph, PUBLISHED)
    x = np.full((1, 10), -128, np.int8)
    x[0, 3] = highest
    exact, padded = (interpret(g, [x])[0].astype(int)[0] for g in (graph, cured))
    weight = np.exp(-0.1 * (highest + 128))  # of each of the six added lanes
    real = 1 + 9 * weight
    worst = 256 * (1 / real - 1 / (real + 6 * weight))
    assert np.abs(exact - padded).max() <= worst + 1
    if 0.1 * (highest + 128) >= 8:
        np.testing.assert_array_equal(exact, padded)


def test_nothing_is_rewritten_where_the_rules_hold() -> None:
    graph = graph_of(Softmax(), (4, 10))
    assert not check_node(graph.nodes[0], LATEST.target_spec)
    assert len(neutron_graph(graph, LATEST).nodes) == 1


def test_rewrite_that_costs_more_than_the_host_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(Softmax(), (4, 10))
    assert neutron_choice(graph.nodes[0], PUBLISHED) is not None
    monkeypatch.setattr("micronpu.targets.neutron.costs.host_cycles", lambda node: 1)
    assert neutron_choice(graph.nodes[0], PUBLISHED) is None


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 3, padding=1)
        self.fc = nn.Linear(160, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return torch.softmax(self.fc(x.flatten(1)), dim=-1)


def test_whole_network_is_delegated_with_rewrites_and_not_without() -> None:
    torch.manual_seed(0)
    model, x = Classifier().eval(), torch.randn(1, 3, 8, 8)
    data = [torch.randn(1, 3, 8, 8) for _ in range(4)]
    options = NeutronOptions(converter_flavor="SDK_25_12")
    cured = micronpu.compile(model, x, "imxrt700-neutron", calibration=data, options=options)
    assert cured.report.share == 1.0
    assert cured.report.partitions == 1
    rewritten = {v.operator: v.rewrites for v in cured.report.verdicts if v.rewrites}
    assert rewritten == {"max_pool2d.default": ("pad_channels",), "softmax.int": ("pad_channels",)}
    assert any("pad_channels" in remark for remark in cured.report.all_remarks)

    off = NeutronOptions(converter_flavor="SDK_25_12", disabled_passes=("pad_channels",))
    plain = micronpu.compile(model, x, "imxrt700-neutron", calibration=data, options=off)
    assert {v.operator for v in plain.report.host} == {"max_pool2d.default", "softmax.int"}
    step = 1 / 256
    assert (cured.run(x) - plain.run(x)).abs().max().item() <= 3 * step
