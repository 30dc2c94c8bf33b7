"""Parts of web pages, and the HTML document around them, which needs no network."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from typing import Any

_FOLDER = resources.files(__name__)


def part(name: str) -> str:
    """Return the text of a file of this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8").strip()


def data(name: str, value: Any) -> str:
    """Return data for a script: JSON that cannot close the element."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def document(title: str, body: str, scripts: str = "") -> str:
    """Return the whole page.

    Args:
        title: as text.
        body: as HTML.
        scripts: elements after the body.
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
