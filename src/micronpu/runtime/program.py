"""A compiled program on the host, run by the stock ExecuTorch runtime and our plug-in."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from micronpu.base.arguments import check_text, check_type
from micronpu.base.errors import FileError, MicroNpuError, ModelError, NotOnHostError, OptionError, PayloadError
from micronpu.base.files import check_name, check_writable, read_file, write_file
from micronpu.base.leaving import scratch_folder
from micronpu.base.texts import inside
from micronpu.host.build import build_plugin
from micronpu.host.litert_executor import Mode
from micronpu.host.proof import Proof, Reference
from micronpu.program.digest import Digest, state_of
from micronpu.program.io import ranges_of
from micronpu.program.operators import needs_torch
from micronpu.program.plan import recorded_bytes
from micronpu.program.plan_check import check_plan
from micronpu.program.pte import MethodSummary, PteSummary, TensorValue, read_pte
from micronpu.runtime.arguments import TensorSignature, argument, check_count, signature_of
from micronpu.runtime.counts import Counts
from micronpu.runtime.isolated import IsolatedProgram
from micronpu.runtime.native import NativeError, NativeMethods, has_all, has_arrays
from micronpu.runtime.plugin import Plugin, load_plugin
from micronpu.runtime.run_options import RunOptions
from micronpu.targets.registry import BACKENDS, backend_with
from micronpu.upstream.executorch import load_program, registered_backends, registered_operators

if TYPE_CHECKING:
    import torch

EXECUTORCH = threading.RLock()
"""Lock held around every call of ExecuTorch, by all programs of the process.

Each call of its Python interface redirects C++'s standard output and restores it afterwards. The simulators release
Python's lock in between, so overlapping calls would restore each other's state and cause a segmentation fault.
"""
_UNNAMED = "The program"
VALUES = ".values"
"""Suffix of a file with recorded values, added to the name of its ETDump."""
_DELEGATES = frozenset(backend.backend_id for backend in BACKENDS.values() if backend.backend_id)
"""Delegates that the plug-in registers; others come with ExecuTorch's Python interface."""
_Bytes = bytes | bytearray | memoryview
Convert = Callable[[str, int, Any, TensorValue], Any]


class HostProgram:
    """A `.pte` loaded for the host.

        program = HostProgram("kws.pte")
        (scores,) = program.run(features)

    Args:
        source: path of a `.pte`, or its bytes.
        options: how to run.
        method: which of the program's methods to load, together with those that share a state with it.
        name: what to call the program in messages; default: its path.
        references: for each payload, what to compare its runs with instead of the graph that the program carries.

    Attributes:
        checks: results of the comparisons of the last run, by payload, if they run in this process.

    The program runs through the plug-in's C interface. ExecuTorch's Python interface, which imports torch, is used only
    if the program needs it: to record a profile, for bfloat16, for kernels that a library for torch registers and for
    delegates of other packages.

    Raises:
        PayloadError: the file is not a complete `.pte`, or does not match its digest; its plan is unsafe to run; a
            payload is truncated, corrupted, of another version or for silicon; it needs a delegate or operator that the
            host lacks; or, isolated, it ends its process.
        RuntimeUnavailableError: the plug-in cannot be built or loaded.
        OptionError: there is no such method.
    """

    _checks_digest = True
    _native: NativeMethods | None = None

    def __init__(
        self,
        source: str | os.PathLike[str] | _Bytes,
        options: RunOptions | None = None,
        *,
        method: str = "forward",
        name: str = "",
        references: Mapping[bytes, Reference] | None = None,
    ) -> None:
        check_type("options", options, RunOptions, type(None), hint="RunOptions(fast=True)")
        check_text("method", method, "the name of a method")
        check_text("name", name)
        check_type("references", references, Mapping, type(None), hint="program.run(x, check=True)")
        self.options = options or RunOptions()
        self.method_name = method
        self._lock = threading.RLock()
        self._data, origin = _read(source)
        self._name = name or origin
        summary = read_pte(self._data, name=self._name)
        self.checks = _proofs(summary, self._name, references or {}) if self.options.check else {}
        if method not in summary.methods:
            raise OptionError(
                f"{self._name} has no method {method!r}.",
                hint=f"one of {', '.join(map(repr, sorted(summary.methods)))}",
            )
        self._summary: MethodSummary = summary.methods[method]
        self._methods = {m.name: m for m in summary.sharing(method)}
        self._ranges = {name: ranges_of(summary.named_data, name) for name in self._methods}
        self.digest = state_of(self._data, self._name)
        # Trust nothing in a damaged one, which runs only in a separate process.
        self._counts = Counts(self._data, self._methods if self.digest is not Digest.WRONG else (), summary.named_data)
        del summary  # frees copies of all payloads; the runtime makes its own
        self._isolated: IsolatedProgram | None = None
        self._program: Any = None
        self._method: Any = None
        self._recorded = 0
        self._has_record, self._is_spent = False, False
        if self._checks_digest and self._is_isolated(is_file=not isinstance(source, _Bytes)):
            build_plugin()  # that process may neither start a compiler nor write files
            for delegate in {d for m in self._methods.values() for d in m.delegates}:
                if (backend := backend_with(delegate)) is not None:
                    backend.build_host()
            called = sorted({operator for m in self._methods.values() for operator in m.operators})
            operators = called if self._may_be_native() else None
            self._isolated = IsolatedProgram(self._data, self._name, self.options, method, operators)
            return
        self._start()

    def _is_isolated(self, is_file: bool) -> bool:
        """True if the program must run in a separate process; a damaged one is refused unless isolation was
        requested."""
        if self.digest is Digest.WRONG and not self.options.isolated:
            raise PayloadError(
                f"{self._name} is damaged: its contents do not have the digest that it carries.",
                hint="copy the file again; RunOptions(isolated=True), or `micronpu run --isolated`, runs it "
                "in a separate process",
            )
        if self.options.isolated is None:
            return is_file and self.digest is Digest.MISSING
        return self.options.isolated

    @property
    def is_isolated(self) -> bool:
        """True if the program runs in a separate process."""
        return self._isolated is not None

    @property
    def is_native(self) -> bool:
        """True if the program runs without ExecuTorch's Python interface, in this process."""
        return self._native is not None

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the loaded methods: the requested one, and those that share a state with it."""
        return tuple(self._methods)

    @property
    def inputs(self) -> tuple[TensorSignature | None, ...]:
        """Signature of each input; None for an input that is not a tensor."""
        return tuple(map(signature_of, self._summary.inputs))

    @property
    def outputs(self) -> tuple[TensorSignature | None, ...]:
        """Signature of each output; None for an output that is not a tensor."""
        return tuple(map(signature_of, self._summary.outputs))

    @property
    def states(self) -> tuple[TensorSignature, ...]:
        """Signature of each buffer that persists across calls; see `reset`."""
        places = {p: s for m in self._methods.values() for p, s in zip(m.state_places, m.states, strict=True)}
        return tuple(TensorSignature(s.dtype, s.shape) for s in places.values())

    @property
    def delegates(self) -> tuple[str, ...]:
        """Names of the delegates that the method calls, one for each delegated partition."""
        return self._summary.delegates

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, if the model was compiled with a dictionary of example inputs; else ()."""
        return self._summary.names.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, such as "boxes.0", if the model returns a dictionary; else ()."""
        return self._summary.names.outputs

    def run(self, *inputs: torch.Tensor | Mapping[str, torch.Tensor], method: str | None = None) -> Any:
        """Run a method once.

        Args:
            inputs: CPU tensors of the shapes and types in `inputs`; their memory layout does not matter. Or one
                dictionary of them by `input_names`.
            method: one of `methods`; default: the loaded one.

        Returns:
            New tensors, one per output, in a tuple; or a dictionary if the model returns a dictionary, a dataclass or a
            named tuple.

        Raises:
            ModelError: inputs of another number, name, type or shape.
            PayloadError: the program fails.
        """
        names = self._loaded_method(self.method_name if method is None else method).names
        return names.named(self.run_in_order(*names.in_order(inputs), method=method))

    def run_in_order(self, *inputs: torch.Tensor, method: str | None = None) -> tuple[torch.Tensor, ...]:
        """Like `run`, with inputs and outputs in the program's order, without names."""
        name = self.method_name if method is None else method
        arguments = self._arguments(inputs, self._loaded_method(name))
        with self._lock:
            if self._isolated is not None:
                results = self._isolated.run(arguments, name, self._loaded_method(name).outputs)
                self._counts.called(name)
                return results
            if self._native is not None:
                import torch

                return tuple(map(torch.from_numpy, self._run_native([a.numpy() for a in arguments], name)))
            self._check_open(self._method is not None)
            with EXECUTORCH:
                if self._is_spent:  # ExecuTorch's recorder writes once, and then ends the process
                    self._recorded, self._is_spent = 0, False
                    self._load_locked()
                    self._counts.reset()
                self._reserve()
                self._plugin.clear_error()
                try:
                    self._has_record = True
                    made = tuple(self._method[name](arguments))
                    self._counts.called(name)
                    return made
                except RuntimeError as error:
                    raise self._failure(f"{self._name} failed in method {name!r}", error) from error

    def _loaded_method(self, name: str) -> MethodSummary:
        if name not in self._methods:
            raise OptionError(
                f"{self._name} is loaded without the method {name!r}.",
                hint=f"one of {', '.join(map(repr, self._methods))}, or load it with method={name!r}",
            )
        return self._methods[name]

    def _run_native(self, arrays: Sequence[Any], method: str) -> list[Any]:
        """Run on arrays of the program's types, shapes and order of axes; return new arrays."""
        assert self._native is not None
        try:
            with EXECUTORCH:
                self._check_open(not self._native.is_closed)
                results = self._native.run(method, arrays)
                self._counts.called(method)
                return results
        except NativeError as error:
            raise self._failure(f"{self._name} failed in method {method!r}", error) from error

    def _check_open(self, is_open: bool) -> None:
        if not is_open:
            raise ModelError(f"{self._name} is closed.", hint=f"load it again with {type(self).__name__}")

    def reset(self) -> None:
        """Reset the program's states to their initial values: the next call is the first of a sequence.

        The program is loaded again, which discards the current recording of a profile.

        Raises:
            ModelError: the program has no state, or is closed.
            PayloadError: it cannot be loaded again.
        """
        self._check_states()
        with self._lock:
            self._counts.reset()
            if self._isolated is not None:
                self._isolated.ask({"do": "reset"})
                return
            # The runtime initializes states when it loads a method, and its Python interface loads each method once.
            if self._native is not None:
                with EXECUTORCH:
                    self._check_open(not self._native.is_closed)
                    self._native.close()
                    self._load_native()
                return
            self._check_open(self._method is not None)
            with EXECUTORCH:
                self._method = self._program = None
                self._recorded = 0
                self._load_locked()

    def _check_states(self) -> None:
        if not self.states:
            raise ModelError(
                f"{self._name} keeps nothing from one call to the next, so there is nothing to reset.",
                hint="a model that changes a buffer, or micronpu.streaming",
            )

    def profile(
        self, *inputs: torch.Tensor, etdump: str | os.PathLike[str], debug_buffer: str | os.PathLike[str] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Run once with recording enabled, and save the record; see `save_etdump`. Returns the outputs.

        A separate copy of the program records, so a program loaded without `profile` stays fast.
        """
        needed = self._most_recorded if debug_buffer is not None else 0
        options = replace(self.options, profile=True, debug_buffer_size=needed, isolated=self.is_isolated)
        with HostProgram(self._data, options, method=self.method_name, name=self._name) as recorder:
            outputs = recorder.run_in_order(*inputs)
            recorder.save_etdump(etdump, debug_buffer)
        return outputs

    def record(self, *inputs: torch.Tensor, path: str | os.PathLike[str]) -> tuple[torch.Tensor, ...]:
        """Like `profile`, with the recorded values beside the ETDump, in ``PATH.values``."""
        return self.profile(*inputs, etdump=path, debug_buffer=f"{os.fspath(path)}{VALUES}")

    def save_etdump(self, etdump: str | os.PathLike[str], debug_buffer: str | os.PathLike[str] | None = None) -> None:
        """Write the recording since loading, or since the last save, for ExecuTorch's `Inspector`.

        Delegate events carry the LiteRT operator's index as identifier and its name as metadata; their times are those
        of the functional simulator on this host. Values are laid out as in the LiteRT program.

        Args:
            etdump: path of the ETDump file.
            debug_buffer: path for the recorded values; None to omit them.

        Raises:
            OptionError: the program was loaded without `profile`, or without recording of values.
            ModelError: the program is closed, or has not run since.
            FileError: a path is invalid, or a file cannot be written.
            PayloadError: ExecuTorch cannot save its record.
        """
        if not self.options.profile:
            raise OptionError(
                f"{self._name} was loaded without recording, so there is no ETDump to save.",
                hint="HostProgram(path, RunOptions(profile=True)), or its method profile()",
            )
        if debug_buffer is not None and not self.options.debug_buffer_size:
            raise OptionError(
                f"{self._name} was loaded with debug_buffer_size=0, so there are no recorded values to save.",
                hint="save_etdump(path) without debug_buffer",
            )
        target = check_name(etdump)
        beside = None if debug_buffer is None else check_name(debug_buffer)
        for path in (target, *([beside] if beside is not None else [])):
            check_writable(path)
        with self._lock:
            if self._isolated is not None:
                parts = self._isolated.save(values=beside is not None)
                for path, part in zip((target, beside) if beside is not None else (target,), parts, strict=True):
                    write_file(path, part)
                return
            if self._program is None:
                raise ModelError(f"{self._name} is closed.", hint="save the ETDump before close()")
            if not self._has_record:
                raise ModelError(
                    f"{self._name} has not run since it was loaded or its ETDump saved, so nothing is recorded.",
                    hint="run it first",
                )
            try:
                with scratch_folder(".micronpu-") as scratch:
                    record, values = scratch / "etdump", scratch / "values"
                    with EXECUTORCH:
                        self._has_record, self._is_spent = False, True
                        self._program.write_etdump_result_to_file(str(record), str(values))
                    # Written, not moved into place: the target may be a device, such as /dev/null, or another user's
                    # link.
                    if beside is not None:
                        write_file(beside, values.read_bytes())
                    write_file(target, record.read_bytes())
            except (OSError, RuntimeError) as error:
                raise PayloadError(
                    f"The ETDump cannot be written to {target}: {error}.",
                    hint="run the program at least once before, and check the path",
                ) from error

    def close(self) -> None:
        """Free the program now; running it afterwards is an error. Safe to call twice."""
        with self._lock:
            with EXECUTORCH:
                if self._native is not None:
                    self._native.close()
                self._method = None
                self._program = None
            isolated, self._isolated = self._isolated, None
            if isolated is not None:
                isolated.close()

    def __reduce__(self) -> NoReturn:
        """Raise `OptionError`: a program cannot be pickled or copied, since the runtime owns its states."""
        raise OptionError(
            f"A {type(self).__name__} is a program that is open, which cannot be pickled or copied.",
            hint=f"pickle its file or bytes, and construct a {type(self).__name__} from them there",
        )

    def __enter__(self) -> HostProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        signature = ", ".join(map(str, self.inputs)) + " -> " + ", ".join(map(str, self.outputs))
        return f"HostProgram({self._name}: {self.method_name}({signature}), delegates: {list(self.delegates)})"

    def _start(self) -> None:
        native = self._may_be_native()
        self._plugin: Plugin = load_plugin(torch=not native)  # first: it registers the schemas of the kernels
        if native and not all(has_all(self._plugin, m.operators) for m in self._methods.values()):
            native, self._plugin = False, load_plugin()  # has more kernels, or reports the missing ones
        for method in self._methods:
            check_plan(self._data, self._name, method)
        with EXECUTORCH:
            if native:
                self._load_native()
            else:
                self._load_locked()

    def _may_be_native(self) -> bool:
        return not self.options.profile and all(
            _DELEGATES.issuperset(m.delegates) and has_arrays(m) and not needs_torch(m.operators)
            for m in self._methods.values()
        )

    def _load_native(self) -> None:
        try:
            with self._plugin.mode(self._mode, self.checks, self._payloads):
                self._native = NativeMethods(self._plugin, self._data, list(self._methods.values()))
        except NativeError as error:
            raise self._failure(f"{self._name} cannot be loaded", error) from error

    def _load_locked(self) -> None:
        for delegate in dict.fromkeys(d for m in self._methods.values() for d in m.delegates):
            if delegate not in (known := registered_backends()):
                raise NotOnHostError(
                    f"{self._name} calls the delegate {delegate!r}, which is not registered on the host.",
                    hint=f"compile the model for a target whose delegate is one of {', '.join(sorted(known))}",
                )
        wanted = {operator for m in self._methods.values() for operator in m.operators}
        missing = sorted(wanted - set(registered_operators()))
        if missing:
            raise NotOnHostError(
                f"{self._name} calls operators that the host runtime does not have: {', '.join(missing)}.",
                hint="import the package that registers their kernels before loading the program",
            )
        self._plugin.clear_error()
        try:
            self._program = load_program(
                self._data,
                profile=self.options.profile,
                debug_buffer_size=self.options.debug_buffer_size if self.options.profile else 0,
            )
            # Load all before running one: loading a method initializes its states.
            with self._plugin.mode(self._mode, self.checks, self._payloads):
                self._method = {name: self._program.load_method(name) for name in self._methods}
        except RuntimeError as error:
            self.close()
            raise self._failure(f"{self._name} cannot be loaded", error) from error

    @property
    def _mode(self) -> Mode:
        mode = Mode.FAST if self.options.fast else Mode.REFERENCE
        return mode | (Mode.GRAPH if self.options.graph else Mode.REFERENCE)

    @property
    def _payloads(self) -> tuple[memoryview, ...]:
        return tuple(payload for m in self._methods.values() for payload in m.payloads)

    @cached_property
    def _most_recorded(self) -> int:
        """Upper bound of the bytes that one run records in a debug buffer."""
        pairs = zip(self._summary.delegates, self._summary.payloads, strict=True)
        own = (f.recorded_bytes(payload) for name, payload in pairs if (f := backend_with(name)) is not None)
        return recorded_bytes(self._data, self.method_name, name=self._name) + sum(own)

    def _reserve(self) -> None:
        """Ensure that the values of one more run fit into the debug buffer."""
        if not self.options.profile or not self.options.debug_buffer_size:
            return
        needed = self._recorded + self._most_recorded
        if needed > self.options.debug_buffer_size:
            raise OptionError(
                f"One more run of {self._name_inside} may record {needed} bytes, but its debug buffer has "
                f"{self.options.debug_buffer_size}.",
                hint=f"RunOptions(profile=True, debug_buffer_size={needed}), or 0 to record times only",
            )
        self._recorded = needed

    @property
    def _name_inside(self) -> str:
        return inside(self._name)

    def _failure(self, what: str, error: RuntimeError) -> BaseException:
        """Return the exception for the user, with the plug-in's own message if there is one."""
        failure = self._plugin.take_error()
        if failure is None:
            detail = " ".join(str(error).split()).rstrip(".")
            return PayloadError(
                f"{what}, because the ExecuTorch runtime reports: {detail}.", hint="compile the model again"
            )
        if isinstance(failure.cause, MicroNpuError) or not isinstance(failure.cause, Exception | None):
            return failure.cause  # among them KeyboardInterrupt
        sentence, _, hint = failure.sentence.partition(" Try: ")
        return (NotOnHostError if failure.elsewhere else PayloadError)(
            f"{what}: {sentence}", hint=hint.rstrip(".") or "copy the file again, or compile the model again"
        )

    def _arguments(self, inputs: Sequence[object], method: MethodSummary, convert: Convert = argument) -> list[Any]:
        """Return the inputs for the runtime: checked, and in the memory layout of the program."""
        check_count(self._name, inputs, method)
        found = [
            given if wanted is None else convert(self._name_inside, position, given, wanted)
            for position, (given, wanted) in enumerate(zip(inputs, method.inputs, strict=True))
        ]
        self._check_positions(found, method.name)
        return found

    def _check_positions(self, inputs: Sequence[Any], method: str) -> None:
        """Refuse indices out of range, for which an NPU's lookup is undefined."""
        self._counts.check(method, self._name_inside)
        for number, size in self._ranges[method].items():
            if number < len(inputs) and math.prod(inputs[number].shape):
                low, high = int(inputs[number].min()), int(inputs[number].max())
                if low < 0 or high >= size:
                    raise ModelError(
                        f"Input {number} of {self._name_inside} has {low if low < 0 else high}, and is a number from 0 "
                        f"to {size - 1}.",
                        hint="tokens of the vocabulary, a text no longer than the cache, or reset() and a new sequence",
                    )


def _proofs(summary: PteSummary, name: str, references: Mapping[bytes, Reference]) -> dict[bytes, Proof]:
    found: dict[bytes, Proof] = {}
    for delegate, payload in summary.payloads:
        backend = backend_with(delegate)
        if backend is None or not backend.has_proof:
            continue
        proof = backend.proof(payload, summary.named_data, references.get(payload))
        if proof is None:
            raise OptionError(
                f"{name} carries no integer graph, with which its command stream could be compared.",
                hint="compile it with carry_graph=True, or CompiledProgram.run(..., check=True)",
            )
        found[backend.whole(payload, summary.named_data)] = proof
    if not found:
        raise OptionError(
            f"{name} has no command stream that runs here, so that there is nothing to check.",
            hint="run it without check=True: its integer graph is what the laptop computes",
        )
    return found


def _read(source: str | os.PathLike[str] | _Bytes) -> tuple[bytes, str]:
    """Return the program's bytes, and its name in messages."""
    if isinstance(source, _Bytes):
        return bytes(source), _UNNAMED
    try:
        return read_file(source, "The program"), str(source)
    except FileError as error:
        raise PayloadError(error.what, hint=error.hint) from error
