"""Parts of web pages, and the document round them: everything inside, nothing fetched from anywhere."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from typing import Any

_FOLDER = resources.files(__name__)


def part(name: str) -> str:
    """The text of a file of this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8").strip()


def data(name: str, value: Any) -> str:
    """Data for a script: JSON in which nothing ends the element."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def document(title: str, body: str, scripts: str = "") -> str:
    """The whole page.

    Args:
        title: as text.
        body: as HTML.
        scripts: elements behind the body.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{part("report.css")}
</style>
</head>
<body>
<main>
{body}
</main>
{scripts}
</body>
</html>
"""
