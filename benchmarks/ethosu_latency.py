"""Estimates for Ethos-U beside times that are published: how far off they are, and the constants that are fitted.

    python -m benchmarks.ethosu_latency             # tables, and benchmarks/results/ethosu_latency.json
    python -m benchmarks.ethosu_latency --compile   # compiles the networks anew first, two minutes

What a time rests on is the command stream and Vela's cycles of the arithmetic.  The results folder keeps both of every
network that is built here, so that tests hold the model, the chips' files and the anchors against each other in a
second.  Streams are Vela's own (`prefetch=False`), as those of the published programs.

On some chips constants are fitted, see `FITTED`; they stand in the chips' files.  The error of a row is then that of a
fit to the other rows of its chip (leave-one-out), elsewhere that of the estimate, for which nothing is fitted.
"""

from __future__ import annotations

import argparse
import base64
import functools
import zlib
from collections.abc import Mapping, Sequence
from itertools import product
from math import exp, log
from typing import Any

import numpy as np
from benchmarks import results
from benchmarks.anchors import Anchor, anchors, npu_anchors

import micronpu
from micronpu.report.operations import together
from micronpu.targets.ethosu.accelerators import timing_of
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.costs import Estimated, estimated, npu_latency
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.vela.compiler import LayerEstimate, VelaProgram
from micronpu.targets.registry import find_target, options_for

FEATURES, FIGURES = "ethosu_features", "ethosu_latency"
FITTED: Mapping[str, tuple[str, ...]] = {"ra8p1": ("Sram", "OffChipFlash"), "imx93": ()}
"""Chips whose usual time of a call is fitted, and the memories, as Vela calls them, whose speed is fitted with it, by
one factor.  Of RA8P1's memories nothing is published; the DRAM of i.MX 93 is four fifths of what its bus has."""
FACTORS = tuple(exp(log(2) * step / 12) for step in range(-18, 19))
"""Of a bandwidth, against that of the chip's file."""
CALLS_US = (2, *range(5, 401, 5))
"""Microseconds; the start of a driver, an interrupt and a cache's maintenance take some."""
PORTS = {"AXI0 read": ("AXI0", "read"), "AXI0 write": ("AXI0", "written"), "AXI1 read": ("AXI1", "read")}
"""Counters of the hardware that are published, and what of the report they count."""

Key = tuple[str, str, str]
"""Network, target and memory mode."""


def key_of(anchor: Anchor) -> Key:
    return anchor.network, anchor.target, anchor.memory_mode


def options_of(key: Key) -> EthosUOptions:
    """What the network is compiled with: the chip's file as it is now, and Vela's own schedule."""
    _, target, memory_mode = key
    # Virtual platforms and later images of the boards have more SRAM than the chips' files.
    given = {"prefetch": False, "max_sram_bytes": 0} | ({"memory_mode": memory_mode} if memory_mode else {})
    spec: EthosUOptions = options_for(find_target(target), given=given)
    return spec


def compiled(anchor: Anchor) -> dict[str, Any]:
    """What an estimate needs of the programs of a network."""
    network, x = anchor.build()
    spec = options_of(key_of(anchor))
    program = micronpu.compile(network, (x,), anchor.target, options=spec, calibration=[(x,)], verify=False)
    parts = [p.program for p in program.partitions if isinstance(p, EthosUPartition)]
    return {
        "network": anchor.network,
        "target": anchor.target,
        "memory_mode": anchor.memory_mode,
        "parts": [
            {
                "commands": base64.b64encode(zlib.compress(p.commands, 9)).decode(),
                "places": list(p.places),
                "arithmetic": [layer.npu_cycles for layer in p.layers],
                "vela_cycles": p.cycles,
            }
            for p in parts
        ],
    }


@functools.cache
def stored() -> dict[Key, tuple[VelaProgram, ...]]:
    """The programs of each network, as far as an estimate needs them."""
    rows = results.read(FEATURES)
    return {(r["network"], r["target"], r["memory_mode"]): tuple(map(_program, r["parts"])) for r in rows}


def _program(part: Mapping[str, Any]) -> VelaProgram:
    layers = tuple(LayerEstimate("", "", -1, 0, 0, cycles) for cycles in part["arithmetic"])
    commands = zlib.decompress(base64.b64decode(part["commands"]))
    return VelaProgram(
        *(commands, b"", 0, 0, (), (), part["vela_cycles"], {}, layers, 0.0), places=tuple(part["places"])
    )


@functools.cache
def estimates(key: Key, factor: float = 1.0) -> tuple[Estimated, ...]:
    """Of each program, with another bandwidth of the memories that are fitted."""
    slower = {name: 1 / factor for name in FITTED.get(key[1], ())}
    return tuple(estimated(program, options_of(key), slower) for program in stored()[key])


def milliseconds(anchor: Anchor, factor: float, call_us: float) -> float:
    """With other constants."""
    assert anchor.clock_mhz is not None
    parts = estimates(key_of(anchor), factor)
    return sum(p.cycles for p in parts) / anchor.clock_mhz / 1000 + len(parts) * call_us / 1000


def fit(rows: Sequence[Anchor]) -> tuple[float, float]:
    """The factor and the time of a call with the smallest squares of the logarithms of errors."""
    factors = FACTORS if FITTED[rows[0].target] else (1.0,)

    def worth(constants: tuple[float, float]) -> float:
        return sum(log(milliseconds(row, *constants) / row.milliseconds) ** 2 for row in rows)

    return min(product(factors, CALLS_US), key=worth)


def used(target: str) -> list[Anchor]:
    """The anchors of a chip that a fit may see."""
    return [a for a in npu_anchors("ethos-u") if a.target == target and not a.left_out]


def entry(anchor: Anchor) -> dict[str, Any]:
    """A line of the table."""
    target = find_target(anchor.target)
    timing = timing_of(target.chip)
    parts = estimates(key_of(anchor))
    assert anchor.clock_mhz is not None
    latency = npu_latency([p.cycles for p in parts], anchor.clock_mhz, "", timing)
    estimate = sum(t.milliseconds for t in latency)
    low, high = (sum(t.band[end] for t in latency) for end in (0, 1))
    found = {
        "network": anchor.network,
        "target": anchor.target,
        "memory": anchor.memory,
        "published_ms": round(anchor.milliseconds, 4),
        "source": anchor.source,
        "vela_ms": round(sum(p.cycles for p in stored()[key_of(anchor)]) / anchor.clock_mhz / 1000, 4),
        "busy_ms": round(latency[0].milliseconds, 4),
        "predicted_ms": round(estimate, 4),
        "ratio": round(anchor.milliseconds / estimate, 3),
        "low_ms": round(low, 4),
        "high_ms": round(high, 4),
        "in_band": low <= anchor.milliseconds <= high,
        "left_out": anchor.left_out,
    }
    if not anchor.left_out:
        others = [a for a in used(anchor.target) if a is not anchor]
        unseen = milliseconds(anchor, *fit(others)) if anchor.target in FITTED else estimate
        found["leave_one_out"] = round(unseen / anchor.milliseconds - 1, 4)
    return found


def beats() -> list[dict[str, Any]]:
    """Published beats of the bus beside those that are counted of the stream."""
    rows = []
    for anchor in anchors():
        if anchor.kind != "beats" or key_of(anchor) not in stored():
            continue
        port, access = PORTS[anchor.counter]
        counted = getattr(together(p.bus for p in estimates(key_of(anchor)))[port], f"{access}_beats")
        rows.append(
            {
                "network": anchor.network,
                "target": anchor.target,
                "counter": anchor.counter,
                "published": round(anchor.figure),
                "counted": counted,
                "error": round(counted / anchor.figure - 1, 4),
                "note": anchor.left_out,
                "source": anchor.source,
            }
        )
    return rows


def figures() -> dict[str, Any]:
    """Everything that the pages show, from the stored streams."""
    table = [entry(anchor) for anchor in npu_anchors("ethos-u")]
    constants = {}
    for target in FITTED:
        factor, call = fit(used(target))
        constants[target] = {"bandwidth_factor": round(factor, 3), "call_us": call}
    unseen = [abs(float(t["leave_one_out"])) for t in table if "leave_one_out" in t]
    summary = {"rows": len(unseen), "mean_absolute": round(float(np.mean(unseen)), 4), "worst": round(max(unseen), 4)}
    return {"fitted": constants, "leave_one_out": summary, "anchors": table, "beats": beats()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", nargs="*", metavar="TARGET", help="compile the networks anew, of these targets")
    if (targets := parser.parse_args().compile) is not None:
        wanted = {key_of(anchor): anchor for anchor in npu_anchors("ethos-u")}
        for key, anchor in wanted.items():
            if not targets or anchor.target in targets:
                kept = results.read(FEATURES) if results.is_there(FEATURES) else []
                rows = [r for r in kept if (r["network"], r["target"], r["memory_mode"]) in wanted.keys() - {key}]
                results.write(FEATURES, f"python -m benchmarks.{FIGURES} --compile", [*rows, compiled(anchor)])
    found = figures()
    for row in (*found["anchors"], *found["beats"]):
        print({k: v for k, v in row.items() if k not in ("source", "memory")}, flush=True)
    print(f"fitted, against the chips' files: {found['fitted']}; leave-one-out: {found['leave_one_out']}")
    results.write(FIGURES, f"python -m benchmarks.{FIGURES}", found)


if __name__ == "__main__":
    main()
