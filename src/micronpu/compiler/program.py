"""The compiled program."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, cast

import numpy as np
import torch
from typing_extensions import TypeVar

from micronpu.base.arguments import check_switch, check_text, check_type
from micronpu.base.errors import MicroNpuError, ModelError, OptionError, PayloadError, UnsupportedError
from micronpu.base.files import check_name, write_file
from micronpu.frontend.graphs import GraphModule
from micronpu.frontend.tensors import State, copied, reset
from micronpu.partition.device import CompiledPartition
from micronpu.program.containers import Names
from micronpu.program.io import file_facts_of
from micronpu.program.pte import read_pte
from micronpu.report.delegation import DelegationReport, MethodsReport
from micronpu.report.manifest import Basis, Manifest, Sources
from micronpu.report.shown import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from micronpu.board.nsys import NsysBoard
    from micronpu.board.session import VirtualBoard
    from micronpu.deploy.deployment import Deployment, Source
    from micronpu.frontend.integers import IntegerIO
    from micronpu.host.proof import Reference
    from micronpu.runtime import HostProgram, RunOptions


LITERT_SUFFIX = ".tflite"
ONLY = "forward"
"""The method of a program with only one."""
ETDUMP = "profile.etdump"
"""Default path of a profile."""
_OF_THIS_PROCESS = ("partitions", "quantized")
"""Attributes of a method that cannot be pickled."""

ReportT = TypeVar("ReportT", bound=DelegationReport | MethodsReport, default=DelegationReport)


@dataclass(frozen=True)
class FinishedMethod:
    """A finished method.

    Attributes:
        name: "" if the file has only one.
        partitions, quantized: graphs of torch, which cannot be pickled; see `CompiledProgram`, also for the others.
        examples: inputs for the quantized model.
        kernels: debug handles of operators on the core, by the number of the instruction.
    """

    name: str
    report: DelegationReport
    partitions: tuple[CompiledPartition, ...]
    quantized: torch.nn.Module
    integer_io: IntegerIO | None
    rows: tuple[tuple[torch.Tensor, ...], ...]
    states: tuple[State, ...]
    examples: tuple[torch.Tensor, ...]
    kernels: Mapping[int, tuple[int, ...]]

    @property
    def has_graphs(self) -> bool:
        """False if it was pickled."""
        return "quantized" in vars(self)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in _OF_THIS_PROCESS}

    def __deepcopy__(self, memo: dict[int, Any]) -> FinishedMethod:
        if not self.has_graphs:
            return self
        made = replace(self, quantized=copied(self.quantized))
        made.reset()
        return made

    if not TYPE_CHECKING:  # or every attribute would be known

        def __getattr__(self, name: str) -> Any:
            if name in _OF_THIS_PROCESS:
                what = f"The program was pickled, and `{name}` does not travel with it."
                raise ModelError(what, hint="compile the model again")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def reset(self) -> None:
        if self.states and self.has_graphs:
            reset(self.quantized, self.states)


@dataclass(repr=False)
class CompiledProgram(Shown, Generic[ReportT]):
    """A finished program, with one method or several that share their states.

        program.run(x)
        program.run(tokens, positions, method="prefill")  # of a program with several methods

    With several methods, `quantized`, `integer_io` and `rows` are those of ``methods[name]``.  A copy has initial
    values in its states.  A pickled program has neither `partitions` nor `quantized`, which are graphs of torch with
    the user's model; it still runs, saves, deploys and has its report.

    Attributes:
        buffer: the bytes of the ``.pte``.
        data_files: further files that a board needs, by name: data that the options place outside of the program.
        seconds: wall time per step of the compilation, for all methods together.
        basis: inputs that determine the bytes; see `manifest`.
        method: name of the method if it is one of several; otherwise "".
    """

    buffer: bytes
    _methods: Mapping[str, FinishedMethod] = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    data_files: dict[str, bytes] = field(default_factory=dict)
    basis: Basis = Basis()  # noqa: RUF009 (a frozen value)
    method: str = ""
    _target: str = field(default="", repr=False)
    _names: dict[str, Names] = field(default_factory=dict, repr=False)
    _host: dict[tuple[RunOptions, str], HostProgram] = field(default_factory=dict, repr=False)

    @property
    def methods(self) -> dict[str, CompiledProgram]:
        """Each method as a program: its report, its quantized model, its inputs and outputs.

        They are in one file, and share the values of their states.
        """
        return {name or ONLY: cast("CompiledProgram", replace(self, method=name)) for name in self._methods}

    @property
    def report(self) -> ReportT:
        """The delegation report; of several methods the reports of all, and figures of the whole program."""
        own = self._methods.get(self.method)
        found = own.report if own is not None else MethodsReport({n: m.report for n, m in self._methods.items()})
        return cast("ReportT", found)

    @property
    def partitions(self) -> tuple[CompiledPartition, ...]:
        """The delegated parts with their graphs."""
        first, *rest = (own.partitions for own in self._selected)
        return sum(rest, first)

    @property
    def states(self) -> tuple[State, ...]:
        """Buffers that persist from one call to the next, each once, with their initial values."""
        return tuple({state.name: state for own in self._selected for state in own.states}.values())

    @property
    def quantized(self) -> torch.nn.Module:
        """The quantized model, for comparison; ``quantized(*inputs)`` runs it in eager mode."""
        return self._only("quantized").quantized

    @property
    def integer_io(self) -> IntegerIO | None:
        """Meaning of integer inputs and outputs, with ``quantize`` and ``dequantize``; None for floats."""
        return self._only("integer_io").integer_io

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the classes by their index, as the model's file states them; () without."""
        return file_facts_of(read_pte(self.buffer).named_data, self._only("labels").name).labels

    @property
    def rows(self) -> tuple[tuple[torch.Tensor, ...], ...]:
        """The first samples of the calibration data in the program's dtypes: golden vectors of `deploy`."""
        return self._only("rows").rows

    @property
    def _selected(self) -> tuple[FinishedMethod, ...]:
        """The method that was selected by `methods`, or all."""
        return (self._methods[self.method],) if self.method in self._methods else tuple(self._methods.values())

    def _only(self, attribute: str) -> FinishedMethod:
        """Return the only method, or the one that was selected by `methods`."""
        if len(self._selected) > 1:
            what = f"Each of the methods {', '.join(map(repr, self._methods))} has its own `{attribute}`."
            raise ModelError(what, hint=f"program.methods[{next(iter(self._methods))!r}]")
        return self._selected[0]

    def _of(self, method: str | None) -> CompiledProgram:
        """Return a method as a program; without a name the only or selected one, or "forward"."""
        if method is None and self.method in self._methods:
            return cast("CompiledProgram", self)
        known = self.methods
        if method is None:
            method = ONLY if len(known) > 1 else next(iter(known))
        check_text("method", method, "the name of a method")
        if method not in known:
            names = ", ".join(map(repr, known))
            raise OptionError(f"The program has no method {method!r}.", hint=f"method= one of {names}")
        return known[method]

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_host"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _host={})

    def with_report(self, report: DelegationReport, method: str = "") -> CompiledProgram[ReportT]:
        """Return the program with another report of a method."""
        made = replace(self._methods[method], report=report)
        return replace(self, _methods={**self._methods, method: made})

    def made_of(self, basis: Basis) -> CompiledProgram[ReportT]:
        """Return the program with the inputs that determine its bytes, whose digests its reports contain."""
        made = replace(self, basis=basis)
        for name, own in self._methods.items():
            made = made.with_report(replace(own.report, hashes={**own.report.hashes, **basis.hashes()}), name)
        return made

    def save(self, path: str | os.PathLike[str], *, vela: bool = False, manifest: bool = False) -> Path:
        """Write the ``.pte`` with all methods, and the data files beside it; a file is replaced only by a complete one.

        Args:
            path: if it ends in ".tflite", the quantized network is written as one LiteRT model; see `to_litert`.
            vela: see `to_litert`.
            manifest: also write the program's manifest, ``NAME.manifest.json`` beside it; see `manifest`.
        """
        check_switch("vela", vela)
        check_switch("manifest", manifest)
        path = check_name(path)
        if manifest:
            if path.suffix == LITERT_SUFFIX:
                raise OptionError(f"A manifest is about a program, but {path} is a LiteRT model.", hint="model.pte")
            self.manifest(path.name).save(Manifest.beside(path))
        if path.suffix == LITERT_SUFFIX:
            return write_file(path, self.to_litert(vela=vela))
        if vela:
            raise OptionError(f"`vela` is for a LiteRT model, but {path} is no {LITERT_SUFFIX}.", hint="model.tflite")
        for name, data in self.data_files.items():
            write_file(path.parent / name, data)
        return write_file(path, self.buffer)

    def manifest(self, program: str | os.PathLike[str] = "program.pte", sources: Sources | None = None) -> Manifest:
        """Return the manifest of the program, from which the same bytes can be rebuilt; see docs/stability.md.

        Args:
            program: name of its file.
            sources: the model and its data on the command line.
        """
        name = check_name(program).name
        blobs = {name: self.buffer, **self.data_files}
        hashes = {file: hashlib.sha256(data).hexdigest() for file, data in blobs.items()}
        return Manifest(name, len(self.buffer), hashes, self.basis, sources or Sources())

    def save_etrecord(self, path: str | os.PathLike[str], *inputs: torch.Tensor, method: str | None = None) -> Path:
        """Write the ETRecord, with which `executorch.devtools.Inspector` shows the source lines of the model.

        Args:
            inputs: of the recorded run, for `calculate_numeric_gap`; default: the example inputs.
            method: which of several methods; default: "forward".

        Raises:
            FileError: it cannot be written.
            OptionError: there is no such method.
        """
        from micronpu.compiler.etrecord import write_etrecord

        (own,) = self._of(method)._selected
        assert isinstance(own.quantized, GraphModule)
        row = inputs or own.examples or own.rows[0]
        return write_etrecord(path, own.quantized, row, self.buffer, own.partitions, own.kernels, own.name)

    def to_litert(self, *, method: str | None = None, vela: bool = False) -> bytes:
        """Return the quantized network as one LiteRT model of integers, with names and a signature.

        It is for LiteRT Micro on the core, the command `vela`, NXP's standalone converter, and Netron.  Inputs and
        outputs are those of the program with ``io="int8"``, in the same order and layout.

        Args:
            method: which of several methods; a LiteRT model holds one.
            vela: return the optimised model with the operator ``ethos-u`` and the command stream of this program.

        Raises:
            UnsupportedError: an operator stays in float; the message names each, with its line.
            OptionError: ``vela`` for a program without an Ethos-U, or there is no such method.
            ModelError: the program has several methods.
        """
        from micronpu.targets.whole import optimised_network, whole_network

        check_switch("vela", vela)
        own = (self if method is None else self._of(method))._only("LiteRT model")
        assert isinstance(own.quantized, GraphModule)
        return optimised_network(own.quantized, own.partitions) if vela else whole_network(own.quantized).data

    def deploy(
        self,
        folder: str | os.PathLike[str],
        *,
        target: str | None = None,
        vectors: Mapping[str, object] | None = None,
        name: str = "model",
        section: str | None = None,
        force: bool = False,
        functions: Sequence[str] = (),
    ) -> Deployment:
        """Write a folder with all that the firmware needs in addition to ExecuTorch's runtime; see docs/deploy.md.

        Args:
            folder: a new or empty folder.
            target: the board; default: the program's target.
            vectors: golden vectors: for each input in order an array with a row per vector; ``output_0`` and so on may
                follow. Of several methods a dictionary of them, by method. Default: the first samples of the
                calibration data.
            name: prefix of files and C symbols.
            section: linker section of the program.
            force: write into a folder that holds files; those of the same names are replaced.
            functions: C functions to add, of `micronpu.deploy.functions`: "resize", "nms" ...

        Raises:
            MicroNpuError: the program does not fit the target, vectors are invalid, or the folder holds files.
        """
        from micronpu.deploy.deployment import SECTION, deploy_together

        if self.method and len(self._methods) > 1:
            raise UnsupportedError(
                f"`{self.method}` is one of several methods, which go to a firmware together.",
                hint="deploy of the whole program; micronpu.compile(model, ...) for a program of this method alone",
            )
        return deploy_together(
            [self.source(name, vectors)],
            folder,
            target=self._own_target() if target is None else target,
            section=SECTION if section is None else section,
            force=force,
            functions=functions,
        )

    def source(self, name: str, vectors: Mapping[str, Any] | None) -> Source:
        """Return the program in the form that `deploy` takes; see there."""
        from micronpu.deploy.deployment import Source

        if self.method not in self._methods:
            check_type("vectors", vectors, Mapping, type(None), hint='{"decode": {"token": rows}}')
            for method in vectors or ():
                self._of(method)
            methods = {one: own.source(name, (vectors or {}).get(one)) for one, own in self.methods.items()}
            return Source(self.buffer, name, data_files=self.data_files, methods=methods)
        check_type("vectors", vectors, Mapping, type(None), hint="an array of rows per input, by name")
        integer_io = self.integer_io
        return Source(
            self.buffer,
            name,
            vectors=None if vectors is None else {n: np.asarray(a) for n, a in vectors.items()},
            rows=[tuple(t.detach().numpy() for t in row) for row in self.rows],
            known=(integer_io.inputs, integer_io.outputs) if integer_io is not None else None,
            run=self._runner(),
            data_files=self.data_files,
        )

    def _own_target(self) -> str | None:
        """Return the target that the program was compiled for, as it was named; None if its chip file is gone."""
        from micronpu.targets.registry import find_target

        with contextlib.suppress(MicroNpuError):
            find_target(self._target)
            return self._target
        return None

    def _references(self) -> dict[bytes, Reference]:
        """Return references for verifying runs of command streams, by payload."""
        from micronpu.host.proof import reference_of

        parts = [part for own in self._methods.values() if own.has_graphs for part in own.partitions]
        return {p.payload: reference_of(p.graph, p.written, p.flatbuffer) for p in parts if p.written}

    def _runner(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function that runs a copy of the program on arrays, call by call from the states' initial values."""
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
        """Return the program in the runtime of this machine, loaded once for each set of run options."""
        from micronpu.runtime import ArrayProgram, RunOptions

        options = RunOptions(fast=fast, check=check)
        for (other, name), host in self._host.items():
            if other == options and (name == self._name or self._name in host.methods):
                return host
        known = self._references() if check else None
        made = self._host[options, self._name] = ArrayProgram(self.buffer, options, method=self._name, references=known)
        return made

    def _results(self, *inputs: torch.Tensor, fast: bool = False, check: bool = False) -> tuple[Any, ...]:
        return self._loaded(fast=fast, check=check).run_in_order(*inputs, method=self._name)

    def board(
        self, on: str = "corstone300", *, method: str | None = None, seconds: float | None = None
    ) -> VirtualBoard | NsysBoard:
        """Return an emulated board that runs the program in Arm's own firmware, or NXP's simulator; see
        docs/virtual-board.md.

            with program.board() as board:
                (scores,) = board.run(features)  # NumPy arrays, as often as wanted

        Args:
            on: name of the board. If Arm has no ExecuTorch runner for it, the program runs as the LiteRT model of
                ``to_litert(vela=True)``, whose inputs and outputs are integers. "imxrt700", for a Neutron program for
                silicon, is NXP's simulator, if it is installed.
            method: which of several methods; default: "forward".  The firmware loads one: states persist from one call
                of it to the next, and are not shared with other methods.
            seconds: time limit of the start, and of each call.

        Raises:
            MicroNpuError: the board cannot run the program; or QEMU or the runner is missing.
            OptionError: there is no such method.
        """
        from micronpu.board.model import read_model
        from micronpu.board.nsys import NsysBoard, read_silicon
        from micronpu.board.nsys_tools import chips
        from micronpu.board.runners import has_runner
        from micronpu.board.session import SECONDS, VirtualBoard

        own = self._of(method)
        if on in chips():
            silicon = read_silicon(self.buffer, "The program", method=own.method)
            return NsysBoard(silicon, on, seconds=SECONDS if seconds is None else seconds)
        model = read_model(self.buffer, "The program", method=own.method)
        if not has_runner(on, model.format, model.family) and has_runner(on, "tflite", model.family):
            model = read_model(own.to_litert(vela=True), "The program's LiteRT model")
        return VirtualBoard(model, on, seconds=SECONDS if seconds is None else seconds)

    def run(
        self,
        *inputs: Any,
        method: str | None = None,
        fast: bool = False,
        check: bool = False,
        profile: bool | str | os.PathLike[str] = False,
        on: str | None = None,
    ) -> Any:
        """Run the program in the ExecuTorch runtime of this machine, the NPU's part in the simulator.

        Args:
            inputs: tensors with shape and dtype of the example inputs; or one dictionary of them, by the names of the
                example inputs or of ``report.inputs``.
            method: which of several methods; default: "forward".
            fast: optimised kernels, which may differ by one LSB from the bit-exact ones.
            check: compare the command stream of an Ethos-U with its graph after every common operation, which is slow;
                see `RunOptions`.
            profile: path for an ETDump of the run; the results of each operation are written to ``PATH.values``. True
                writes ``profile.etdump`` and ``profile.etdump.values``. See docs/profiling.md.
            on: an emulated board, such as "corstone300", instead of this machine's runtime: Arm's own firmware,
                restarted with the initial values of all states. See `board`. A Neutron program for silicon, which this
                machine cannot run, runs in NXP's simulator if it is installed.

        Returns:
            The output, or a tuple for several. A dictionary if the model returns a dictionary, a dataclass or a named
            tuple: of their names, nested as in the model.

        Raises:
            PayloadError: with ``check``, the place of the first difference.
            ModelError: a dictionary has other names.
            OptionError: there is no such method.
        """
        own = self._of(method)
        if not self._names:
            self._names.update({name: known.names for name, known in read_pte(self.buffer).methods.items()})
        names = self._names[own._name]
        inputs = tuple(names.in_order(inputs, [tensor.name for tensor in own.report.inputs]))
        if on is not None:
            if fast or check or profile is not False:
                raise OptionError("`fast`, `check` and `profile` are not available on a board.", hint="leave them out")
            with own.board(on) as board:
                results = tuple(
                    torch.from_numpy(a.copy())
                    for a in board.run(*(x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in inputs))
                )
        elif profile is not False:
            from micronpu.runtime import HostProgram, RunOptions

            with HostProgram(self.buffer, RunOptions(fast=fast), method=own._name) as host:
                results = host.record(*inputs, path=ETDUMP if profile is True else profile)
        else:
            try:
                results = own._results(*inputs, fast=fast, check=check)
            except PayloadError:
                from micronpu.board.nsys import chip_that_runs

                # A program for silicon, which the vendor's simulator runs if installed.
                chip = None if fast or check else chip_that_runs(self.buffer, own.report.target)
                if chip is None:
                    raise
                return own.run(*inputs, on=chip)
        named = names.named(results)
        return named[0] if isinstance(named, tuple) and len(named) == 1 else named

    def reset(self) -> None:
        """Reset the states to their initial values, also in ``quantized``: the next call is the first of a sequence.

        Raises:
            ModelError: the program has no state.
        """
        if not self.states:
            what = "The program keeps nothing from one call to the next, so there is nothing to reset."
            raise ModelError(what, hint="a model that changes a buffer, or micronpu.streaming")
        self.reset_states()

    def reset_states(self) -> None:
        """Reset the states of all methods, if there are any."""
        if any(own.states for own in self._methods.values()):
            for host in self._host.values():
                if host.states:
                    host.reset()
            for own in self._methods.values():
                own.reset()

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        from micronpu.report.views.terminal import program_view

        return Group(*(program_view(own.report, self.seconds) for own in self._selected))

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def __str__(self) -> str:
        return f"{self.report.summary()}; .pte of {len(self.buffer):,} bytes"


if TYPE_CHECKING:
    CompiledMethods: TypeAlias = CompiledProgram[MethodsReport]
else:
    CompiledMethods = CompiledProgram  # the name of a program with several methods, in annotations
