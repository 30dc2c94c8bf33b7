"""Reading and verifying a `.pte` for a firmware."""

from __future__ import annotations

from micronpu.base.errors import PayloadError
from micronpu.program.digest import Digest, state_of
from micronpu.program.plan import Plan, read_plan
from micronpu.program.plan_check import check_plan
from micronpu.program.pte import PteSummary


def opened(program: bytes, source: str) -> tuple[tuple[Plan, ...], PteSummary]:
    """Return the plan of each method in the file's order, and the summary of the file.

    Args:
        source: name of the program in messages.

    Raises:
        PayloadError: it is damaged.
    """
    plan, summary = read_plan(program, name=source)
    if state_of(program, source) is Digest.WRONG:
        raise PayloadError(
            f"{source} is damaged: it is not what its own digest says.", hint="copy the file again, or compile again"
        )
    names = list(summary.methods) if len(summary.methods) > 1 else [plan.name]
    plans = tuple(read_plan(program, name=source, method=name)[0] for name in names)
    for plan in plans:
        check_plan(program, source, plan.name, external=True)
    return plans, summary
