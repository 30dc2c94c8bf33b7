"""The rooms of `src/micronpu` in their order, and their table in docs/architecture.md.

python -m tests.rooms      # writes the table anew
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "micronpu"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: made by `python -m tests.rooms` -->", "<!-- end of rooms -->"

ROOMS = (
    ("base",),
    ("upstream",),
    ("ir",),
    ("emit",),
    ("container",),
    ("program",),
    ("report",),
    ("chips",),
    ("ops",),
    ("host",),
    ("passes",),
    ("frontend",),
    ("quantize",),
    ("partition",),
    ("targets",),
    ("runtime",),
    ("board",),
    ("deploy",),
    ("transforms",),
    ("compiler",),
    ("accuracy", "advice"),
    ("recipes",),
    ("neutron", "ethosu", "cortexm", "audio", "compat"),
    ("__init__",),
    ("testing",),
    ("cli",),
)
"""From the ground up; those on one floor import nothing of each other."""


@functools.cache
def tree(path: Path) -> ast.Module:
    """What a file of the package says; nobody changes it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of `tree`, in the order of `ast.walk`; several tests look at each of a million."""
    return tuple(ast.walk(tree(path)))


def sentence(room: str) -> str:
    """What a room says of itself, in its first sentence."""
    path = SOURCE / room / "__init__.py" if (SOURCE / room).is_dir() else SOURCE / f"{room}.py"
    text = ast.get_docstring(tree(path)) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")


def table() -> str:
    """The table of the page."""
    named = [(room, sentence(room)) for floor in ROOMS for room in floor if room != "__init__"]
    return "\n".join([BEGIN, "| room | |", "|---|---|", *(f"| `{room}` | {text} |" for room, text in named), END])


def page_with_table(text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
