"""Rewrites of the float program before annotation, most of them decompositions of `micronpu.ops`.

All keep the result up to float rounding.  Every intermediate value then gets its own observer, and so its own qparams.
Tests in `tests/compile/ops/test_operators_elementwise.py` measure the effect of int8 intermediate values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Any

import torch
from torch import nn

from micronpu.base.errors import ModelError
from micronpu.frontend.facts import IN_TRAINING, QPARAMS, WRITTEN
from micronpu.frontend.graphs import GraphModule, Node, calls, place_of
from micronpu.frontend.importer import can_fuse
from micronpu.frontend.program import arguments, is_float32, is_getitem, is_random, overload_name, value_of
from micronpu.frontend.run import called
from micronpu.frontend.tensors import add_constant, attribute, clean, is_trained, replace_each
from micronpu.ir.lowering import Capabilities, Results
from micronpu.ops import ATEN_IMPORTS
from micronpu.ops.facts import NUMBERED
from micronpu.ops.movement import DROPOUTS
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.ops.slicing import CONCATENATIONS
from micronpu.quantize.identities import function_before_fill, functions_to_tables, spelled_out
from micronpu.quantize.nodes import takes_clamp
from micronpu.quantize.norms import scale_rows
from micronpu.quantize.positions import Shared, blend_at_positions, tables_by_position
from micronpu.quantize.powers import logarithms_of_powers
from micronpu.quantize.thresholds import MOST_FOLDED
from micronpu.quantize.writer import GraphWriter, apply, is_on, switchable

aten = torch.ops.aten


def _is_empty(node: Node) -> bool:
    """Return True if its result has no elements, which decompositions do not support."""
    shape = getattr(value_of(node), "shape", ())
    return any(isinstance(size, int) and size == 0 for size in shape)  # and not one that is known at run time only


def decompose(model: GraphModule, capabilities: Capabilities, disabled: Collection[str] = ()) -> None:
    """Writes every decomposition that a device needs, also for what decompositions write, in place."""
    apply(make_functional, disabled, model)  # first, because decompositions do not know in-place names
    apply(spelled_out, disabled, model, capabilities)
    apply(logarithms_of_powers, disabled, model, capabilities)
    clean(model, _walk(model, capabilities, disabled, early=True))
    apply(fold_constants, disabled, model)
    apply(functions_to_tables, disabled, model, capabilities)
    apply(function_before_fill, disabled, model, capabilities)
    clamps = CLAMPS if is_on(activation_before_concat, disabled) else frozenset[str]()
    clean(model, _walk(model, capabilities, disabled, clamps))


def write_out(model: GraphModule, only: Collection[str] = BATCH_NORMS, *, early: bool = True) -> None:
    """Writes the decompositions of some overloads alone, in place; by default batch norms are folded."""
    clean(model, _walk(model, Capabilities(), (), early=early, only=only))


def norms_into_parameters(model: GraphModule) -> None:
    """Fold the batch norms of a float model in place; the new weights are parameters, which can be trained."""
    with torch.no_grad():
        write_out(model)
    for name, value in [*model.named_buffers(recurse=False, remove_duplicate=False)]:
        if not name.startswith("folded_"):
            continue
        delattr(model, name)
        if not torch.isfinite(value).all():
            raise ModelError(
                "A batch norm of the model holds NaN or infinity, or a variance that is negative.",
                hint="look for a training that diverged, or for a checkpoint that was loaded in part",
            )
        model.register_parameter(name, nn.Parameter(value))
    model.recompile()


def _walk(
    model: GraphModule,
    capabilities: Capabilities,
    disabled: Collection[str],
    clamps: Collection[str] = (),
    *,
    early: bool = False,
    only: Collection[str] = (),
) -> bool:
    """Traverse the program once."""
    changed = False
    shared: dict[Hashable, Node] = {}
    pending = deque(model.graph.nodes)
    while pending:
        node = pending.popleft()
        name = overload_name(node)
        if _is_empty(node) or (only and name not in only):
            continue
        lowerings = [w for w in capabilities.decompositions(name) if w.early == early and w.name not in disabled]
        tries: list[tuple[str, Callable[[GraphWriter], Any]]] = [
            (w.sentence, w.decompose) for w in lowerings if early or w.decides or is_float32(node)
        ]
        if name in clamps and is_float32(node):
            tries.append(("", activation_before_concat))
        for sentence, attempt in tries:
            write = GraphWriter(model, node, capabilities, shared)
            made = attempt(write)
            if made is not None and made is not node:
                for new in write.made:
                    WRITTEN.say(new, WRITTEN.of(node) or sentence)
                _replace(model, node, made, write.made)
                shared.update({key: made for key, value in shared.items() if value is node})
                pending.extendleft(reversed(write.made))
                changed = True
                break
    return changed


def _replace(model: GraphModule, node: Node, made: Any, written: Collection[Node]) -> None:
    """Replace a node by its decomposition; nodes written for the node itself continue to read it."""
    if isinstance(made, Results):
        for reader in [user for user in node.users if is_getitem(user)]:
            if (index := place_of(reader)) in made.values:
                reader.replace_all_uses_with(made.values[index])
            if not reader.users:
                model.graph.erase_node(reader)
    else:
        node.replace_all_uses_with(made, lambda user: user not in written)
        name, rule = QPARAMS.of(node)
        # Qparams that were given to the value also apply to its replacement.
        if name == node.name and made in written and QPARAMS.of(made)[0] != made.name:
            QPARAMS.say(made, (made.name, rule))
    if not node.users:
        model.graph.erase_node(node)


@switchable
def make_functional(model: GraphModule) -> bool:
    """x.relu_() -> relu(x), so that running the quantized program in eager mode changes no value that others read.

    The traced program reads the result of an in-place operator wherever it used the operand afterwards.  An input of
    the program keeps its value: inputs of a delegate are never written.
    """
    changed = False
    for node in calls(model):
        name, _, form = overload_name(node).partition(".")
        if not name.endswith("_") or name.startswith("_") or not node.args or not isinstance(node.args[0], Node):
            continue
        plain = getattr(getattr(aten, name[:-1], None), form, None)
        if plain is not None:
            node.target, changed = plain, True
    return changed


@switchable
def fold_constants(model: GraphModule) -> bool:
    """Computes what depends on no input.  Parameters that are going to be trained stay as they are.

    ones(8) -> expand(2, 8) -> y        y is a constant
    weight -> slice(0:8) -> y           y is a constant, as the projections of `torch.nn.MultiheadAttention` are
    """

    def folded(node: Node) -> Node | None:
        value, name = node.meta.get("val"), overload_name(node)
        if not name or not node.users or not isinstance(value, torch.Tensor) or value.numel() > MOST_FOLDED:
            return None
        if is_random(node) or (name in DROPOUTS and IN_TRAINING.of(model)):
            return None
        known = {n: attribute(model, n) for n in node.all_input_nodes if not is_trained(model, n)}
        if len(known) < len(node.all_input_nodes) or any(v is None or v.is_meta for v in known.values()):
            return None
        with torch.no_grad():
            result = called(node, {n: v.detach().clone() for n, v in known.items() if v is not None})
        return add_constant(model, node, result.contiguous(), "folded")

    return replace_each(model, folded)


def prepare_for_annotation(
    model: GraphModule, disabled: Collection[str] = (), capabilities: Capabilities | None = None
) -> GraphModule:
    """Apply all rewrites of the float program, in place."""
    known, shared = capabilities or Capabilities(), Shared()
    apply(tables_by_position, disabled, model, known, shared)
    apply(blend_at_positions, disabled, model, known, shared)
    apply(scale_rows, disabled, model, known)
    decompose(model, known, disabled)
    apply(scalars_to_constants, disabled, model)
    return model


@switchable
def scalars_to_constants(model: GraphModule) -> bool:
    """A number as an operand becomes a constant tensor, which can be quantized.

    x + 3.0 -> y        x + constant(3.0) -> y
    """
    changed = False
    for node in calls(model, *NUMBERED):
        given, value = arguments(node), node.meta.get("val")
        other = given["other"]
        if isinstance(other, (int, float)) and isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            number = torch.full((1,) if value.ndim else (), float(other))  # must not add an axis
            constant = add_constant(model, node, number, "scalar")
            node.args = (given["self"], constant)
            node.kwargs = {} if given.get("alpha", 1) == 1 else {"alpha": given["alpha"]}
            changed = True
    return changed


CLAMPS = frozenset(n for n, e in ATEN_IMPORTS.items() if e.is_activation and not n.endswith("_.default"))


@switchable
def activation_before_concat(write: GraphWriter) -> Node | None:
    """relu(cat(conv(x), conv(z))) -> cat(relu(conv(x)), relu(conv(z))): a clamp goes into the layers before a cat.

    Exact.  The layers and their clamps are quantized once each, and the parts share qparams without the values that the
    clamp cuts off.  Applied if at most one part keeps a separate clamp; the pass of the same name does it in programs
    that were quantized elsewhere.
    """
    node = write.node
    concat = node.args[0]
    if not isinstance(concat, Node) or overload_name(concat) not in CONCATENATIONS or len(concat.users) != 1:
        return None
    parts, rest = concat.args[0], concat.args[1:]
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, Node) for p in parts) or not can_fuse(node):
        return None
    fusing = [takes_clamp(part) for part in parts]
    if not any(fusing) or fusing.count(False) > 1:
        return None
    bounds = node.args[1:]
    made = {part: write(overload_name(node), part, *bounds, **node.kwargs) for part in dict.fromkeys(parts)}
    result = write(overload_name(concat), [made[part] for part in parts], *rest, **concat.kwargs)
    result.meta = dict(concat.meta)
    return result
