"""Cycles of Ethos-U programs with their weights brought ahead, beside Vela's own schedule and what the chip allows.

    python -m benchmarks.ethosu_schedule
    python -m benchmarks.ethosu_schedule --networks mbv2_224 --targets alif-e7
    python -m benchmarks.ethosu_schedule --picture docs/schedule.svg

Both are of one compilation each: the streams of Vela's schedule and of ours are made of the same answer of Vela.
`arithmetic` is what the operations take with the weights in the better of the two memories, `reading` the constants
once from where they are stored; the larger is the least that a schedule can take. Where constants and tensors share a
memory, nothing can come ahead. Needs the data folder for the trained networks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from benchmarks import results
from benchmarks.peers.ethosu import TRAINED, network

import micronpu
from micronpu.targets.ethosu.accelerators import ports_of
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.schedule.operations import CONSTANTS, Timed
from micronpu.targets.ethosu.schedule.prefetch import analysed
from micronpu.targets.ethosu.stream import actions_of
from micronpu.targets.registry import find_target, options_for

_TRAINED = ("resnet8", "resnet20", "cifarnet", "dscnn", "mobilenetv1", "autoencoder", "wake_word", "dscnn_folded")
NETWORKS = (*(TRAINED + name for name in _TRAINED), "mbv1_025_96", "ae", "chain100", "mbv2_224")
TARGETS = ("corstone300", "alif-e7", "ra8p1", "alif-e8", "imx93-m33")
_SAMPLES = 2
Row = dict[str, Any]


def compiled(name: str, target: str, **options: Any) -> list[EthosUPartition]:
    """The partitions of a network that the NPU computes."""
    module, example, calibration = network(name, _SAMPLES)
    chosen = options_for(find_target(target), given=options) if options else None
    program = micronpu.compile(module, example, target, calibration=calibration, verify=False, options=chosen)
    return [part for part in program.partitions if isinstance(part, EthosUPartition)]


def measure(name: str, target: str) -> Row:
    """One network on one chip, all of its partitions together."""
    row: Row = {"network": name, "target": target}
    row |= dict.fromkeys(("vela", "ahead", "arithmetic", "reading", "scratch_vela", "scratch", "brought", "split"), 0)
    for part in compiled(name, target):
        program, prefetch, memories = part.program, part.prefetch, part.spec.memories
        row["ahead"] += program.cycles
        row["vela"] += prefetch.cycles if prefetch is not None else program.cycles
        row["scratch"] = max(row["scratch"], program.scratch_size)
        row["scratch_vela"] = max(row["scratch_vela"], program.scratch_size - (prefetch.scratch if prefetch else 0))
        row["brought"] += prefetch.size if prefetch is not None else 0
        row["split"] += part.rewrites.get("split_channels", 0)
        spec = part.spec
        stored = ports_of(spec.ini, spec.system_config, spec.memory_mode, spec.accelerator)[CONSTANTS]
        row["reading"] += math.ceil(len(program.constants) / stored.rate)
        layers = program.layers
        row["arithmetic"] += sum(n.npu_cycles if memories is None else n.work.least(memories) for n in layers)
    return row


def mean(values: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows: Sequence[Row]) -> Row:
    """Geometric means of all rows."""
    bound = [max(row["arithmetic"], row["reading"], 1) for row in rows]
    return {
        "ahead_of_vela": mean([row["ahead"] / row["vela"] for row in rows]),
        "vela_of_bound": mean([row["vela"] / least for row, least in zip(rows, bound, strict=True)]),
        "ahead_of_bound": mean([row["ahead"] / least for row, least in zip(rows, bound, strict=True)]),
    }


_WIDTH, _HEIGHT, _GAP = 1000, 26, 8
_COLOURS = {"kernel": "#3b6ea5", "direct": "#c0504d", "transfer": "#7f9f3f"}


def picture(name: str, target: str) -> str:
    """Both engines over time before and after, as SVG."""
    (usual,), (vela,) = compiled(name, target), compiled(name, target, prefetch=False)
    lanes: list[tuple[str, EthosUPartition, Timed]] = []
    for label, part in (("Vela", vela), ("ahead", usual)):
        memories = part.spec.memories
        if memories is None:
            raise SystemExit(f"{target} keeps constants and tensors in the same memory.")
        lanes.append((label, part, analysed(part.program, part.spec.accelerator.family, memories).before))
    longest = max(time.cycles for _, _, time in lanes)
    parts, y = [], 30
    for label, part, time in lanes:
        text = f"{label}: {time.cycles:,} cycles"
        parts.append(f'<text x="0" y="{y - 6}" font-size="14">{text}</text>')
        actions = [action for action in actions_of(part.program.commands) if action.is_operation]
        for action, (begin, end) in zip(actions, time.spans, strict=True):
            stored = action.code in (2, 3) and not action.number(0x128)
            kind = "transfer" if action.is_transfer else "direct" if stored else "kernel"
            x, width = begin / longest * _WIDTH, max((end - begin) / longest * _WIDTH, 0.3)
            top = y + (_HEIGHT + 4 if action.is_transfer else 0)
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT}" fill="{_COLOURS[kind]}" '
                'stroke="white" stroke-width="0.3"/>'
            )
        y += 2 * _HEIGHT + 4 + _GAP + 24
    legend = (("kernel", "computes"), ("direct", "computes and reads weights from flash"), ("transfer", "transfers"))
    for i, (kind, text) in enumerate(legend):
        parts.append(f'<rect x="{i * 300}" y="{y - 14}" width="14" height="14" fill="{_COLOURS[kind]}"/>')
        parts.append(f'<text x="{i * 300 + 20}" y="{y - 2}" font-size="13">{text}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 10}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--picture", help="write the picture of the first network on the first target there")
    arguments = parser.parse_args()
    if arguments.picture:
        with open(arguments.picture, "w", encoding="utf-8") as file:
            file.write(picture(arguments.networks[0], arguments.targets[0]))
        return
    rows = []
    for name in arguments.networks:
        for target in arguments.targets:
            rows.append(measure(name, target))
            row = rows[-1]
            least = max(row["arithmetic"], row["reading"])
            print(
                f"{name:22} {target:12} {row['vela']:>10,} -> {row['ahead']:>10,} ({row['ahead'] / row['vela']:.2f})  "
                f"least {least:>10,}  scratch {row['scratch_vela']:>9,} -> {row['scratch']:>9,}",
                flush=True,
            )
    print({key: round(value, 3) for key, value in summary(rows).items()})
    if arguments.networks == list(NETWORKS) and arguments.targets == list(TARGETS):
        results.write("ethosu_schedule", "python -m benchmarks.ethosu_schedule", {"rows": rows, **summary(rows)})


if __name__ == "__main__":
    main()
