"""Which single-operator modules run on an Ethos-U as a whole, beside the peer's figures for the same modules.

The modules come from the peer's own sweep, whose file is given.  A row per module tells how much was delegated and how
far the compiled graph is from the quantized PyTorch module, in steps of the result's grid; the last lines are totals.

    python benchmarks/ethosu_operators.py path/to/op_sweep.py --target ethos-u55-128 [--only conv] [--output rows.jsonl]

A module counts as "full" when nothing but quantize, dequantize and changes of the element type at the border of the
program stays on the host; "partial" when some operators do, "none" when all do, "error" when the export fails.
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

import numpy as np
import torch
from torch.fx import Interpreter, Node

from micronpu.ethosu.vela import compile_flatbuffer
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.quantizer import EthosUQuantizer
from micronpu.ethosu.target import ethosu_partition
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView
from micronpu.ir import interpret
from micronpu.partition.partition import Group, Partitioning
from micronpu.quantize.calibrate import graph_module, quantize

BATCHES = 4
CASTS = ("to.dtype", "_to_copy.default")
PEER = {
    "ethos-u55-128": "ops-u55-int8.jsonl",
    "ethos-u85-256": "ops-u85-int8.jsonl",
}


def load_cases(path: Path) -> dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]:
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


def inputs_like(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Other numbers of the same range; indices stay."""
    return tuple(t if not t.is_floating_point() else t[torch.randperm(t.shape[0])] * 0.9 for t in inputs)


def on_host(partitioning: Partitioning) -> tuple[list[str], list[str]]:
    """Operators that stay on the host: those that compute, and changes of the element type."""
    names = [v.operator for v in partitioning.report.verdicts if not v.delegated]
    return [n for n in names if n not in CASTS], [n for n in names if n in CASTS]


class Recorder(Interpreter):
    """Runs a module and keeps every value."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        self.values[n] = value = super().run_node(n)
        return value


def largest_difference(view: ProgramView, group: Group, module: Any, inputs: tuple[torch.Tensor, ...]) -> int:
    """Steps between the graph of a group and the integers of the quantized module."""
    graph = import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))
    recorder = Recorder(module)
    with torch.no_grad():
        recorder.run(*inputs)
    operands = [np.asarray(recorder.values[n].detach()) for n in group.inputs]
    for index in graph.channels_last_inputs:
        operands[index] = operands[index].transpose(0, 2, 3, 1)
    largest = 0
    for index, (node, result) in enumerate(zip(group.outputs, interpret(graph, operands), strict=True)):
        expected = np.asarray(recorder.values[node].detach()).astype(np.int64)
        if index in graph.channels_last_outputs:
            expected = expected.transpose(0, 2, 3, 1)
        largest = max(largest, int(np.abs(result.astype(np.int64) - expected).max(initial=0)))
    return largest


def _cyc(graph, spec):
    reference = graph.clone()
    from micronpu.emit.tosa import to_tosa
    from micronpu.emit.litert import to_litert
    from micronpu.passes import run_passes
    from micronpu.ethosu.cures import cure_graph
    from micronpu.ethosu.rules import judge_of
    cure_graph(graph, judge_of(spec))
    run_passes(graph)
    r=np.random.default_rng(0); ins=[r.integers(-128,128,t.shape).astype(np.int8) if t.type.dtype.value=='int8' else np.zeros(t.shape,np.int32) for t in reference.inputs]
    for a,b in zip(interpret(reference,ins),interpret(graph,ins)): assert a.shape==b.shape and (a==b).all(), 'cure differs'
    try:
        return compile_flatbuffer(to_tosa(graph).data, spec).cycles
    except Exception as e:
        try:
            return compile_flatbuffer(to_litert(graph).data, spec).cycles
        except Exception as f:
            raise Exception(f"TOSA {e} LITERT {f}".replace("\n"," "))


def sweep(path: Path, target: str, only: str) -> Iterator[dict[str, Any]]:
    """One row per module."""
    spec = EthosUCompileSpec(target)
    for name, (module, inputs) in load_cases(path).items():
        if only not in name:
            continue
        start = time.perf_counter()
        row: dict[str, Any] = {"op": name, "target": target}
        try:
            torch.manual_seed(1)
            batches = [inputs, *(inputs_like(inputs) for _ in range(BATCHES - 1))]
            exported = torch.export.export(module.eval(), inputs)
            quantized = quantize(graph_module(exported), batches, EthosUQuantizer(spec))
            view = ProgramView(quantized)
            partitioning = ethosu_partition(view, spec)
            computing, casts = on_host(partitioning)
            cycles = steps = 0
            for group in partitioning.groups:
                graph = import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))
                cycles += _cyc(graph, spec)
                steps = max([steps, *(largest_difference(view, group, quantized, batch) for batch in batches)])
            full = bool(partitioning.groups) and not computing
            row["status"] = "full" if full else "partial" if partitioning.groups else "none"
            row |= {"partitions": len(partitioning.groups), "host": dict(collections.Counter(computing))}
            row |= {"casts": len(casts), "cycles": cycles, "steps": steps}
            if not full:
                row["reasons"] = [
                    f"{v.operator}: {r.detail}"[:200] for v in partitioning.report.verdicts for r in v.reasons
                ][:4]
        except Exception as error:  # a failed export is a result
            row |= {"status": "error", "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"[:240]}
        row["seconds"] = round(time.perf_counter() - start, 2)
        yield row


def totals(rows: list[dict[str, Any]], peer: dict[str, str]) -> str:
    """Counts beside the peer's, and where the two differ."""
    ours = {row["op"]: row["status"] for row in rows}
    shown = {name: status for name, status in peer.items() if name in ours}
    lines = []
    for who, found in (("micronpu", ours), ("peer", shown)):
        counts = collections.Counter(found.values())
        text = ", ".join(f"{status} {counts[status]}" for status in ("full", "partial", "none", "error"))
        lines.append(f"{who:9} {text}, of {len(found)}")
    lines.append("not full: " + " ".join(n for n, s in ours.items() if s != "full"))
    lines.append("full with the peer only: " + " ".join(n for n, s in shown.items() if s == "full" != ours[n]))
    far = {row["op"]: row["steps"] for row in rows if row.get("steps", 0) > 1}
    lines.append("more than one step: " + " ".join(f"{n} ({s})" for n, s in far.items()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, help="the peer's op_sweep.py")
    parser.add_argument("--target", default="ethos-u55-128")
    parser.add_argument("--only", default="", help="part of a module's name")
    parser.add_argument("--output", type=Path, help="file for the rows; standard output unless given")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    peer_file = arguments.cases.parent / "results" / PEER.get(arguments.target, "")
    peer: dict[str, str] = {}
    if peer_file.is_file():
        found = (json.loads(line) for line in peer_file.read_text().splitlines())
        peer = {row["op"]: row["status"] for row in found}
    rows = []
    with arguments.output.open("w") if arguments.output else os.fdopen(os.dup(1), "w") as file:
        for row in sweep(arguments.cases, arguments.target, arguments.only):
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
    print(totals(rows, peer), file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
