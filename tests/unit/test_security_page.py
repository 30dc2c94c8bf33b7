"""`docs/security.md` names a test for each thing that a stranger can do, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

from micronpu.board.remote import _LONGEST_DOCUMENT
from micronpu.frontend.model_files.budget import Cost
from micronpu.frontend.model_files.network import MAX_ELEMENTS, MAX_RANK

ROOT = Path(__file__).parents[2]


def test_every_line_of_the_page_has_its_test() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [
        line
        for line in page.splitlines()
        if line.startswith("| ") and not line.startswith(("| what the ", "| where text"))
    ]
    named = [re.search(r"`(test_\w+)` \|$", row) for row in rows]
    assert len(rows) > 20 and all(named)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in sources]
    assert not missing


def test_limits_of_files_of_models_are_those_of_their_readers() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    limits = [cost.value[1] for cost in Cost] + [MAX_ELEMENTS, MAX_RANK, _LONGEST_DOCUMENT]
    assert not [limit for limit in limits if f"{limit:,}" not in page]


def test_actions_are_named_by_their_commit() -> None:
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: (\S+)", workflow.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action


def test_every_package_of_the_lock_has_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = re.split(r"^(?=[a-zA-Z])", text, flags=re.MULTILINE)[1:]
    assert len(packages) > 40
    assert all("==" in package and "--hash=sha256:" in package for package in packages)
