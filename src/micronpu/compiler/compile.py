"""`micronpu.compile`: checks the input, then export, quantize, partition, compile, outline, lower."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from micronpu.compiler.outline import delegate, lower, outline
from micronpu.compiler.program import CompiledProgram
from micronpu.errors import MicroNpuError, ModelError
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView, is_channels_last, is_dequantize, is_quantize, static_shape
from micronpu.neutron.compile import compile_graph
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.neutron.options import NeutronCompileOptions
from micronpu.neutron.quantizer import NeutronQuantizer
from micronpu.neutron.target import neutron_partition
from micronpu.partition.partition import Group, Partitioning
from micronpu.partition.report import Operation
from micronpu.quantize.calibrate import calibration_batches, graph_module, quantize, quiet
from micronpu.soc import find_target

DEFAULT_TARGET = "imxrt700"

Listener = Callable[[str, float], None]
"""Called with the name of the step under way and the part of it that is done, 0 to 1."""


class _Clock:
    def __init__(self, listener: Listener | None) -> None:
        self.seconds: dict[str, float] = {}
        self._listener = listener

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[float], None]]:
        start = time.perf_counter()
        tell = self._listener or (lambda name, part: None)
        tell(name, 0.0)
        yield lambda part: tell(name, part)
        tell(name, 1.0)
        self.seconds[name] = time.perf_counter() - start


def compile_model(
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    target: str = DEFAULT_TARGET,
    *,
    calibration: Any = None,
    per_channel: bool = True,
    options: NeutronCompileOptions | None = None,
    listener: Listener | None = None,
) -> CompiledProgram:
    """Compiles a PyTorch model for a chip.

    Args:
        model: a float module in evaluation mode, an exported program of one, or a program that is quantized already.
        example_inputs: inputs that fix shapes and dtypes; one tensor may stand for a tuple of one.
        target: see ``micronpu targets``.
        calibration: typical inputs, some dozens: tensors, tuples of tensors or NumPy arrays.  Needed for a float model.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        options: further options of the Neutron back end.
        listener: hears about progress.

    Returns:
        The program with ``report``, ``save`` and ``run``.

    Raises:
        MicroNpuError: something in the input does not fit; the message says what, where, why and what to try.
    """
    clock = _Clock(listener)
    quantized, examples = quantized_module(
        model, example_inputs, target, calibration=calibration, per_channel=per_channel, clock=clock
    )
    chip, entry = find_target(target)
    chosen = options or NeutronCompileOptions(config=chip.name)
    view = ProgramView(quantized)
    with clock.step("partition"):
        partitioning = neutron_partition(view, NeutronTargetSpec(chip.name), chosen, entry.name)
    with clock.step("compile") as progress, quiet():
        compiled, calls = [], []
        for number, group in enumerate(partitioning.groups):
            part = compile_graph(import_nodes(view, group.nodes, list(group.inputs), list(group.outputs)), chosen)
            calls.append(
                delegate("NeutronBackend", part.payload, chosen.to_specs(), *_border(group), part.debug_handles)
            )
            compiled.append(part)
            progress((number + 1) / len(partitioning.groups))
    with clock.step("lower"), quiet():
        program = lower(outline(quantized, partitioning.groups, calls), examples)
        buffer = bytes(program.buffer)
    report = replace(
        partitioning.report,
        notes=(*partitioning.report.notes, REFERENCE_NOTE) if compiled else partitioning.report.notes,
        operations=tuple(Operation.of(i, node) for i, part in enumerate(compiled) for node in part.graph.nodes),
        program_bytes=len(buffer),
    )
    return CompiledProgram(buffer, report, tuple(compiled), quantized, clock.seconds)


REFERENCE_NOTE = (
    "The NPU program is a reference container: it runs on this machine, bit for bit as LiteRT's reference kernels, "
    "and a device refuses it."
)


def _border(group: Group) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors with the types of a group's inputs and outputs."""

    def empty(node: Node) -> torch.Tensor:
        shape = static_shape(node)
        assert shape is not None
        layout = torch.channels_last if is_channels_last(node) else torch.contiguous_format
        return torch.zeros(shape, dtype=torch.int8).to(memory_format=layout)

    return [empty(n) for n in group.inputs], [empty(n) for n in group.outputs]


def check_model(
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    target: str = DEFAULT_TARGET,
    *,
    calibration: Any = None,
    options: NeutronCompileOptions | None = None,
) -> Partitioning:
    """What would be delegated, without compiling.

    A float model without calibration data is quantized with its example inputs alone: the decisions depend on shapes
    and operators, not on ranges.
    """
    clock = _Clock(None)
    examples = as_inputs(example_inputs)
    quantized, _ = quantized_module(
        model, examples, target, calibration=[examples] if calibration is None else calibration, clock=clock
    )
    chip, entry = find_target(target)
    chosen = options or NeutronCompileOptions(config=chip.name)
    return neutron_partition(ProgramView(quantized), NeutronTargetSpec(chip.name), chosen, entry.name)


def quantized_module(
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    target: str,
    *,
    calibration: Any,
    clock: _Clock,
    per_channel: bool = True,
) -> tuple[GraphModule, tuple[torch.Tensor, ...]]:
    """Checks all input, exports and quantizes."""
    chip, _ = find_target(target)
    examples = as_inputs(example_inputs)
    quantizer = NeutronQuantizer(NeutronTargetSpec(chip.name), per_channel=per_channel)
    with clock.step("export"):
        module = graph_module(export(model, examples))
        _check_static(module)
    if any(is_quantize(n) or is_dequantize(n) for n in module.graph.nodes):
        return module, examples
    batches = calibration_batches(calibration, examples)
    with clock.step("quantize") as progress:
        return quantize(module, batches, quantizer, lambda done: progress(done / len(batches))), examples


def as_inputs(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """Example inputs as a tuple of tensors."""
    values = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    if not isinstance(values, (tuple, list)) or not values or not all(isinstance(v, torch.Tensor) for v in values):
        kinds = [type(v).__name__ for v in values] if isinstance(values, (tuple, list)) else type(values).__name__
        raise ModelError(
            f"`example_inputs` is {kinds or 'empty'}; it is a tuple of tensors.", hint="(torch.randn(1, 3, 32, 32),)"
        )
    return tuple(values)


def export(model: Any, examples: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """The model as an exported program."""
    if isinstance(model, ExportedProgram):
        return model
    if not isinstance(model, nn.Module):
        raise ModelError(f"The model is a {type(model).__name__}, not a torch.nn.Module or an exported program.")
    if model.training:
        raise ModelError(
            f"The model {type(model).__name__} is in training mode, in which dropout and batch norm change results.",
            hint="model.eval() before compiling",
        )
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(model, examples)
        except MicroNpuError:
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise ModelError(
                f"torch.export cannot trace {type(model).__name__} with these example inputs: "
                f"{lines[0] if lines else type(error).__name__}",
                hint="check shapes and dtypes of the example inputs; torch.export.export(model, inputs) shows all of it",
            ) from error


def _check_static(module: GraphModule) -> None:
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor) and not all(isinstance(s, int) for s in tensor.shape):
                raise ModelError(
                    f"The shape {[str(s) for s in tensor.shape]} of `{node.name}` is only known at run time; an NPU "
                    "program has fixed shapes.",
                    hint="export without dynamic_shapes",
                )
