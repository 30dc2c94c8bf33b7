"""Post-training quantization without torchao makes what torchao makes, node by node, by other names."""

from __future__ import annotations

import gc
import itertools
import math
import operator
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from tests.compile.random_networks import RandomNetwork
from torch import nn
from torch.fx import GraphModule

from micronpu.base.errors import MicroNpuError
from micronpu.base.order import operands_first
from micronpu.frontend.export import export
from micronpu.frontend.exported import exported, graph_module
from micronpu.frontend.program import origin_of
from micronpu.quantize import calibrate
from micronpu.quantize.calibrate import quantize
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.solver import groups
from micronpu.targets.registry import device_for


def described(module: Any) -> tuple[list[Any], list[torch.Tensor], list[str]]:
    """The nodes behind their operands, by number, the tensors that they read, and the lines that they stem from."""
    numbers = dict(zip((n for n in module.graph.nodes if n.op == "placeholder"), itertools.count()))
    tensors, rows = [], []
    for node in operands_first(module.graph.output_node(), operator.attrgetter("all_input_nodes")):
        numbers.setdefault(node, len(numbers))
        target = node.target
        if node.op == "get_attr":
            tensors.append(operator.attrgetter(node.target)(module))
            target = "tensor"
        arguments = torch.fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
        rows.append((numbers[node], node.op, target, arguments))
    # What the float model was folded into must not stay in memory.
    read = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    assert not {name for name in module.state_dict() if name.startswith("folded_")} - read
    lines = [origin_of(node).source for node in numbers]
    return rows, tensors, lines


def assert_alike(model: nn.Module, batches: list[tuple[torch.Tensor, ...]], target: str, **choices: Any) -> None:
    found = []
    for own in (True, False):
        quantizer = device_for(target).quantizer(**choices)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "FINER_OPERAND", math.inf)  # torchao has no parts with a grid of their own
            if not own:
                patch.setattr(StaticQuantizer, "is_ours", lambda self: False)
            found.append(described(quantize(graph_module(export(model, batches[0])), [batches], quantizer)))
    (graph, tensors, lines), (wanted, wanted_tensors, wanted_lines) = found
    assert graph == wanted
    for value, other in zip(tensors, wanted_tensors, strict=True):
        assert value.dtype == other.dtype and torch.equal(value, other)
    assert [line for line, known in zip(lines, wanted_lines, strict=True) if known] == [*filter(None, wanted_lines)]


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 12), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("target", "choices"),
    [
        ("imxrt700", {}),
        ("imxrt700", {"per_channel": False, "io": "int8"}),
        ("ethos-u85-256", {"activations": "int16"}),
        ("cortex-m55", {"io": "int8"}),
    ],
)
def test_random_networks_are_quantized_alike(target: str, choices: dict[str, Any], seeds: range) -> None:
    compared = 0
    for seed in seeds:
        network = RandomNetwork(seed + 12 * len(choices), 8, wide=True)
        try:
            assert_alike(network, [network.inputs(i) for i in range(3)], target, **choices)
            compared += 1
        except MicroNpuError:
            continue
    assert compared >= len(seeds) // 2


class Joined(nn.Module):
    """Concatenations of the same values in two orders, a value that two layers read, fixed grids, a shared weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        a, b = self.norm(self.one(x)), torch.sigmoid(self.two(x))
        y = torch.cat([torch.cat([a, b], 1), torch.cat([b, a], 1)], 2).mean((2, 3))
        return torch.softmax(self.last(y) + self.last(self.last(y)), 1), y.reshape(2, 4), x + x


def test_values_that_share_qparams_share_them_both_ways() -> None:
    assert_alike(Joined().eval(), [(torch.randn(1, 3, 5, 5),) for _ in range(3)], "imxrt700")


class Chosen(nn.Module):
    """Choices by comparisons, a mask in front of a softmax, and one over long rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
        y = torch.where((x > z) & (z > 0), self.layer(x), z)
        scores = y.masked_fill(z > 1.0, -torch.inf)
        return torch.cat([torch.where(y < 0, y, x), y], -1), scores.softmax(-1), (x @ z.mT).softmax(-1)


def test_choices_masks_and_long_rows_are_quantized_alike() -> None:
    batches = [(torch.randn(1, 128, 8), torch.randn(1, 128, 8)) for _ in range(3)]
    assert_alike(Chosen().eval(), batches, "ethos-u55-128")


_MODULES = """
import sys, torch, micronpu
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
x = torch.randn(1, 3, 8, 8)
for target in ("cortex-m55", "imxrt700", "ethos-u55-128"):
    micronpu.check(model.eval(), (x,), target)
    micronpu.compile(model.eval(), (x,), target, calibration=[x])
heavy = ("torchao", "executorch.exir", "torch._inductor.lowering", "torch._inductor.pattern_matcher")
print(sorted(m for m in sys.modules if m.startswith(heavy)))
"""


@pytest.mark.sweep
def test_the_default_way_imports_no_torchao_and_no_compiler_of_executorch() -> None:
    done = subprocess.run([sys.executable, "-c", _MODULES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_float_weights_are_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph and its module refer to each other: without the garbage collector both would stay."""
    seen: list[weakref.ref[torch.Tensor]] = []
    convert = calibrate._converted

    def converted(prepared: GraphModule, *rest: Any) -> GraphModule:
        seen.extend(weakref.ref(weight) for name, weight in prepared.named_buffers() if name.startswith("folded_"))
        return convert(prepared, *rest)

    monkeypatch.setattr(calibrate, "_converted", converted)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval(), torch.randn(1, 3, 8, 8)
    given = exported(model, (x,))
    gc.disable()
    try:
        quantized = quantize(given.module, [[(x,)]], device_for("ethos-u55-128").quantizer())
        calibrate.forget(given.module, quantized)
        weights = [ref() for ref in seen]
    finally:
        gc.enable()
    assert weights and all(weight is None or weight.dim() == 1 for weight in weights)  # a bias is not integers yet
    assert quantized(x).shape == model(x).shape
