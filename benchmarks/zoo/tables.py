"""The tables of docs/zoo.md, of the rows of `benchmarks/results/zoo.json` and of the registry."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

from benchmarks.results import table
from benchmarks.zoo.network import Network, registry
from benchmarks.zoo.packages import PACKAGES, Package

Figures = dict[str, Any]
NOT_RUN = "not run"
NEAR_DB = 1.5
"""Distance up to which a report's figure counts as the true one, in dB."""


def cell(rows: Iterable[Figures], **which: str) -> Figures | None:
    """The row of a network, target and precision."""
    return next((r for r in rows if all(r[k] == v for k, v in which.items())), None)


def _metric(row: Figures | None) -> str:
    if row is None:
        return NOT_RUN
    if "metric" not in row:
        return "error"
    return f"**{row['metric']:.3f}**" if row["good"] else f"{row['metric']:.3f}"


def _decibels(values: Iterable[float | None]) -> str:
    return "/".join("equal" if v is None else f"{v:.1f}" for v in values)


def claim(row: Figures) -> tuple[float, float, float, float] | None:
    """The report's figure for its worst output, that output's true figure, and the interval, in dB."""
    claims = [(v[0], k, v) for k, v in enumerate((row.get("report") or {}).get("outputs", ())) if v[0] is not None]
    if not claims or "dB" not in row:
        return None
    figure, k, values = min(claims)
    truth = row["dB"][k]
    if truth is None or len(values) < 3 or None in values:
        return None
    return figure, truth, values[1], values[2]


def of_target(figures: list[Figures], target: str) -> str:
    """Accuracy, time and memory of every network on one target."""
    head = ("network", "float", "int8", "default", "accurate", "peer int8", "dB", "report", "on the NPU")
    head += ("ms int8", "ms", "SRAM KB", "flash KB", "CPU s int8", "CPU s")

    def line(name: str) -> list[str]:
        pick = functools.partial(cell, figures, network=name)
        precisions = ("int8", "default", "accurate")
        int8, chosen, accurate = (pick(target=target, precision=p) for p in precisions)
        peer, row = pick(target="peer", precision="int8"), chosen or {}
        measured = [r for r in (chosen, int8, accurate, peer) if r and "float" in r]
        said = claim(row)
        return [
            f"`{name}`",
            f"{measured[0]['float']:.3f}" if measured else "",
            *map(_metric, (int8, chosen, accurate, peer)),
            _decibels(row["dB"]) if "dB" in row else "",
            f"{said[0]:.1f} ({said[2]:.1f} to {said[3]:.1f})" if said else "",
            f"{row['on_npu']}/{row['operators']}" if "on_npu" in row else "",
            _number(int8, "ms", 1, 3),
            _number(chosen, "ms", 1, 3),
            _number(chosen, "sram", 1000, 0),
            _number(chosen, "flash", 1000, 0),
            _number(int8, "cpu_s", 1, 0),
            _number(chosen, "cpu_s", 1, 0),
        ]

    return table(head, map(line, registry()))


def _number(row: Figures | None, key: str, unit: int, digits: int) -> str:
    return "" if row is None or "error" in row or key not in row else f"{row[key] / unit:,.{digits}f}"


def zoo_corstone300(figures: list[Figures]) -> str:
    """Ethos-U55 with 256 MACs."""
    return of_target(figures, "corstone300")


def zoo_ethos_u85_256(figures: list[Figures]) -> str:
    """Ethos-U85 with 256 MACs."""
    return of_target(figures, "ethos-u85-256")


def zoo_imxrt700(figures: list[Figures]) -> str:
    """Neutron."""
    return of_target(figures, "imxrt700")


def zoo_errors(figures: list[Figures]) -> str:
    """Runs that ended in an error."""
    rows = [r for r in figures if "error" in r]
    if not rows:
        return "None."
    keys = ("network", "target", "precision")
    lines = ([*(f"`{r[k]}`" for k in keys), r["error"].replace("|", "\\|").replace("<", "&lt;")] for r in rows)
    return table((*keys, "error"), lines)


def counts(figures: list[Figures], target: str) -> dict[str, str]:
    """What the rows of one target add up to, each with the number of rows that it was counted over."""
    rows = [r for r in figures if r["target"] == target]
    finished = {p: [r for r in rows if r["precision"] == p and "metric" in r] for p in ("int8", "default", "accurate")}
    chosen = finished["default"]
    claims = [c for r in chosen if (c := claim(r))]
    alarms = sum(r["good"] and "warning far-from-float" in r["warnings"] for r in chosen)
    pairs = [(r, cell(finished["int8"], network=r["network"])) for r in chosen]
    ratios = [r["cpu_s"] / max(o["cpu_s"], 0.1) for r, o in pairs if o]
    slower = [r["ms"] / o["ms"] for r, o in pairs if o and o["ms"]]
    return {
        **{f"within 1 % of float, {p}": _of(sum(r["good"] for r in found), found) for p, found in finished.items()},
        f"report within {NEAR_DB} dB": _of(sum(abs(c[0] - c[1]) <= NEAR_DB for c in claims), claims),
        "interval contains the figure": _of(sum(c[2] <= c[1] <= c[3] for c in claims), claims),
        "red warnings about good programs": _of(alarms, chosen),
        "time by int8's, median": f"{statistics.median(slower):.2f}" if slower else NOT_RUN,
        "CPU s of compilation, median": _spread([r["cpu_s"] for r in chosen]),
        "CPU s by int8's, median": f"{statistics.median(ratios):.1f}" if ratios else NOT_RUN,
    }


def _of(n: int, found: list[Any]) -> str:
    return f"{n} of {len(found)}" if found else NOT_RUN


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f}, at most {max(values):.0f}" if values else NOT_RUN


def zoo_summary(figures: list[Figures]) -> str:
    """Counts over all networks, by target."""
    targets = [t for t in dict.fromkeys(r["target"] for r in figures) if t != "peer"]
    found = {t: counts(figures, t) for t in targets}
    keys = found[targets[0]] if targets else ()
    text = table(("", *(f"`{t}`" for t in targets)), ([k, *(found[t][k] for t in targets)] for k in keys))
    commits = Counter(r["commit"] for r in figures).most_common()
    return f"{text}\n\nCommits that were measured: {', '.join(f'{c} ({plural(n)})' for c, n in commits)}."


def plural(runs: int) -> str:
    return f"{runs} run{'s' if runs > 1 else ''}"


def _licence(network: Network) -> str:
    return network.licence or PACKAGES[network.package].licence


def _package(package: Package) -> str:
    return f"{package.name} {package.version} ({package.registry})"


def zoo_networks(figures: list[Figures]) -> str:
    """Where each network comes from, and how it is judged."""
    del figures  # the registry alone

    def line(name: str, n: Network) -> list[str]:
        path = PurePosixPath(n.file)
        reads = path.suffix in {".tflite", ".onnx"} and not n.rebuilt
        source = f"`{path.name}`, {'read by micronpu' if reads else 'rebuilt in PyTorch'}"
        judged = f"{n.measures}{' (true labels)' if n.labels else ''}"
        return [f"`{name}`", n.does, _package(PACKAGES[n.package]), source, _licence(n), judged]

    head = ("network", "question", "package", "file", "licence", "metric")
    return table(head, (line(name, n) for name, n in registry().items()))


def zoo_data(figures: list[Figures]) -> str:
    """Packages that the rows come from."""
    del figures  # the registry alone
    used = {name for n in registry().values() for name in n.data}
    found = (p for p in PACKAGES.values() if p.name in used and p.holds)
    return table(("data", "package", "licence"), ([p.holds, _package(p), p.licence] for p in found))


TABLES: dict[str, Callable[[list[Figures]], str]] = {
    make.__name__: make
    for make in (zoo_summary, zoo_corstone300, zoo_ethos_u85_256, zoo_imxrt700, zoo_errors, zoo_networks, zoo_data)
}
"""By the name that the page has."""
