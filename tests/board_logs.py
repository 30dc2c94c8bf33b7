"""Logs of boards in each form that `micronpu calibrate` reads, and the report of the program that they are of."""

from __future__ import annotations

import flatbuffers

from micronpu.ir.graph import Origin
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import BusTraffic, Cost, Latency, Operation

OWN = """\
boot
[00:01] micronpu-program kws {hash}
micronpu-clock 1000000000
micronpu-cycles kws 0 1000
micronpu-cycles kws 1 200000
micronpu-cycles kws 2 1000
micronpu-cycles kws 0 1200
micronpu-cycles kws 1 220000
micronpu-cycles kws 2 1000
"""
RUNNER = """\
I [executorch:arm_perf_monitor.cpp:180] Ethos-U PMU report:
I [executorch:arm_perf_monitor.cpp:181] ethosu_pmu_cycle_cntr : 100000
I [executorch:arm_perf_monitor.cpp:184] ethosu_pmu_cntr0 : 1250
I [executorch:arm_perf_monitor.cpp:184] ethosu_pmu_cntr3 : 503
I [executorch:x] Ethos-U PMU Events:[ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED, ETHOSU_PMU_A, B, ETHOSU_PMU_NPU_IDLE]
"""
KIT = """\
INFO - Profile for Inference:
INFO - NPU AXI0_RD_DATA_BEAT_RECEIVED beats: 1250
INFO - NPU AXI1_RD_DATA_BEAT_RECEIVED beats: 2500
INFO - NPU ACTIVE cycles: 99500
INFO - NPU IDLE cycles: 500
INFO - NPU TOTAL cycles: 100000
"""
HELIA = """\
noise
--- HPX_START ---
HPX_SYSTEM_CLOCK_HZ=1000000000
--- HPX_PRESET basic_cpu ---
--- HPX_ITER 0 ---
"Layer","Op","ARM_PMU_CPU_CYCLES","overflow"
0,ETHOS_U,200000,0
--- HPX_ITER 1 ---
"Layer","Op","ARM_PMU_CPU_CYCLES","overflow"
0,ETHOS_U,210000,0
--- HPX_END ---
"""
TICKS = "ethos-u took 200000 ticks (0 ms).\nSOFTMAX took 1000 ticks (0 ms).\n"


def etdump(*, finished: bool = True) -> bytes:
    """As ExecuTorch writes one: a call of a delegate from 100 to 200,100, inside of a run."""
    b = flatbuffers.Builder(0)

    def event(name: str, instruction: int, start: int, end: int) -> int:
        text = b.CreateString(name)
        b.StartObject(8)
        b.PrependUOffsetTRelativeSlot(0, text, 0)
        b.PrependInt32Slot(2, instruction, -1)
        b.PrependUint64Slot(6, start, 0)
        b.PrependUint64Slot(7, end, 0)
        profile = b.EndObject()
        b.StartObject(3)
        b.PrependUOffsetTRelativeSlot(0, profile, 0)
        return b.EndObject()

    events = [event("DELEGATE_CALL", 1, 100, 200_100)]
    events += [event("Method::execute", -1, 0, 202_000)] if finished else []
    b.StartVector(4, len(events), 4)
    for made in reversed(events):
        b.PrependUOffsetTRelative(made)
    listed = b.EndVector()
    b.StartObject(4)
    b.PrependUOffsetTRelativeSlot(3, listed, 0)
    run = b.EndObject()
    b.StartVector(4, 1, 4)
    b.PrependUOffsetTRelative(run)
    runs = b.EndVector()
    b.StartObject(2)
    b.PrependUOffsetTRelativeSlot(1, runs, 0)
    b.Finish(b.EndObject(), file_identifier=b"ED00")
    return bytes(b.Output())


def own(of: str = "ab" * 32) -> str:
    return OWN.format(hash=of)


def report(
    arithmetic: int = 50_000,
    sram: int = 40_000,
    flash: int = 60_000,
    *,
    target: str = "ra8p1",
    hash: str = "ab" * 32,
    call_us: float = 10.0,
) -> DelegationReport:
    """Of a program of one operation on a NPU at 500 MHz."""
    bus = {
        "AXI0": BusTraffic("sram", sram * 4, 0, sram // 2, 0),
        "AXI1": BusTraffic("mram", flash * 4, 0, flash // 2, 0),
    }
    cycles = max(arithmetic, sram, flash)
    cost = Cost(cycles, arithmetic, {"sram": sram, "mram": flash}, 0, 0.5, clock_mhz=500, bus=bus)
    operation = Operation(0, "conv2d", "", (1,), 1, Origin(()), cost)
    latency = (
        Latency("NPU", cycles, 500, 0.8, 1.25, "a model"),
        Latency("Calls of the NPU", round(call_us * 500), 500, 0.5, 2, "a model"),
    )
    return DelegationReport(target, (), operations=(operation,), latency=latency, hashes={"program": hash}, bus=bus)
