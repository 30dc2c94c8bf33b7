"""`micronpu explore` and `micronpu disassemble`: a program in Google's Model Explorer, and its command streams."""

from __future__ import annotations

import importlib
import json as json_module
import socket
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from micronpu.base.errors import OptionError, RuntimeUnavailableError
from micronpu.base.files import read_file
from micronpu.cli import console
from micronpu.program.pte import read_pte
from micronpu.targets.registry import backend_with

if TYPE_CHECKING:
    from micronpu.report.inside import Disassembly


_EXTENSION = "micronpu.cli.explorer"
_HOST = "localhost"
_ANY_FREE = 8080
"""Port that Model Explorer replaces by another if it is in use."""


@console.guarded
def explore(
    program: Annotated[Path, console.argument("PROGRAM.pte", "A finished program.")],
    report: Annotated[
        Path | None,
        console.option(
            "PATH",
            "The program's report (`micronpu compile --report-json`): cycles, bytes, and the operators of the "
            "model with what became of each.",
        ),
    ] = None,
    blame: Annotated[
        Path | None, console.option("PATH", "Errors of layers (`micronpu blame --report-json`), with --report.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the page; 8080 takes the next free one.")
    ] = _ANY_FREE,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print graphs and colours as JSON, and open no page.")] = False,
    debug: console.Debug = False,
) -> None:
    """Open a program in Google's Model Explorer, including its NPU partitions; Ctrl+C ends it.

    Nodes can be coloured by where they run, and with --report by cycles, bytes and SQNR.
    """
    from micronpu.cli.explorer.graph import (
        MODEL,
        check_same_program,
        node_data,
        program_graphs,
        read_blame,
        report_graph,
    )
    from micronpu.report.delegation import DelegationReport

    explorer = None if json else load_explorer()  # before anything slow: the package may be missing
    if blame is not None and report is None:
        raise OptionError("--blame is given without --report, which says what became of the layers.", hint="both")
    if port != _ANY_FREE:
        _check_free(port)
    data = read_file(program)
    graphs = program_graphs(data, str(program))
    known = DelegationReport.load(report) if report is not None else None
    if known is not None:
        check_same_program(data, str(program), known, str(report))
        graphs += (report_graph(known),)
    sets = node_data(graphs, known, read_blame(str(blame)) if blame is not None else None)
    if explorer is None:
        console.print_json(
            {"graphs": [{"id": g.id, "nodes": [asdict(n) for n in g.nodes]} for g in graphs], "node_data": sets}
        )
        return
    config = explorer.config().add_model_from_path(str(program), adapterId="micronpu")
    if report is not None:
        config.add_model_from_path(str(report), adapterId="micronpu")
    for title, graphs_of in sets.items():
        for path, own in (
            (program, {k: v for k, v in graphs_of.items() if k != MODEL}),
            (report, {k: v for k, v in graphs_of.items() if k == MODEL}),
        ):
            if path is not None and own:
                config.add_node_data(title, json_module.dumps(own), model_name=path.name)
    shown = browser and has_browser()
    if browser and not shown:
        console.errors().print("No browser was found here: open the address below in one, Ctrl+C ends it.")
    explorer.visualize_from_config(config, host=_HOST, port=port, extensions=[_EXTENSION], no_open_in_browser=not shown)


def load_explorer() -> Any:
    """Import Google's package."""
    try:
        return importlib.import_module("model_explorer")
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"Model Explorer cannot be imported: {error}.", hint='pip install "micronpu[explore]"'
        ) from error


def has_browser() -> bool:
    """Return True if Python finds a browser."""
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _check_free(port: int) -> None:
    with socket.socket() as own:
        if own.connect_ex((_HOST, port)) == 0:
            raise OptionError(f"Port {port} is in use.", hint=f"another one, or {_ANY_FREE}, which takes a free one")


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
            out.print(Text(line), soft_wrap=True)
        if lines:
            raise typer.Exit(console.DIFFERENT)
        return
    if json:
        console.print_json([stream.to_dict() for stream in found])
        return
    for number, stream in enumerate(found):
        out.print(Text(f"Partition {number}, {stream.accelerator}: {len(stream.steps)} operations", style="bold"))
        for line in stream.memory_lines() if memory else stream.lines(registers):
            out.print(Text(line), soft_wrap=True)


def _streams(path: Path) -> list[Disassembly]:
    """Return the command streams of a program in order."""
    summary = read_pte(read_file(path), name=str(path))
    backends = [(backend_with(backend_id), blob) for backend_id, blob in summary.payloads]
    found = (f.disassembly(blob, summary.named_data) for f, blob in backends if f is not None)
    streams = [stream for stream in found if stream is not None]
    if not streams:
        raise OptionError(f"{path} has no command stream that is public.", hint="`micronpu inspect` shows what it has")
    return streams
