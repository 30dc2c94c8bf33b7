"""First layers that read features of very unequal size, and the range of the product that a loop reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import micronpu
from micronpu.frontend.exported import graph_module
from micronpu.frontend.facts import IN_FLOAT, LOOPS_ALLOWED
from micronpu.frontend.program import arguments, overload_name
from micronpu.frontend.tensors import attribute
from micronpu.ir.lowering import Capabilities
from micronpu.ir.types import DType
from micronpu.ops.facts import matrices_of
from micronpu.ops.recurrent import RECURRENT
from micronpu.quantize.calibrate import calibrated, of_one
from micronpu.quantize.config import QuantizationConfig, QuantizationSettings
from micronpu.quantize.loops import loops_of
from micronpu.quantize.nodes import observer_of
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.weights import write_first_layers

FEATURES = 12
SIZES = torch.logspace(1, -2, FEATURES)
"""As the powers of sounds in bands: the first one a thousand times as large as the last."""
WIDE = Capabilities(activations=(DType.INT8, DType.INT16))


class Recurrent(nn.Module):
    """A recurrent layer on features of some sizes, which counts each alike, and a larger network behind it."""

    def __init__(self, kind: type[nn.RNNBase], sizes: torch.Tensor, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = kind(len(sizes), 24, batch_first=True, **options)
        width = 48 if options.get("bidirectional") else 24
        self.layers = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 96))
        for name, weight in self.layer.named_parameters():
            if name.startswith("weight_ih_l0"):
                weight.data /= sizes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(self.layer(x)[0])
        return result


def powers(sizes: torch.Tensor = SIZES, steps: int = 9, count: int = 24) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [sizes * torch.randn(1, steps, len(sizes), generator=generator) ** 2 for _ in range(count)]


def written(model: nn.Module, rows: list[torch.Tensor], activations: Any, **more: Any) -> GraphModule:
    module = graph_module(torch.export.export(model.eval(), (rows[0],)))
    settings = QuantizationSettings(default=QuantizationConfig(activations=activations, **more))
    write_first_layers(module, [[(row,)] for row in rows], settings)
    return module


def operators(module: GraphModule) -> list[str]:
    names = [overload_name(node) for node in module.graph.nodes if node.op == "call_function"]
    return [name for name in names if name != "zeros.default"]  # initial states


def first_weights(module: GraphModule) -> list[torch.Tensor]:
    (layer,) = (node for node in module.graph.nodes if overload_name(node) in RECURRENT)
    found = [attribute(module, node) for node in matrices_of(overload_name(layer), arguments(layer))]
    return [weight for weight in found if weight is not None]


def factors(module: GraphModule) -> torch.Tensor:
    (product,) = (node for node in module.graph.nodes if IN_FLOAT.of(node))
    found = attribute(module, product.args[1])
    assert overload_name(product) == "mul.Tensor" and found is not None
    return found


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
def test_unequal_features_get_factors_in_float_and_weights_two_parts(
    kind: type[nn.RNNBase], options: dict[str, Any]
) -> None:
    model, rows = Recurrent(kind, SIZES, **options), powers()
    module = written(model, rows, "int16")
    assert operators(module)[:3] == ["mul.Tensor", "mul.Tensor", "cat.default"]
    assert factors(module).shape == (FEATURES,)
    torch.testing.assert_close(module(rows[0]), model(rows[0]), rtol=0, atol=1e-5)
    for weight in (weights := first_weights(module)):
        step = weight.abs().amax(1, keepdim=True) / 127
        assert float((weight[:, :FEATURES] / step - (weight[:, :FEATURES] / step).round()).abs().max()) < 1e-3
        assert float((weight[:, FEATURES:] / step).abs().max()) < 64.5
    assert len(weights) == (2 if options else 1)


def test_int8_has_the_factors_alone() -> None:
    model, rows = Recurrent(nn.GRU, SIZES), powers()
    module = written(model, rows, "int8")
    assert operators(module)[0] == "mul.Tensor" and "cat.default" not in operators(module)
    assert torch.equal(module(rows[0]), model(rows[0])), "factors are powers of two"


@pytest.mark.parametrize(
    "change", ["equal features", "second reader", "other weights", "large layer", "weights of four bits"]
)
def test_others_stay_as_they_are(change: str) -> None:
    model: nn.Module = Recurrent(nn.GRU, SIZES)
    rows = powers()
    if change == "equal features":
        model, rows = Recurrent(nn.GRU, torch.ones(FEATURES)), powers(torch.ones(FEATURES))
    if change == "other weights":  # those of the small features are small, so that these hardly count
        model = Recurrent(nn.GRU, torch.ones(FEATURES))
    if change == "second reader":
        plain = model

        class Both(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.plain = plain

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return self.plain(x), x + 1

        model = Both()
    if change == "large layer":
        model = nn.Sequential(copy.deepcopy(Recurrent(nn.GRU, SIZES).layer))
        model.forward = lambda x: model[0](x)[0]  # type: ignore[assignment, operator, union-attr]
    before = graph_module(torch.export.export(model.eval(), (rows[0],)))
    more = {"weight_bits": 4} if change == "weights of four bits" else {}
    found = operators(written(model, rows, "int16", **more))
    scaled = change in ("large layer", "weights of four bits")
    assert found == [*(["mul.Tensor"] if scaled else []), *operators(before)]


def test_weights_of_a_feature_that_was_always_zero_are_not_the_largest() -> None:
    model, live = Recurrent(nn.GRU, SIZES), torch.arange(FEATURES) != 7
    module = written(model, [row * live for row in powers()], "int8")
    columns = first_weights(module)[0].abs().amax(0)
    assert columns[live].max() / 2 <= columns[7] <= columns[live].max()
    assert operators(written(model, [0 * row for row in powers()], "int8"))[0] == "gru.input"


@pytest.mark.filterwarnings("ignore::micronpu.AccuracyWarning")
def test_a_network_on_powers_is_near_float_in_int16(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = Recurrent(nn.LSTM, SIZES).eval(), powers(count=40)

    def sqnr() -> float:
        program = micronpu.compile(model, rows[0], "corstone300", calibration=rows, quantization="int16")
        return float(program.report.accuracy.sqnr)

    after = sqnr()
    monkeypatch.setattr("micronpu.quantize.calibrate.write_first_layers", lambda *_: None)
    assert after > sqnr() + 6


def observed_loops(model: nn.Module, rows: list[torch.Tensor], activations: Any) -> list[tuple[Any, dict[str, Any]]]:
    """The observer of what each loop reads, and those in its step by the names of what they observe."""
    module = graph_module(torch.export.export(model.eval(), (rows[0],)))
    LOOPS_ALLOWED.say(module, True)
    quantizer = StaticQuantizer(WIDE, activations=activations)
    prepared = calibrated({"": module}, of_one([[(row,)] for row in rows]), {"": quantizer})[""]
    found = []
    for call, loop in loops_of(prepared):
        step = loop.prepared
        assert step is not None
        inside = {str(n.args[0]): o for n in step.graph.nodes if (o := observer_of(step, n)) is not None}
        found.append((observer_of(prepared, call.args[0]), inside))
    return found


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_the_product_that_a_loop_reads_ends_where_its_gates_saturate(activations: Any, bidirectional: bool) -> None:
    """The product is computed before the loop, and added to another and read by a sigmoid and tanh in its step."""
    sizes = torch.ones(FEATURES)
    rows = [40 * row for row in powers(sizes, steps=150, count=2)]
    loops = observed_loops(Recurrent(nn.LSTM, sizes, bidirectional=bidirectional), rows, activations)
    assert len(loops) == 1 + bidirectional
    for product, inside in loops:
        assert inside["x"] is product and max(-float(product.min_val), float(product.max_val)) > 60
        scale, zero_point = (float(number) for number in product.calculate_qparams())
        assert max(abs((end - zero_point) * scale) for end in (product.quant_min, product.quant_max)) < 30
