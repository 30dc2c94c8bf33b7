"""Compilation of several methods into one program: checked, exported, and quantized together."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from micronpu.base.arguments import described
from micronpu.base.errors import MicroNpuError, ModelError, OptionError
from micronpu.compiler.clock import Clock
from micronpu.compiler.quantized import Quantized, mark_for_calibration
from micronpu.frontend.export import as_inputs, export, input_names, rows_in_order, with_forward
from micronpu.frontend.exported import Exported, exported, graph_module
from micronpu.frontend.model_files import opened
from micronpu.frontend.tensors import State, written
from micronpu.partition.device import Device
from micronpu.quantize.calibrate import Call, forget
from micronpu.quantize.data import CalibrationData, calibration_batches, in_turn
from micronpu.quantize.quantization import Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.shared import Member, check_qparams, quantize_methods
from micronpu.verify.verification import Verification

Method: TypeAlias = tuple[nn.Module | ExportedProgram | str | os.PathLike[str] | Callable[..., Any], Any]
"""A model, or a bound method of a module that computes something else than its forward, and its example inputs."""
Methods: TypeAlias = Mapping[str, Method]
_EXAMPLE = '{"prefill": (model, (tokens,)), "decode": (model, (token,))}'


def quantized_methods(
    methods: Methods, device: Device, how: Quantization, calibration: Any, checks: Verification, clock: Clock
) -> dict[str, Quantized]:
    """Check, export and quantize several methods, which share states by the names of their buffers.

    Args:
        calibration: calibration data by method, as for `micronpu.compile`; or a list of sequences of calls of any
            method, ``[[("prefill", inputs), ("decode", inputs), ...], ...]``.

    Raises:
        MicroNpuError: methods disagree on a state, or anything that `micronpu.compile` raises.
    """
    if checks.data is not None or checks.metric is not None:
        raise OptionError(
            "`data` and `metric` judge one model, and each of several methods has its own outputs.",
            hint="micronpu.evaluate of each method, or micronpu.compile of one",
        )
    if how.activations in ("auto", "accurate"):
        raise OptionError(
            f'activations="{how.activations}" chooses for one method, and would choose otherwise for the next.',
            hint='"int16", or settings by module, such as `micronpu fix` finds for one method',
        )
    methods, calibration = _opened(_checked(methods), calibration)
    quantizers = {name: how.quantizer_for(device.quantizer, chooses=True) for name in methods}
    if next(iter(quantizers.values())).settings.corrections.need_data:
        raise OptionError(
            "Corrections that look at calibration data change the weights of one method, and methods share theirs.",
            hint="methods without bias_correction, adaptive_rounding and fit_ranges",
        )
    with clock.step("export"):
        given = _exported(methods)
    if any(method.is_float for method in given.values()):
        quantized = _quantized(given, quantizers, calibration, checks, clock)
    else:
        quantized = {name: Quantized.of_integers(method) for name, method in given.items()}
        check_qparams({name: one.module for name, one in quantized.items()})
    return {name: replace(one, names=input_names(methods[name][0])) for name, one in quantized.items()}


# ---------------------------------------------------------------- the user's arguments


def _checked(methods: Methods) -> Methods:
    if not methods:
        raise ModelError("The dictionary of methods is empty.", hint=_EXAMPLE)
    for name, value in methods.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ModelError(f"A method is called {name!r}, which is no name in C.", hint=_EXAMPLE)
        if not isinstance(value, tuple) or len(value) != 2:
            raise ModelError(
                f"The method `{name}` is {described(value)}; it is a model with its example inputs.", hint=_EXAMPLE
            )
    return methods


def _opened(methods: Methods, calibration: Any) -> tuple[Methods, Any]:
    """Return methods as modules, and their calibration data, with inputs in order."""
    found: dict[str, Method] = {}
    for name, (model, examples) in methods.items():
        own = calibration.get(name) if isinstance(calibration, Mapping) else None
        with _named(name):
            network, inputs, own = opened(_of_method(model), examples, own)
        found[name] = network, inputs
        if own is not None:
            calibration = {**calibration, name: own}
    named = {name: names for name, (network, _) in found.items() if (names := input_names(network))}

    def in_order(call: Any) -> Any:
        """Return a call of any method."""
        if isinstance(call, tuple) and len(call) == 2 and isinstance(call[0], str) and call[0] in named:
            return call[0], rows_in_order(call[1], named[call[0]])
        return call

    if isinstance(calibration, list):
        calibration = [[*map(in_order, own)] if isinstance(own, list) else own for own in calibration]
    return found, calibration


def _exported(methods: Methods) -> dict[str, Exported]:
    """Return all methods as graphs. A buffer that one of them writes is a state of each that reads it."""
    programs: dict[str, Any] = {}
    for name, (model, examples) in methods.items():
        with _named(name):
            programs[name] = model if isinstance(model, GraphModule) else export(model, as_inputs(examples))
    paths = {path for program in programs.values() for path in written(graph_module(program))}
    given = {}
    for name, (_, examples) in methods.items():
        with _named(name):
            given[name] = exported(programs[name], examples, paths)
    _check_states(given)
    return given


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Add the name of the method to errors."""
    try:
        yield
    except MicroNpuError as error:
        raise type(error)(f"Method `{name}`: {error.what}", hint=error.hint) from error


def _of_method(model: Any) -> Any:
    """Return the module whose forward is a bound method; anything else unchanged.

    It is the user's module with another forward: its parameters, and the names of its buffers.
    """
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
                raise ModelError(
                    f"The states `{nodes[state.node]}` and `{state.name}` would have one name in the program.",
                    hint="names of buffers that differ in more than dots and underscores",
                )
            other, known = seen.setdefault(state.name, (method, state))
            shapes = [(s.dtype, list(s.initial.shape)) for s in (known, state)]
            if shapes[0] != shapes[1]:
                raise ModelError(
                    f"The methods `{other}` and `{method}` disagree on the state `{state.name}`: "
                    f"{shapes[0][0]}{shapes[0][1]} in the one and {shapes[1][0]}{shapes[1][1]} in the other.",
                    hint="the same buffer in both, or buffers of different names",
                )
            if not torch.equal(known.initial, state.initial):
                raise ModelError(
                    f"The methods `{other}` and `{method}` begin with different values of the state `{state.name}`.",
                    hint="methods of one module, or the same first values in both",
                )


# ---------------------------------------------------------------- quantized together


def _quantized(
    given: Mapping[str, Exported],
    quantizers: Mapping[str, StaticQuantizer],
    calibration: Any,
    checks: Verification,
    clock: Clock,
) -> dict[str, Quantized]:
    ready = [name for name, own in given.items() if not own.is_float]
    if ready:
        raise ModelError(
            f"The method `{ready[0]}` is quantized already, and others are not.", hint="all of them in float"
        )
    sequences, data = _data(given, calibration, checks)
    made, members = {}, []
    for name, own in given.items():
        made[name] = Quantized.of_float(own, data[name], quantizers[name])
        mark_for_calibration(own, data[name].sequences)
        members.append(Member(name, own.module, own.states, quantizers[name]))
    calls = sum(map(len, sequences))
    with clock.step("quantize") as progress:
        modules = quantize_methods(members, sequences, lambda done: progress(done / calls))
        for name, own in given.items():
            forget(own.module, modules[name])
    return {name: one.quantized(modules[name], quantizers[name]) for name, one in made.items()}


def _data(
    given: Mapping[str, Exported], calibration: Any, checks: Verification
) -> tuple[list[list[Call]], dict[str, CalibrationData]]:
    """Return calibration data as sequences of calls, and the data of each method."""
    if calibration is None or isinstance(calibration, Mapping):
        known = dict(calibration or {})
        if more := known.keys() - given.keys():
            raise ModelError(
                f"There is calibration data for `{sorted(more)[0]}`, which is no method.",
                hint=f"one of {_names(given)}",
            )
        if lacking := given.keys() - known.keys():
            raise ModelError(
                f"The method `{sorted(lacking)[0]}` has no calibration data to choose the ranges of its tensors.",
                hint="calibration={...} with an entry for each method, or a list of sequences of calls of all of them",
            )
        data = {}
        for name, own in given.items():
            with _named(name):
                data[name] = CalibrationData.of(own, known[name], checks.held_out, float_too=checks.run)
        return [[(name, row) for row in rows] for name, own in data.items() for rows in own.sequences], data
    return _calls(given, calibration, checks)


def _calls(
    given: Mapping[str, Exported], calibration: Any, checks: Verification
) -> tuple[list[list[Call]], dict[str, CalibrationData]]:
    """Return the same for sequences in which methods alternate."""
    hint = '[[("prefill", inputs), ("decode", inputs), ...], ...], or {"prefill": ..., "decode": ...}'
    if isinstance(calibration, str) or not isinstance(calibration, Sequence):
        raise ModelError(f"Calibration data of several methods is {described(calibration)}.", hint=hint)
    if checks.held_out:
        raise OptionError(
            "`held_out` counts samples of one method, and in the calibration data methods alternate.",
            hint="held_out=0, or calibration data by method",
        )
    sequences: list[list[Call]] = []
    for number, sequence in enumerate(in_turn(calibration, "calibration")):
        if not isinstance(sequence, list) or not sequence:
            raise ModelError(f"The calibration sequence {number} is no list of calls.", hint=hint)
        sequences.append([])
        for call in sequence:
            if not isinstance(call, tuple) or len(call) != 2 or call[0] not in given:
                raise ModelError(
                    f"The calibration sequence {number} holds {described(call)}, which is no call of a method "
                    f"({_names(given)}).",
                    hint=hint,
                )
            name, row = call
            with _named(name):
                sequences[-1] += [(name, one) for one in calibration_batches([row], given[name].examples)]
    data = {}
    for name, own in given.items():
        own_calls = [[row for called, row in sequence if called == name] for sequence in sequences]
        if not any(own_calls):
            raise ModelError(f"The method `{name}` has no calibration data: no sequence calls it.", hint=hint)
        data[name] = CalibrationData.of_calls(own, own_calls, float_too=checks.run)
    return sequences, data


def _names(given: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in given)
