"""`micronpu targets` and `micronpu passes`: lists of targets and passes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.text import Text

from micronpu.base.errors import OptionError
from micronpu.base.parsing import JsonObject
from micronpu.chips import Chip, shipped_chips
from micronpu.cli import console
from micronpu.targets.backend import Target
from micronpu.targets.registry import BACKENDS, all_targets, catalogue


@console.guarded
def targets(
    names: Annotated[
        list[str] | None,
        console.argument(
            "[TEXT...]",
            "Only targets whose name, chip, core or NPU contains one of these; or CHIP.toml, a chip file of your own, "
            "to be listed too.",
        ),
    ] = None,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """List the targets."""
    files, texts = ([n for n in names or () if n.endswith(".toml") is kind] for kind in (True, False))
    known = shipped_chips().with_files(*map(Path, files))
    rows = [_target(name, target) for name, target in sorted(all_targets(known).items())]
    if texts:
        rows = [row for row in rows if any(text.lower() in _searched(row) for text in texts)]
    if not rows:
        raise OptionError(f"No target contains {' or '.join(texts)}.", hint="`micronpu targets`, which lists all")
    listed = {row["chip"] for row in rows}
    chips_listed = [chip for chip in known.values() if chip.title in listed]
    if json:
        chips = [_chip(chip) for chip in chips_listed]
        console.print_json({"targets": rows, "chips": chips})
        return
    from micronpu.report.plain import plain_table

    table = plain_table("target", "also called", "chip", "core", "NPU")
    table.columns[0].style, table.columns[0].no_wrap = "cyan", True
    for row in rows:
        table.add_row(
            row["name"], ", ".join(row["aliases"]), row["chip"] or "any", row["core"] or "any", row["npu"] or "none"
        )
    chips_table = plain_table("chip", "core", "NPU", "memories")
    for chip in chips_listed:
        core = _clock(chip.core_clock_mhz)
        npu = _clock(chip.npu.clock_mhz) if chip.npu is not None else "none"
        chips_table.add_row(chip.title, core, npu, "; ".join(map(str, chip.memories)))
    console.output().print(table, "", chips_table)


def _searched(row: JsonObject) -> str:
    return " ".join([*row["aliases"], *(str(row[key]) for key in ("name", "chip", "core", "npu"))]).lower()


def _target(name: str, target: Target) -> JsonObject:
    """Return a target as data; None for values that any chip satisfies, or that are unknown."""
    backend = BACKENDS[target.backend]
    chip = target.chip
    if chip is None:
        core, npu = (None, backend.title) if backend.backend_id else (name, None)
    else:
        core, npu = chip.core, f"{backend.title} {chip.npu.variant}" if chip.npu is not None else None
    return {
        "name": name,
        "aliases": list(target.entry.aliases) if chip is not None else [],
        "chip": chip.title if chip is not None else None,
        "core": core,
        "npu": npu,
    }


def _chip(chip: Chip) -> JsonObject:
    return {
        "title": chip.title,
        "core": chip.core,
        "core_clock_mhz": chip.core_clock_mhz,
        "npu_clock_mhz": chip.npu.clock_mhz if chip.npu is not None else None,
        "memories": [{"name": m.name, "bytes": m.bytes, "bandwidth": m.bandwidth} for m in chip.memories],
    }


def _clock(mhz: float | None) -> str:
    return f"{mhz:g} MHz" if mhz is not None else "not known"


@console.guarded
def passes(json: console.Json = False, debug: console.Debug = False) -> None:
    """List the passes that change a program.

    --disabled-passes disables any of them, unless its line says otherwise."""
    found = catalogue()
    if json:
        console.print_json(found)
        return
    out = console.output()
    for kind, entries in found.items():
        out.print(Text(f"{kind}:", style="bold"))
        for name, sentence in entries.items():
            out.print(Text.assemble("  ", (name, "cyan"), "  ", sentence), soft_wrap=True)
