"""The report page in a browser without a screen: what it draws, what a click says, and that it fits a phone.

Debian's `chromium` and `chromium-driver`; without them the tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from micronpu.ir.graph import Origin
from micronpu.report.candidates import Candidate, Candidates
from micronpu.report.delegation import Cost, DelegationReport, Operation
from micronpu.report.estimate import Latency
from micronpu.report.memory import Arena, Item, Life, MemoryReport, PartitionMemory, Region
from micronpu.report.verdict import Reason, Verdict
from micronpu.report.views.pages import write_candidates

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with its driver")
Browser = Any
ODD = "</script><b>odd</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


def report(blocks: int) -> DelegationReport:
    """Residual blocks; the second operator of the fourth block stays on the host."""
    verdicts: list[Verdict] = []
    operations: list[Operation] = []
    last = "x"
    for b in range(blocks):
        names = [f"conv_{b}", f"relu_{b}", f"add_{b}"]
        origins = [Origin((name,), f"net.py:{i + 1}", f"blocks.{b}") for i, name in enumerate(names)]
        refused = (Reason("rule", "Tensors have at most 7 axes.", f"9 axes {ODD}", names[1], hint="`reshape`"),)
        verdicts += [
            Verdict("conv2d.default", origins[0], 0, macs=1000 + b, shape=(1, 8, 5, 5), reads=(last,)),
            Verdict("relu.default", origins[1], None if b == 3 else 0, refused if b == 3 else (), reads=(names[0],)),
            Verdict("add.Tensor", origins[2], 0, reads=(names[1], last)),
        ]
        cost = Cost(100 + b, 100 + b, {"Sram": 40}, 64, 0.5)
        operations.append(Operation(0, "conv2d", f"conv2d {ODD}", (1, 5, 5, 8), 1000 + b, origins[0], cost))
        last = names[2]
    latency = (Latency("NPU", 1000, 500.0, 0.8, 1.2, "a model"),)
    lives = tuple(Life(f"tensor {i}", 100 + i, 100 * (i % 2), i, i + 1) for i in range(4))
    arena = Arena("planned memory 1", "sram", 302, 205, ("a", "b", "c", "d", "e"), lives)
    inside = PartitionMemory("inside partition 0", ("a", "b (net.py:1)"), (64, 96), (Item("b", 96),))
    region = Region("sram", "sram", (Item("planned memory 1", 302),), 300)
    memory = MemoryReport((region,), (arena,), (302,), 0, 0, inside=(inside,))
    return DelegationReport("chip", tuple(verdicts), operations=tuple(operations), latency=latency, memory=memory)


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Browser]:
    def opened(blocks: int) -> Browser:
        path: Path = tmp_path_factory.mktemp("page") / "report.html"
        report(blocks).to_html(path)
        browser.get(path.as_uri())
        ready = "document.documentElement.dataset.graph === 'ready'"
        wait = f"const done = arguments[0]; const look = () => {ready} ? done(true)"
        browser.execute_async_script(f"{wait} : setTimeout(look, 20); look();")
        return browser

    return opened


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
    assert "relu_3" in said and "on the host, in float" in said
    assert "Tensors have at most 7 axes." in said and f"9 axes {ODD}" in said
    assert page.execute_script("return document.querySelectorAll('main b, aside b').length") == 0


def test_an_operation_shows_its_cost(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    page.execute_script("document.querySelectorAll('#timeline rect')[4].dispatchEvent(new MouseEvent('click'))")
    said = text(page, "#details")
    assert "conv_4" in said and "104, arithmetic 104" in said and "40 cycles" in said and "net.py:1" in said


def test_memory_is_drawn_and_what_is_over_said(opened: Callable[[int], Browser]) -> None:
    page = opened(6)
    assert "over by 2 bytes" in text(page, ".tiles strong")
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
    browser.get(write_candidates(Candidates("net.py:net", "", (row,)), tmp_path / "c.html").as_uri())
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
