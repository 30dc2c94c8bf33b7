"""The project's figures, measured: accuracy and exactness of trained networks, compile time beside the peer, imports.

    python -m benchmarks.run                                        # everything, some minutes
    python -m benchmarks.run accuracy exactness --networks dscnn resnet8
    python -m benchmarks.run time --peer-networks dscnn chain400 --repeat 3
    python -m benchmarks.run --json figures.json

What is measured of all its networks goes to `benchmarks/results/`, from where `python -m benchmarks.pages` takes it.
Needs the data folder (`benchmarks/networks`) and, for `time`, the peers folder (`benchmarks/peers/nxp.py`). A figure
that misses its aim is printed in red. The exit code is 1 if two ways to run a program differ in a bit, or if something
could not be measured; a missed aim is no error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.peers.child import ChildError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# A file or a pipe has no width; one that fits the tables.
CONSOLE = Console() if sys.stdout.isatty() else Console(width=140)
WHAT = ("accuracy", "exactness", "time", "import")
TRAINED = (
    "resnet8",
    "resnet20",
    "cifarnet",
    "dscnn_folded",
    "dscnn",
    "mobilenetv1",
    "autoencoder",
    "autoencoder_litert",
    "wake_word",
)
PEER_NETWORKS = ("cifarnet", "resnet8", "dscnn", "mobilenetv1_025", "autoencoder", "mobilenetv2", "chain100")

# The aims. Losses in points; for an area under the curve a hundredth of it counts as a point.
MOST_LOSS = {"accuracy %": 0.3, "AUC": 0.015}
MOST_BELOW_REFERENCE = {"accuracy %": 0.3, "AUC": 0.015}
LEAST_SAME_CLASS = 99.0
MOST_TIME_RATIO = 0.5
MOST_HELP_SECONDS = 0.5
INTERPRETED_ROWS = 50
OPERATOR_ROWS = 10
MOST_STEPS = 4

Row = dict[str, Any]


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that goes away; the callable is told how many more are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=CONSOLE, transient=True, disable=not CONSOLE.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda more: bar.advance(task, more)


def mark(text: str, missed: bool) -> str:
    """Red where an aim is missed."""
    return f"[red]{text}[/red]" if missed else text


# ------------------------------------------------------------------------------------------------- trained networks


def accuracy_row(evaluated: Any) -> Row:
    """Delegation, size, scores, and the distance to the `convert_pt2e` model in eager mode."""
    from benchmarks import trained

    network, report = evaluated.network, evaluated.program.report
    with progress(f"{network.name}: reference", len(network.inputs)) as done:
        reference = trained.run_reference(network, done)
    few = network.inputs[:OPERATOR_ROWS]
    in_float, in_int8 = network.score(evaluated.float_outputs), network.score(evaluated.outputs)
    row: Row = {
        "network": network.name,
        "metric": network.metric,
        "rows": len(network.labels),
        "operators": len(report.verdicts),
        "delegated": report.delegated,
        "partitions": report.partitions,
        "pte_bytes": len(evaluated.program.buffer),
        "float": in_float,
        "int8": in_int8,
        "loss": in_float - in_int8,
        "eager": network.score(evaluated.eager_outputs),
        "reference": None if reference is None else network.score(reference),
        "steps_percent": list(trained.share_of_steps(evaluated.steps, MOST_STEPS)),
        "most_steps": int(evaluated.steps.abs().max()),
        "operator_steps": max(int(d.abs().max()) for d in trained.operator_steps(evaluated, few).values()),
        "same_class": None,
        "same_class_as_float": None,
    }
    if network.metric == "accuracy %":
        row["same_class"] = trained.same_class(evaluated.outputs, evaluated.eager_outputs)
        row["same_class_as_float"] = trained.same_class(evaluated.outputs, evaluated.float_outputs)
    return row


def accuracy_tables(rows: list[Row]) -> Iterator[Table]:
    """Scores, and the distribution of differences."""
    table = Table(title="Trained networks, all rows that are not calibration", title_justify="left")
    for name in ("network", "rows", "on NPU", "parts", ".pte bytes", "float", "int8", "loss", "reference int8"):
        table.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    for row in rows:
        form = "{:.2f} %" if row["metric"] == "accuracy %" else "{:.4f}"
        loss = "{:+.2f}" if row["metric"] == "accuracy %" else "{:+.4f}"
        reference = row["reference"]
        below = reference is not None and reference - row["int8"] > MOST_BELOW_REFERENCE[row["metric"]]
        share = f"{row['delegated']}/{row['operators']}"
        table.add_row(
            row["network"],
            str(row["rows"]),
            mark(share, row["delegated"] < row["operators"]),
            mark(str(row["partitions"]), row["partitions"] != 1),
            f"{row['pte_bytes']:,}",
            form.format(row["float"]),
            form.format(row["int8"]),
            mark(loss.format(row["loss"]), row["loss"] > MOST_LOSS[row["metric"]]),
            "" if reference is None else mark(form.format(reference), below),
        )
    yield table

    steps = Table(
        title="Distance of the .pte from the convert_pt2e model in eager mode, in steps of the output's grid",
        title_justify="left",
    )
    names = [f"{n}" for n in range(MOST_STEPS)] + [
        f"{MOST_STEPS} or more",
        "most",
        "one operator",
        "same class",
        "as float",
    ]
    for name in ("network", *names):
        steps.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    for row in rows:
        same, real = row["same_class"], row["same_class_as_float"]
        steps.add_row(
            row["network"],
            *(f"{share:.2f} %" for share in row["steps_percent"]),
            str(row["most_steps"]),
            mark(str(row["operator_steps"]), row["operator_steps"] > 1),
            "" if same is None else mark(f"{same:.2f} %", same < LEAST_SAME_CLASS),
            "" if real is None else f"{real:.2f} %",
        )
    yield steps


def exactness_row(evaluated: Any) -> Row:
    """How many rows are the same in every bit on the ways to run the program."""
    from benchmarks import trained

    network, integers = evaluated.network, evaluated.integers
    few = network.inputs[:: max(1, len(network.inputs) // INTERPRETED_ROWS)][:INTERPRETED_ROWS]
    few_outputs = evaluated.outputs[:: max(1, len(network.inputs) // INTERPRETED_ROWS)][:INTERPRETED_ROWS]
    with progress(f"{network.name}: interpreter", len(few)) as done:
        interpreted = trained.run_rows(integers.interpret, few, done)
    with progress(f"{network.name}: LiteRT", len(network.inputs)) as done:
        litert = trained.run_rows(integers.litert, network.inputs, done)
    return {
        "network": network.name,
        "interpreter_rows": len(few),
        "interpreter_equal": trained.rows_equal(interpreted, few_outputs),
        "litert_rows": len(network.inputs),
        "litert_equal": trained.rows_equal(litert, evaluated.outputs),
    }


def exactness_table(rows: list[Row]) -> Table:
    table = Table(title="Rows whose output is that of the .pte, bit for bit", title_justify="left")
    for name in ("network", "reference interpreter", "LiteRT reference kernels"):
        table.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    for row in rows:
        counts = [(row[f"{runner}_equal"], row[f"{runner}_rows"]) for runner in ("interpreter", "litert")]
        table.add_row(row["network"], *(mark(f"{equal} of {total}", equal < total) for equal, total in counts))
    return table


def measure_trained(names: list[str], samples: int, accuracy: bool, exactness: bool, found: dict[str, Any]) -> None:
    """Compiles each network and runs its `.pte` once, for both tables."""
    from benchmarks import networks, trained

    for name in names:
        network = networks.load(name)
        with progress(f"{name}: .pte", len(network.inputs)) as done:
            evaluated = trained.evaluate(network, samples=samples, done=done)
        if accuracy:
            found["accuracy"].append(accuracy_row(evaluated))
        if exactness:
            found["exactness"].append(exactness_row(evaluated))
        CONSOLE.print(f"{name}: {evaluated.program.report.summary()}, {len(network.inputs)} rows")


# -------------------------------------------------------------------------------------------------------------- time


def time_row(name: str, samples: int, repeat: int) -> Row:
    """Both sides in turn, each in processes of their own; the fastest run of each counts.

    Raises:
        ChildError: one of them fails.
    """
    from benchmarks.peers import nxp as peer_nxp
    from benchmarks.peers import own_neutron

    ours, peers = [], []
    with progress(f"{name}: time", 2 * repeat) as done:
        for _ in range(repeat):
            ours.append(own_neutron.measure(name, samples=samples))
            done(1)
            peers.append(peer_nxp.measure(name, samples=samples))
            done(1)
    own, peer = (min(rows, key=lambda row: row["seconds"]["total"]) for rows in (ours, peers))
    ratio = own["seconds"]["total"] / peer["seconds"]["total"]
    return {"network": name, "samples": samples, "ratio": ratio, "micronpu": own, "peer": peer}


def time_table(rows: list[Row]) -> Table:
    table = Table(title="Float module to .pte bytes, seconds, imports left out", title_justify="left")
    names = ("network", "on NPU", "peer's", "export", "quantize", "partition", "compile", "lower", "total", "peer")
    for name in (*names, "ratio", "MiB", "peer"):
        table.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    for row in rows:
        own, peer = row["micronpu"], row["peer"]
        steps = (f"{own['seconds'].get(step, 0.0):.2f}" for step in names[3:9])
        table.add_row(
            row["network"],
            f"{own['delegated']}/{own['operators']}",
            f"{peer['delegated']}/{peer['edge_compute']}",
            *steps,
            f"{peer['seconds']['total']:.2f}",
            mark(f"{row['ratio']:.2f}", row["ratio"] > MOST_TIME_RATIO),
            str(own["peak_rss_mib"]),
            str(peer["peak_rss_mib"]),
        )
    return table


# ------------------------------------------------------------------------------------------------------------ import


def import_row(runs: int = 7) -> Row:
    """Wall time of `micronpu --help`, the whole process."""
    command = [str(Path(sys.executable).with_name("micronpu")), "--help"]
    seconds = []
    with progress("micronpu --help", runs) as done:
        for _ in range(runs):
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
            done(1)
    return {"command": "micronpu --help", "least": min(seconds), "median": statistics.median(seconds)}


def import_table(row: Row) -> Table:
    table = Table(title="Start of the command, seconds", title_justify="left")
    for name in ("command", "least", "median"):
        table.add_column(name, justify="left" if name == "command" else "right")
    shown = (mark(f"{row[key]:.2f}", row[key] > MOST_HELP_SECONDS) for key in ("least", "median"))
    table.add_row(row["command"], *shown)
    return table


# ------------------------------------------------------------------------------------------------------ command line


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(WHAT)}; all unless given")
    parser.add_argument("--networks", nargs="+", default=list(TRAINED), metavar="NETWORK", help="trained networks")
    parser.add_argument("--samples", type=int, default=100, help="calibration rows of a trained network, at most")
    parser.add_argument("--peer-networks", nargs="+", default=list(PEER_NETWORKS), metavar="NETWORK")
    parser.add_argument("--peer-samples", type=int, default=4, help="random calibration inputs of both sides")
    parser.add_argument("--repeat", type=int, default=1, help="times that each compilation is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args(arguments)
    if unknown := [what for what in options.what if what not in WHAT]:
        parser.error(f"nothing is called {', '.join(unknown)}. Known: {', '.join(WHAT)}")
    if unknown := [name for name in options.networks if name not in TRAINED]:
        parser.error(f"no trained network is called {', '.join(unknown)}. Known: {', '.join(TRAINED)}")
    options.what = options.what or list(WHAT)
    return options


def main() -> None:
    """Measures, prints, writes."""
    options = parse()
    found: dict[str, Any] = {"accuracy": [], "exactness": [], "time": [], "import": None}
    failures: list[str] = []
    if "import" in options.what:
        found["import"] = import_row()
        CONSOLE.print(import_table(found["import"]))
    if "time" in options.what:
        for name in options.peer_networks:
            try:
                found["time"].append(time_row(name, options.peer_samples, options.repeat))
            except ChildError as error:
                failures.append(str(error))
        CONSOLE.print(time_table(found["time"]))
    if {"accuracy", "exactness"} & set(options.what):
        wanted = ("accuracy" in options.what, "exactness" in options.what)
        try:
            measure_trained(options.networks, options.samples, *wanted, found)
        except FileNotFoundError as error:
            failures.append(str(error))
    if found["accuracy"]:
        for table in accuracy_tables(found["accuracy"]):
            CONSOLE.print(table)
    if found["exactness"]:
        CONSOLE.print(exactness_table(found["exactness"]))
    for row in found["exactness"]:
        if any(row[f"{runner}_equal"] < row[f"{runner}_rows"] for runner in ("interpreter", "litert")):
            failures.append(f"{row['network']}: not every way to run the program gives the same bits.")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    whole = {"time": options.peer_networks == list(PEER_NETWORKS), "import": True}
    for what, figures in found.items():
        if figures and not failures and whole.get(what, options.networks == list(TRAINED)):
            results.write(what, f"python -m benchmarks.run {what}", figures)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
