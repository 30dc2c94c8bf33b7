"""Rewrites of the float program before it is annotated.  All keep its result up to float rounding."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.way import Capabilities
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.quantize.switches import is_on, switchable

_TRANSPOSED = ("conv_transpose1d.default", "conv_transpose2d.input")
_CONVOLUTIONS = ("conv1d.default", "conv1d.padding", "conv2d.default", "conv2d.padding", "conv3d.default")
_FOLDABLE = (*_CONVOLUTIONS, "linear.default", *_TRANSPOSED)
_VIEWS = ("flatten.using_ints", "view.default", "reshape.default")
_SCALAR_OPERATORS = ("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "mul.Tensor", "mul_.Tensor")

# Key of a module's meta: how many constants it was given, by prefix.
_COUNT = "micronpu_constants"

# Key of a module's meta: set while it is prepared for quantization-aware training.
IN_TRAINING = "micronpu_in_training"


def attribute(model: GraphModule, node: Any) -> torch.Tensor | None:
    """Value of a ``get_attr`` node, or None."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = model
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def is_constant(node: Any) -> bool:
    """Whether a node depends on constants and parameters alone, as folded or otherwise rescaled weights do."""
    if not isinstance(node, Node):
        return False
    waiting, seen = [node], {node}
    while waiting:  # no recursion: a chain of operators may be thousands long
        source = waiting.pop()
        if source.op == "get_attr":
            continue
        if source.op != "call_function" or not source.all_input_nodes:
            return False
        waiting += [n for n in source.all_input_nodes if n not in seen]
        seen.update(source.all_input_nodes)
    return True


def constant_nodes(model: GraphModule) -> set[Node]:
    """All nodes for which `is_constant` holds, found in one walk."""
    found: set[Node] = set()
    for node in model.graph.nodes:
        sources = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and sources and found.issuperset(sources)):
            found.add(node)
    return found


def is_trained(model: GraphModule, node: Any) -> bool:
    """Whether a node reads a parameter of a model that is going to be trained, which no rewrite may freeze."""
    value = attribute(model, node)
    return isinstance(value, torch.nn.Parameter) and value.requires_grad and bool(model.meta.get(IN_TRAINING))


def add_constant(model: GraphModule, before: Node, value: torch.Tensor, prefix: str) -> Node:
    """A new buffer, read in front of ``before``; existing ones may have other readers and stay as they are."""
    # The model counts for itself: trying all numbers from 0 would take quadratic time.
    count: dict[str, int] = model.meta.setdefault(_COUNT, {})
    number = count.get(prefix, 0)
    while hasattr(model, f"{prefix}_{number}"):
        number += 1
    count[prefix] = number + 1
    name = f"{prefix}_{number}"
    model.register_buffer(name, value)
    with model.graph.inserting_before(before):
        node = model.graph.get_attr(name)
    near = (before, *before.all_input_nodes) if "val" in before.meta else model.graph.nodes
    fake = next((n.meta["val"] for n in near if isinstance(n.meta.get("val"), torch.Tensor)), None)
    mode = getattr(fake, "fake_mode", None)
    node.meta["val"] = mode.from_tensor(value, static_shapes=True) if mode is not None else value
    return node


def prepare_for_annotation(
    model: GraphModule, disabled: Collection[str] = (), capabilities: Capabilities | None = None
) -> GraphModule:
    """All rewrites of the float program, in place.

    Args:
        disabled: names of rewrites to leave out, of those that `micronpu.quantize.switches.float_rewrites` knows.
        capabilities: of the device; those that every device has unless given.
    """
    from micronpu.quantize.compose import compose

    changed = is_on(fold_batch_norms, disabled) and fold_batch_norms(model)
    changed |= compose(model, capabilities or Capabilities(), disabled)
    changed |= is_on(scalars_to_constants, disabled) and scalars_to_constants(model)
    if changed:
        model.graph.eliminate_dead_code()
        model.recompile()
    return model


@switchable
def fold_batch_norms(model: GraphModule) -> bool:
    """Folds batch norms in evaluation mode into the convolution or linear layer before.

    x -> conv2d(w, b) -> batch_norm -> y        x -> conv2d(w', b') -> y

    The folded weights are new constants: a weight that a second layer reads keeps its values.  Reshapes that leave the
    last axis of a linear layer alone may stand between.  A batch norm of [N, C] with nothing to fold into goes into the
    linear layer that reads it, any other becomes a depthwise 1x1 convolution.
    """
    changed = False
    for node in list(model.graph.nodes):
        if overload_name(node) not in BATCH_NORMS:
            continue
        given = arguments(node)
        if given.get("training"):
            continue
        statistics = [attribute(model, given[k]) for k in ("running_mean", "running_var")]
        if any(s is None for s in statistics):
            continue
        mean, variance = (s.detach().double() for s in statistics if s is not None)
        scale = (variance + given["eps"]).rsqrt()
        weight, bias = (attribute(model, given.get(k)) for k in ("weight", "bias"))
        if weight is not None:
            scale = scale * weight.detach().double()
        shift = -mean * scale
        if bias is not None:
            shift = shift + bias.detach().double()
        source = given["input"]
        changed |= any(fold(model, node, source, scale, shift) for fold in (_fold_into, _fold_behind, _to_depthwise))
    return changed


def _replace(model: GraphModule, node: Node, new: Node) -> None:
    """Puts ``new`` where the batch norm was; getitem of a tuple result goes with it."""
    for user in list(node.users):
        if getattr(user.target, "__name__", "") == "getitem" and user.args[1] == 0:
            user.replace_all_uses_with(new)
            model.graph.erase_node(user)
    node.replace_all_uses_with(new)
    model.graph.erase_node(node)


def _layer_before(source: Node) -> Node:
    """What a batch norm reads, or the linear layer whose rows it reads under another shape."""
    layer = source
    while overload_name(layer) in _VIEWS and len(layer.users) == 1:
        before = layer.args[0]
        if not isinstance(before, Node) or source.meta["val"].dim() != 2:
            break
        if before.meta["val"].shape[-1] != layer.meta["val"].shape[-1]:
            break
        layer = before
    return layer if overload_name(layer) == "linear.default" and layer is not source else source


def _fold_into(model: GraphModule, node: Node, source: Node, scale: torch.Tensor, shift: torch.Tensor) -> bool:
    read, source = source, _layer_before(source)
    if overload_name(source) not in _FOLDABLE or len(source.users) != 1:
        return False
    given = arguments(source)
    weight, bias = attribute(model, given["weight"]), attribute(model, given.get("bias"))
    if (
        weight is None
        or (given.get("bias") is not None and bias is None)
        or (weight.shape[0] != scale.numel() and overload_name(source) not in _TRANSPOSED)
    ):
        return False
    is_linear = overload_name(source).startswith("linear")
    if is_linear and read is source and len(source.meta["val"].shape) != 2:
        return False  # batch norm's channels are axis 1, linear's the last
    if overload_name(source) in _TRANSPOSED:  # [C, O / groups, ..]; the groups are blocks of C
        groups = given["groups"]
        blocks = weight.detach().double().reshape(groups, -1, *weight.shape[1:])
        factors = scale.reshape(groups, 1, weight.shape[1], *[1] * (weight.dim() - 2))
        folded = (blocks * factors).reshape(weight.shape).float()
    else:
        shape = (-1,) + (1,) * (weight.dim() - 1)
        folded = (weight.detach().double() * scale.reshape(shape)).float()
    offset = shift if bias is None else shift + bias.detach().double() * scale
    args = list(source.args) + [None] * (3 - len(source.args))
    args[1] = add_constant(model, source, folded, "folded_weight")
    args[2] = add_constant(model, source, offset.float(), "folded_bias")
    source.args = tuple(args)
    source.kwargs = {k: v for k, v in source.kwargs.items() if k not in ("weight", "bias")}
    _replace(model, node, read)
    return True


def _fold_behind(model: GraphModule, node: Node, source: Node, scale: torch.Tensor, shift: torch.Tensor) -> bool:
    """linear(batch_norm(x), w, b) -> linear(x, w * scale, b + w @ shift), where nothing else reads the batch norm."""
    readers = list(node.users)
    if source.meta["val"].dim() != 2 or len(readers) != 1 or overload_name(readers[0]) != "linear.default":
        return False
    layer = readers[0]
    given = arguments(layer)
    weight, bias = attribute(model, given["weight"]), attribute(model, given["bias"])
    trained = [n for n in (given["weight"], given["bias"]) if is_trained(model, n)]
    if given["input"] is not node or weight is None or (given["bias"] is not None and bias is None) or trained:
        return False
    matrix = weight.detach().double()
    offset = matrix @ shift
    if bias is not None:
        offset = offset + bias.detach().double()
    folded = add_constant(model, layer, (matrix * scale).float(), "folded_weight")
    layer.args, layer.kwargs = (source, folded, add_constant(model, layer, offset.float(), "folded_bias")), {}
    model.graph.erase_node(node)
    return True


def _to_depthwise(model: GraphModule, node: Node, source: Node, scale: torch.Tensor, shift: torch.Tensor) -> bool:
    """x [N, C, ..] -> reshape [N, C, H, W] -> depthwise 1x1 convolution -> reshape -> y [N, C, ..]"""
    shape = list(source.meta["val"].shape)
    if len(shape) < 2:
        return False
    channels = scale.numel()
    if len(shape) != 4:
        image = [*shape[:2], math.prod(shape[2:-1]), shape[-1] if len(shape) > 2 else 1]
        source = _reshape(model, node, source, image)
    weight = add_constant(model, node, scale.reshape(channels, 1, 1, 1).float(), "batch_norm_weight")
    bias = add_constant(model, node, shift.float(), "batch_norm_bias")
    with model.graph.inserting_before(node):
        new = model.graph.call_function(
            torch.ops.aten.conv2d.default, (source, weight, bias, [1, 1], [0, 0], [1, 1], channels)
        )
    value = node.meta["val"]
    new.meta = dict(node.meta) | {"val": value[0] if isinstance(value, (tuple, list)) else value}
    if len(shape) != 4:
        new.meta["val"] = source.meta["val"]
        new = _reshape(model, node, new, shape)
    _replace(model, node, new)
    return True


def _reshape(model: GraphModule, before: Node, x: Node, shape: list[int]) -> Node:
    with model.graph.inserting_before(before):
        new = model.graph.call_function(torch.ops.aten.reshape.default, (x, shape))
    new.meta = dict(before.meta) | {"val": x.meta["val"].reshape(shape)}
    return new


@switchable
def scalars_to_constants(model: GraphModule) -> bool:
    """A number as an operand becomes a constant tensor, which can be quantized.

    x + 3.0 -> y        x + constant(3.0) -> y
    """
    changed = False
    for node in list(model.graph.nodes):
        if overload_name(node) not in _SCALAR_OPERATORS:
            continue
        given, value = arguments(node), node.meta.get("val")
        other = given["other"]
        if isinstance(other, (int, float)) and isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            constant = add_constant(model, node, torch.tensor([float(other)]), "scalar")
            node.args = (given["self"], constant)
            node.kwargs = {} if given.get("alpha", 1) == 1 else {"alpha": given["alpha"]}
            changed = True
    return changed
