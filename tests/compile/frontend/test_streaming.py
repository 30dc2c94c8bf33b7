"""Networks over a whole recording as networks that take the newest frames: the same floats, less work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.small import Small
from torch import nn
from torch.nn import functional

import micronpu
from micronpu.base.errors import ModelError, OptionError


class Causal(nn.Module):
    """A convolution over time that pads the beginning alone."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, dilation: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.padding = (kernel - 1) * dilation
        self.layer = nn.Conv1d(channels_in, channels_out, kernel, dilation=dilation, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(functional.pad(x, (self.padding, 0)))


class Tcn(nn.Module):
    """Convolutions that pad both sides, and cut off what they made of the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(8, 8, 3, padding=2 * d, dilation=d) for d in (1, 2, 4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(3))
        self.head = nn.Conv1d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.relu(norm(layer(x)[:, :, : -layer.padding[0]])) + x
        return self.head(x)


class WaveNet(nn.Module):
    """Gated and dilated, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Causal(1, 8, 2)
        self.filters = nn.ModuleList(Causal(8, 8, 2, d) for d in (1, 2, 4, 8))
        self.gates = nn.ModuleList(Causal(8, 8, 2, d) for d in (1, 2, 4, 8))
        self.mixes = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))
        self.head = nn.Conv1d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        skips = torch.zeros(1)
        for layer, gate, mix in zip(self.filters, self.gates, self.mixes, strict=True):
            y = mix(torch.tanh(layer(x)) * torch.sigmoid(gate(x)))
            x, skips = x + y, skips + y
        return self.head(functional.relu(skips))


class Crnn(nn.Module):
    """A strided convolution over time and mel bands, a GRU, and scores for each second frame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=(0, 1), stride=2)
        self.gru, self.head = nn.GRU(20, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.conv(functional.pad(x, (0, 0, 2, 0)))).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.gru(y)[0])


class DsCnn(nn.Module):
    """The keyword spotter of MLPerf Tiny with 49 frames of 10 coefficients, whose windows over time pad nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 64, (10, 4), stride=(1, 2), padding=(0, 1))
        self.depth = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=(0, 1), groups=64) for _ in range(4))
        self.point = nn.ModuleList(nn.Conv2d(64, 64, 1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(4))
        self.head = nn.Linear(64, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        for depth, point, norm in zip(self.depth, self.point, self.norms, strict=True):
            x = functional.relu(norm(point(functional.relu(depth(x)))))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Scores of the newest frame, which looks at a window."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = Causal(4, 8, 3), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).transpose(1, 2)
        return self.head(self.attention(y, y, y, need_weights=False)[0][:, -1])


def _strided() -> nn.Module:
    return nn.Sequential(Causal(4, 4, 5, stride=2), nn.ReLU(), Causal(4, 4, 4, stride=2), nn.AvgPool1d(1))


def _unpadded() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 4, 4, stride=2), nn.ReLU(), nn.Conv1d(4, 4, 3, stride=2), nn.MaxPool1d(2, 1))


def _lstm(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.head(self.lstm(x)[0])


Network = tuple[Callable[[], nn.Module], tuple[int, ...], int, int, int | None]
NETWORKS: dict[str, Network] = {
    "tcn": (Tcn, (1, 8, 40), -1, 2, -1),
    "wavenet": (WaveNet, (1, 1, 48), -1, 4, -1),
    "crnn": (Crnn, (1, 1, 20, 10), 2, 2, 1),
    "ds-cnn": (DsCnn, (1, 1, 49, 10), 2, 1, None),
    "attention": (Attention, (1, 4, 16), -1, 1, None),
    "strided": (_strided, (1, 4, 32), -1, 4, -1),
    "unpadded": (_unpadded, (1, 4, 32), -1, 4, -1),
    "lstm": (lambda: Small(_lstm, lstm=nn.LSTM(4, 8, num_layers=2), head=nn.Linear(8, 2)), (12, 1, 4), 0, 3, 0),
}
"""Network, shape of a recording, axis of time, frames in a call, and the axis of time of the result (None: one)."""


def network(name: str) -> tuple[nn.Module, torch.Tensor, int, int, int | None]:
    make, shape, dim, step, out = NETWORKS[name]
    torch.manual_seed(0)
    return make().eval(), torch.randn(shape), dim, step, out


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_floats(name: str) -> None:
    """But for the order in which sums of other shapes are added up, which differs from one processor to the next.

    In double precision that is far less than what one wrong frame would make of any result.
    """
    model, x, dim, step, out = network(name)
    model, x = model.double(), x.double()
    stream = micronpu.streaming(model, (x,), dim=dim, step=step)
    with torch.no_grad():
        whole, parts = model(x), [stream(part) for part in x.split(step, dim)]
        joined = parts[-1] if out is None else torch.cat(parts, out)
        if out is not None:
            # What windows that pad nothing give before they are full is not in the model's result.
            assert (stream.lag > 0) == (name == "unpadded")
            joined = joined.narrow(out, stream.lag, joined.shape[out] - stream.lag)
        assert same(joined, whole)
        stream.reset()
        assert same(stream(x.split(step, dim)[0]), parts[0])


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.dtype == wanted.dtype == torch.float64 and torch.allclose(found, wanted, rtol=0, atol=1e-13)


def test_a_window_that_slides() -> None:
    """After as many frames as the example has, every hop gives what the model gives for the last ones."""
    model, x, dim, step, _ = network("ds-cnn")
    model, x = model.double(), x.double()
    stream = micronpu.streaming(model, (x,), dim=dim, step=step)
    long = torch.randn(1, 1, 60, 10, dtype=torch.float64)
    with torch.no_grad():
        results = [stream(frame) for frame in long.split(1, 2)]
        for last in range(49, 61):
            assert same(results[last - 1], model(long[:, :, last - 49 : last]))


@pytest.mark.sweep
def test_the_same_integers_with_a_saving() -> None:
    """A hop of DS-CNN is a tenth of the multiplications, in one partition, with the integers of the whole program."""
    model, x, dim, step, _ = network("ds-cnn")
    recordings = [torch.randn(1, 1, 49, 10) for _ in range(3)]
    offline = micronpu.compile(
        model, (x,), "imxrt700", calibration=recordings, verify=micronpu.Verification(held_out=0)
    )
    stream = micronpu.streaming(offline.quantized, (x,), dim=dim, step=step)
    long = torch.cat([x, recordings[0][:, :, :4]], 2)
    whole = [offline.run(long[:, :, last - 49 : last]) for last in range(49, 54)]
    for target, exact in (("imxrt700", True), ("ethos-u55-128", False)):
        # An Ethos-U may take a mean over a window as a pool, which rounds once.
        program = micronpu.compile(stream, (x[:, :, :1],), target)
        assert program.report.share == offline.report.share == 1.0
        assert program.report.partitions == 1
        assert [state.dtype for state in program.report.states] == ["int8"] * 6
        assert 5 * program.report.macs <= offline.report.macs
        print(f"DS-CNN: {offline.report.macs:,} MACs offline, {program.report.macs:,} per hop")
        found = [program.run(frame) for frame in long.split(1, 2)][48:]
        for got, expected in zip(found, whole, strict=True):
            assert not exact or torch.equal(got, expected)
            assert (got - expected).abs().max() <= 0.02 * expected.abs().max()


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["tcn", "unpadded", "padded with ones"])
def test_the_same_integers(name: str) -> None:
    """On the grids of the whole program, whatever is padded with what."""
    if name == "padded with ones":
        make, shape, dim, step, out = (lambda: Small(_padded_with_ones)), (1, 4, 24), -1, 3, -1
        model, x = make(), torch.randn(shape)
    else:
        model, x, dim, step, out = network(name)
    offline = micronpu.compile(model, (x,), "imxrt700", calibration=[torch.randn(x.shape) for _ in range(3)])
    stream = micronpu.streaming(offline.quantized, (x,), dim=dim, step=step)
    program = micronpu.compile(stream, (x.split(step, dim)[0],), "imxrt700")
    assert program.report.partitions == 1
    found, whole = torch.cat([program.run(part) for part in x.split(step, dim)], out), offline.run(x)
    assert len(whole.unique()) > 10
    assert torch.equal(found.narrow(out, stream.lag, whole.shape[out]), whole)


def _padded_with_ones(self: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.conv1d(functional.pad(torch.relu(x), (2, 0), value=0.7), torch.ones(4, 4, 3))


@pytest.mark.sweep
def test_a_quantized_recurrent_layer() -> None:
    """It is written step by step, and no step is that of the stream."""
    model, x, dim, step, _ = network("crnn")
    offline = micronpu.compile(model, (x,), "imxrt700", calibration=[x])
    with pytest.raises(ModelError, match="in which each step of a recurrent layer"):
        micronpu.streaming(offline.quantized, (x,), dim=dim, step=step)


def test_a_recurrent_network_compiles() -> None:
    model, x, dim, step, out = network("crnn")
    stream = micronpu.streaming(model, (x,), dim=dim, step=step)
    first = x.split(step, dim)[0]
    data = [list(torch.randn(x.shape).split(step, dim)) for _ in range(3)] + [list(x.split(step, dim))]
    program = micronpu.compile(stream, (first,), "imxrt700", calibration=data, verify=micronpu.Verification(held_out=0))
    assert program.report.share == 1.0
    assert 2 * program.report.macs <= micronpu.check(model, (x,), "imxrt700").report.macs
    with torch.no_grad():
        found, whole = torch.cat([program.run(part) for part in x.split(step, dim)], out), model(x)
    assert (found - whole).abs().max() < 0.1 * whole.abs().max()


def _conv(x: torch.Tensor) -> torch.Tensor:
    return functional.conv1d(x, torch.ones(4, 4, 3), padding=1)


REFUSED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], str]] = {
    "symmetric": (
        lambda self, x: _conv(x) * 2 + functional.conv1d(_conv(x), torch.ones(4, 4, 1)),
        "follows an operator that pads the end of time by 1 frames: its last results would have to know the future",
    ),
    "symmetric to the end": (lambda self, x: _conv(x), "would have to know the future. Try: padding at the beginning"),
    "padded right": (lambda self, x: functional.max_pool1d(functional.pad(x, (0, 2)), 3, 1), "by 2 frames"),
    "both ways": (lambda self, x: self.gru(x.permute(2, 0, 1))[0], "goes through time backwards, too. Try: bidirect"),
    "newest left out": (lambda self, x: x[:, :, :-1] * 2, "leaves out the newest frames"),
    "strided": (lambda self, x: functional.max_pool1d(x, 2), "goes over time in steps of 2, and gets 1 new frames"),
    "mixed padding": (
        lambda self, x: functional.conv1d(
            functional.pad(functional.conv1d(x, torch.ones(4, 4, 3)), (2, 0)), torch.ones(4, 4, 3)
        ),
        "pads the beginning of time after an operator that does not",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_looks_ahead(case: str) -> None:
    function, words = REFUSED[case]
    model = Small(function, gru=nn.GRU(4, 4, bidirectional=True))
    with pytest.raises(ModelError) as caught:
        micronpu.streaming(model, (torch.randn(1, 4, 16),))
    assert words in str(caught.value)
    assert ".py:" in str(caught.value)


def test_options() -> None:
    x = torch.randn(1, 4, 16)
    model = Small(lambda self, x: torch.relu(x))
    with pytest.raises(OptionError, match=r"A call takes 17 frames, .*: the sequence is shorter than one step"):
        micronpu.streaming(model, (x,), step=17)
    with pytest.raises(OptionError, match="`step` is 0; it is a number of frames"):
        micronpu.streaming(model, (x,), step=0)
    with pytest.raises(OptionError, match="`dim` is 3, which is no axis"):
        micronpu.streaming(model, (x,), dim=3)
    with pytest.raises(ModelError, match="keeps no frames, so there is nothing to reset"):
        micronpu.streaming(model, (x,)).reset()
    with pytest.raises(ModelError, match="The model has 2 inputs"):
        micronpu.streaming(model, (x, x))


def _replaced(model: Any, x: torch.Tensor) -> Any:
    model.past = x * 2 + model.past
    return model.past


def _written(model: Any, x: torch.Tensor) -> Any:
    model.past.copy_(x)
    return x + 1


def _counted(model: Any, x: torch.Tensor) -> Any:
    model.past += 1
    return x * 2


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [_replaced, _written, _counted])
def test_a_model_with_a_state_of_its_own_is_refused(function: Any, dim: int) -> None:
    model = Small(function)
    model.register_buffer("past", torch.zeros(1, 4))
    with pytest.raises(ModelError, match=r"computes the state `past`, which a stream would change in each step"):
        micronpu.streaming(model, (torch.ones(1, 4),), dim=dim)


def test_both_branches_of_control_flow_are_streamed() -> None:
    model = Small(lambda m, x: torch.cond(m.w.sum() > 0, lambda y: y * 2, lambda y: y + 1, (x,)), w=torch.ones(1))
    x = torch.randn(1, 4, 8)
    stream = micronpu.streaming(model, (x,))
    assert torch.equal(torch.cat([stream(part) for part in x.split(1, 2)], 2), x * 2)


def test_a_cast_checks_nothing_in_a_stream() -> None:
    """torch.export writes a check of the operand before it, which has no result."""
    model, x = Small(lambda m, x: torch.relu(x.to(torch.float64) * 2)), torch.randn(1, 4, 8)
    with pytest.warns(UserWarning, match="_to_copy|to.dtype"):
        stream = micronpu.streaming(model, (x,))
    assert torch.equal([stream(part) for part in x.split(1, 2)][-1], model(x))
