"""Makes the support tables in `docs/`: compiles every row of `tests/support_rows.py` for a device of each kind.

python -m tests.support_tables            writes them
python -m tests.support_tables --check    fails where a file is not what this would write
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from executorch.exir.dialects._ops import ops as _edge_ops  # noqa: F401  (registers dim_order_ops)

from micronpu.base.files import write_file
from micronpu.frontend.program import ProgramView
from micronpu.neutron import calibrate_and_quantize
from micronpu.partition.partition import Partitioning
from micronpu.quantize.config import Activations, IOType
from micronpu.report.verdict import Verdict
from micronpu.targets.cortexm import rules as cortexm
from micronpu.targets.ethosu import rules as ethosu
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.target_spec import LATEST
from micronpu.targets.registry import device_for
from tests.neutron_limits import PATH as LIMITS_PATH
from tests.neutron_limits import limits_table, published_rules
from tests.support_outcomes import COMMAND, PATH, Column, Outcome, support_table
from tests.support_rows import Rows, batches, module_of, overloads

OLDER = "SDK_25_12"

Partition = Callable[[], Partitioning]

COLUMNS: dict[str, Partition] = {
    "Neutron": lambda: device_for("imxrt700-neutron").partition(quantized("imxrt700-neutron")),
    "Neutron to SDK 25.12": lambda: device_for(
        "imxrt700-neutron", NeutronOptions(silicon="imxrt700", converter_flavor=OLDER)
    ).partition(quantized("imxrt700-neutron")),
    "Ethos-U55": lambda: device_for("ethos-u55-128").partition(quantized("ethos-u55-128")),
    "Ethos-U65": lambda: device_for("ethos-u65-256").partition(quantized("ethos-u55-128")),
    "Ethos-U85": lambda: device_for("ethos-u85-256").partition(quantized("ethos-u55-128")),
    "Ethos-U85, int16": lambda: device_for("ethos-u85-256").partition(quantized("ethos-u85-256", "int16")),
    "Cortex-M": lambda: device_for("cortex-m55").partition(quantized("cortex-m55")),
}
"""What each column of the table shows."""


@functools.cache
def exported() -> torch.export.ExportedProgram:
    """All rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Rows(overloads()), batches()[0])


@functools.cache
def quantized(target: str, activations: Activations = "int8", io: IOType | None = None) -> ProgramView:
    """All rows, as the quantizer of a target makes them."""
    data = batches()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = calibrate_and_quantize(exported(), data, device_for(target).quantizer(activations=activations, io=io))
    return ProgramView(module)


def outcomes(verdicts: Sequence[Verdict]) -> Column:
    """The outcome of every row, from the verdicts on `Rows`."""
    found: dict[str, list[Verdict]] = {module_of(name): [] for name in overloads()}
    for verdict in verdicts:
        row = verdict.origin.module.rpartition(".")[2]
        if row in found:
            found[row].append(verdict)
    return {name: Outcome.of(found[module_of(name)]) for name in overloads()}


def columns() -> dict[str, Column]:
    """The outcomes for all devices."""
    return {title: outcomes(partition().report.verdicts) for title, partition in COLUMNS.items()}


def notes() -> Mapping[str, Sequence[str]]:
    """What holds for every operator of a family."""
    return {
        "Neutron; the limits of each operator are in [support-neutron.md](support-neutron.md)": [
            rule.sentence for rule in published_rules(LATEST) if not rule.operators
        ],
        "Ethos-U": [ethosu.SENTENCE],
        "Cortex-M": [rule.sentence for rule in cortexm.RULES],
    }


def pages() -> dict[Path, str]:
    """What the files hold."""
    return {PATH: support_table(columns(), notes()), LIMITS_PATH: limits_table()}


def main(arguments: list[str]) -> int:
    """Writes or checks the files in the current checkout; returns the exit code."""
    old = []
    for path, text in pages().items():
        if "--check" not in arguments:
            print(write_file(path, text.encode()))
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            old.append(path)
            print(f"{path} is out of date. Try: {COMMAND}.")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
