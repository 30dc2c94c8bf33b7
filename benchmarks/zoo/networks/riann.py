"""Attitude of a sensor as a quaternion, from accelerometer and gyroscope: two GRUs of 200 with their states in
buffers.

One call a sample; errors of the states add up over calls. Rows are a smartwatch's readings (10 Hz, interpolated to 50
Hz); other recordings calibrate. 1 % of the metric is 1.8 degrees.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, Row, mean, output, t32
from benchmarks.zoo.weights import Weights, linear, onnx
from torch import Tensor, nn


def gru(node: Any, w: Weights, inputs: int, hidden: int) -> nn.GRU:
    """A GRU node as a torch.nn.GRU: gates z, r, n there, r, z, n here."""

    def gates(a: np.ndarray) -> Tensor:
        return t32(np.concatenate([np.split(a, 3)[k] for k in (1, 0, 2)]))

    kernel, recurrent, bias = (w[node.input[k]][0] for k in (1, 2, 3))
    of_input, of_state = np.split(bias, 2)
    assert [a.i for a in node.attribute if a.name == "linear_before_reset"] == [1]
    g = nn.GRU(inputs, hidden, batch_first=True)
    values = (kernel, recurrent, of_input, of_state)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    g.load_state_dict({name: gates(a) for name, a in zip(names, values, strict=True)})
    return g


class Riann(nn.Module):
    def __init__(self, path: Path) -> None:
        super().__init__()
        graph, w = onnx(path)

        def first(op: str) -> Any:
            return next(n for n in graph.node if n.op_type == op)

        self.register_buffer("mean", t32(next(w[k] for k in first("Sub").input if k in w)))
        self.register_buffer("std", t32(next(w[k] for k in first("Div").input if k in w)))
        a, b = (n for n in graph.node if n.op_type == "GRU")
        self.a, self.b = gru(a, w, 7, 200), gru(b, w, 200, 200)
        conv = first("Conv")
        self.out = linear(w[conv.input[1]][:, :, 0].T, w[conv.input[2]])
        self.register_buffer("h1", torch.zeros(1, 1, 200))
        self.register_buffer("h2", torch.zeros(1, 1, 200))

    def forward(self, x: Tensor) -> Tensor:
        y, h1 = self.a((x - self.mean) / self.std, self.h1)
        y, h2 = self.b(y, self.h2)
        self.h1, self.h2 = h1, h2
        q = self.out(y)
        return q / torch.sqrt((q * q).sum(-1, keepdim=True))


def recordings() -> list[list[Row]]:
    out: list[list[Row]] = []
    for x in data.watch_motions():
        n = len(x)
        t = np.linspace(0, n - 1, 5 * n - 4)
        y = np.stack([np.interp(t, np.arange(n), x[:, k]) for k in range(6)], 1)
        y = np.concatenate([y, np.full((len(y), 1), 1 / 50)], 1)[:250]
        out.append([(t32(r)[None, None],) for r in y])
    return out


def compare(path: Path, model: Riann, rows: list[Row]) -> None:
    """Checks the module against onnxruntime, and resets its states."""
    import onnxruntime

    session, state = onnxruntime.InferenceSession(path), np.zeros((2, 1, 1, 200), np.float32)
    with torch.no_grad():
        for x in rows:
            y, state = session.run(None, {"input": x[0].numpy(), "h0": state})
            assert np.abs(y - model(x[0]).numpy()).max() < 1e-4
        model.h1.zero_()
        model.h2.zero_()


def task(r: Outputs, g: Outputs) -> Figures:
    a, b = output(r)[:, 0], output(g)[:, 0]
    cosine = ((a * b).sum(-1).abs() / b.norm(dim=-1).clamp_min(1e-6)).clamp(0, 1)
    angle = 2 * torch.rad2deg(torch.acos(cosine))
    return {
        "attitude_agreement": round(1 - angle.mean().item() / 180, 4),
        "degrees_mean": mean(angle, 2),
        "degrees_p95": round(angle.quantile(0.95).item(), 2),
    }


def load(path: Path) -> Loaded:
    model, found = Riann(path).eval(), recordings()
    calibration, test = found[::8][:10], found[3::8][:8]
    compare(path, model, test[0][:50])
    return Loaded(model, calibration, test, task)


NETWORK = Network(
    does="Which attitude has this sensor? RIANN, 0.4 M parameters",
    package="riann",
    file="riann/riann.onnx",
    data=(data.WATCH,),
    metric="attitude_agreement",
    measures="1 less the mean angle to float's attitude by 180 degrees",
    load=load,
    streaming=True,
    rebuilt=True,
)
