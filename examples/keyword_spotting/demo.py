"""Compile a trained PyTorch network for i.MX RT700 and Corstone-300, and run both programs on real recordings.

    make demo

Everything after the imports is what a user writes: load a model, compile it, look at the report, run the program.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from model import calibration, dscnn, test_rows
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

import micronpu

CONSOLE = Console()


def compile_with_progress(target: str) -> micronpu.CompiledProgram:
    """Compiles the network and shows the steps as they go by."""
    model, example_inputs = dscnn()
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=CONSOLE) as progress:
        steps: dict[str, int] = {}

        def callback(step: str, part: float) -> None:
            if step not in steps:
                steps[step] = progress.add_task(step, total=1.0)  # type: ignore[assignment]
            progress.update(steps[step], completed=part)  # type: ignore[arg-type]

        return micronpu.compile(model, example_inputs, target, calibration=calibration(), callback=callback)


def on_board(program: micronpu.CompiledProgram, rows: torch.Tensor, on_npu: torch.Tensor) -> None:
    """Runs the program in Arm's own firmware, in QEMU, where both are installed."""
    try:
        with program.board("corstone300") as board:
            answers = [int(board.run(row[None].numpy())[0].argmax()) for row in rows]
    except micronpu.MicroNpuError as error:
        CONSOLE.print(f"[dim]Not run in Arm's firmware: {error}[/dim]")
        return
    same = sum(a == int(b) for a, b in zip(answers, on_npu, strict=True))
    CONSOLE.print(f"Arm's firmware, in QEMU, gives the same answer to {same} of {len(answers)} recordings.")


def run(target: str, output: Path) -> None:
    """Compiles for a target, writes the program and shows what it says of recordings that did not calibrate it."""
    CONSOLE.rule(target)
    program = compile_with_progress(target)
    program.save(output)

    report = program.report
    CONSOLE.print(f"\n[bold]{report.summary()}[/bold]")
    for note in report.notes:
        CONSOLE.print(f"[dim]{note}[/dim]")

    rows, labels, classes = test_rows()
    model, _ = dscnn()
    with torch.no_grad():
        in_float = model(rows).argmax(1)
    start = time.perf_counter()
    on_npu = torch.cat([program.run(row[None]) for row in rows]).argmax(1)
    milliseconds = (time.perf_counter() - start) / len(rows) * 1000

    def percent(hits: torch.Tensor) -> str:
        return f"{hits.float().mean().item() * 100:.2f} %"

    figures = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    figures.add_row("delegated operators", f"{report.delegated} of {len(report.verdicts)}")
    figures.add_row("partitions", str(report.partitions))
    figures.add_row(f"size of {output}", f"{len(program.buffer):,} bytes")
    figures.add_row("compile time", f"{sum(program.seconds.values()):.1f} s")
    figures.add_row("held-out recordings", str(len(rows)))
    figures.add_row("float accuracy", percent(in_float == labels))
    figures.add_row("int8 accuracy", percent(on_npu == labels))
    figures.add_row("same word as float", percent(on_npu == in_float))
    figures.add_row("time on this machine", f"{milliseconds:.1f} ms per recording (simulator, not the chip)")
    CONSOLE.print(figures)

    examples = Table(title="\nTen recordings", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("recording", "spoken", "float", "NPU", ""):
        examples.add_column(column)
    ten = range(5, len(rows), 31)
    for index in ten:
        spoken, said = classes[int(labels[index])], classes[int(on_npu[index])]
        mark = "[green]right[/green]" if spoken == said else "[red]wrong[/red]"
        examples.add_row(str(index), spoken, classes[int(in_float[index])], said, mark)
    CONSOLE.print(examples)
    if report.target.startswith("corstone300"):
        on_board(program, rows[list(ten)], on_npu[list(ten)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", help="imxrt700 and corstone300 unless given")
    parser.add_argument("--output", type=Path, help="where to write the program; kws-TARGET.pte unless given")
    options = parser.parse_args()
    for target in options.target or ("imxrt700", "corstone300"):
        run(target, options.output or Path(f"kws-{target}.pte"))


if __name__ == "__main__":
    main()
