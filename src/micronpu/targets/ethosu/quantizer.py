"""The PT2E quantizer for Ethos-U."""

from __future__ import annotations

from typing import Any

import torch

from micronpu.base.arguments import check_switch, check_type
from micronpu.quantize.config import Activations, IOType, QuantizationConfig
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.ethosu.compat import EthosUCompileSpec, options_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rules import capabilities_of

__all__ = ["EthosUQuantizer", "QuantizationConfig"]


class EthosUQuantizer(StaticQuantizer):
    """Static int8, or int8 weights with int16 activations, for Ethos-U.

    See `StaticQuantizer` for its meaning and for the configuration of parts of a model.

    Args:
        compile_spec: the accelerator, as `EthosUOptions` or as ExecuTorch's `EthosUCompileSpec`.
        use_composable_quantizer: ignored; accepted for compatibility with existing scripts.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        is_qat: for quantization-aware training; default: decided by the first configuration that is set.
        activations: "int8" or "int16", for parts without settings.
        io: "int8", "uint8" or "int16" for a program with integer inputs and outputs, see `StaticQuantizer.set_io`.

    Raises:
        OptionError: an argument has another type.
    """

    def __init__(
        self,
        compile_spec: EthosUOptions | EthosUCompileSpec,
        use_composable_quantizer: bool = True,
        *,
        per_channel: bool = True,
        is_qat: bool | None = None,
        activations: Activations = "int8",
        io: IOType | None = None,
    ) -> None:
        options = options_of(compile_spec)
        check_switch("use_composable_quantizer", use_composable_quantizer)
        super().__init__(
            capabilities_of(options),
            per_channel=per_channel,
            is_qat=is_qat,
            disabled_rewrites=options.disabled_rewrites,
            activations=activations,
            io=io,
        )
        self.compile_spec = options


def TOSAQuantizationConfig(  # noqa: N802
    input_activation: Any, output_activation: Any, weight: Any, bias: Any, label: str | None = None
) -> QuantizationConfig:
    """Return a configuration from torchao's specs, with ExecuTorch's name and arguments.

    Args:
        input_activation, output_activation, weight: torchao's `QuantizationSpec`, or None for the default.
        bias: ignored: a bias has the scale of the products that it is added to.
        label: ignored.

    Raises:
        OptionError: a spec has another type, or qparams that NPUs do not support.
    """
    check_type("label", label, str, type(None))
    wide = any(getattr(spec, "dtype", None) is torch.int16 for spec in (input_activation, output_activation))
    return QuantizationConfig(
        activations="int16" if wide else "int8",
        per_channel=getattr(weight, "qscheme", None) is not torch.per_tensor_symmetric,
        input_spec=input_activation,
        output_spec=output_activation,
        weight_spec=weight,
    )
