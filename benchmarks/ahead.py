"""Everything about the time ahead of time, one script after the other, with the peers beside.

    python -m benchmarks.ahead            # an hour on two cores
    python -m benchmarks.ahead --only again growth
    python -m benchmarks.ahead --quick    # few networks, minutes; writes nothing

Writes the figures of `benchmarks/results/` and the tables of `docs/` that are made of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks import pages, results
from benchmarks.peers.ethosu import ROOT

SCRIPTS: dict[str, tuple[str, ...]] = {
    "cold_start": ("benchmarks.cold_start", "--peer", "--out", str(results.FOLDER / "cold_start.json")),
    "time": ("benchmarks.run", "time"),
    "ethosu_networks": ("benchmarks.ethosu_networks",),
    "again": ("benchmarks.again",),
    "growth": ("benchmarks.growth",),
}
"""By the name of their figures; each says at its head what it measures."""
QUICK: dict[str, tuple[str, ...]] = {
    "cold_start": ("benchmarks.cold_start", "--repeat", "1"),
    "time": ("benchmarks.run", "time", "--peer-networks", "dscnn"),
    "ethosu_networks": ("benchmarks.ethosu_networks", "--networks", "dscnn", "--targets", "ethos-u55-128"),
    "again": ("benchmarks.again", "--networks", "trained:resnet8"),
    "growth": ("benchmarks.growth", "--networks", "GRU cells", "--targets", "ethos-u55-128", "--sizes", "2"),
}
"""The same of few networks, which only print."""


def main() -> None:
    """Runs the scripts, and makes the pages of what they wrote."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(SCRIPTS), choices=list(SCRIPTS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="few networks; nothing is written")
    options = parser.parse_args()
    scripts = QUICK if options.quick else SCRIPTS
    failed = []
    for name in options.only:
        print(f"== {name}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, "-m", *scripts[name]], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if not options.quick:
        sys.argv[1:] = []
        pages.main()
    if failed:
        sys.exit(f"Not measured to the end: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
