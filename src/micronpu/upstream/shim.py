"""Declaration of one private or deprecated name of a dependency, and the error if the installed version differs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from micronpu.base.errors import UpstreamError
from micronpu.base.installed import installed
from micronpu.base.quiet import quiet

P = ParamSpec("P")
R = TypeVar("R")

SEEN = {"torch": "2.13", "torchao": "0.18", "executorch": "1.5"}
"""Prefixes of the versions that the declared names were tested with."""


@dataclass(frozen=True)
class Shim:
    """One private or deprecated name.

    Attributes:
        name: module, a colon, and the attribute path, such as ``torch._ops:OpOverload._schema``.
        use: effect of its absence, as a clause.
        parameters: its parameters, if it is called.
        probe: returns it if it cannot be looked up by name, such as an attribute that ``__init__`` sets.
    """

    name: str
    use: str
    parameters: tuple[str, ...] | None = None
    probe: Callable[[], Any] | None = None

    @property
    def package(self) -> str:
        """Return the distribution that has it."""
        return self.name.partition(":")[0].partition(".")[0]

    @property
    def versions(self) -> str:
        """Return the tested versions, such as ``2.13``."""
        return SEEN[self.package]

    def owner(self) -> tuple[Any, str]:
        """Return the module or class that has it, and its last name."""
        module, _, path = self.name.partition(":")
        found: Any = importlib.import_module(module)
        *between, last = path.split(".")
        for part in between:
            found = getattr(found, part)
        return found, last

    def find(self) -> Any:
        """Return the object of this name; raise `UpstreamError` if it does not exist."""
        known = self.probe is None and self.name.partition(":")[0] in sys.modules
        try:
            with contextlib.nullcontext() if known else quiet():  # quiet is for messages of an import
                if self.probe is not None:
                    return self.probe()
                if ":" not in self.name:
                    return importlib.import_module(self.name)
                home, last = self.owner()
                return getattr(home, last)
        except (ImportError, AttributeError, TypeError, KeyError) as error:
            raise self._error("has no") from error

    def misfit(self) -> UpstreamError | None:
        """Return the difference to the tested version as an error, or None if it fits."""
        try:
            found = self.find()
            if self.parameters is not None:
                given = tuple(inspect.signature(found).parameters)
                if given != self.parameters:
                    raise self._error(f"has other parameters, ({', '.join(given)}), of")
        except UpstreamError as error:
            return error
        return None

    def _error(self, has: str) -> UpstreamError:
        version = installed(self.package) or "none"
        return UpstreamError(
            f"{self.package} {version} {has} `{self.name}`, without which {self.use}; {self.package} {self.versions} "
            "has it.",
            hint=f'pip install "{self.package}=={self.versions}.*"',
        )


SHIMS: dict[str, Shim] = {}
"""All declared names, once the modules of this package are imported; see `all_shims`."""


def all_shims() -> tuple[Shim, ...]:
    """Return every declared name; imports the modules that contain them."""
    for module in ("torch", "session", "torchao", "executorch"):
        importlib.import_module(f"micronpu.upstream.{module}")
    return tuple(SHIMS.values())


def is_seen(package: str) -> bool:
    """Return True if the declared names were tested with the installed version of a package."""
    return f"{installed(package)}.".startswith(f"{SEEN[package]}.")


def declared(
    name: str, use: str, *, parameters: tuple[str, ...] | None = None, probe: Callable[[], object] | None = None
) -> Shim:
    """Declare a name, and add it to `SHIMS`."""
    assert name not in SHIMS, f"two shims for {name}"
    SHIMS[name] = Shim(name, use, parameters, probe)
    return SHIMS[name]


GUARDED: list[tuple[Callable[..., Any], tuple[Shim, ...]]] = []
"""All functions that `through` guards, with their names, once their modules are imported; see `all_shims`."""


def through(*shims: Shim) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that uses private names: if it fails and one does not fit, that is what is raised.

    Raises:
        TypeError: the function is a generator function, whose body runs after the guarded call.
        UpstreamError: when the function is called.
    """

    def guarded(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator function, and `through` guards the call alone.")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (ImportError, AttributeError, TypeError, KeyError) as error:
                for shim in shims:
                    if (misfit := shim.misfit()) is not None:
                        raise misfit from error
                raise

        GUARDED.append((call, shims))
        return call

    return guarded
