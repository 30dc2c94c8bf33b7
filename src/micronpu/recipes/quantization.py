"""The quantization part of a recipe: the steps of `micronpu.compile` around PT2E, as passes of ExecuTorch's stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from executorch.export import QuantizationRecipe
from torch.fx import GraphModule

from micronpu.base.errors import ModelError
from micronpu.frontend.exported import finished
from micronpu.frontend.program import overload_name, static_shape
from micronpu.frontend.training import Train, is_in_training
from micronpu.quantize.data import calibration_batches
from micronpu.quantize.decompose import fold_batch_norms
from micronpu.quantize.qat import train_prepared
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.recipes.lowering import layout_of

Inputs = tuple[torch.Tensor, ...]

_VIEWS = ("view.default", "reshape.default", "_unsafe_view.default")


def post_training(quantizer: StaticQuantizer, calibration: Any) -> QuantizationRecipe:
    """Return a recipe for post-training quantization.

    Args:
        calibration: an iterable of inputs, as for `micronpu.compile`, or a function that returns one; None for the
            example inputs of the session.
    """
    data = _Calibration(calibration)
    return QuantizationRecipe(
        quantizers=[quantizer],
        calibration_inputs_fn=None if calibration is None else data.batches,
        pre_prepare_passes=[data.before],
        post_prepare_passes=[data.watch],
    )


class _Calibration:
    """Calibration data, and facts about the model that are needed to check them."""

    def __init__(self, calibration: Any) -> None:
        self._calibration = calibration
        self._examples: Inputs = ()
        self._in_training = ""

    def before(self, module: GraphModule) -> GraphModule:
        """Fold batch norms before torch does, which writes into weights that other layers may share."""
        self._examples = _examples(module)
        self._in_training = next((n.name for n in module.graph.nodes if is_in_training(n)), "")
        fold_batch_norms(module)
        return module

    def batches(self) -> Iterable[Inputs]:
        given = self._calibration() if callable(self._calibration) else self._calibration
        return calibration_batches(given, self._examples)

    def watch(self, prepared: GraphModule) -> GraphModule:
        """Refuse a model in training mode when it is called, because ExecuTorch replaces exceptions of a pass."""

        def refuse(*_: Any) -> None:
            raise ModelError(
                f"The model is in training mode, in which `{self._in_training}` changes results.",
                hint="model.eval() before the export",
            )

        if self._in_training:
            prepared.register_forward_pre_hook(refuse)
        return prepared


def aware_training(quantizer: StaticQuantizer, train: Train) -> QuantizationRecipe:
    """Return a recipe for quantization-aware training.

    Args:
        quantizer: made with ``is_qat=True``.
        train: trains a module in place, with batches of any size if the model allows it.
    """
    examples: list[Inputs] = [()]

    def before(module: GraphModule) -> GraphModule:
        examples[0] = _examples(module)
        return any_batch_size(module)

    return QuantizationRecipe(
        quantizers=[quantizer],
        is_qat=True,
        train_fn=lambda prepared: train_prepared(prepared, train),
        pre_prepare_passes=[before],
        post_convert_passes=[lambda quantized: finished(quantized, examples[0])],
    )


def _examples(module: GraphModule) -> Inputs:
    """Return inputs with the shapes and dtypes of a captured module."""
    values = (n.meta["val"] for n in module.graph.nodes if n.op == "placeholder")
    return tuple(torch.zeros(v.shape, dtype=v.dtype).to(memory_format=layout_of(v)) for v in values)


def any_batch_size(module: GraphModule) -> GraphModule:
    """Replace the batch size 1 in reshapes of a captured module by any size, in place.

        x [1, 8, 4, 4] -> view [1, 128]        x [N, 8, 4, 4] -> view [-1, 128]

    The other operators of a convolutional network take any batch size already.  The result for batch 1 is the same as
    before.
    """
    for node in module.graph.nodes:
        if overload_name(node) not in _VIEWS:
            continue
        before, after = static_shape(node.args[0]), static_shape(node)
        if before and after and before[0] == after[0] == 1 and 0 not in after:
            node.update_arg(1, [-1, *after[1:]])
    module.recompile()
    return module
