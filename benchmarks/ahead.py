"""Everything about the time ahead of time, one script after the other, with the peers beside.

    python -m benchmarks.ahead            # an hour on two cores
    python -m benchmarks.ahead --only again growth

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


def main() -> None:
    """Runs the scripts, and makes the pages of what they wrote."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(SCRIPTS), choices=list(SCRIPTS), metavar="NAME")
    wanted = parser.parse_args().only
    failed = []
    for name in wanted:
        print(f"== {name}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, "-m", *SCRIPTS[name]], cwd=ROOT, check=False).returncode:
            failed.append(name)
    sys.argv[1:] = []
    pages.main()
    if failed:
        sys.exit(f"Not measured to the end: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
