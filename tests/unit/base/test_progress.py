"""Progress in a notebook: one line, which is gone in the end."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from micronpu.base.timing import notebook_callback


def shell(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> None:
    here = SimpleNamespace(**attributes)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: here))


def test_a_line_under_the_cell_that_is_gone_in_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell(monkeypatch, kernel=object())
    tell = notebook_callback()
    assert tell is not None
    tell("quantize", 0.5)
    said = capsys.readouterr().out
    assert said.endswith("\rCalibrating and quantizing 50%") and "\n" not in said
    tell("quantize", 1.0)
    assert capsys.readouterr().out.strip() == ""


def test_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch)
    assert notebook_callback() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook_callback() is None
