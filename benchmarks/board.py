"""Programs in Arm's own runners on emulated boards, beside this machine: elements that differ, and time.

    python -m benchmarks.board
    python -m benchmarks.board --operators 20 --networks 2 --random 5 --damaged 50
    python -m benchmarks.board --add --write    # goes on where the figures end

Three kinds of programs: the networks that are trained and the small ones of `benchmarks.networks`, random networks of
the tests, and one program of each overload of the support table.  Each is compiled for ethos-u55-128, run in Arm's
ExecuTorch runner on corstone300 on four vectors, and compared with `program.run`; every so many also as the LiteRT
model of `to_litert(vela=True)` on corstone310, and, compiled for ethos-u65-256, on corstone300.  What a runner refuses
is counted, with its reason.  At the end, command streams with a bit turned over: refused, or run to some numbers.
"""

from __future__ import annotations

import argparse
import collections
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from benchmarks import results
from benchmarks.networks.small import NETWORKS
from benchmarks.peers.ethosu import TRAINED, network
from tests.compile.random_networks import RandomNetwork
from tests.support_rows import Rows, batches, overloads

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.board import VirtualBoard, read_model
from micronpu.board.check import BoardOutcome, MachineOptions, check_on_board, reference
from micronpu.deploy.vectors import made_up

NAME = "board"
TRAINED_NETWORKS = ("dscnn", "resnet8", "mobilenetv1", "autoencoder", "cifarnet", "wake_word")
EVERY_310, EVERY_U65 = 6, 9
SECONDS = 120.0
INT8 = micronpu.Quantization(io="int8")

Row = dict[str, Any]
Program = micronpu.CompiledProgram
Make = Callable[[str], Program]


def operators(most: int) -> Iterator[tuple[str, Make]]:
    """A program of each overload."""
    for overload in overloads()[:most]:

        def make(target: str, overload: str = overload) -> Program:
            rows = batches(2)
            return micronpu.compile(Rows([overload]), rows[0], target, calibration=rows, verify=False)

        yield overload, make


def networks(most: int) -> Iterator[tuple[str, Make]]:
    """The trained networks, then the small ones."""
    for name in TRAINED_NETWORKS[:most]:

        def trained(target: str, name: str = name) -> Program:
            module, example, calibration = network(TRAINED + name, 4)
            return micronpu.compile(module, example, target, calibration=calibration, quantization=INT8, verify=False)

        yield name, trained
    for name in list(NETWORKS)[: max(0, most - len(TRAINED_NETWORKS))]:

        def small(target: str, name: str = name) -> Program:
            torch.manual_seed(0)
            build, shapes = NETWORKS[name]
            rows = [tuple(torch.randn(shape) for shape in shapes) for _ in range(3)]
            return micronpu.compile(build().eval(), rows[0], target, calibration=rows, verify=False)

        yield name, small


def random_networks(most: int) -> Iterator[tuple[str, Make]]:
    """Random networks with floats or integers at their border, every fourth of int16."""
    for seed in range(most):

        def make(target: str, seed: int = seed) -> Program:
            made = RandomNetwork(seed, 6, wide=True)
            calibration = [made.inputs(number) for number in range(3)]
            kind = "int16" if seed % 4 == 3 else "int8"
            how = micronpu.Quantization(activations=kind, io=kind if seed % 2 else None)
            return micronpu.compile(made, made.example, target, calibration=calibration, quantization=how, verify=False)

        yield f"random {seed}", make


def run(data: bytes, board: str) -> BoardOutcome:
    """A model beside this machine."""
    model = read_model(data)
    return check_on_board(model, made_up(model.inputs, reference(model)), board, MachineOptions(seconds=SECONDS))


def row_of(kind: str, name: str, board: str, npu: str, attempt: Callable[[], bytes]) -> Row:
    """What came of one program on one board."""
    row: Row = {"kind": kind, "name": name, "board": board, "npu": npu}
    try:
        data = attempt()
    except (MicroNpuError, RuntimeError, TypeError, ValueError) as error:
        return {**row, "not compiled": type(error).__name__}
    try:
        outcome = run(data, board)
    except MicroNpuError as error:
        return {**row, "refused": str(error)[:200]}
    return {**row, **{k: v for k, v in outcome.to_dict().items() if k not in ("name", "board", "runner", "first")}}


def damaged(first: int, most: int, seconds: float) -> dict[str, int]:
    """Streams with one bit turned over, by number: what became of each."""
    begin = time.monotonic()
    program = micronpu.compile(
        NETWORKS["fomo"][0]().eval(),
        (torch.randn(1, 3, 96, 96),),
        "ethos-u55-128",
        calibration=[(torch.randn(1, 3, 96, 96),)],
        quantization=INT8,
        verify=False,
    )
    stream = program.buffer.index(b"COP1")
    found: collections.Counter[str] = collections.Counter()
    for number in range(first, most):
        if time.monotonic() - begin > seconds:
            break
        rng = np.random.default_rng(number)
        data = bytearray(program.buffer)
        data[stream + int(rng.integers(0, 4000))] ^= 1 << int(rng.integers(8))
        try:
            model = read_model(bytes(data))
            with VirtualBoard(model, seconds=SECONDS) as board:
                board.run(np.zeros(model.inputs[0].tensor.shape, np.int8))
            found["ran"] += 1
        except MicroNpuError as error:
            found["hung" if "within" in str(error) else "refused"] += 1
    return dict(found)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    known = results.read(NAME) if arguments.add else {"rows": [], "damaged": {}}
    rows: list[Row] = known["rows"]
    seen = {(r["kind"], r["name"]) for r in rows}
    sources = {
        "networks": networks(arguments.networks),
        "random": random_networks(arguments.random),
        "operators": operators(arguments.operators),
    }
    count = 0
    begin = time.monotonic()
    for kind, programs in sources.items():
        for name, make in programs:
            count += 1
            if (kind, name) in seen:
                continue
            if time.monotonic() - begin > arguments.seconds:
                break
            tries = [("corstone300", "ethos-u55-128", lambda make=make: make("ethos-u55-128").buffer)]
            if count % EVERY_310 == 1:
                tries.append(
                    ("corstone310", "ethos-u55-128", lambda make=make: make("ethos-u55-128").to_litert(vela=True))
                )
            if count % EVERY_U65 == 1:
                tries.append(
                    ("corstone300", "ethos-u65-256", lambda make=make: make("ethos-u65-256").to_litert(vela=True))
                )
            for board, npu, attempt in tries:
                rows.append(row_of(kind, name, board, npu, attempt))
                print(rows[-1], flush=True)
    rows.sort(key=lambda row: list(sources).index(row["kind"]))  # a kind's rows stay in their order
    before = collections.Counter(known["damaged"])
    after = before + collections.Counter(damaged(before.total(), arguments.damaged, arguments.seconds))
    return {"totals": totals(rows), "damaged": dict(sorted(after.items())), "rows": rows}


def totals(rows: list[Row]) -> list[Row]:
    """By board, NPU and kind: programs that ran, elements, differences, refusals."""
    found = []
    for key in dict.fromkeys((r["board"], r["npu"], r["kind"]) for r in rows):
        mine = [r for r in rows if (r["board"], r["npu"], r["kind"]) == key]
        ran = [r for r in mine if "elements" in r]
        starts = sorted(r["start_seconds"] for r in ran)
        later = sorted(r["later_seconds"] for r in ran)
        found.append(
            {
                "board": key[0],
                "npu": key[1],
                "kind": key[2],
                "ran": len(ran),
                "elements": sum(r["elements"] for r in ran),
                "differing": sum(r["differing"] for r in ran),
                "refused": sum("refused" in r for r in mine),
                "not_compiled": sum("not compiled" in r for r in mine),
                "median_start_seconds": starts[len(starts) // 2] if starts else None,
                "median_later_seconds": later[len(later) // 2] if later else None,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, most in (("operators", 1000), ("networks", 100), ("random", 60), ("damaged", 1000)):
        parser.add_argument(f"--{name}", type=int, default=most, help="at most so many")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="no new program, and no new damaged stream, after this time"
    )
    parser.add_argument("--add", action="store_true", help="keep the figures that are there, and go on behind them")
    parser.add_argument("--write", action="store_true", help=f"write benchmarks/results/{NAME}.json")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    figures = measure(arguments)
    for row in figures["totals"]:
        print(row)
    print(figures["damaged"])
    if arguments.write:
        told = [f"--{name} {getattr(arguments, name)}" for name in ("operators", "networks", "random", "damaged")]
        results.write(NAME, f"python -m benchmarks.board {' '.join(told)}", figures)


if __name__ == "__main__":
    main()
