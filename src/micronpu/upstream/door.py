"""A door: one private or deprecated name of a dependency, and what is said where it does not fit."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from micronpu.base.errors import UpstreamError
from micronpu.base.quiet import quiet

P = ParamSpec("P")
R = TypeVar("R")

SEEN = {"torch": "2.13", "torchao": "0.18", "executorch": "1.5"}
"""Versions that the doors were tested with begin with these."""
NOT_THERE = "none"


@dataclass(frozen=True)
class Door:
    """One private or deprecated name.

    Attributes:
        name: module, a colon, and the way from there, such as ``torch._ops:OpOverload._schema``.
        use: what does not work without it, as a clause.
        parameters: of it, where it is called.
        probe: gets it where the name alone does not lead there, such as an attribute that ``__init__`` sets.
    """

    name: str
    use: str
    parameters: tuple[str, ...] | None = None
    probe: Callable[[], Any] | None = None

    @property
    def package(self) -> str:
        """Distribution that has it."""
        return self.name.partition(":")[0].partition(".")[0]

    @property
    def versions(self) -> str:
        """What it was seen in, such as ``2.13``."""
        return SEEN[self.package]

    def owner(self) -> tuple[Any, str]:
        """The module or class that has it, and its last name.

        Raises:
            ImportError, AttributeError: there is none.
        """
        module, _, way = self.name.partition(":")
        found: Any = importlib.import_module(module)
        *between, last = way.split(".")
        for part in between:
            found = getattr(found, part)
        return found, last

    def find(self) -> Any:
        """What the name stands for.

        Raises:
            UpstreamError: there is no such thing.
        """
        known = self.probe is None and self.name.partition(":")[0] in sys.modules
        try:
            with contextlib.nullcontext() if known else quiet():  # which is for what an import says
                if self.probe is not None:
                    return self.probe()
                if ":" not in self.name:
                    return importlib.import_module(self.name)
                home, last = self.owner()
                return getattr(home, last)
        except (ImportError, AttributeError, TypeError, KeyError) as error:
            raise self._error("has no") from error

    def misfit(self) -> UpstreamError | None:
        """What is wrong with it, or None where it fits."""
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
        version = installed(self.package)
        return UpstreamError(
            f"{self.package} {version} {has} `{self.name}`, without which {self.use}; {self.package} {self.versions} "
            "has it.",
            hint=f'pip install "{self.package}=={self.versions}.*"',
        )


DOORS: dict[str, Door] = {}
"""All doors by name, once the modules of this room are imported; see `all_doors`."""


def all_doors() -> tuple[Door, ...]:
    """Every door; imports what they lead to."""
    for module in ("torch", "session", "torchao", "executorch"):
        importlib.import_module(f"micronpu.upstream.{module}")
    return tuple(DOORS.values())


def installed(package: str) -> str:
    """The version of a package, or `NOT_THERE`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_THERE


def is_seen(package: str) -> bool:
    """Whether the doors were tested with the version of a package that is installed."""
    return f"{installed(package)}.".startswith(f"{SEEN[package]}.")


def declared(
    name: str, use: str, *, parameters: tuple[str, ...] | None = None, probe: Callable[[], Any] | None = None
) -> Door:
    """A door, in the list of all."""
    assert name not in DOORS, f"two doors to {name}"
    DOORS[name] = Door(name, use, parameters, probe)
    return DOORS[name]


@dataclass(frozen=True)
class Guarded:
    """A function that uses private names.

    Attributes:
        doors: to the names.
    """

    function: Callable[..., Any]
    doors: tuple[Door, ...]


GUARDED: list[Guarded] = []
"""All functions that `through` guards, once their modules are imported; see `all_doors`."""


def through(*doors: Door) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function that goes through doors: where it fails and one of them does not fit, that is what is said.

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
                for door in doors:
                    if (misfit := door.misfit()) is not None:
                        raise misfit from error
                raise

        GUARDED.append(Guarded(call, doors))
        return call

    return guarded
