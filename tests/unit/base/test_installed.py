"""Versions of packages are those of the folders that Python searches now."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from micronpu.base.installed import installed


def distribution(folder: Path, version: str) -> str:
    """Put a package of this version into a folder."""
    info = folder / f"own_tool-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: own-tool\nVersion: {version}\n", encoding="utf-8")
    return str(folder)


def test_versions_follow_the_folders_that_python_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed("own-tool") == ""
    monkeypatch.syspath_prepend(distribution(tmp_path / "old", "1.0"))
    assert installed("own-tool") == "1.0"
    with monkeypatch.context() as patch:
        patch.syspath_prepend(distribution(tmp_path / "new", "2.0"))
        assert installed("own-tool") == "2.0"
    assert installed("own-tool") == "1.0"


def test_a_package_that_comes_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed("own-tool") == ""
    distribution(tmp_path, "3.0")
    importlib.invalidate_caches()
    assert installed("own-tool") == "3.0"


def test_a_version_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def version(name: str) -> str:
        asked.append(name)
        return "1.2"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert [installed("torch"), installed("torch")] == ["1.2", "1.2"]
    assert asked == ["torch"]
