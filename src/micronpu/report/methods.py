"""Reports of a program's methods, and their shared memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import StateRow
from micronpu.report.saved import JsonReport
from micronpu.report.shown import shown
from micronpu.report.texts import plural


@dataclass(frozen=True, repr=False)
class MethodsReport(JsonReport):
    """Report of a program with several methods.

    Attributes:
        methods: the report of each, by its name.
    """

    FORMAT = "micronpu report of methods"

    methods: Mapping[str, DelegationReport]

    @property
    def _first(self) -> DelegationReport:
        return next(iter(self.methods.values()))

    @property
    def target(self) -> str:
        """Name of the target."""
        return self._first.target

    @property
    def program_bytes(self) -> int:
        """Size of the file, which holds all methods."""
        return self._first.program_bytes

    @property
    def states(self) -> tuple[StateRow, ...]:
        """States of all methods, each once."""
        return tuple({state.name: state for report in self.methods.values() for state in report.states}.values())

    @property
    def operators(self) -> int:
        """Number of operators of all methods."""
        return sum(report.operators for report in self.methods.values())

    @property
    def delegated(self) -> int:
        """Number of operators on the NPU."""
        return sum(report.delegated for report in self.methods.values())

    def summary(self) -> str:
        """Return one sentence with the counts."""
        names = ", ".join(f"{name} {r.delegated} of {r.operators}" for name, r in self.methods.items())
        return f"{plural(len(self.methods), 'method')}: {names} operators on the NPU of {self.target}"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `to_json`: the report of each method, as `DelegationReport.to_dict` returns it."""
        return {
            "format": self.FORMAT,
            "version": self.VERSION,
            "target": self.target,
            "program_bytes": self.program_bytes,
            "methods": {name: report.to_dict() for name, report in self.methods.items()},
        }

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained page that contains the page of each method.

        Raises:
            FileError: it cannot be written.
        """
        shown(self, "page", path)

    @property
    def whole(self) -> tuple[str, ...]:
        """A sentence each on the size of the file and on shared memory."""
        memories = [report.memory.planned for report in self.methods.values() if report.memory is not None]
        own = max((planned[0] for planned in memories if planned), default=0)
        shared = max((sum(planned[1:]) for planned in memories), default=0)
        said = [f"The file holds all methods in {self.program_bytes:,} bytes."]
        if memories:
            said.append(
                f"Planned memory: {own:,} bytes for whichever method runs, and {shared:,} bytes of "
                f"{plural(len(self.states), 'state')} that all of them have."
            )
        return tuple(said)

    def __str__(self) -> str:
        parts = [f"{self.summary()}.", *self.whole]
        for name, report in self.methods.items():
            parts += ["", f"Method {name}: {report}"]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the page of each method for a notebook."""
        return str(shown(self, "notebook"))
