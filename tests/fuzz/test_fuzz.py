"""A few seconds of the fuzzer, always on the same files; `make fuzz` runs it with sanitizers, and for longer."""

from __future__ import annotations

import random

import pytest
from tests.fuzz.harness import Target, file_of, fuzz
from tests.fuzz.mutate import mutate_bytes, mutate_text
from tests.fuzz.targets import TARGETS

from micronpu.base.errors import PayloadError


@pytest.mark.sweep
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_files_are_read_or_refused(name, tmp_path):
    target = TARGETS[name]()
    for seed in target.seeds:
        target.read(seed)
    found = fuzz(target, 0, max(20, int(25 * target.share)), tmp_path)
    assert not found.defects
    assert sum(found.outcomes.values()) == found.files > 0
    assert found.outcomes["refused"] + found.outcomes["refused by its digest"] > 0, "nothing was damaged"


def test_mutations_are_the_same_every_time():
    target = Target("x", [bytes(range(256)), b"b" * 90], lambda data: "", mutate_bytes)
    files = [file_of(target, 3, number) for number in range(50)]
    assert files == [file_of(target, 3, number) for number in range(50)]
    assert len(set(files)) > 45
    assert mutate_text(b"a = 1\nb = 2", random.Random(5)) == mutate_text(b"a = 1\nb = 2", random.Random(5))


@pytest.mark.sweep
def test_the_harness_distinguishes_crashes_hangs_refusals_and_defects(tmp_path, monkeypatch):
    """The files are their own numbers."""
    import os
    import time

    from tests.fuzz import harness

    def read(data: bytes) -> str:
        number = int(data)
        if number == 3:
            os.abort()
        if number == 5:
            time.sleep(60)
        if number == 6:
            while True:
                pass
        if number == 7:
            raise PayloadError("no")
        if number == 9:
            raise KeyError("a defect")
        if number == 11:
            (tmp_path / f"sanitizer.{os.getpid()}").write_text("ERROR: heap\n #0 x in libmicronpu.so\n\nsecond")
            os.abort()
        return "read"

    monkeypatch.setattr(harness, "HANG_SECONDS", 1.0)
    monkeypatch.setattr(harness, "SILENT_SECONDS", 4.0)
    monkeypatch.setattr(harness, "file_of", lambda target, seed, number: b"%d" % number)
    found = fuzz(Target("x", [b""], read, mutate_bytes), 0, 20, tmp_path)
    expected = {"read": 14, "crash elsewhere": 1, "hang": 2, "refused": 1, "defect": 1, "crash in micronpu": 1}
    assert found.outcomes == expected
    assert len(found.defects) == 4 and "KeyError" in found.defects[2]
