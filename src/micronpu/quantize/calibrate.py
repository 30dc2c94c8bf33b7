"""Calibration data checked, and the PT2E flow from a float model to a quantized one."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import MicroNpuError, ModelError, OptionError, first_line
from micronpu.base.quiet import quiet
from micronpu.frontend.functional import functional
from micronpu.frontend.program import origin_of
from micronpu.frontend.states import KEY, held, integer_states, lift, rows_with_states, run_sequence, states_of
from micronpu.quantize import post_training
from micronpu.quantize.corrections import Corrections, correct
from micronpu.quantize.loops import convert_loops, integer_loops, prepare_loops
from micronpu.quantize.observers import is_observer
from micronpu.quantize.states import check_stateless

Progress = Callable[[int], None]


def calibration_batches(
    calibration: Any, examples: Sequence[torch.Tensor], *, kind: str = "calibration"
) -> list[tuple[torch.Tensor, ...]]:
    """Calibration data as a list of input tuples, each checked against the example inputs.

    Args:
        calibration: an iterable of inputs.  An item is a tuple of tensors, or a tensor where the model has one
            input; NumPy arrays will do.  An item that holds several rows of a batch-1 model is cut into rows.
        examples: the example inputs.
        kind: what the data is for, as messages call it.

    Raises:
        ModelError: there is none, or an item has another number of inputs, shape, dtype, or holds NaN or infinity.
    """
    if calibration is None:
        raise ModelError(
            "A float model needs calibration data to choose the ranges of its quantized tensors.",
            hint="calibration=[...] with some dozens of typical inputs, or a model that is quantized already",
        )
    if isinstance(calibration, dict) or not isinstance(calibration, (Iterable, np.ndarray, torch.Tensor)):
        raise ModelError(
            f"{kind.capitalize()} data is of type {type(calibration).__name__}, not a list of inputs.",
            hint="[x1, x2, ...]",
        )
    batches: list[tuple[torch.Tensor, ...]] = []
    for number, item in enumerate(in_turn(calibration, kind)):
        where = f"{kind.capitalize()} item {number}"
        batches += _rows(_checked(where, item, examples), examples)
    if not batches:
        raise ModelError(f"The {kind} data is empty.", hint="pass some dozens of typical inputs")
    return batches


def in_turn(data: Iterable[Any], kind: str) -> Iterator[Any]:
    """The items of a user's data.

    Raises:
        ModelError: the user's code fails on the way.
    """
    number = 0
    try:
        for item in data:
            yield item
            number += 1
    except MicroNpuError:
        raise
    except Exception as error:
        raise ModelError(
            f"The {kind} data breaks off at item {number}: {type(error).__name__}: {first_line(error)}.",
            hint="list(...) of it, which fails alike",
        ) from error


def _checked(where: str, item: Any, examples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    values = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if len(values) != len(examples):
        raise ModelError(
            f"{where} has {len(values)} inputs, the model has {len(examples)}.",
            hint="give one tuple of inputs per item, without labels",
        )
    tensors = []
    for position, (value, example) in enumerate(zip(values, examples, strict=True)):
        tensor = _from_numpy(value) if isinstance(value, np.ndarray) else value
        if not isinstance(tensor, torch.Tensor):
            kind = f"a NumPy array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            raise ModelError(
                f"{where}, input {position} is {kind}, not a tensor.",
                hint="give tensors or NumPy arrays, one per input of the model",
            )
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            where_it_is = tensor.device if tensor.layout is torch.strided else tensor.layout
            raise ModelError(
                f"{where}, input {position} is a tensor on {str(where_it_is).removeprefix('torch.')}, from which no "
                "range can be learnt.",
                hint="dense tensors on the CPU",
            )
        if tensor.dtype != example.dtype:
            raise ModelError(
                f"{where}, input {position} has dtype {_name(tensor.dtype)}, the model takes {_name(example.dtype)}.",
                hint="convert the data as the model's inputs are converted",
            )
        if tensor.dim() == example.dim() - 1 and example.shape[0] == 1 and tensor.shape == example.shape[1:]:
            tensor = tensor.unsqueeze(0)
        several = example.dim() > 0 and example.shape[0] == 1 and tensor.dim() == example.dim()
        if tensor.shape != example.shape and not (several and tensor.shape[1:] == example.shape[1:]):
            raise ModelError(
                f"{where}, input {position} has shape {list(tensor.shape)}, the model takes {list(example.shape)}.",
                hint="shape the data as the example inputs",
            )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ModelError(
                f"{where}, input {position} holds NaN or infinity, from which no range can be learnt.",
                hint="look for missing values or a division by zero in the preprocessing",
            )
        tensors.append(tensor.detach())
    return tuple(tensors)


def _rows(item: tuple[torch.Tensor, ...], examples: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    if all(t.shape == e.shape for t, e in zip(item, examples, strict=True)):
        return [item]
    counts = {t.shape[0] for t, e in zip(item, examples, strict=True) if t.shape != e.shape}
    if len(counts) != 1 or 0 in counts:
        if counts == {0}:
            return []
        raise ModelError(
            f"The inputs of one calibration item have different numbers of rows: {sorted(counts)}.",
            hint="one row of each input per item",
        )
    (count,) = counts
    return [
        tuple(t if t.shape == e.shape else t[i : i + 1] for t, e in zip(item, examples, strict=True))
        for i in range(count)
    ]


def _from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """The array as a tensor; None where torch has no such type."""
    # A copy where torch cannot share the memory: foreign byte order, negative strides, read-only.
    native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    try:
        return torch.from_numpy(native)
    except TypeError:
        return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Computes with one thread.

    The operators of a network for a microcontroller are too small to be shared between threads: waiting for each other
    costs as much as it gains on an idle machine, and many times the work itself on a busy one.  The result does not
    depend on the number of cores either.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def graph_module(program: Any) -> GraphModule:
    """A graph module with weights as attributes, from an exported program or such a module.

    Raises:
        ModelError: it is neither.
    """
    if isinstance(program, GraphModule):
        return program
    if isinstance(program, torch.export.ExportedProgram):
        # Guards would be calls of a module in the middle of the graph, and shapes are checked by us.
        with quiet():
            module = functional(program).module(check_guards=False)
        assert isinstance(module, GraphModule)
        return module
    raise ModelError(
        f"A {type(program).__name__} cannot be quantized as it is.",
        hint="export it first: torch.export.export(model, inputs)",
    )


@contextlib.contextmanager
def finite_values(prepared: GraphModule, number: Callable[[], int]) -> Iterator[None]:
    """Refuses calibration in which an observed value is not finite.

    An observer fails on NaN and passes over infinity, which then becomes the largest number that it has seen.

    Args:
        number: tells which batch is under way.
    """

    def check(turn: Iterator[Node], module: nn.Module, values: tuple[Any, ...]) -> None:
        node, x = next(turn), values[0]
        if not x.is_floating_point() or not x.numel() or torch.isfinite(torch.stack(torch.aminmax(x))).all():
            return
        source = origin_of(node).source
        raise ModelError(
            f"With calibration item {number()}, `{node.name}`{f' ({source})' if source else ''} computes NaN or "
            "infinity, from which no range can be learnt.",
            hint="a finite number such as -30 in a mask instead of infinity; otherwise look for a division by zero or "
            "the logarithm of what is not positive",
        )

    observed: dict[nn.Module, list[Node]] = {}  # tensors that share a grid share an observer
    for node in prepared.graph.nodes:
        if node.op == "call_module":
            observed.setdefault(prepared.get_submodule(str(node.target)), []).append(node.args[0])
    handles = []
    for observer, producers in observed.items():
        if is_observer(observer):
            turn = itertools.cycle(producers)  # every run calls the observer once per producer, in this order
            handles.append(observer.register_forward_pre_hook(functools.partial(check, turn)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _run(number: int, step: Callable[[], Any]) -> None:
    try:
        step()
    except MicroNpuError:
        raise
    except Exception as error:  # torch's kernels raise many kinds
        raise ModelError(
            f"The model cannot compute calibration item {number}: {first_line(error) or type(error).__name__}.",
            hint="model(*inputs) in eager mode, which fails alike: indices within their range, one dtype throughout",
        ) from error


def calibrated(
    module: GraphModule,
    sequences: Sequence[Sequence[tuple[torch.Tensor, ...]]],
    quantizer: Any,
    progress: Progress | None = None,
) -> GraphModule:
    """The float module with observers that have seen the data.

    By torchao for the quantizers of others and what else needs it; otherwise by us, who do the same.

    Args:
        module: with its states lifted.
        sequences: inputs of calls, one after the other; states begin anew with each sequence.
        progress: called with the number of calls done.
    """
    from micronpu.quantize.compose import fold_batch_norms

    with quiet(), torch.no_grad(), one_thread():
        # Before torch folds batch norms itself, since it writes into weights that other layers may share.
        fold_batch_norms(module)
        states = states_of(module)
        prepared = _prepared(module, quantizer)
        if states:
            prepared.meta[KEY] = states
        prepare_loops(prepared, quantizer, _prepared)
        number = 0
        with finite_values(prepared, lambda: number):
            for sequence in sequences:
                calls = run_sequence(prepared, sequence)
                for _ in sequence:
                    _run(number, lambda: next(calls))  # noqa: B023
                    number += 1
                    if progress is not None:
                        progress(number)
    return prepared


def _prepared(module: GraphModule, quantizer: Any) -> GraphModule:
    """The module with observers."""
    from micronpu.quantize.quantizer import StaticQuantizer

    if isinstance(quantizer, StaticQuantizer) and quantizer.is_ours() and post_training.takes(module):
        quantizer.check_use(is_qat=False)
        names = post_training.scopes(module)
        annotated = quantizer.annotated(quantizer.rewritten(module))
        return post_training.prepared(annotated, names, quantizer.prepare_obs_or_fq_callback)
    from micronpu.quantize.pt2e import prepare_pt2e

    return prepare_pt2e(module, quantizer)  # type: ignore[no-any-return]


def _converted(prepared: GraphModule) -> GraphModule:
    """The module with quantize and dequantize in the place of observers."""
    if post_training.is_prepared(prepared):
        return post_training.converted(prepared)
    from micronpu.quantize.pt2e import convert_pt2e

    return convert_pt2e(prepared)  # type: ignore[no-any-return]


def converted(
    prepared: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]], corrections: Corrections | None
) -> GraphModule:
    """Conversion behind the corrections that need data: the quantized module; the prepared one is used up."""
    states = states_of(prepared)
    with quiet(), torch.no_grad(), one_thread():
        if corrections is not None:
            correct(prepared, batches, corrections)
        convert_loops(prepared, _converted)
        quantized = _converted(prepared)
        if states:
            quantized.meta[KEY] = states
    integer_loops(quantized)
    return integer_states(quantized)


def quantize(
    module: GraphModule,
    sequences: Sequence[Sequence[tuple[torch.Tensor, ...]]],
    quantizer: Any,
    progress: Progress | None = None,
) -> GraphModule:
    """Observers, calibration, corrections and conversion; the arguments are those of `calibrated`."""
    prepared = calibrated(module, sequences, quantizer, progress)
    settings = getattr(quantizer, "settings", None)  # torchao's own quantizers have none
    corrections = settings.corrections if settings is not None else None
    rows = [row for sequence in sequences for row in sequence]
    if corrections is not None and corrections.need_data:
        with quiet(), torch.no_grad(), one_thread():
            rows = [row for sequence in sequences for row in rows_with_states(prepared, sequence)]
    return converted(prepared, rows, corrections)


def calibrate_and_quantize(
    model: torch.export.ExportedProgram | GraphModule,
    calibration_inputs: Iterable[Sequence[torch.Tensor] | torch.Tensor],
    quantizer: Any,
    is_qat: bool = False,
    train_fn: Callable[[nn.Module], Any] | None = None,
) -> GraphModule:
    """Quantizes a model with calibration data, or by training.

    Args:
        model: an exported program, or the module of one.
        calibration_inputs: inputs of the model, one tuple of tensors each; for a model with states a list of sequences.
        quantizer: such as `NeutronQuantizer` or `EthosUQuantizer`, made with ``is_qat=True`` for the following.
        is_qat: prepare the model for quantization-aware training.
        train_fn: trains the module that it is given, in place; without it, calibration sets the ranges.  With it, the
            calibration inputs are not run.

    Returns:
        The quantized module, ready for a second ``torch.export.export``.

    Raises:
        ModelError: the model is not exported, or the calibration data does not fit it.
        OptionError: the quantizer is for the other kind, or there is something to train with and no ``is_qat``.
    """
    from micronpu.quantize.sequences import calibration_sequences

    check_switch("is_qat", is_qat)
    if isinstance(quantizer, type) or not callable(getattr(quantizer, "annotate", None)):
        raise ModelError(f"The quantizer is {described(quantizer)}.", hint="NeutronQuantizer() or EthosUQuantizer(...)")
    if train_fn is not None and not is_qat:
        raise OptionError("`train_fn` is given and `is_qat` is False.", hint="is_qat=True, or leave it out")
    module = graph_module(model)
    examples: list[Any] = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    lifted = lift(module)
    if is_qat:
        from micronpu.quantize.qat import train_or_calibrate

        check_stateless(states_of(lifted))
        return train_or_calibrate(module, calibration_batches(calibration_inputs, examples), quantizer, train_fn)
    if lifted is not module:
        return held(quantize(lifted, calibration_sequences(calibration_inputs, examples), quantizer))
    return quantize(module, [calibration_batches(calibration_inputs, examples)], quantizer)
