"""docs/install.md names the programs and packages that the code and the tests ask for, and that pip does not bring."""

from __future__ import annotations

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from tests import tools

from micronpu.board import faults, qemu
from micronpu.cli import named_models
from micronpu.deploy import toolchain
from micronpu.host import build

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
PROGRAMS = {qemu.QEMU, *(name for names in toolchain.PACKAGES.values() for name in names[0].split())}
PROGRAMS |= {*build._COMPILERS[:1], faults._TOOLS[1], "addr2line"}
PROGRAMS |= {package for packages in tools.PACKAGES.values() for package in packages.split()}


def _distribution(name: str) -> str:
    return re.split(r"[^\w.-]", name)[0].lower().replace("_", "-")


def brought() -> set[str]:
    """Names of the distributions that `pip install micronpu` brings, without extras."""
    found, waiting = set(), ["micronpu"]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            try:
                needs = metadata.requires(name) or ()
            except metadata.PackageNotFoundError:
                continue
            waiting += [_distribution(need) for need in needs if "extra ==" not in need]
    return found


def imported() -> set[str]:
    """Top-level modules that the package imports, beside Python's own."""
    found: set[str] = set()
    for path in (ROOT / "src" / "micronpu").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - {*sys.stdlib_module_names, "micronpu"}


def optional() -> set[str]:
    """Names of the modules that the package imports only if they are installed, or of their distributions."""
    known, always = metadata.packages_distributions(), brought()
    names = {module: {*map(_distribution, known.get(module, [module]))} for module in imported()}
    return {min(of) for of in names.values() if not of & always} | {*named_models._LIBRARIES}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_has_its_place_on_the_page(name: str) -> None:
    assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", PAGE)


def test_an_optional_package_has_its_place_on_the_page() -> None:
    asked = optional()
    assert {"onnx", "torchvision", "ray"} <= asked and "torch" not in asked
    said = PAGE.lower().replace("_", "-")
    assert [name for name in sorted(asked) if not re.search(rf"\b{re.escape(name)}\b", said)] == []
