"""The PT2E quantizer for Neutron."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from micronpu.errors import OptionError
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.quantize.annotate import QuantizationConfig, annotate
from micronpu.quantize.calibrate import calibration_batches, graph_module, quantize
from micronpu.quantize.transforms import prepare_for_annotation


class NeutronQuantizer(Quantizer):
    """Static int8 for `prepare_pt2e` and `convert_pt2e`.

    Activations are asymmetric with one scale per tensor, weights symmetric in [-127, 127] with one scale per output
    channel.  Operators that only move or select values share the parameters of their operand; sigmoid, tanh and
    softmax have the fixed output parameters that LiteRT demands.  One object may quantize any number of models.

    Args:
        neutron_target_spec: the device; i.MX RT700 unless given.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
    """

    def __init__(self, neutron_target_spec: NeutronTargetSpec | None = None, *, per_channel: bool = True) -> None:
        super().__init__()
        if neutron_target_spec is not None and not isinstance(neutron_target_spec, NeutronTargetSpec):
            raise OptionError(
                f"`neutron_target_spec` is a {type(neutron_target_spec).__name__}.",
                hint='NeutronTargetSpec("imxrt700")',
            )
        if not isinstance(per_channel, bool):
            raise OptionError(f"`per_channel` is {per_channel!r}; it is True or False.")
        self.target = neutron_target_spec or NeutronTargetSpec("imxrt700")
        self.config = QuantizationConfig(per_channel=per_channel)

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Folds batch norms and makes constants of numbers, in place."""
        return prepare_for_annotation(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotates what micronpu knows; the rest stays float."""
        annotate(model, self.config)
        return model

    def validate(self, model: GraphModule) -> None:
        """Nothing to check: an annotation that the target cannot use shows in the delegation report."""


def calibrate_and_quantize(
    model: torch.export.ExportedProgram | GraphModule,
    calibration_inputs: Iterable[Sequence[torch.Tensor] | torch.Tensor],
    quantizer: Quantizer,
) -> GraphModule:
    """Quantizes a model with calibration data.

    Args:
        model: an exported program, or the module of one.
        calibration_inputs: inputs of the model, one tuple of tensors each.
        quantizer: such as `NeutronQuantizer`.

    Returns:
        The quantized module, ready for a second ``torch.export.export``.

    Raises:
        ModelError: the model is not exported, or the calibration data does not fit it.
    """
    module = graph_module(model)
    examples: list[Any] = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    return quantize(module, calibration_batches(calibration_inputs, examples), quantizer)
