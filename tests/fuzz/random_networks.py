"""Random networks by the hundred: they compile, run, and mean the same everywhere.

    python -m tests.fuzz.random_networks --seconds 600 --out benchmarks/results/random_networks.json

Each network is drawn from a seed, and so are target, element type, format and entry.  Wrong is: an error that is none
of micronpu's, a program that differs from the quantized network by more than `compile` allows, one that differs from
the reference interpreter in a single element where it is one partition and nothing else, an entry that fails where the
other does not, and bytes that depend on the hash seed.  What fails is shrunk to its first steps and printed as a row
for `tests/compile/compiler/test_random_programs.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.exir import to_edge_transform_and_lower
from tests.compile.random_networks import RandomNetwork
from torch.utils._pytree import tree_leaves

import micronpu
from micronpu.errors import InternalError, MicroNpuError, WrongResultError
from micronpu.ethosu import EthosUCompileSpec, EthosUPartitioner
from micronpu.frontend.program import ProgramView, is_dequantize, is_quantize
from micronpu.ir.interpreter import interpret
from micronpu.neutron import NeutronPartitioner
from micronpu.quiet import quiet
from micronpu.runtime.pte import read_pte

TARGETS = (
    "imxrt700-neutron", "imxrt700", "mcxn94x", "imx95", "corstone300", "corstone320", "ethos-u55-32", "ethos-u55-256",
    "ethos-u65-256", "ethos-u65-512", "ethos-u85-128", "ethos-u85-1024",
)  # fmt: skip
_OTHER_ENTRY, _OTHER_PROCESS = 8, 25  # one of so many networks


@dataclass(frozen=True)
class Row:
    """One network and how it is compiled."""

    seed: int
    target: str
    activations: str = "int8"
    via: str = "auto"
    io: bool = False
    length: int = 8

    @classmethod
    def of(cls, seed: int) -> Row:
        rng = random.Random(seed + 1_000_003)
        target = rng.choice(TARGETS)
        ethos = target.startswith("ethos")
        wide = "int16" if ethos and rng.random() < 0.15 else "int8"
        via = rng.choice(("auto", "auto", "litert", "tosa")) if ethos else "auto"
        return cls(seed, target, wide, via, rng.random() < 0.1, rng.choice((3, 5, 8)))


def compiled(row: Row) -> tuple[RandomNetwork, micronpu.CompiledProgram]:
    """The network of a row and its program, which `compile` has compared with the quantized network."""
    network = RandomNetwork(row.seed, row.length, wide=True)
    options = EthosUCompileSpec(row.target, via=row.via) if row.target.startswith("ethos") else None
    activations: Any = row.activations
    program = micronpu.compile(
        network,
        network.example,
        row.target,
        calibration=[network.inputs(number) for number in range(4)],
        activations=activations,
        io=activations if row.io else None,
        options=options,
    )
    return network, program


def check(row: Row) -> str:
    """What is wrong with a row, or ""."""
    try:
        network, program = compiled(row)
    except (WrongResultError, InternalError) as error:
        return f"{type(error).__name__}: {error}"
    except MicroNpuError:
        return ""
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {str(error).splitlines()[:1]}"
    agreement = program.report.agreement
    if agreement is None or agreement.reason:
        return f"not compared: {agreement.reason if agreement else ''}"
    return _against_interpreter(program) or (
        _other_entry(row, network, program) if row.seed % _OTHER_ENTRY == 0 else ""
    )


COMPARED: Counter[str] = Counter()


def _against_interpreter(program: micronpu.CompiledProgram) -> str:
    """A program that is quantize, one partition, dequantize: every element as the reference interpreter has it."""
    if len(program.partitions) != 1 or program.report.host or program.borders is not None:
        return ""
    view = ProgramView(program.quantized)  # type: ignore[arg-type]
    (part,) = program.partitions
    quantizes = [n for x in view.inputs for n in x.users if is_quantize(n)]
    results = tree_leaves(program.quantized.graph.output_node().args)  # type: ignore[union-attr]
    plain = len(quantizes) == len(view.inputs) == len(part.graph.inputs) and all(map(is_dequantize, results))
    if (
        not plain
        or len(results) != len(part.graph.outputs)
        or not all(n.args[0].op == "call_function" for n in results)
    ):
        return ""
    if (
        [q.args[0] for q in quantizes] != view.inputs
        or part.graph.channels_last_inputs
        or part.graph.channels_last_outputs
    ):
        return ""
    (row, *_) = program.rows
    integers = []
    for x, node, tensor in zip(row, quantizes, part.graph.inputs, strict=True):
        made = node.target(x, *node.args[1:])
        if made.numel() != tensor.type.size:
            return ""
        integers.append(np.ascontiguousarray(made.numpy()).reshape(tensor.shape))
    wanted = interpret(part.graph, integers)
    given = tree_leaves(program.run(*(x.clone() for x in row)))
    COMPARED["interpreter"] += 1
    place = {node: i for i, node in enumerate(view.graph.nodes)}
    order = sorted(range(len(results)), key=lambda i: place[results[i].args[0]])
    for i, integer, tensor in zip(order, wanted, part.graph.outputs, strict=True):
        node, y = results[i], given[i]
        if y.numel() != integer.size:
            return ""  # the partition hands its results on in another order
        edge = view.edge(node)
        assert edge is not None
        grid = edge.qparams
        real = torch.from_numpy(integer.reshape(y.shape).copy()).float().sub(grid.zero_point[0]).mul(grid.scale[0])
        wrong = int(((y - real).abs() > 0.01 * grid.scale[0]).sum())
        if wrong:
            return f"{wrong} of {y.numel()} elements of {tensor} differ from the reference interpreter"
    return ""


def _other_entry(row: Row, network: RandomNetwork, program: micronpu.CompiledProgram) -> str:
    """ExecuTorch's own entry: no other errors, and results that agree."""
    if row.io or row.target in ("imxrt700", "corstone300", "corstone320"):
        return ""
    partitioner: Any
    if row.target.startswith("ethos"):
        partitioner = EthosUPartitioner(EthosUCompileSpec(row.target, via=row.via))
    else:
        from micronpu.neutron import generate_neutron_compile_spec

        partitioner = NeutronPartitioner(generate_neutron_compile_spec(row.target.removesuffix("-neutron")))
    try:
        with quiet():
            exported = torch.export.export(program.quantized, program.rows[0])
            edge = to_edge_transform_and_lower(exported, partitioner=[partitioner]).to_executorch()
    except MicroNpuError as error:
        return f"the other entry refuses: {error}"
    except Exception as error:
        return f"the other entry: {type(error).__name__}: {str(error).splitlines()[:1]}"
    COMPARED["both entries"] += 1
    COMPARED["same payloads"] += read_pte(bytes(edge.buffer)).payloads == read_pte(program.buffer).payloads
    return ""


def shrunk(row: Row, found: str) -> tuple[Row, str]:
    """The shortest beginning of a network that fails in the same way."""
    kind = found.split(":")[0]
    for length in range(1, row.length):
        shorter = Row(**{**asdict(row), "length": length})
        again = check(shorter)
        if again.split(":")[0] == kind:
            return shorter, again
    return row, found


def digests(seeds: list[int]) -> dict[str, str]:
    """Digest of each program's bytes; "" for what is refused."""
    found = {}
    for seed in seeds:
        try:
            found[str(seed)] = hashlib.sha256(compiled(Row.of(seed))[1].buffer).hexdigest()
        except MicroNpuError:
            found[str(seed)] = ""
    return found


def _elsewhere(seeds: list[int]) -> dict[str, str]:
    """The same in another process with another hash seed."""
    command = [sys.executable, "-m", "tests.fuzz.random_networks", "--digests", ",".join(map(str, seeds))]
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    answer: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--digests", help="only print the digests of these seeds, as JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.digests:
        print(json.dumps(digests([int(s) for s in chosen.digests.split(",")])))
        return
    start, cpu, seeds = time.monotonic(), time.process_time(), []
    failures: list[dict[str, Any]] = []
    for seed in range(chosen.first, chosen.first + chosen.count):
        if time.monotonic() - start > chosen.seconds:
            break
        seeds.append(seed)
        row = Row.of(seed)
        found = check(row)
        if found:
            row, found = shrunk(row, found)
            failures.append(
                {"row": asdict(row), "steps": RandomNetwork(row.seed, row.length, True).names, "what": found}
            )
            print(f"{row}: {found}", flush=True)
    cpu = time.process_time() - cpu
    sample = seeds[::_OTHER_PROCESS]
    here, there = digests(sample), _elsewhere(sample) if sample else {}
    different = [seed for seed in here if here[seed] != there[seed]]
    result = {
        "networks": len(seeds),
        "first": chosen.first,
        "per_cpu_minute": round(60 * len(seeds) / max(cpu, 1e-9), 1),
        "failures": failures,
        "compared": dict(COMPARED),
        "same_bytes_in_two_processes": len(here) - len(different),
        "different_bytes": different,
    }
    print(json.dumps({k: v for k, v in result.items() if k != "failures"} | {"failures": len(failures)}))
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
