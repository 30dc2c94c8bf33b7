"""Build the changelog: the fragments in `changes/` become an entry of `CHANGELOG.md`.

A change adds a file `changes/AREA-NAME.KIND.md` with one to three lines of Markdown. Kinds: `bytes` (programs or their
results change), `added`, `changed`, `fixed`, `speed`. So no two changes edit the same file.

    python scripts/changelog.py                      # print the changes since the last release
    python scripts/changelog.py --release 0.2.0      # write them with the date into CHANGELOG.md, and delete the files
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "bytes": "Bytes and numbers of programs",
    "added": "Added",
    "changed": "Changed",
    "fixed": "Fixed",
    "speed": "Speed and memory",
}
"""Heading in the changelog by the kind of a file, in this order."""
MARK = "<!-- The next release is put here: python scripts/changelog.py --release VERSION -->"
_NAME = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")
_MOST_LINES = 6


def fragments(folder: Path) -> list[Path]:
    """Return the files of changes, sorted by name."""
    return sorted(p for p in folder.glob("*") if p.name != "README.md") if folder.is_dir() else []


def faults(folder: Path) -> list[str]:
    """Return the errors in the files of a folder, a sentence each."""
    found = []
    for path in fragments(folder):
        if _NAME.fullmatch(path.name) is None:
            found.append(
                f"{path.name}: the name is AREA-NAME.KIND.md, in small letters, with a kind of {', '.join(KINDS)}"
            )
            continue
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        if not lines or not lines[0].strip():
            found.append(f"{path.name}: it says nothing")
        elif len(lines) > _MOST_LINES:
            found.append(f"{path.name}: {len(lines)} lines; at most {_MOST_LINES} describe a change")
        elif lines[0].startswith("#"):
            found.append(f"{path.name}: the text begins without a heading")
    return found


def entry(folder: Path) -> str:
    """Return the texts of all files, by kind; "" if there are none."""
    parts = []
    for kind, title in KINDS.items():
        texts = [p.read_text(encoding="utf-8").split("\n") for p in fragments(folder) if p.name.endswith(f".{kind}.md")]
        if texts:
            bullets = ["- " + " ".join(filter(None, map(str.strip, text))).removeprefix("- ") for text in texts]
            parts.append(f"### {title}\n\n" + "\n".join(bullets) + "\n")
    return "\n".join(parts)


def release(root: Path, version: str, date: datetime.date) -> None:
    """Move the files' texts into the changelog.

    Raises:
        SystemExit: a file is invalid, there is none, or the changelog has the version already.
    """
    folder, log = root / "changes", root / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8")
    if wrong := faults(folder):
        raise SystemExit("\n".join(wrong))
    if f"## [{version}]" in text or MARK not in text:
        raise SystemExit(f"{log} has a release {version} already, or no line {MARK!r}.")
    if not (said := entry(folder)):
        raise SystemExit(f"{folder} has no changes to tell.")
    log.write_text(
        text.replace(MARK, f"{MARK}\n\n## [{version}] - {date.isoformat()}\n\n{said.rstrip()}"), encoding="utf-8"
    )
    for path in fragments(folder):
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", metavar="VERSION", help="such as 0.2.0")
    given = parser.parse_args()
    if given.release:
        release(ROOT, given.release, datetime.date.today())
    elif wrong := faults(ROOT / "changes"):
        sys.exit("\n".join(wrong))
    else:
        print(entry(ROOT / "changes") or "No changes since the last release.")


if __name__ == "__main__":
    main()
