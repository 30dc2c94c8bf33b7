"""`micronpu new`: a starter project."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated

from rich.text import Text

from micronpu.base.errors import FileError, OptionError
from micronpu.base.installed import how_to_install
from micronpu.cli import console
from micronpu.cli.completion import Target

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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@console.guarded
def new(
    folder: Annotated[Path, console.argument("DIR", "A folder that does not exist yet, or is empty.")],
    target: Target = "",
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Create a starter project with a GitHub workflow that enforces budgets."""
    from micronpu.deploy.folder import write_folder
    from micronpu.targets.registry import find_target

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
    out = console.output()
    out.print(Text(f"Wrote {len(written)} files to {folder}. Next:", style="bold"), soft_wrap=True)
    out.print(Text(f"  cd {folder}\n  micronpu compile model.py:net -t {target} -o {name}.pte"), soft_wrap=True)
