"""Whole networks on every Ethos-U: the command stream beside its graph, element for element.

    python -m benchmarks.ethosu_streams                                    # all, more than an hour of processor time
    python -m benchmarks.ethosu_streams --networks own:gru tv:mobilenet_v2 # some; the others keep their figures

Both run through the ExecuTorch runtime from one `.pte`: the stream in the simulator, the graph in LiteRT's reference
kernels or TOSA's reference model.  Trained networks (`benchmarks/networks`, which needs the data folder) on all
evaluation rows on one accelerator of each family and on the first ones on the others; larger networks of
`benchmarks/coverage.py` have random weights and one random input.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

import torch
from benchmarks import coverage, networks, results
from benchmarks.run import CONSOLE, TRAINED
from benchmarks.trained import CALIBRATION_ROWS, run_rows
from rich.table import Table
from torch import Tensor, nn

import micronpu
from micronpu.ethosu import EthosUOptions
from micronpu.runtime import HostProgram, RunOptions
from micronpu.targets.ethosu.accelerators import accelerators

NAME = "ethosu_streams"
WHOLE = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
"""On these all rows are run."""
FEW = 24
UNTRAINED = (
    *("own:gru", "own:lstm", "tv:mobilenet_v2", "tv:mobilenet_v3_small", "tv:efficientnet_b0"),
    "timm:deit_tiny_patch16_224",
)
"""Of `benchmarks/coverage.py`."""


@dataclass(frozen=True)
class Row:
    """A network on an accelerator."""

    network: str
    target: str
    activations: str
    rows: int
    values: int
    different: int


@dataclass(frozen=True)
class Subject:
    """A network with what calibrates it and what it is run on: rows of its one input."""

    module: nn.Module
    calibration: Tensor
    inputs: Tensor


def load(name: str) -> Subject:
    """A trained network with its data, or an untrained one with random inputs."""
    if name in networks.NETWORKS:
        network = networks.load(name)
        return Subject(network.module, torch.cat(network.calibration[:CALIBRATION_ROWS]), network.inputs)
    module, (shape,) = coverage.build(name)
    rows = torch.randn(3, *shape[1:])
    coverage.settle(module, rows)
    return Subject(module, rows[:2], rows[2:])


def measure(name: str, subject: Subject, target: str, activations: str) -> Row:
    """Compiles a network and runs it both ways."""
    calibration = subject.calibration
    buffer = micronpu.compile(
        subject.module,
        (calibration[:1],),
        target,
        calibration=calibration,
        quantization=activations,
        options=EthosUOptions(target, carry_graph=True),
    ).buffer
    inputs = subject.inputs if target in WHOLE and activations == "int8" else subject.inputs[:FEW]
    outputs = []
    for graph in (False, True):
        with HostProgram(buffer, RunOptions(graph=graph)) as program:
            outputs.append(run_rows(lambda row, run=program.run: run(row)[0], inputs))  # type: ignore[misc]
    different = int(torch.count_nonzero(outputs[0] != outputs[1]))
    return Row(name, target, activations, len(inputs), outputs[0].numel(), different)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = (*TRAINED, *UNTRAINED)
    parser.add_argument("--networks", nargs="+", default=every, choices=every, metavar="NAME")
    parser.add_argument("--targets", nargs="+", default=sorted(accelerators()), choices=sorted(accelerators()))
    parser.add_argument("--activations", nargs="+", default=("int8", "int16"), choices=("int8", "int16"))
    given = parser.parse_args()
    figures = {_key(Row(**row)): Row(**row) for row in results.read(NAME)} if results.is_there(NAME) else {}
    rows: list[Row] = []
    for name in given.networks:
        subject = load(name)
        for target in given.targets:
            for activations in given.activations:
                try:
                    with CONSOLE.status(f"{name} on {target}, {activations}"):
                        row = measure(name, subject, target, activations)
                except micronpu.MicroNpuError as error:
                    CONSOLE.print(f"{name} {target} {activations}: {error}")
                    continue
                rows.append(row)
                CONSOLE.print(f"{name} {target} {activations}: {row.different} of {row.values:,} values differ")
                figures[_key(row)] = row
                order = sorted(figures.values(), key=lambda r: (every.index(r.network), r.target, r.activations))
                results.write(NAME, f"python -m benchmarks.{NAME}", [asdict(r) for r in order])
    table = Table("network", "target", "activations", "rows", "values", "different", title="Streams and graphs")
    for row in rows:
        cells = (row.rows, row.values, row.different)
        table.add_row(row.network, row.target, row.activations, *(f"{n:,}" for n in cells))
    CONSOLE.print(table)


def _key(row: Row) -> tuple[str, str, str]:
    return row.network, row.target, row.activations


if __name__ == "__main__":
    main()
