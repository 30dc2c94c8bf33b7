"""What the check of prose reads, and the phrases that it knows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.scripts.loading import script

prose = script("prose")


def test_code_is_no_prose() -> None:
    page = "Take\n```sh\nsimply this\n```\n<!-- simply -->\nand `simply that`, simply.\n"
    assert prose.prose(page).count("simply") == 1
    assert prose.prose(page).count("\n") == page.count("\n")


def test_a_phrase_is_found_across_lines(tmp_path: Path, monkeypatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("One line.\nIt is\npossible to fly.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert list(prose.stumbles(page)) == ["page.md:2: 'It is possible to'. Write: you can"]


def test_no_page_has_a_phrase_of_the_list() -> None:
    assert [line for page in prose.pages() for line in prose.stumbles(page)] == []
    assert all(re.compile(phrase) for phrase in prose.STUMBLES)
