"""Malformed calls and command lines: a fixed share, and all of them where slow tests run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.fuzz import malformed_commands
from tests.fuzz.malformed import Malformed, malformed
from tests.fuzz.public_calls import CALLS, missing

from micronpu.base.errors import MicroNpuError

ALL = tuple(malformed(CALLS))


def wrong(calls: list[Malformed]) -> list[str]:
    """What is wrong, by call."""
    return [f"{call}: {found}" for call in calls if (found := call.wrong())]


def test_everything_public_has_a_good_call():
    assert missing() == []
    assert sorted(malformed_commands.GOOD) == sorted(malformed_commands.commands())


_WITHOUT_A_FILE = ("load_chip", "DelegationReport.load", "merge_kernel_selections")
"""Calls that are malformed in any case: here they have no file to read."""


@pytest.mark.sweep
@pytest.mark.parametrize("call", [c for c in CALLS if c.name not in _WITHOUT_A_FILE], ids=lambda call: call.name)
def test_the_good_calls_are_good(call):
    """Or what the malformed ones end in says nothing of what is wrong with them."""
    call.function(**call.good())


def test_a_share_of_the_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(ALL) > 1000
    assert wrong(random.Random(5).sample(ALL, 400)) == []


@pytest.mark.slow
def test_all_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert wrong(list(ALL)) == []


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    malformed_commands.prepare(tmp_path)
    return tmp_path


def test_a_share_of_the_command_lines(folder):
    lines = random.Random(6).sample(tuple(malformed_commands.lines()), 30)
    assert [f"{line}: {found}" for line in lines if (found := line.wrong())] == []


@pytest.mark.slow
def test_all_command_lines(folder):
    lines = tuple(malformed_commands.lines())
    assert len(lines) > 200
    assert [f"{line}: {found}" for line in lines if (found := line.wrong())] == []


def test_messages_are_one_line_of_what_can_be_printed():
    error = MicroNpuError(f"The file a\nb\udce4 of {'x' * 5000} is none.", hint="b\0")
    assert str(error) == f"The file a\\nb\\udce4 of {'x' * 150}...{'x' * 100} is none. Try: b\\x00."
