"""The PT2E flow from float models, the methods of a program, to quantized ones."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

import torch
from torch import nn

from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import ErrorsAs, ModelError, OptionError, reason
from micronpu.base.quiet import quiet
from micronpu.frontend.exported import graph_module
from micronpu.frontend.facts import FLOAT_PROGRAM
from micronpu.frontend.graphs import Graph, GraphModule, Node, called_modules, operand
from micronpu.frontend.integers import integer_states
from micronpu.frontend.program import named
from micronpu.frontend.run import reveal_functions
from micronpu.frontend.tensors import KEY, States, held, lift, states_of
from micronpu.quantize import calibration_cache, post_training
from micronpu.quantize.config import Corrections
from micronpu.quantize.data import calibration_batches, calibration_sequences, check_stateless
from micronpu.quantize.far_values import FarValues
from micronpu.quantize.float64 import runnable
from micronpu.quantize.loops import convert_loops, integer_loops, prepare_loops, unobserved
from micronpu.quantize.nodes import observer_of, observers_in
from micronpu.quantize.norms import mark_standardisation, mark_uneven
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.ranges import fit_ranges
from micronpu.quantize.running import Call, Row
from micronpu.quantize.shared import check_qparams, level_norms, name_lines, share_qparams
from micronpu.quantize.solver.groups import PartObserver
from micronpu.quantize.weights import correct, write_first_layers
from micronpu.upstream.session import exclusive, one_thread
from micronpu.upstream.torch import is_guard

Progress = Callable[[int], None]
Result = TypeVar("Result")


def _is_finite(x: torch.Tensor) -> bool:
    """Return True if all are float32 numbers: in float64, others are where the model, and a scale, overflow."""
    return bool(torch.stack(torch.aminmax(x)).float().isfinite().all())


@contextlib.contextmanager
def finite_values(prepared: GraphModule, number: Callable[[], int]) -> Iterator[None]:
    """Refuse calibration in which an observed value is not finite.

    Infinity is any number beyond those of float32. An observer fails on NaN. It ignores infinity, which then becomes
    the largest number that it has seen.
    """

    def check(turn: Iterator[Node], module: nn.Module, values: tuple[torch.Tensor, ...]) -> None:
        node, x = next(turn), values[0]
        if not x.is_floating_point() or not x.numel() or _is_finite(x.detach()):
            return
        if _is_finite(x.detach().clamp(*getattr(module, "within", (-math.inf, math.inf)))):
            return  # what only clamps read counts as far as they reach
        raise ModelError(
            f"{named(node)} computes NaN or infinity with calibration item {number()}, so that it has no range.",
            hint="a finite number such as -30 in a mask instead of infinity; otherwise look for a division by zero, "
            "the logarithm of what is not positive, or values that grow from layer to layer",
        )

    observed: dict[nn.Module, list[Node]] = {}  # tensors that share qparams share an observer
    for node, observer in observers_in(prepared).items():
        if not getattr(observer, "is_calibrated", False):
            observed.setdefault(observer, []).append(operand(node))
    with contextlib.ExitStack() as stack:
        for observer, producers in observed.items():  # every run calls the observer once per producer, in this order
            hook = functools.partial(check, itertools.cycle(producers))
            stack.callback(observer.register_forward_pre_hook(hook).remove)
        yield


def run_call(number: int, step: Callable[[], Result]) -> Result:
    """Return the result of a call of calibration; raise `ModelError` if the model cannot compute it."""
    hint = "model(*inputs) in eager mode, which fails alike: indices within their range, one dtype throughout"
    what = f"The model cannot compute calibration item {number}"
    with ErrorsAs(lambda error: ModelError(f"{what}: {reason(error)}.", hint=hint)):
        return step()


def of_one(sequences: Iterable[Sequence[Row]]) -> list[list[Call]]:
    """Return calibration data of the only method, whose name is ""."""
    return [[("", row) for row in sequence] for sequence in sequences]


def of_method(name: str, sequences: Sequence[Sequence[Call]]) -> list[list[Row]]:
    """Return the calls of one method in the sequences that call it."""
    found = ([row for called, row in sequence if called == name] for sequence in sequences)
    return [calls for calls in found if calls]


def calibrated(
    modules: Mapping[str, GraphModule],
    sequences: Sequence[Sequence[Call]],
    quantizers: Mapping[str, object],
    progress: Progress | None = None,
    statistics: calibration_cache.FloatStatistics | None = None,
) -> dict[str, GraphModule]:
    """Return the float modules of all methods with calibrated observers.

    torchao prepares them for other packages' quantizers and for unsupported operators; otherwise this package does the
    same.

    Args:
        modules: by method, with lifted states; they are consumed.
        sequences: successive calls of any method; states are reset for each sequence.
        progress: called with the number of finished calls.
        statistics: of earlier quantizations with these sequences; None for none.

    Raises:
        ModelError: the methods need different qparams for a state, or a call cannot be computed.
    """
    prepared = observed(modules, sequences, quantizers)
    keys = calibration_cache.observer_keys(prepared) if statistics is not None else {}
    known = statistics.known(keys) if statistics is not None else {}
    is_known = 0 < len(keys) == len(known)
    entry = None if is_known else calibration_cache.calibration_entry(prepared, sequences)
    if entry is not None and (stored := entry.read()) is not None:
        calibration_cache.unpack_observers(prepared, stored)
        is_known = True
    else:
        calibration_cache.restore_all(known)
    if is_known:
        if progress is not None:
            progress(sum(map(len, sequences)))
    else:
        far = observe_calls(prepared, sequences, progress, knows_some=bool(known))
        if statistics is not None:
            narrowed = far.narrowed  # ranges that the results of the whole network have decided
            statistics.keep({observer: key for observer, key in keys.items() if observer not in narrowed})
        if entry is not None:
            entry.write(calibration_cache.pack_observers(prepared))
    for module in prepared.values():
        _end(module)
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
    sequences: Sequence[Sequence[Call]],
    progress: Progress | None,
    *,
    knows_some: bool = False,
) -> FarValues:
    """Run all calls of methods with observers, and narrow ranges with far values, which are returned."""
    number, far = 0, FarValues()
    states = {name: states_of(module) for name, module in prepared.items()}
    runs, later = dict[str, GraphModule](), dict[str, GraphModule]()

    def observed_call(name: str, *given: torch.Tensor) -> object:
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

    with quiet(), torch.no_grad(), one_thread():
        for _ in _results(states, sequences, observed_call, lambda name: finite_values(prepared[name], lambda: number)):
            pass
        with unobserved(*runs.values()):
            far.clamp(lambda run: _results(states, sequences, lambda name, *given: run(runs[name], *given)))
    return far


def _results(
    states: Mapping[str, States],
    sequences: Sequence[Sequence[Call]],
    run: Callable[..., Any],
    around: Callable[[str], contextlib.AbstractContextManager[None]] = lambda name: contextlib.nullcontext(),
) -> Iterator[Any]:
    """Yield the results of all calls; states persist between the calls of all methods."""
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
            module.copy_extremes()
    post_training.settle_concat_groups(prepared)


def observed(
    modules: Mapping[str, GraphModule], sequences: Sequence[Sequence[Call]], quantizers: Mapping[str, object]
) -> dict[str, GraphModule]:
    """Return the float modules with empty observers, which methods share where they compute the same."""
    from micronpu.quantize.decompose import write_out

    made = {}
    if is_joint := len(modules) > 1:
        name_lines(modules.values())
    with quiet(), torch.no_grad(), one_thread():
        for name, module in modules.items():
            for node, part in list(called_modules(module, nn.Module)):
                if is_guard(part):  # shapes are checked elsewhere
                    module.graph.erase_node(node)
            settings = getattr(quantizers[name], "settings", None)  # torchao's own quantizers have none
            calls = of_method(name, sequences)
            if settings is not None and settings.io is None:
                mark_standardisation(module, calls, settings.default)
                if not is_joint:
                    write_first_layers(module, calls, settings)
            # Done before torch folds batch norms, since it writes into weights that other layers may share.
            write_out(module)
            if calls:
                mark_uneven(module, calls, states_of(module))
        if is_joint:
            level_norms(modules.values())
        for name, module in modules.items():
            made[name] = _prepared(module, quantizers[name])
            made[name].meta[KEY] = states_of(module)
            prepare_loops(made[name], quantizers[name], _prepared)
            if is_joint:  # before calibration: whether a part has its own qparams must not differ between methods
                post_training.settle_concat_groups(made[name])
    if is_joint:
        share_qparams(made)
    return made


def _prepared(module: GraphModule, quantizer: Any) -> GraphModule:
    is_ours = getattr(quantizer, "is_ours", None)  # torchao's own quantizers have none
    if is_ours is not None and is_ours():
        quantizer.check_use(is_qat=False)
        return post_training.prepared(quantizer.annotated(quantizer.rewritten(module)))
    from micronpu.quantize.pt2e import prepare_pt2e

    FLOAT_PROGRAM.say(module, None)  # the calls need not be recorded: they are here
    prepared: GraphModule = prepare_pt2e(module, quantizer)
    FLOAT_PROGRAM.take(prepared)
    return prepared


def _converted(prepared: GraphModule) -> GraphModule:
    if post_training.is_prepared(prepared):
        return post_training.converted(prepared)
    from micronpu.quantize.pt2e import convert_pt2e, forget_repairs

    made: GraphModule = convert_pt2e(prepared)
    forget_repairs(prepared, made)
    return made


def quantize(
    module: GraphModule, sequences: Sequence[Sequence[Row]], quantizer: object, progress: Progress | None = None
) -> GraphModule:
    """Prepare, calibrate, correct and convert the only module of a program; see `calibrated`."""
    quantizers, calls = {"": quantizer}, of_one(sequences)
    return finished(calibrated({"": module}, calls, quantizers, progress), calls, quantizers)[""]


def finished(
    prepared: Mapping[str, GraphModule],
    sequences: Sequence[Sequence[Call]],
    quantizers: Mapping[str, object],
    statistics: calibration_cache.FloatStatistics | None = None,
) -> dict[str, GraphModule]:
    """Correct and convert the result of `calibrated`, which is consumed; the arguments are those of `calibrated`."""
    made = {}
    settings = getattr(next(iter(quantizers.values())), "settings", None)  # torchao's own quantizers have none
    corrections = Corrections() if settings is None else settings.corrections
    with quiet(), torch.no_grad(), one_thread():
        if corrections.need_data:
            states = {name: states_of(module) for name, module in prepared.items()}
            with unobserved(*prepared.values()):
                first = {n: [(*of_method(n, sequences)[0][0], *states[n].initial)] for n in prepared}
                runs = {n: runnable(module, first[n], observes=False) for n, module in prepared.items()}
                rows = seen_calls(runs, states, sequences)
            if corrections.fit_ranges:
                fit_ranges(prepared, rows, statistics)
            with unobserved(*prepared.values()):
                correct(prepared, rows, corrections, statistics)
        for name, module in prepared.items():
            convert_loops(module, _converted)
            made[name] = _converted(module)
            reveal_functions(made[name])
            made[name].meta[KEY] = states_of(module)
    for name, module in made.items():
        integer_loops(module)
        made[name] = integer_states(module)
    for name, module in prepared.items():  # not before: methods share observers
        forget(module, made[name])
    check_qparams(made)
    return made


def seen_calls(
    modules: Mapping[str, Callable[..., Any]], states: Mapping[str, States], sequences: Sequence[Sequence[Call]]
) -> dict[str, list[Row]]:
    """Return all calls of each method, with the values of its states before each; without states nothing is run."""
    found: dict[str, list[Row]] = {name: [] for name in modules}

    def run(name: str, *given: torch.Tensor) -> Row:
        found[name].append(given)
        first = states[name].initial
        new = modules[name](*given)[-len(first) :] if first else ()
        return tuple(value.to(initial.dtype) for value, initial in zip(new, first, strict=True))

    with torch.no_grad():
        for _ in _results(states, sequences, run):
            pass
    return found


def forget(module: nn.Module, kept: nn.Module) -> None:
    """Delete the tensors of a consumed module, except those of parts that another one has."""
    # A graph and its module refer to each other, so their memory would be kept until Python's next garbage collection.
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
    quantizer: object,
    is_qat: bool = False,
    train_fn: Callable[[nn.Module], object] | None = None,
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
    examples: list[torch.Tensor] = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
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
        return held(quantize(lifted, calibration_sequences(calibration_inputs, examples), quantizer))
    return quantize(module, [[row] for row in calibration_batches(calibration_inputs, examples)], quantizer)
