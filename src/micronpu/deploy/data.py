"""Data that a program looks up by name in files beside it (`.ptd`)."""

from __future__ import annotations

from collections.abc import Mapping

from micronpu.base.parsing import parse_json
from micronpu.program.plan import Plan


def files_of_delegates(plan: Plan) -> list[str]:
    """Names of the files in which delegates of a program look up data, as their options say."""
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
    """Whether a program looks up data outside of itself, so that the firmware hands over a map of it."""
    return bool(files_of_delegates(plan)) or any(value.external for value in plan.values)


def taken(plan: Plan, given: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """The files of those given that a program looks into, and the names of those that are missing.

    ExecuTorch writes no name of a file into a program with external constants: all that are given are taken.
    """
    wanted = files_of_delegates(plan)
    missing = [file for file in wanted if file not in given]
    if any(value.external for value in plan.values):
        others = [file for file in given if file not in wanted]
        wanted += others
        missing += [] if others else ["the file with the program's external constants"]
    return {file: given[file] for file in wanted if file in given}, missing
