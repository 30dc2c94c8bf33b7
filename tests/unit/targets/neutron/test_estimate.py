"""The cycle estimate against the latencies that NXP published for MCX N947 (Neutron N1-16, 150 MHz)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from micronpu.ir import DType, GraphBuilder, QParams, Tensor, TensorType
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.clamps import Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.pooling import AvgPool2d
from micronpu.targets.neutron.costs import BAND, START_CYCLES, costs_of, npu_latency
from micronpu.targets.neutron.target_spec import NeutronNpu

N1 = NeutronNpu(variant="N1-16", kind="C", pipelines=4, macs=4, clock_mhz=150)
Q = QParams.per_tensor(0.05, 0)


def _int8(*shape: int) -> TensorType:
    return TensorType(shape, DType.INT8, Q)


class Net:
    """Chains of layers with weights of zeros: costs depend on shapes alone."""

    def __init__(self, *shape: int) -> None:
        self.builder = GraphBuilder()
        self.x = self.builder.input(_int8(*shape))

    def _weights(self, *shape: int) -> tuple[Tensor, Tensor]:
        out = shape[3] if shape[0] == 1 and len(shape) == 4 else shape[0]
        bias = TensorType((out,), DType.INT32, QParams.per_tensor(0.0025, 0))
        return self.builder.constant(np.zeros(shape), _int8(*shape)), self.builder.constant(np.zeros(out), bias)

    def conv(self, out: int, kernel: tuple[int, int], stride: int = 1) -> Tensor:
        size = self.x.shape[1:3]
        op = Conv2d((stride, stride), Padding2d.same(size, kernel, (stride, stride)))
        self.x = self.builder.emit(op, self.x, *self._weights(out, *kernel, self.x.shape[3]), qparams=Q)
        return self.x

    def depthwise(self, stride: int = 1) -> None:
        op = DepthwiseConv2d((stride, stride), Padding2d.same(self.x.shape[1:3], (3, 3), (stride, stride)))
        self.x = self.builder.emit(op, self.x, *self._weights(1, 3, 3, self.x.shape[3]), qparams=Q)

    def head(self, classes: int) -> None:
        self.x = self.builder.emit(AvgPool2d(self.x.shape[1:3], (1, 1)), self.x)
        self.x = self.builder.emit(FullyConnected(), self.x, *self._weights(classes, self.x.shape[-1]), qparams=Q)


def _resnet8() -> Net:
    net = Net(1, 32, 32, 3)
    net.conv(16, (3, 3))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        side = net.x
        net.conv(channels, (3, 3), stride)
        body = net.conv(channels, (3, 3))
        if stride == 2:
            net.x = side
            side = net.conv(channels, (1, 1), 2)
        total = net.builder.emit(Add(), body, side, qparams=Q)
        net.x = net.builder.emit(Relu(), total, qparams=Q)
    net.head(10)
    return net


def _vww() -> Net:
    net = Net(1, 96, 96, 3)
    net.conv(8, (3, 3), 2)
    plan = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *(((128, 1),) * 5), (256, 2), (256, 1))
    for channels, stride in plan:
        net.depthwise(stride)
        net.conv(channels, (1, 1))
    net.head(2)
    return net


def _autoencoder() -> Net:
    net = Net(1, 640)
    for width in (128, 128, 128, 128, 8, 128, 128, 128, 128, 640):
        net.x = net.builder.emit(FullyConnected(), net.x, *net._weights(width, net.x.shape[1]), qparams=Q)
    return net


def _cycles(net: Net) -> int:
    return sum(cost.cycles for cost in costs_of(net.builder.finish(net.x), N1).values())


@pytest.mark.parametrize(("build", "published_ms"), [(_resnet8, 6.31), (_vww, 6.384), (_autoencoder, 0.797)])
def test_published_latencies_lie_within_the_band(build, published_ms: float) -> None:  # type: ignore[no-untyped-def]
    estimate = _cycles(build()) / N1.clock_mhz / 1000
    assert BAND[0] * estimate <= published_ms <= BAND[1] * estimate
    assert estimate == pytest.approx(published_ms, rel=0.1), "these three are closer than the band"


def test_time_is_given_only_where_a_published_latency_is_part_of_the_fit() -> None:
    parts = [SimpleNamespace(costs={0: SimpleNamespace(cycles=1_500_000)})]
    (latency,) = npu_latency(parts, replace(N1, fitted=True))  # type: ignore[arg-type]
    assert latency.milliseconds == 10
    assert str(latency).startswith("NPU: about 10.0 ms (8.0 to 12.5), 1,500,000 cycles at 150 MHz, by ")
    assert npu_latency(parts, N1) == ()  # type: ignore[arg-type]


def test_weights_are_copied_only_where_the_npu_cannot_read_the_flash() -> None:
    net = Net(1, 640)
    net.x = net.builder.emit(FullyConnected(), net.x, *net._weights(128, 640), qparams=Q)
    graph = net.builder.finish(net.x)
    (in_place,), (copied,) = (list(costs_of(graph, n).values()) for n in (N1, replace(N1, weight_bandwidth=150e6)))
    assert not in_place.memory_cycles
    weights = 640 * 128 + 4 * 128
    assert copied.memory_cycles == {"flash": weights}, "a byte a cycle: 150 MB/s at 150 MHz"
    assert copied.cycles == in_place.cycles + weights


def test_a_clamp_behind_an_addition_is_a_kernel_of_its_own() -> None:
    net = Net(1, 4, 4, 8)
    total = net.builder.emit(Add(), net.x, net.x, qparams=Q)
    clamped = net.builder.emit(Add(activation=Activation.RELU), total, net.x, qparams=Q)
    plain, fused = costs_of(net.builder.finish(clamped), N1).values()
    assert fused.cycles == plain.cycles + START_CYCLES


def test_padded_channels_cost_as_much_as_full_ones() -> None:
    cycles = []
    for channels in (5, 8):
        net = Net(1, 8, 8, channels)
        net.conv(16, (3, 3))
        cycles.append(_cycles(net))
    assert cycles[0] == cycles[1]
