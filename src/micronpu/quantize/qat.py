"""Quantization-aware training: from a float model, trained with fake quantization, to a quantized one.

quantized = quantize_aware_training(model, example_inputs, train, NeutronQuantizer(is_qat=True))
program = micronpu.compile(quantized, example_inputs)
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from micronpu.base.errors import ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.frontend.copies import copied
from micronpu.frontend.export import as_inputs
from micronpu.frontend.exported import export_for_training, finished
from micronpu.frontend.program import origin_of, overload_name
from micronpu.frontend.training import Train, is_dropout, set_training
from micronpu.quantize.nodes import is_singular, moves, power_of
from micronpu.quantize.observers import MovingAverageObserver
from micronpu.quantize.pt2e import (
    FakeQuantize,
    FakeQuantizeBase,
    ObserverBase,
    convert_pt2e,
    fake_quantized,
    prepare_qat_pt2e,
)
from micronpu.quantize.running import Row
from micronpu.quantize.thresholds import UNKNOWN_LSB
from micronpu.upstream.torchao import note_mode


class WideningObserver(MovingAverageObserver):
    """A moving average that widens immediately and narrows slowly.

    Operands of a concatenation share qparams and one observer.  A plain average of a wide and a narrow range would clip
    the wide one.
    """

    def averaged(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lowest, highest = super().averaged(low, high)
        return torch.minimum(low, lowest), torch.maximum(high, highest)


class Follower(ObserverBase):
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
        return fake_quantized(x, scale, zero_point, self.quant_min, self.quant_max)

    def calculate_qparams(self, **options: Any) -> Any:
        return self.source.calculate_qparams()


# Operators with results in the range of their operand, besides those that only move values.
_WITHIN = ("max_pool", "avg_pool", "adaptive_avg_pool", "mean", "amax", "amin", "upsample_nearest", "upsample_bilinear")


def share_ranges(places: dict[Any, Any]) -> None:
    """Make tensors that share qparams share their range as well, in place.

    Args:
        places: fake quantization per node or per (operand, reader) edge, as in torchao's preparation.
    """
    values = {place: place[0] if isinstance(place, tuple) else place for place in places}
    groups: dict[int, set[Node]] = {}
    for place, module in places.items():
        groups.setdefault(id(module), set()).add(values[place])
    leaders: dict[int, set[Node]] = {}
    followers: dict[tuple[int, bool], Follower] = {}
    for place, module in list(places.items()):
        group, node = groups[id(module)], values[place]
        if not isinstance(module, FakeQuantize) or module.qscheme != torch.per_tensor_affine:
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
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    train: Train,
    quantizer: Any,
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
    quantizer: Any,
    train: Train | None,
    around: Callable[[GraphModule, GraphModule], AbstractContextManager[None]] | None = None,
) -> GraphModule:
    """Apply prepare_qat_pt2e, training or else calibration in evaluation mode, and convert_pt2e to an exported module.

    Args:
        batches: of inputs, at least one; with ``train`` only their shapes matter.
        around: returns a context for training, from the float program and the module to train.

    Raises:
        OptionError: the quantizer is not for QAT, or ``train`` cannot be called.
        ModelError: there is NaN or infinity in the module after training.
    """
    if train is not None and not callable(train):
        raise OptionError(
            f"`train` is of type {type(train).__name__}, not a function that trains the module it is given.",
            hint="def train(module): ...",
        )
    with quiet():
        float_program = copied(module) if around is not None else module
        prepared = prepare_qat_pt2e(module, quantizer)
    if train is not None:
        with nullcontext() if around is None else around(float_program, prepared):
            train_prepared(prepared, train)
    else:
        set_training(prepared, False)
        with torch.no_grad():
            for batch in batches:
                prepared(*batch)
    with quiet(), torch.no_grad():
        quantized = convert_pt2e(prepared)
    return finished(quantized, batches[0])


def train_prepared(prepared: GraphModule, train: Train) -> None:
    """Train the result of `prepare_qat_pt2e`, in place; it is then ready for `convert_pt2e`.

    Raises:
        ModelError: after training there is NaN or infinity in the module, or it has never been run.
    """
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
    """Return the fake quantizations of activations."""
    return [m for m in model.modules() if isinstance(m, FakeQuantizeBase) and m.qscheme == torch.per_tensor_affine]


def _is_empty(module: Any) -> bool:
    """Return True if nothing has been observed; infinite values count as observed."""
    lowest = getattr(module.activation_post_process, "min_val", None)
    return lowest is not None and bool(torch.isposinf(lowest).any())


def _check_finite(model: GraphModule) -> None:
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        observed = "activation_post_process" in name  # empty observers hold infinity
        if not observed and value.is_floating_point() and not torch.isfinite(value).all():
            raise ModelError(
                f"After training `{name}` holds NaN or infinity.",
                hint="a smaller learning rate, or gradient clipping, from a trained float model",
            )


def _check_ranges(model: GraphModule) -> None:
    """Check that training has set the range of every tensor."""
    if any(map(_is_empty, _activations(model))):
        raise ModelError(
            "Training has not run the module once, so that no range of its tensors is known.",
            hint="call the module that `train` is given, with typical inputs",
        )
    for node in model.graph.nodes:
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        observer = getattr(module, "activation_post_process", None)
        ends = [getattr(observer, name, None) for name in ("min_val", "max_val")]
        if all(end is None or bool(torch.isfinite(end).all()) for end in ends):
            continue
        source = origin_of(node.all_input_nodes[0]).source
        raise ModelError(
            f"`{node.all_input_nodes[0].name}`{f' ({source})' if source else ''} has computed NaN or infinity in "
            "training, so that its tensor has no range.",
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
    exact = {node: node.target for node in model.graph.nodes if is_singular(node)}
    for node, function in exact.items():
        node.target = _away_from_zero(function, _observer_of(model, node.args[0]), _is_of_positive(node))
    if exact:
        model.recompile()
    try:
        yield
    finally:
        for node, function in exact.items():
            node.target = function
        if exact:
            model.recompile()


def _is_of_positive(node: Node) -> bool:
    """Return True if a function with a singularity has no values below 0 either."""
    power = power_of(node)
    return power is None or not power.is_integer()


def _observer_of(model: GraphModule, operand: Any) -> nn.Module | None:
    """Return the fake quantization of an operand, or None."""
    if not isinstance(operand, Node) or operand.op != "call_module":
        return None
    module = model.get_submodule(str(operand.target))
    return module if isinstance(getattr(module, "scale", None), torch.Tensor) else None


def _away_from_zero(function: Callable[..., Any], observer: nn.Module | None, positive: bool) -> Callable[..., Any]:
    """Return the function with finite values and gradients; unchanged wherever it is finite."""

    def computed(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        step: Any = UNKNOWN_LSB if observer is None else observer.scale
        half = (torch.as_tensor(step, dtype=x.dtype, device=x.device) / 2).max()
        near = torch.maximum(x, half) if positive else torch.where(x.abs() < half, half.copysign(x), x)
        result: torch.Tensor = function(near, *arguments)
        value = function(x.detach(), *arguments)
        return torch.where(value.isfinite(), result + (value - result).detach(), result)

    return computed
