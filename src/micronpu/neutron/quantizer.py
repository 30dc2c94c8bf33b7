"""The PT2E quantizer for Neutron."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from micronpu.errors import OptionError
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.quantize.calibrate import calibration_batches, graph_module, quantize
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.quantizer import Int8Quantizer

__all__ = ["NeutronQuantizer", "QuantizationConfig", "calibrate_and_quantize"]


class NeutronQuantizer(Int8Quantizer):
    """Static int8 for Neutron; see `Int8Quantizer` for what that means and how parts of a model are configured.

    Args:
        neutron_target_spec: the device; i.MX RT700 unless given.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        is_qat: for quantization-aware training.

    Raises:
        OptionError: an argument is of another type.
    """

    def __init__(
        self,
        neutron_target_spec: NeutronTargetSpec | None = None,
        *,
        per_channel: bool = True,
        is_qat: bool = False,
    ) -> None:
        if neutron_target_spec is not None and not isinstance(neutron_target_spec, NeutronTargetSpec):
            raise OptionError(
                f"`neutron_target_spec` is a {type(neutron_target_spec).__name__}.",
                hint='NeutronTargetSpec("imxrt700")',
            )
        super().__init__(per_channel=per_channel, is_qat=is_qat)
        self.target = neutron_target_spec or NeutronTargetSpec("imxrt700")


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
