"""Ctrl+C ends a search first, and then the command."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from micronpu.base.leaving import SIGNALED

COMMAND = """
import os, signal, sys
from micronpu.base.leaving import ended_early, leave_on_signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may ignore it
leave_on_signals()

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass

for search in range(int(sys.argv[1])):
    try:
        with ended_early():
            interrupt()
    except KeyboardInterrupt:
        print("ended", flush=True)
with ended_early():
    pass
if sys.argv[2] == "again":
    interrupt()
"""


@pytest.mark.parametrize(("searches", "again", "code"), [(2, "", 0), (1, "again", SIGNALED + signal.SIGINT)])
def test_ctrl_c_ends_a_search_and_outside_of_one_the_command(searches: int, again: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, str(searches), again], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "ended\n" * searches), done.stderr
    assert done.stderr.count("The search ends with the best that it has found.") == searches
