"""Every Python block of README and docs runs as it stands, in the order of its page; links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))], ids=name)
def test_python_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page begins with nothing but the example's folder `model.py`, `weights.npz` and `features.npz`."""
    for file in ("model.py", "weights.npz", "features.npz"):
        shutil.copy(ROOT / "examples" / "keyword_spotting" / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("model", "net"):  # of other tests
        monkeypatch.delitem(sys.modules, module, raising=False)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        if named := re.search(r"`(\w+\.py)`:\n\n$", text[: block.start()]):
            (tmp_path / named[1]).write_text(block[1], encoding="utf-8")
            continue
        code = compile("\n" * line + block[1], str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, namespace)


@pytest.mark.parametrize("module", ["micronpu", "micronpu.neutron", "micronpu.ethosu", "micronpu.runtime"])
def test_every_public_name_is_on_the_reference_page(module: str) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = text.partition(f"## {module}\n")[2].partition("\n## ")[0]
    shown = {line.rpartition(".")[2] for line in section.splitlines() if line.startswith("::: ")}
    shown |= set(re.findall(r"^      heading: (\w+)$", section, re.MULTILINE))
    shown |= set(re.findall(r"`micronpu\.\w+\.(\w+)`", section))
    assert set(importlib.import_module(module).__all__) <= shown


def anchors(page: Path) -> set[str]:
    """Of its headings, as web sites that show Markdown make them."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|^    .*?$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link}, where there is no such heading"
