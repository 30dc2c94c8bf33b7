"""What the documentation site changes of its pages.

Links out of `docs/` become the path that they name. The changelog is that of the repository. Report pages of the
showpieces are linked where they were made:
`python scripts/showpieces.py --reports build/showpieces`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "build" / "showpieces"
_CHANGELOG = "<!-- changelog -->"
_REPORT = re.compile(r"<!-- report: (\w+) -->")
_OUT = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!adr/)([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page's text; a folder of the repository is no page of the site."""
    if page.file.src_uri.startswith("adr/"):
        return re.sub(r"\[([^\]]+)\]\((?:\.\./){2}([^)#]+)\)", r"\1 (`\2`)", markdown)
    if _CHANGELOG in markdown:
        return _changelog()
    markdown = _REPORT.sub(lambda match: _report(match[1]), markdown)
    return _OUT.sub(r"\1 (`\2`)", markdown)


def _changelog() -> str:
    """The releases of CHANGELOG.md, with links between pages of the site."""
    text = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    text = re.sub(r"What has come since .*?\n\n", "", text, flags=re.DOTALL)
    return re.sub(r"\]\(docs/", "](", re.sub(r"<!--.*?-->\n", "", text, flags=re.DOTALL))


def _report(name: str) -> str:
    if not (_REPORTS / f"{name}.html").is_file():
        return ""
    return f'<a href="../showpieces/{name}.html">Its report</a>: the graph, the cycles, the memory over time.'


def on_post_build(config: Any, **_: Any) -> None:
    if _REPORTS.is_dir():
        shutil.copytree(_REPORTS, Path(config["site_dir"]) / "showpieces", dirs_exist_ok=True)
