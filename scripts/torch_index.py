"""Says where `make venv` takes torch from: options for pip on standard output, a sentence for people on the other.

On Linux, PyPI's torch is built for CUDA and brings several GB along. Where there is no such device, the index of builds
for the processor is added, where it answers. `TORCH_INDEX=https://...` names another, and `TORCH_INDEX=none` adds none.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import urllib.request
from pathlib import Path

INDEX = "https://download.pytorch.org/whl/cpu"
_PATIENCE_SECONDS = 10
_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
_HINT = "TORCH_INDEX=https://... names an index of builds for the processor"


def choose(asked: str, system: str, has_gpu: bool, answers: bool) -> tuple[str, str]:
    """Options for pip, and what is taken.

    Args:
        asked: the variable TORCH_INDEX; "" where it is not set.
        system: as `platform.system` calls it.
        has_gpu: whether the machine has a device that CUDA could use.
        answers: whether `INDEX` can be reached.
    """
    if asked == "none":
        return "", "torch as pip is set up, as requested"
    if asked:
        return f"--extra-index-url {asked}", f"torch from {asked}, as requested, if it has a build"
    if system != "Linux":
        return "", "torch from PyPI, which has builds for the processor alone here"
    if has_gpu:
        return (
            "",
            "torch as pip is set up, for CUDA: this machine has a GPU (TORCH_INDEX=" + INDEX + " for one without)",
        )
    if answers:
        return f"--extra-index-url {INDEX}", f"torch for the processor alone, from {INDEX}: this machine has no GPU"
    return "", f"torch as pip is set up, which may be a build for CUDA of several GB: {INDEX} does not answer; {_HINT}"


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or any(Path(device).exists() for device in _DEVICES)


def _answers() -> bool:
    try:
        with urllib.request.urlopen(f"{INDEX}/torch/", timeout=_PATIENCE_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def main() -> None:
    asked = os.environ.get("TORCH_INDEX", "")
    system, has_gpu = platform.system(), _has_gpu()
    answers = not asked and system == "Linux" and not has_gpu and _answers()
    options, sentence = choose(asked, system, has_gpu, answers)
    print(f"    {sentence}", file=sys.stderr)
    print(options)


if __name__ == "__main__":
    main()
