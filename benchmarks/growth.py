"""How the time to compile grows with the number of operators, step by step.

    python -m benchmarks.growth                       # all, and the figures and the picture of docs/
    python -m benchmarks.growth --networks transformer --targets ethos-u55-128 --json rows.json

Each network is compiled in a few sizes, each in a process of its own with one thread and without the cache. Seconds are
those of the processor, from the float module to the bytes of the `.pte`, imports left out, Vela's process counted. The
exponent of a step is the slope of its time against the number of operators, both as logarithms, from the smallest size
to the largest: 1 for time that grows as the network does, 2 for its square.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.peers.child import ChildError, json_row, processor_seconds
from benchmarks.peers.ethosu import ROOT

BLOCKS = {
    "convolutions": (75, 150, 300),
    "transformer": (10, 20, 40),
    "window attention": (8, 16, 32),
    "GRU cells": (18, 36, 72),
}
"""Of each network; the largest has 1,000 to 1,400 operators."""
TARGETS = ("ethos-u55-128", "ethos-u85-256", "imxrt700-neutron", "imxrt700", "cortex-m55")
MOST_GROWTH = 1.2
MOST_SECONDS = {("transformer", 1000): 8.0}
_LEAST_SECONDS = 0.2
"""Of a step in the largest size, below which its exponent says nothing."""
PICTURE = ROOT / "docs" / "growth.svg"

Row = dict[str, Any]


def compile_here(name: str, blocks: int, target: str) -> Row:
    """The row of one compilation, in this process; everything that it needs is imported first."""
    from benchmarks.networks.grown import grown

    import micronpu.compiler.compile
    import micronpu.runtime
    from micronpu.targets.ethosu.vela.process import VELA

    small, inputs = grown(name, 2)
    micronpu.compile(small, inputs, target=target, calibration=[inputs])  # imports, builds
    VELA.end()
    module, examples = grown(name, blocks)
    steps: dict[str, float] = {}
    since = [time.process_time()]

    def listen(step: str, part: float) -> None:
        now = time.process_time()
        steps[step] = steps.get(step, 0.0) + (now - since[0] if part else 0.0)
        since[0] = now

    before, own = processor_seconds(), time.process_time()
    program = micronpu.compile(module, examples, target=target, calibration=[examples], callback=listen)
    own = time.process_time() - own
    VELA.end()  # the time of a child counts once it has ended
    total = processor_seconds() - before
    steps["Vela"] = max(total - own, 0.0)
    return {
        "network": name,
        "target": target,
        "blocks": blocks,
        "operators": len(program.report.verdicts),
        "delegated": program.report.delegated,
        "cpu_seconds": round(total, 3),
        "steps": {step: round(seconds, 3) for step, seconds in steps.items()},
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def exponent(few: float, many: float, operators: tuple[int, int]) -> float:
    """The slope of a time against the number of operators, both as logarithms."""
    return math.log(max(many, 1e-3) / max(few, 1e-3)) / math.log(operators[1] / operators[0])


def growths(rows: Sequence[Row]) -> list[Row]:
    """A line for each network and target: the largest size, and the exponents of the whole and of its steps."""
    found = []
    for key in dict.fromkeys((row["network"], row["target"]) for row in rows):
        sizes = sorted((r for r in rows if (r["network"], r["target"]) == key), key=lambda r: r["operators"])
        if len(sizes) < 2:
            continue
        few, many = sizes[0], sizes[-1]
        span = (few["operators"], many["operators"])
        slow = {s: t for s, t in many["steps"].items() if t >= _LEAST_SECONDS}
        steps = {step: round(exponent(few["steps"].get(step, 0.0), t, span), 2) for step, t in slow.items()}
        whole = round(exponent(few["cpu_seconds"], many["cpu_seconds"], span), 2)
        per = round(1000 * many["cpu_seconds"] / many["operators"], 2)
        last = {k: many[k] for k in ("network", "target", "operators", "cpu_seconds")}
        found.append({**last, "ms_per_operator": per, "exponent": whole, "steps": steps})
    return found


def picture(rows: Sequence[Row]) -> str:
    """Seconds against operators as an SVG, both axes logarithmic, a line for each network and target."""
    width, height, left, bottom = 720, 420, 60, 50
    names = list(dict.fromkeys(r["network"] for r in rows))
    targets = list(dict.fromkeys(r["target"] for r in rows))
    colours = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#8a6d3b")
    dashes = ("none", "6 3", "2 3", "8 3 2 3")
    xs, ys = [r["operators"] for r in rows], [max(r["cpu_seconds"], 0.01) for r in rows]
    low, high = (math.log10(min(xs)), math.log10(min(ys))), (math.log10(max(xs)), math.log10(max(ys)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low[0]) / max(high[0] - low[0], 1e-9)
        up = (math.log10(max(y, 0.01)) - low[1]) / max(high[1] - low[1], 1e-9)
        return round(left + across * (width - left - 200), 1), round(height - bottom - up * (height - bottom - 30), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11" role="img" aria-label="Processor seconds of a compilation against operators">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for value in (0.5, 1, 2, 5, 10, 20, 50):
        if low[1] <= math.log10(value) <= high[1]:
            y = place(min(xs), value)[1]
            lines.append(f'<line x1="{left}" x2="{width - 200}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            lines.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:g} s</text>')
    for value in (100, 200, 500, 1000, 2000):
        if low[0] <= math.log10(value) <= high[0]:
            x = place(value, min(ys))[0]
            lines.append(f'<line x1="{x}" x2="{x}" y1="30" y2="{height - bottom}" stroke="#ddd"/>')
            lines.append(f'<text x="{x}" y="{height - bottom + 16}" text-anchor="middle">{value:,}</text>')
    lines.append(f'<text x="{(left + width - 200) / 2}" y="{height - 12}" text-anchor="middle">operators</text>')
    for i, name in enumerate(names):
        for j, target in enumerate(targets):
            sizes = sorted(
                (r["operators"], r["cpu_seconds"]) for r in rows if (r["network"], r["target"]) == (name, target)
            )
            points = " ".join(f"{x},{y}" for x, y in (place(*size) for size in sizes))
            style = f'stroke="{colours[j % 5]}" stroke-dasharray="{dashes[i % 4]}" fill="none" stroke-width="1.6"'
            lines.append(f'<polyline points="{points}" {style}/>')
    for k, (label, style) in enumerate(
        [(t, f'stroke="{colours[j % 5]}"') for j, t in enumerate(targets)]
        + [(n, f'stroke="#444" stroke-dasharray="{dashes[i % 4]}"') for i, n in enumerate(names)]
    ):
        y = 40 + 18 * k
        lines.append(f'<line x1="{width - 185}" x2="{width - 150}" y1="{y}" y2="{y}" {style} stroke-width="1.6"/>')
        lines.append(f'<text x="{width - 144}" y="{y + 4}">{label}</text>')
    return "\n".join((*lines, "</svg>")) + "\n"


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(BLOCKS), choices=list(BLOCKS), metavar="NETWORK")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--sizes", type=int, default=3, help="how many of the sizes, the smallest first")
    parser.add_argument("--time-limit", type=float, default=900.0, metavar="SECONDS", help="of each process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--here", nargs=3, metavar=("NETWORK", "BLOCKS", "TARGET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        name, blocks, target = options.here
        print(json.dumps(compile_here(name, int(blocks), target)), flush=True)
        return
    os.environ["MICRONPU_CACHE"] = "off"
    rows: list[Row] = []
    failures = []
    for name in options.networks:
        for target in options.targets:
            for blocks in BLOCKS[name][: options.sizes]:
                command = [sys.executable, "-m", "benchmarks.growth", "--here", name, str(blocks), target]
                what = f"{name} of {blocks} blocks for {target}"
                try:
                    rows.append(json_row(command, what, time_limit=options.time_limit, folder=ROOT, threads=1))
                except ChildError as error:
                    failures.append(str(error))
                    break
                print(f"{what}: {rows[-1]['operators']} operators, {rows[-1]['cpu_seconds']} s", file=sys.stderr)
    for line in growths(rows):
        mark = " !" if line["exponent"] > MOST_GROWTH else ""
        print(
            f"{line['network']}, {line['target']}: {line['cpu_seconds']} s, exponent {line['exponent']}{mark}",
            line["steps"],
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    everything = (options.networks, options.targets) == (list(BLOCKS), list(TARGETS)) and not failures
    if everything and options.sizes > 1:
        results.write("growth", "python -m benchmarks.growth", {"rows": rows, "growth": growths(rows)})
        PICTURE.write_text(picture(rows), encoding="utf-8")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
