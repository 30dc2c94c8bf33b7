"""The PT2E quantizer for Ethos-U."""

from __future__ import annotations

from micronpu.base.arguments import check_switch
from micronpu.quantize.config import Activations, QuantizationConfig
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.ethosu.compat import EthosUCompileSpec, options_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rules import capabilities_of

__all__ = ["EthosUQuantizer", "QuantizationConfig"]


class EthosUQuantizer(StaticQuantizer):
    """Static int8, or int8 weights with int16 activations, for Ethos-U.

    See `StaticQuantizer` for what that means and how parts of a model are configured.

    Args:
        compile_spec: the accelerator, as `EthosUOptions` or as ExecuTorch's `EthosUCompileSpec`.
        use_composable_quantizer: taken for scripts that pass it, and not looked at: there is one quantizer.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        is_qat: for quantization-aware training; the first configuration that is set decides unless given.
        activations: "int8" or "int16", for all that no setting is for.
        io: "int8" or "int16" for a program whose own inputs and outputs are integers, see `StaticQuantizer.set_io`.

    Raises:
        OptionError: an argument is of another type.
    """

    def __init__(
        self,
        compile_spec: EthosUOptions | EthosUCompileSpec,
        use_composable_quantizer: bool = True,
        *,
        per_channel: bool = True,
        is_qat: bool | None = None,
        activations: Activations = "int8",
        io: Activations | None = None,
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
