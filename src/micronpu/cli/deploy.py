"""`micronpu new`, `deploy`, `board build` and `image`: from a starter project to firmware and its updates."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.errors import FileError, MicroNpuError, OptionError
from micronpu.base.files import read_file, write_file
from micronpu.base.installed import how_to_install
from micronpu.base.leaving import scratch_folder
from micronpu.base.texts import plural
from micronpu.cli import console
from micronpu.cli.compiled import beside, c_name, program_of, read_program
from micronpu.cli.options import Target, complete_target
from micronpu.deploy.folder import write_folder
from micronpu.targets.registry import find_target

if TYPE_CHECKING:
    from rich.console import Console

    from micronpu.board.probe import ProbeOptions
    from micronpu.deploy.build import BuildOptions, Built
    from micronpu.deploy.deployment import Deployment


FILES = {
    "model.py": "model.py.in",
    "README.md": "README.md.in",
    ".github/workflows/micronpu.yml": "workflow.yml.in",
    ".gitignore": "gitignore.in",
}
"""Files of the folder, and the template of each."""
ACTIONS = {
    "checkout": "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2",
    "python": "actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0",
}
"""Actions of the workflow by commit, as in this project's own workflows."""
LIMITS = {"flash": "256K", "sram": "256K"}
"""Budgets of the workflow: the template's network fits on any target."""
FOR = ("--for", "-t", "--target")
"""Names of the option for a program's board, in all commands."""
WITHOUT_FOR = "what the .pte itself names: an NPU, of some families also its chip"
"""Default of that option."""
_MANY_BYTES = 1 << 16
"""Bytes of golden vectors above which their size is printed."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@console.guarded
def new(
    folder: Annotated[Path, console.argument("DIR", "A folder that does not exist yet, or is empty.")],
    target: Target = "",
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Create a starter project with a GitHub workflow that enforces budgets."""
    find_target(target)
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"The folder's name {name!r} is the program's too, and has characters other than letters, digits, - and _.",
            hint="micronpu new my-network",
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise FileError(f"{folder} holds files already, and nothing is overwritten.", hint="a name that is free")
    get, install = how_to_install()
    note = (
        f"{get}\n# micronpu is not on PyPI: commit this wheel file, which the workflow installs as well\n"
        if get
        else ""
    )
    values = {"name": name, "target": target, "install": install, "get": note, **ACTIONS, **LIMITS}
    home = resources.files("micronpu.cli") / "starter"
    written = {
        path: Template((home / template).read_text(encoding="utf-8")).substitute(values).encode()
        for path, template in FILES.items()
    }
    write_folder(folder, written)
    if json:
        console.print_json({"folder": str(folder), "target": target, "files": sorted(written)})
        return
    console.say(f"Wrote {len(written)} files to {folder}. Next:", "bold")
    console.say(f"  cd {folder}\n  micronpu compile model.py:net -t {target} -o {name}.pte")


@console.guarded
def deploy(
    programs: Annotated[
        list[Path],
        console.argument(
            "PROGRAM.pte...",
            "Programs of `micronpu compile`, one or several for one firmware; or models, to be compiled for --for.",
        ),
    ],
    output: Annotated[Path, console.option("DIR", "The folder, new or empty.", "--output", "-o")],
    target: Annotated[
        str | None,
        console.option(
            "TARGET",
            "The board, whose memories the program must fit; see `micronpu targets`. TARGET,TARGET for two NPUs of "
            "one chip.",
            *FOR,
            default=WITHOUT_FOR,
            complete=complete_target,
        ),
    ] = None,
    vectors: Annotated[
        str | None,
        console.option(
            "FILE",
            "Golden vectors: FILE.npy, or FILE.npz with an array per input in order, a row per vector; output_0 and so "
            "on may follow, otherwise this machine computes them. FILE.npz:name,... picks arrays.",
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
        bool, typer.Option("--concurrent", help="Programs may run at the same time: they share no memory.")
    ] = False,
    functions: Annotated[
        str | None,
        console.option(
            "NAME,...", "C functions to add: resize, ssd_decode, nms, smooth, topk.", "--with", default="none"
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
    sources = []
    for path, own in zip(programs, _names(programs, name), strict=True):
        data, files = program_of(path, target)
        source = Source(data, own, arrays, vectors or "", source=str(path), data_files=files)
        sources.append(source)
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
    if arrays is not None and (size := sum(array.nbytes for array in arrays.values())) > _MANY_BYTES:
        console.say(f"The {done.vectors} golden vectors, {size:,} bytes, are linked into the self-test: a few rows do.")
    if name is None and len(programs) == 1 and (own := c_name(programs[0])) != "model":
        console.say(f"Its files and C functions are named model; --name {own} names them {own}.")


def _names(programs: list[Path], given: str | None) -> list[str]:
    if given is None:
        return ["model"] if len(programs) == 1 else list(map(c_name, programs))
    names = given.split(",")
    if len(names) != len(programs):
        raise OptionError(f"`--name` has {plural(len(names), 'name')}, not {len(programs)}.", hint="--name kws,vww")
    return names


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
    from micronpu.report.plain import plain_table

    regions = done.regions
    table = plain_table("memory", "what", "bytes", numbers=("bytes",))
    for region in regions:
        for item in region.items:
            table.add_row(region.name, item.what, f"{item.bytes:,}")
    out.print(table)
    for region in regions:
        console.say(f"{region.name}: {region.bytes:,} bytes, {region.verdict}", to=out)
    for note in done.notes:
        console.say(note, "yellow", to=out)
    console.say(f"Wrote {done}", "bold", to=out)


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

    cmsis_nn: Annotated[
        Path | None,
        console.option(
            "PATH", "CMSIS-NN's sources, or the folder of its library.", default="that of the installed ExecuTorch"
        ),
    ] = None

    def options(self, output: Path | None = None) -> BuildOptions:
        from micronpu.deploy.build import BuildOptions

        return BuildOptions(self.runtime, output, self.toolchain, self.linker, self.define or (), self.cmsis_nn)


@dataclass(frozen=True)
class ModelBuild(Build):
    """Options of a build of a model."""

    board: Annotated[
        str | None,
        console.option(
            "NAME",
            "The board; see `micronpu board list`, or with --gdb, for which a .pte is deployed and built, `micronpu "
            "targets`.",
            "--board",
            "-b",
            *FOR,
            default=f"corstone300; with --gdb {WITHOUT_FOR}",
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
        """Refuse the options where nothing is built."""
        if self != type(self)():
            raise OptionError("There are options of a build, and nothing is built.", hint=hint)


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
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.build import is_deployed
    from micronpu.deploy.deployment import Source, deploy_together

    source = Source(
        read_program(model),
        vectors=load_arrays(vectors) if vectors is not None else None,
        vectors_name=vectors or "",
        source=str(model),
        data_files=beside(model),
    )
    with contextlib.ExitStack() as stack:
        folder = how.output or stack.enter_context(scratch_folder("micronpu-")) / "firmware"
        with _without(folder, model) if how.output is None else contextlib.nullcontext():
            with console.at_work("deploy"):
                deploy_together([source], folder, target=how.board, force=is_deployed(folder))
            done = built(folder, how.options())
        if not quiet:
            show(done)
        yield done.image


@contextlib.contextmanager
def _without(folder: Path, model: Path) -> Iterator[None]:
    """Replace what errors say of files in a folder that is removed."""
    try:
        yield
    except MicroNpuError as error:
        if str(folder) not in str(error):
            raise
        kept = [part for part in error.hint.split("; ") if str(folder) not in part]
        kept.append("--output DIR, which keeps the folder, its README.md and the whole output")
        raise type(error)(error.what.replace(str(folder), f"The firmware of {model}"), hint="; ".join(kept)) from error


def built(folder: Path, options: BuildOptions) -> Built:
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
    console.say(f"Built {done.image}.", "bold")
    if done.run:
        console.say(f"Run it: {done.run}")


def show(done: Built) -> None:
    """Print the sizes of a firmware."""
    from micronpu.report.plain import plain_table

    if not done.components:
        return
    table = plain_table("component", "flash", "RAM", numbers=("flash", "RAM"))
    for one in done.components:
        table.add_row(Text(one.name), f"{one.flash:,}", f"{one.ram:,}")
    table.add_section()
    table.add_row("in all", *(f"{sum(getattr(one, kind) for one in done.components):,}" for kind in ("flash", "ram")))
    console.output().print(table)


@console.guarded
def image(
    program: Annotated[Path, console.argument("PROGRAM.pte", "The program of `micronpu compile`.")],
    output: Annotated[Path, console.option("FILE", "The image.", "--output", "-o")],
    version: Annotated[str, console.option("X.Y.Z", "Image version; of two slots the newer is used.", "--version")],
    target: Annotated[
        str | None,
        console.option(
            "TARGET",
            "The board, see `micronpu targets`.",
            *FOR,
            default=WITHOUT_FOR,
            complete=complete_target,
        ),
    ] = None,
    key: Annotated[
        Path | None, console.option("FILE.pem", "Sign with this private Ed25519 key.", "--key", default="no signature")
    ] = None,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Write a program as an update image that firmware verifies and loads without a rebuild."""
    from micronpu.deploy.image import make_image

    made = make_image(
        read_program(program),
        version=version,
        target=target,
        sign=signer(key) if key is not None else None,
        source=str(program),
    )
    write_file(output, made.data)
    data: dict[str, object] = {
        "image": str(output),
        "bytes": len(made.data),
        "program_bytes": made.program_bytes,
        "version": version,
        "accelerator": made.board.accelerator,
        "memory_mode": made.board.memory_mode,
        "method_pool_bytes": made.pools.method,
        "temporary_pool_bytes": made.pools.temporary,
        "planned_bytes": list(made.pools.planned),
        "kernels": list(made.kernels),
        "signed": made.signed,
    }
    if json:
        console.print_json(data)
        return
    signed = "signed" if made.signed else "not signed"
    console.say(f"Wrote {output}: version {version}, {len(made.data):,} bytes, {signed}.", "bold")


def signer(path: Path) -> Callable[[bytes], bytes]:
    """Return a function that signs with the private key of a PEM file."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise OptionError(
            "An image is signed with the package cryptography, which is not installed.",
            hint='pip install "micronpu[sign]"',
        ) from error
    try:
        key = load_pem_private_key(read_file(path), password=None)
    except FileError:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OptionError(
            f"{path} holds no private key that could be read: it is damaged, or has a password.",
            hint="openssl genpkey -algorithm ed25519 -out key.pem",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise OptionError(
            f"{path} holds a key of another kind than Ed25519.", hint="openssl genpkey -algorithm ed25519 -out key.pem"
        )
    sign: Callable[[bytes], bytes] = key.sign
    return sign
