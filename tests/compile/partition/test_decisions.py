"""Every operator is decided about once: what the report says is what the payload holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.chip_files import SMALL_NEUTRON
from torch import nn
from torch.nn import functional as F

import micronpu
from micronpu.frontend import units
from micronpu.frontend.program import ProgramView
from micronpu.ir.graph import Graph
from micronpu.partition import partition
from micronpu.partition.decisions import Decisions
from micronpu.partition.device import CompiledPartition, Device, RefusedPartitionError
from micronpu.partition.partition import Partition
from micronpu.report.verdict import Reason
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rules import check_node
from micronpu.targets.registry import device_for

CHIP = """
name = "{name}"
title = "A fast core beside a slow NPU"
source = "imagination"

[core]
name = "{core}"
clock_mhz = {core_mhz}

{npu}clock_mhz = {npu_mhz}

[[memory]]
name = "sram"
bytes = 1048576

[[target]]
name = "{name}-neutron-cortexm"
title = "int8 on the core"
leftovers = "cmsis-nn"

[[target]]
name = "{name}-neutron"
title = "float on the core"
"""


class Chain(nn.Module):
    """Ten operators for an NPU, and one between them that it may not have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(c, 8, 3, padding=1) for c in (3, 8, 8, 8))
        self.classes = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = self.layers
        x = F.max_pool2d(torch.relu(first(x)), 2)
        x = F.hardswish(second(x))
        x = third(x) + fourth(x)
        return torch.softmax(self.classes(F.adaptive_avg_pool2d(x, 1).flatten(1)), -1)


def data(*shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for _ in range(4)]


def count(patch: pytest.MonkeyPatch, calls: Counter[str], owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def counting(*args: Any, **keywords: Any) -> Any:
        calls[name] += 1
        return original(*args, **keywords)

    patch.setattr(owner, name, counting)


@pytest.mark.parametrize("npu_mhz", [150, 400])
@pytest.mark.parametrize("core_mhz", [100, 800])
@pytest.mark.parametrize("target", ["neutron-cortexm", "neutron"])
def test_what_the_report_calls_rewritten_is_rewritten(tmp_path: Path, target: str, core_mhz: int, npu_mhz: int) -> None:
    """Int8 on the core and float on the core cost differently, so that deciding by both would disagree."""
    name = f"two{core_mhz}with{npu_mhz}"
    path = tmp_path / f"{name}.toml"
    path.write_text(CHIP.format(name=name, core="cortex-m7", core_mhz=core_mhz, npu=SMALL_NEUTRON, npu_mhz=npu_mhz))
    chip = f"{path}:{name}-{target}"
    options = NeutronOptions(silicon=str(path), converter_flavor="SDK_25_12")
    x = data(1, 100, 10)
    program = micronpu.compile(nn.Softmax(-1).eval(), x[0], chip, calibration=x, options=options)
    (verdict,) = program.report.verdicts
    made_by = {name for p in program.partitions for n in p.graph.nodes for name in n.origin.passes}
    assert set(verdict.rewrites) <= made_by
    assert ("pad_channels" in verdict.rewrites) == ("pad_channels" in made_by) == verdict.delegated
    assert all(not check_node(n, options.target_spec) for p in program.partitions for n in p.graph.nodes)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imxrt700", "imxrt700-neutron", "ethos-u55-128", "corstone300"])
def test_one_compilation_partitions_once_and_imports_each_operator_once(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    calls: Counter[str] = Counter()
    for owner, name in ((units, "import_piece"), (partition, "assemble"), (Decisions, "partitioning")):
        count(monkeypatch, calls, owner, name)
    x = data(1, 3, 16, 16)
    options = None
    if target.startswith("imxrt700"):
        options = NeutronOptions(operators_not_to_delegate=("aten.hardswish.default",))
    program = micronpu.compile(Chain().eval(), x[0], target, calibration=x, options=options)
    view = ProgramView(program.quantized)  # type: ignore[arg-type]
    assert len(program.report.verdicts) >= 10
    assert calls["partitioning"] == 1
    assert calls["import_piece"] <= len(units.find_units(view)[0])
    groups = len(program.partitions) + sum(bool(v.core) for v in program.report.verdicts)
    assert calls["assemble"] <= 2 * groups  # once more where NPU and core agree on images


class Refusing(Device):
    """A device whose compiler refuses an operator of one kind, after all."""

    def __init__(self, inner: Device, operator: str) -> None:
        self.inner, self.operator = inner, operator
        self.target, self.backend, self.beside = inner.target, inner.backend, inner.beside
        self.capabilities = inner.capabilities
        self.asked: list[Partition] = []

    def policy(self) -> Any:
        return self.inner.policy()

    def plan(self, partition: Partition) -> object:
        self.asked.append(partition)
        for node in partition.graph.nodes:
            if node.op.name == self.operator:
                names = node.origin.nodes
                raise RefusedPartitionError("no", {n: Reason("late", "It is taken.", "it is not", n) for n in names})
        return self.inner.plan(partition)

    def compile(self, partition: Partition) -> CompiledPartition:
        return self.inner.compile(partition)

    def compile_program(self, graph: Graph) -> CompiledPartition:
        return self.inner.compile_program(graph)

    def specs(self) -> Any:
        return self.inner.specs()

    def notes(self, parts: Any) -> tuple[str, ...]:
        return self.inner.notes(parts)


def test_a_late_refusal_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    x = data(1, 3, 16, 16)
    model = Chain().eval()
    plain = device_for("imxrt700", NeutronOptions(operators_not_to_delegate=("aten.hardswish.default",)))
    quantized = micronpu.compile(model, x[0], "imxrt700", calibration=x).quantized
    calls: Counter[str] = Counter()
    count(monkeypatch, calls, units, "import_piece")
    device = Refusing(plain, "softmax")
    decisions = device.decisions(ProgramView(quantized))  # type: ignore[arg-type]
    first = decisions.partitioning()
    imported = calls["import_piece"]
    assert imported
    settled = device.settle(decisions, first)
    assert calls["import_piece"] == imported
    assert len(settled.partitions) == len(first.partitions) == 2
    # The first partition is planned once; the second is tried with the operator and then without it.
    assert [p.nodes == first.partitions[0].nodes for p in device.asked] == [True, False, False]
    (refused,) = [v for v in settled.report.verdicts if "late" in {r.rule for r in v.reasons}]
    assert refused.operator == "softmax.int" and refused.core
    before = {v.node: v for v in first.report.verdicts}
    assert all(before[v.node] == v for v in settled.report.verdicts if v is not refused)


def test_a_refusal_that_says_nothing_new_ends_the_compilation() -> None:
    x = data(1, 3, 16, 16)
    device = Refusing(device_for("imxrt700"), "softmax")
    quantized = micronpu.compile(Chain().eval(), x[0], "imxrt700", calibration=x).quantized
    decisions = device.decisions(ProgramView(quantized))  # type: ignore[arg-type]
    names = [v.node for v in decisions.partitioning().report.verdicts if v.operator == "softmax.int"]
    decisions.refuse({n: Reason("late", "It is taken.", "it is not", n) for n in names})
    device.operator = "conv2d"

    def stubborn(partition: Partition) -> object:
        raise RefusedPartitionError("no", {n: Reason("late", "", "", n) for n in names})

    device.plan = stubborn  # type: ignore[method-assign]
    with pytest.raises(RefusedPartitionError):
        device.settle(decisions, decisions.partitioning())
