"""The check of docstrings, comments and messages: what it reads, and that the clean packages stay clean."""

from __future__ import annotations

from pathlib import Path

from tests.unit.scripts.loading import script

stumbles = script("stumbles")


def test_docstrings_comments_and_native_comments_are_read(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text(
        '"""What a thing is."""\n\nX = 1\n"""Of a `grid of` things."""\n\n# Begins anew,\n# or not.\nY = "grid"\n'
        'Z = f"The {X} has no grid of {Y}"\n\n\n'
        'def f():\n    """Return it.\n\n    Args:\n        grid: scale.\n    """\n'
    )
    assert [line.split(": ")[0].rpartition(":")[2] for line in stumbles.findings(source)] == ["1", "4", "9", "6"]
    native = tmp_path / "a.h"
    native.write_text("// Scale of\n// a grid.\nint x; // shall not be\n/* Nobody\n * reads it. */\nchar grid;\n")
    found = list(stumbles.findings(native))
    assert [line.split(": ")[0].rpartition(":")[2] for line in found] == ["1", "3", "4"]
    assert found[0].endswith("a.h:1: 'grid'. Write: qparams, scale")


def test_missing_files_are_reported(capsys, tmp_path: Path) -> None:
    assert stumbles.main([str(tmp_path / "none")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_every_clean_package_exists() -> None:
    assert [name for name in stumbles.CLEAN if not (stumbles.ROOT / name).exists()] == []
