"""`micronpu deploy`: sources, data and build files for the firmware."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.errors import OptionError
from micronpu.base.files import read_file
from micronpu.cli import console
from micronpu.cli.completion import complete_target

if TYPE_CHECKING:
    from rich.console import Console

    from micronpu.deploy.deployment import Deployment


@console.guarded
def deploy(
    programs: Annotated[
        list[Path],
        console.argument("PROGRAM.pte...", "Programs of `micronpu compile`, one or several for one firmware."),
    ],
    output: Annotated[Path, console.option("DIR", "The folder, new or empty.", "--output", "-o")],
    target: Annotated[
        str | None,
        console.option(
            "TARGET",
            "The board, whose memories the program must fit; see `micronpu targets`. TARGET,TARGET for two NPUs of "
            "one chip.",
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
    name: Annotated[
        str | None,
        console.option(
            "NAME",
            "Prefix of files and C symbols; comma-separated for several programs.",
            default="model, or of several programs the names of their files",
        ),
    ] = None,
    section: Annotated[str, typer.Option(help="Linker section of the program.")] = "network_model_sec",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a non-empty folder; other files are kept.")] = False,
    concurrent: Annotated[
        bool,
        typer.Option("--concurrent", help="Programs may run at the same time: they share no memory."),
    ] = False,
    functions: Annotated[
        str | None,
        console.option(
            "NAME,...",
            "C functions to add: resize, ssd_decode, nms, smooth, topk.",
            "--with",
            default="none",
        ),
    ] = None,
    hot: Annotated[
        str | None,
        console.option(
            "MEMORY",
            "Memory for the most used planned tensors, as far as they fit: dtcm or dtcm=65536.",
            "--hot",
            default="none",
        ),
    ] = None,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Write the firmware folder: sources, sizes, golden vectors, build files; all but ExecuTorch itself."""
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.deployment import Source, deploy_together

    if vectors is not None and len(programs) > 1:
        raise OptionError("`--vectors` holds the rows of one program.", hint="one program, or no --vectors")
    arrays = load_arrays(vectors) if vectors is not None else None
    sources = [
        Source(
            read_file(path),
            name=c_name,
            vectors=arrays,
            vectors_name=vectors or "",
            source=str(path),
            data_files=beside(path),
        )
        for path, c_name in zip(programs, _names(programs, name), strict=True)
    ]
    with console.at_work("deploy"):
        done = deploy_together(
            sources,
            output,
            target=target,
            section=section,
            force=force,
            concurrent=concurrent,
            functions=functions.split(",") if functions is not None else (),
            hot=hot,
        )
    if json:
        console.print_json(_as_json(done))
        return
    show_deployment(done, console.output())


def _names(programs: list[Path], given: str | None) -> list[str]:
    """Return the name of each program in C."""
    if given is None:
        return ["model"] if len(programs) == 1 else [re.sub(r"\W", "_", path.stem, flags=re.ASCII) for path in programs]
    names = given.split(",")
    if len(names) != len(programs):
        raise OptionError(f"`--name` has {len(names)} names for {len(programs)} programs.", hint="--name kws,vww")
    return names


def check_folder_free(folder: Path) -> None:
    """Refuse a folder that holds files.

    Raises:
        FileError: it holds files, or cannot be made.
    """
    from micronpu.deploy.folder import check_target

    check_target(folder, force=False)


def beside(program: Path) -> dict[str, bytes]:
    """Return the data files (.ptd) that the compiler wrote beside a program."""
    return {path.name: read_file(path) for path in sorted(program.parent.glob("*.ptd"))} if program.is_file() else {}


def _as_json(done: Deployment) -> dict[str, object]:
    regions = done.regions
    return {
        "folder": str(done.folder),
        "files": list(done.files),
        "target": done.board.name,
        "on_device": done.board.on_device,
        "programs": dict(done.programs),
        "program_bytes": done.program_bytes,
        "planned_bytes": list(done.pools.planned),
        "method_pool_bytes": done.pools.method,
        "temporary_pool_bytes": done.pools.temporary,
        "vectors": done.vectors,
        "memories": [{"memory": r.name, "bytes": r.bytes, "of": r.capacity, "verdict": r.verdict} for r in regions],
        "notes": list(done.notes),
    }


def show_deployment(done: Deployment, out: Console) -> None:
    """Print sizes, verdicts and notes."""
    from rich import box
    from rich.table import Table

    regions = done.regions
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
