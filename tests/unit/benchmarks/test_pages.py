"""The tables of the pages are what the files of figures say."""

from __future__ import annotations

import json

import pytest
from benchmarks import pages, results


@pytest.mark.parametrize("page", sorted({found.page for found in pages.TABLES.values()}))
def test_a_page_is_what_the_figures_say(page: str) -> None:
    assert pages.made(page) == (pages.DOCS / page).read_text(encoding="utf-8"), "Run `make pages`."


_FILES = sorted({file for found in pages.TABLES.values() for file in found.files if results.is_there(file)})


@pytest.mark.parametrize("name", _FILES)
def test_figures_say_what_they_were_measured_with(name: str) -> None:
    content = json.loads((results.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert content["command"].startswith("python -m benchmarks.")
    assert content["machine"] and content["versions"]["micronpu"] and content["figures"]


def test_a_table_without_a_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = pages.TABLES["neutron_latency"]
    monkeypatch.setitem(pages.TABLES, "elsewhere", known)
    with pytest.raises(ValueError, match="has 0 places for the table elsewhere"):
        pages.made(known.page)
