"""What tests of emulated boards need: QEMU, and Arm's runners, both of which CI installs (`.ci/run`)."""

from __future__ import annotations

import pytest

from micronpu.base.errors import MicroNpuError
from micronpu.board.qemu import find_qemu
from micronpu.board.runners import INSTALL, package


def need_qemu() -> None:
    """Skips a test where there is no QEMU."""
    try:
        find_qemu()
    except MicroNpuError as error:
        pytest.skip(str(error))


def need_runners() -> None:
    """Skips a test where QEMU or the runners are missing."""
    need_qemu()
    if not all(runner.installed() for runner in package().runners):
        pytest.skip(f"Arm's runners are not installed: {INSTALL}")
