"""What the documentation site changes of its pages: links out of `docs/` become the path that they name."""

from __future__ import annotations

import re
from typing import Any

_OUT = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!adr/)([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page's text; a folder of the repository is no page of the site."""
    if page.file.src_uri.startswith("adr/"):
        return re.sub(r"\[([^\]]+)\]\((?:\.\./){2}([^)#]+)\)", r"\1 (`\2`)", markdown)
    return _OUT.sub(r"\1 (`\2`)", markdown)
