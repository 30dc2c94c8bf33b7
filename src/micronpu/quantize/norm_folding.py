"""Batch norms in quantization-aware training: trained on batch statistics, and folded for fake quantization.

The chip runs one layer with the weights ``w * gamma / std``, so these must be quantized during training; and the batch
norm needs the layer's own result for its statistics:

    x -> conv(w, b) -> batch_norm -> y
    x -> conv(fake_quantize(w * factor)) -> / factor + b -> batch_norm -> y          factor = gamma / std

`torchao` has such a rewrite, with patterns that take 20 s to export, the default ``eps`` and ``momentum`` instead of
the model's, convolutions only, and a division by zero if gamma is 0, its initial value in some residual blocks.  This
module replaces it: no batch norm after a layer is left for torchao.  Conversion undoes it through the hook that torchao
gives to observers, so that `prepare_qat_pt2e` and `convert_pt2e` work as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.base.errors import InternalError
from micronpu.frontend.constants import attribute, evaluate, free_name, is_constant
from micronpu.frontend.program import arguments, aten_overload, overload_name, overload_of
from micronpu.ops.convolution import BY_AXES
from micronpu.ops.normalization import BATCH_NORM
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.nodes import folded_batch_norm
from micronpu.quantize.post_training import add_buffer
from micronpu.quantize.pt2e import FakeQuantizeBase, ObserverBase
from micronpu.quantize.thresholds import SMALLEST_GAMMA
from micronpu.upstream.torch import schema_of

_LAYERS = ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "linear")


# ---------------------------------------------------------------- functions of the rewritten graph


def factor_of(
    gamma: torch.Tensor | None, variance: torch.Tensor, eps: float, smallest: float = SMALLEST_GAMMA
) -> torch.Tensor:
    """gamma / std per channel [C], with gamma kept away from zero."""
    inverse = (variance + eps).rsqrt()
    if gamma is None:
        return inverse
    away = torch.where(gamma < 0, -smallest, smallest).to(gamma.dtype)
    return torch.where(gamma.abs() < smallest, away, gamma) * inverse


def _along(values: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def folded_weight(
    weight: torch.Tensor, gamma: torch.Tensor | None, variance: torch.Tensor, eps: float, axis: int
) -> torch.Tensor:
    """Return weights times gamma / std.  The factor only affects the scale: the following batch norm trains gamma."""
    return weight * _along(factor_of(gamma, variance, eps).detach(), axis, weight.dim())


def frozen_weight(
    weight: torch.Tensor, gamma: torch.Tensor | None, variance: torch.Tensor, eps: float, axis: int
) -> torch.Tensor:
    """Return weights times gamma / std, with frozen statistics: here gamma is trained."""
    return weight * _along(factor_of(gamma, variance, eps, 0.0), axis, weight.dim())


def frozen_bias(
    bias: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Return the bias [C] of the layer that a batch norm with frozen statistics is folded into."""
    shifted = -mean if bias is None else bias - mean
    folded = shifted * factor_of(gamma, variance, eps, 0.0)
    return folded if beta is None else folded + beta


class Hook(ObserverBase):
    """A module that conversion replaces; until then it returns its first operand."""

    def __init__(self) -> None:
        super().__init__(torch.float32)

    def forward(self, *operands: Any, **options: Any) -> Any:
        return operands[0]

    def calculate_qparams(self, **options: Any) -> Any:
        raise InternalError(f"`{type(self).__name__}` has no quantization parameters.")


class Unfold(Hook):
    """y / factor + bias: the layer's result without folding.  Conversion folds the batch norm."""

    def __init__(self, eps: float, axis: int) -> None:
        super().__init__()
        self.eps = eps
        self.axis = axis

    def forward(
        self, y: torch.Tensor, gamma: torch.Tensor | None, variance: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        axis = self.axis % y.dim()
        plain = y / _along(factor_of(gamma, variance, self.eps).detach(), axis, y.dim())
        return plain if bias is None else plain + _along(bias, axis, y.dim())

    def convert(self, model: GraphModule, node: Node) -> None:
        """Set the layer's folded bias and remove the batch norm; its weights are folded already."""
        layer, gamma, variance, bias = node.args
        (norm,) = node.users
        assert isinstance(layer, Node)
        with model.graph.inserting_before(layer):
            _, _, beta, mean = norm.args[:4]
            b, g, t, m, v = (evaluate(model, a) for a in (bias, gamma, beta, mean, variance))
            new_bias = add_buffer(model, frozen_bias(b, g, t, m, v, self.eps), "folded_bias")
        _set_layer(layer, bias=new_bias)
        _settle_weight(model, layer)
        norm.replace_all_uses_with(layer)
        model.graph.erase_node(norm)
        model.graph.erase_node(node)


class Settle(Hook):
    """Returns a value that depends on parameters only; conversion makes a constant of it."""

    def convert(self, model: GraphModule, node: Node) -> None:
        """Make a constant of the bias, and of the weights if they stay float."""
        with model.graph.inserting_before(node):
            value = add_buffer(model, evaluate(model, node.args[0]), "folded_bias")
        for layer in list(node.users):
            _settle_weight(model, layer)
        node.replace_all_uses_with(value)
        model.graph.erase_node(node)


class LastWeights(Hook):
    """Shows observers the weights after the last training step; its node is converted first.

    They have seen those before the optimizer's last change.
    """

    def convert(self, model: GraphModule, node: Node) -> None:
        for other in model.graph.find_nodes(op="call_module"):
            module: Any = model.get_submodule(str(other.target))
            is_of_weights = isinstance(module, FakeQuantizeBase) and module.qscheme != torch.per_tensor_affine
            if is_of_weights and is_constant(other.args[0]):
                module.activation_post_process(evaluate(model, other.args[0]))
        model.graph.erase_node(node)


def observe_last_weights(model: GraphModule) -> None:
    """Add the node of `LastWeights` to an annotated model, in place."""
    first, x = next(iter(model.graph.nodes)), next((n for n in model.graph.nodes if n.op == "placeholder"), None)
    if x is not None:
        if x is not first:
            first.prepend(x)
        with model.graph.inserting_after(x):
            _submodule(model, LastWeights(), (x,))


def _settle_weight(model: GraphModule, layer: Node) -> None:
    """Make constants of weights that are not quantized, which are calls of `folded_weight`; torchao does not convert
    these."""
    weight = layer.args[1]
    if isinstance(weight, Node) and weight.target in (folded_weight, frozen_weight):
        with model.graph.inserting_before(layer):
            layer.replace_input_with(weight, add_buffer(model, evaluate(model, weight), "folded_weight"))


def _set_layer(layer: Node, **values: Node | None) -> None:
    """Set the weight or bias of a layer."""
    position = {"weight": 1, "bias": 2}
    args = list(layer.args) + [None] * (3 - len(layer.args))
    for name, value in values.items():
        args[position[name]] = value
    layer.args = tuple(args)
    layer.kwargs = {k: v for k, v in layer.kwargs.items() if k not in values}


# ---------------------------------------------------------------- the rewrite


def fold_trained_batch_norms(model: GraphModule, config_of: Callable[[Node], QuantizationConfig | None]) -> None:
    """Rewrite every batch norm for training, in place; `reveal` completes it after annotation.

    A batch norm without a layer before it gets an identity layer, if its input is [N, C, L] or [N, C, H, W].
    """
    for node in list(model.graph.nodes):
        if _counts_batches(model, node):
            model.graph.erase_node(node)  # which only matters without a fixed momentum
        if overload_name(node) != BATCH_NORM:
            continue
        given = arguments(node)
        constants = ("weight", "bias", "running_mean", "running_var")
        if any(given[k] is not None and attribute(model, given[k]) is None for k in constants):
            continue
        if given["running_mean"] is None or given["running_var"] is None:
            continue  # statistics of the batch at run time: nothing to fold
        layer = given["input"]
        if not _foldable(layer):
            layer = _identity_layer(model, node, given)
        if layer is None:
            node.target = folded_batch_norm
            continue
        config = config_of(layer)
        _rewrite(model, node, layer, given, config is not None and config.freeze_batch_norm)
    model.graph.lint()
    model.graph.eliminate_dead_code()
    model.recompile()


def _counts_batches(model: GraphModule, node: Node) -> bool:
    """Return True if an operator writes into the counter of a batch norm."""
    overload = aten_overload(node)
    if overload is None or node.users or not schema_of(overload).is_mutable:
        return False
    counter: Any = node.args[0]
    value = attribute(model, counter)
    return value is not None and value.dtype == torch.int64 and str(counter.target).endswith("num_batches_tracked")


def _foldable(layer: Any) -> bool:
    if not isinstance(layer, Node) or overload_name(layer).split(".")[0] not in _LAYERS or len(layer.users) != 1:
        return False
    given = arguments(layer)
    if not isinstance(given["weight"], Node) or given["weight"].op != "get_attr":
        return False
    bias = given.get("bias")
    if bias is not None and bias.op != "get_attr":
        return False
    name = overload_name(layer)
    if name.startswith("linear"):
        return bool(layer.meta["val"].dim() == 2)  # batch norm's channels are axis 1, linear's the last
    return not name.startswith("conv_transpose") or given["groups"] == 1


def _identity_layer(model: GraphModule, node: Node, given: dict[str, Any]) -> Node | None:
    value = given["input"].meta["val"]
    spatial = value.dim() - 2
    overload, mean = BY_AXES.get(spatial), attribute(model, given["running_mean"])
    if overload is None or mean is None:
        return None
    with model.graph.inserting_before(node):
        weight = add_buffer(model, _along(torch.ones_like(mean), 0, value.dim()), "identity_weight")
        layer = model.graph.call_function(
            overload_of(overload),
            (given["input"], weight, None, [1] * spatial, [0] * spatial, [1] * spatial, mean.numel()),
        )
    layer.meta = {k: v for k, v in node.meta.items() if k != "quantization_annotation"} | {"val": value}
    return layer


def _rewrite(model: GraphModule, norm: Node, layer: Node, given: dict[str, Any], frozen: bool) -> None:
    axis, eps = int(overload_name(layer).startswith("conv_transpose")), float(given["eps"])
    gamma, beta, mean, variance = (given[k] for k in ("weight", "bias", "running_mean", "running_var"))
    own = arguments(layer)
    weight, bias = own["weight"], own.get("bias")
    # Parameters are read at the top of the graph, so that this order is valid.
    with model.graph.inserting_before(layer):
        scaled = model.graph.call_function(
            frozen_weight if frozen else folded_weight, (weight, gamma, variance, eps, axis)
        )
        scaled.meta = {"nn_module_stack": layer.meta.get("nn_module_stack", {})}
        if "val" in weight.meta:
            scaled.meta["val"] = weight.meta["val"]
        if frozen:
            shift = model.graph.call_function(frozen_bias, (bias, gamma, beta, mean, variance, eps))
            settled = _submodule(model, Settle(), (shift,))
            _set_layer(layer, weight=scaled, bias=settled)
            norm.replace_all_uses_with(layer)
            model.graph.erase_node(norm)
            return
    _set_layer(layer, weight=scaled, bias=None)
    norm.target = folded_batch_norm
    norm.args = (layer, gamma, beta, mean, variance, given["training"], given["momentum"], eps, given["cudnn_enabled"])
    norm.kwargs = {}
    with model.graph.inserting_before(norm):
        axis_of_result = -1 if overload_name(layer).startswith("linear") else 1
        unfolded = _submodule(model, Unfold(eps, axis_of_result), (layer, gamma, variance, bias))
    unfolded.meta["val"] = layer.meta["val"]
    norm.replace_input_with(layer, unfolded)


def _submodule(model: GraphModule, module: torch.nn.Module, args: tuple[Any, ...]) -> Node:
    name = free_name(model, type(module).__name__.lower())
    model.add_submodule(name, module)
    return model.graph.call_module(name, args)
