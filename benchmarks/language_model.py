"""A language model of Llama's form on an Ethos-U85: operators, cycles, perplexity, bytes, and what compiling it takes.

    bible -f ge1:1-re22:21 > bible.txt          # Debian's package bible-kjv
    python -m benchmarks.language_model bible.txt

The model of `examples/language_model`, 260,000 parameters, is trained on the text for 2,000 steps; the larger ones have
random weights, since nothing but their size is asked for. Each row is compiled in a process of its own, with one thread
and without a cache. Seconds are those of the processor, imports left out, Vela's process counted; so is memory.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.peers.child import json_row, peak_mib, processor_seconds

ROOT = Path(__file__).parents[1]
TARGET = "ethos-u85-256"
STEPS, PORTION, LENGTH, TEXTS = 2000, 64, 256, 4
SIZES: dict[str, dict[str, int]] = {
    "260k": {"vocab": 512, "dim": 64, "layers": 5, "heads": 8, "groups": 4, "hidden": 170},
    "7M": {"vocab": 4096, "dim": 288, "layers": 6, "heads": 6, "groups": 6, "hidden": 768},
    "15M": {"vocab": 32000, "dim": 288, "layers": 6, "heads": 6, "groups": 6, "hidden": 768},
}
ROWS = (
    ("260k", TARGET, "int16", "decode"),
    ("260k", TARGET, "int16", "prefill and decode"),
    ("260k", TARGET, "int8", "decode"),
    ("260k", "alif-e8", "int16", "decode"),
    ("260k", "alif-e8", "int16, 6 bits", "decode"),
    ("7M", TARGET, "int16", "decode"),
    ("7M", "alif-e8", "int16", "decode"),
    ("7M", "alif-e8", "int16, 6 bits", "decode"),
    ("7M", "alif-e8", "int16, 5 bits", "decode"),
    ("15M", TARGET, "int16", "decode"),
)

Row = dict[str, Any]


def measure_here(size: str, target: str, precision: str, methods: str, folder: Path) -> Row:
    """One row, in this process."""
    import torch

    import micronpu
    import micronpu.compiler.compile
    import micronpu.compiler.quantized
    import micronpu.runtime
    import micronpu.targets.ethosu.device
    from micronpu.targets.ethosu.vela.process import VELA

    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))  # imports a compiler
    model, rows, held_out = _model(size, folder)
    portions = {"prefill": PORTION, "decode": 1} if methods != "decode" else {"decode": 1}
    given = {name: (model, _calls(rows[0], n)[0]) for name, n in portions.items()}
    calibration = {name: [_calls(row, n) for row in rows] for name, n in portions.items()}
    activations, _, bits = precision.partition(", ")
    quantization: Any = (
        micronpu.Quantization(activations=activations, settings={"default": {"weight_bits": int(bits[0])}})
        if bits
        else activations
    )
    before = processor_seconds()
    program: Any
    if methods == "decode":
        program = micronpu.compile(
            *given["decode"], target, calibration=calibration["decode"], quantization=quantization
        )
        parts = {"decode": program}
    else:
        program = micronpu.compile(given, target, calibration=calibration, quantization=quantization)
        parts = dict(program.methods)
    row: Row = {"size": size, "target": target, "precision": precision, "methods": methods}
    row["parameters"] = sum(p.numel() for p in model.parameters())
    row["bytes"] = len(program.buffer)
    row["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + peak_mib(VELA.pid)
    VELA.end()
    row["cpu_seconds"] = round(processor_seconds() - before, 2)
    for name, part in parts.items():
        latency = part.report.latency
        row[name] = {
            "on_npu": part.report.delegated,
            "operators": part.report.delegated + len(part.report.host),
            "partitions": len(part.partitions),
            "cycles": sum(p.cycles for p in part.partitions),
            "milliseconds": sum(t.milliseconds for t in latency),
        }
    if size == "260k":
        row |= _along(program, model, held_out, methods)
    return row


def _model(size: str, folder: Path) -> tuple[Any, list[Any], list[Any]]:
    """The model, texts to calibrate with, and others."""
    import torch

    sys.path.insert(0, str(ROOT / "examples" / "language_model"))
    from model import Model  # type: ignore[import-not-found]

    torch.manual_seed(0)
    own = Model(**SIZES[size], length=LENGTH).eval()
    if size != "260k":
        length = 32  # ranges of random weights are what they are, and all positions are computed anyway
        rows = [torch.randint(0, SIZES[size]["vocab"], (length,)) for _ in range(2)]
        return own, rows, []
    found = torch.load(folder / "trained.pt", weights_only=True)
    own.load_state_dict(found["weights"], strict=False)
    return own, list(found["rows"]), list(found["held_out"])


def _calls(tokens: Any, n: int) -> list[tuple[Any, Any]]:
    import torch

    return [(tokens[None, i : i + n], torch.arange(i, i + n)) for i in range(0, len(tokens) - n + 1, n)]


def _along(program: Any, model: Any, texts: list[Any], methods: str) -> Row:
    """Perplexity along whole texts, and whether portions of another size, and the graphs, give the same integers."""
    import torch
    import torch.nn.functional as F

    losses: dict[str, list[float]] = {"float": [], "here": []}
    same = True
    for text in texts:
        tokens, wanted = text[:-1], text[1:]
        with torch.no_grad():
            losses["float"].append(float(F.cross_entropy(model.whole(tokens[None])[0], wanted)))
        found = {}
        for name, n in {"prefill": PORTION, "decode": 1}.items():
            if methods == "decode" and name == "prefill":
                continue
            how = {} if methods == "decode" else {"method": name}
            reset = program.reset_states if methods == "decode" else program.reset
            reset()
            # The first text is also compared with the graph, step by step and operation by operation.
            check = {"check": True} if text is texts[0] else {}
            rows = [program.run(*call, **how, **check) for call in _calls(tokens, n)]
            found[name] = torch.cat([r[0] if r.dim() == 3 else r for r in rows])
        same = same and all(torch.equal(f, found["decode"]) for f in found.values())
        losses["here"].append(float(F.cross_entropy(found["decode"], wanted)))
    perplexity = {name: round(math.exp(sum(all_) / len(all_)), 4) for name, all_ in losses.items()}
    return {"perplexity": perplexity, "tokens": sum(len(t) - 1 for t in texts), "equal": same}


def train(text: Path, folder: Path) -> None:
    """The trained weights, texts to calibrate with and others, for all rows."""
    import torch

    sys.path.insert(0, str(ROOT / "examples" / "language_model"))
    from demo import trained  # type: ignore[import-not-found]
    from model import Model
    from tokenizer import Tokenizer  # type: ignore[import-not-found]

    torch.manual_seed(0)
    letters = text.read_text(encoding="latin1")
    cut = len(letters) * 95 // 100
    size = SIZES["260k"]
    tokenizer = Tokenizer(letters[:cut], size["vocab"])
    known, others = (torch.tensor(tokenizer.encode(t)) for t in (letters[:cut], letters[cut:]))
    model = trained(Model(**size, length=LENGTH), known, STEPS, LENGTH * 3 // 4)
    starts = torch.linspace(0, len(known) - LENGTH, 4).long()
    ends = torch.linspace(0, len(others) - LENGTH - 1, TEXTS).long()
    found = {
        "weights": model.state_dict(),
        "rows": [known[s : s + LENGTH] for s in starts],
        "held_out": [others[s : s + LENGTH + 1] for s in ends],
    }
    torch.save(found, folder / "trained.pt")


def rows_of(folder: Path, only: str, time_limit: float) -> Iterator[Row]:
    for row in ROWS:
        if only in " ".join(row):
            command = [sys.executable, "-m", "benchmarks.language_model", "--here", *row, str(folder)]
            yield json_row(command, " ".join(row), time_limit=time_limit, folder=ROOT, threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="what the small model learns")
    parser.add_argument("--only", default="", help="rows whose name has this, such as `7M`; they are only printed")
    parser.add_argument(
        "--folder", type=Path, help="where the trained weights are kept, and taken from if they are there"
    )
    parser.add_argument("--time-limit", type=float, default=1800)
    parser.add_argument("--here", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        *row, folder = options.here
        print(json.dumps(measure_here(*row, Path(folder))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "trained.pt").exists():
            if options.text is None:
                parser.error("what does the model learn? A text, such as `bible -f ge1:1-re22:21` prints")
            train(options.text, folder)
        found = []
        for row in rows_of(folder, options.only, options.time_limit):
            print(json.dumps(row), flush=True)
            found.append(row)
    if not options.only:
        results.write("language_model", "python -m benchmarks.language_model bible.txt", found)


if __name__ == "__main__":
    main()
