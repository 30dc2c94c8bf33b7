"""`micronpu board build`: the firmware of a deployed folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.cli import console
from micronpu.cli.help import Command

if TYPE_CHECKING:
    from micronpu.deploy.build import BuildOptions, Built


@dataclass(frozen=True)
class Build:
    """Options of a build."""

    runtime: Annotated[
        Path | None,
        console.option(
            "PATH",
            "ExecuTorch, installed for the core of the folder.",
            default="where CMake finds it, such as the variable executorch_DIR",
        ),
    ] = None
    define: Annotated[
        list[str] | None,
        console.option("NAME=VALUE", "A variable of the folder's CMake, such as MICRONPU_RUNS=10.", "--define", "-D"),
    ] = None
    linker: Annotated[
        Path | None,
        console.option("FILE.ld", "Your board's linker script.", default="board/link.ld, for the emulated board"),
    ] = None
    toolchain: Annotated[
        Path | None, console.option("FILE.cmake", "Another toolchain file.", default="board/toolchain.cmake")
    ] = None

    def options(self, output: Path | None = None) -> BuildOptions:
        """The options for `build`."""
        from micronpu.deploy.build import BuildOptions

        return BuildOptions(self.runtime, output, self.toolchain, self.linker, self.define or ())


def built(folder: Path, options: BuildOptions) -> Built:
    """Build a folder, with progress on the terminal."""
    from micronpu.deploy.build import build

    with console.progress() as tell:
        return build(folder, options, tell)


@console.guarded
@console.takes(how=Build)
def build_command(
    folder: Annotated[Path, console.argument("FOLDER", "The folder of `micronpu deploy`.")],
    how: Build,
    output: Annotated[
        Path | None, console.option("DIR", "The folder of the build.", "--output", "-o", default="FOLDER/build")
    ] = None,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Build the firmware of a deployed folder with CMake, Ninja and Arm's GNU compiler, and list its sizes.

    ExecuTorch for the core is not part of it: the folder's README has the commands that install it, once for each core.
    """
    done = built(folder, how.options(output))
    if json:
        data = {"image": str(done.image), "components": [asdict(one) for one in done.components], "run": done.run}
        console.print_json(data)
        return
    show(done)
    console.output().print(Text(f"Built {done.image}.", style="bold"), soft_wrap=True)
    if done.run:
        console.output().print(Text(f"Run it: {done.run}"), soft_wrap=True)


def show(done: Built) -> None:
    """Print the sizes of a firmware."""
    from rich import box
    from rich.table import Table

    if not done.components:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_footer=True)
    table.add_column("component", footer="in all")
    table.add_column("flash", justify="right", footer=f"{sum(one.flash for one in done.components):,}")
    table.add_column("RAM", justify="right", footer=f"{sum(one.ram for one in done.components):,}")
    for one in done.components:
        table.add_row(Text(one.name), f"{one.flash:,}", f"{one.ram:,}")
    console.output().print(table)


def add_to(app: typer.Typer) -> None:
    """Add the command to `micronpu board`."""
    app.command(name="build", cls=Command)(build_command)
