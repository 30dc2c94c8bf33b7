"""The packages of `src/micronpu` in the order of their layers, and their table in docs/architecture.md.

python -m tests.layers      # writes the table anew
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "micronpu"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- packages: made by `python -m tests.layers` -->", "<!-- end of packages -->"

LAYERS = (
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
    ("verify",),
    ("transforms",),
    ("compiler",),
    ("accuracy", "advice"),
    ("recipes",),
    ("board",),
    ("deploy",),
    ("neutron", "ethosu", "cortexm", "audio", "compat"),
    ("__init__",),
    ("testing",),
    ("cli",),
    ("__main__",),
)
"""From the bottom up; packages of one layer do not import each other."""


@functools.cache
def tree(path: Path) -> ast.Module:
    """What a file of the package says; nobody changes it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of `tree`, in the order of `ast.walk`; several tests look at each of a million."""
    return tuple(ast.walk(tree(path)))


def sentence(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    path = SOURCE / package / "__init__.py" if (SOURCE / package).is_dir() else SOURCE / f"{package}.py"
    text = ast.get_docstring(tree(path)) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")


def table() -> str:
    """The table of the page."""
    named = [(package, sentence(package)) for layer in LAYERS for package in layer if package != "__init__"]
    return "\n".join(
        [BEGIN, "| package | |", "|---|---|", *(f"| `{package}` | {text} |" for package, text in named), END]
    )


def page_with_table(text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
