"""Trained networks compiled for Ethos-U: accuracy on labelled data, delegation, cycles, time of a run on the host.

    python -m benchmarks.ethosu_trained
    python -m benchmarks.ethosu_trained --networks dscnn --targets ethos-u85-256 --activations int8 --json figures.json

Needs the data folder (`benchmarks/networks`). Cycles are Vela's estimate.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import networks, results
from benchmarks.run import CONSOLE, MOST_LOSS, TRAINED
from benchmarks.trained import CALIBRATION_ROWS, run_eager, run_rows
from rich.table import Table

import micronpu
from micronpu.targets.ethosu.compile import EthosUPartition

TARGETS = ("ethos-u55-128", "ethos-u85-256")


@dataclass(frozen=True)
class Row:
    """One network on one target; ``loss`` in the unit of the metric, ``milliseconds`` per row on this machine."""

    network: str
    target: str
    activations: str
    metric: str
    float_score: float
    score: float
    loss: float
    delegated: str
    partitions: int
    cycles: int
    sram_bytes: int
    via: str
    milliseconds: float


def measure(network: networks.TrainedNetwork, target: str, activations: str, float_score: float) -> Row:
    """Compiles a network and runs the `.pte` on all of its evaluation rows."""
    program = micronpu.compile(
        network.module,
        network.example_inputs,
        target,
        calibration=network.calibration[:CALIBRATION_ROWS],
        verify=micronpu.Verification(held_out=0),
        quantization=activations,
    )
    program.run(*network.example_inputs)  # loads it
    start = time.perf_counter()
    outputs = run_rows(program.run, network.inputs)
    milliseconds = (time.perf_counter() - start) / len(network.inputs) * 1000
    score = network.score(outputs)
    parts = [p for p in program.partitions if isinstance(p, EthosUPartition)]
    report = program.report
    return Row(
        network.name,
        target,
        activations,
        network.metric,
        float_score,
        score,
        float_score - score,
        f"{report.delegated}/{len(report.verdicts)}",
        report.partitions,
        sum(p.program.cycles for p in parts),
        max(p.program.sram_bytes for p in parts),
        "+".join(dict.fromkeys(p.plan.format for p in parts)),
        milliseconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=TRAINED, choices=sorted(networks.NETWORKS))
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--activations", nargs="+", default=("int8", "int16"), choices=("int8", "int16"))
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    given = parser.parse_args()
    rows: list[Row] = []
    table = Table(title="Ethos-U, trained networks")
    columns = ("network", "target", "acts", "float", "program", "loss", "NPU", "parts", "cycles", "SRAM", "via", "ms")
    for column in columns:
        table.add_column(column, justify="left" if column in ("network", "target", "acts", "via") else "right")
    for name in given.networks:
        network = networks.load(name)
        float_score = network.score(run_eager(network.module, network.inputs))
        for target in given.targets:
            for activations in given.activations:
                with CONSOLE.status(f"{name} on {target}, {activations}"):
                    row = measure(network, target, activations, float_score)
                rows.append(row)
                digits = 2 if row.metric == "accuracy %" else 4
                loss = f"{row.loss:.{digits}f}"
                missed = row.loss > MOST_LOSS[row.metric]
                table.add_row(
                    name,
                    target,
                    activations,
                    f"{row.float_score:.{digits}f}",
                    f"{row.score:.{digits}f}",
                    f"[red]{loss}[/red]" if missed else loss,
                    row.delegated,
                    str(row.partitions),
                    f"{row.cycles:,}",
                    f"{row.sram_bytes:,}",
                    row.via,
                    f"{row.milliseconds:.1f}",
                )
                CONSOLE.print(f"{name} {target} {activations}: {row.score:.{digits}f}, {row.cycles:,} cycles")
    CONSOLE.print(table)
    everything = (list(given.networks), list(given.targets)) == (list(TRAINED), list(TARGETS))
    if everything and len(given.activations) == 2:
        results.write("ethosu_trained", "python -m benchmarks.ethosu_trained", [asdict(row) for row in rows])
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
