"""`micronpu explore` in a browser without a screen: Google's Model Explorer really draws a program.

Needs the extra `explore` and Debian's `chromium` and `chromium-driver`; without them the test is skipped.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools import need

pytest.importorskip("model_explorer")
webdriver = pytest.importorskip("selenium.webdriver")
pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[2] / "golden"
LIMIT = 300
"""Seconds after which something is wrong, however busy the machine."""
TEXT = """
const [wanted, done] = arguments;
const text = () => {
    const found = [];
    (function look(node) {
        if (node.shadowRoot) look(node.shadowRoot);
        for (const child of node.childNodes) {
            if (child.nodeType === 3) found.push(child.textContent.trim());
            else if (child.nodeType === 1 && !["STYLE", "SCRIPT"].includes(child.tagName)) look(child);
        }
    })(document.body);
    return found.filter(Boolean).join(" ");
};
const wait = () => text().includes(wanted) ? done(text()) : setTimeout(wait, 200);
wait();
"""
"""What the page says, as soon as that has a word in it."""


@pytest.fixture
def address() -> Iterator[str]:
    """Of the page of a program, by the command as a user starts it."""
    need("chromium", "chromedriver")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-u", "-m", "micronpu.cli", "explore", str(GOLDEN / "combined.pte"), "--no-browser"]
    command += ["--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            said = ""
            for line in server.stdout:  # ends where the server does
                said += line
                if found := re.search(r"http://localhost:\S+", line):
                    break
            else:
                pytest.fail(said)
            threading.Thread(target=server.stdout.read, daemon=True).start()  # a full pipe would stop it
            yield found[0]
        finally:
            server.kill()


def test_the_page_shows_the_program_and_where_it_runs(address: str) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    # Model Explorer draws with WebGL, which a machine without a graphics card computes.
    for argument in ("--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(LIMIT)
        driver.set_script_timeout(LIMIT)
        driver.get(address)
        text = driver.execute_async_script(TEXT, "where it runs")
        assert "combined.pte" in text and "11 nodes" in text
        for node in ("partition 0 (NeutronBackend)", "DEPTHWISE_CONV_2D NPU", "atan2.out core"):
            assert node in re.sub(r" \d+ (?=[A-Z]|atan)", " ", text), text
    finally:
        driver.quit()
