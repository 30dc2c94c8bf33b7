"""Quantized modules from the user's arguments: check, export, optionally make sparse, then train or calibrate.

The methods of a program are checked, exported and quantized together; one model is the only method, "".
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.export import ExportedProgram

from micronpu.base.arguments import described
from micronpu.base.errors import MicroNpuError, ModelError, OptionError
from micronpu.compiler.candidates import Allowed
from micronpu.compiler.clock import Clock
from micronpu.compiler.precision import chosen
from micronpu.frontend import facts
from micronpu.frontend.checks import Train
from micronpu.frontend.export import as_inputs, export, input_names, rows_in_order, with_forward
from micronpu.frontend.exported import Exported, export_for_training, exported, graph_module, inputs_not_negative
from micronpu.frontend.graphs import GraphModule
from micronpu.frontend.integers import IntegerIO, integer_io_of, integer_states, keep_qparams, to_integer_io
from micronpu.frontend.model_files import opened
from micronpu.frontend.program import quantizes_of
from micronpu.frontend.tensors import State, copied, state_ends, states_of, written
from micronpu.ops.recurrent import CELLS, RECURRENT
from micronpu.program.file_facts import FileFacts
from micronpu.program.io import VECTORS
from micronpu.quantize.calibrate import calibrated, finished, forget, of_method
from micronpu.quantize.calibration_cache import FloatStatistics
from micronpu.quantize.data import (
    CalibrationData,
    Digests,
    HeldOut,
    Trial,
    calibration_batches,
    check_stateless,
    in_turn,
    of_model,
)
from micronpu.quantize.decompose import write_out
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.running import Call, Row
from micronpu.quantize.shared import check_qparams
from micronpu.quantize.thresholds import UNLIKE_ROWS
from micronpu.report.diagnosis import Frontier
from micronpu.report.sparsity import SparsityReport
from micronpu.report.warnings import ReportWarning
from micronpu.transforms.sparsity.entry import Reduce
from micronpu.transforms.sparsity.layers import keep_what_is_sparse
from micronpu.verify.against_module import of_module
from micronpu.verify.judge import check_metric
from micronpu.verify.static_checks import of_data

Method: TypeAlias = tuple[nn.Module | ExportedProgram | str | os.PathLike[str] | Callable[..., Any], Any]
"""A model, or a bound method of a module that computes something else than its forward, and its example inputs."""
Methods: TypeAlias = Mapping[str, Method]
Modules: TypeAlias = Mapping[str, tuple[nn.Module | ExportedProgram, Any]]
"""Modules and their example inputs by method; the name of the only one is ""."""
_EXAMPLE = '{"prefill": (model, (tokens,)), "decode": (model, (token,))}'


@dataclass(frozen=True)
class Quantized:
    """A quantized model, from which programs are made, and the reference for them."""

    module: GraphModule  # with its states as its last inputs and outputs
    examples: tuple[torch.Tensor, ...]  # inputs for it
    rows: tuple[tuple[torch.Tensor, ...], ...]  # the first samples of the user's data, in its dtypes
    trial: Trial  # the samples for the evaluation, in the float model's dtypes
    integer_io: IntegerIO | None = None  # converts the samples to integers; None if the program takes them as they are
    sparsity: SparsityReport | None = None  # report on its sparse weights, or None
    notes: tuple[str, ...] = ()  # notes about its weights
    warnings: tuple[ReportWarning, ...] = ()  # about the calibration data
    digests: Digests = Digests()  # noqa: RUF009 (a frozen value)  # of the user's arguments
    frontier: Frontier | None = None  # measurements of a search for precision; None without one, or if int8 suffices
    results: list[list[Row]] | None = None  # results of the module for all calls of the trial; None if unknown
    proposal: str = ""  # hint for more precision than int8; "" without one
    names: tuple[str, ...] = ()  # of the inputs, if they were given in a dictionary
    file: FileFacts = FileFacts()  # noqa: RUF009 (a frozen value)  # what the model's file states

    @property
    def meaning(self) -> IntegerIO | None:
        """Meaning of integer inputs and outputs: requested, or that of the file; None for floats."""
        return self.integer_io or integer_io_of(self.module)

    @property
    def states(self) -> tuple[State, ...]:
        return states_of(self.module).values

    @classmethod
    def of(cls, given: Exported, data: CalibrationData | None, quantizer: StaticQuantizer, alone: bool) -> Quantized:
        """Return a model before quantization, with its data; in data `alone`, no other method writes its states."""
        file = facts.FILE_FACTS.of(given.module)
        notes, digests = (*_import_notes(given.module), *file.lines()), Digests(of_model(given))
        if data is None:
            rows = (given.examples,)
            return cls(given.module, given.examples, rows, Trial((rows,)), notes=notes, digests=digests, file=file)
        names = [n.name for n in given.module.graph.find_nodes(op="placeholder")][: len(given.examples)]
        count, default = sum(map(len, data.sequences)), quantizer.settings.default
        steps = 65535 if default is not None and default.activations == "int16" else 255
        only_read = [state.name for state, holder, value in state_ends(given.module) if alone and value is holder]
        warnings = of_data(data.rows, names, count, data.distinct, steps, only_read)
        return cls(
            given.module,
            given.examples,
            data.rows[:VECTORS],
            data.trial,
            notes=notes,
            warnings=warnings,
            digests=replace(digests, data=data.digests),
            file=file,
        )

    def quantized(self, module: GraphModule, quantizer: StaticQuantizer) -> Quantized:
        """Return the model after quantization."""
        # An input that is standardized before it is quantized has no scale that could be too large.
        # One that the search made int16 has no such scale either, and the warnings are those of int8.
        default = quantizer.settings.default
        wide = torch.int8 if default is not None and default.activations == "int16" else torch.int16
        inputs = module.graph.find_nodes(op="placeholder")
        raw = {n.name for n in inputs if any(wide not in q.args for q in quantizes_of(n))}
        warnings = tuple(w for w in self.warnings if w.rule != "unlike-features" or w.node in raw)
        notes = (*self.notes, *(f"`{name}` is {_DISTANCE}" for name in facts.DISTANCES.of(module)))
        made = replace(self, module=module, warnings=warnings, notes=notes)
        if (io := quantizer.settings.io) is None:
            return made
        integer_io = to_integer_io(module, as_bytes=io.as_bytes)
        rows, examples = tuple(map(integer_io.quantize, self.rows)), integer_io.quantize(self.examples)
        return replace(made, integer_io=integer_io, rows=rows, examples=examples)


_DISTANCE = (
    f"a distance of an input, as of an autoencoder: its range and those before it are {UNLIKE_ROWS:g} times those of "
    "calibration, and larger distances saturate. Choose a threshold by the program's results on rows beyond it."
)


def _without_calls(trial: Trial) -> Trial:
    """Return a trial without its place among the calls that calibrated: an observer of several methods sees all."""
    others = None if trial.others is None else replace(trial.others, calibrated=())
    return replace(trial, others=others, calibrated=())


def _import_notes(module: GraphModule) -> tuple[str, ...]:
    """Return notes of the report on converted dtypes, branches and loops."""
    converted = " and ".join(facts.CONVERTED.of(module))
    both = "both branches are computed and one result chosen, as no NPU branches; both cost cycles."
    notes = [f"The model's {converted} is computed as float32, also its inputs and outputs."] if converted else []
    if reason := facts.NOT_COMPARED.of(module):
        notes.append(f"The module is not compared with the file's own runtime, {reason}")
    if runtime := facts.COMPARED.of(module):
        notes.append(
            f"The tensors of the file were compared with {runtime}'s when it was read, and are equal but for rounding."
        )
    notes += [f"`{name}`: {both}" for name in facts.BOTH_BRANCHES.of(module)]
    notes += [f"{what} The other branch is always computed." for what in facts.LEFT_OUT.of(module)]
    for name, steps, ends_early in facts.WRITTEN_OUT.of(module):
        text = f"`{name}`: its {steps} steps are written out, as no NPU loops; each costs cycles and commands"
        notes.append(f"{text}, also those behind the end that data decide." if ends_early else f"{text}.")
    return tuple(notes)


def quantized_methods(
    methods: Modules,
    quantizers: Mapping[str, StaticQuantizer],
    calibration: Any,
    clock: Clock,
    *,
    train: Train | None = None,
    held_out: HeldOut | None = None,
    reduced: Reduce | None = None,
    float_too: bool = False,
    allowed: Allowed | None = None,
) -> dict[str, Quantized]:
    """Check all input, export and quantize methods, which share states by the names of their buffers.

    Args:
        methods, calibration: of `opened_methods`.
        quantizers: by method.
        train: trains the only method.
        reduced: makes weights sparse or of fewer bits; None to keep them.
        float_too: also run the float models on the samples for the evaluation.
        allowed: limits of a search for the best program; None for no search.

    Raises:
        MicroNpuError: methods disagree on a state, or anything that `micronpu.compile` raises.
    """
    with clock.step("export"):
        given = _exported(methods)
    if ready := [name for name, own in given.items() if not own.is_float]:
        if train is not None or reduced is not None:
            what = "trained" if train is not None else "made sparse"
            raise ModelError(f"The model is quantized already and cannot be {what}.", hint="the float model")
        if len(ready) < len(given):
            what = f"The method `{ready[0]}` is quantized already, and others are not."
            raise ModelError(what, hint="all of them in float")
    sequences, data = list[list[Call]](), dict[str, CalibrationData]()
    if not ready and (train is None or reduced is not None):
        sequences, data = _data(given, calibration, held_out or HeldOut(), float_too)
        for known in data.values():
            check_metric(known.trial)
    alone = len(given) > 1 and isinstance(calibration, Mapping)
    made = {name: Quantized.of(own, data.get(name), quantizers[name], alone) for name, own in given.items()}
    made = {
        name: replace(
            one,
            names=input_names(methods[name][0]),
            warnings=(*of_module(*methods[name], given[name], one.trial), *one.warnings),
            trial=one.trial if len(given) == 1 else _without_calls(one.trial),
        )
        for name, one in made.items()
    }
    if ready:
        for own in given.values():
            write_out(own.module, (*RECURRENT, *CELLS), early=False)  # those that the quantizer left in float
            keep_qparams(own.module)
        modules = {name: integer_states(own.module) for name, own in given.items()}
        check_qparams(modules)
        return {name: replace(one, module=modules[name]) for name, one in made.items()}
    if reduced is not None:
        quantizers = dict(quantizers)
        with clock.step("sparsify") as progress:
            for name, own in given.items():
                given[name], quantizers[name], report, notes = reduced(
                    own, data[name].sequences, quantizers[name], progress
                )
                made[name] = replace(made[name], sparsity=report, notes=notes)
    if train is not None:
        if reduced is None and any(own is not None for own in calibration.values()):
            what = "`train` and `calibration` are both given, and each chooses the ranges of the quantized tensors."
            raise ModelError(what, hint="leave out one of them")
        with clock.step("train"):
            modules = {name: _trained(own, quantizers[name], train) for name, own in given.items()}
    else:
        for name, own in given.items():
            facts.LOOPS_ALLOWED.say(own.module, True)
            rows = [row for calls in data[name].sequences for row in calls]
            facts.NOT_NEGATIVE.say(own.module, inputs_not_negative(own, rows))
        modules, made = _calibrated(given, made, sequences, quantizers, clock, allowed)
    return {name: one.quantized(modules[name], quantizers[name]) for name, one in made.items()}


def _trained(given: Exported, quantizer: StaticQuantizer, train: Train) -> GraphModule:
    check_stateless(given.states)
    from micronpu.quantize.qat import train_or_calibrate

    program = export_for_training(given.model, given.examples)
    return train_or_calibrate(program, [given.examples], quantizer, train, keep_what_is_sparse)


def _calibrated(
    given: Mapping[str, Exported],
    made: dict[str, Quantized],
    sequences: Sequence[Sequence[Call]],
    quantizers: Mapping[str, StaticQuantizer],
    clock: Clock,
    allowed: Allowed | None,
) -> tuple[dict[str, GraphModule], dict[str, Quantized]]:
    """Return the quantized modules, and `made` with the results of the search for them."""
    calls = sum(map(len, sequences))
    floats = {name: own.module for name, own in given.items()}
    second = copied(floats) if allowed is not None else None  # the first copy is consumed
    statistics = FloatStatistics() if second is not None else None
    with clock.step("quantize") as progress:
        prepared = calibrated(floats, sequences, quantizers, lambda done: progress(done / calls), statistics)
        modules = finished(prepared, sequences, quantizers, statistics)
        for name, module in floats.items():
            forget(module, modules[name])
    if second is None or allowed is None:
        return modules, made
    found = chosen(second, sequences, {n: m.trial for n, m in made.items()}, modules, allowed, clock, statistics)
    made = {
        name: replace(one, frontier=found.frontier, results=found.results.get(name), proposal=found.proposal)
        for name, one in made.items()
    }
    return dict(found.modules), made


# ---------------------------------------------------------------- the user's arguments


def check_methods(methods: Mapping[Any, object]) -> None:
    """Refuse what is no dictionary of methods."""
    if not methods:
        raise ModelError("The dictionary of methods is empty.", hint=_EXAMPLE)
    for name, value in methods.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ModelError(f"A method is called {name!r}, which is no name in C.", hint=_EXAMPLE)
        if not isinstance(value, tuple) or len(value) != 2:
            what = f"The method `{name}` is {described(value)}; it is a model with its example inputs."
            raise ModelError(what, hint=_EXAMPLE)


def opened_methods(methods: Methods, calibration: Any, verify_import: bool = True) -> tuple[Modules, object]:
    """Return methods as modules, and their calibration data, with inputs in order.

    Args:
        methods: by name; the name of the only one is "".
        calibration: calibration data by method, as for `micronpu.compile`; or a list of sequences of calls of any
            method, ``[[("prefill", inputs), ("decode", inputs), ...], ...]``.
        verify_import: False not to compare files with their runtimes.
    """
    found = {}
    for name, (model, examples) in methods.items():
        own = calibration.get(name) if isinstance(calibration, Mapping) else None
        with _named(name):
            network, inputs, own = opened(of_bound_method(model), examples, own, verify_import)
        found[name] = network, inputs
        if own is not None:
            calibration = {**calibration, name: own}
    named = {name: names for name, (network, _) in found.items() if (names := input_names(network))}

    def in_order(call: object) -> Any:
        if isinstance(call, tuple) and len(call) == 2 and isinstance(call[0], str) and call[0] in named:
            return call[0], rows_in_order(call[1], named[call[0]])
        return call

    if isinstance(calibration, list):
        calibration = [[*map(in_order, own)] if isinstance(own, list) else own for own in calibration]
    return found, calibration


def _exported(methods: Modules) -> dict[str, Exported]:
    """Return all methods as graphs. A buffer that one of them writes is a state of each that reads it."""
    programs: dict[str, Any] = {name: model for name, (model, _) in methods.items()}
    paths = set[str]()
    if len(methods) > 1:
        for name, (model, examples) in methods.items():
            with _named(name):
                programs[name] = model if isinstance(model, GraphModule) else export(model, as_inputs(examples))
        paths = {path for program in programs.values() for path in written(graph_module(program))}
    given = {}
    for name, (model, examples) in methods.items():
        with _named(name):
            given[name] = replace(exported(programs[name], examples, paths), model=model)
    _check_states(given)
    return given


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Add the name of the method to errors; that of the only one is ""."""
    try:
        yield
    except MicroNpuError as error:
        if not name:
            raise
        raise type(error)(f"Method `{name}`: {error.what}", hint=error.hint) from error


def of_bound_method(model: object) -> object:
    """Return the module whose forward is a bound method; anything else unchanged."""
    # It is the user's module with another forward: its parameters, and the names of its buffers.
    if not inspect.ismethod(model) or not isinstance(model.__self__, nn.Module):
        return model
    return with_forward(model.__self__, model.__func__)


def _check_states(given: Mapping[str, Exported]) -> None:
    """Raise `ModelError` if a state is not the same tensor in all methods that have it."""
    seen: dict[str, tuple[str, State]] = {}
    nodes: dict[str, str] = {}
    for method, own in given.items():
        for state in own.states.values:
            if nodes.setdefault(state.node, state.name) != state.name:
                what = f"The states `{nodes[state.node]}` and `{state.name}` would have one name in the program."
                raise ModelError(what, hint="names of buffers that differ in more than dots and underscores")
            other, known = seen.setdefault(state.name, (method, state))
            both = f"The methods `{other}` and `{method}`"
            one, two = (f"{s.dtype}{list(s.initial.shape)}" for s in (known, state))
            if one != two:
                what = f"{both} disagree on the state `{state.name}`: {one} in the one and {two} in the other."
                raise ModelError(what, hint="the same buffer in both, or buffers of different names")
            if not torch.equal(known.initial, state.initial):
                what = f"{both} begin with different values of the state `{state.name}`."
                raise ModelError(what, hint="methods of one module, or the same first values in both")


def _data(
    given: Mapping[str, Exported], calibration: object, held_out: HeldOut, float_too: bool
) -> tuple[list[list[Call]], dict[str, CalibrationData]]:
    """Return calibration data as sequences of calls, and the data of each method."""
    if calibration is None or isinstance(calibration, Mapping):
        known = dict(calibration or {})
        if more := known.keys() - given.keys():
            what = f"There is calibration data for `{sorted(more)[0]}`, which is no method."
            raise ModelError(what, hint=f"one of {_names(given)}")
        if lacking := given.keys() - known.keys():
            raise ModelError(
                f"The method `{sorted(lacking)[0]}` has no calibration data to choose the ranges of its tensors.",
                hint="calibration={...} with an entry for each method, or a list of sequences of calls of all of them",
            )
        data = {}
        for name, own in given.items():
            with _named(name):
                data[name] = CalibrationData.of(own, known[name], _held_out(held_out, name, given), float_too=float_too)
        return [[(name, row) for row in rows] for name, own in data.items() for rows in own.sequences], data
    return _calls(given, calibration, held_out, float_too)


def _held_out(asked: HeldOut, name: str, given: Mapping[str, object]) -> HeldOut:
    own = {option: getattr(asked, option) for option in ("data", "labels", "metric") if name}
    for option, value in own.items():
        if isinstance(value, Mapping):
            if more := value.keys() - given.keys():
                what = f"`{option}` of verify= has an entry for `{sorted(map(str, more))[0]}`, which is no method."
                raise OptionError(what, hint=f"one of {_names(given)}")
            own[option] = value.get(name)
        elif value is not None and option != "metric":
            raise OptionError(
                f"`{option}` of verify= is {described(value)}, and each of several methods has its own.",
                hint=f'Verification({option}={{"{name}": ...}})',
            )
    return replace(asked, **own)


def _calls(
    given: Mapping[str, Exported], calibration: object, held_out: HeldOut, float_too: bool
) -> tuple[list[list[Call]], dict[str, CalibrationData]]:
    """Return the same for sequences in which methods alternate."""
    hint = '[[("prefill", inputs), ("decode", inputs), ...], ...], or {"prefill": ..., "decode": ...}'
    if isinstance(calibration, str) or not isinstance(calibration, Sequence):
        raise ModelError(f"Calibration data of several methods is {described(calibration)}.", hint=hint)
    if held_out.held_out:
        raise OptionError(
            "`held_out` counts samples of one method, and in the calibration data methods alternate.",
            hint="held_out=0, data= by method, or calibration data by method",
        )
    sequences: list[list[Call]] = []
    for number, sequence in enumerate(in_turn(calibration, "calibration")):
        if not isinstance(sequence, list) or not sequence:
            raise ModelError(f"The calibration sequence {number} is no list of calls.", hint=hint)
        sequences.append([])
        for call in sequence:
            if not isinstance(call, tuple) or len(call) != 2 or call[0] not in given:
                what = f"The calibration sequence {number} holds {described(call)}, which is no call of a method"
                raise ModelError(f"{what} ({_names(given)}).", hint=hint)
            name, row = call
            with _named(name):
                sequences[-1] += [(name, one) for one in calibration_batches([row], given[name].examples)]
    data = {}
    for name, own in given.items():
        calls = of_method(name, sequences)
        if not calls:
            raise ModelError(f"The method `{name}` has no calibration data: no sequence calls it.", hint=hint)
        own_data = calls if own.states else [row for sequence in calls for row in sequence]
        asked = _held_out(held_out, name, given)
        asked = asked if asked.data is not None else replace(asked, held_out=0)
        data[name] = CalibrationData.of(own, own_data, asked, float_too=float_too)
    return sequences, data


def _names(given: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in given)
