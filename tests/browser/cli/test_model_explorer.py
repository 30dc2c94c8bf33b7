"""`micronpu explore` in a browser without a screen: Google's Model Explorer really draws a program.

Needs the extra `explore` and Debian's `chromium` and `chromium-driver`; without them the test is skipped.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("model_explorer")
webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with its driver"),
]
GOLDEN = Path(__file__).parents[2] / "golden"
LIMIT = 300
"""Seconds after which something is wrong, however busy the machine."""
TEXT = """
const found = [];
(function look(node) {
    if (node.shadowRoot) look(node.shadowRoot);
    for (const child of node.childNodes) {
        if (child.nodeType === 3) found.push(child.textContent.trim());
        else if (child.nodeType === 1 && !["STYLE", "SCRIPT"].includes(child.tagName)) look(child);
    }
})(document.body);
return found.filter(Boolean).join(" ");
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of the page of a program, by the command as a user starts it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    log = tmp_path / "log"
    command = [sys.executable, "-m", "micronpu.cli", "explore", str(GOLDEN / "combined.pte"), "--no-browser"]
    with log.open("w") as output:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + LIMIT
        while not (found := re.search(r"http://localhost:\S+", log.read_text())):
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.5)
        yield found[0]
    finally:
        server.kill()
        server.wait()


def test_the_page_shows_the_program_and_where_it_runs(address: str) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # Model Explorer draws with WebGL, which a machine without a graphics card computes.
    for argument in ("--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.set_page_load_timeout(LIMIT)
        driver.get(address)
        until = time.monotonic() + LIMIT
        while "where it runs" not in (text := driver.execute_script(TEXT)):
            assert time.monotonic() < until, text
            time.sleep(1)
        assert "combined.pte" in text and "11 nodes" in text
        for node in ("partition 0 (NeutronBackend)", "DEPTHWISE_CONV_2D NPU", "atan2.out core"):
            assert node in re.sub(r" \d+ (?=[A-Z]|atan)", " ", text), text
    finally:
        driver.quit()
