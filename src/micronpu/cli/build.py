"""`micronpu board build`: the firmware of a deployed folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.errors import OptionError
from micronpu.base.files import read_file
from micronpu.base.leaving import scratch_folder
from micronpu.cli import console
from micronpu.cli.completion import complete_target
from micronpu.cli.help import Command

if TYPE_CHECKING:
    from micronpu.board.probe import ProbeOptions
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


@dataclass(frozen=True)
class ModelBuild(Build):
    """Options of a build of a model."""

    target: Annotated[
        str | None,
        console.option(
            "TARGET",
            "Board for which a .pte is deployed and built, with --gdb.",
            "--for",
            default="what the program was compiled for",
            complete=complete_target,
        ),
    ] = None
    output: Annotated[
        Path | None,
        console.option(
            "DIR", "The folder that is deployed and built, new or of an earlier run.", "--output", "-o",
            default="a temporary one",
        ),
    ] = None  # fmt: skip

    def check_unused(self, hint: str) -> None:
        """Refuse the options where nothing is built.

        Raises:
            OptionError: one is given.
        """
        if self != type(self)():
            raise OptionError("--for, --output and the options of a build are given, and nothing is built.", hint=hint)


def run_on_probe(
    file: Path,
    how: ModelBuild,
    options: ProbeOptions,
    reference: Path | None,
    vectors: str | None,
    files: tuple[Path | None, Path | None],
    *,
    json: bool,
    print_bytes: Callable[[bytes], None],
) -> None:
    """Run a firmware, or a model's firmware that is built first, on a board; exits with its status."""
    from micronpu.cli.probe import run_firmware

    if read_file(file)[:4] == b"\x7fELF":
        how.check_unused("a .pte, or the firmware without these options")
        run_firmware(file, options, reference, vectors, files, json=json, print_bytes=print_bytes)
        return
    if reference is not None:
        raise OptionError("--reference is for a firmware: the program of a model is the model.", hint="leave it out")
    with _firmware(file, how, vectors, quiet=json) as image:
        run_firmware(image, options, None, None, files, json=json, print_bytes=print_bytes)


@contextlib.contextmanager
def _firmware(model: Path, how: ModelBuild, vectors: str | None, *, quiet: bool) -> Iterator[Path]:
    """Deploy and build a model, and yield the firmware's ELF file."""
    from micronpu.cli.deploy import beside
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.build import is_deployed
    from micronpu.deploy.deployment import Source, deploy_together

    source = Source(
        read_file(model),
        vectors=load_arrays(vectors) if vectors is not None else None,
        vectors_name=vectors or "",
        source=str(model),
        data_files=beside(model),
    )
    with contextlib.ExitStack() as stack:
        folder = how.output or stack.enter_context(scratch_folder("micronpu-")) / "firmware"
        with console.at_work("deploy"):
            deploy_together([source], folder, target=how.target, force=is_deployed(folder))
        done = built(folder, how.options())
        if not quiet:
            show(done)
        yield done.image


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
