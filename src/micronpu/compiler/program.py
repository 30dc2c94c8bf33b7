"""What a compilation returns."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from micronpu.base.arguments import check_switch, check_type
from micronpu.base.errors import ModelError, OptionError, PayloadError, UnsupportedError
from micronpu.base.files import check_name, write_file
from micronpu.frontend.by_name import rows_in_order
from micronpu.frontend.states import State, reset
from micronpu.partition.device import CompiledPartition
from micronpu.report.basis import Basis
from micronpu.report.delegation import DelegationReport
from micronpu.report.manifest import Manifest, Sources
from micronpu.report.shown import short

if TYPE_CHECKING:
    from rich.console import RenderableType

    from micronpu.board.nsys import NsysBoard
    from micronpu.board.session import VirtualBoard
    from micronpu.deploy.deployment import Deployment, Source
    from micronpu.frontend.integers import IntegerBorders
    from micronpu.host.proof import Reference
    from micronpu.runtime import HostProgram, RunOptions


LITERT_SUFFIX = ".tflite"
ONLY = "forward"
"""The method of a program that has one."""
ETDUMP = "profile.etdump"
"""Where a profile is written unless it is said."""
_OF_THIS_PROCESS = ("partitions", "quantized", "_every")
"""Attributes that cannot be pickled."""


@short
@dataclass
class CompiledProgram:
    """A finished program.

    A copy of it has first values in its states.  What is pickled has neither `partitions` nor `quantized`, which are
    graphs of torch with the user's model in them: it runs, saves, deploys and has its report.

    Attributes:
        buffer: the bytes of the ``.pte``.
        report: what runs where and why.
        partitions: the delegated parts with their graphs.
        data_files: what else a board needs, by file name: blocks that the options place outside of the program.
        quantized: the quantized model, to be compared with; ``quantized(*inputs)`` runs it in eager mode.
        seconds: wall time per step of the compilation.
        borders: what inputs and outputs mean where they are integers, with ``quantize`` and ``dequantize``; None where
            they are floats.
        rows: the first inputs of the calibration data, as the program takes them: golden vectors of `deploy`.
        states: buffers that live on from one call to the next, with their first values.
        method: its name in the file, where that has several; "" for the only one.
        basis: what the bytes rest on; see `manifest`.
    """

    buffer: bytes
    report: DelegationReport
    partitions: tuple[CompiledPartition, ...] = field(repr=False)
    quantized: torch.nn.Module = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    data_files: dict[str, bytes] = field(default_factory=dict)
    borders: IntegerBorders | None = None
    rows: tuple[tuple[torch.Tensor, ...], ...] = ()
    states: tuple[State, ...] = ()
    method: str = ""
    basis: Basis = Basis()  # noqa: RUF009 (a frozen value)
    _examples: tuple[torch.Tensor, ...] = field(default=(), repr=False)
    _every: tuple[CompiledPartition, ...] = field(default=(), repr=False)
    _kernels: Mapping[int, tuple[int, ...]] = field(default_factory=dict, repr=False)
    _host: dict[tuple[RunOptions, str], HostProgram] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in (*_OF_THIS_PROCESS, "_host")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _host={})

    def __copy__(self) -> CompiledProgram:
        made = object.__new__(type(self))
        made.__dict__.update(vars(self), _host={})
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledProgram:
        made = object.__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        graphs = {name: vars(self)[name] for name in _OF_THIS_PROCESS if name in vars(self)}
        made.__dict__.update(graphs)  # graphs of partitions are values
        if "quantized" in graphs:
            made.quantized = copy.deepcopy(self.quantized, memo)
            made.reset_states()
        return made

    if not TYPE_CHECKING:  # or every attribute would be known

        def __getattr__(self, name: str) -> Any:
            if name in _OF_THIS_PROCESS:
                raise ModelError(
                    f"The program was pickled, and `{name}` does not travel with it.", hint="compile the model again"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def made_of(self, basis: Basis) -> CompiledProgram:
        """The program with what it was made of, which its report gives the digests of."""
        hashes = {**self.report.hashes, **basis.hashes()}
        return replace(self, basis=basis, report=replace(self.report, hashes=hashes))

    def save(self, path: str | os.PathLike[str], *, vela: bool = False, manifest: bool = False) -> Path:
        """Writes the ``.pte``, and the data files beside it; a file is replaced only when the new one is complete.

        Args:
            path: where it ends in ".tflite", the quantized network is written as one LiteRT model; see `to_litert`.
            vela: see `to_litert`.
            manifest: also write what the program was made of, ``NAME.manifest.json`` beside it; see `manifest`.
        """
        check_switch("vela", vela)
        check_switch("manifest", manifest)
        path = check_name(path)
        if manifest:
            self._check_has_manifest(path)
            self.manifest(path.name).save(Manifest.beside(path))
        if path.suffix == LITERT_SUFFIX:
            return write_file(path, self.to_litert(vela=vela))
        if vela:
            raise OptionError(f"`vela` is for a LiteRT model, but {path} is no {LITERT_SUFFIX}.", hint="model.tflite")
        for name, data in self.data_files.items():
            write_file(path.parent / name, data)
        return write_file(path, self.buffer)

    def _check_has_manifest(self, path: Path) -> None:
        if path.suffix == LITERT_SUFFIX:
            raise OptionError(f"A manifest is about a program, but {path} is a LiteRT model.", hint="model.pte")

    def manifest(self, program: str | os.PathLike[str] = "program.pte", sources: Sources | None = None) -> Manifest:
        """What the program was made of, of which the same bytes can be made again; see docs/stability.md.

        Args:
            program: name of its file.
            sources: where the command found the model and its data.
        """
        name = check_name(program).name
        blobs = {name: self.buffer, **self.data_files}
        hashes = {file: hashlib.sha256(data).hexdigest() for file, data in blobs.items()}
        return Manifest(name, len(self.buffer), hashes, self.basis, sources or Sources())

    def save_etrecord(self, path: str | os.PathLike[str], *inputs: torch.Tensor) -> Path:
        """Writes the ETRecord, by which `executorch.devtools.Inspector` names the lines of the model.

        Args:
            inputs: of the run that is recorded, for `calculate_numeric_gap`; the example inputs unless given.

        Raises:
            FileError: it cannot be written there.
        """
        from micronpu.compiler.etrecord import write_etrecord

        assert isinstance(self.quantized, torch.fx.GraphModule)
        return write_etrecord(
            path,
            self.quantized,
            inputs or self._examples or self.rows[0],
            self.buffer,
            self.partitions,
            self._kernels,
            self.method,
        )

    def to_litert(self, *, vela: bool = False) -> bytes:
        """The quantized network as one LiteRT model of integers, with names and a signature.

        For LiteRT Micro on the core, for Vela's command, for NXP's converter as a tool by itself, for Netron.  Inputs
        and outputs are those of the program with ``io="int8"``, in the same order and layout.

        Args:
            vela: the optimised model with the operator ``ethos-u`` instead, with the command stream of this program.

        Raises:
            UnsupportedError: an operator stays in float; the message names each, with its line.
            OptionError: ``vela`` for a program without an Ethos-U.
        """
        from micronpu.targets.whole import optimised_network, whole_network

        check_switch("vela", vela)
        assert isinstance(self.quantized, torch.fx.GraphModule)
        return optimised_network(self.quantized, self.partitions) if vela else whole_network(self.quantized).data

    def deploy(
        self,
        folder: str | os.PathLike[str],
        *,
        target: str | None = None,
        vectors: Mapping[str, Any] | None = None,
        name: str = "model",
        section: str | None = None,
        force: bool = False,
        functions: Sequence[str] = (),
    ) -> Deployment:
        """Writes a folder with all that the firmware needs beside ExecuTorch's runtime; see docs/deploy.md.

        Args:
            folder: which is new or empty.
            target: the board; what the program was compiled for unless given.
            vectors: golden vectors: for each input in order an array with a row per vector; ``output_0`` and so on may
                follow. The first rows of the calibration data unless given.
            name: of files and C names.
            section: in which the program stands in the firmware.
            force: write into a folder that holds files, in the place of those with the same names.
            functions: C functions to write beside the program, of `micronpu.deploy.functions`: "resize", "nms" ...

        Raises:
            MicroNpuError: the target cannot take the program, vectors do not fit, or the folder holds files.
        """
        from micronpu.deploy.deployment import SECTION, deploy_together

        if self.method:
            raise UnsupportedError(
                f"`{self.method}` is one of several methods, which go to a firmware together.",
                hint="deploy of the whole program; micronpu.compile(model, ...) for a program of this method alone",
            )
        return deploy_together(
            [self.source(name, vectors)],
            folder,
            target=self.own_target() if target is None else target,
            section=SECTION if section is None else section,
            force=force,
            functions=functions,
        )

    def source(self, name: str, vectors: Mapping[str, Any] | None) -> Source:
        """The program with what `deploy` needs to know of it; see there."""
        from micronpu.deploy.deployment import Source

        check_type("vectors", vectors, Mapping, type(None), hint="an array of rows per input, by name")
        borders = self.borders
        return Source(
            self.buffer,
            name,
            vectors=None if vectors is None else {n: np.asarray(a) for n, a in vectors.items()},
            rows=[tuple(t.detach().numpy() for t in row) for row in self.rows],
            known=(borders.inputs, borders.outputs) if borders is not None else None,
            run=self._runner(),
            data_files=self.data_files,
        )

    def own_target(self) -> str | None:
        """The target that the program was compiled for, where its core runs Linux, whose folder is another one."""
        from micronpu.chips.core import runs_linux
        from micronpu.targets.registry import find_target

        try:
            target = find_target(self.report.target)
        except OptionError:  # of a chip file of the user's
            return None
        return target.name if target.chip is not None and runs_linux(target.chip.core) else None

    def _references(self) -> dict[bytes, Reference]:
        """What the runs of command streams can be compared with, by payload."""
        from micronpu.host.proof import reference_of

        parts = vars(self).get("_every") or self.partitions
        return {p.payload: reference_of(p.graph, p.written, p.flatbuffer) for p in parts if p.written}

    def _runner(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Runs the program on arrays, call by call from the first values of its states, in a copy of its own."""
        from micronpu.runtime import ArrayProgram

        host: list[ArrayProgram] = []

        def run(row: Sequence[Any]) -> list[Any]:
            if not self.states:
                return [t.numpy() for t in self._results(*(torch.from_numpy(a.copy()) for a in row))]
            if not host:
                host.append(ArrayProgram(self.buffer, method=self._name))
            return list(host[0].run_arrays(*row))

        return run

    @property
    def _name(self) -> str:
        return self.method or ONLY

    def _loaded(self, *, fast: bool = False, check: bool = False) -> HostProgram:
        """The program in the runtime of this machine, loaded once for each way to run it."""
        from micronpu.runtime import ArrayProgram, RunOptions

        options = RunOptions(fast=fast, check=check)
        for (other, name), host in self._host.items():
            if other == options and (name == self._name or self._name in host.methods):
                return host
        known = self._references() if check and "partitions" in vars(self) else None
        made = self._host[options, self._name] = ArrayProgram(self.buffer, options, method=self._name, references=known)
        return made

    def _results(self, *inputs: torch.Tensor, fast: bool = False, check: bool = False) -> tuple[Any, ...]:
        return self._loaded(fast=fast, check=check).run(*inputs, method=self._name)

    def board(self, on: str = "corstone300", *, seconds: float | None = None) -> VirtualBoard | NsysBoard:
        """An emulated board that runs the program in Arm's own firmware, or NXP's simulator; see docs/virtual-board.md.

            with program.board() as board:
                (scores,) = board.run(features)  # NumPy arrays, as often as wanted

        Args:
            on: name of the board. Where Arm has no ExecuTorch runner for it, the program runs as the LiteRT model of
                ``to_litert(vela=True)``, whose inputs and outputs are integers. "imxrt700", for a Neutron program for
                silicon, is NXP's simulator, where that is installed.
            seconds: time limit of the start, and of each call.

        Raises:
            MicroNpuError: the board does not take the program; or QEMU or the runner is missing.
        """
        from micronpu.board.model import read_model
        from micronpu.board.nsys import NsysBoard, read_silicon
        from micronpu.board.nsys_tools import chips
        from micronpu.board.runners import has_runner
        from micronpu.board.session import SECONDS, VirtualBoard

        if on in chips():
            silicon = read_silicon(self.buffer, "The program", method=self.method)
            return NsysBoard(silicon, on, seconds=SECONDS if seconds is None else seconds)
        model = read_model(self.buffer, "The program", method=self.method)
        if not has_runner(on, model.format, model.family) and has_runner(on, "tflite", model.family):
            model = read_model(self.to_litert(vela=True), "The program's LiteRT model")
        return VirtualBoard(model, on, seconds=SECONDS if seconds is None else seconds)

    def run(
        self,
        *inputs: Any,
        fast: bool = False,
        check: bool = False,
        profile: bool | str | os.PathLike[str] = False,
        on: str | None = None,
    ) -> Any:
        """Runs the program in the ExecuTorch runtime of this machine, the NPU's part in the simulator.

        Args:
            inputs: tensors with shape and dtype of the example inputs; or one dictionary of them by the names of the
                inputs, which are those of ``report.inputs``.
            fast: optimised kernels, which may differ by one step from the bit-exact ones.
            check: compare the command stream of an Ethos-U with its graph after every operation that both name, which
                is slow; see `RunOptions`.
            profile: where to write an ETDump of the run, and what each operation wrote beside it, ``PATH.values``; True
                writes ``profile.etdump`` and ``profile.etdump.values``. See docs/profiling.md.
            on: an emulated board, such as "corstone300", in the place of this machine's runtime: Arm's own firmware,
                started anew, with the first values of all states. See `board`. A Neutron program for silicon, which
                this machine cannot run, runs in NXP's simulator where that is installed.

        Returns:
            The output, or a tuple where there are several.

        Raises:
            PayloadError: with ``check``, where the first difference is.
            ModelError: a dictionary has other names.
        """
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            inputs = rows_in_order(inputs[0], [tensor.name for tensor in self.report.inputs])
        if on is not None:
            if fast or check or profile is not False:
                raise OptionError("A board knows nothing of `fast`, `check` and `profile`.", hint="leave them out")
            with self.board(on) as board:
                results = tuple(torch.from_numpy(a.copy()) for a in board.run(*(_array(x) for x in inputs)))
        elif profile is not False:
            from micronpu.runtime import HostProgram, RunOptions

            with HostProgram(self.buffer, RunOptions(fast=fast), method=self._name) as host:
                results = host.record(*inputs, path=ETDUMP if profile is True else profile)
        else:
            try:
                results = self._results(*inputs, fast=fast, check=check)
            except PayloadError:
                from micronpu.board.nsys import chip_that_runs

                # A program for silicon, which the vendor's simulator runs where it is installed.
                chip = None if fast or check else chip_that_runs(self.buffer, self.report.target)
                if chip is None:
                    raise
                return self.run(*inputs, on=chip)
        return results[0] if len(results) == 1 else results

    def reset(self) -> None:
        """Sets the states back to their first values: the next call is the first of a sequence.

        That of ``quantized`` too.

        Raises:
            ModelError: the program has no state.
        """
        if not self.states:
            raise ModelError(
                "The program keeps nothing from one call to the next, so there is nothing to reset.",
                hint="a model that changes a buffer, or micronpu.streaming",
            )
        self.reset_states()

    def reset_states(self) -> None:
        """As `reset`, for programs with and without states."""
        if self.states:
            for host in self._host.values():
                if host.states:
                    host.reset()
            if "quantized" in vars(self):
                reset(self.quantized, self.states)

    def __rich__(self) -> RenderableType:
        from micronpu.report.views.terminal import program_view

        return program_view(self.report, self.seconds)

    def _repr_html_(self) -> str:
        """What a notebook shows: the report's page."""
        return self.report._repr_html_()

    def __str__(self) -> str:
        return f"{self.report.summary()}; .pte of {len(self.buffer):,} bytes"


def _array(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value
