"""Random networks by the hundred: they compile, run, and mean the same everywhere.

    python -m tests.fuzz.random_networks --seconds 600 --out benchmarks/results/random_networks.json

Each network is drawn from a seed, and so are target, element type, format and entry.  Wrong is: an error that is none
of micronpu's, a program that differs from the quantized network by more than `compile` allows, one that differs from
the reference interpreter in a single element where it is one partition and nothing else, an entry that fails where the
other does not, bytes that depend on the process or its hash seed, a process that dies, and two minutes without an end.
A command stream of an Ethos-U that differs from its graph is discarded by `compile` itself, and counted here.  What
fails is shrunk to its first steps and printed as a row for `tests/fuzz/test_random_networks.py`.

A line per network goes to a file (`--state`); the next run goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.exir import to_edge_transform_and_lower
from tests.compile.random_networks import RandomNetwork
from tests.quicker import keep_what_is_there, quicker
from torch.utils._pytree import tree_leaves

import micronpu
from micronpu.base import flatbuffer
from micronpu.base.errors import InternalError, MicroNpuError, WrongResultError
from micronpu.base.quiet import quiet
from micronpu.ethosu import EthosUOptions, EthosUPartitioner
from micronpu.frontend.program import ProgramView, is_dequantize, is_quantize
from micronpu.ir.graph import Node
from micronpu.ir.interpreter import interpret
from micronpu.ir.types import DType
from micronpu.neutron import NeutronPartitioner
from micronpu.program.pte import read_pte
from micronpu.runtime import HostProgram
from micronpu.targets.ethosu.compile import EthosUPartition
from micronpu.targets.ethosu.host import prove

BACKENDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "neutron": (20, ("imxrt700-neutron", "mcxn94x", "imx95")),
    "neutron beside a core": (8, ("imxrt700",)),
    "ethos-u55": (27, ("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256", "corstone300")),
    "ethos-u65": (9, ("ethos-u65-256", "ethos-u65-512", "imx93-m33")),
    "ethos-u85": (
        27,
        ("ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048", "corstone320"),
    ),
    "core alone": (9, ("cortex-m55", "cortex-m33", "cortex-m4")),
}
"""How many of a hundred networks, and the targets that they are shared out among."""

_BESIDE_A_CORE = ("imxrt700", "corstone300", "corstone320", "imx93-m33")
_OTHER_ENTRY, _OTHER_PROCESS = 16, 25  # one of so many networks
_OTHERWISE = {DType.INT8: 3, DType.INT16: 16}
"""Steps by which a program may differ that was written as TOSA with operators that may be a step off, each of which the
next one scales."""
_CHUNK = 50  # networks per process, which grows
_SECONDS = 120  # of processor time for one network


@dataclass(frozen=True)
class Row:
    """One network and how it is compiled."""

    seed: int
    target: str
    activations: str = "int8"
    via: str = "auto"
    io: bool = False
    length: int = 8
    per_channel: bool = True

    @classmethod
    def of(cls, seed: int) -> Row:
        rng = random.Random(seed + 1_000_003)
        (family,) = rng.choices(list(BACKENDS), [share for share, _ in BACKENDS.values()])
        ethos = family.startswith("ethos")
        wide = "int16" if ethos and rng.random() < 0.15 else "int8"
        via = rng.choice(("auto", "auto", "litert", "tosa")) if ethos else "auto"
        io, length, per_channel = rng.random() < 0.1, rng.choice((3, 5, 8)), rng.random() < 0.9
        target = rng.choice(BACKENDS[family][1])
        return cls(seed, target, wide, via if target.startswith("ethos") else "auto", io, length, per_channel)

    @property
    def family(self) -> str:
        return next(name for name, (_, targets) in BACKENDS.items() if self.target in targets)


@dataclass(frozen=True)
class Seen:
    """What came of a network.

    Attributes:
        wrong: what is wrong with it, or "".
        digest: of the program's bytes; "" where `compile` refuses the network.
        compared: with what the program was compared, and agrees; what was counted on the way.
        operators: of the graphs that went to the NPU or to the core.
    """

    wrong: str = ""
    digest: str = ""
    compared: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def compiled(row: Row) -> tuple[RandomNetwork, micronpu.CompiledProgram]:
    """The network of a row and its program, which `compile` has compared with the quantized network."""
    network = RandomNetwork(row.seed, row.length, wide=True)
    options = EthosUOptions(row.target, via=row.via) if row.target.startswith("ethos") else None
    activations: Any = row.activations
    program = micronpu.compile(
        network,
        network.example,
        row.target,
        calibration=[network.inputs(number) for number in range(4)],
        quantization=micronpu.Quantization(
            per_channel=row.per_channel, activations=activations, io=activations if row.io else None
        ),
        options=options,
    )
    return network, program


def check(row: Row) -> Seen:
    """Compiles a row and looks at what comes of it."""
    try:
        _, program = compiled(row)
    except (WrongResultError, InternalError) as error:
        return Seen(f"{type(error).__name__}: {error}")
    except MicroNpuError:
        return Seen(compared=("refused",))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Seen(f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {_line(error)}")
    agreement = program.report.agreement
    counted = Counter(_streams(program))
    wrong = ""
    if agreement is None or agreement.reason:
        wrong = f"not compared: {agreement.reason if agreement else ''}"
    else:
        counted["quantized network"] += 1
    wrong = wrong or _against_interpreter(program, counted)
    if not wrong and row.seed % _OTHER_ENTRY == 0:
        wrong = _other_entry(row, program, counted)
    graphs = [part.graph for part in program.partitions]
    operators = sorted({node.op.name for graph in graphs for node in graph.nodes})
    digest = hashlib.sha256(program.buffer).hexdigest()[:16]
    return Seen(wrong, digest, tuple(sorted(counted)), tuple(operators))


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _streams(program: micronpu.CompiledProgram) -> list[str]:
    """How the command streams of an Ethos-U compare with their graphs."""
    found = []
    streams = [part for part in program.partitions if isinstance(part, EthosUPartition)]
    if streams:
        found.append("stream not compared" if any(part.unproved for part in streams) else "stream = graph")
    if any("computes another result" in plan.objection for part in streams for plan in part.others):
        found.append("stream discarded for another")
    if any(reason.rule == prove.RULE for verdict in program.report.verdicts for reason in verdict.reasons):
        found.append("operator refused for its stream")
    return found


def _against_interpreter(program: micronpu.CompiledProgram, counted: Counter[str]) -> str:
    """A program that is quantize, one partition, dequantize: every element as the reference interpreter has it."""
    if len(program.partitions) != 1 or program.report.host or program.integer_io is not None:
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
    may_round_otherwise = (
        isinstance(part, EthosUPartition) and part.plan.format == "tosa" and any(map(_rounds, part.graph.nodes))
    )
    counted["interpreter, where TOSA rounds otherwise" if may_round_otherwise else "interpreter"] += 1
    place = {node: i for i, node in enumerate(view.graph.nodes)}
    order = sorted(range(len(results)), key=lambda i: place[results[i].args[0]])
    for i, integer, tensor in zip(order, wanted, part.graph.outputs, strict=True):
        node, y = results[i], given[i]
        if y.numel() != integer.size:
            return ""  # the partition hands its results on in another order
        edge = view.edge(node)
        assert edge is not None
        qparams = edge.qparams
        real = (
            torch.from_numpy(integer.reshape(y.shape).copy()).float().sub(qparams.zero_point[0]).mul(qparams.scale[0])
        )
        steps = (y - real).abs() / qparams.scale[0]
        if may_round_otherwise:
            largest = float(steps.max())
            if largest > _OTHERWISE[tensor.type.dtype]:
                return f"{tensor} is up to {largest:.0f} steps from the reference interpreter"
        elif bool((steps > 0.01).any()):
            wrong = int((steps > 0.01).sum())
            return f"{wrong} of {y.numel()} elements of {tensor} differ from the reference interpreter"
    return ""


def _rounds(node: Node) -> bool:
    """Whether the TOSA form of an operator may be a step off its reference, as its class says."""
    return any(node.op.tosa_steps)


def _other_entry(row: Row, program: micronpu.CompiledProgram, counted: Counter[str]) -> str:
    """ExecuTorch's own entry: no other errors, and the same payloads where both hand over the same tensors."""
    if row.io or row.target in _BESIDE_A_CORE or row.family == "core alone":
        return ""
    partitioner: Any
    if row.target.startswith("ethos"):
        partitioner = EthosUPartitioner(EthosUOptions(row.target, via=row.via))
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
        return f"the other entry: {type(error).__name__}: {_line(error)}"
    there = bytes(edge.buffer)
    if read_pte(there).payloads == read_pte(program.buffer).payloads:
        counted["both entries, same payloads"] += 1
        return ""
    one, other = io_shapes(program.buffer), io_shapes(there)
    if one == other:
        return "the other entry makes other payloads"
    # ExecuTorch traces the program again: it decides on the order of axes between host and NPU, and drops views.
    shapes = [[[shape for shape, _ in call] for call in calls] for calls in (one, other)]
    counted[f"both entries, another {'order of axes' if shapes[0] == shapes[1] else 'border'}"] += 1
    given = [tree_leaves(run(*program.rows[0])) for run in (program.run, HostProgram(there).run)]
    furthest = max(float((a.double() - b.double()).abs().max() / b.abs().max()) for a, b in zip(*given, strict=True))
    return f"the other entry's results are {furthest:.1%} away" if furthest > 0.04 else ""


def io_shapes(pte: bytes) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Shape and order of axes of every tensor of each call of the NPU, by `program.fbs`."""
    (plan,) = flatbuffer.root(memoryview(pte), b"ET12").vector(1).tables()
    tensors = [value.table(1) for value in plan.vector(2).tables()]
    return [
        [(t.vector(2).integers(), t.vector(3).integers("<B")) for t in (tensors[i] for i in arguments) if t is not None]
        for chain in plan.vector(5).tables()
        for instruction in chain.vector(2).tables()
        if instruction.integer(0, "<B") == 2 and (call := instruction.table(1)) is not None
        for arguments in (call.vector(1).integers(),)
    ]


def shrunk(row: Row, found: str) -> tuple[Row, str]:
    """The shortest beginning of a network that fails in the same way."""
    kind = found.split(":")[0]
    for length in range(1, row.length):
        shorter = replace(row, length=length)
        again = check(shorter).wrong
        if again.split(":")[0] == kind:
            return shorter, again
    return row, found


# ---------------------------------------------------------------- thousands of them


def digests(seeds: Iterable[int]) -> dict[str, str]:
    """Digest of each program's bytes; "" for what is refused."""
    found = {}
    for seed in seeds:
        try:
            found[str(seed)] = hashlib.sha256(compiled(Row.of(seed))[1].buffer).hexdigest()[:16]
        except MicroNpuError:
            found[str(seed)] = ""
    return found


def _elsewhere(seeds: Sequence[int]) -> dict[str, str]:
    """The same in another process with another hash seed, in which torch is as it comes."""
    command = [sys.executable, "-m", "tests.fuzz.random_networks", "--digests", ",".join(map(str, seeds))]
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    answer: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _endless(*_: object) -> None:
    raise TimeoutError(f"no end within {_SECONDS} s")


def _one(seed: int) -> dict[str, Any]:
    """The line of a network."""
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    start, row = time.process_time(), Row.of(seed)
    seen = check(row)
    seconds = time.process_time() - start
    signal.setitimer(signal.ITIMER_PROF, 0)
    line = {"seed": seed, "family": row.family, "seconds": round(seconds, 2), **asdict(seen)}
    if seen.wrong:
        line |= _failure(row, seen.wrong)
    return line


def _failure(row: Row, wrong: str) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_PROF, 5 * _SECONDS)
    with contextlib.suppress(TimeoutError):
        row, wrong = shrunk(row, wrong)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return {"wrong": wrong, "row": asdict(row), "steps": RandomNetwork(row.seed, row.length, True).names}


def _chunk(seeds: Sequence[int], state: Path, until: float) -> int:
    """Looks at networks in a process of their own, which grows and may die; how many it was done with."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGPROF, _endless)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with state.open("a") as file:
                for seed in seeds:
                    if time.monotonic() > until:
                        break
                    file.write(json.dumps(_one(seed)) + "\n")
                    file.flush()
            code = 0
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)  # Vela's process included
    known = {line["seed"] for line in _lines(state) if "family" in line}
    done = sum(seed in known for seed in seeds)
    with state.open("a") as file:
        file.write(json.dumps({"chunk": done, "cpu": round(used.ru_utime + used.ru_stime, 2)}) + "\n")
    if status:
        row = Row.of(seeds[done])
        wrong = f"the process died: status {status}"
        line = {"seed": row.seed, "family": row.family, "seconds": 0.0, **asdict(Seen(wrong)), "row": asdict(row)}
        with state.open("a") as file:
            file.write(json.dumps(line) + "\n")
        done += 1
    return done


def _lines(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the lines of many networks say together."""
    networks = [line for line in lines if "family" in line]
    families: dict[str, Counter[str]] = {name: Counter() for name in BACKENDS}
    for line in networks:
        families[line["family"]].update(["networks", *line["compared"]])
    repeated = [line for line in lines if "same_bytes" in line]
    chunks = [line for line in lines if "chunk" in line]
    seconds = sum(line["cpu"] for line in chunks)
    return {
        "networks": len(networks),
        "seeds": [min(n["seed"] for n in networks), max(n["seed"] for n in networks)] if networks else [],
        "per_cpu_minute": round(60 * sum(line["chunk"] for line in chunks) / max(seconds, 1e-9), 1),
        "families": {name: dict(sorted(counts.items())) for name, counts in families.items()},
        "operators": dict(Counter(operator for line in networks for operator in line["operators"]).most_common()),
        "same_bytes_in_two_processes": sum(line["same_bytes"] for line in repeated),
        "different_bytes": [line["seed"] for line in repeated if not line["same_bytes"]],
        "failures": [{k: n[k] for k in ("row", "steps", "wrong") if k in n} for n in networks if n["wrong"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--state", type=Path, help="a line per network; what has one is not done again")
    parser.add_argument("--out", type=Path, help="what they say together")
    parser.add_argument("--digests", help="only print the digests of these seeds, as JSON")
    chosen = parser.parse_args()
    if chosen.digests:
        torch.set_num_threads(1)
        print(json.dumps(digests(map(int, chosen.digests.split(",")))))
        return
    state = chosen.state or Path(tempfile.mkdtemp()) / "networks.jsonl"
    known = {line["seed"] for line in _lines(state) if "family" in line}
    seeds = [seed for seed in range(chosen.first, chosen.first + chosen.count) if seed not in known]
    until = time.monotonic() + chosen.seconds
    torch.set_num_threads(1)
    quicker()
    keep_what_is_there()
    while seeds and time.monotonic() < until:
        done = _chunk(seeds[:_CHUNK], state, until)
        lines = {line["seed"]: line for line in _lines(state) if "family" in line}
        for seed in seeds[:done]:
            if lines[seed]["wrong"]:
                print(f"{lines[seed].get('row')}: {lines[seed]['wrong']}", flush=True)
        sample = [seed for seed in seeds[:done] if seed % _OTHER_PROCESS == 0]
        there = _elsewhere(sample) if sample else {}
        with state.open("a") as file:
            for seed in sample:
                same = lines[seed]["digest"] == there[str(seed)]
                file.write(json.dumps({"seed": seed, "same_bytes": same}) + "\n")
        seeds = seeds[done:]
    result = summary(_lines(state))
    print(json.dumps({k: v for k, v in result.items() if k != "failures"} | {"failures": len(result["failures"])}))
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
