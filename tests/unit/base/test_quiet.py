"""Loggers are found again only where there are others, and none is missed or left with a filter."""

from __future__ import annotations

import logging

import pytest

from micronpu.base.quiet import _is_shown, quiet


def test_a_logger_that_was_a_placeholder_is_quiet_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many names as before: `torch.quiet_test` is there, without a logger, as soon as its child is."""
    monkeypatch.setattr(logging.root.manager, "loggerDict", dict(logging.root.manager.loggerDict))
    child = logging.getLogger("torch.quiet_test.child")
    with quiet():
        names = len(logging.root.manager.loggerDict)
        parent = logging.getLogger("torch.quiet_test")
        assert len(logging.root.manager.loggerDict) == names
        with quiet():
            assert all(_is_shown in each.filters for each in (child, parent, logging.root))
        other = logging.getLogger("quiet_test")
    assert not any(_is_shown in each.filters for each in (child, parent, other, logging.root))


def test_warnings_of_a_logger_are_dropped_in_the_context_alone(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = logging.getLogger("torch.quiet_test"), logging.getLogger("quiet_test")
    for logger in (ours, theirs):
        with quiet():
            logger.warning("inside")
        logger.warning("after")
    assert [(r.name, r.message) for r in caplog.records] == [
        ("torch.quiet_test", "after"),
        ("quiet_test", "inside"),
        ("quiet_test", "after"),
    ]
