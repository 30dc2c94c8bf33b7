"""The report page of made-up networks in a browser without a screen.

Debian's `chromium` and `chromium-driver`; without them the tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools import need

from micronpu.ir.graph import Origin
from micronpu.report.delegation import DelegationReport
from micronpu.report.memory import Arena, Item, Life, MemoryReport, PartitionMemory, Region
from micronpu.report.operations import Cost, Latency, Operation
from micronpu.report.verdict import Reason, Verdict

Browser = Any
ODD = "</script><b>odd</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    webdriver = pytest.importorskip("selenium.webdriver")
    need("chromium", "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
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
