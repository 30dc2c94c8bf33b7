"""The peer: ExecuTorch's own Ethos-U flow (`executorch.backends.arm`) on a network, in a process of its own.

    python -m benchmarks.peers.ethosu dscnn mbv2_224 trained:resnet8 --target ethos-u85-256

The peers folder is the one that MICRONPU_PEERS names, or else `../shared/peers` beside the repository. A network is
one of its `ethosu/models.py`, whose weights are random with a fixed seed, or `trained:` and a name of
`benchmarks.networks`. Both sides use the Vela that is installed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.child import ChildError, json_row

ROOT = Path(__file__).resolve().parents[2]
TRAINED = "trained:"


def peer_script() -> Path:
    """The script that runs the peer.

    Raises:
        ChildError: there is none.
    """
    folder = Path(os.environ.get("MICRONPU_PEERS") or ROOT.parent / "shared" / "peers")
    script = folder.resolve() / "ethosu" / "run_upstream.py"
    if not script.is_file():
        raise ChildError(
            f"The Ethos-U peer is not at {script}. Try: set MICRONPU_PEERS to the folder that holds ethosu/."
        )
    return script


def network(name: str, samples: int) -> tuple[Any, tuple[Any, ...], list[tuple[Any, ...]]]:
    """A module in eval mode, its example inputs and calibration inputs."""
    if name.startswith(TRAINED):
        from benchmarks import networks

        trained = networks.load(name.removeprefix(TRAINED), limit=1)
        return trained.module, trained.example_inputs, [(x,) for x in trained.calibration[:samples]]
    models = _models()
    module, example = models.build(name)
    return module, example, models.calibration(name, samples)


def _models() -> ModuleType:
    folder = os.fspath(peer_script().parent)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("models")
    finally:
        sys.path.remove(folder)


def measure(name: str, target: str, *, samples: int = 1, time_limit: float = 900.0) -> dict[str, Any]:
    """Runs the peer on one network.

    Returns:
        `cycles` over all delegates as Vela estimates them, `partitions`, `delegated` of `compute` operators,
        operators left to the host, `cpu_seconds` and `seconds` from the float module to the `.pte` without imports,
        `peak_rss_mib`, `pte_bytes`, `sram_kib`.

    Raises:
        ChildError: the peer is missing, fails, prints no row, or exceeds the time limit.
    """
    peer_script()
    command = [sys.executable, "-m", "benchmarks.peers.ethosu", "--here", name, "--target", target]
    row = json_row(
        [*command, "--samples", str(samples)],
        f"The Ethos-U peer on {name!r} for {target}",
        time_limit=time_limit,
        folder=ROOT,
        threads=1,
    )
    host = {op: n for op, n in row["host_nodes"].items() if "quantize_per" not in op}
    return {
        "flow": "peer",
        "network": name,
        "target": target,
        "cycles": int(sum(part["cycles_total"] for part in row["vela"])),
        "partitions": row["partitions"],
        "delegated": row["delegated_compute_nodes"],
        "compute": row["edge_compute_nodes"],
        "host": host,
        "cpu_seconds": row["cpu_s"]["aot_total"],
        "seconds": row["time_s"]["aot_total"],
        "peak_rss_mib": round(row["peak_rss_mib"]),
        "pte_bytes": row["pte_bytes"],
        "sram_kib": max((part.get("sram_memory_used", 0.0) for part in row["vela"]), default=0.0),
        "vela": metadata.version("ethos-u-vela"),
    }


def _run_here(name: str, target: str, samples: int) -> None:
    """The peer's script in this process; a trained network takes the place of its own."""
    script = peer_script()
    if name.startswith(TRAINED):
        module, example, calibration = network(name, samples)
        stand_in = ModuleType("models")
        vars(stand_in).update(build=lambda _: (module, example), calibration=lambda _, n: calibration[:n])
        sys.modules["models"] = stand_in
    sys.argv = [os.fspath(script), name, "--target", target, "--samples", str(samples)]
    runpy.run_path(os.fspath(script), run_name="__main__")


def main() -> None:
    """Command line: one JSON line per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=900.0, metavar="SECONDS")
    parser.add_argument("--here", metavar="NETWORK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        _run_here(options.here, options.target, options.samples)
        return
    for name in options.networks:
        try:
            row = measure(name, options.target, samples=options.samples, time_limit=options.time_limit)
        except ChildError as error:
            sys.exit(str(error))
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
