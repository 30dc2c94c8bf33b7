"""What the terminal and the page both show of a report, as plain rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from micronpu.partition.report import Cost, DelegationReport

NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """A line of a partition's table.

    Attributes:
        name: operation of the NPU, or operator of the model where nothing is compiled yet.
        detail: the operation with its attributes, or the operator's node.
        shape: sizes of the result.
        macs: multiply-accumulate operations.
        nodes: names of the nodes of the exported program that it stands for.
        module: path of the submodule, or "".
        source: ``file:line`` of the user's model, or "".
        cost: estimate of the NPU's compiler, or None.
    """

    name: str
    detail: str
    shape: tuple[int, ...]
    macs: int
    nodes: tuple[str, ...]
    module: str
    source: str
    cost: Cost | None = None


def partition_rows(report: DelegationReport) -> dict[int, list[Row]]:
    """The rows of every partition by its number: NPU operations, or the model's operators before compilation."""
    rows: dict[int, list[Row]] = {}
    for operation in report.operations:
        origin = operation.origin
        rows.setdefault(operation.partition, []).append(
            Row(
                operation.name,
                operation.attributes,
                operation.shape,
                operation.macs,
                origin.nodes,
                origin.module,
                origin.source,
                operation.cost,
            )
        )
    for verdict in report.verdicts if not rows else ():
        if verdict.partition is not None:
            origin = verdict.origin
            rows.setdefault(verdict.partition, []).append(
                Row(
                    verdict.operator,
                    verdict.node,
                    verdict.shape,
                    verdict.macs,
                    origin.nodes,
                    origin.module,
                    origin.source,
                )
            )
    return dict(sorted(rows.items()))


def kind_of_rows(report: DelegationReport) -> str:
    """What the rows are: "NPU operation" or "operator"."""
    return "NPU operation" if report.operations else "operator"


def plural(count: int, noun: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape_text(shape: Iterable[int]) -> str:
    """``1×49×10×1``; a dash for a scalar and for what is no tensor."""
    return "×".join(map(str, shape)) or NOTHING


def macs_text(macs: int) -> str:
    return f"{macs:,}" if macs else NOTHING


def cost_texts(cost: Cost | None) -> tuple[str, str, str]:
    """Cycles, what they wait for, and how full the multipliers are; dashes where that is not known."""
    if cost is None or not cost.cycles:
        return NOTHING, NOTHING, NOTHING
    memory = max(cost.memory_cycles, key=lambda name: cost.memory_cycles[name], default="")
    waits = memory if memory and cost.memory_cycles[memory] >= cost.cycles else "arithmetic"
    return f"{cost.cycles:,}", waits, f"{cost.utilisation:.0%}" if cost.utilisation else NOTHING


def macs_sentence(report: DelegationReport) -> str:
    """Where the arithmetic runs, or "" where there is none."""
    parts = [f"{report.delegated_macs:,} multiply-accumulate operations on the NPU"] if report.delegated_macs else []
    host = report.macs - report.delegated_macs
    unknown = sum(not v.macs for v in report.host)
    if host:
        parts.append(f"{host:,} on the host" if parts else f"{host:,} multiply-accumulate operations on the host")
    if parts and unknown:
        parts.append(f"without those of {plural(unknown, 'operator')} on the host, which are not known")
    return ", ".join(parts)


def short_source(source: str) -> str:
    """The ``file:line`` relative to the present folder where it lies below it."""
    path, colon, line = source.rpartition(":")
    try:
        return f"{Path(path).relative_to(Path.cwd())}{colon}{line}"
    except ValueError:
        return source


def sentence(text: str) -> str:
    """The text with a full stop where it lacks one."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
