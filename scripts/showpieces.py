"""Make docs/showpieces.md and its pictures: run the examples, and record their output and the cost of their programs.

    python scripts/showpieces.py                    # all; minutes, most of them for the language model
    python scripts/showpieces.py wake_word gesture  # these; the figures of the others stay as they were
    python scripts/showpieces.py --reports DIR      # the report page of each too, for the site

`--text FILE` is what the language model reads; Debian's package bible-kjv has one (`bible -f ge1:1-re22:21`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import micronpu

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FIGURES = ROOT / "benchmarks" / "results" / "showpieces.json"


@dataclass(frozen=True)
class Piece:
    """An example: its script without `.py`, a description, and the method that is timed if there are several."""

    name: str
    script: str
    title: str
    text: str
    picture: bool = True
    method: str = ""
    arguments: tuple[str, ...] = field(default=())


PIECES = (
    Piece(
        "wake_word",
        "wake_word/demo",
        "A wake word in a stream",
        "MLPerf Tiny's trained network hears a frame every 20 ms and computes only what is new; states keep the past. "
        'These recordings did not calibrate it. Green: how sure the program is of "marvin". Grey: the word is spoken.',
    ),
    Piece(
        "sound_to_word",
        "sound_to_word",
        "From raw sound to a word",
        "16,000 samples in, twelve scores out, all on the NPU: `micronpu.audio.LogMel` and the cosine transform "
        "are layers before the trained DS-CNN of MLPerf Tiny. It hears "
        "[words.wav](../examples/keyword_spotting/words.wav).",
        picture=False,
    ),
    Piece(
        "visual_wake_word",
        "visual_wake_word/demo",
        "Is there a person?",
        "MLPerf Tiny's trained MobileNetV1 on photographs.",
        arguments=("--target", "himax-we2"),
    ),
    Piece(
        "object_detection",
        "object_detection/demo",
        "Boxes in a picture",
        "A detector of trousers, bags and boots from FashionMNIST, on noise. The NPU computes scores and boxes for "
        "each cell, the application decodes them.",
        arguments=("--target", "corstone300"),
    ),
    Piece(
        "segmentation",
        "segmentation/demo",
        "Which pixels are the leaf?",
        "A U-Net that the script trains in half a minute on drawn pictures. From top to bottom: picture, truth, the "
        "chip's answer.",
    ),
    Piece(
        "anomaly_score",
        "anomaly_score/demo",
        "Does the machine sound worn?",
        "An autoencoder that the script trains on the sound of a made-up machine. What it cannot rebuild is strange.",
        arguments=("--target", "corstone300"),
    ),
    Piece(
        "gesture",
        "gesture/demo",
        "A gesture from an accelerometer",
        "A GRU over a second of three axes, trained in seconds on made-up movements.",
    ),
    Piece(
        "language_model",
        "language_model/demo",
        "A small language model",
        "260,000 parameters, trained for 2,000 steps on the King James Bible, which Debian's package bible-kjv "
        "prints: `bible -f ge1:1-re22:21`. Prompt and answer are two methods over one cache, all but the token "
        "look-up on an Ethos-U85. The time is that of one token.",
        picture=False,
        method="decode",
        arguments=("--steps", "2000", "--layers", "5", "--length", "256"),
    ),
)
INTRODUCTION = """# Eight finished examples

Eight finished examples, each a script in `examples/` that the tests run. Each runs as it stands; `--report page.html`
writes its report. The figures are from these runs: accuracy in float and as the chip computes it, time by the
[estimates](figures.md).
"""
SCRIPTS = tuple(piece.script for piece in PIECES if piece.name != "language_model")
"""Scripts that fit on a page of code; the language model has its tokenizer and training in further files."""


@contextlib.contextmanager
def compiled() -> Iterator[list[Any]]:
    """Record the programs that are compiled within the context, in order."""
    programs: list[Any] = []
    own = micronpu.compile

    def kept(*arguments: Any, **named: Any) -> Any:
        programs.append(own(*arguments, **named))
        return programs[-1]

    with mock.patch.object(micronpu, "compile", kept):
        yield programs


def run(piece: Piece, arguments: list[str]) -> tuple[str, Any]:
    """Return the output of an example, and the program that it compiled."""
    path = ROOT / "examples" / f"{piece.script}.py"
    output = io.StringIO()
    for helper in {p.stem for p in (ROOT / "examples").glob("*/*.py")}:
        sys.modules.pop(helper, None)
    with (
        compiled() as programs,
        mock.patch.object(sys, "argv", [str(path), *piece.arguments, *arguments]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        contextlib.redirect_stdout(output),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return output.getvalue(), programs[0]


def figures(program: Any, printed: str, method: str = "") -> dict[str, Any]:
    """Return the figures of a program for the page; a call is one of `method`, if there are several."""
    report = program.report
    call = report.methods[method] if method else report
    parts = call.latency
    memory = max(one.memory.sram for one in (report.methods.values() if method else [report]))
    lines = printed.strip().splitlines()
    at = next((n for n, line in enumerate(lines) if " operators on the NPU" in line), -1)
    return {
        "target": report.target,
        "operators": report.operators,
        "on_npu": report.delegated,
        "milliseconds": sum(part.milliseconds for part in parts),
        "band": [sum(part.band[end] for part in parts) for end in (0, 1)],
        "pte_bytes": report.program_bytes,
        "sram_bytes": memory,
        "printed": lines[at + 1 :] if at >= 0 else lines[-4:],
    }


def page(found: dict[str, dict[str, Any]]) -> str:
    parts = [INTRODUCTION]
    for piece in PIECES:
        its = found.get(piece.name)
        if its is None:
            continue
        text = ["bible.txt"] if piece.name == "language_model" else []
        command = " ".join(["python", f"examples/{piece.script}.py", *text, *piece.arguments])
        parts.append(f"## {piece.title}\n\n{textwrap.fill(piece.text, 120, break_on_hyphens=False)}\n")
        if piece.picture:
            parts.append(f"![{piece.title}](showpieces/{piece.name}.png)\n")
        parts.append(f"<!-- not run: tests run the examples -->\n```sh\n{command}\n```\n")
        parts.append("```text\n" + "\n".join(its["printed"]) + "\n```\n")
        low, high = its["band"]
        parts.append(
            f"{its['on_npu']} of {its['operators']} operators on the NPU of `{its['target']}`; about "
            f"{its['milliseconds']:.2g} ms ({low:.2g} to {high:.2g}) a call; {its['pte_bytes']:,} bytes of program, "
            f"{its['sram_bytes']:,} of SRAM.\n"
        )
        parts.append(f"<!-- report: {piece.name} -->\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(piece.name for piece in PIECES)], metavar="NAME")
    parser.add_argument("--text", type=Path, help="what the language model reads; without it that is left out")
    parser.add_argument("--reports", type=Path, help="a folder for the report pages")
    options = parser.parse_args()
    found = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    (DOCS / "showpieces").mkdir(exist_ok=True)
    for piece in PIECES:
        if options.names and piece.name not in options.names:
            continue
        arguments = ["--out", str(DOCS / "showpieces" / f"{piece.name}.png")] if piece.picture else []
        if piece.name == "language_model":
            if not options.text:
                print(f"{piece.name}: left out, no --text")
                continue
            arguments = [str(options.text)]
        print(piece.name, flush=True)
        printed, program = run(piece, arguments)
        found[piece.name] = figures(program, printed, piece.method)
        if options.reports:
            options.reports.mkdir(parents=True, exist_ok=True)
            program.report.to_html(options.reports / f"{piece.name}.html")
        FIGURES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (DOCS / "showpieces.md").write_text(page(found))


if __name__ == "__main__":
    main()
