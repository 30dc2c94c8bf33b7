"""The tables of `docs/` that are made of `benchmarks/results/*.json`.

    python -m benchmarks.pages           # writes them anew
    python -m benchmarks.pages --check   # says which are not what the files say; exit code 1

A table stands between `<!-- NAME: made by ... -->` and `<!-- end of NAME -->`; the rest of a page is written by hand.
One whose figures have no file yet stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results

DOCS = Path(__file__).parents[1] / "docs"
MOST_STEPS = 4


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join((first, "|" + "---|" * len(head), *others))


def _score(row: dict[str, Any], value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} %" if row["metric"] == "accuracy %" else f"{value:.4f}"


def accuracy(figures: Any) -> str:
    """Scores of trained networks beside float and beside the reference int8 files."""
    head = ("network", "rows", "on the NPU", "partitions", "`.pte` bytes", "float", "int8", "loss", "reference int8")
    return table(
        head,
        [
            (
                row["network"] if row["metric"] == "accuracy %" else f"{row['network']} (AUC)",
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


def steps(figures: Any) -> str:
    """Distance to the `convert_pt2e` model."""
    head = ("network", *map(str, range(MOST_STEPS)), f"{MOST_STEPS} or more", "most", "same class")
    return table(
        head,
        [
            (
                row["network"],
                *(f"{share:.2f} %" if share else "0" for share in row["steps_percent"]),
                str(row["most_steps"]),
                "" if row["same_class"] is None else f"{row['same_class']:.2f} %",
            )
            for row in figures
        ],
    )


def exactness(figures: Any) -> str:
    """Rows that are the same in every bit."""
    ways = ("interpreter", "litert")
    return table(
        ("network", "reference interpreter", "LiteRT's reference kernels"),
        [(row["network"], *(f"{row[f'{w}_equal']} of {row[f'{w}_rows']}" for w in ways)) for row in figures],
    )


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


def ethosu_latency(figures: Any) -> str:
    """Vela's estimate beside what is published."""

    def row(a: dict[str, Any]) -> list[str]:
        times = [f"{a['published_ms']:g}", f"{a['predicted_ms']:.3f}", f"{a['ratio']:.2f}"]
        return [a["network"], f"`{a['target']}`", *times, a["source"]]

    head = ("network", "chip", "published ms", "estimated", "published / estimated", "source")
    return table(head, map(row, figures["anchors"]))


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


def memory_plans(figures: Any) -> str:
    """Planned bytes beside the bound and beside ExecuTorch's planner."""

    def row(r: dict[str, Any]) -> list[str]:
        sizes = [f"{r['planned']:,}", f"{r['bound']:,}", f"{r['planned'] / r['bound']:.3f}", f"{r['greedy']:,}"]
        return [f"`{r['network']}`", str(r["tensors"]), *sizes, f"{r['seconds']:.2f}"]

    head = ("network", "tensors", "planned", "bound", "planned / bound", "greedy", "seconds")
    return table(head, map(row, figures))


def sparsity(figures: Any) -> str:
    """Points of networks on the way to sparse weights."""

    def rows() -> Iterable[list[str]]:
        for found in figures:
            dense = found["points"][0]["cycles"]
            name = found["network"] + (f" (float {found['float_accuracy']:.2f} %)" if "rows" in found else "")
            for point in found["points"]:
                score = f"{point['int8_accuracy']:.2f} %" if "int8_accuracy" in point else "untrained"
                agreement = f"{point['agreement']:.1%}" if "agreement" in point else ""
                cycles, layers = f"{point['cycles']:,}", str(point["sparse_layers"])
                yield [name, layers, cycles, f"{point['cycles'] / dense:.2f}", f"{point['bytes']:,}", agreement, score]
                name = ""
            if "train" in found:
                more = found["train"]
                part, score = f"{more['cycles'] / dense:.2f}", f"{more['int8_accuracy']:.2f} %"
                yield ["with `train=`", "", f"{more['cycles']:,}", part, "", "", score]

    return table(("network", "sparse layers", "cycles", "of dense", "bytes", "agreement", "int8"), rows())


def _peer(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['delegated']}/{row['nodes']}", str(row["partitions"])


TABLES: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "accuracy": ("figures.md", "accuracy", accuracy),
    "steps": ("figures.md", "accuracy", steps),
    "exactness": ("figures.md", "exactness", exactness),
    "neutron_latency": ("figures.md", "neutron_latency", neutron_latency),
    "ethosu_latency": ("figures.md", "ethosu_latency", ethosu_latency),
    "cortexm_latency": ("figures.md", "cortexm_latency", cortexm_latency),
    "memory_plans": ("figures.md", "memory_plans", memory_plans),
    "coverage": ("coverage.md", "coverage", coverage),
    "coverage_check": ("coverage.md", "coverage_check", coverage_check),
    "sparsity": ("sparsity.md", "sparsity", sparsity),
}
"""Name of a table: its page, the file that it is made of, and what makes it."""


def made(page: str) -> str:
    """The text of a page with its tables made anew.

    Raises:
        ValueError: a table has no place in it.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, (where, file, make) in TABLES.items():
        if where != page or not results.is_there(file):
            continue
        begin, end = f"<!-- {name}: made by `python -m benchmarks.pages` -->", f"<!-- end of {name} -->"
        content = f"{begin}\n\n{make(results.read(file))}\n\n{end}"
        parts = re.split(f"{re.escape(begin)}.*?{re.escape(end)}", text, flags=re.DOTALL)
        if len(parts) != 2:
            raise ValueError(f"{page} has {len(parts) - 1} places for the table {name}: `{begin}` to `{end}`.")
        text = content.join(parts)
    return text


def main() -> None:
    """Writes the pages, or compares them."""
    stale = []
    for page in dict.fromkeys(where for where, _, _ in TABLES.values()):
        text, path = made(page), DOCS / page
        if path.read_text(encoding="utf-8") != text:
            stale.append(page)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"Not what benchmarks/results says: {', '.join(stale)}. Try: python -m benchmarks.pages.")


if __name__ == "__main__":
    main()
