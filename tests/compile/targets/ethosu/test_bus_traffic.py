"""What crosses the bus beside the bytes that the simulator sees an operation touch, and what reports say of it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import micronpu
from micronpu.targets.ethosu.accelerators import ports_of
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.costs import estimated
from micronpu.targets.ethosu.host.proof import random_integers
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, SimulatedOperation
from micronpu.targets.ethosu.payload import parse
from micronpu.targets.ethosu.schedule.traffic import RegionTraffic, traffic_of
from micronpu.targets.ethosu.stream import actions_of


class Mixed(nn.Module):
    """Windows, strides, an addition, a pool, a table and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.last = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.sigmoid(x + self.depthwise(x))
        result: torch.Tensor = self.last(torch.max_pool2d(x, 4).mean((2, 3)))
        return result


@pytest.mark.parametrize("target", ["ethos-u55-128", "imx93", "ethos-u85-256"])
def test_every_byte_that_the_simulator_sees_crosses_the_bus(target: str) -> None:
    """What is written is the same, and nothing that is read is left out; what blocks read twice comes on top."""
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    program = micronpu.compile(Mixed().eval(), (x,), target, calibration=[(x,)], verify=False)
    (part,) = (p for p in program.partitions if isinstance(p, EthosUPartition))
    content, accelerator = parse(part.payload), part.spec.accelerator
    seen: list[SimulatedOperation] = []
    given = [random_integers(b.shape, f"<i{b.element_size}", i) for i, b in enumerate(content.inputs)]
    EthosUSimulator(accelerator.name).run(content, given, watch=seen.append, accesses=True)
    counted = traffic_of(actions_of(content.commands), accelerator.family, accelerator.port_bytes)
    for one, operation in zip(counted, seen, strict=True):
        read, written = (Counter[int](), Counter[int]())
        for into, ranges in ((read, operation.reads), (written, operation.writes)):
            for part_ in ranges:
                if part_.region < 8:  # not the table memory inside the NPU
                    into[part_.region] += part_.size
        for region in {*one.regions, *read, *written}:
            own = one.regions.get(region, RegionTraffic())
            assert own.written == written[region], operation
            # Lengths of weights and transfers are rounded up to 16.
            assert own.read >= read[region] and own.read_beats * accelerator.port_bytes >= own.read, operation
    found = estimated(part.program, part.spec)
    ports = ports_of(part.spec.ini, part.spec.system_config, part.spec.memory_mode, accelerator)
    for name in {port.name for port in ports.values()}:
        own_bytes = sum(m.read for t in counted for r, m in t.regions.items() if ports[r].name == name)
        assert program.report.bus[name].read_bytes == own_bytes == found.bus[name].read_bytes
    by_operation = Counter[str]()
    for one_ in program.report.operations:
        for name, traffic in one_.cost.bus.items() if one_.cost is not None else ():
            by_operation[name] += traffic.read_bytes
    assert all(by_operation[name] <= program.report.bus[name].read_bytes for name in by_operation)
    assert sum(by_operation.values()) > 0.9 * sum(t.read_bytes for t in program.report.bus.values())
    assert found.cycles == part.cycles == next(t.cycles for t in program.report.latency if t.processor == "NPU")
    assert sum(layer.cycles for layer in found.layers) == pytest.approx(found.cycles, rel=0.01)
