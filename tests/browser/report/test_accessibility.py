"""What Lighthouse looks at: axe's rules of WCAG 2 AA in both colours, the keyboard, the paper of a print."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from micronpu.base.files import write_file
from micronpu.report.alternatives import Candidate, Candidates
from micronpu.report.shown import shown

axe = pytest.importorskip("axe_core_python")
Browser = Any
COLOURS = pytest.mark.parametrize("colours", ["light", "dark"])


@contextmanager
def coloured(page: Browser, colours: str) -> Iterator[None]:
    media = "Emulation.setEmulatedMedia"
    page.execute_cdp_cmd(media, {"features": [{"name": "prefers-color-scheme", "value": colours}]})
    try:
        yield
    finally:
        page.execute_cdp_cmd(media, {"features": []})


def violations(page: Browser) -> list[str]:
    """What axe finds wrong, a line for each element."""
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.execute_script((resources.files(axe) / "axe.min.js").read_text(encoding="utf-8"))
    run = "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(r => done(r.violations))"
    found = page.execute_async_script(run)
    return [f"{v['id']}: {node['html'][:120]} ({node['failureSummary']})" for v in found for node in v["nodes"]]


@COLOURS
def test_a_report_is_accessible(opened: Callable[[int], Browser], colours: str) -> None:
    page = opened(6)
    with coloured(page, colours):
        page.execute_script("document.querySelectorAll('#timeline rect')[4].dispatchEvent(new MouseEvent('click'))")
        assert violations(page) == []


@COLOURS
def test_a_comparison_is_accessible(browser: Browser, tmp_path: Path, colours: str) -> None:
    rows = (
        Candidate("corstone300", "int8", milliseconds=0.5, low=0.4, high=0.6, flash=9, sram=8),
        Candidate("imxrt700", "int8", blocks="No.", failed=True),
    )
    browser.get(write_file(tmp_path / "c.html", shown(Candidates("net.py:net", "", rows), "page").encode()).as_uri())
    with coloured(browser, colours):
        assert violations(browser) == []


def test_what_cannot_be_read_is_found(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    pale = "<p style='color:#ccc;background:#fff'>pale</p><img>"
    page.execute_script("document.querySelector('main').insertAdjacentHTML('beforeend', arguments[0])", pale)
    found = violations(page)
    assert any(line.startswith("color-contrast") and "pale" in line for line in found)
    assert any(line.startswith("image-alt") for line in found)


def test_everything_can_be_reached_by_the_keyboard(opened: Callable[[int], Browser]) -> None:
    """A walk with the tabulator comes to the graph, the search and every button and fold, and shows where it is."""
    page = opened(6)
    page.execute_script("document.body.tabIndex = -1; document.body.focus()")
    from selenium.webdriver.common.keys import Keys

    reached, outlines = [], []
    controls = "[...document.querySelectorAll('button, input, summary, #graph')]"
    wanted = page.execute_script(f"return {controls}.filter(e => e.checkVisibility()).length")
    for _ in range(wanted + 5):
        page.switch_to.active_element.send_keys(Keys.TAB)
        at = "const e = document.activeElement"
        name = page.execute_script(f"{at}; return e.tagName + '#' + e.id + e.textContent")
        outline = page.execute_script(f"{at}; return getComputedStyle(e).outlineStyle")
        if name.startswith(("BODY", "HTML")):
            break
        reached.append(name)
        outlines.append(outline)
    assert len(reached) >= wanted and any("#graph" in name for name in reached)
    assert "none" not in outlines, "the focus is seen"


@pytest.mark.sweep
@pytest.mark.parametrize("blocks", [6, 40])
def test_a_print_takes_four_sheets_at_most(opened: Callable[[int], Browser], blocks: int) -> None:
    page = opened(blocks)
    paper = base64.b64decode(
        page.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"]
    )
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 4
