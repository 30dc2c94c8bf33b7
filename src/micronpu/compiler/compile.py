"""`micronpu.compile`: check the input, then export, quantize, partition, compile, outline, lower."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

import torch
from torch import nn
from torch.export import ExportedProgram

from micronpu.base.errors import ModelError
from micronpu.compiler.assemble import Staged, program_of
from micronpu.compiler.basis import CompileRequest, basis_of
from micronpu.compiler.clock import Clock, ProgressCallback
from micronpu.compiler.host import Compiled, with_parts
from micronpu.compiler.precision import allowed_by
from micronpu.compiler.program import CompiledMethods, CompiledProgram
from micronpu.compiler.quantized import Methods, check_methods, opened_methods, quantized_methods
from micronpu.frontend.checks import Train, check_callback, check_is_no_state_dict
from micronpu.frontend.export import as_inputs
from micronpu.frontend.exported import is_quantized
from micronpu.frontend.integers import separate_clamps
from micronpu.frontend.model_files import opened
from micronpu.frontend.program import ProgramView
from micronpu.partition.partition import Partitioning
from micronpu.passes.pipeline import Pipeline
from micronpu.quantize.data import HeldOut
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for
from micronpu.transforms.sparsity.entry import Transforms
from micronpu.transforms.sparsity.options import SparsityOptions
from micronpu.upstream.session import exclusive
from micronpu.verify.static_checks import of_graph, of_host, of_placement
from micronpu.verify.verification import Verification


@overload
def compile_model(
    model: Methods,
    example_inputs: str = "",
    *,
    target: str = "",
    calibration: object = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    verify: bool | Verification = True,
    callback: ProgressCallback | None = None,
) -> CompiledMethods: ...


@overload
def compile_model(
    model: nn.Module | ExportedProgram | str | os.PathLike[str],
    example_inputs: Sequence[object] | torch.Tensor | None = None,
    target: str = "",
    *,
    calibration: object = None,
    train: Train | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    verify: bool | Verification = True,
    transforms: Transforms | str | SparsityOptions | Pipeline | None = None,
    callback: ProgressCallback | None = None,
) -> CompiledProgram: ...


@exclusive()
def compile_model(
    model: nn.Module | ExportedProgram | str | os.PathLike[str] | Methods,
    example_inputs: Any = None,
    target: str = "",
    *,
    calibration: object = None,
    train: Train | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    verify: bool | Verification = True,
    transforms: Transforms | str | SparsityOptions | Pipeline | None = None,
    callback: ProgressCallback | None = None,
) -> CompiledProgram | CompiledMethods:
    """Compile a PyTorch model for a chip, or several models as the methods of one program.

    Args:
        model: a float module in evaluation mode, its exported program or ``module()``, or a quantized program or module
            (the result of `convert_pt2e`); or the path of a LiteRT or ONNX file, see docs/models.md.  Several methods
            are a dictionary, ``{"prefill": (model, example), "decode": (model, example)}``, followed by the target; see
            docs/methods.md.
        example_inputs: tensors or arrays that fix shapes and dtypes; a single one is one input.  A dictionary names
            arguments of forward; the others keep their defaults. Calibration data may then be such dictionaries, and
            the program takes the inputs in the dictionary's order.
        target: see ``micronpu targets``.
        calibration: typical inputs, some dozens: tensors, tuples of tensors or NumPy arrays.  Needed for a float model.
            Of a generator, at most 48 MB of rows are kept, evenly spread: every second one, every fourth, and so on.
            For a model that changes its buffers a list of sequences, ``[[x0, x1, ...], ...]``: its states are reset for
            each; see docs/streaming.md.
        train: function that trains a module in place: quantization-aware training of a float model, instead of
            calibration.
        quantization: a `Quantization`; or as a shorthand "auto" (the default), "accurate", "int8" or "int16", the path
            of a TOML file or a dictionary of its form, such as ``{"equalize": True}``, or a custom quantizer.
        options: options of the NPU's backend: `NeutronOptions`, `EthosUOptions` or `CortexMOptions`.
        verify: a `Verification`; or as a shorthand False not to run the program, or `Budgets`.
        transforms: `Transforms` of the model before compilation; or as a shorthand "2:4" for sparse weights, or a
            `Pipeline`.
        callback: progress callback; default: a line below the cell in notebooks.

    Returns:
        The program with ``report``, ``save`` and ``run``.

    Raises:
        MicroNpuError: an argument is invalid; the message says what, where, why and what to try.
        BudgetError: the program misses a budget, or with ``strict`` has a warning.
    """
    checks, request = Verification.of(verify), Transforms.of(transforms)
    check_callback(callback)
    given = _methods_of(model, example_inputs, train, request)
    if "" in given:
        calibration = {"": calibration}
    else:
        target = example_inputs or target
    methods, calibration = opened_methods(given, calibration, checks.verify_import)
    clock = Clock(callback)
    device = device_for(target, options)
    device.pipeline = request.passes or device.pipeline
    if not checks.proves:
        device = device.unverified()
    how = Quantization.of(quantization)
    fewer = partial(request.reduced, device) if request.reduces else None  # a search would not keep their weights
    is_fixed = train is not None or fewer is not None or not isinstance(calibration, Mapping)
    compiled = Compiled()
    quantized = quantized_methods(
        methods,
        {n: how.quantizer_for(device.quantizer, train is not None, chooses=not is_fixed) for n in methods},
        calibration,
        clock,
        train=train,
        held_out=checks,
        reduced=fewer,
        float_too=checks.run,
        allowed=None if is_fixed else allowed_by(how, device, compiled),
    )
    if train is None:
        quantized = {name: replace(one, proposal=one.proposal or how.proposal) for name, one in quantized.items()}
    if any(is_quantized(module) for module, _ in methods.values()):
        unused = _unused(calibration, how, checks)
        quantized = {name: replace(one, notes=(*one.notes, *unused)) for name, one in quantized.items()}
    staged = [
        Staged.of(one, device, clock, checks, compiled, name)
        for name, one in sorted(quantized.items())  # the order of methods in the file
    ]
    if len(staged) > 1:
        with clock.step("compile"):
            parts = [part for method in staged for part in method.host.partitions]
            shared = {id(part): one for part, one in zip(parts, device.shared(parts), strict=True)}
            staged = [replace(m, host=with_parts(m.host, lambda part: shared[id(part)])) for m in staged]
    asked = CompileRequest(target, how, options, request, checks, train)
    basis = basis_of(asked, {name: one.digests for name, one in quantized.items()})
    return program_of(staged, target, checks, clock).made_of(basis)


def _methods_of(model: Any, example_inputs: Any, train: Train | None, request: Transforms) -> Methods:
    """Return the methods of the arguments; the name of the only model is ""."""
    if not isinstance(model, Mapping):
        return {"": (model, example_inputs)}
    check_is_no_state_dict(model)
    if train is not None or request.reduces:
        what = "train" if train is not None else "transforms"
        raise ModelError(
            f"`{what}` changes the weights of one method, and the methods of a program share theirs.",
            hint="a model that is trained or sparse before, and weight_bits for weights of fewer bits: docs/methods.md",
        )
    if example_inputs is not None and not isinstance(example_inputs, str):
        raise ModelError(
            "Each of several methods has its own `example_inputs`.",
            hint='compile({"prefill": (model, example), "decode": (model, example)}, target)',
        )
    check_methods(model)
    return model


def _unused(calibration: object, how: Quantization, checks: Verification) -> tuple[str, ...]:
    """Return a note on arguments that have no effect on a quantized model; () if there are none."""
    calibrating = calibration.values() if isinstance(calibration, Mapping) else (calibration,)
    given = {
        "calibration data": any(own is not None for own in calibrating),
        "quantization": how != Quantization(),
        "samples to judge on": checks.data is not None or checks.held_out is not None,
        "the metric": checks.metric is not None,
    }
    if not (names := ", ".join(name for name, is_given in given.items() if is_given)):
        return ()
    measured = "; `micronpu evaluate` measures it on the program" if checks.metric is not None else ""
    return (f"The model is quantized already, so that some arguments change nothing: {names}{measured}.",)


@exclusive()
def check_model(
    model: nn.Module | ExportedProgram | str | os.PathLike[str],
    example_inputs: Sequence[object] | torch.Tensor | None = None,
    target: str = "",
    *,
    calibration: object = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
) -> Partitioning:
    """Return what would be delegated, without compiling.

    A float model without calibration data is quantized with only its example inputs: the decisions depend on shapes and
    operators, not on ranges.  The arguments are those of `compile_model`.
    """
    if isinstance(model, Mapping):
        check_is_no_state_dict(model)
        raise ModelError("`check` takes one model.", hint="check(model, example_inputs, target) for each method")
    device, how, clock = device_for(target, options), Quantization.of(quantization), Clock(None)
    network, inputs, calibration = opened(model, example_inputs, calibration)
    examples = as_inputs(inputs)
    quantized = quantized_methods(
        {"": (network, examples)},
        {"": how.quantizer_for(device.quantizer, chooses=True)},
        {"": [examples] if calibration is None else calibration},
        clock,
        held_out=HeldOut(held_out=0),
        float_too=True,
    )[""]
    separate_clamps(quantized.module, device.excludes)
    made = device.partition(ProgramView(quantized.module))
    known = quantized.warnings if calibration is not None else ()
    is_empty = calibration is None and not any(x.any() for x in examples)  # zeros only show the shapes
    exact = () if is_empty else quantized.trial.exact_rows
    seen = (*known, *of_graph(quantized.module, exact, proposal=how.proposal))
    if made.report.in_float:
        seen = (*of_host(quantized.module, made.report.in_float), *seen)
    return replace(made, report=replace(made.report, warnings=(*of_placement(made.report), *device.cautions(), *seen)))
