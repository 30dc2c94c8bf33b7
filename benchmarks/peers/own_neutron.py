"""micronpu on the peer's networks, measured as the peer is: in a process of its own, imports left out.

    python -m benchmarks.peers.own_neutron dscnn resnet8 chain100

One JSON line per network. The networks are the peer's, so that both sides compile the same module.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.child import ChildError, json_row
from benchmarks.peers.nxp import peer_script


def measure(model: str, *, samples: int = 4, time_limit: float = 900.0) -> dict[str, Any]:
    """Compiles one network of the peer's `models.py` for i.MX RT700, in a fresh process.

    Args:
        samples: how many random calibration inputs.
        time_limit: seconds.

    Returns:
        Counts of operators and partitions, `seconds` per step, for `import`, and in `total` (without `import`),
        `peak_rss_mib`, `pte_bytes`.

    Raises:
        ChildError: the networks are missing, the process fails, or exceeds the time limit.
    """
    peer_script()  # says what to try where the networks are missing
    command = [sys.executable, "-m", "benchmarks.peers.own_neutron", model, "--samples", str(samples)]
    root = Path(__file__).resolve().parents[2]
    return json_row(command, f"micronpu on {model!r}", time_limit=time_limit, folder=root)


def compile_here(name: str, samples: int) -> dict[str, Any]:
    """The row of `measure`, in this process; everything that a compilation needs is imported first."""
    start = time.perf_counter()
    import torch

    import micronpu.compiler.compile
    import micronpu.runtime

    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))  # imports a compiler, as importing the peer does
    imported = time.perf_counter() - start
    folder = os.fspath(peer_script().parent)
    sys.path.insert(0, folder)
    build = importlib.import_module("models").build
    sys.path.remove(folder)  # it holds the peer's stand-in for NXP's SDK, too, which is not ours to use
    module, shape = build(name)
    example = (torch.randn(shape),)
    calibration = [(torch.randn(shape),) for _ in range(samples)]
    start = time.perf_counter()
    program = micronpu.compile(module, example, "imxrt700-neutron", calibration=calibration)
    total = time.perf_counter() - start
    report = program.report
    return {
        "flow": "micronpu",
        "model": name,
        "operators": len(report.verdicts),
        "delegated": report.delegated,
        "partitions": report.partitions,
        "seconds": {k: round(v, 2) for k, v in program.seconds.items()}
        | {"import": round(imported, 2), "total": round(total, 2)},
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "pte_bytes": len(program.buffer),
    }


def main() -> None:
    """Command line: one JSON line per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--samples", type=int, default=4)
    options = parser.parse_args()
    if len(options.models) == 1:
        print(json.dumps(compile_here(options.models[0], options.samples)), flush=True)
        return
    for model in options.models:
        try:
            row = measure(model, samples=options.samples)
        except ChildError as error:
            sys.exit(str(error))
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
