"""`micronpu disassemble`: the command streams of a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.errors import OptionError
from micronpu.cli import console
from micronpu.cli.compiled import read_program
from micronpu.program.pte import read_pte
from micronpu.targets.registry import backend_with

if TYPE_CHECKING:
    from micronpu.report.inside import Disassembly


@console.guarded
def disassemble(
    program: Annotated[Path, console.argument("PROGRAM.pte", "A program for an NPU whose commands are public.")],
    registers: Annotated[
        bool, typer.Option("--registers", help="Show the commands that set up each operation, too.")
    ] = False,
    diff: Annotated[
        Path | None, console.option("OTHER.pte", "Show what differs in another program; exit code 1.")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show which bytes of the scratch memory are alive during each operation.")
    ] = False,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """List an Ethos-U command stream: each operation, what it reads and writes, and its source line.

    With --memory: what lies where in memory while it runs.
    """
    from micronpu.report.inside import difference

    with console.at_work("disassemble"):
        found = _streams(program)
    out = console.output()
    if diff is not None:
        with console.at_work("disassemble"):
            other = _streams(diff)
        pairs = list(zip(found, other, strict=False))
        lines = [line for a, b in pairs for line in difference(a, b, registers)]
        if len(found) != len(other):
            lines.append(f"{program} has {len(found)} streams, {diff} has {len(other)}.")
        if json:
            console.print_json({"differences": lines})
        for line in lines if not json else ():
            console.say(line)
        if lines:
            raise typer.Exit(console.DIFFERENT)
        return
    if json:
        console.print_json([stream.to_dict() for stream in found])
        return
    for number, stream in enumerate(found):
        out.print(Text(f"Partition {number}, {stream.accelerator}: {len(stream.steps)} operations", style="bold"))
        for line in stream.memory_lines() if memory else stream.lines(registers):
            console.say(line)


def _streams(path: Path) -> list[Disassembly]:
    """Return the command streams of a program in order."""
    summary = read_pte(read_program(path), name=str(path))
    backends = [(backend_with(backend_id), blob) for backend_id, blob in summary.payloads]
    found = (f.disassembly(blob, summary.named_data) for f, blob in backends if f is not None)
    streams = [stream for stream in found if stream is not None]
    if not streams:
        raise OptionError(f"{path} has no command stream to list.", hint="`micronpu inspect`")
    return streams
