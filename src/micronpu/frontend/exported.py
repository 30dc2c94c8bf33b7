"""Conversion of the user's model into the value that every later stage reads: a checked graph with example inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from micronpu.base.errors import ErrorsAs, MicroNpuError, ModelError, reason
from micronpu.base.quiet import quiet
from micronpu.frontend import functional, tensors
from micronpu.frontend.checks import check_examples, check_names, check_parameters, check_results, set_training
from micronpu.frontend.control_flow import compute_both_branches, without_regions, write_out_loops
from micronpu.frontend.export import as_exported, as_inputs, check_static, export
from micronpu.frontend.facts import BOTH_BRANCHES, CONVERTED, EXPORTED, SIZE, WRITTEN_OUT
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.program import is_conversion, overload_name
from micronpu.frontend.run import Run, called, reveal_functions
from micronpu.upstream.torch import FakeTensorMode, has_transforms


@dataclass(frozen=True)
class Exported:
    """A checked model."""

    # The checked graph with the shapes of the example inputs; its states are its last inputs and outputs.
    module: GraphModule
    examples: tuple[torch.Tensor, ...]  # the user's example inputs, which fix shapes and dtypes
    model: nn.Module | ExportedProgram  # the original model, which can be exported again for another batch size
    is_float: bool  # True if it has no observers and no quantization

    @property
    def states(self) -> tensors.States:
        return tensors.states_of(self.module)


def exported(
    model: nn.Module | ExportedProgram, example_inputs: Sequence[object] | torch.Tensor, also: Collection[str] = ()
) -> Exported:
    """Return the model as a checked graph; its states are further inputs and outputs.

    Args:
        also: paths of buffers that are states because other methods of the program write them.

    Raises:
        ModelError: it cannot be exported, or cannot be compiled for any target.
    """
    examples = as_inputs(example_inputs)
    ready = isinstance(model, GraphModule) and (is_exported(model) or not is_float(model))
    module = graph_module(model if ready else export(model, examples))
    converted = CONVERTED.of(module)
    if converted:
        examples = tuple(map(functional.in_float32, examples))
    loops = () if ready else write_out_loops(module, also)
    if not ready:
        check_static(module)
    chosen = () if ready else compute_both_branches(module)
    check_results(module)
    module = tensors.lift(module, also)
    BOTH_BRANCHES.say(module, chosen)
    WRITTEN_OUT.say(module, loops)
    every = (*examples, *tensors.states_of(module).initial)
    if ready:
        module = finished(module, every)
        check_static(module)
    check_examples(module, every)
    check_parameters(module)
    return Exported(module, examples, model, is_float(module))


def inputs_not_negative(given: Exported, rows: Sequence[Sequence[torch.Tensor]]) -> frozenset[str]:
    """Return names of integer inputs that are non-negative in all calibration samples and examples."""
    nodes = given.module.graph.find_nodes(op="placeholder")[: len(given.examples)]
    return frozenset(
        node.name
        for i, node in enumerate(nodes)
        if given.examples[i].dtype in (torch.int32, torch.int64)
        and all(bool((row[i] >= 0).all()) for row in (given.examples, *rows))
    )


def exported_for_any_batch(model: nn.Module | ExportedProgram, examples: tuple[torch.Tensor, ...]) -> GraphModule:
    """Return a separate copy of a float model as a graph, for any batch size if possible and if it has no states.

    Its states are its last inputs and outputs. It need not be exported again.
    """
    if isinstance(model, GraphModule) and not is_float(model):
        raise ModelError("The model is quantized already; weights are chosen in float.", hint="the float model")
    try:
        module = tensors.copied(export_for_training(model, examples))
    except SystemExit as error:
        raise ModelError("The model ends the process when it is called.", hint="no sys.exit() in forward") from error
    check_parameters(module)
    module = tensors.lift(module)
    states = tensors.states_of(module)
    if states:
        module = finished(module, (*examples, *states.initial))
    EXPORTED.say(module, True)
    return module


def export_for_training(model: nn.Module | ExportedProgram, examples: tuple[torch.Tensor, ...]) -> GraphModule:
    """Return a separate copy of the model in evaluation mode as a graph, for any batch size if possible."""
    if isinstance(model, ExportedProgram) or (isinstance(model, GraphModule) and is_exported(model)):
        return graph_module(tensors.copied(model))
    if not isinstance(model, nn.Module):
        return graph_module(export(model, examples))  # raises with the reason
    own = tensors.copied(model)
    if isinstance(own, GraphModule):
        for part in own.modules():  # eval() of an exported module raises
            part.training = False
    else:
        own.eval()
    own, examples = own.float(), tuple(map(functional.in_float32, examples))
    sizes = {t.shape[0] if t.dim() else None for t in examples}
    program = None
    if len(sizes) == 1 and None not in sizes:
        # A size of 1 would become a constant.
        several = tuple(torch.cat([t, t]) if t.shape[0] == 1 else t for t in examples)
        try:
            with quiet(), torch.no_grad(), as_exported(own):
                program = torch.export.export(own, several, dynamic_shapes=tuple({0: Dim.AUTO} for _ in examples))
        except MicroNpuError:
            raise
        except Exception:  # torch raises many kinds; if the model is at fault, the export below reports it
            pass
    return graph_module(export(own, examples) if program is None else program)


def graph_module(program: object, convert_floats: bool = True) -> GraphModule:
    """Return an exported program as a module with its weights, in float32 if ``convert_floats``; a module unchanged."""
    if isinstance(program, GraphModule):
        return program
    if isinstance(program, torch.export.ExportedProgram):
        check_names((*program.state_dict, *program.constants, *(entry.fqn for entry in program.module_call_graph)))
        # Guards would be module calls inside the graph; shapes are checked elsewhere.
        with quiet():
            program = without_regions(program)
            if has_transforms(program.graph):
                program = functional.decomposed(
                    program, "decompose torch.vmap or torch.func", "the batch as an axis of the tensors"
                )
            program, converted = functional.convert_to_float32(program) if convert_floats else (program, ())
            module = functional.functional(functional.without_taken_names(program)).module(check_guards=False)
        assert isinstance(module, GraphModule)
        tensors.resolve_negative_bits(module)
        functional.remove_empty_tensors(module)
        CONVERTED.say(module, converted)
        return module
    what = f"A {type(program).__name__} cannot be quantized as it is."
    raise ModelError(what, hint="export it first: torch.export.export(model, inputs)")


def is_exported(model: object) -> bool:
    """Return True if a model is a module that this package has exported, which need not be exported again."""
    return isinstance(model, GraphModule) and bool(EXPORTED.of(model))


def is_float(module: GraphModule) -> bool:
    """Return True if a module has no observers and no quantization."""
    return not any(map(is_conversion, module.graph.nodes)) and not _observers(module)


def is_quantized(model: object) -> bool:
    """Return True if a model is a graph, or an exported one, with observers or quantization."""
    graph = model.graph_module if isinstance(model, ExportedProgram) else model
    return isinstance(graph, GraphModule) and not is_float(graph)


# ---------------------------------------------------------------- one shape


def finished(quantized: GraphModule, examples: tuple[torch.Tensor, ...]) -> GraphModule:
    """Return a converted module ready to be compiled: without dropouts, with the shapes of the example inputs."""
    waiting = _observers(quantized)
    if waiting:
        what = f"The module is prepared for quantization and not converted: it still has the observer `{waiting[0]}`."
        raise ModelError(what, hint="convert_pt2e(module) before compiling")
    model = tensors.copied(quantized)
    set_training(model, False)
    reveal_functions(model)
    tensors.resolve_negative_bits(model)
    what, hint = "does not take the example inputs", "example inputs of the shapes that it was exported with"
    with ErrorsAs(lambda error: ModelError(f"The quantized module {what}: {reason(error)}.", hint=hint)):
        _specialize(model, *examples)

    def constant(node: Node) -> Any:
        if overload_name(node) and not node.all_input_nodes and isinstance(node.meta.get("val"), torch.Tensor):
            # A constructor, whose shape depended on the batch size.
            return tensors.add_constant(model, node, called(node, {}), "constant")
        return SIZE.take(node)

    tensors.replace_each(model, constant)
    tensors.clean(model)
    return model


def _observers(module: nn.Module) -> list[str]:
    return [name for name, inner in module.named_modules() if hasattr(inner, "calculate_qparams")]


def _specialize(model: GraphModule, *inputs: torch.Tensor) -> None:
    """Run a module on fake inputs; record shapes, and sizes that are now numbers."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def recorded(n: Node, result: object, _: object) -> object:
        if n.op == "get_attr" and isinstance(result, torch.Tensor):
            result = mode.from_tensor(result)
        if isinstance(result, int) and not isinstance(result, bool):
            SIZE.say(n, result)
        elif n.op != "output" and isinstance(result, torch.Tensor | tuple | list):
            n.meta["val"] = result
        return result

    with mode, torch.no_grad():
        Run(model).run(*(mode.from_tensor(t) for t in inputs), behind=recorded)
