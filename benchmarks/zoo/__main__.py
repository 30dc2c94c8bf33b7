"""Fetches trained networks from public registries, compiles them, judges them on real data, and writes docs/zoo.md.

    python -m benchmarks.zoo                        # everything: some hours; what has run before is not run again
    python -m benchmarks.zoo pnet,onet corstone300  # two networks for one target, as JSON lines
    python -m benchmarks.zoo pnet peer              # the same by ExecuTorch's XNNPACK quantizer
    python -m benchmarks.zoo --fetch                # only the packages
    python -m benchmarks.zoo --page                 # only the page, of what has run

Files go to `$MICRONPU_ZOO`, without that variable to `build/zoo`. Each network runs in a process of its own, with one
thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.zoo.network import registry
from benchmarks.zoo.packages import ROOT, fetch, folder

TARGETS = ("corstone300", "ethos-u85-256", "imxrt700")
PRECISIONS = ("default", "int8", "accurate")
PEER = "peer"
SECONDS = 3000
"""Limit of one run; a network that takes longer counts as an error."""

Run = tuple[str, str, str]
"""Network, target, precision."""


def every_run() -> list[Run]:
    """All rows of the page, those that matter most first."""
    names = registry()
    first = [(n, TARGETS[0], p) for p, n in itertools.product(PRECISIONS[:2], names)]
    peer = [(n, PEER, "int8") for n in names]
    rest = [(n, t, p) for p, t, n in itertools.product(PRECISIONS, TARGETS, names)]
    return list(dict.fromkeys([*first, *peer, *rest]))


def kept(run: Run) -> Path:
    """The file of one run's figures."""
    return folder() / "runs" / f"{'-'.join(run)}.json"


def child(run: Run) -> dict[str, Any]:
    """Figures of one run, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.zoo", *run[:2], "--precision", run[2], "--here"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    row = dict(zip(("network", "target", "precision"), run, strict=True))
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {**row, "error": f"stopped after {SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])
    return {**row, "error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def in_this_process(run: Run) -> dict[str, Any]:
    """Figures of one run."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch
    from benchmarks.zoo import judge

    torch.set_num_threads(1)
    return judge.run(run[0], registry()[run[0]], run[1], run[2])


def version() -> str:
    """The commit that is measured."""
    found = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()


def run_all(runs: Iterable[Run], again: bool) -> None:
    """Runs what has not run, prints a JSON line each and keeps it in the folder."""
    for run in runs:
        path = kept(run)
        if again or not path.exists():
            row = child(run) | {"commit": version()}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(row), encoding="utf-8")
        print(path.read_text(encoding="utf-8"), flush=True)


def write_page() -> None:
    """Collects the runs into `benchmarks/results/zoo.json` and writes the tables of docs/zoo.md."""
    from benchmarks import pages, results

    rows = [json.loads(kept(run).read_text(encoding="utf-8")) for run in every_run() if kept(run).exists()]
    for row in rows:
        row.pop("trace", None)
    results.write("zoo", "python -m benchmarks.zoo", rows)
    page = pages.DOCS / "zoo.md"
    page.write_text(pages.made(page.name), encoding="utf-8")


def arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__, formatter_class=formatter)
    parser.add_argument("networks", nargs="?", help="names with commas between them; without them, all")
    parser.add_argument("targets", nargs="?", help=f"targets of micronpu, or {PEER}; without them, all of the page")
    parser.add_argument("--precision", help="default, int8, int16, auto or accurate; several with commas")
    parser.add_argument("--fetch", action="store_true", help="only fetch the packages")
    parser.add_argument("--page", action="store_true", help="only write the page, of what has run")
    parser.add_argument("--again", action="store_true", help="run again what has run before")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Run]:
    """The runs that the command line names.

    Raises:
        SystemExit: it names a network that is not there.
    """
    runs = every_run()
    if options.networks:
        names = options.networks.split(",")
        if unknown := set(names) - set(registry()):
            raise SystemExit(f"No network is called {', '.join(sorted(unknown))}. There are: {', '.join(registry())}.")
        runs = [run for run in runs if run[0] in names]
    if options.targets:
        precisions = (options.precision or "default").split(",")
        names = list(dict.fromkeys(run[0] for run in runs))
        product = itertools.product(precisions, options.targets.split(","), names)
        return [(name, target, "int8" if target == PEER else precision) for precision, target, name in product]
    return [run for run in runs if not options.precision or run[2] in options.precision.split(",")]


def main() -> None:
    """Does what the command line says."""
    options = arguments()
    if options.page:
        write_page()
        return
    runs = chosen(options)
    if options.here:
        print(json.dumps(in_this_process(runs[0]), default=str))
        return
    needed = {package for run in runs for package in registry()[run[0]].needs}
    fetch(sorted(needed))
    if options.fetch:
        return
    run_all(runs, options.again)
    if not options.networks:
        write_page()


if __name__ == "__main__":
    main()
