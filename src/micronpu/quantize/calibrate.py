"""The PT2E flow from a float model to a quantized one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import MicroNpuError, ModelError, OptionError, first_line
from micronpu.base.quiet import quiet
from micronpu.frontend.exported import graph_module
from micronpu.frontend.facts import FLOAT_PROGRAM
from micronpu.frontend.integers import integer_states
from micronpu.frontend.program import origin_of
from micronpu.frontend.tensors import KEY, NO_STATES, States, held, lift, states_of
from micronpu.quantize import post_training
from micronpu.quantize.calibration_cache import (
    FloatStatistics,
    calibration_entry,
    observer_keys,
    pack_observers,
    restore_all,
    unpack_observers,
)
from micronpu.quantize.config import Corrections
from micronpu.quantize.data import calibration_batches, calibration_sequences, check_stateless
from micronpu.quantize.far_values import FarValues
from micronpu.quantize.float64 import runnable
from micronpu.quantize.loops import convert_loops, integer_loops, prepare_loops, unobserved
from micronpu.quantize.nodes import observer_of
from micronpu.quantize.norms import mark_standardisation, mark_uneven
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.post_training import settle_concat_groups
from micronpu.quantize.ranges import fit_ranges
from micronpu.quantize.running import Row, seen_calls
from micronpu.quantize.solver.groups import PartObserver
from micronpu.quantize.weights import correct
from micronpu.upstream.session import exclusive, one_thread
from micronpu.upstream.torch import is_guard

Progress = Callable[[int], None]
Call: TypeAlias = tuple[str, Row]
"""Name of a method, and its inputs."""


@contextlib.contextmanager
def finite_values(prepared: GraphModule, number: Callable[[], int]) -> Iterator[None]:
    """Refuse calibration in which an observed value is not finite.

    An observer fails on NaN. It ignores infinity, which then becomes the largest number that it has seen.

    Args:
        number: returns the index of the current batch.
    """

    def check(turn: Iterator[Node], module: nn.Module, values: tuple[Any, ...]) -> None:
        node, x = next(turn), values[0]
        if not x.is_floating_point() or not x.numel():
            return
        # A sum of float32 numbers does not overflow in float64, and takes less time than the extremes.
        if math.isfinite(float(x.detach().sum(dtype=torch.float64))):
            return
        source = origin_of(node).source
        raise ModelError(
            f"`{node.name}`{f' ({source})' if source else ''} computes NaN or infinity with calibration item "
            f"{number()}, so that it has no range.",
            hint="a finite number such as -30 in a mask instead of infinity; otherwise look for a division by zero or "
            "the logarithm of what is not positive",
        )

    observed: dict[nn.Module, list[Node]] = {}  # tensors that share qparams share an observer
    for node in prepared.graph.nodes:
        observer = observer_of(prepared, node)
        if observer is not None and not getattr(observer, "is_calibrated", False):
            observed.setdefault(observer, []).append(node.args[0])
    handles = []
    for observer, producers in observed.items():
        turn = itertools.cycle(producers)  # every run calls the observer once per producer, in this order
        handles.append(observer.register_forward_pre_hook(functools.partial(check, turn)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_call(number: int, step: Callable[[], Any]) -> Any:
    """Run a call of calibration, and return its result.

    Raises:
        ModelError: the model cannot compute it.
    """
    try:
        return step()
    except MicroNpuError:
        raise
    except Exception as error:  # torch's kernels raise many kinds
        raise ModelError(
            f"The model cannot compute calibration item {number}: {first_line(error) or type(error).__name__}.",
            hint="model(*inputs) in eager mode, which fails alike: indices within their range, one dtype throughout",
        ) from error


def calibrated(
    module: GraphModule,
    sequences: Sequence[Sequence[Row]],
    quantizer: Any,
    progress: Progress | None = None,
    states: States = NO_STATES,
    statistics: FloatStatistics | None = None,
) -> GraphModule:
    """Return the float module with calibrated observers.

    torchao prepares it for other packages' quantizers and for unsupported operators; otherwise this package does the
    same.

    Args:
        sequences: inputs of calls, one after the other; states are reset for each sequence.
        progress: called with the number of finished calls.
        states: of the module, if it has lifted ones.
        statistics: of earlier quantizations with these sequences; None for none.
    """
    prepared = observed(module, quantizer, sequences, states)
    keys = observer_keys(prepared) if statistics is not None else {}
    known = statistics.known(keys) if statistics is not None else {}
    is_known = 0 < len(keys) == len(known)
    entry = None if is_known else calibration_entry(prepared, states, sequences)
    if entry is not None and (stored := entry.read()) is not None:
        unpack_observers(prepared, stored)
        is_known = True
    else:
        restore_all(known)
    if is_known:
        _end(prepared)
        if progress is not None:
            progress(sum(map(len, sequences)))
        return prepared
    calls = [[("", row) for row in sequence] for sequence in sequences]
    far = observe_calls({"": prepared}, {"": states}, calls, progress, knows_some=bool(known))
    if statistics is not None and far.are_kept:
        statistics.keep(keys)
    if entry is not None:
        entry.write(pack_observers(prepared))
    _end(prepared)
    return prepared


def _observing(module: GraphModule) -> GraphModule:
    """Return a module that computes only what its observers still learn from."""
    graph, copies, ends = Graph(), dict[Node, Node](), list[Node]()
    for node in module.graph.nodes:
        observer = observer_of(module, node)
        if isinstance(observer, RangeObserver) and observer.is_done:
            copies[node] = copies[node.args[0]]
        elif node.op != "output":
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            ends += [copies[node]] if isinstance(observer, RangeObserver) else []
    graph.output(tuple(ends))
    made = GraphModule(module, graph)
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


def observe_calls(
    prepared: Mapping[str, GraphModule],
    states: Mapping[str, States],
    sequences: Sequence[Sequence[Call]],
    progress: Progress | None,
    *,
    knows_some: bool = False,
) -> FarValues:
    """Run all calls of methods with observers, and narrow ranges with far values, which are returned.

    Args:
        prepared: modules by method, which may share observers.
        states: of each method; they are reset for each sequence.
        progress: called with the number of finished calls.
        knows_some: some observers have learnt already.
    """
    number, far = 0, FarValues()
    runs, later = dict[str, GraphModule](), dict[str, GraphModule]()

    def observed_call(name: str, *given: torch.Tensor) -> Any:
        nonlocal number
        if is_first := name not in runs:
            own = states[name]
            runs[name] = runnable(prepared[name], [(*given[: len(given) - len(own.values)], *own.initial)])
            later[name] = _observing(runs[name]) if knows_some and not own else runs[name]
        module = (runs if is_first else later)[name]
        with far.noted(module) if is_first else contextlib.nullcontext():
            results = run_call(number, lambda: module(*given))
        number += 1
        if progress is not None:
            progress(number)
        return results

    def watched(name: str) -> contextlib.AbstractContextManager[None]:
        return finite_values(prepared[name], lambda: number)

    with quiet(), torch.no_grad(), one_thread():
        for _ in _results(states, sequences, observed_call, watched):
            pass
        with contextlib.ExitStack() as stack:
            for module in runs.values():
                stack.enter_context(unobserved(module))
            far.clamp(lambda run: _results(states, sequences, lambda name, *given: run(runs[name], *given)))
    return far


def _results(
    states: Mapping[str, States],
    sequences: Sequence[Sequence[Call]],
    run: Callable[..., Any],
    around: Callable[[str], contextlib.AbstractContextManager[None]] = lambda name: contextlib.nullcontext(),
) -> Iterator[Any]:
    """Yield the results of all calls; states persist between the calls of all methods.

    Args:
        run: called with the method and its inputs and states.
        around: returns a context for successive calls of one method.
    """
    first = {state.name: state.initial for of_method in states.values() for state in of_method.values}
    calls = [(number, *call) for number, sequence in enumerate(sequences) for call in sequence]
    values, current = dict[str, torch.Tensor](), -1
    # Calls of one method at a time: methods share observers, which see a method's values in its own order.
    for name, successive in itertools.groupby(calls, key=lambda call: call[1]):
        own = states[name].values
        with around(name):
            for number, _, row in successive:
                if number != current:
                    current, values = number, {name: initial.clone() for name, initial in first.items()}
                results = run(name, *row, *(values[state.name] for state in own))
                for state, value in zip(own, results[len(results) - len(own) :] if own else (), strict=True):
                    values[state.name] = value.detach().clone()
                yield results


def _end(prepared: GraphModule) -> None:
    """End calibration, in place: corrections run the same samples again."""
    for module in prepared.modules():
        if isinstance(module, RangeObserver):
            module.is_calibrated = True
        if isinstance(module, PartObserver):
            module.follow()
    settle_concat_groups(prepared)


def observed(
    module: GraphModule,
    quantizer: Any,
    sequences: Sequence[Sequence[Row]] = (),
    states: States = NO_STATES,
) -> GraphModule:
    """Return the float module with empty observers; the given module is consumed.

    Args:
        sequences: calibration data, which decide where norms need int16; without any, none do.
        states: of the module, if it has lifted ones.
    """
    from micronpu.quantize.decompose import fold_batch_norms

    settings = getattr(quantizer, "settings", None)  # torchao's own quantizers have none
    for node in module.graph.find_nodes(op="call_module"):
        if is_guard(module.get_submodule(str(node.target))):  # shapes are checked elsewhere
            module.graph.erase_node(node)
    with quiet(), torch.no_grad(), one_thread():
        if settings is not None and settings.io is None:
            mark_standardisation(module, sequences, settings.default)
        # Done before torch folds batch norms, since it writes into weights that other layers may share.
        fold_batch_norms(module)
        if sequences:
            mark_uneven(module, sequences, states)
        prepared = _prepared(module, quantizer)
        _hand_on_states(module, prepared)
        prepare_loops(prepared, quantizer, _prepared)
    return prepared


def _prepared(module: GraphModule, quantizer: Any) -> GraphModule:
    """Return the module with observers."""
    is_ours = getattr(quantizer, "is_ours", None)  # torchao's own quantizers have none
    if is_ours is not None and is_ours():
        quantizer.check_use(is_qat=False)
        names = post_training.scopes(module)
        return post_training.prepared(quantizer.annotated(quantizer.rewritten(module)), names)
    from micronpu.quantize.pt2e import prepare_pt2e

    FLOAT_PROGRAM.say(module, None)  # the calls need not be recorded: they are here
    prepared: GraphModule = prepare_pt2e(module, quantizer)
    FLOAT_PROGRAM.take(prepared)
    return prepared


def _converted(prepared: GraphModule) -> GraphModule:
    """Return the module with quantize and dequantize instead of observers."""
    if post_training.is_prepared(prepared):
        return post_training.converted(prepared)
    from micronpu.quantize.pt2e import convert_pt2e

    return convert_pt2e(prepared)  # type: ignore[no-any-return]


def _hand_on_states(module: GraphModule, made: GraphModule) -> None:
    if KEY in module.meta:
        made.meta[KEY] = module.meta[KEY]


def converted(
    prepared: GraphModule,
    batches: Sequence[Row],
    corrections: Corrections | None,
    statistics: FloatStatistics | None = None,
) -> GraphModule:
    """Apply the corrections that need data, and convert; the prepared module is consumed."""
    with quiet(), torch.no_grad(), one_thread():
        if corrections is not None and corrections.fit_ranges:
            fit_ranges(prepared, batches, statistics)
        if corrections is not None:
            with unobserved(prepared):
                correct(prepared, batches, corrections, statistics)
        convert_loops(prepared, _converted)
        quantized = _converted(prepared)
        _hand_on_states(prepared, quantized)
    integer_loops(quantized)
    return integer_states(quantized)


def quantize(
    module: GraphModule,
    sequences: Sequence[Sequence[Row]],
    quantizer: Any,
    progress: Progress | None = None,
    states: States = NO_STATES,
    statistics: FloatStatistics | None = None,
) -> GraphModule:
    """Prepare, calibrate, correct and convert a module; the arguments are those of `calibrated`."""
    prepared = calibrated(module, sequences, quantizer, progress, states, statistics)
    return finished(prepared, sequences, quantizer, states, statistics)


def finished(
    prepared: GraphModule,
    sequences: Sequence[Sequence[Row]],
    quantizer: Any,
    states: States = NO_STATES,
    statistics: FloatStatistics | None = None,
) -> GraphModule:
    """Correct and convert the result of `calibrated`, which is consumed; the arguments are those of `calibrated`."""
    settings = getattr(quantizer, "settings", None)  # torchao's own quantizers have none
    corrections = settings.corrections if settings is not None else None
    rows = [row for sequence in sequences for row in sequence]
    if corrections is not None and corrections.need_data:
        with quiet(), one_thread(), unobserved(prepared):
            first = [(*row, *states.initial) for row in rows[:1]]
            rows = seen_calls(runnable(prepared, first, observes=False), states, sequences)
    quantized = converted(prepared, rows, corrections, statistics)
    forget(prepared, quantized)
    return quantized


def forget(module: nn.Module, kept: nn.Module) -> None:
    """Delete the tensors of a consumed module, except those of parts that another one has.

    A graph and its module refer to each other, so their memory would be kept until Python's next garbage collection.
    """
    shared = set(kept.modules())
    for part in module.modules():
        if part not in shared:
            registered = (part.named_parameters, part.named_buffers)
            names = [n for named in registered for n, _ in named(recurse=False, remove_duplicate=False)]
            for name in [*names, *(n for n, value in vars(part).items() if isinstance(value, torch.Tensor))]:
                delattr(part, name)


@exclusive()
def calibrate_and_quantize(
    model: torch.export.ExportedProgram | GraphModule,
    calibration_inputs: Iterable[Sequence[torch.Tensor] | torch.Tensor],
    quantizer: Any,
    is_qat: bool = False,
    train_fn: Callable[[nn.Module], Any] | None = None,
) -> GraphModule:
    """Quantize a model with calibration data, or by training.

    Args:
        model: an exported program, or the module of one.
        calibration_inputs: inputs of the model, one tuple of tensors each; for a model with states a list of sequences.
        quantizer: such as `NeutronQuantizer` or `EthosUQuantizer`, made with ``is_qat=True`` for the following.
        is_qat: prepare the model for quantization-aware training.
        train_fn: trains a module in place; without it, calibration sets the ranges.  With it, the calibration inputs
            are not run, and may be an empty list.

    Returns:
        The quantized module, ready for a second ``torch.export.export``.

    Raises:
        ModelError: the model is not exported, or the calibration data does not fit it.
        OptionError: the quantizer is for the other kind, or ``train_fn`` is given without ``is_qat``.
    """
    check_switch("is_qat", is_qat)
    if isinstance(quantizer, type) or not callable(getattr(quantizer, "annotate", None)):
        hint = f"{quantizer.__name__}(...)" if isinstance(quantizer, type) else "one of the NPU's family, made with ()"
        raise ModelError(f"The quantizer is {described(quantizer)}.", hint=hint)
    if train_fn is not None and not is_qat:
        raise OptionError("`train_fn` is given and `is_qat` is False.", hint="is_qat=True, or leave it out")
    module = graph_module(model)
    examples: list[Any] = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    lifted = lift(module)
    states = states_of(lifted)
    if is_qat:
        from micronpu.quantize.qat import train_or_calibrate

        check_stateless(states)
        if train_fn is not None and isinstance(calibration_inputs, Sized) and not len(calibration_inputs):
            batches = [tuple(torch.zeros([int(n) for n in x.shape], dtype=x.dtype) for x in examples)]
        else:
            batches = calibration_batches(calibration_inputs, examples)
        return train_or_calibrate(module, batches, quantizer, train_fn)
    if lifted is not module:
        return held(quantize(lifted, calibration_sequences(calibration_inputs, examples), quantizer, states=states))
    return quantize(module, [[row] for row in calibration_batches(calibration_inputs, examples)], quantizer)
