"""The report page in a browser without a screen: what it draws, what a click says, and that it fits a phone.

Debian's `chromium` and `chromium-driver`; without them the tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from micronpu.base.files import write_file
from micronpu.ir.graph import Origin
from micronpu.report.alternatives import Candidate, Candidates
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import Cost, Operation
from micronpu.report.shown import shown
from micronpu.report.verdict import Verdict

ODD = "</script><b>odd</b>"
Browser = Any


def key(browser: Browser, name: str) -> None:
    browser.execute_script(
        "document.getElementById('graph').dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))", name
    )


def text(browser: Browser, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0]).innerText", selector))


def test_graph_says_where_and_why(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    for _ in range(3):  # x, conv_0, relu_0
        key(page, "ArrowDown")
    assert text(page, "#details h3") == "relu_0 relu.default"
    page.execute_script(
        "const s = document.getElementById('search'); s.value = 'relu_3'; s.dispatchEvent(new Event('input'));"
        "s.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    )
    assert text(page, "#found") == "1 found"
    said = text(page, "#details")
    assert "relu_3" in said and "on the core, in float" in said
    assert "Tensors have at most 7 axes." in said and f"9 axes {ODD}" in said
    assert page.execute_script("return document.querySelectorAll('main b, aside b').length") == 0


def test_an_operation_shows_its_cost(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    page.execute_script("document.querySelectorAll('#timeline rect')[4].dispatchEvent(new MouseEvent('click'))")
    said = text(page, "#details")
    assert "conv_4" in said and "104, arithmetic 104" in said and "40 cycles" in said and "net.py:1" in said


def test_memory_is_drawn_and_what_is_over_said(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    assert "2 more than" in text(page, ".tiles")
    assert page.execute_script("return document.querySelectorAll('[data-arena] .tensor').length") == 4
    tops = page.execute_script(
        "return [...document.querySelectorAll('[data-arena] .top title')].map(t => t.textContent)"
    )
    assert [t.split("\n")[0] for t in tops] == ["tensor 2", "tensor 3"], "most is alive while both are"
    assert "205; at the peak (d): 103 tensor 3, 102 tensor 2" in text(page, ".arena figcaption")
    heights = "[...document.querySelectorAll('[data-inside] rect')].map(r => Math.round(r.height.baseVal.value))"
    assert page.execute_script(f"return {heights}") == [147, 220]
    said = page.execute_script("return document.querySelector('[data-inside] .top title').textContent")
    assert said == "b (net.py:1)\n96 bytes in use"


def test_colours_follow_the_mode(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    shown = page.execute_script("return [...document.querySelectorAll('[data-mode]')].map(b => b.textContent)")
    assert shown == ["where it runs", "cycles", "MACs"], "nothing is known of errors"
    page.execute_script("document.querySelector('[data-mode=cycles]').click()")
    pressed = page.execute_script("return document.querySelector('[data-mode=cycles]').getAttribute('aria-pressed')")
    assert pressed == "true"


def test_tables_are_sorted_and_restored(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    column = "[...document.querySelectorAll('table.sortable tbody tr')].map(r => r.cells[3].textContent)"
    click = "[...document.querySelectorAll('table.sortable th button')].find(b => b.textContent == 'cycles').click()"
    given = page.execute_script(f"return {column}")
    assert given == [str(100 + b) for b in range(6)]
    assert page.execute_script(f"{click}; return {column}") == given[::-1]
    assert page.execute_script(f"{click}; return {column}") == given
    assert page.execute_script(f"{click}; return {column}") == given


def test_page_fits_a_phone(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        right = "const c = [...document.querySelectorAll('table.sortable th')].find(h => h.textContent == 'cycles')"
        assert page.execute_script(f"{right}; return c.getBoundingClientRect().right") < 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_comparison_names_its_targets_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    row = Candidate("corstone300", "int8", blocks="No.", failed=True)
    browser.get(write_file(tmp_path / "c.html", shown(Candidates("net.py:net", "", (row,)), "page").encode()).as_uri())
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        assert "corstone300" in text(browser, "table")
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_is_logged_or_fetched(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.slow
def test_large_networks_are_drawn(browser: Browser, opened: Callable[[int], Browser]) -> None:
    """In seconds of the page's own thread, which a busy machine does not change; today it takes one."""
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    page = opened(700)
    metrics = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    page.execute_cdp_cmd("Performance.disable", {})
    assert {m["name"]: m["value"] for m in metrics}["TaskDuration"] < 3
    key(page, "ArrowDown")
    key(page, "ArrowDown")
    assert text(page, "#details h3") == "conv_0 conv2d.default"
    page.execute_script(
        "const s = document.getElementById('search'); s.value = 'add_699'; s.dispatchEvent(new Event('input'));"
        "s.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"
    )
    assert "add_699" in text(page, "#details"), "the last piece is there, too"
    assert page.get_log("browser") == []


@pytest.mark.sweep
def test_page_of_a_recurrent_network_is_short(browser, tmp_path):
    """Sixty times the same twenty operations: one group, and every row where it is asked for."""
    verdicts, operations = [], []
    for step in range(60):
        for place in range(20):
            origin = Origin((f"n_{step}_{place}",), "net.py:3", "gru")
            reads = (f"n_{step}_{place - 1}",) if place else (f"n_{step - 1}_19",) if step else ("x",)
            verdicts.append(Verdict(f"op{place}.default", origin, 0, macs=10, shape=(1, 8), reads=reads))
            cost = Cost(100 + place, 100, {"Sram": 40}, 64, 0.5)
            operations.append(Operation(0, f"op{place}", "op", (1, 8), 10, origin, cost))
    DelegationReport("chip", tuple(verdicts), operations=tuple(operations)).to_html(tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    height = "return document.documentElement.scrollHeight"
    assert browser.execute_script(height) <= 3000
    browser.execute_script("document.querySelector('details.every').open = true")
    assert browser.execute_script(height) > 30_000
