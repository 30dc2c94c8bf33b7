"""Installed packages, and the commands that install missing ones."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any

from micronpu.base.errors import UnsupportedError

VERSION = "0.3.0.dev0"
_PACKAGE = "micronpu"
PUBLISHED = False
"""True if `pip install micronpu` finds the package on PyPI."""


_read: Any = functools.lru_cache(256)(lambda find, package, path: find(package))


def installed(package: str) -> str:
    """Return the version of a package, "" if it is missing; its file is read once for the folders of `sys.path`."""
    try:
        return str(_read(importlib.metadata.version, package, tuple(sys.path)))
    except importlib.metadata.PackageNotFoundError:
        return ""


def requirements() -> tuple[str, ...]:
    """micronpu's requirements with their extras, from its metadata: 'torch==2.13.*', 'ray>=2.40; extra == "ray"'.

    If the sources are on the path without being installed, they are read from `pyproject.toml`; () if that is missing.
    """
    try:
        return tuple(importlib.metadata.requires(_PACKAGE) or ())
    except importlib.metadata.PackageNotFoundError:
        project = _project()
    extras = project.get("optional-dependencies", {})
    marked = [f'{text}; extra == "{extra}"' for extra, texts in extras.items() for text in texts]
    return (*project.get("dependencies", ()), *marked)


def how_to_install(folder: str = "wheels") -> tuple[str, str]:
    """Return shell commands that install micronpu in another environment or on another machine.

    Args:
        folder: for the wheel file, needed while the package is not on PyPI.

    Returns:
        The command that builds or downloads the wheel file, run once on this machine, "" if none is needed; and the
        install command.
    """
    if PUBLISHED:
        return "", f"pip install {_PACKAGE}=={VERSION}"
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        get = f"pip wheel --no-deps -w {folder} {shlex.quote(str(checkout))}"
    else:
        get = f"mkdir -p {folder} && cp path/to/{_PACKAGE}-{VERSION}-*.whl {folder}/"
    return get, f"pip install {folder}/{_PACKAGE}-{VERSION}-*.whl"


def python_versions() -> str:
    """The supported versions of Python, such as ">=3.10,<3.14"; "" if unknown."""
    try:
        return importlib.metadata.metadata(_PACKAGE)["Requires-Python"] or ""
    except importlib.metadata.PackageNotFoundError:
        return str(_project().get("requires-python", ""))


def package_folder(package: str, *inside: str) -> Path:
    """Return a folder of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise UnsupportedError(f"The package {package} is not installed.", hint=f"pip install {package}")
    return Path(places[0]).joinpath(*inside)


def _project() -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    file = Path(__file__).resolve().parents[3] / "pyproject.toml"
    try:
        found: dict[str, object] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    return found if found.get("name") == _PACKAGE else {}
