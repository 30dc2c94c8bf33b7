"""Choosing the chip: the keyword spotter on several of them, what fits, what it costs, and what nothing beats.

    python examples/choose_a_chip.py --within 1.0 imxrt700 himax-we2 corstone300

Asks `micronpu compare` for JSON, as a script in CI would, and takes the chip with the least SRAM of those that are
fast enough.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "keyword_spotting" / "model.py"


def compare(chips: list[str]) -> list[dict]:
    """The rows of the table."""
    command = [sys.executable, "-m", "micronpu.cli", "compare", f"{MODEL}:dscnn", "--json"]
    for chip in chips:
        command += ["--target", chip]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["candidates"]


def main(arguments: list[str] | None = None) -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chips", nargs="*", default=["imxrt700", "himax-we2", "corstone300"], help="`micronpu targets`")
    parser.add_argument("--within", type=float, default=1.0, metavar="MS", help="most milliseconds of a call")
    options = parser.parse_args(arguments)
    rows = compare(options.chips)
    for row in rows:
        time = f"{row['milliseconds']:.2f} ms" if row["milliseconds"] is not None else "no estimate"
        cost = row["blocks"] if row["failed"] else f"{time}, {row['sram']:,} bytes of SRAM, {row['flash']:,} of flash"
        print(f"{row['target']:24} {cost}{'' if row['fits'] is not False else ', which does not fit'}")
    good = [
        row
        for row in rows
        if not row["failed"] and row["fits"] is not False and (row["milliseconds"] or float("inf")) <= options.within
    ]
    best = min(good, key=lambda row: row["sram"], default=None)
    print(f"Take {best['target']}." if best else f"None of them is done within {options.within:g} ms.")
    return best["target"] if best else None


if __name__ == "__main__":
    main()
