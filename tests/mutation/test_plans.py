"""Every pass, rewrite and rule has tests that judge it."""

from __future__ import annotations

from tests.mutation.mutate import PACKAGE, ROOT, mutants
from tests.mutation.plans import PLANS

KINDS = (
    "passes/*.py",
    "targets/*/rewrites.py",
    "targets/*/rewrites/*.py",
    "targets/options.py",
    "targets/*/rules.py",
)


def test_every_file_that_can_be_broken_has_a_plan() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for kind in KINDS for path in PACKAGE.glob(kind)}
    assert {file for file in found if next(mutants(file), None)} == set(PLANS)
    assert all((ROOT / test.split("::")[0]).is_file() for tests in PLANS.values() for test in tests)
