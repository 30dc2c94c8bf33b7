"""Check the prose of README, docs and examples: proselint, and words and phrases that readers stumbled over.

    python scripts/prose.py        # print a line for each finding; exit code 1 if there are any

Code blocks, tables of figures and inline code are ignored.  Add phrases that readers stumble over to `STUMBLES`, with a
replacement.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STUMBLES = {
    r"in an environment of your own torch goes first": "install torch first",
    r"it is taken where": "it is used if",
    r"what nothing beats": "Pareto-optimal",
    r"figures that there are none of": "figures that are not known",
    r"hangs on a step": "depends on a step",
    r"whatever the chip": "on any chip",
    r"\bparts apart\b": "parts with separate settings",
    r"\bhas to do with\b": "is about",
    r"\bon the way to\b": "before",
    r"\butili[sz]e[sd]?\b": "use",
    r"\bin order to\b": "to",
    r"\bleverag": "use",
    r"\b(?:simply|easily|obviously|of course)\b": "nothing: leave it out",
    r"\bwith the help of\b": "with",
    r"\bit is possible to\b": "you can",
    r"\bmake use of\b": "use",
}
"""Regular expressions, and what to write instead."""
VOCABULARY = {
    r"\bint8 grids?\b": "qparams, scale",
    r"\b(?:kept|held) back\b": "held-out",
    r"\bback ends?\b": "backend",
    r"\bin the place of\b": "instead of",
    r"\b(?:nobody|somebody|whoever|whatever)\b": "the subject, or 'any'",
}
"""The same for words of the vocabulary. Decisions keep their words, and CONTRIBUTING.md lists the old ones."""
CHECKS = {"typography": False, "lexical_illusions": False, "weasel_words": False, "spelling": False}
"""Checks of proselint that are off: straight quotes and dots are right in texts about code, and tables repeat words."""


def pages() -> list[Path]:
    """Return the pages to check."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    return [*found, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def prose(text: str) -> str:
    """Return a page without code, with unchanged line numbers."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    text = re.sub(r"^```.*?^```$", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def stumbles(page: Path) -> Iterator[str]:
    """Yield phrases of the list, each with its place and a replacement."""
    text = prose(page.read_text(encoding="utf-8"))
    joined = text.replace("\n", " ")
    has_old_words = page.name == "CONTRIBUTING.md" or page.parent.name == "adr"
    for phrase, better in (STUMBLES | ({} if has_old_words else VOCABULARY)).items():
        for match in re.finditer(phrase, joined, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{page.relative_to(ROOT)}:{line}: {match.group()!r}. Write: {better}"


def proselint(paths: list[Path]) -> Iterator[str]:
    """Yield proselint's findings, each with its place in the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in paths:
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(prose(path.read_text(encoding="utf-8")), encoding="utf-8")
        settings = folder / "settings.json"
        settings.write_text(json.dumps({"checks": CHECKS}), encoding="utf-8")
        command = [sys.executable, "-m", "proselint", "check", "--config", str(settings), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"proselint failed: {done.stderr.strip()}")
        for line in done.stdout.splitlines():
            yield line.removeprefix(f"{folder}/")


def main() -> int:
    found = [line for page in pages() for line in stumbles(page)] + list(proselint(pages()))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
