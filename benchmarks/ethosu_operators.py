"""Which single-operator modules run on an Ethos-U as a whole, beside the peer's figures for the same modules.

    python -m benchmarks.ethosu_operators path/to/op_sweep.py --target ethos-u55-128 [--activations int16]

The modules are those of the peer's own sweep, whose file is given; its figures lie beside it.  Every module is
quantized with its inputs, compiled by `micronpu.compile`, and the finished `.pte` is run.  A row tells how much was
delegated, how many streams were run beside their graphs and agree, and how far the program is from the quantized module
in eager mode, in steps of the result's grid; totals stand at the end, and those of every target's last run in
`benchmarks/results/ethosu_operators.json`.

A module counts as "full" when nothing stays on the host but quantize, dequantize and a change of the element type, all
at the border of the program; "partial" when operators do, "none" when all do, "error" when the export fails.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks import results
from torch.fx import GraphModule, Node

import micronpu
from micronpu.frontend.program import ProgramView, is_dequantize, overload_name
from micronpu.quantize.config import Activations

NAME = "ethosu_operators"
CASTS = ("to.dtype", "_to_copy.default")
BATCHES = 4
PEER_ROWS = {
    ("ethos-u55-128", "int8"): "ops-u55-int8.jsonl",
    ("ethos-u85-256", "int8"): "ops-u85-int8.jsonl",
    ("ethos-u55-128", "int16"): "ops-u55-a16w8.jsonl",
}

Row = dict[str, Any]
Tensors = tuple[torch.Tensor, ...]


def load_cases(path: Path) -> dict[str, tuple[torch.nn.Module, Tensors]]:
    """``cases()`` of the peer's sweep; its module redirects standard output, which is put back."""
    spec = importlib.util.spec_from_file_location("op_sweep", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    saved = os.dup(1)
    try:
        spec.loader.exec_module(module)
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    torch.manual_seed(0)
    return module.cases()  # type: ignore[no-any-return]


def calibration(inputs: Tensors) -> list[Tensors]:
    """The inputs and others of the same range; indices stay."""
    torch.manual_seed(1)
    others = [
        tuple(t.flatten()[torch.randperm(t.numel())].reshape(t.shape) if t.is_floating_point() else t for t in inputs)
        for _ in range(BATCHES - 1)
    ]
    return [inputs, *others]


def steps_of(quantized: GraphModule) -> list[float]:
    """The step of the grid of every result; 1 for what is no quantized number."""
    view = ProgramView(quantized)
    (output,) = (n for n in quantized.graph.nodes if n.op == "output")

    def step(node: Any) -> float:
        while isinstance(node, Node) and overload_name(node) in CASTS:
            node = node.args[0]
        edge = view.edge(node) if isinstance(node, Node) and is_dequantize(node) else None
        return edge.qparams.scale[0] if edge is not None else 1.0

    return [step(node) for node in torch.utils._pytree.tree_leaves(output.args[0])]


def difference(program: Any, inputs: Tensors) -> float:
    """Steps between the finished program and the quantized module."""
    expected = torch.utils._pytree.tree_leaves(program.quantized(*inputs))
    found = torch.utils._pytree.tree_leaves(program.run(*inputs))
    largest = 0.0
    for a, b, step in zip(expected, found, steps_of(program.quantized), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise AssertionError(f"the program gives {b.dtype}{list(b.shape)}, not {a.dtype}{list(a.shape)}")
        largest = max(largest, float((a.double() - b.double()).abs().max()) / step)
    return round(largest, 3)


def measure(name: str, module: torch.nn.Module, inputs: Tensors, target: str, activations: Activations) -> Row:
    """One row."""
    start = time.perf_counter()
    row: Row = {"op": name, "target": target, "activations": activations}
    batches = calibration(inputs)
    try:
        program = micronpu.compile(module.eval(), inputs, target=target, calibration=batches, quantization=activations)
        host = program.report.host
        computing = [v for v in host if v.operator not in CASTS]
        full = bool(program.partitions) and not computing
        row |= {
            "status": "full" if full else "partial" if program.partitions else "none",
            "partitions": len(program.partitions),
            "host": dict(collections.Counter(v.operator for v in computing)),
            "casts": len(host) - len(computing),
            "cycles": sum(part.program.cycles for part in program.partitions),  # type: ignore[attr-defined]
            "streams": sum(not part.unproved for part in program.partitions),  # type: ignore[attr-defined]
            "steps": max(difference(program, batch) for batch in batches),
        }
        if not full:
            row["reasons"] = [f"{v.operator}: {r.detail}"[:200] for v in computing for r in v.reasons][:4]
    except Exception as error:  # a failed export is a result
        text = str(error).strip().splitlines() or [""]
        row |= {"status": "error", "error": f"{type(error).__name__}: {text[0]}"[:240]}
    return row | {"seconds": round(time.perf_counter() - start, 2)}


def sweep(path: Path, target: str, activations: Activations, only: str = "") -> Iterator[Row]:
    """One row per module whose name contains ``only``."""
    for name, (module, inputs) in load_cases(path).items():
        if only in name:
            yield measure(name, module, inputs, target, activations)


def peer_rows(path: Path, target: str, activations: Activations) -> dict[str, str]:
    """Status of each module with the peer, where it was measured."""
    file = path.parent / "results" / PEER_ROWS.get((target, activations), "-")
    if not file.is_file():
        return {}
    rows = (json.loads(line) for line in file.read_text().splitlines())
    return {row["op"]: row["status"] for row in rows}


def summary(rows: list[Row], peer: dict[str, str]) -> dict[str, Any]:
    """What the rows of a target say together, for the file of figures."""
    return {
        "modules": len(rows),
        "whole": sum(row["status"] == "full" for row in rows),
        "peer_whole": sum(status == "full" for status in peer.values()) if peer else None,
        "others": {r["op"]: r.get("error", r.get("reasons", [])) for r in rows if r["status"] != "full"},
        "partitions": sum(row.get("partitions", 0) for row in rows),
        "streams": sum(row.get("streams", 0) for row in rows),
        "steps": {row["op"]: row["steps"] for row in rows if row.get("steps", 0) > 1},
        "cycles": sum(row.get("cycles", 0) for row in rows),
    }


def totals(rows: list[Row], peer: dict[str, str]) -> str:
    """Counts beside the peer's, and where the two differ."""
    own = {row["op"]: row["status"] for row in rows}
    theirs = {name: status for name, status in peer.items() if name in own}
    lines = []
    for who, found in (("micronpu", own), ("peer", theirs)):
        counts = collections.Counter(found.values())
        text = ", ".join(f"{status} {counts[status]}" for status in ("full", "partial", "none", "error"))
        lines.append(f"{who:9} {text}, of {len(found)}")
    together = summary(rows, peer)
    far = [f"{name} ({steps:g})" for name, steps in together["steps"].items()]
    for title, names in (
        ("not full", [n for n, s in own.items() if s != "full"]),
        ("full with the peer only", [n for n, s in theirs.items() if s == "full" != own[n]]),
        ("more than one step", far),
    ):
        lines.append(f"{title}: {', '.join(names) or 'none'}")
    lines.append(f"streams that agree with their graphs: {together['streams']} of {together['partitions']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, help="the peer's op_sweep.py")
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--activations", default="int8", choices=("int8", "int16"))
    parser.add_argument("--only", default="", help="part of a module's name")
    parser.add_argument("--json", type=Path, help="file for the rows; standard output unless given")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows = []
    with arguments.json.open("w") if arguments.json else os.fdopen(os.dup(1), "w") as file:
        for row in sweep(arguments.cases, arguments.target, arguments.activations, arguments.only):
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
    peer = peer_rows(arguments.cases, arguments.target, arguments.activations)
    print(totals(rows, peer), flush=True)
    if not arguments.only:
        done = results.read(NAME) if results.is_there(NAME) else {}
        done[f"{arguments.target}, {arguments.activations}"] = summary(rows, peer)
        results.write(NAME, "python -m benchmarks.ethosu_operators op_sweep.py --target ... --activations ...", done)
    return int(any(row["status"] == "error" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
