"""Shared qparams of a state's input and output, for all readers and producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.base.errors import ModelError
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import origin_of
from micronpu.frontend.states import State, States, is_write, states_of
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.observers import is_fixed, is_observer
from micronpu.quantize.specs import KEY as _ANNOTATION
from micronpu.quantize.specs import QuantizationAnnotation


def state_ends(model: GraphModule) -> list[tuple[State, Node, Node]]:
    """Return each state with its input and the node that computes its new value."""
    states = states_of(model)
    if not states:
        return []
    inputs = {n.name: n for n in model.graph.nodes if n.op == "placeholder"}
    results: Any = model.graph.output_node().args[0]
    new = results[len(results) - len(states.values) :]
    return [(state, inputs[state.node], value) for state, value in zip(states.values, new, strict=True)]


def only_kept(prepared: GraphModule) -> set[Node]:
    """Return new values of states that only keep values computed without them, such as the last frames of a sound.

    They are clipped at most once.  A state that is computed from itself could be clipped in every call.

        past, frame -> x = cat -> y = conv(x), past' = x[1:]      only kept h, frame -> h' = gru(h, frame)
        computed from itself
    """
    ends = state_ends(prepared)
    holders = {holder for _, holder, _ in ends}
    made_of: dict[Node, set[Node]] = {}
    for _, holder, value in ends:
        moved, computed = _sources(prepared, value)
        made_of[holder] = ((moved - {holder}) | _behind(computed)) & holders
    while True:
        wider = {h: found.union(*(made_of[f] for f in found)) for h, found in made_of.items()}
        if wider == made_of:
            return {value for _, holder, value in ends if holder not in made_of[holder]}
        made_of = wider


def _sources(prepared: GraphModule, value: Node) -> tuple[set[Node], set[Node]]:
    """Return the inputs and the computed values from which operators that only move make a value."""
    inputs, computed, waiting = set[Node](), set[Node](), [value]
    while waiting:
        node = waiting.pop()
        entry = known_import(node) if node.op == "call_function" else None
        if node.op == "placeholder":
            inputs.add(node)
        elif (entry is not None and entry.moves_only) or _is_observer(prepared, node):
            waiting += node.all_input_nodes
        else:
            computed.add(node)
    return inputs, computed


def _is_observer(prepared: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and is_observer(prepared.get_submodule(str(node.target)))


def _behind(nodes: set[Node]) -> set[Node]:
    """Return nodes and all of their operands, recursively."""
    found, waiting = set[Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def check_stateless(states: States) -> None:
    """Raise `ModelError` if a model for training has a state."""
    if states:
        raise ModelError(
            f"The model keeps a state, `{states.values[0].name}`, from one call to the next, and quantization-aware "
            "training shows it single inputs.",
            hint="calibration with sequences, or a model to train that takes its states and returns them",
        )


def check_lifted(model: GraphModule) -> None:
    """Raise `ModelError` if a model still writes into its buffers, so that only their initial values would be
    calibrated."""
    written = next((n for n in model.graph.nodes if is_write(n)), None)
    if written is not None:
        raise ModelError(
            f"The model keeps a state, `{written.args[0].target}`, from one call to the next, and `prepare_pt2e` knows "
            "no sequences of calls.",
            hint="micronpu.compile, or calibrate_and_quantize with the exported program",
        )


def annotate_states(model: GraphModule, config_of: Callable[[Node], QuantizationConfig | None]) -> None:
    """Quantize each state input like the operator that computes its new value, before everything else is annotated.

    It is not clipped in calibration, since an error would persist from call to call.
    """
    for state, holder, value in state_ends(model):
        config = config_of(value)
        if config is not None and state.initial.dtype is torch.float32:
            holder.meta[_ANNOTATION] = QuantizationAnnotation(output_qspec=config.io_activation)


def annotate_new_values(model: GraphModule, config_of: Callable[[Node], QuantizationConfig | None]) -> None:
    """Quantize the new value of each state if the operator that computes it does not."""
    output = model.graph.output_node()
    for _, holder, value in state_ends(model):
        known = value.meta.get(_ANNOTATION)
        config = config_of(value)
        if _ANNOTATION not in holder.meta or config is None or (known is not None and known.output_qspec is not None):
            continue
        if value.op == "placeholder":
            value.meta[_ANNOTATION] = QuantizationAnnotation(output_qspec=config.io_activation)
            continue
        edges = output.meta.setdefault(_ANNOTATION, QuantizationAnnotation())
        edges.input_qspec_map.setdefault(value, config.io_activation)


def share_qparams(model: GraphModule, places: dict[Any, Any]) -> None:
    """Merge the groups that share qparams with a state's old and new value, in place.

    Args:
        places: observer by node or by (operand, reader) edge, as in torchao's preparation.

    Raises:
        ModelError: operators prescribe different qparams, or dtypes.
    """
    output = model.graph.output_node()
    for state, holder, value in state_ends(model):
        old = places.get(holder)
        if old is None:
            continue
        for new in (places.get(value), places.get((value, output))):
            if new is None or new is old:
                continue
            kept = common_observer(state, value, old, new)
            for place, observer in list(places.items()):
                if observer is old or observer is new:
                    places[place] = kept
            old = kept


def common_observer(state: State, value: Node, old: Any, new: Any) -> Any:
    """Return the stricter of two observers of a state."""
    found = ""
    if old.dtype is not new.dtype:
        found = f"{dtype_name(old.dtype)} in and {dtype_name(new.dtype)} out"
    fixed = [o for o in (old, new) if is_fixed(o)]
    if len(fixed) == 2 and (float(old.scale), int(old.zero_point)) != (float(new.scale), int(new.zero_point)):
        found = (
            f"read with scale {float(old.scale):.4g} and written with scale {float(new.scale):.4g}, both prescribed by "
            "operators"
        )
    if found:
        source = origin_of(value).source
        raise ModelError(
            f"The state `{state.name}` cannot have one pair of qparams: it is "
            f"{found}{f' ({source})' if source else ''}.",
            hint="the same setting of the quantizer for the operators that read the state and for the one that makes "
            "its new value",
        )
    return strictest((old, new))


def strictest(observers: Sequence[Any]) -> Any:
    """Return the first observer with fixed qparams, or else with zero point 0, or else the first."""
    return min(observers, key=lambda o: (not is_fixed(o), o.qscheme != torch.per_tensor_symmetric))


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``int8`` for ``torch.int8``."""
    return str(dtype).removeprefix("torch.")
