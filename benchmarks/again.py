"""Compiling a network again: unchanged, with one changed layer, and without the cache.

    python -m benchmarks.again
    python -m benchmarks.again --networks mbv2_224 --targets ethos-u55-128

Each compilation is in a process of its own, with one thread and a cache of its own that the first one fills. Seconds
are those of the processor, imports left out, Vela's process counted. `check` is measured in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from typing import Any

from benchmarks import results
from benchmarks.peers.child import json_row, processor_seconds
from benchmarks.peers.ethosu import ROOT, network

NETWORKS = ("mbv2_224", "trained:resnet8")
TARGETS = ("ethos-u55-128",)
RUNS = ("no cache", "first", "unchanged", "one layer changed")

Row = dict[str, Any]


def measure_here(name: str, target: str, run: str, what: str) -> Row:
    """Seconds and bytes of one compilation or check, in this process."""
    import torch

    import micronpu.compiler.compile
    import micronpu.runtime
    import micronpu.targets.ethosu.device
    from micronpu.base.cache import CACHE
    from micronpu.targets.ethosu.vela.process import VELA

    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))  # imports a compiler
    module, example, calibration = network(name, 1)
    if run == "one layer changed":
        weights = [p for p in module.parameters() if p.dim() > 1]
        with torch.no_grad():
            weights[len(weights) // 2].mul_(1.1)
    before = processor_seconds()
    if what == "check":
        micronpu.check(module, example, target=target)
        size = 0
    else:
        size = len(micronpu.compile(module, example, target, calibration=calibration, quantization="int8").buffer)
    VELA.end()
    seconds = processor_seconds() - before
    return {"run": run, "cpu_seconds": round(seconds, 3), "bytes": size, "hits": CACHE.hits, "misses": CACHE.misses}


def measure(name: str, target: str, what: str, time_limit: float) -> Row:
    """All runs of one network, one after the other, with a cache of their own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS:
            os.environ["MICRONPU_CACHE"] = "off" if run == "no cache" else os.path.join(folder, "answers")
            command = [sys.executable, "-m", "benchmarks.again", "--here", name, target, run, what]
            rows.append(json_row(command, f"{what} of {name}, {run}", time_limit=time_limit, folder=ROOT, threads=1))
    first = rows[1]["cpu_seconds"]
    return {
        "network": name,
        "target": target,
        "what": what,
        "runs": [r | {"ratio": round(r["cpu_seconds"] / first, 2)} for r in rows],
    }


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--time-limit", type=float, default=900.0, metavar="SECONDS", help="of each process")
    parser.add_argument("--here", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(*options.here)), flush=True)
        return
    found = []
    for name in options.networks:
        for target in options.targets:
            for what in ("compile", "check"):
                found.append(measure(name, target, what, options.time_limit))
                for row in found[-1]["runs"]:
                    seconds = f"{row['cpu_seconds']} s, {row['ratio']} of the first"
                    print(f"{what} of {name}, {target}, {row['run']}: {seconds}")
    if (options.networks, options.targets) == (list(NETWORKS), list(TARGETS)):
        results.write("again", "python -m benchmarks.again", found)


if __name__ == "__main__":
    main()
