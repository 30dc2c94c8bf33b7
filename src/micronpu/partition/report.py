"""The delegation report: a value that the terminal, JSON and HTML are made from."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from micronpu.partition.verdict import Verdict


@dataclass(frozen=True)
class DelegationReport:
    """What runs where and why.

    Attributes:
        target: name of the target.
        verdicts: one per operator of the program, in execution order.
        notes: what else a user should know, such as the converter that was used.
    """

    target: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def delegated(self) -> int:
        """Number of operators on the NPU."""
        return sum(v.delegated for v in self.verdicts)

    @property
    def partitions(self) -> int:
        """Number of delegate calls."""
        return len({v.partition for v in self.verdicts if v.delegated})

    @property
    def host(self) -> tuple[Verdict, ...]:
        """Operators that stay on the host."""
        return tuple(v for v in self.verdicts if not v.delegated)

    @property
    def share(self) -> float:
        """Delegated operators as a fraction of all; 1.0 for a program without operators."""
        return self.delegated / len(self.verdicts) if self.verdicts else 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "operators": len(self.verdicts),
            "delegated": self.delegated,
            "partitions": self.partitions,
            "notes": list(self.notes),
            "verdicts": [
                {
                    "node": v.node,
                    "operator": v.operator,
                    "partition": v.partition,
                    "macs": v.macs,
                    "source": v.origin.source,
                    "module": v.origin.module,
                    "reasons": [asdict(r) for r in v.reasons],
                }
                for v in self.verdicts
            ],
        }

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def to_html(self, path: str) -> None:
        """Writes one self-contained page that needs no network."""
        from micronpu.report.html import write_html

        write_html(self, path)

    def summary(self) -> str:
        """One sentence with the counts."""
        calls = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        return f"{self.delegated} of {len(self.verdicts)} operators on the NPU of {self.target} in {calls}"

    def __str__(self) -> str:
        lines = [f"{self.summary()}."]
        counts = Counter(v.operator for v in self.verdicts if v.delegated)
        if counts:
            lines.append("On the NPU: " + ", ".join(f"{n} x {o}" for o, n in counts.most_common()) + ".")
        if self.host:
            lines.append("On the host:")
        lines += dict.fromkeys(f"  - {reason}" for verdict in self.host for reason in verdict.reasons)
        return "\n".join([*lines, *self.notes])
