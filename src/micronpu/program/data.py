"""Data beside a program: files that it reads by name (`.ptd`), and golden vectors."""

from __future__ import annotations

from collections.abc import Mapping

from micronpu.base.parsing import parse_json
from micronpu.program.plan import Plan

VECTORS = 4
"""Maximum number of calibration samples that become golden vectors of a deployed program."""


def files_of_delegates(plan: Plan) -> list[str]:
    """Return names of the files from which delegates of a program read data, according to their options."""
    found = []
    for delegate in plan.delegates:
        for key, value in delegate.specs:
            if key.startswith("external_"):
                try:
                    file = parse_json(value)
                except ValueError:
                    continue
                found += [f"{file}.ptd"] if isinstance(file, str) and file else []
    return list(dict.fromkeys(found))


def needs_data(plan: Plan) -> bool:
    """Return True if a program reads data from other files, so that the firmware must pass a map of it."""
    return bool(files_of_delegates(plan)) or any(value.external for value in plan.values)


def taken(plan: Plan, given: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """Return the given files that a program reads, and the names of missing ones.

    ExecuTorch stores no file name in a program with external constants: then all given files are used.
    """
    wanted = files_of_delegates(plan)
    missing = [file for file in wanted if file not in given]
    if any(value.external for value in plan.values):
        others = [file for file in given if file not in wanted]
        wanted += others
        missing += [] if others else ["the file with the program's external constants"]
    return {file: given[file] for file in wanted if file in given}, missing
