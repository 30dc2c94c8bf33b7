"""`micronpu.advise`: find the slow parts of a network, and compile alternatives to price them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.export import ExportedProgram

from micronpu.advice.changes import CHANGES, Change
from micronpu.base.errors import MicroNpuError, ModelError
from micronpu.compiler.clock import ProgressCallback
from micronpu.compiler.compile import compile_model
from micronpu.frontend.checks import check_callback
from micronpu.frontend.exported import exported, finished, is_float
from micronpu.frontend.facts import EXPORTED
from micronpu.frontend.graphs import GraphModule, Node, nodes_where, operand
from micronpu.frontend.model_files import opened
from micronpu.frontend.program import ProgramView, is_any_dequantize, origin_of, quantized_from
from micronpu.frontend.run import evaluate
from micronpu.frontend.tensors import add_constant, clean, copied, replace_each
from micronpu.quantize.config import Activations
from micronpu.quantize.data import calibration_batches
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.report.alternatives import NEAR, SAME, TRAIN, Advice, Idea, Price
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import hotspots
from micronpu.targets.options import Options
from micronpu.targets.registry import target_required
from micronpu.upstream.session import exclusive
from micronpu.verify.verification import PRICED

Tensors = tuple[torch.Tensor, ...]
_KEPT = ("val", "stack_trace", "nn_module_stack")


def in_floats(quantized: GraphModule, examples: Tensors) -> tuple[GraphModule, Tensors] | None:
    """A quantized module without its rounding of activations, with dequantized weights.

        x8 -> dequantize -> conv(.., dequantize(w8)) -> quantize -> y8        x -> conv(.., w) -> y

    Returns:
        The module and its inputs as floats; None where integers are computed with in another way.
    """
    module = copied(quantized)
    view, graph, inputs = ProgramView(module), module.graph, list(examples)
    placeholders = graph.find_nodes(op="placeholder")
    for node in nodes_where(module, is_any_dequantize):
        source = operand(node)
        value = quantized_from(source)
        if source in placeholders and (edge := view.edge(node)) is not None:
            i = placeholders.index(source)
            inputs[i] = edge.dequantized(inputs[i])
        elif value is source:
            if any(n.op != "get_attr" for n in node.all_input_nodes):
                continue
            value = add_constant(module, node, evaluate(module, node), "weight")
        node.replace_all_uses_with(value)
    graph.eliminate_dead_code()
    replace_each(module, quantized_from)  # of results
    clean(module)
    for node in graph.nodes:  # without what the first quantization noted
        node.meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
    return (finished(module, tuple(inputs)), tuple(inputs)) if is_float(module) else None


_ROWS = 64
"""Maximum number of calibration samples. With few of them the precision, and so the cycles, may be another."""


@target_required
@exclusive()
def advise(
    model: nn.Module | ExportedProgram | str | os.PathLike[str],
    example_inputs: Sequence[object] | torch.Tensor | None = None,
    target: str = "",
    *,
    calibration: object = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    callback: ProgressCallback | None = None,
) -> Advice:
    """Show which parts of a network take the time, and compile changes that may make it faster.

    Ideas are tried if they apply to the network: another activation, a stride instead of a pool, smaller kernels,
    another resize, no softmax at the output, norms with fixed statistics, channels in multiples of 16, integer inputs
    and outputs. Each is compiled like the network itself, and the estimates are compared. The weights of a changed
    network are not trained: its accuracy after training is unknown.

    Args:
        model: a module in evaluation mode, or an exported program of one, without states; or a quantized one, such as
            `read_model` gives, which is quantized again with its example inputs for every idea; or the path of a
            .tflite or .onnx file.
        example_inputs: inputs that fix shapes and dtypes; one tensor is accepted instead of a tuple of one;
            None for a file.
        target: see ``micronpu targets``.
        calibration: typical inputs, as for `micronpu.compile`; only the first 64 are used. A quantized model needs
            none.
        quantization, options: as for `micronpu.compile`.
        callback: progress callback.

    Raises:
        ModelError: the model has states, or an input does not fit it.
        OptionError: an option does not fit the target.
    """
    check_callback(callback)
    start = time.perf_counter()
    network, inputs, calibration = opened(model, example_inputs, calibration)
    found = exported(network, inputs)
    if found.states:
        raise ModelError(
            f"The model keeps a state, `{found.states.values[0].name}`, from one call to the next, and advise tries "
            "changes of models without any.",
            hint="a model that takes its states as inputs and returns them",
        )
    module, examples, how = found.module, found.examples, Quantization.of(quantization)
    if found.is_float:
        rows = calibration_batches(calibration, examples)[:_ROWS]
    else:
        given = in_floats(module, examples)
        if given is None:
            raise ModelError("The model is quantized already; `advise` needs the float model.", hint="the float model")
        if how.io is None and not any(x.is_floating_point() for x in examples):
            how = replace(how, io="int16" if torch.int16 in {x.dtype for x in examples} else "int8")
        module, examples = given
        rows = [examples]
    EXPORTED.say(module, True)
    trials = _Trials(module, examples, target, rows, how, options)
    return trials.run(start, callback or (lambda name, part: None))


@dataclass(frozen=True)
class _Trials:
    _module: GraphModule
    _examples: Tensors
    _target: str
    _rows: Sequence[Tensors]
    _quantization: Quantization
    _options: Options | None

    def run(self, start: float, notify: ProgressCallback) -> Advice:
        notify("advise", 0.0)
        report = self._compiled(self._module, self._quantization)
        price = Price.of(report)
        ideas: list[tuple[Idea, Change | None]] = []
        for number, change in enumerate(CHANGES if price.cycles is not None else ()):
            notify("advise", (number + 1) / (len(CHANGES) + 3))
            module = copied(self._module)
            if places := change.edit(module):
                ideas.append((self._tried(change.name, change.how, change.results, places, module, price), change))
        has_float_io = self._quantization.io is None and any(x.is_floating_point() for x in self._examples)
        if price.cycles is not None and has_float_io:
            ideas.append((self._integers(price), None))
        ideas.sort(key=lambda idea: idea[0].ratio if idea[0].ratio is not None else float("inf"))
        notify("advise", 1 - 1 / (len(CHANGES) + 3))
        together = self._together([c for idea, c in ideas if idea.is_worth and c is not None], price)
        notify("advise", 1.0)
        return Advice(
            target=self._target,
            price=price,
            hotspots=hotspots(report.operations, report.core_operations),
            ideas=tuple(idea for idea, _ in ideas),
            together=together,
            seconds=time.perf_counter() - start,
        )

    def _compiled(self, module: GraphModule, quantization: Quantization) -> DelegationReport:
        return compile_model(
            module,
            self._examples,
            self._target,
            calibration=self._rows,
            quantization=quantization,
            options=self._options,
            verify=PRICED,
        ).report

    def _tried(
        self, name: str, how: str, results: str, places: Sequence[Node], module: GraphModule, before: Price
    ) -> Idea:
        sources = tuple(dict.fromkeys(place for node in places if (place := _place(node))))
        idea = Idea(name, how, results, len(places), sources, None, None)
        module.graph.lint()
        module.recompile()
        return self._priced(idea, module, self._quantization, before)

    def _priced(self, idea: Idea, module: GraphModule, quantization: Quantization, before: Price) -> Idea:
        try:
            price = Price.of(self._compiled(module, quantization))
        except MicroNpuError as error:
            return replace(idea, failure=str(error))
        return replace(idea, price=price, ratio=price.beside(before))

    def _integers(self, before: Price) -> Idea:
        """Integer inputs and outputs; the application has to convert instead, unless it uses the same qparams."""
        io: Activations = self._quantization.base
        how = f'Quantization(io="{io}"): the application gives and takes integers, which sensors often give anyway.'
        idea = Idea("integer inputs and outputs", how, SAME, 0, (), None, None)
        return self._priced(idea, copied(self._module), replace(self._quantization, io=io), before)

    def _together(self, changes: Sequence[Change], before: Price) -> Idea | None:
        if len(changes) < 2:
            return None
        module, places, names = copied(self._module), list[Node](), list[str]()
        for change in changes:
            if changed := change.edit(module):
                module.recompile()
                module = finished(module, self._examples)  # with the current shapes, for the next change
                places += changed
                names.append(change.name)
        if len(names) < 2:
            return None
        results = max((change.results for change in changes), key=(SAME, NEAR, TRAIN).index)
        idea = self._tried("all of these together", "", results, places, module, before)
        return replace(idea, how=f"{', '.join(names)}.")


def _place(node: Node) -> str:
    """The source line, or the module if torch wrote the line."""
    origin = origin_of(node)
    return origin.source or origin.module
