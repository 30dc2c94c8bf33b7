"""micronpu beside the peer on Ethos-U: cycles, time ahead of time, memory, bytes, delegation.

    python -m benchmarks.ethosu_networks
    python -m benchmarks.ethosu_networks --networks mbv2_224 trained:dscnn --targets ethos-u85-256 --json figures.json
    python -m benchmarks.ethosu_networks --own-only --networks resnet8

Both sides compile the same module with the same calibration inputs for the same accelerator with the same Vela, each in
a process of its own with one thread. Cycles are Vela's estimate over all delegates, which leaves out what a side leaves
to the core. Processor time runs from the float module to the bytes of the `.pte`; imports are left out. Time and memory
of the process that Vela runs in are counted. A figure beyond what `docs` promise is marked with an exclamation mark.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.peers.child import ChildError, json_row, peak_mib, processor_seconds
from benchmarks.peers.ethosu import ROOT, TRAINED, network
from benchmarks.peers.ethosu import measure as measure_peer

TRAINED_NETWORKS = ("resnet8", "cifarnet", "dscnn", "mobilenetv1", "autoencoder", "wake_word")
NETWORKS = (*(TRAINED + name for name in TRAINED_NETWORKS), "mbv2_224", "chain100", "chain400")
TARGETS = ("ethos-u55-128", "ethos-u85-256")
MOST_CYCLES = {
    ("mbv2_224", "ethos-u85-256"): 3_250_000,
    ("mbv1_025_96", "ethos-u85-256"): 124_000,
    ("resnet8", "ethos-u85-256"): 84_000,
    ("dscnn", "ethos-u85-256"): 39_900,
    ("mbv2_224", "ethos-u55-128"): 7_880_000,
    ("mbv1_025_96", "ethos-u55-128"): 366_000,
}
MOST_CPU_RATIO = {"mbv2_224": 0.35, "chain400": 0.2}
MOST_RSS_RATIO = 0.8
MOST_GROWTH = 4.3
"""Time of 400 convolution blocks over that of 100."""

Row = dict[str, Any]


def compile_here(name: str, target: str, samples: int) -> Row:
    """The row of `measure_own`, in this process; everything that a compilation needs is imported first."""
    import torch

    import micronpu.compiler.compile
    import micronpu.runtime
    import micronpu.targets.ethosu.device
    from micronpu.targets.ethosu.vela.process import VELA

    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))  # imports a compiler, as importing the peer does
    module, example, calibration = network(name, samples)
    wall, cpu = time.perf_counter(), processor_seconds()
    program = micronpu.compile(module, example, target, calibration=calibration, quantization="int8")
    wall, vela_mib = time.perf_counter() - wall, peak_mib(VELA.pid)
    VELA.end()  # the time of a child counts once it has ended
    cpu = processor_seconds() - cpu
    parts = [part.program for part in program.partitions]
    report = program.report
    return {
        "flow": "micronpu",
        "network": name,
        "target": target,
        "cycles": sum(part.cycles for part in parts),
        "partitions": len(parts),
        "delegated": report.delegated,
        "compute": len(report.verdicts),
        "host": {verdict.operator: 1 for verdict in report.host},
        "cpu_seconds": round(cpu, 3),
        "seconds": round(wall, 3),
        "steps": {step: round(seconds, 3) for step, seconds in program.seconds.items()},
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + vela_mib,
        "pte_bytes": len(program.buffer),
        "sram_kib": max((part.memory.get("Sram", 0) / 1024 for part in parts), default=0.0),
        "notes": list(report.notes),
    }


def measure_own(name: str, target: str, *, samples: int = 1, time_limit: float = 900.0) -> Row:
    """Compiles one network in a fresh process.

    Raises:
        ChildError: it fails, or exceeds the time limit.
    """
    command = [sys.executable, "-m", "benchmarks.ethosu_networks", "--here", name, "--targets", target]
    what = f"micronpu on {name!r} for {target}"
    return json_row([*command, "--samples", str(samples)], what, time_limit=time_limit, folder=ROOT, threads=1)


def ratio(own: Row, peer: Row | None, key: str) -> float | None:
    """Our figure over the peer's, or None where there is none."""
    return own[key] / peer[key] if peer is not None and peer[key] else None


def misses(own: Row, peer: Row | None) -> list[str]:
    """Figures beyond what is promised, as sentences."""
    name, target = own["network"], own["target"]
    found = []
    most = MOST_CYCLES.get((name, target))
    if most is not None and own["cycles"] > most:
        found.append(f"{own['cycles']:,} cycles, at most {most:,} are promised")
    if peer is not None and not peer["host"] and own["cycles"] > peer["cycles"]:
        found.append(f"{own['cycles']:,} cycles, more than the peer's {peer['cycles']:,}")
    for key, limit in (("cpu_seconds", MOST_CPU_RATIO.get(name)), ("peak_rss_mib", MOST_RSS_RATIO)):
        value = ratio(own, peer, key)
        if limit is not None and value is not None and value > limit:
            found.append(f"{key} is {value:.2f} of the peer's, at most {limit} is promised")
    return [f"{name}, {target}: {what}" for what in found]


def growth(rows: Sequence[Row]) -> list[str]:
    """How the time grows with the number of blocks, as sentences; those beyond the promise end with "!"."""
    seconds = {(row["network"], row["target"]): row["cpu_seconds"] for row in rows}
    found = []
    for target in dict.fromkeys(row["target"] for row in rows):
        few, many = seconds.get(("chain100", target)), seconds.get(("chain400", target))
        if few and many:
            mark = " !" if many / few > MOST_GROWTH else ""
            found.append(f"{target}: 400 blocks take {many / few:.2f} times as long as 100{mark}")
    return found


def table(pairs: Sequence[tuple[Row, Row | None]]) -> str:
    """Both sides in one line per network and target."""
    header = (
        *("network", "target", "cycles", "peer", "ratio", "CPU s", "peer", "ratio", "MiB", "peer", "ratio"),
        *(".pte bytes", "peer", "on NPU", "parts", "peer", "parts", ""),
    )
    lines = [header]
    for own, peer in pairs:
        cells = [own["network"], own["target"]]
        for key, form in (("cycles", ",d"), ("cpu_seconds", ".2f"), ("peak_rss_mib", "d")):
            value = ratio(own, peer, key)
            theirs = format(peer[key], form) if peer is not None else "-"
            cells += [format(own[key], form), theirs, f"{value:.2f}" if value is not None else "-"]
        cells += [f"{own['pte_bytes']:,}", f"{peer['pte_bytes']:,}" if peer is not None else "-"]
        for row in (own, peer):
            cells += [f"{row['delegated']}/{row['compute']}", str(row["partitions"])] if row is not None else ["-", "-"]
        lines.append((*cells, "!" if misses(own, peer) else ""))
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--samples", type=int, default=1, help="calibration inputs of both sides")
    parser.add_argument("--repeat", type=int, default=1, help="times that each is measured; the least time counts")
    parser.add_argument("--own-only", action="store_true", help="leave out the peer")
    parser.add_argument("--time-limit", type=float, default=900.0, metavar="SECONDS", help="of each process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--here", metavar="NETWORK", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> None:
    """Measures, prints, writes."""
    options = parse()
    if options.here:
        print(json.dumps(compile_here(options.here, options.targets[0], options.samples)), flush=True)
        return
    pairs: list[tuple[Row, Row | None]] = []
    failures: list[str] = []
    for name in options.networks:
        for target in options.targets:
            sides = (measure_own,) if options.own_only else (measure_own, measure_peer)
            best: list[Row] = []
            for side in sides:
                try:
                    runs = [
                        side(name, target, samples=options.samples, time_limit=options.time_limit)
                        for _ in range(options.repeat)
                    ]
                except ChildError as error:
                    failures.append(str(error))
                    break
                best.append(min(runs, key=lambda row: row["cpu_seconds"]))
            if best:
                pairs.append((best[0], best[1] if len(best) > 1 else None))
                print(f"{name}, {target}: done", file=sys.stderr, flush=True)
    if pairs:
        print(table(pairs))
        for line in (*growth([own for own, _ in pairs]), *(line for pair in pairs for line in misses(*pair))):
            print(line)
    figures = [{"micronpu": own, "peer": peer} for own, peer in pairs]
    if not failures and (options.networks, options.targets) == (list(NETWORKS), list(TARGETS)) and not options.own_only:
        results.write("ethosu_networks", "python -m benchmarks.ethosu_networks", figures)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
