"""`make quick` finds the tests that are near to a change, and says what it leaves."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests import quick
from tests.layers import SOURCE

KNOWN = quick.files()


def near(name: str) -> dict[str, int]:
    found = quick.nearest([SOURCE / name], KNOWN)
    return {str(path.relative_to(quick.TESTS)): distance for path, distance in found.items()}


def test_what_imports_a_module_is_near_to_it() -> None:
    found = near("base/callers.py")
    assert found["unit/base/test_callers.py"] == 1 and list(found.values()) == sorted(found.values())
    assert found["compile/quantize/test_observers.py"] == 2, "by micronpu.quantize.observing"


def test_a_folder_stands_for_a_package_behind_a_lazy_import() -> None:
    assert near("targets/neutron/sdk_worker.py")["compile/targets/neutron/test_sdk.py"] == 1
    assert "unit/base/test_files.py" not in near("cli/doctor.py")


def test_imports_in_functions_and_over_lines_count(tmp_path: Path) -> None:
    text = """
        import micronpu.ops.reduction
        from micronpu.base import (
            errors,
            files as found,
        )
        def f():
            from micronpu.ir.types import DType
        # import micronpu.cli.main
    """
    path = tmp_path / "test_it.py"
    path.write_text(textwrap.dedent(text))
    names = {"micronpu.ops.reduction", "micronpu.base.errors", "micronpu.base.files", "micronpu.ir.types"}
    known = {name: KNOWN[name] for name in [*names, "micronpu.cli.main"]}
    assert set(quick.imports(path, known)) == names


def test_what_no_time_is_left_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.run([quick.TESTS / "unit/ir/test_types.py"], -1.0) == 0
    assert "1 of 1 test files are left" in capsys.readouterr().out
