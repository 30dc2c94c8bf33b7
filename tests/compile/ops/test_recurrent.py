"""Recurrent layers written out step by step: all on the NPU, close to the float module."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
from tests.compile.small import against_float
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import micronpu
import micronpu.ops.recurrent as recurrent
from micronpu.base.errors import PayloadError, UnsupportedError
from micronpu.base.flatbuffer import root
from micronpu.frontend.program import overload_name
from micronpu.frontend.tensors import states_of
from micronpu.ir.lowering import Capabilities
from micronpu.program.plan import read_plan
from micronpu.program.plan_check import check_plan
from micronpu.quantize.decompose import decompose
from micronpu.quantize.loops import Loop
from micronpu.runtime import HostProgram

STEPS, BATCH, INPUTS, HIDDEN = 6, 2, 12, 8


class Layers(nn.Module):
    """Every kind, with and without what may vary; an initial state from outside where `y` is used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.gru = nn.GRU(INPUTS, HIDDEN)
        self.deep = nn.GRU(INPUTS, HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
        self.lstm = nn.LSTM(INPUTS, HIDDEN, batch_first=True)
        self.both = nn.LSTM(INPUTS, HIDDEN, bidirectional=True, bias=False)
        self.simple = nn.RNN(INPUTS, HIDDEN)
        self.rectified = nn.RNN(INPUTS, HIDDEN, nonlinearity="relu")

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = x.transpose(0, 1)
        return (
            self.gru(x)[0],
            self.gru(x, y)[1],
            *self.deep(rows),
            self.lstm(rows)[0],
            *self.lstm(rows, (y, y * 0.5))[1],
            self.both(x)[0],
            self.simple(x, y)[0],
            self.rectified(x)[0][-1],
        )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(6)
    shapes = ((STEPS, BATCH, INPUTS), (1, BATCH, HIDDEN))
    return [(torch.randn(shapes[0], generator=random), torch.randn(shapes[1], generator=random)) for _ in range(count)]


def names(module: Any) -> set[str]:
    return {overload_name(n).split(".")[0] for n in module.graph.nodes}


def test_steps_keep_the_float_result():
    x, y = batches(1)[0]
    model = Layers().eval()
    module: Any = torch.export.export(model, (x, y)).module(check_guards=False)
    assert names(module) >= {"gru", "lstm", "rnn_tanh", "rnn_relu"}
    before = str(module.graph)
    decompose(module, Capabilities())
    assert str(module.graph) != before
    assert not names(module) & {"gru", "lstm", "rnn_tanh", "rnn_relu"}
    with torch.no_grad():
        for new, old in zip(module(x, y), model(x, y), strict=True):
            assert new.shape == old.shape
            torch.testing.assert_close(new, old, rtol=1e-5, atol=1e-5)


@pytest.mark.sweep
def test_program_is_close_to_float():
    data = batches(12)
    model = Layers().eval()
    assert min(against_float(model, data)) >= 25


def test_long_sequences_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recurrent, "MAX_STEPS", 4)

    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x)[0]
            return result

    for steps, left in ((4, False), (5, True)):
        module: Any = torch.export.export(Long().eval(), (torch.zeros(steps, 1, 2),)).module(check_guards=False)
        decompose(module, Capabilities())
        assert ("gru" in names(module)) is left


# ---------------------------------------------------------------- longer than what is written out

LONG = 140
LAYERS: dict[str, Any] = {
    "gru": lambda: nn.GRU(8, 8, batch_first=True),
    "gru both ways": lambda: nn.GRU(8, 8, bidirectional=True),
    "lstm": lambda: nn.LSTM(8, 8, num_layers=2),
    "lstm projected": lambda: nn.LSTM(8, 8, proj_size=4),
    "rnn": lambda: nn.RNN(8, 8, nonlinearity="relu"),
}


class Long(nn.Module):
    """A recurrent layer with what follows it: all states, and the last ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.proj_size or 8, 4) if not layer.bidirectional else nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, last = self.layer(x)
        return self.head(states), last[0] if isinstance(last, tuple) else last


def long(kind: str, steps: int = LONG) -> tuple[nn.Module, torch.Tensor, list[Any]]:
    torch.manual_seed(0)
    model = Long(LAYERS[kind]()).eval()
    shape = (1, steps, 8) if model.layer.batch_first else (steps, 1, 8)
    x = torch.randn(shape)
    return model, x, [(x,), (torch.randn(shape),)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        *((kind, "imxrt700-neutron") for kind in LAYERS),
        ("gru", "ethos-u55-128"),
        ("lstm", "imxrt700"),
        ("gru", "cortex-m55"),
    ],
)
def test_a_step_in_a_loop(kind: str, target: str) -> None:
    """Integers go round: the program against the quantized model, whose step is checked element for element."""
    model, x, data = long(kind)
    program = micronpu.compile(model, (x,), target, calibration=data)
    assert program.report.share == 1.0 or kind == "gru both ways"  # the host turns sequences round, as integers
    assert not program.report.in_float or kind == "gru both ways"
    (loop, *_) = [m for m in program.quantized.modules() if isinstance(m, Loop)]
    with torch.no_grad():
        for ours, theirs, real in zip(program.run(x), program.quantized(x), model(x), strict=True):
            assert (ours - theirs).abs().max() < 0.06 * real.abs().max()
            assert (ours - real).abs().max() < 0.1 * real.abs().max()
    # The grid of the state is the same before and after a step, and the one outside of the loop.
    states = states_of(loop.body).values
    assert [(s.scale, s.zero_point) for s in states] == [qparams[:2] for qparams in loop.all_qparams[1:]]
    operators = [call.operator for call in read_plan(program.buffer)[0].calls if call.operator]
    calls = [name for name in operators if name.endswith("quantize_per_tensor.out")]
    assert len(calls) == len(program.report.inputs) + len(program.report.outputs)


def test_compile_time_and_size_do_not_grow() -> None:
    """The program of four times the steps has the same plan, of the same size."""
    sizes, counts = [], []
    for steps in (LONG, 4 * LONG):
        model, x, data = long("gru", steps)
        program = micronpu.compile(model, (x,), "imxrt700-neutron", calibration=data[:1], verify=False)
        plan, _ = read_plan(program.buffer)
        sizes.append(len(program.buffer))
        counts.append((len(plan.calls), len(plan.values), len(plan.delegates)))
        assert len([n for n in program.quantized.graph.nodes if n.op == "call_module"]) == 1
    assert counts[0] == counts[1]
    assert max(sizes) < 20_000 and max(sizes) - min(sizes) < 500


def test_loops_that_may_not_end() -> None:
    """A plan that jumps back is run where it counts the rows of a sequence, and nowhere else."""
    model, x, data = long("rnn")
    program = micronpu.compile(model, (x,), "imxrt700-neutron", calibration=data, verify=False)
    host = HostProgram(program.buffer)
    assert torch.equal(host.run(x)[0], host.run(x)[0])
    plan = root(memoryview(program.buffer), b"ET12").vector(1).table(0)
    values, refused = plan.vector(2), 0
    for number in range(values.length):
        value = values.table(number)
        body = value.table(1)
        if value.integer(0, "<B") == 2 and body is not None and body.integer(0, "<q") == 1 and body.offset(0):
            changed = bytearray(program.buffer)
            struct.pack_into("<q", changed, body.offset(0), 2)  # a counter that steps over its end
            try:
                check_plan(bytes(changed), "It", "forward")
            except PayloadError as error:
                refused += "neither forward nor the beginning of a loop that ends" in str(error)
    assert refused


def test_a_loop_is_no_litert_model() -> None:
    model, x, data = long("rnn")
    program = micronpu.compile(model, (x,), "imxrt700-neutron", calibration=data, verify=False)
    with pytest.raises(UnsupportedError, match="a recurrent layer that is one step in a loop"):
        program.to_litert()


@pytest.mark.sweep
def test_layers_that_a_quantizer_left_in_float_run_on_the_core() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.lstm, self.last = nn.Linear(INPUTS, 8), nn.LSTM(8, HIDDEN), nn.Linear(HIDDEN, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.lstm(torch.relu(self.first(x)))[0][-1])
            return y

    x = torch.randn(STEPS, 1, INPUTS)
    config = xnnpack_quantizer.get_symmetric_quantization_config()
    prepared = prepare_pt2e(
        torch.export.export(Tagger().eval(), (x,)).module(), xnnpack_quantizer.XNNPACKQuantizer().set_global(config)
    )
    prepared(x)
    quantized = convert_pt2e(prepared)
    program = micronpu.compile(quantized, x, "ethos-u55-128")
    assert program.report.delegated and any("sigmoid" in v.operator for v in program.report.host)
    torch.testing.assert_close(program.run(x), quantized(x), atol=0.02, rtol=0)


def test_notes_of_equal_layers_are_one() -> None:
    model, data = nn.LSTM(4, 4, num_layers=2).eval(), [torch.randn(70, 1, 4) for _ in range(4)]
    notes = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data, quantization="int8").report.notes
    (note,) = [note for note in notes if "A recurrent layer of 70 steps" in note]
    assert note.startswith("2 layers: A recurrent layer of 70 steps is one step of ")
