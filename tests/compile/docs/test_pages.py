"""Every block of README, docs and examples runs as it stands, in the order of its page; links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from tests.compile.docs.blocks import COMMAND, LANGUAGES, Block, blocks, commands, run_command, run_python

import micronpu
from micronpu import report

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


NOT_RUN = {
    "files of yours": 4,
    "a file of yours": 1,
    "keras is not a dependency": 1,
    "goes on with the program above; tests/runtime/test_plugin.py runs the same": 1,
    "a network": 20,
    "a board": 30,
    "an ExecuTorch for the core": 3,
    "kws.pte and vww.pte are yours": 1,
    "kws.pte is yours": 1,
    "model.pte is yours": 2,
    "minutes": 19,
    "hours": 4,
    "NXP's simulator": 3,
    "transformers": 1,
    "tests run the examples": 8,
}
"""Why blocks and commands of pages are not run, and how many are not."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def runs(page: Path) -> list[Block]:
    return [b for b in blocks(text_of(page)) if b.language in {"python", "sh", "console"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page's blocks run: the example's files in it, and the example at its place in the repository."""
    example = tmp_path / "examples" / "keyword_spotting"
    example.mkdir(parents=True)
    for file in ("model.py", "weights.npz", "features.npz"):
        for place in (tmp_path, example):
            shutil.copy(ROOT / "examples" / "keyword_spotting" / file, place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = dict(sys.modules)
    for module in ("model", "net", "tail"):  # of other tests
        sys.modules.pop(module, None)
    yield tmp_path
    for module in set(sys.modules) - set(known):
        if str(getattr(sys.modules[module], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[module]


def run(page: Path, folder: Path, slow: bool) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(text_of(page)):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not block.skips("", slow):
            run_python(block, page, namespace)
        elif block.language in {"sh", "console"}:
            for command, printed in commands(block):
                if not block.skips(command, slow):
                    run_command(command, printed)


@pytest.mark.sweep
@pytest.mark.parametrize("page", [p for p in PAGES if runs(p)], ids=name)
def test_blocks_run_as_they_stand(page: Path, folder: Path) -> None:
    """In the order of the page, in one folder with the example's `model.py`, `weights.npz` and `features.npz`."""
    run(page, folder, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.slow for b in runs(p))], ids=name)
def test_slow_blocks_run_as_they_stand(page: Path, folder: Path) -> None:
    run(page, folder, slow=True)


def test_blocks_say_what_they_are_and_why_they_are_not_run() -> None:
    """Nothing hides: no indented block, no command in a text, and every block that is not run is counted here."""
    found = dict.fromkeys(NOT_RUN, 0)
    for page in PAGES:
        for block in blocks(text_of(page)):
            where = f"{name(page)}, line {block.line}"
            assert block.language in LANGUAGES, f"{where}: {block.language!r}"
            if block.language == "text":
                assert not any(COMMAND.match(line) for line in block.text.splitlines()), f"{where}: a command"
            if block.reason:
                lines = [command for command, _ in commands(block)] if block.language != "python" else [block.text]
                left_out = [line for line in lines if block.skips(line, slow=True)]
                assert block.reason in NOT_RUN and left_out, f"{where}: {block.reason}"
                found[block.reason] += len(left_out)
        prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"\n\n    \S", prose), f"{name(page)} has an indented block, which says no language"
    assert found == NOT_RUN


_DEPLOYED = re.compile(r"""micronpu deploy .*?-o (\S+)|program\.deploy\("([^"]+)""")


def test_firmware_folders_have_names_of_their_own_and_a_chip() -> None:
    """A reader goes from page to page in one folder, where `deploy` refuses a name that is taken."""
    found = []
    for page in PAGES:
        for block in blocks(text_of(page)):
            found += [shell or python for shell, python in _DEPLOYED.findall(block.text)]
            for line in block.text.splitlines():
                assert not line.startswith("micronpu deploy") or "--for " in line, f"{name(page)}: {line}"
    assert len(found) > 8 and sorted(found) == sorted(set(found))


def test_c_compiles_as_it_stands(tmp_path: Path) -> None:
    """In a function, behind the names that its page says are the reader's."""
    (block,) = [b for p in PAGES for b in blocks(text_of(p)) if b.language == "c" and "model.h" not in text_of(p)]
    include, _, body = block.text.partition("\n")
    names = [f"{name}, size_t {name}_size" for name in ("weights", "scratch", "fast", "cmd_data")]
    given = ", ".join(f"uint8_t* {n}" for n in names) + ", size_t input_offset, size_t input_size, size_t output_offset"
    source = f"#include <stdio.h>\n{include}\nvoid f({given}, size_t output_size) {{\n{body}}}\n"
    (tmp_path / "page.c").write_text(source, encoding="utf-8")
    command = [
        "cc",
        "-fsyntax-only",
        "-Wall",
        "-Werror",
        f"-I{ROOT / 'native' / 'ethosu_sim'}",
        str(tmp_path / "page.c"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PUBLIC = [
    *(
        "micronpu",
        "micronpu.neutron",
        "micronpu.ethosu",
        "micronpu.compat",
        "micronpu.runtime",
        "micronpu.recipes",
        "micronpu.testing",
    ),
]


def own(value: object) -> dict[str, object]:
    """Public methods and properties that a class of ours defines, by name."""
    members = vars(value).items() if isinstance(value, type) and value.__module__.startswith("micronpu") else ()
    parts = {n: m.fget if isinstance(m, property) else getattr(m, "__func__", m) for n, m in members if n[0] != "_"}
    return {n: part for n, part in parts.items() if callable(part) and not isinstance(part, type)}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_says_what_it_is(module: str) -> None:
    """What a class overrides may leave it to the class above."""
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        assert not callable(value) or (inspect.getdoc(value) or "").strip(), f"{module}.{name}"
        for method in own(value):
            assert (inspect.getdoc(getattr(value, method)) or "").strip(), f"{module}.{name}.{method}"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_on_the_reference_page(module: str) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = text.partition(f"## {module}\n")[2].partition("\n## ")[0]
    shown = {line.rpartition(".")[2] for line in section.splitlines() if line.startswith("::: ")}
    shown |= set(re.findall(r"^      heading: (\w+)$", section, re.MULTILINE))
    shown |= set(re.findall(r"`micronpu\.\w+\.(\w+)`", section))
    shown |= set(re.findall(r"^`(\w+)` is another name of `\w+`", section, re.MULTILINE))
    assert set(importlib.import_module(module).__all__) <= shown


def test_every_result_is_on_the_reference_page() -> None:
    """What public functions and classes give, and what that holds in turn, as far as it is a value of reports.

    By the names in annotations: what only the type checker imports has no other form.
    """
    modules = [importlib.import_module(f"micronpu.report.{m.name}") for m in pkgutil.iter_modules(report.__path__)]
    values = {
        kind for m in modules for kind in vars(m).values() if inspect.isclass(kind) and kind.__module__ == m.__name__
    }

    def named(annotation: object) -> set[type]:
        words = set(re.findall(r"\w+", str(annotation))) - {"Tensor"}  # torch's
        return {kind for kind in values if kind.__name__ in words}

    def given(value: object) -> set[type]:
        parts = [*own(value).values()] if isinstance(value, type) else [value]
        returned = {k for p in parts if inspect.isfunction(p) for k in named(inspect.signature(p).return_annotation)}
        return returned | {k for f in (fields(value) if is_dataclass(value) else ()) for k in named(f.type)}

    seen: set[type] = set()
    new = {kind for name in micronpu.__all__ for kind in given(getattr(micronpu, name))}
    while new:
        seen |= new
        new = {kind for old in new for kind in given(old)} - seen
    shown = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert len(seen) > 30
    assert {f"{kind.__module__}.{kind.__qualname__}" for kind in seen} - shown == set()


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


def messages() -> str:
    """All strings of the package and its templates, with `...` for each value that is filled in."""
    found = []
    for path in sorted((ROOT / "src" / "micronpu").rglob("*")):
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(v.value if isinstance(v, ast.Constant) else "..." for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
        elif path.suffix == ".in":
            found.append(path.read_text(encoding="utf-8"))
    return "\n".join(found)


@pytest.mark.sweep
def test_troubleshooting_quotes_messages_that_exist() -> None:
    """A reader searches the page for words of a message. Messages of other tools are marked as theirs."""
    text = text_of(ROOT / "docs" / "troubleshooting.md")
    quoted = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(quoted) > 20
    known = messages()
    assert [message for message in quoted if message not in known] == []


def test_every_page_is_in_the_navigation_once() -> None:
    """And the navigation names no page that is gone."""
    named = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))
