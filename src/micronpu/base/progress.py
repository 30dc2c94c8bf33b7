"""Names of compilation steps for progress displays in terminals and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable

STEPS = {
    "load": "Loading the model",
    "export": "Exporting",
    "sparsify": "Choosing weights and training without labels",
    "quantize": "Calibrating and quantizing",
    "choose": "Choosing the precision",
    "partition": "Deciding what runs where",
    "compile": "Compiling for the NPU",
    "lower": "Lowering the host's part",
    "run": "Running",
    "blame": "Comparing layer by layer",
    "fix": "Trying fixes",
    "advise": "Compiling with changes",
    "float": "Running the float model",
    "program": "Running the program",
    "compare": "Compiling for the targets",
    "read": "Reading the program",
    "disassemble": "Running the stream for what it reads and writes",
    "deploy": "Writing what the firmware needs",
    "build": "Building the firmware",
}
"""Steps passed to progress callbacks, and their titles for users."""


def notebook_callback() -> Callable[[str, float], None] | None:
    """Return a progress callback that shows one line under the notebook cell until the end; None outside of
    notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # a terminal's shell has none
        return None
    width = max(map(len, STEPS.values())) + len(" 100 %")

    def notify(name: str, part: float) -> None:
        text = f"{STEPS.get(name, name)} {part:.0%}" if part < 1 else ""
        sys.stdout.write(f"\r{text:{width}}\r{text}")
        sys.stdout.flush()

    return notify
