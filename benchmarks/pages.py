"""The tables of `docs/` that are made of `benchmarks/results/*.json`.

    python -m benchmarks.pages           # writes them anew
    python -m benchmarks.pages --check   # says which are not what the files say; exit code 1

A table stands between `<!-- NAME: made by ... -->` and `<!-- end of NAME -->`; the rest of a page is written by hand.
One whose figures have no file yet stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.results import table
from benchmarks.zoo import tables as zoo

DOCS = Path(__file__).parents[1] / "docs"
MOST_STEPS = 4
PORTION = 64
_NAMES = {
    "resnet8": "ResNet8",
    "resnet20": "ResNet-20",
    "cifarnet": "CifarNet",
    "dscnn_folded": "DS-CNN, folded",
    "dscnn": "DS-CNN with BatchNorm",
    "mobilenetv1": "MobileNetV1 0.25",
    "mobilenetv1_025": "MobileNetV1 0.25",
    "mobilenetv2": "MobileNetV2-224",
    "mobilenet_v2": "MobileNetV2-224",
    "mobilenet_v3": "MobileNetV3-like",
    "vit": "vision transformer",
    "mbv1_025_96": "MobileNetV1-0.25-96",
    "mbv2_224": "MobileNetV2-224",
    "ae": "autoencoder, random weights",
    "chain100": "100 convolution blocks",
    "chain400": "400 convolution blocks",
    "autoencoder_litert": "autoencoder without nine biases",
    "wake_word": "wake word",
}
"""What readers call the networks of the scripts."""


@dataclass(frozen=True)
class Table:
    """A table of figures.

    Attributes:
        page: where it stands, in `docs/`.
        files: what it is made of, in `benchmarks/results/`.
        make: what makes it of their contents.
    """

    page: str
    files: tuple[str, ...]
    make: Callable[..., str]


TABLES: dict[str, Table] = {}
"""By name, which is that of the function that makes it."""


def on(page: str, *files: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Registers what makes a table of a page, of the file of its own name unless others are given."""

    def register(make: Callable[..., str]) -> Callable[..., str]:
        TABLES[make.__name__] = Table(page, files or (make.__name__,), make)
        return make

    return register


def _name(network: str) -> str:
    return _NAMES.get(network, network)


def _score(row: dict[str, Any], value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} %" if row["metric"] == "accuracy %" else f"{value:.4f}"


@on("figures.md")
def accuracy(figures: Any) -> str:
    """Scores of trained networks beside float and beside the reference int8 files."""
    head = ("network", "rows", "on the NPU", "partitions", "`.pte` bytes", "float", "int8", "loss", "reference int8")
    return table(
        head,
        [
            (
                _name(row["network"]) + ("" if row["metric"] == "accuracy %" else " (AUC)"),
                str(row["rows"]),
                f"{row['delegated']}/{row['operators']}",
                str(row["partitions"]),
                f"{row['pte_bytes']:,}",
                _score(row, row["float"]),
                _score(row, row["int8"]),
                f"{row['loss']:.{2 if row['metric'] == 'accuracy %' else 4}f}",
                _score(row, row["reference"]),
            )
            for row in figures
        ],
    )


@on("schedule.md")
def ethosu_schedule(figures: Any) -> str:
    """Vela's schedule and ours, network by network and chip by chip."""
    head = ("network", "chip", "Vela", "ahead", "part", "least", "scratch, Vela", "scratch, ahead")
    rows = [
        (
            _name(row["network"].removeprefix("trained:")),
            row["target"],
            *(f"{row[key]:,}" for key in ("vela", "ahead")),
            f"{row['ahead'] / row['vela']:.2f}",
            f"{max(row['arithmetic'], row['reading']):,}",
            *(f"{row[key]:,}" for key in ("scratch_vela", "scratch")),
        )
        for row in figures["rows"]
    ]
    means = (
        f"Geometric means: {figures['ahead_of_vela']:.2f} of Vela's cycles; {figures['ahead_of_bound']:.2f} of the "
        f"least, where Vela's schedule takes {figures['vela_of_bound']:.2f}."
    )
    return f"{table(head, rows)}\n\n{means}"


@on("figures.md", "accuracy")
def steps(figures: Any) -> str:
    """Distance to the `convert_pt2e` model."""
    head = ("network", *map(str, range(MOST_STEPS)), f"{MOST_STEPS} or more", "most", "same class")
    return table(
        head,
        [
            (
                _name(row["network"]),
                *(f"{share:.2f} %" if share else "0" for share in row["steps_percent"]),
                str(row["most_steps"]),
                "" if row["same_class"] is None else f"{row['same_class']:.2f} %",
            )
            for row in figures
        ],
    )


@on("figures.md")
def exactness(figures: Any) -> str:
    """Rows that are the same in every bit."""
    ways = ("interpreter", "litert")
    return table(
        ("network", "reference interpreter", "LiteRT's reference kernels"),
        [(_name(row["network"]), *(f"{row[f'{w}_equal']} of {row[f'{w}_rows']}" for w in ways)) for row in figures],
    )


@on("figures.md")
def neutron_latency(figures: Any) -> str:
    """The model of latency beside what is published."""
    return table(
        ("network", "chip", "published ms", "predicted", "error", "left out", "source"),
        [
            (
                a["network"],
                f"`{a['target']}`",
                f"{a['published_ms']:g}",
                f"{a['predicted_ms']:.3f}",
                f"{a['error']:+.1%}",
                f"left out: {a['left_out']}" if a["left_out"] else f"{a['leave_one_out']:+.1%}",
                a["source"],
            )
            for a in figures["anchors"]
        ],
    )


@on("coverage.md")
def coverage(figures: Any) -> str:
    """How much of common networks is on the NPU."""
    return table(
        ("network", "operators on the NPU / all", "partitions", "peer: on the NPU / all", "peer: partitions"),
        [
            (
                f"`{row['network']}`",
                f"{row['delegated']}/{row['operators']}",
                str(row["partitions"]),
                *(_peer(row["peer"]) if "delegated" in row.get("peer", ()) else ("not measured", "")),
            )
            for row in figures
            if "error" not in row
        ],
    )


@on("coverage.md")
def coverage_ethosu(figures: Any) -> str:
    """The same on Ethos-U, with Vela's cycles and what the programs compute."""
    targets = list(dict.fromkeys(row["target"] for row in figures))
    found = {(row["network"], row["target"]): row for row in figures}

    def cells(network: str, target: str) -> Iterable[str]:
        row = found.get((network, target))
        if row is None:
            return ("not measured", "", "", "")
        share = f"{row['delegated']}/{row['operators']}"
        sqnr = f"{row['sqnr']['program']:.1f} / {row['sqnr']['eager']:.1f}"
        return share, str(row["partitions"]), f"{row['cycles'] / 1e6:.2f}", sqnr

    short = [target.removeprefix("ethos-").split("-")[0].upper() for target in targets]
    head = [f"{t}: {what}" for t in short for what in ("on the NPU / all", "partitions", "cycles", "SQNR")]
    names = dict.fromkeys(row["network"] for row in figures)
    return table(("network", *head), [(f"`{n}`", *(cell for t in targets for cell in cells(n, t))) for n in names])


@on("coverage.md")
def coverage_check(figures: Any) -> str:
    """What is decided about many networks, and what was compiled."""
    targets = list(dict.fromkeys(target for row in figures for target in row["targets"]))

    def cell(found: dict[str, Any] | None) -> str:
        if found is None:
            return "not tried"
        if "error" in found:
            return f"refused: {found['error'].split('. ')[0]}"
        left = ", ".join(f"{count} x {name}" for name, count in found["host"].items())
        return f"{found['partitions']}{f', host: {left}' if left else ''} ({found.get('how', 'decided')})"

    return table(
        ("network", "input", "operators", *(f"`{target}`" for target in targets)),
        [
            (
                f"`{row['network']}`",
                ", ".join("x".join(map(str, shape)) for shape in row["inputs"]),
                str(row.get("operators", "")),
                *(cell(row["targets"].get(target)) for target in targets),
            )
            for row in figures
        ],
    )


@on("figures.md")
def ethosu_latency(figures: Any) -> str:
    """Vela's estimate beside what is published."""

    def row(a: dict[str, Any]) -> list[str]:
        times = [f"{a['published_ms']:.3g}", f"{a['predicted_ms']:.3g}", f"{a['low_ms']:.3g} to {a['high_ms']:.3g}"]
        unseen = f"left out: {a['left_out']}" if a["left_out"] else f"{a['leave_one_out']:+.0%}"
        return [a["network"], f"`{a['target']}`", a["memory"], *times, unseen, a["source"]]

    head = ("network", "chip", "memory", "published ms", "estimated", "band", "error", "source")
    return table(head, map(row, figures["anchors"]))


@on("figures.md", "ethosu_latency")
def ethosu_beats(figures: Any) -> str:
    """Beats of the bus that are published beside those of the stream."""
    rows = [
        [
            b["network"],
            f"`{b['target']}`",
            b["counter"],
            f"{b['published']:,}",
            f"{b['counted']:,}",
            f"{b['error']:+.1%}",
        ]
        for b in figures["beats"]
    ]
    return table(("network", "chip", "counter", "published", "counted", "off"), rows)


@on("figures.md")
def cortexm_latency(figures: Any) -> str:
    """The estimate for a core beside counts and what is published."""

    def row(a: dict[str, Any]) -> list[str]:
        cycles = [f"{a['cycles']:,.0f}", f"{a['predicted']:,}", f"{a['error']:+.1%}"]
        unseen = f"{a['leave_one_out']:+.1%}" if "leave_one_out" in a else ""
        why = f" (left out: {a['left_out']})" if a["left_out"] else ""
        return [a["network"], f"`{a['core']}`", *cycles, unseen, a["source"] + why]

    return table(
        ("network", "core", "cycles", "estimated", "error", "left out", "source"), map(row, figures["anchors"])
    )


@on("virtual-board.md", "board")
def board(figures: Any) -> str:
    """Programs in Arm's own runners."""
    kinds = {"networks": "networks", "random": "random networks", "operators": "single operators"}
    rows = [
        (
            f"{r['board']}, {r['npu']}",
            kinds[r["kind"]],
            str(r["ran"]),
            f"{r['elements']:,}",
            str(r["differing"]),
            f"{r['median_start_seconds']:.2f} s",
            f"{r['median_later_seconds']:.2f} s",
        )
        for r in figures["totals"]
        if r["ran"]
    ]
    head = ("board", "what", "programs", "elements compared", "differ", "start and first vector", "further vector")
    found = figures["damaged"]
    streams = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
    return f"{table(head, rows)}\n\nOf {sum(found.values())} command streams with a bit turned over: {streams}."


@on("sparsity.md")
def sparsity(figures: Any) -> str:
    """Points of networks on the way to sparse weights, and the chosen one with other seeds."""

    def row(name: str, point: Any, dense: int, score: str) -> list[str]:
        costs = [f"{point['cycles']:,}", f"{point['cycles'] / dense:.2f}", f"{point['bytes']:,}"]
        same = f"{point['as_float']:.1f} %" if "as_float" in point else ""
        return [name, str(point["sparse_layers"]), *costs, same, score]

    def judged(point: Any) -> tuple[str, str, str]:
        names = ", ".join(f"`{name}`" for name in point.get("corrections", ())) or "none"
        plain = f"{point['uncorrected_accuracy']:.2f} %" if "uncorrected_accuracy" in point else ""
        return f"{point['int8_accuracy']:.2f} %", names, plain

    def rows() -> Iterable[list[str]]:
        for found in figures:
            dense = found["points"][0]["cycles"]
            name = _name(found["network"]) + (f" (float {found['float_accuracy']:.2f} %)" if "rows" in found else "")
            for point in found["points"]:
                score, names, plain = judged(point) if "rows" in found else ("untrained", "", "")
                yield [*row(name, point, dense, score), plain, names]
                name = ""
            for other in found.get("seeds", ()):
                point = other["points"][other["chosen"]]
                score, names, plain = judged(point)
                yield [*row(f"seed {other['seed']}", point, dense, score), plain, names]
            if "train" in found:
                more = found["train"]
                part, score = f"{more['cycles'] / dense:.2f}", f"{more['int8_accuracy']:.2f} %"
                yield ["with `train=`", "", f"{more['cycles']:,}", part, "", "", score, "", ""]

    costs = ("network", "sparse layers", "cycles", "of dense", "bytes", "class as float")
    return table((*costs, "int8", "int8, not corrected", "corrections chosen"), rows())


@on("sparsity.md")
def compress(figures: Any) -> str:
    """Weights of fewer bits: bytes, cycles, and answers as in float."""

    def rows() -> Iterable[list[str]]:
        for found in figures:
            name, first = _name(found["network"]), found["grids"][0]["bytes"]
            for grid in found["grids"]:
                less = f" (-{1 - grid['bytes'] / first:.0%})" if grid["bytes"] < first else ""
                shares = [f"{grid[key]:.1f} %" for key in ("same", "corrected_same", "corrected_accuracy")]
                yield [name, str(grid["bits"]), f"{grid['bytes']:,}{less}", f"{grid['cycles']:,}", *shares]
                name = ""

    costs = ("network", "bits", "bytes", "cycles")
    return table((*costs, "same class as float", "the same, corrected", "accuracy, corrected"), rows())


def _peer(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['delegated']}/{row['nodes']}", str(row["partitions"])


@on("figures.md")
def time(figures: Any) -> str:
    """Steps of a compilation for Neutron, beside the peer's total."""
    steps = ("export", "quantize", "partition", "compile", "lower", "verify")

    def row(found: dict[str, Any]) -> list[str]:
        own, peer = found["micronpu"], found["peer"]
        times = [f"{own['seconds'].get(step, 0.0):.2f}" for step in (*steps, "total")]
        memory = [str(side["peak_rss_mib"]) for side in (own, peer)]
        return [_name(found["network"]), *times, f"{peer['seconds']['total']:.2f}", f"{found['ratio']:.2f}", *memory]

    return table(("network", *steps, "total", "peer", "ratio", "MiB", "peer MiB"), map(row, figures))


@on("figures.md")
def growth(figures: Any) -> str:
    """The largest size of each network that was grown, with the exponents of its steps."""

    def row(found: dict[str, Any]) -> list[str]:
        steps = ", ".join(f"{step} {power:.2f}" for step, power in found["steps"].items())
        whole = (f"{found['operators']:,}", f"{found['cpu_seconds']:.1f}", f"{found['exponent']:.2f}", steps)
        return [found["network"], f"`{found['target']}`", *whole]

    head = ("network", "target", "operators", "CPU s", "exponent", "exponent of each step")
    return table(head, map(row, figures["growth"]))


@on("figures.md")
def again(figures: Any) -> str:
    """Seconds without the cache, with an empty one, and with one that knows the network."""

    def row(found: dict[str, Any]) -> list[str]:
        runs = {run["run"]: run for run in found["runs"]}
        cells = [f"{run['cpu_seconds']:.2f}" for run in runs.values()]
        return [f"`{found['what']}` of {_name(found['network'].removeprefix('trained:'))}", *cells]

    runs = [run["run"] for run in figures[0]["runs"]]
    return table(("", *runs), map(row, figures))


@on("methods.md")
def language_model(figures: Any) -> str:
    """A language model by size, chip and precision: what a token takes, how well it is told, and its compilation."""

    def row(found: dict[str, Any]) -> list[str]:
        step, told = found["decode"], found.get("perplexity")
        name = f"{found['size']}, {found['precision']}, `{found['target']}`"
        if "prefill" in found:
            times = PORTION * step["cycles"] / found["prefill"]["cycles"]
            name += f", and {PORTION} tokens at once in {found['prefill']['cycles']:,} cycles, {times:.1f} times faster"
        return [
            name,
            f"{step['on_npu']} of {step['operators']}",
            f"{step['cycles']:,}",
            f"{1000 / step['milliseconds']:,.0f}",
            f"{told['here']:.2f} ({told['here'] / told['float'] - 1:+.1%})" if told else "",
            f"{found['bytes']:,}",
            f"{found['cpu_seconds']:.1f}",
            str(found["peak_rss_mib"]),
        ]

    head = ("model", "on the NPU", "cycles", "tokens/s", "perplexity (float)", "bytes", "compile, CPU s", "MiB")
    return table(head, map(row, figures))


@on("figures.md")
def ethosu_trained(figures: Any) -> str:
    """Accuracy and cycles of trained networks, a line per network."""
    cells = {(r["network"], r["target"], r["activations"]): r for r in figures}
    targets = list(dict.fromkeys(r["target"] for r in figures))

    def row(name: str) -> list[str]:
        mine = [cells[name, target, wide] for target in targets for wide in ("int8", "int16")]
        scores = [_score(mine[0], value) for value in (mine[0]["float_score"], mine[0]["score"], mine[1]["score"])]
        title = _name(name) + (" (AUC)" if mine[0]["metric"] == "AUC" else "")
        slowest = max(r["milliseconds"] for r in mine[::2])
        return [title, *scores, *(f"{r['cycles']:,}" for r in mine), f"{slowest:.1f}"]

    names = [f"{target.removeprefix('ethos-').upper()} {wide}" for target in targets for wide in ("int8", "int16")]
    head = ("network", "float", "int8", "int16", *names, "ms, int8")
    return table(head, map(row, dict.fromkeys(r["network"] for r in figures)))


def _beside_peer(figures: Any) -> Iterable[tuple[str, list[tuple[dict[str, Any], dict[str, Any]]]]]:
    """Networks, each with both sides' rows on every target."""
    for name in dict.fromkeys(found["micronpu"]["network"] for found in figures):
        mine = [found for found in figures if found["micronpu"]["network"] == name]
        yield _name(name.removeprefix("trained:")), [(found["micronpu"], found["peer"]) for found in mine]


@on("figures.md", "ethosu_networks")
def ethosu_cycles(figures: Any) -> str:
    """Vela's cycles of both sides on both accelerators, and what the peer leaves to the core."""

    def row(name: str, sides: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
        cells = [name]
        for own, peer in sides:
            left = f", {peer['compute'] - peer['delegated']} operators on the core" if peer["host"] else ""
            cells += [f"{own['cycles']:,}", f"{peer['cycles']:,}{left}"]
        return cells

    targets = [own["target"].removeprefix("ethos-").upper() for own, _ in next(iter(_beside_peer(figures)))[1]]
    head = ("network", *(cell for target in targets for cell in (target, "peer")))
    return table(head, (row(*found) for found in _beside_peer(figures)))


@on("figures.md", "ethosu_networks")
def ethosu_time(figures: Any) -> str:
    """Processor time, peak memory and bytes of both sides."""

    def rows() -> Iterable[list[str]]:
        for name, sides in _beside_peer(figures):
            for own, peer in sides:
                cells = [name, own["target"].removeprefix("ethos-").upper()]
                for key, form in (("cpu_seconds", ".2f"), ("peak_rss_mib", ",d"), ("pte_bytes", ",d")):
                    cells += [format(own[key], form), format(peer[key], form), f"{own[key] / peer[key]:.2f}"]
                yield cells

    sides = ("peer", "ratio")
    return table(("network", "accelerator", "CPU s", *sides, "MiB", *sides, "`.pte` bytes", *sides), rows())


@on("figures.md")
def ethosu_operators(figures: Any) -> str:
    """Modules of one operator that are whole on the NPU, and those that are not."""

    def row(name: str, found: dict[str, Any]) -> list[str]:
        whole = f"{found['whole']} of {found['modules']}"
        peer = "" if found["peer_whole"] is None else str(found["peer_whole"])
        return [f"`{name}`", whole, peer, f"{found['streams']} of {found['partitions']}", ", ".join(found["others"])]

    head = ("", "whole on the NPU", "peer", "streams that agree with their graphs", "not whole")
    return table(head, (row(name, found) for name, found in figures.items()))


@on("ethosu-simulator.md")
def ethosu_streams(figures: Any) -> str:
    """Streams beside graphs, a line per accelerator."""

    def row(target: str) -> list[str]:
        mine = [r for r in figures if r["target"] == target]
        sums = (sum(r[key] for r in mine) for key in ("rows", "values", "different"))
        return [f"`{target}`", str(len(mine)), *(f"{n:,}" for n in sums)]

    head = ("accelerator", "programs", "rows", "values", "different")
    return table(head, map(row, dict.fromkeys(r["target"] for r in figures)))


@on("figures.md")
def combined(figures: Any) -> str:
    """Networks with operators for the core in between, a line per network and chain."""

    def row(r: dict[str, Any]) -> list[str]:
        digits = 4 if r["network"] == "autoencoder" else 2
        counts = [str(r[key]) for key in ("on_npu", "on_core", "float_operators", "requantizing_pairs")]
        scores = [f"{r[key]:.{digits}f}" for key in ("float", "int8")]
        return [_name(r["network"]), r["chain"], *scores, *counts, f"{r['rows_equal']} of {r['rows']}"]

    head = ("network", "chain", "float", "int8", "on the NPU", "on the core", "in float", "dq/q pairs", "rows equal")
    return table(head, map(row, figures))


@on("recipes.md", "qat_4_bits", "qat_5_bits_per_tensor", "qat_4_bits_per_tensor")
def qat(*found: Any) -> str:
    """Weights of few bits, after training and in training."""

    def row(r: dict[str, Any]) -> list[str]:
        weights = f"{r['weight_bits']} bits, per {'channel' if r['per_channel'] else 'tensor'}, {r['epochs']} epochs"
        kinds = ("float_accuracy", "ptq_accuracy", "corrected_accuracy", "qat_accuracy")
        scores = [f"{r[kind]:.1f} %" if kind in r else "" for kind in kinds]
        return [
            weights,
            *scores,
            f"{r['regained']:.0%}" if r["regained"] > 0 else "none",
            f"{r['train_seconds']:.0f} s",
        ]

    return table(("weights", "float", "PTQ", "PTQ, corrected", "QAT", "QAT regains", "training"), map(row, found))


TABLES |= {name: Table("zoo.md", ("zoo",), make) for name, make in zoo.TABLES.items()}


def made(page: str) -> str:
    """The text of a page with its tables made anew.

    Raises:
        ValueError: a table has no place in it.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, made_of in TABLES.items():
        if made_of.page != page or not all(map(results.is_there, made_of.files)):
            continue
        begin, end = f"<!-- {name}: made by `python -m benchmarks.pages` -->", f"<!-- end of {name} -->"
        content = f"{begin}\n\n{made_of.make(*map(results.read, made_of.files))}\n\n{end}"
        parts = re.split(f"{re.escape(begin)}.*?{re.escape(end)}", text, flags=re.DOTALL)
        if len(parts) != 2:
            raise ValueError(f"{page} has {len(parts) - 1} places for the table {name}: `{begin}` to `{end}`.")
        text = content.join(parts)
    return text


def main() -> None:
    """Writes the pages, or compares them."""
    stale = []
    for page in dict.fromkeys(found.page for found in TABLES.values()):
        text, path = made(page), DOCS / page
        if path.read_text(encoding="utf-8") != text:
            stale.append(page)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"Not what benchmarks/results says: {', '.join(stale)}. Try: python -m benchmarks.pages.")


if __name__ == "__main__":
    main()
