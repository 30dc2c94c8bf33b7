"""`micronpu deploy`: what the firmware needs beside the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.files import read_file
from micronpu.cli import console
from micronpu.cli.completion import complete_target

if TYPE_CHECKING:
    from rich.console import Console

    from micronpu.deploy.deployment import Deployment


@console.guarded
def deploy(
    program: Annotated[Path, console.argument("PROGRAM.pte", "What `micronpu compile` wrote.")],
    output: Annotated[Path, console.option("DIR", "The folder, new or empty.", "--output", "-o")],
    target: Annotated[
        str | None,
        console.option(
            "TARGET",
            "The board, see `micronpu targets`: its memories are held against the program's.",
            "--for",
            "-t",
            default="what the program was compiled for",
            complete=complete_target,
        ),
    ] = None,
    vectors: Annotated[
        str | None,
        console.option(
            "FILE",
            "Golden vectors: FILE.npz with an array per input in order, a row per vector; output_0 and so on may "
            "follow, otherwise this machine computes them. FILE.npz:name,... picks arrays.",
            default="numbers over the range of each input",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the files and of everything in C.")] = "model",
    section: Annotated[
        str, typer.Option(help="Section of the firmware in which the program stands.")
    ] = "network_model_sec",
    force: Annotated[
        bool, typer.Option("--force", help="Replace a folder that holds files, in one step; files of other names stay.")
    ] = False,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Write a folder with what the firmware needs beside ExecuTorch: sources, sizes, golden vectors, build files."""
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.deployment import deploy as write

    arrays = load_arrays(vectors) if vectors is not None else None
    done = write(
        read_file(program),
        output,
        target=target,
        vectors=arrays,
        vectors_name=vectors or "",
        name=name,
        section=section,
        force=force,
        source=str(program),
        data_files=_beside(program),
    )
    if json:
        console.print_json(_told(done))
        return
    show_deployment(done, console.output())


def check_folder_free(folder: Path) -> None:
    """Refuses a folder that holds files.

    Raises:
        FileError: it does, or cannot be made.
    """
    from micronpu.deploy.folder import check_target

    check_target(folder, force=False)


def _beside(program: Path) -> dict[str, bytes]:
    """Data files that the compiler wrote beside a program."""
    return {path.name: path.read_bytes() for path in sorted(program.parent.glob("*.ptd"))} if program.is_file() else {}


def _told(done: Deployment) -> dict[str, object]:
    regions = done.board.regions(done.program_bytes, done.pools)
    return {
        "folder": str(done.folder),
        "files": list(done.files),
        "target": done.board.name,
        "on_device": done.board.on_device,
        "program_bytes": done.program_bytes,
        "planned_bytes": list(done.pools.planned),
        "method_pool_bytes": done.pools.method,
        "temporary_pool_bytes": done.pools.temporary,
        "vectors": done.vectors,
        "memories": [{"memory": r.name, "bytes": r.bytes, "of": r.capacity, "verdict": r.verdict} for r in regions],
        "notes": list(done.notes),
    }


def show_deployment(done: Deployment, out: Console) -> None:
    """Prints sizes, verdicts and notes."""
    from rich import box
    from rich.table import Table

    regions = done.board.regions(done.program_bytes, done.pools)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("memory")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for region in regions:
        for item in region.items:
            table.add_row(region.name, item.what, f"{item.bytes:,}")
    out.print(table)
    for region in regions:
        out.print(Text(f"{region.name}: {region.bytes:,} bytes, {region.verdict}"), soft_wrap=True)
    for note in done.notes:
        out.print(Text(note, style="yellow"), soft_wrap=True)
    vectors = f"{done.vectors} golden vectors" if done.vectors else "no golden vectors"
    summary = f"Wrote {done.folder}: {len(done.files)} files, {vectors}; start with README.md."
    out.print(Text(summary, style="bold"), soft_wrap=True)
