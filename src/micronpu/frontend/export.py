"""Export of a user's model with example inputs, in order or by name, and explanations of its failures."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import re
import sysconfig
import textwrap
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from micronpu.base.arguments import described
from micronpu.base.errors import MicroNpuError, ModelError, attempted
from micronpu.base.quiet import quiet, unprinted
from micronpu.frontend.checks import check_control_flow, check_evaluation_mode, check_module, check_tensors
from micronpu.frontend.graphs import GraphModule, calls, nodes_where
from micronpu.frontend.tensors import copied, path_to, reached
from micronpu.ops.recurrent import RECURRENT
from micronpu.upstream.session import random_kept
from micronpu.upstream.torch import OpOverload, buffers_of, schema_of, tree_leaves, tree_map


def called_by_name(model: object, examples: Mapping[str, object]) -> tuple[nn.Module, tuple[object, ...]]:
    """Return a module that takes the same inputs in order, and these inputs."""
    if not isinstance(model, nn.Module):
        what = f"The example inputs are by name, and the model is {described(model)}, whose inputs have an order."
        raise ModelError(what, hint="a tuple of tensors")
    names = tuple(examples)
    try:
        inspect.signature(model.forward).bind(**examples)
    except TypeError as error:
        raise ModelError(
            f"The forward of {type(model).__name__} does not take the example inputs {', '.join(map(repr, names))}: "
            f"{error}.",
            hint="the names of its arguments",
        ) from error
    forward = type(model).forward

    def ordered(self: nn.Module, *given: object) -> Any:
        return forward(self, **dict(zip(names, given, strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD  # torch.export names the inputs of the program by it
    ordered.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in ("self", *names)])  # type: ignore[attr-defined]
    ordered.input_names = names  # type: ignore[attr-defined]
    return with_forward(model, ordered), tuple(examples.values())


def input_names(model: object) -> tuple[str, ...]:
    """Return the names of the inputs of a module that `called_by_name` made; () for another model."""
    return getattr(getattr(type(model), "forward", None), "input_names", ())


def results_by_name(results: Any) -> Any:
    """Return a model's results with dictionaries instead of other mappings, dataclasses and named tuples."""
    if isinstance(results, Mapping):
        return {key: results_by_name(value) for key, value in results.items()}
    if isinstance(results, tuple) and hasattr(results, "_fields"):
        return results_by_name(dict(zip(results._fields, results, strict=True)))
    if is_dataclass(results) and not isinstance(results, type):
        return {field.name: results_by_name(getattr(results, field.name)) for field in fields(results)}
    return type(results)(map(results_by_name, results)) if type(results) in (tuple, list) else results


def with_forward(model: nn.Module, forward: Callable[..., object]) -> nn.Module:
    """Return a shallow copy of the user's module with another forward; parameters and names of buffers are the same."""
    owner = copy.copy(model)
    owner.__dict__ = dict(model.__dict__)
    own = type(owner)
    owner.__class__ = types.new_class(own.__name__, (own,), {}, lambda space: space.update(forward=forward))
    return owner


def rows_in_order(data: Any, names: Iterable[str]) -> object:
    """Return calibration data with inputs by name in the order of the inputs, other data unchanged; check all names."""
    names = tuple(names)

    def row(value: object) -> Any:
        if isinstance(value, list):
            return [row(one) for one in value]
        if not isinstance(value, Mapping):
            return value
        if set(value) != set(names):
            raise ModelError(
                f"A call has the inputs {', '.join(map(repr, value)) or 'none'}, and the example inputs are "
                f"{', '.join(map(repr, names))}.",
                hint="the same names in each",
            )
        return tuple(value[name] for name in names)

    whole = isinstance(data, (Mapping, list, tuple)) or not isinstance(data, Iterable) or hasattr(data, "dtype")
    return row(data) if whole else (row(one) for one in data)


_OTHERS = tuple(f"{home.resolve()}/" for home in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_STANDARD = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"


_EXAMPLES = "(torch.randn(1, 3, 32, 32),), or a dictionary by forward's arguments; make objects of them in forward"
_MOST_OF_TORCH = 160
"""Maximum number of characters of torch's own message that are quoted with the construct."""
_AS_BUFFER = "self.register_buffer(...) with it in the module that owns it, which makes it a state of the program"
_KNOWN = (
    (
        r"^GuardOnDataDependentSymNode: .*Eq\(u",
        "Python branches on the value of a tensor",
        "torch.where, which computes both sides, or torch.cond",
    ),
    (
        "^GuardOnDataDependentSymNode: ",
        "a number is taken out of a tensor",
        "the tensor itself instead of `.item()`, `float()` or `int()`; sizes that depend on values cannot be compiled",
    ),
    (
        f"{PackedSequence.__name__}$",
        "packed sequences cannot be exported",
        "run the layer over all steps, and pick the last one of each sequence by an index or a mask",
    ),
    (
        r"\.numpy\(\) is not supported",
        "NumPy computes with a tensor of the model",
        "the function of torch that computes the same",
    ),
    (
        "which is not a known type",
        "the model returns an object that torch does not know",
        "return tensors, or a tuple, list or dictionary of tensors",
    ),
    (
        "is not linked with support for",
        "a tensor is moved to a device that this machine does not have",
        "x.to(other.device), or no device at all",
    ),
    (
        "does not require grad",
        "forward computes a gradient, and programs have none",
        "the derivative written as operators",
    ),
    (
        "Cannot access data pointer",
        "a tensor is copied by Python, or given to a kernel that torch does not know",
        "x.clone() instead of copy.deepcopy(x); torch.library.custom_op for a kernel",
    ),
    (
        "required argument|required positional|positional arguments",
        "forward takes another number of inputs",
        "one example input for each argument of forward that has no default",
    ),
)


def explain(error: BaseException) -> tuple[str, str]:
    """Return what failed in the user's code, and what to try.

    Returns:
        A clause with the source line where one is known, and a hint.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, SystemExit):
        lines = [f"its forward calls sys.exit({error.code!r})"]
    what = lines[0].rstrip(".") if lines else type(error).__name__
    hint = "other shapes or dtypes (x.float() for integers); torch.export.export(model, inputs) tells more"
    packed = any(isinstance(value, PackedSequence) for frame, _ in frames for value in frame.f_locals.values())
    failure = f"{type(error).__name__}: {error}{PackedSequence.__name__ * packed}"
    for pattern, construct, advice in _KNOWN:
        if re.search(pattern, failure, re.DOTALL):
            said = textwrap.shorten(what, _MOST_OF_TORCH, placeholder=" ...")
            what, hint = construct if pattern.startswith("^Guard") else f"{construct} ({said})", advice
            break
    own = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames if _is_of_user(frame.f_code.co_filename)]
    return f"{what}{f', at {own[-1]}' if own else ''}", hint


def _is_of_user(file: str) -> bool:
    path = str(Path(file).resolve())
    is_standard = path.startswith(_STANDARD) and "site-packages" not in path
    return not (file.startswith("<") or is_standard or path.startswith(_OTHERS))


def as_inputs(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """Return example inputs as a tuple of tensors; NumPy arrays become tensors, those of float64 of float32."""
    is_several = isinstance(example_inputs, (tuple, list))
    values = [from_numpy(value) for value in (example_inputs if is_several else (example_inputs,))]
    if not values or not all(isinstance(v, torch.Tensor) for v in values):
        kinds = ", ".join(type(v).__name__ for v in values) or "nothing"
        kind = f"a {type(example_inputs).__name__} of {kinds}" if is_several else f"of type {kinds}"
        raise ModelError(f"`example_inputs` is {kind}; it is a tuple of tensors.", hint=_EXAMPLES)
    return _apart_in_memory(check_tensors(values))


def _apart_in_memory(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return inputs with copies of those that share memory: torch.export makes one input of the same tensor twice."""
    seen = set[int]()
    found = []
    for value in inputs:
        memory = value.untyped_storage().data_ptr()
        shares = memory in seen and value.numel() > 0
        found.append(value.detach().clone().requires_grad_(value.requires_grad) if shares else value)
        seen.add(memory)
    return tuple(found)


def from_numpy(value: Any) -> Any:
    """Return a NumPy array as a tensor, of float32 in place of float64; unchanged what torch has no dtype for."""
    is_known = isinstance(value, np.ndarray) and hasattr(torch, value.dtype.name)
    # Copied where torch cannot share the memory: foreign byte order, negative strides, read-only.
    tensor = torch.from_numpy(np.require(value, value.dtype.newbyteorder("="), ["C", "W"])) if is_known else value
    return tensor.float() if is_known and tensor.dtype == torch.float64 else tensor


def export(model: Any, examples: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Return the model as an exported program."""
    if isinstance(model, ExportedProgram):
        check_evaluation_mode(model.graph_module)
        return model
    check_module(model)
    # torch prints the graph so far on some errors, and logs the traceback of the exception on others.
    with quiet(logging.ERROR), torch.no_grad(), unprinted():
        try:
            # A torch function mode slows down all accesses to tensor attributes, by a tenth of the export time.
            recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
            recurrences = _RecurrencesByShape()
            with as_exported(model) as changed, recurrences if recurrent else contextlib.nullcontext():
                program = _traced(model, examples)
                recurrences.restore(program)
            if changed and not _is_repeatable(model, examples):
                raise ModelError(
                    f"The model keeps `{changed[0]}` from one call to the next, which is no buffer, so that every call "
                    "of a program would see its first value again.",
                    hint=_AS_BUFFER,
                )
            if _written_constants(program) and _has_buffers_elsewhere(program, model):
                # Forward reaches buffers by other paths than their names: only dynamo recognizes them as the same.
                program = torch.export.export(model, examples, strict=True)
            for name in sorted({*_written_constants(program).values()}):
                path = next((path for path, part in reached([("", model)]) if part is program.constants[name]), name)
                raise ModelError(
                    f"The model writes into the tensor `{path}`, which is no buffer: the next call would not see it.",
                    hint=_AS_BUFFER,
                )
            return program
        except (MicroNpuError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a forward that ends the process must not end the caller's
            what, hint = explain(error)
            raise ModelError(
                f"torch.export cannot trace {type(model).__name__} with these example inputs: {what}.", hint=hint
            ) from error


def _traced(model: nn.Module, examples: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Return the program as `torch.export` traces it."""
    # Branches of `torch.cond` that read parameters are traced by Dynamo, which treats their sizes as symbols and fails
    # on the strides. If it traces the whole model, the sizes are known.
    examples = _standing_alone(examples)
    try:
        return torch.export.export(model, examples)
    except Exception as error:
        if not type(error).__module__.startswith("torch._dynamo"):
            raise
        if (traced := attempted(lambda: torch.export.export(model, examples, strict=True))) is None:
            raise
        return traced


def _standing_alone(examples: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return copies of example inputs, which may be views, such as a row of a data set.

    torch.export would treat sizes of a view's base as symbols; the first symbol of a process takes 0.1 s.
    """

    def alone(example: torch.Tensor) -> torch.Tensor:
        if example.requires_grad:
            return example
        copied = example.clone()
        return copied if copied.stride() == example.stride() else example

    return tuple(map(alone, examples))


@contextmanager
def as_exported(model: nn.Module) -> Iterator[list[str]]:
    """Hook a model for torch.export: results by name become dictionaries, and assignments of forward to a buffer become
    writes at the end of forward.

        self.h = new                h = new; buffer_of_h.copy_(h)

    torch.export keeps such an assignment only in the outermost module, and refuses dataclasses that are not registered.
    Whatever else forward changes in Python is undone behind it: it may hold tensors without values.

    Yields:
        Paths of what forward has changed in Python.
    """
    before: list[tuple[nn.Module, str, Any]] = []
    attributes: list[tuple[str, Any, Any]] = []
    changed: list[str] = []

    def note(module: nn.Module, args: object) -> None:
        before[:] = [(of, n, v) for of in model.modules() for n, v in buffers_of(of).items() if v is not None]
        attributes[:] = () if torch.compiler.is_dynamo_compiling() else _attributes_of(model)

    def write(module: nn.Module, args: Any, result: object) -> Any:
        every = [(*of, buffers_of(of[0]).get(of[1])) for of in before]
        new = [of for of in every if of[3] is not None and of[3] is not of[2]]
        old = [value for _, _, value, _ in new]
        made = [_apart(now, [*old, *args]) for *_, now in new]
        result = tree_map(lambda own: _apart(own, old), results_by_name(result))
        for (owner, name, _, _), own in zip(new, made, strict=True):
            setattr(owner, name, own)  # torch.export reads it, too
        for (owner, name, value, _), own in zip(new, made, strict=True):
            buffers_of(owner)[name] = value
            value.copy_(own)
        changed.extend(_undone(attributes))
        return result

    hooks = (model.register_forward_pre_hook(note), model.register_forward_hook(write))
    try:
        yield changed
    finally:
        for hook in hooks:
            hook.remove()


def _attributes_of(model: nn.Module) -> list[tuple[str, object, object]]:
    parts = [of for of in reached(list(model.named_modules())) if type(of[1]).__module__.split(".")[0] != "torch"]
    every = [(path, part if isinstance(part, (list, dict)) else getattr(part, "__dict__", {})) for path, part in parts]
    return [(path, held, held.copy()) for path, held in every]


def _undone(attributes: Sequence[tuple[str, Any, Any]]) -> list[str]:
    changed = []
    for path, held, kept in attributes:
        now, then = (dict(enumerate(of)) if isinstance(of, list) else of for of in (held, kept))
        if differ := [key for key in {**then, **now} if now.get(key, held) is not then.get(key, kept)]:
            changed += [path_to(path, key) for key in differ]
            held.clear()
            held.extend(kept) if isinstance(held, list) else held.update(kept)
    return changed


def _is_repeatable(model: nn.Module, examples: tuple[torch.Tensor, ...]) -> bool:
    """Return True if a second call of a model whose buffers are as before the first one has the same results."""
    results, own = [], copied(model)
    for _ in range(2):
        for part, source in zip(own.modules(), model.modules(), strict=True):
            buffers_of(part).update(copied(buffers_of(source)))
        with random_kept():
            torch.manual_seed(0)
            # Examples are often zeros, which leave a state as it was.
            given = [x + torch.rand_like(x) if x.is_floating_point() else x.clone() for x in examples]
            leaves = tree_leaves(results_by_name(own(*given)))
        results.append([leaf.double() for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return all(y.shape == x.shape and torch.allclose(y, x, equal_nan=True) for y, x in zip(*results, strict=True))


def _apart(made: Any, others: Sequence[torch.Tensor]) -> Any:
    """Return a copy of a tensor that shares memory with others, such as a state that is written before it is read."""
    memory = made.untyped_storage() if others and isinstance(made, torch.Tensor) else None
    return made.clone() if any(memory is other.untyped_storage() for other in others) else made


_ARGUMENTS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
)
_STAND_INS = torch.library.Library("micronpu", "FRAGMENT")
"""Placeholder operators for recurrent layers: they compute shapes only."""


def _recurrent_shapes(input: torch.Tensor, hx: Any, *more: object) -> tuple[torch.Tensor, ...]:
    """Return results of a recurrent layer that have shapes but no values; the arguments are `_ARGUMENTS`."""
    *_, bidirectional, batch_first = more
    states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    steps, batch = (input.shape[1], input.shape[0]) if batch_first else (input.shape[0], input.shape[1])
    result = input.new_empty((steps, batch, states[0].shape[2] * (2 if bidirectional else 1)))
    return (result.transpose(0, 1) if batch_first else result, *(s.new_empty(s.shape) for s in states))


def _stand_in(name: str) -> Any:
    state, results = ("Tensor[]", "Tensor, Tensor, Tensor") if name == "lstm" else ("Tensor", "Tensor, Tensor")
    _STAND_INS.define(f"{name}(Tensor input, {state} hx, {_ARGUMENTS}) -> ({results})")
    torch.library.register_fake(f"micronpu::{name}", _recurrent_shapes, lib=_STAND_INS)
    return getattr(torch.ops.micronpu, name).default


_LAYERS = {name: getattr(torch.ops.aten, name).input for name in (layer.split(".")[0] for layer in RECURRENT)}
_SHAPES = {name: _stand_in(name) for name in _LAYERS}


def by_shape(operator: object) -> Any:
    """Return the function that computes result shapes of an operator, for recurrent layers without their steps."""
    return next((_SHAPES[name] for name, layer in _LAYERS.items() if layer is operator), operator)


class _RecurrencesByShape(TorchFunctionMode):
    """Replaces recurrent layers by placeholders, so that torch.export does not compute them step by step.

        gru(x, h)        micronpu::gru(x, h), and in the finished program aten::gru(x, h)

    A layer of 1,000 steps would take ten seconds, for one node in the graph.  The mode applies to its own thread only.
    """

    def __torch_function__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        # Layers also accept packed sequences; the fourth argument of padded ones is `has_biases`.
        if name in _SHAPES and not kwargs and len(args) == 9 and isinstance(args[3], bool):
            return _SHAPES[name](*args)
        return function(*args, **(kwargs or {}))

    @staticmethod
    def restore(program: ExportedProgram) -> None:
        """Restore the operators of recurrent layers in an exported program, in place."""
        names = {stand_in: _LAYERS[name] for name, stand_in in _SHAPES.items()}
        for module in program.graph_module.modules():
            if isinstance(module, GraphModule):
                for node in (found := nodes_where(module, lambda n: n.target in names)):
                    node.target = names[node.target]
                if found:
                    module.recompile()


def _written_constants(program: ExportedProgram) -> dict[str, str]:
    """Return the names of constants that a program writes, by the names of their inputs."""
    constants = program.graph_signature.inputs_to_lifted_tensor_constants
    inputs = nodes_where(program, lambda node: node.name in constants)
    shown: dict[object, str] = {node: node.name for node in inputs}
    found = {}
    for node in calls(program):
        if not node.args or node.args[0] not in shown:
            continue
        arguments = schema_of(node.target).arguments if isinstance(node.target, OpOverload) else ()
        if not arguments or arguments[0].alias_info is None:
            continue
        name = shown[node.args[0]]
        shown[node] = name  # a view of the constant, or the constant again
        if arguments[0].alias_info.is_write:
            found[name] = constants[name]
    return found


def _has_buffers_elsewhere(program: ExportedProgram, model: nn.Module) -> bool:
    """Return True if a constant that a program writes is a buffer of the model."""
    own = {buffer.data_ptr() for buffer in model.buffers() if buffer.numel()}
    written = (program.constants[name] for name in _written_constants(program).values())
    return any(isinstance(value, torch.Tensor) and value.data_ptr() in own for value in written)


def check_static(module: GraphModule) -> None:
    """Raise `ModelError` if a shape is only known at run time, an argument is complex, or control flow unsupported."""
    check_control_flow(module)
    for node in module.graph.nodes:
        for argument in tree_leaves((node.args, node.kwargs)):
            if isinstance(argument, complex):
                what = f"`{node.name}` has the complex number {argument} as an argument, which no program can hold."
                raise ModelError(what, hint="its real and imaginary parts as two tensors")
        for tensor in tree_leaves(node.meta.get("val")):
            if isinstance(tensor, torch.Tensor) and not all(isinstance(s, int) for s in tensor.shape):
                from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols  # slow: imports sympy

                what = f"The shape {[str(s) for s in tensor.shape]} of `{node.name}` is only known at run time; an NPU "
                hint = "export without dynamic_shapes"
                if free_unbacked_symbols(tensor.shape):  # such as the result of `nonzero`
                    hint = "return the values and what is chosen of them as a mask, and choose in the application"
                raise ModelError(f"{what}program has fixed shapes.", hint=hint)
