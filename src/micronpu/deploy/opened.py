"""A `.pte` that is about to go into a firmware: read, whole, of one method."""

from __future__ import annotations

from micronpu.base.errors import PayloadError, UnsupportedError
from micronpu.program.digest import Digest, state_of
from micronpu.program.plan import Plan, read_plan
from micronpu.program.plan_check import check_plan
from micronpu.program.pte import PteSummary


def opened(program: bytes, source: str, why: str, hint: str) -> tuple[Plan, PteSummary]:
    """The plan of a program's only method, and the summary of the file.

    Args:
        source: what to call the program in messages.
        why: what has room for one method alone, behind their names.
        hint: what to try with several.

    Raises:
        PayloadError: it is damaged.
        UnsupportedError: it has several methods.
    """
    plan, summary = read_plan(program, name=source)
    if state_of(program, source) is Digest.WRONG:
        raise PayloadError(
            f"{source} is damaged: it is not what its own digest says.", hint="copy the file again, or compile again"
        )
    if len(summary.methods) > 1:
        # Pools, header and vectors are those of one method; sizes that leave the others out would fail on the board.
        names = ", ".join(sorted(summary.methods))
        raise UnsupportedError(f"{source} has {len(summary.methods)} methods ({names}){why}.", hint=hint)
    check_plan(program, source, plan.name, external=True)
    return plan, summary
