"""Templates of web pages that need no network, and the scripts and styles that are written into them."""

from __future__ import annotations

import functools
import json
from html import escape
from importlib import resources

import jinja2
from markupsafe import Markup

from micronpu.base.texts import NOTHING, file_name, plural, sentence, shape_text, short_source
from micronpu.report.views.rows import cost_texts, macs_text, weight

_FOLDER = resources.files(__name__)


def page(template: str, title: str, **words: object) -> str:
    """Return a page of a template of this folder; texts among the words are escaped."""
    return _templates().get_template(template).render(words, title=title)


def part(name: str) -> Markup:
    """Return the text of a file of this folder."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8").strip())


def data(name: str, value: object) -> Markup:
    """Return data for a script: JSON that cannot close the element."""
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{name}">{text}</script>')


def marked(text: str) -> Markup:
    """Return the text with code in place of backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick is only a character
        return Markup(escape(text))
    return Markup("".join(f"<code>{escape(part)}</code>" if i % 2 else escape(part) for i, part in enumerate(parts)))


@functools.cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(lambda name: (_FOLDER / name).read_text(encoding="utf-8")),
    )
    filters = (cost_texts, file_name, macs_text, marked, plural, sentence, shape_text, short_source, weight)
    found.filters.update({function.__name__: function for function in filters})
    found.globals.update(part=part, data=data, NOTHING=NOTHING)
    return found
