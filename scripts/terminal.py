"""Make docs/terminal.svg: commands with their output, an animated picture that needs no script.

    python scripts/terminal.py      # run the commands in a copy of examples/keyword_spotting; some 30 s

The picture shows the text of real runs.  It does not move if the system is set to reduce motion.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "terminal.svg"
COMMANDS = (
    ("micronpu check model.py:dscnn -t corstone300", 12),
    ("micronpu compile model.py:dscnn -t corstone300 -o kws.pte", 15),
    ("micronpu run kws.pte --input x.npy", 8),
    ("micronpu deploy kws.pte --for corstone300 -o my-board", 8),
)
"""Commands, and the number of lines of their output that are shown."""
COLUMNS, LINE, CHARACTER, MARGIN = 96, 18, 7.83, 14
SECONDS, TYPING = 4.5, 1.2
"""Seconds for which a command is on the screen, and for its typing."""
_STYLE = """
text { font: 13px ui-monospace, Menlo, 'DejaVu Sans Mono', Consolas, monospace; fill: #d7e0e5; white-space: pre; }
.prompt { fill: #4cc2ae; } .typed { fill: #ffffff; font-weight: bold; } .more { fill: #8a979e; }
.scene { visibility: hidden; animation: show linear infinite; }
@media (prefers-reduced-motion: reduce) { .scene { animation: none !important; } .last { visibility: visible; } }
"""


def printed(folder: Path, command: str) -> list[str]:
    """Return the output of a command as lines without colours."""
    words = command.split()
    tool = Path(sys.executable).with_name(words[0])
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    done = subprocess.run(
        [str(tool), *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(f"`{command}` failed: {done.stderr.strip()}")
    return [line.rstrip() for line in done.stdout.splitlines()]


def shown(lines: list[str], most: int) -> list[str]:
    """Return the first lines, cut to the width of the picture."""
    cut = [line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…" for line in lines]
    return [*cut[: most - 1], f"… {len(cut) - most + 1} lines more"] if len(cut) > most else cut


def scene(number: int, count: int, command: str, lines: list[str], height: int) -> str:
    """Return one scene: a command, typed letter by letter, and its output."""
    total = SECONDS * count
    begin, end, printed_at = (100 * part / count for part in (number, number + 1, number + TYPING / SECONDS))
    name, y = f"s{number}", MARGIN + LINE
    rows = "".join(
        _text(MARGIN, y + LINE * (i + 2), "more" if line[:1] == "…" else "", line) for i, line in enumerate(lines)
    )
    width = CHARACTER * (len(command) + 1)
    x = MARGIN + 2 * CHARACTER
    parts = (
        "<style>",
        f"@keyframes {name} {{ 0% {{ visibility: hidden; }} {begin:.2f}%, {end - 0.01:.2f}% {{ visibility: visible; }}",
        f"{end:.2f}%, 100% {{ visibility: hidden; }} }}",
        f"@keyframes {name}t {{ 0%, {begin:.2f}% {{ width: 0; }}",
        f"{printed_at:.2f}%, 100% {{ width: {width:.0f}px; }} }}",
        f"@keyframes {name}o {{ 0%, {printed_at:.2f}% {{ opacity: 0; }}",
        f"{printed_at + 0.01:.2f}%, 100% {{ opacity: 1; }} }}",
        f'</style>\n<clipPath id="{name}c"><rect x="{x}" y="0" width="{width:.0f}" height="{height}"',
        f'style="animation: {name}t {total}s steps({len(command)}) infinite"/></clipPath>',
        f'<g class="scene{" last" if number == count - 1 else ""}"',
        f'style="animation-name: {name}; animation-duration: {total}s">',
        _text(MARGIN, y, "prompt", "$"),
        f'<g clip-path="url(#{name}c)">{_text(x, y, "typed", command)}</g>',
        f'<g style="animation: {name}o {total}s linear infinite">{rows}</g>\n</g>',
    )
    return "\n".join(parts)


def _text(x: float, y: float, kind: str, words: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{named}>{escape(words)}</text>'


def picture(runs: list[tuple[str, list[str]]]) -> str:
    """Return the whole picture."""
    height = int(2 * MARGIN + LINE * (max(len(lines) for _, lines in runs) + 2))
    width = int(2 * MARGIN + CHARACTER * COLUMNS)
    scenes = "\n".join(scene(i, len(runs), command, lines, height) for i, (command, lines) in enumerate(runs))
    label = "; ".join(command for command, _ in runs)
    size = f'viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
    back = f'<rect width="{width}" height="{height}" rx="8" fill="#12232b"/>'
    return "\n".join((head, f"<style>{_STYLE}</style>", back, scenes, "</svg>", ""))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "keyword_spotting"
        shutil.copytree(ROOT / "examples" / "keyword_spotting", folder)
        code = "import model, numpy; numpy.save('x.npy', model.test_rows()[0][5:6])"
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=300)
        runs = [(command, shown(printed(folder, command), most)) for command, most in COMMANDS]
    text = picture(runs)
    OUT.write_text(re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE), encoding="utf-8")
    print(f"Wrote {OUT.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
