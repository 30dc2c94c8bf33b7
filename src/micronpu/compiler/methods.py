"""A finished program with several methods."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from micronpu.base.arguments import check_text, check_type
from micronpu.base.errors import ModelError, OptionError
from micronpu.compiler.program import ONLY, CompiledProgram
from micronpu.frontend.states import State
from micronpu.report.delegation import MethodsReport
from micronpu.report.shown import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from micronpu.board.nsys import NsysBoard
    from micronpu.board.session import VirtualBoard
    from micronpu.deploy.deployment import Deployment


class CompiledMethods(Shown):
    """A finished program with several methods, which share their states.

        program.run(tokens, positions, method="prefill")
        program.run(token, position, method="decode")

    Attributes:
        methods: each as a program: its report, its quantized model, its inputs and outputs.  They are in one file, and
            share the values of their states.
    """

    def __init__(self, methods: Mapping[str, CompiledProgram]) -> None:
        self.methods = dict(methods)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        first, *rest = self.methods.values()
        for method in rest:  # methods share their states again
            method._host = first._host

    @property
    def _first(self) -> CompiledProgram:
        return next(iter(self.methods.values()))

    @property
    def buffer(self) -> bytes:
        """Bytes of the ``.pte``."""
        return self._first.buffer

    @property
    def data_files(self) -> dict[str, bytes]:
        """Further files that a board needs, by name."""
        return self._first.data_files

    @property
    def seconds(self) -> dict[str, float]:
        """Wall time per step of the compilation, for all methods together."""
        return self._first.seconds

    @property
    def report(self) -> MethodsReport:
        """Reports of all methods, and figures of the whole program."""
        return MethodsReport({name: method.report for name, method in self.methods.items()})

    @property
    def states(self) -> tuple[State, ...]:
        """Buffers that persist from one call to the next, each once, with their initial values."""
        return tuple({state.name: state for method in self.methods.values() for state in method.states}.values())

    def _of(self, method: str | None) -> CompiledProgram:
        if method is None:
            method = ONLY
        check_text("method", method, "the name of a method")
        if method not in self.methods:
            names = ", ".join(map(repr, self.methods))
            raise OptionError(f"The program has no method {method!r}.", hint=f"method= one of {names}")
        return self.methods[method]

    def run(
        self,
        *inputs: Any,
        method: str | None = None,
        fast: bool = False,
        check: bool = False,
        profile: bool | str | os.PathLike[str] = False,
    ) -> Any:
        """Run a method; see `CompiledProgram.run`.

        Args:
            method: default: "forward".

        Returns:
            The output, or a tuple for several.

        Raises:
            OptionError: there is no such method.
        """
        return self._of(method).run(*inputs, fast=fast, check=check, profile=profile)

    def reset(self) -> None:
        """Reset the states of all methods to their initial values: the next call is the first of a sequence.

        Raises:
            ModelError: no method has a state.
        """
        if not self.states:
            raise ModelError(
                "No method keeps anything from one call to the next, so there is nothing to reset.",
                hint="a model that changes a buffer",
            )
        for method in self.methods.values():
            method.reset_states()

    def save(self, path: str | os.PathLike[str], *, manifest: bool = False) -> Path:
        """Write the ``.pte`` with all methods, and the data files beside it; see `CompiledProgram.save`."""
        return self._first.save(path, manifest=manifest)

    def save_etrecord(self, path: str | os.PathLike[str], *inputs: Any, method: str | None = None) -> Path:
        """Write the ETRecord of a method; see `CompiledProgram.save_etrecord`."""
        return self._of(method).save_etrecord(path, *inputs)

    def deploy(
        self,
        folder: str | os.PathLike[str],
        *,
        target: str | None = None,
        vectors: Mapping[str, Mapping[str, Any]] | None = None,
        name: str = "model",
        section: str | None = None,
        force: bool = False,
        functions: Sequence[str] = (),
    ) -> Deployment:
        """Write a folder with all that the firmware needs in addition to ExecuTorch's runtime; see
        `CompiledProgram.deploy`.

        Args:
            vectors: argument of `CompiledProgram.deploy`, by method.

        Raises:
            MicroNpuError: the program does not fit the target, vectors are invalid, or the folder holds files.
        """
        from micronpu.deploy.deployment import SECTION, Source, deploy_together

        check_type("vectors", vectors, Mapping, type(None), hint='{"decode": {"token": rows}}')
        for method in vectors or ():
            self._of(method)
        methods = {one: own.source(name, (vectors or {}).get(one)) for one, own in self.methods.items()}
        return deploy_together(
            [Source(self.buffer, name, data_files=self.data_files, methods=methods)],
            folder,
            target=self._first.own_target() if target is None else target,
            section=SECTION if section is None else section,
            force=force,
            functions=functions,
        )

    def board(
        self, on: str = "corstone300", *, method: str | None = None, seconds: float | None = None
    ) -> VirtualBoard | NsysBoard:
        """Return an emulated board that runs a method in Arm's own firmware, which loads one; see
        `CompiledProgram.board`.

        States persist from one call of the method to the next, and are not shared with other methods.

        Raises:
            OptionError: there is no such method.
        """
        return self._of(method).board(on, seconds=seconds)

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        return Group(*(method.__rich__() for method in self.methods.values()))

    def _repr_html_(self) -> str:
        """Return the pages of the methods for a notebook."""
        return self.report._repr_html_()

    def __str__(self) -> str:
        return f"{self.report.summary()}; .pte of {len(self.buffer):,} bytes"
