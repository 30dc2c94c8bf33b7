"""Quantization-aware training: from a float model, trained with fake quantization, to a quantized one.

quantized = quantize_aware_training(model, example_inputs, train, NeutronQuantizer(is_qat=True))
program = micronpu.compile(quantized, example_inputs)

Batch norms are trained on batch statistics, and folded for fake quantization.  The chip runs one layer with the weights
``w * gamma / std``, so these must be quantized during training; and the batch norm needs the layer's own result for its
statistics:

    x -> conv(w, b) -> batch_norm -> y
    x -> conv(fake_quantize(w * factor)) -> / factor + b -> batch_norm -> y          factor = gamma / std

`torchao` has such a rewrite, with patterns that take 20 s to export, the default ``eps`` and ``momentum`` instead of
the model's, convolutions only, and a division by zero if gamma is 0, its initial value in some residual blocks.  This
module replaces it: no batch norm after a layer is left for torchao.  Conversion undoes it through the hook that torchao
gives to observers, so that `prepare_qat_pt2e` and `convert_pt2e` work as they are.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from micronpu.base.errors import InternalError, ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.frontend.checks import Train, is_dropout, set_training
from micronpu.frontend.export import as_inputs
from micronpu.frontend.exported import export_for_training, finished
from micronpu.frontend.graphs import Argument, GraphModule, Node, called_modules, calls, nodes_where
from micronpu.frontend.program import arguments, aten_overload, named, overload_name, overload_of, substitute
from micronpu.frontend.run import evaluate
from micronpu.frontend.tensors import attribute, clean, copied, free_name, is_constant
from micronpu.ir.facts import Given
from micronpu.ir.lowering import facts_of
from micronpu.ops.convolution import BY_AXES, TRANSPOSED
from micronpu.ops.facts import LAYERS
from micronpu.ops.matmul import LINEAR
from micronpu.ops.normalization import BATCH_NORM
from micronpu.quantize import pt2e
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.nodes import folded_batch_norm, moves, power_of, set_parameters
from micronpu.quantize.observers import MovingAverageObserver
from micronpu.quantize.post_training import add_buffer
from micronpu.quantize.running import Row
from micronpu.quantize.thresholds import NOTHING, SMALLEST_GAMMA
from micronpu.upstream.torch import schema_of
from micronpu.upstream.torchao import note_mode


class WideningObserver(MovingAverageObserver):
    """A moving average that widens immediately and narrows slowly.

    Operands of a concatenation share qparams and one observer.  A plain average of a wide and a narrow range would clip
    the wide one.
    """

    def averaged(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lowest, highest = super().averaged(low, high)
        return torch.minimum(low, lowest), torch.maximum(high, highest)


class Follower(pt2e.ObserverBase):
    """Fake quantization with the qparams of ``source``, whose range it does not change.

    The result of a pool or a slice is within the range of its operand, and usually narrower: averaged into that range,
    it would clip the operand.  The result of an active dropout is not quantized: it is scaled up, and on the chip there
    is no dropout, so the larger values must neither widen the range nor be clipped.
    """

    def __init__(self, source: Any, behind_dropout: bool) -> None:
        super().__init__(source.dtype)
        self.source = source
        self.qscheme, self.quant_min, self.quant_max = source.qscheme, source.quant_min, source.quant_max
        self.behind_dropout = behind_dropout
        self.in_training = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        off = not bool(self.source.fake_quant_enabled[0]) or _is_empty(self.source)
        if off or (self.behind_dropout and self.in_training):
            return x
        scale, zero_point = (t.to(x.device) for t in self.calculate_qparams())
        return pt2e.fake_quantized(x, scale, zero_point, self.quant_min, self.quant_max)

    def calculate_qparams(self, **options: object) -> Any:
        return self.source.calculate_qparams()


# Operators with results in the range of their operand, besides those that only move values.
_WITHIN = ("max_pool", "avg_pool", "adaptive_avg_pool", "mean", "amax", "amin", "upsample_nearest", "upsample_bilinear")


def share_ranges(places: dict[Any, Any]) -> None:
    """Make places, nodes or (operand, reader) edges, that share qparams share their range as well, in place."""
    values = {place: place[0] if isinstance(place, tuple) else place for place in places}
    groups: dict[int, set[Node]] = {}
    for place, module in places.items():
        groups.setdefault(id(module), set()).add(values[place])
    leaders: dict[int, set[Node]] = {}
    followers: dict[tuple[int, bool], Follower] = {}
    for place, module in list(places.items()):
        group, node = groups[id(module)], values[place]
        if not isinstance(module, pt2e.FakeQuantize) or module.qscheme != torch.per_tensor_affine:
            continue
        if not _follows(node, group):
            leaders.setdefault(id(module), set()).add(node)
            if len(leaders[id(module)]) > 1 and type(module.activation_post_process) is MovingAverageObserver:
                module.activation_post_process.__class__ = WideningObserver
            continue
        dropped = _is_behind_dropout(node, group)
        key = id(module), dropped
        places[place] = followers.setdefault(key, Follower(module, dropped))


def _follows(node: Node, group: set[Node]) -> bool:
    """Return True if a value comes from another one of its group through an operator that stays in its range."""
    operands = node.all_input_nodes
    if node.op != "call_function" or len(operands) != 1 or operands[0] not in group:
        return False
    name = overload_name(node)
    return moves(node) or name.startswith(_WITHIN)


def _is_behind_dropout(node: Node, group: set[Node]) -> bool:
    while _follows(node, group):
        if is_dropout(node):
            return True
        (node,) = node.all_input_nodes
    return False


def quantize_aware_training(
    model: nn.Module | ExportedProgram, example_inputs: Sequence[object] | torch.Tensor, train: Train, quantizer: object
) -> GraphModule:
    """Train a copy of a float model with fake quantization and convert it.

    Args:
        model: a float module, or an exported program of one, with pretrained weights.
        example_inputs: inputs that fix shapes and dtypes; a single tensor is one input.  Training may use any batch
            size if the model does.
        train: trains a module in place; the module is in training mode.
        quantizer: a quantizer made with ``is_qat=True``.

    Returns:
        The quantized module with the shapes of the example inputs, ready for `micronpu.compile` or a further export.

    Raises:
        ModelError: the model cannot be exported, or has NaN or infinity in it after training.
        OptionError: the quantizer is not for QAT, or ``train`` cannot be called.
    """
    examples = as_inputs(example_inputs)
    return train_or_calibrate(export_for_training(model, examples), [examples], quantizer, train)


def train_or_calibrate(
    module: GraphModule,
    batches: Sequence[Row],
    quantizer: object,
    train: Train | None,
    around: Callable[[GraphModule, GraphModule], AbstractContextManager[None]] | None = None,
) -> GraphModule:
    """Apply prepare_qat_pt2e, training or else calibration in evaluation mode, and convert_pt2e to an exported module.

    Args:
        batches: of inputs, at least one; with ``train`` only their shapes matter.
        around: returns a context for training, from the float program and the module to train.
    """
    if train is not None and not callable(train):
        what = f"`train` is of type {type(train).__name__}, not a function that trains the module it is given."
        raise OptionError(what, hint="def train(module): ...")
    with quiet():
        float_program = copied(module) if around is not None else module
        prepared = pt2e.prepare_qat_pt2e(module, quantizer)
    if train is not None:
        with nullcontext() if around is None else around(float_program, prepared):
            train_prepared(prepared, train)
    else:
        set_training(prepared, False)
        with torch.no_grad():
            for batch in batches:
                prepared(*batch)
    with quiet(), torch.no_grad():
        quantized = pt2e.convert_pt2e(prepared)
    pt2e.forget_repairs(module, prepared, quantized)
    return finished(quantized, batches[0])


def train_prepared(prepared: GraphModule, train: Train) -> None:
    """Train the result of `prepare_qat_pt2e`, in place; it is then ready for `convert_pt2e`."""
    allow_train_and_eval(prepared)
    prepared.train()
    with bounded(prepared):
        train(prepared)
    _check_finite(prepared)
    _check_ranges(prepared)
    prepared.eval()


def allow_train_and_eval(model: GraphModule) -> GraphModule:
    """Make `train()` and `eval()` of a prepared module work, in place.

    They switch dropouts and batch norms; evaluation does not change the ranges of activations, so that evaluation data
    do not influence the network.
    """

    def switch(self: GraphModule, mode: bool = True) -> GraphModule:
        set_training(self, mode)
        note_mode(self, mode)
        self.training = mode
        for module in _activations(self):
            before = vars(module).pop("_observes_in_training", None)
            if before is not None:
                module.enable_observer(before)
            if not mode and not _is_empty(module):
                vars(module)["_observes_in_training"] = bool(module.observer_enabled[0])
                module.disable_observer()
        return self

    model.train = types.MethodType(switch, model)  # type: ignore[method-assign]
    model.eval = types.MethodType(lambda self: switch(self, False), model)  # type: ignore[method-assign]
    return model


def _activations(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, pt2e.FakeQuantizeBase) and m.qscheme == torch.per_tensor_affine]


def _is_empty(module: Any) -> bool:
    """Return True if nothing has been observed; infinite values count as observed."""
    lowest = getattr(module.activation_post_process, "min_val", None)
    return lowest is not None and bool(torch.isposinf(lowest).any())


def _check_finite(model: GraphModule) -> None:
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        observed = "activation_post_process" in name  # empty observers hold infinity
        if not observed and value.is_floating_point() and not torch.isfinite(value).all():
            what = f"After training `{name}` holds NaN or infinity."
            raise ModelError(what, hint="a smaller learning rate, or gradient clipping, from a trained float model")


def _check_ranges(model: GraphModule) -> None:
    if any(map(_is_empty, _activations(model))):
        what = "Training has not run the module once, so that no range of its tensors is known."
        raise ModelError(what, hint="call the module that `train` is given, with typical inputs")
    for node, module in called_modules(model, nn.Module):
        observer = getattr(module, "activation_post_process", None)
        ends = [getattr(observer, name, None) for name in ("min_val", "max_val")]
        if all(end is None or bool(torch.isfinite(end).all()) for end in ends):
            continue
        raise ModelError(
            f"{named(node.all_input_nodes[0])} has computed NaN or infinity in training, so that its tensor has no "
            "range.",
            hint="a look for exponentials of large values and divisions by almost nothing; a smaller learning rate",
        )


# ---------------------------------------------------------------- singularities


@contextmanager
def bounded(model: GraphModule) -> Iterator[None]:
    """Context in which functions with a singularity at 0 keep the value that they have half an LSB of their operand
    away.

        x + 1e-3 -> fake quantization -> log        with a scale of 0.02, x = 0 becomes log(0), and its gradient 1 / 0

    The program computes the value at 0 by a table; a training step would get infinity or NaN, in the range or gradient.
    """
    called = nodes_where(model, overload_name)
    exact: dict[Node, Any] = {n: n.target for n in called if facts_of(overload_name(n)).is_singular(arguments(n))}
    for node, function in exact.items():
        power = power_of(node)
        is_of_positive = power is None or not power.is_integer()  # it has no values below 0 either
        node.target = _away_from_zero(function, _observer_of(model, node.args[0]), is_of_positive)
    if exact:
        model.recompile()
    try:
        yield
    finally:
        for node, function in exact.items():
            node.target = function
        if exact:
            model.recompile()


def _observer_of(model: GraphModule, operand: object) -> nn.Module | None:
    if not isinstance(operand, Node) or operand.op != "call_module":
        return None
    module = model.get_submodule(str(operand.target))
    return module if isinstance(getattr(module, "scale", None), torch.Tensor) else None


def _away_from_zero(function: Callable[..., Any], observer: nn.Module | None, positive: bool) -> Callable[..., Any]:
    """Return the function with finite values and gradients; unchanged wherever it is finite."""

    def computed(x: torch.Tensor, *arguments: object) -> torch.Tensor:
        step: object = NOTHING if observer is None else observer.scale
        half = (torch.as_tensor(step, dtype=x.dtype, device=x.device) / 2).max()
        near = torch.maximum(x, half) if positive else torch.where(x.abs() < half, half.copysign(x), x)
        result: torch.Tensor = function(near, *arguments)
        value = function(x.detach(), *arguments)
        return torch.where(value.isfinite(), result + (value - result).detach(), result)

    return computed


# ---------------------------------------------------------------- batch norms: functions of the rewritten graph


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
    weight: torch.Tensor, gamma: torch.Tensor | None, variance: torch.Tensor, eps: float, axis: int, frozen: bool
) -> torch.Tensor:
    """Return weights times gamma / std."""
    # Gamma is trained here if the statistics are frozen. Otherwise the factor only affects the scale, since the
    # following batch norm trains gamma.
    factor = factor_of(gamma, variance, eps, 0.0) if frozen else factor_of(gamma, variance, eps).detach()
    return weight * _along(factor, axis, weight.dim())


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


class Hook(pt2e.ObserverBase):
    """A module that conversion replaces; until then it returns its first operand."""

    def __init__(self) -> None:
        super().__init__(torch.float32)

    def forward(self, *operands: Any, **options: Any) -> Any:
        return operands[0]

    def calculate_qparams(self, **options: object) -> Any:
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
        set_parameters(layer, bias=new_bias)
        _settle_weight(model, layer)
        substitute(norm, layer)
        model.graph.erase_node(node)


class Settle(Hook):
    """Returns a value that depends on parameters only; conversion makes a constant of it."""

    def convert(self, model: GraphModule, node: Node) -> None:
        """Make a constant of the bias, and of the weights if they stay float."""
        with model.graph.inserting_before(node):
            value = add_buffer(model, evaluate(model, node.args[0]), "folded_bias")
        for layer in list(node.users):
            _settle_weight(model, layer)
        substitute(node, value)


class LastWeights(Hook):
    """Shows observers the weights after the last training step; its node is converted first.

    They have seen those before the optimizer's last change.
    """

    def convert(self, model: GraphModule, node: Node) -> None:
        for other, module in called_modules(model, pt2e.FakeQuantizeBase):
            if module.qscheme != torch.per_tensor_affine and is_constant(other.args[0]):
                module.activation_post_process(evaluate(model, other.args[0]))
        model.graph.erase_node(node)


def observe_last_weights(model: GraphModule) -> None:
    """Add the node of `LastWeights` to an annotated model, in place."""
    first, x = next(iter(model.graph.nodes)), next(iter(model.graph.find_nodes(op="placeholder")), None)
    if x is not None:
        if x is not first:
            first.prepend(x)
        with model.graph.inserting_after(x):
            _submodule(model, LastWeights(), (x,))


def _settle_weight(model: GraphModule, layer: Node) -> None:
    """Make constants of weights that are not quantized, calls of `folded_weight`, which torchao does not convert."""
    weight = layer.args[1]
    if isinstance(weight, Node) and weight.target is folded_weight:
        with model.graph.inserting_before(layer):
            layer.replace_input_with(weight, add_buffer(model, evaluate(model, weight), "folded_weight"))


# ---------------------------------------------------------------- batch norms: the rewrite


def fold_trained_batch_norms(model: GraphModule, config_of: Callable[[Node], QuantizationConfig | None]) -> None:
    """Rewrite every batch norm for training, in place; `reveal` completes it after annotation.

    A batch norm without a layer before it gets an identity layer, if its input is [N, C, L] or [N, C, H, W].
    """
    for node in nodes_where(model, lambda node: _counts_batches(model, node)):
        model.graph.erase_node(node)  # which only matters without a fixed momentum
    for node in calls(model, BATCH_NORM):
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
    clean(model)


def _counts_batches(model: GraphModule, node: Node) -> bool:
    overload = aten_overload(node)
    if overload is None or node.users or not schema_of(overload).is_mutable:
        return False
    counter: Any = node.args[0]
    value = attribute(model, counter)
    return value is not None and value.dtype == torch.int64 and str(counter.target).endswith("num_batches_tracked")


def _foldable(layer: object) -> bool:
    if not isinstance(layer, Node) or overload_name(layer) not in (*LAYERS, *TRANSPOSED) or len(layer.users) != 1:
        return False
    given = arguments(layer)
    if not isinstance(given["weight"], Node) or given["weight"].op != "get_attr":
        return False
    bias = given.get("bias")
    if bias is not None and bias.op != "get_attr":
        return False
    if overload_name(layer) in LINEAR:
        return bool(layer.meta["val"].dim() == 2)  # batch norm's channels are axis 1, linear's the last
    return overload_name(layer) not in TRANSPOSED or given["groups"] == 1


def _identity_layer(model: GraphModule, node: Node, given: Given) -> Node | None:
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


def _rewrite(model: GraphModule, norm: Node, layer: Node, given: Given, frozen: bool) -> None:
    axis, eps = int(overload_name(layer) in TRANSPOSED), float(given["eps"])
    gamma, beta, mean, variance = (given[k] for k in ("weight", "bias", "running_mean", "running_var"))
    own = arguments(layer)
    weight, bias = own["weight"], own.get("bias")
    # Parameters are read at the top of the graph, so that this order is valid.
    with model.graph.inserting_before(layer):
        scaled = model.graph.call_function(folded_weight, (weight, gamma, variance, eps, axis, frozen))
        scaled.meta = {"nn_module_stack": layer.meta.get("nn_module_stack", {})}
        if "val" in weight.meta:
            scaled.meta["val"] = weight.meta["val"]
        if frozen:
            shift = model.graph.call_function(frozen_bias, (bias, gamma, beta, mean, variance, eps))
            settled = _submodule(model, Settle(), (shift,))
            set_parameters(layer, weight=scaled, bias=settled)
            substitute(norm, layer)
            return
    set_parameters(layer, weight=scaled, bias=None)
    norm.target = folded_batch_norm
    norm.args = (layer, gamma, beta, mean, variance, given["training"], given["momentum"], eps, given["cudnn_enabled"])
    norm.kwargs = {}
    with model.graph.inserting_before(norm):
        axis_of_result = -1 if overload_name(layer) in LINEAR else 1
        unfolded = _submodule(model, Unfold(eps, axis_of_result), (layer, gamma, variance, bias))
    unfolded.meta["val"] = layer.meta["val"]
    norm.replace_input_with(layer, unfolded)


def _submodule(model: GraphModule, module: torch.nn.Module, args: tuple[Argument, ...]) -> Node:
    name = free_name(model, type(module).__name__.lower())
    model.add_submodule(name, module)
    return model.graph.call_module(name, args)
