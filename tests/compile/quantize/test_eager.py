"""A quantized module runs in eager mode as calling it does, bit for bit, and nothing runs that nobody looks at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import micronpu
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.frontend.exported import exported
from micronpu.frontend.units import multiply_accumulates
from micronpu.quantize import data, running, thresholds
from micronpu.quantize.calibrate import calibrate_and_quantize
from micronpu.quantize.config import Activations
from micronpu.quantize.loops import loops_of
from micronpu.quantize.running import DequantizedReference, Eager


class Every(nn.Module):
    """Layers whose channels are on either axis, a branch, and a state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.up = nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.fc = nn.Linear(4 * 12 * 12, 6)
        self.register_buffer("seen", torch.zeros(1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        self.seen.copy_(0.5 * self.seen + self.fc(self.up(y + y.sigmoid()).flatten(1)))
        return self.seen + 1.0


DATA = [10.0**i * torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]


def quantized(activations: Activations = "int8") -> torch.fx.GraphModule:
    quantizer = EthosUQuantizer(EthosUOptions("ethos-u55-128"), activations=activations)
    return calibrate_and_quantize(torch.export.export(Every().eval(), (DATA[0],)), [DATA], quantizer)


@pytest.mark.sweep
@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_the_bits_are_those_of_a_call(activations, monkeypatch):
    own: list[Any] = []
    for target, f in running._FAST.items():
        monkeypatch.setitem(running._FAST, target, lambda *args, f=f: (own.append(f), f(*args))[1])
    module, other = quantized(activations), quantized(activations)
    called = [module(x) for x in DATA]
    run = [Eager(other).run(x) for x in DATA]
    assert all(torch.equal(a, b) for a, b in zip(called, run, strict=True))
    assert {f.__name__ for f in own} == {"_quantized", "_dequantized", "_dequantized_channels"}


@pytest.mark.sweep
def test_steps_of_a_loop_run_in_eager_mode_too(monkeypatch) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.lstm = nn.LSTM(4, 8, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    data = [(torch.randn(1, 400, 4, generator=torch.Generator().manual_seed(i)),) for i in range(3)]
    module = micronpu.compile(Recurrent().eval(), data[0], "ethos-u55-128", calibration=data).quantized
    assert any(loops_of(module))
    wanted = [module(*row) for row in data]
    exact = [DequantizedReference(module).exact(row) for row in data]
    read: list[Any] = []
    monkeypatch.setitem(running._FAST, running._DEQUANTIZE_CHANNELS, lambda *given: read.append(given))
    again = DequantizedReference(module)
    for row, values in zip(data, exact, strict=True):
        assert all(
            torch.equal(*pair) for pair in zip(again.outputs(again.exact(row)), again.outputs(values), strict=True)
        )
    assert len(read) == 2, "weights of a step are dequantized once for all calls"
    for _, loop in loops_of(module):
        loop.body.forward = None  # type: ignore[assignment]
    assert all(torch.equal(Eager(module).run(*row)[0], y[0]) for row, y in zip(data, wanted, strict=True))


@pytest.mark.parametrize("zero_point", [0, 3, -128])
def test_what_is_only_dequantized_is_no_integer(zero_point: int) -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            numbers = 0.3, zero_point, -128, 127, torch.int8
            y = torch.ops.quantized_decomposed.quantize_per_tensor.default(x, *numbers)
            z: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor.default(y, *numbers)
            return z

    x = torch.cat([torch.linspace(-60, 60, 1001), torch.tensor([-0.0, 1e30, -torch.inf, torch.inf, torch.nan])])
    module = torch.fx.symbolic_trace(Pair())
    run = Eager(module)
    assert run._floats
    found, wanted = run.run(x), module(x)
    assert torch.equal(found, wanted)
    assert torch.equal(found.signbit(), wanted.signbit())


def test_weights_are_dequantized_where_they_are_read(monkeypatch):
    order: list[str] = []
    function_of = running.function_of

    def noted(module: torch.fx.GraphModule, node: torch.fx.Node, *floats: Any, **more: Any) -> Any:
        step, name = (
            function_of(module, node, *floats, **more),
            str(node.target).removeprefix("aten.").partition(".")[0],
        )
        return lambda values: (order.append("weights" if "per_channel" in str(node.target) else name), step(values))[1]

    monkeypatch.setattr(running, "function_of", noted)
    Eager(quantized()).run(DATA[0])
    weights = [i for i, name in enumerate(order) if name == "weights"]
    assert [order[i + 1] for i in weights] == ["conv2d", "conv_transpose2d", "linear"]


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Conv2d(3, 256, 3, padding=1), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(self.first(x)).mean((2, 3))
        return y


@pytest.mark.parametrize(
    ("layer", "shapes", "macs"),
    [
        (nn.LSTM(4, 8, 2, bidirectional=True), [(200, 3, 4)], 600 * 2 * 4 * 8 * (4 + 8 + 16 + 8)),
        (nn.GRU(4, 8, batch_first=True), [(3, 200, 4)], 600 * 3 * 8 * (4 + 8)),
        (nn.GRUCell(4, 8), [(5, 4)], 5 * 3 * 8 * (4 + 8)),
        (nn.functional.scaled_dot_product_attention, [(1, 2, 9, 4), (1, 2, 7, 4), (1, 2, 7, 4)], 2 * 2 * 9 * 7 * 4),
    ],
)
def test_work_is_known_before_operators_are_decomposed(layer: Any, shapes: list[tuple[int, ...]], macs: int) -> None:
    class Of(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, *x: torch.Tensor) -> Any:
            return self.layer(*x)

    assert multiply_accumulates(exported(Of().eval(), tuple(torch.zeros(s) for s in shapes)).module) == macs


def test_the_program_of_a_large_network_runs_on_one_sample(monkeypatch):
    """The models are judged on all, and the float model runs on none without verification."""
    x = [torch.randn(1, 3, 64, 64) for _ in range(3)]
    macs = 64 * 64 * 256 * (3 * 9 + 64)
    assert multiply_accumulates(exported(Large().eval(), x[0]).module) == macs
    assert macs > thresholds.PROGRAM_WORK
    runs: list[int] = []
    own = data.run_recordings
    monkeypatch.setattr(
        data, "run_recordings", lambda module, recordings: (runs.append(len(recordings)), own(module, recordings))[1]
    )
    program = micronpu.compile(Large().eval(), x[0], "imxrt700-neutron", calibration=x)
    assert (runs, program.report.agreement.inputs, program.report.accuracy.rows) == ([3], 1, (0, 1, 2))
    micronpu.compile(Large().eval(), x[0], "imxrt700-neutron", calibration=x, verify=False)
    assert runs == [3]
