"""What the report says in numbers, for a program of every family."""

from __future__ import annotations

import copy
import hashlib
import json
from functools import cache
from typing import Any

import jsonschema
import pytest
import torch
import torch.nn.functional as F
from tests.compile.small import Small, batches, conv, image, linear
from tests.report_schema import PLACE

import micronpu
from micronpu.base.errors import BudgetError
from micronpu.compiler.host import ENERGY
from micronpu.program.edit import strip
from micronpu.program.plan import read_plan
from micronpu.report.delegation import DelegationReport
from micronpu.report.memory import WEIGHTS
from micronpu.report.views.html import page
from micronpu.report.warnings import check_strict
from micronpu.targets.board import pools_of
from micronpu.targets.ethosu.costs import CALLS

TARGETS = ("imxrt700", "mcxn94x-neutron", "corstone300", "cortex-m55", "stm32f746")


def model() -> Small:
    """Two partitions of an NPU with a host operator between."""

    def forward(s, x):
        y = F.max_pool2d(F.relu(s.c(x)), 2)
        return F.softmax(s.l(torch.erf(y).flatten(1)), -1)

    return Small(forward, c=conv(), l=linear(72, 5))


@cache
def compiled(target: str, **options: Any) -> micronpu.CompiledProgram:
    return micronpu.compile(model(), (image(),), target, calibration=batches((image(),)), verify=False, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_the_report_of_every_backend_keeps_the_schema(target):
    report = compiled(target).report
    jsonschema.validate(json.loads(report.to_json()), json.loads(PLACE.read_text()))
    assert DelegationReport.from_json(report.to_json()).to_dict() == report.to_dict()


@pytest.mark.parametrize("target", TARGETS)
def test_digests_and_tools(target):
    program = compiled(target)
    hashes = dict(program.report.hashes)
    assert hashes.pop("program") == hashlib.sha256(program.buffer).hexdigest()
    assert {name: hashes.pop(name) for name in program.basis.hashes()} == program.basis.hashes()
    assert list(hashes.values()) == [hashlib.sha256(p.payload).hexdigest() for p in program.partitions]
    # The wheel of PyPI is for CUDA, which the version in its metadata does not say.
    assert program.report.tools["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"python", "micronpu", "executorch", "torchao", "ethos-u-vela"} <= set(program.report.tools)


@pytest.mark.parametrize("io", [None, "int8"])
def test_scales_of_the_io(io):
    report = compiled("imxrt700", quantization=micronpu.Quantization(io=io)).report
    (x,), (y,) = report.inputs, report.outputs
    assert (x.dtype, x.shape, y.dtype, y.shape) == (io or "float32", (1, 8, 6, 6), io or "float32", (1, 5))
    # Softmax has a grid of its own; that of the input is chosen by the calibration data.
    assert (y.scale, y.zero_point) == (1 / 256, -128)
    largest = max(float(b[0].abs().max()) for b in batches((image(),)))
    assert largest / 130 < x.scale < 2 * largest / 250


def test_scales_of_integers_that_the_users_module_returns():
    module = copy.deepcopy(compiled("imxrt700").quantized)
    output = module.graph.output_node()
    (result,) = output.all_input_nodes
    output.args = ((result.args[0],),)
    module.graph.eliminate_dead_code()
    module.recompile()
    (y,) = micronpu.compile(module, (image(),), "imxrt700", verify=False).report.outputs
    assert (y.dtype, y.scale, y.zero_point) == ("int8", 1 / 256, -128)


def test_scales_of_operations():
    operations = compiled("imxrt700").report.operations
    softmax = operations[-1]
    assert (softmax.name, softmax.dtype, softmax.scale, softmax.zero_point) == ("softmax", "int8", 1 / 256, -128)


@pytest.mark.parametrize("target", TARGETS)
def test_times_are_the_sums_of_the_operations(target):
    report = compiled(target).report
    times = {t.processor: t for t in report.latency}
    calls, in_float = times.pop(CALLS, None), times.pop("core in float", None)
    assert (in_float.cycles if in_float else 0) == sum(v.cycles for v in report.in_float)
    assert all(v.cycles for v in report.in_float)
    assert (calls is not None) == (target == "corstone300")
    for title, operations in (("NPU", report.operations), ("core", report.core_operations)):
        time = times.pop("NPU", None) if title == "NPU" else times.popitem()[1] if times else None
        costs = [o.cost for o in operations if o.cost is not None]
        if time is None:
            assert not costs or f"time of the {title}" in report.missing
            continue
        assert sum(c.cycles for c in costs) == time.cycles > 0
        assert sum(c.microseconds for c in costs) == pytest.approx(1000 * time.milliseconds)
        assert time.band[0] < time.milliseconds < time.band[1] and time.source
        assert all(c.bound_by in ("arithmetic", "start", *c.memory_cycles) for c in costs)
    assert not times
    assert report.missing["energy"] == ENERGY
    assert f"Energy: {ENERGY}." in report.figures and f"Energy: {ENERGY}." in " ".join(page(report).split())


def test_a_core_by_itself_has_no_clock():
    report = compiled("cortex-m55").report
    assert report.latency == () and report.core_operations[0].cost.cycles > 0
    cycles = sum(o.cost.cycles for o in report.core_operations if o.cost is not None)
    why = "a core without a chip has no clock; as the target, take a chip file"
    assert report.missing["time of the core"] == f"{cycles:,} cycles estimated, and {why}" and cycles
    assert f"Time of the core: {cycles:,} cycles estimated, and {why}." in " ".join(str(report).split())
    table = next(line for line in str(report).splitlines() if line.startswith("Part 0 on the core: "))
    assert table.endswith(f"{cycles:,} cycles") and "µs" not in str(report)


CHIP = """
name = "toy"
title = "Toy"
source = "none"
core = { name = "cortex-m33" }
[npu]
%s
[[target]]
name = "toy"
title = "NPU and core"
leftovers = "cmsis-nn"
"""
NEUTRON = 'family = "neutron"\nvariant = "N3-64"\nclass = "C"\npipelines = 8\nmacs = 8\nfitted = true'
ETHOS_U = 'family = "ethos-u"\nvariant = "U55-128"\naccelerator = "ethos-u55-128"'


@pytest.mark.parametrize("npu", [NEUTRON, ETHOS_U])
def test_a_chip_without_clocks_and_memories_gets_no_time(tmp_path, npu):
    """The estimate says what it lacks, and gives none."""
    (tmp_path / "toy.toml").write_text(CHIP % npu)
    report = compiled(str(tmp_path / "toy.toml")).report
    assert report.latency == ()
    assert report.missing["time of the NPU"] == "the chip's file has no clock_mhz in [npu]"
    jsonschema.validate(json.loads(report.to_json()), json.loads(PLACE.read_text()))


def test_the_folder_takes_the_sram_that_the_report_says(tmp_path):
    program = compiled("imxrt700")
    regions = program.deploy(tmp_path / "folder").regions
    memory = program.report.memory
    assert sum(region.bytes for region in regions if region.kind == "sram") == memory.sram > 0
    inside = max(arena.bound for arena in memory.arenas if not arena.region)
    assert program.report.headline.sram == memory.sram
    assert inside in {item.bytes for region in regions for item in region.items}


@pytest.mark.parametrize("target", TARGETS)
def test_the_memory_is_that_of_the_file(target):
    program = compiled(target)
    memory = program.report.memory
    assert memory.flash == len(strip(program.buffer))
    parts = {item.what: item.bytes for region in memory.regions for item in region.items}
    weights = 8 * 8 * 9 + 72 * 5  # of the convolution and the matrix product, in int8
    assert parts[WEIGHTS] >= weights
    pools = pools_of(read_plan(program.buffer)[0])
    assert (memory.planned, memory.method_pool, memory.temporary_pool) == (pools.planned, pools.method, pools.temporary)
    planned = [a for a in memory.arenas if a.name.startswith("planned memory")]
    assert [a.bytes for a in planned] == [size for size in memory.planned if size]
    # What stands inside of NPUs whose compiler is silent is one thing more.
    inside = parts.get("inside of the NPU's partitions, at least", 0)
    assert memory.sram >= sum(pools.planned) + pools.method + inside
    assert (inside > 0) == (memory.npu_sram is None and bool(program.partitions))
    # Of an NPU whose compiler speaks, the most that any of its operations takes is what the NPU takes.
    assert len(memory.inside) == (len(program.partitions) if memory.npu_sram is not None else 0)
    for part in memory.inside:
        assert max(part.bytes) == part.bytes[part.peak_step] == memory.npu_sram
        assert len(part.steps) == len(part.bytes) and "test_figures.py" in part.steps[part.peak_step]
        assert sum(item.bytes for item in part.alive) > 0 and f"{part}." in program.report.figures
    largest = max([a.bytes for a in memory.arenas if a.tensors] + [max(part.bytes) for part in memory.inside])
    most = memory.method_pool if memory.method_pool > 2 * largest else largest
    assert f"{most:,} bytes" in memory.peak and f"SRAM: {memory.peak}." in " ".join(str(program.report).split())


@pytest.mark.parametrize("target", TARGETS)
def test_tensors_that_live_together_do_not_overlap(target):
    for arena in compiled(target).report.memory.arenas:
        assert 0 < arena.bound <= arena.bytes <= 1.02 * arena.bound + 16
        assert max(t.offset + t.bytes for t in arena.tensors) <= arena.bytes
        assert max(sum(t.bytes for t in arena.alive(s)) for s in range(len(arena.steps))) == arena.bound
        assert sum(t.bytes for t in arena.alive(arena.peak_step)) == arena.bound
        for i, a in enumerate(arena.tensors):
            for b in arena.tensors[:i]:
                apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
                assert apart or a.last < b.first or b.last < a.first, (a, b)


def test_overflow_is_said_at_compile_time(tmp_path):
    memories = '[[memory]]\nname = "sram"\nbytes = 2000\n[[memory]]\nname = "flash"\nbytes = 4000\n'
    npu = NEUTRON.replace("fitted = true", "clock_mhz = 100\nfitted = true") + "\n" + memories
    (tmp_path / "toy.toml").write_text(CHIP % npu)
    report = compiled(str(tmp_path / "toy.toml")).report
    sizes = {r.name: (r.bytes, r.capacity, r.over) for r in report.memory.regions}
    assert sizes == {
        "flash": (report.memory.flash, 4000, report.memory.flash - 4000),
        "sram": (report.memory.sram, 2000, report.memory.sram - 2000),
    }
    over = report.memory.sram - 2000
    sram = next(str(w) for w in report.warnings if w.rule == "does-not-fit" and w.what.startswith("sram"))
    assert sram.startswith(f"sram: too small by {over:,} bytes; most of it is planned memory 1, 1,440. Try: smaller")
    with pytest.raises(BudgetError, match="too small by"):
        check_strict(report.warnings)
    assert "over by" in page(report) and "too small" in page(report)
