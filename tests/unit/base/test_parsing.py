"""JSON and TOML of others: whatever they hold is a value or a `ValueError`, and nothing else reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import micronpu
from micronpu.base.parsing import DEEPEST, parse_json, parse_toml


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deeply"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested too deeply"),
        ("9" * 6000, "64 bits"),
        ('{"a": [' + "9" * 30 + "]}", "64 bits"),
        ("[1,", "Expecting"),
        (b"\xff", "utf-8"),
    ],
)
def test_json_is_refused(text: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a = " + "9" * 6000, "64 bits"),
        ("[" + ".".join(["a"] * 200) + "]", "nested too deeply"),
        ("a = ", "Invalid value"),
    ],
)
def test_toml_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_toml(text)


def test_what_is_fine_is_read() -> None:
    deep = "[" * (DEEPEST - 1) + "1" + "]" * (DEEPEST - 1)
    assert str(parse_json(deep)) == deep
    assert parse_json(f'[{2**64 - 1}, {-(2**63)}, 1e999, true, null, "9999999999999999999999"]')[0] == 2**64 - 1
    assert parse_toml("a.b = 1\n[c]\nd = [true]") == {"a": {"b": 1}, "c": {"d": [True]}}


OWN = {
    "base/parsing.py": "the one place",
    "base/installed.py": "the package's own file",
    "host/build.py": "the package's own file",
    "targets/ethosu/accelerators.py": "the package's own file",
    "frontend/model_files/runtime_worker.py": "what its parent says",
    "runtime/isolated_worker.py": "what its parent says",
    "targets/neutron/sdk_worker.py": "what its parent says",
    "cli/archive.py": "as torch's loader decodes it, whose limits are checked first",
}
"""Files of the package that parse by themselves, with the reason."""


def test_nothing_else_parses() -> None:
    package = Path(micronpu.__file__).parent
    pattern = re.compile(r"\b(json\w*|tomllib)\.loads?\(")
    found = {str(p.relative_to(package)) for p in package.rglob("*.py") if pattern.search(p.read_text("utf-8"))}
    assert found - {"base/parsing.py"} == set(OWN) - {"base/parsing.py"}
