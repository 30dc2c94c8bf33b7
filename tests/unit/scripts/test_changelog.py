"""The changelog is put together of a file for each change."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from tests.unit.scripts.loading import script

ROOT = Path(__file__).parents[3]
changelog = script("changelog")


def test_every_change_has_a_name_a_kind_and_a_text() -> None:
    assert changelog.faults(ROOT / "changes") == []


def test_the_changelog_takes_a_release() -> None:
    assert changelog.MARK in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_faults_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "a-thing.fixed.md").write_text("It works.\n")
    assert changelog.faults(tmp_path) == []
    (tmp_path / "thing.md").write_text("No kind.\n")
    (tmp_path / "b-long.added.md").write_text("a\n" * 7)
    (tmp_path / "b-head.added.md").write_text("# A heading\n")
    (tmp_path / "b-empty.speed.md").write_text("\n")
    assert [line.partition(":")[0] for line in changelog.faults(tmp_path)] == [
        "b-empty.speed.md",
        "b-head.added.md",
        "b-long.added.md",
        "thing.md",
    ]


def test_a_release_moves_the_texts(tmp_path: Path) -> None:
    folder, log = tmp_path / "changes", tmp_path / "CHANGELOG.md"
    folder.mkdir()
    log.write_text(f"# Changelog\n\n{changelog.MARK}\n\n## [0.1.0] - 2026-01-01\n\nAll of it.\n")
    (folder / "b-two.fixed.md").write_text("Mended, in\ntwo lines.\n")
    (folder / "a-one.bytes.md").write_text("- Other bytes.\n")
    changelog.release(tmp_path, "0.2.0", datetime.date(2026, 2, 3))
    text = log.read_text()
    assert text.index("## [0.2.0] - 2026-02-03") < text.index("- Other bytes.") < text.index("- Mended, in two lines.")
    assert text.index("- Mended") < text.index("## [0.1.0]") and not list(folder.iterdir())
    with pytest.raises(SystemExit, match="already"):
        changelog.release(tmp_path, "0.2.0", datetime.date(2026, 2, 3))
