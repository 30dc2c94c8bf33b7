"""Headline figures of a program, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from micronpu.report.accuracy import ProgramAccuracy, decibel_text
from micronpu.report.memory import PROGRAM, Region
from micronpu.report.operations import idle_hotspot
from micronpu.report.texts import sentence
from micronpu.report.verdict import host_groups

Report = Any
"""A `DelegationReport`, whose module imports this one."""


@dataclass(frozen=True)
class Headline:
    """Time, flash, SRAM, accuracy and operators of a program.

    Attributes:
        milliseconds: estimated time of a call, all processors together; None without an estimate.
        low, high: its band: the sums of the bands of the processors.
        flash: bytes of the program; None before compilation.
        sram: bytes of SRAM, with the pools of ExecuTorch's runtime; None before compilation.
        sqnr: of the worst output against the float model in dB; None if not measured.
        agreement: share of the samples with the float model's top-1 result or integers, 0 to 1; None if no output has
            one.
        samples: number of samples that the accuracy was measured on.
        operators: of the program.
        in_place: operators on the NPU, or in int8 on a core without an NPU.
        lines: the same as text, each as "Name: text".
    """

    milliseconds: float | None
    low: float | None
    high: float | None
    flash: int | None
    sram: int | None
    sqnr: float | None
    agreement: float | None
    samples: int
    operators: int
    in_place: int
    lines: tuple[str, ...]

    @classmethod
    def of(cls, report: Report) -> Headline:
        times, memory, accuracy = report.latency, report.memory, report.accuracy
        lines = [f"Operators: {report.summary().replace(' operators', '', 1)}"]
        if memory is not None:
            regions = {region.kind: region for region in reversed(memory.regions)}
            program = next((r for r in memory.regions if any(i.what in PROGRAM for i in r.items)), None)
            lines = [
                f"Time: {_time(report)}",
                f"Flash: {memory.flash:,} bytes{_verdict(program)}",
                f"SRAM: {memory.sram:,} bytes{_verdict(regions.get('sram'))}",
                f"Accuracy: {'not measured' if accuracy is None else _accuracy(accuracy)}",
                *lines,
            ]
        return cls(
            milliseconds=sum(t.milliseconds for t in times) if times else None,
            low=sum(t.band[0] for t in times) if times else None,
            high=sum(t.band[1] for t in times) if times else None,
            flash=memory.flash if memory is not None else None,
            sram=memory.sram if memory is not None else None,
            sqnr=accuracy.sqnr if accuracy is not None else None,
            agreement=accuracy.agreement if accuracy is not None else None,
            samples=max(len(accuracy.rows) + accuracy.calibrated, 1) if accuracy is not None else 0,
            operators=report.operators,
            in_place=report.operators - len(report.left_over),
            lines=tuple(lines),
        )


def _time(report: Report) -> str:
    lacking = [f"{figure}: {why}" for figure, why in report.missing.items() if figure.startswith("time")]
    if not report.latency:
        return f"no estimate ({'; '.join(lacking)})" if lacking else "no estimate"
    low, high = (sum(t.band[i] for t in report.latency) for i in (0, 1))
    total = sum(t.milliseconds for t in report.latency)
    digits = max(report.latency, key=lambda t: t.milliseconds).digits
    without = f", without the {'; '.join(lacking)}" if lacking else ""
    return f"{total:.{digits}f} ms a call, estimated ({low:.{digits}f} to {high:.{digits}f}){without}"


def _verdict(region: Region | None) -> str:
    if region is None or (region.capacity is None and not region.outside):
        return ""
    if region.capacity is None:
        return f", in {region.name} outside of the chip"
    if region.over:
        return f", {region.over:,} more than {region.name} has"
    return f", {100 * region.bytes / region.capacity:.1f} % of {region.name} in use"


def _accuracy(accuracy: ProgramAccuracy) -> str:
    said = []
    if accuracy.metric is not None:
        said.append(f"{accuracy.metric.name} {accuracy.metric.quantized:.4g} (float {accuracy.metric.float_model:.4g})")
    if accuracy.sqnr is not None:
        said.append(f"{decibel_text(accuracy.sqnr, accuracy.sqnr_interval)} against float")
    if accuracy.agreement is not None:
        # It is a share of elements, not of samples, for integers that are no scores.
        count = accuracy.calls or max(len(accuracy.rows) + accuracy.calibrated, 1)
        agreeing = f"{accuracy.agreement:.1%}"
        if accuracy.integers is None:
            agreeing = f"{round(accuracy.agreement * count)} of {count}"
        said.append(f"top-1 agrees on {agreeing}")
    return f"{', '.join(said)}, {accuracy.measured_on}" if said else "not measured, because there is no float model"


def next_steps(report: Report) -> tuple[str, ...]:
    """Return what to try, a sentence or two each: severe warnings, memories that are too small, accuracy, then speed.

    Speed is sorted by the share of the time that it may save.
    """
    total = sum(t.milliseconds for t in report.latency)
    of_npu = sum(t.milliseconds for t in report.latency if t.processor == "NPU") / total if total else 1.0
    found: list[tuple[float, str]] = []
    if report.resident is not None and report.resident.time < 1:
        saved = (1 - report.resident.time) * of_npu
        price = f"{100 * saved:.0f} % less time for about {report.resident.sram_bytes:,} bytes more of SRAM"
        found.append((saved, f'Keep the weights in SRAM (--weights sram, `weights="sram"`): {price}.'))
    if (spot := idle_hotspot(report.operations)) is not None:
        # An upper bound, and the change needs training: weighted by one half.
        value = spot.share * (1 - (spot.use or 0.0)) * of_npu / 2
        found.append((value, f"{spot}. Try: `micronpu advise`, which compiles alternatives."))
    for group in host_groups(report.host):
        hint = next((reason.hint for reason in group.verdicts[0].reasons if reason.hint), "")
        if hint and not group.verdicts[0].core:
            share = len(group.verdicts) / report.operators
            work = sum(v.macs for v in group.verdicts) / report.macs if report.macs else 0.0
            found.append((max(share, work), f"{group.title} on the core ({group.places}). Try: {sentence(hint)}"))
    found.sort(key=lambda entry: -entry[0])
    over = () if report.memory is None else report.memory.too_small
    severe, mild = ([str(w) for w in report.warnings if w.is_severe is kind] for kind in (True, False))
    return (*severe, *over, *mild, *(text for _, text in found))
