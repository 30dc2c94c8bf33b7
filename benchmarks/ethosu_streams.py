"""Trained networks on every Ethos-U: the command stream beside its graph, element for element, on the evaluation rows.

    python -m benchmarks.ethosu_streams             # table, and benchmarks/results/ethosu_streams.json

Both run through the ExecuTorch runtime from one `.pte`: the stream in the simulator, the graph in LiteRT's reference
kernels or TOSA's reference model.  All rows on one accelerator of each family, the first ones on the others.  Needs the
data folder (`benchmarks/networks.py`).
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

import torch
from benchmarks import networks, results
from benchmarks.run import CONSOLE, TRAINED
from benchmarks.trained import CALIBRATION_ROWS, run_rows
from rich.table import Table

import micronpu
from micronpu.ethosu import EthosUCompileSpec
from micronpu.runtime import HostProgram, RunOptions
from micronpu.targets.ethosu.accelerators import accelerators

WHOLE = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
"""On these all rows are run."""
FEW = 24


@dataclass(frozen=True)
class Row:
    """A network on an accelerator; the streams' size is that of the `.pte` without its graph."""

    network: str
    target: str
    activations: str
    rows: int
    values: int
    different: int
    pte_bytes: int


def measure(network: networks.TrainedNetwork, target: str, activations: str) -> Row:
    """Compiles a network and runs it both ways."""

    def compiled(carry_graph: bool) -> bytes:
        return micronpu.compile(
            network.module,
            network.example_inputs,
            target,
            calibration=network.calibration[:CALIBRATION_ROWS],
            activations=activations,
            options=EthosUCompileSpec(target, carry_graph=carry_graph),
        ).buffer

    buffer = compiled(True)
    inputs = network.inputs if target in WHOLE and activations == "int8" else network.inputs[:FEW]
    outputs = []
    for graph in (False, True):
        with HostProgram(buffer, RunOptions(graph=graph)) as program:
            outputs.append(run_rows(lambda row, run=program.run: run(row)[0], inputs))  # type: ignore[misc]
    different = int(torch.count_nonzero(outputs[0] != outputs[1]))
    size = len(compiled(False))
    return Row(network.name, target, activations, len(inputs), outputs[0].numel(), different, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=TRAINED, choices=sorted(networks.NETWORKS))
    parser.add_argument("--targets", nargs="+", default=sorted(accelerators()), choices=sorted(accelerators()))
    parser.add_argument("--activations", nargs="+", default=("int8", "int16"), choices=("int8", "int16"))
    given = parser.parse_args()
    rows: list[Row] = []
    for name in given.networks:
        network = networks.load(name)
        for target in given.targets:
            for activations in given.activations:
                with CONSOLE.status(f"{name} on {target}, {activations}"):
                    rows.append(measure(network, target, activations))
                row = rows[-1]
                CONSOLE.print(f"{name} {target} {activations}: {row.different} of {row.values:,} values differ")
    table = Table("network", "target", "activations", "rows", "values", "different", ".pte", title="Streams and graphs")
    for row in rows:
        cells = (row.rows, row.values, row.different, row.pte_bytes)
        table.add_row(row.network, row.target, row.activations, *(f"{n:,}" for n in cells))
    CONSOLE.print(table)
    everything = (list(given.networks), list(given.targets)) == (list(TRAINED), sorted(accelerators()))
    if everything and len(given.activations) == 2:
        results.write("ethosu_streams", "python -m benchmarks.ethosu_streams", [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
