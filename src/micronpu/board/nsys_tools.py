"""Installed tools of NXP and ExecuTorch for Neutron programs for silicon, and their chips.

Standard library only: `micronpu doctor` uses it, too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from micronpu.chips import Chip, shipped_chips
from micronpu.targets.neutron.target_spec import NEUTRON, NeutronNpu

RUNNER, SIMULATOR, FIRMWARE = "nxp_executor_runner", "nsys", "NeutronFirmware.elf"
"""Required tools: ExecuTorch's runner, NXP's simulator, and the NPU's firmware for it."""
RUNNER_VARIABLE, FIRMWARE_VARIABLE = "NXP_RUNNER_PATH", "NSYS_FIRMWARE_PATH"
"""Environment variables in which ExecuTorch's own tests look for two of them."""
_SDK = "eiq_neutron_sdk"
_REMEDIES = {
    RUNNER: f"ExecuTorch's examples/nxp/executor_runner, built; its path in {RUNNER_VARIABLE} or --runner",
    SIMULATOR: "NXP's eIQ Neutron simulator (pip package eiq_nsys), with nsys on the PATH",
    FIRMWARE: f"NXP's {_SDK}, or the firmware's path in {FIRMWARE_VARIABLE}",
}


@dataclass(frozen=True)
class NsysFile:
    """One of the three files.

    Attributes:
        path: its path; None if missing.
        remedy: how to get it.
    """

    name: str
    path: Path | None
    remedy: str


def chips() -> Mapping[str, Chip]:
    """Return the chips whose programs the simulator runs, by name: those of NXP's converter for ExecuTorch."""
    own = (chip for chip in shipped_chips().values() if chip.npu is not None and chip.npu.family == NEUTRON)
    return {chip.name: chip for chip in own if NeutronNpu.of(chip).converter}


def examine(chip: str, runner: str = "") -> tuple[NsysFile, NsysFile, NsysFile]:
    """Return the installed tools of NXP and ExecuTorch.

    Args:
        runner: path of the runner; default: `RUNNER_VARIABLE`, or the one on the PATH.
    """
    asked = runner or os.environ.get(RUNNER_VARIABLE, "")
    found = {RUNNER: asked or shutil.which(RUNNER), SIMULATOR: shutil.which(SIMULATOR), FIRMWARE: _firmware(chip)}
    paths = {name: Path(path).absolute() if path else None for name, path in found.items()}
    one, two, three = (
        NsysFile(name, path if path is not None and path.is_file() else None, _REMEDIES[name])
        for name, path in paths.items()
    )
    return one, two, three


def _firmware(chip: str) -> str | None:
    if path := os.environ.get(FIRMWARE_VARIABLE):
        return path
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(_SDK)  # it is not imported
        if spec is not None and spec.submodule_search_locations:
            folder = NeutronNpu.of(chips()[chip]).converter
            return str(Path(next(iter(spec.submodule_search_locations)), "target", folder, "cmodel", FIRMWARE))
    return None
