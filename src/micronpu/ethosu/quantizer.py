"""The PT2E quantizer for Ethos-U."""

from __future__ import annotations

from micronpu.errors import OptionError
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.quantize.quantizer import Int8Quantizer


class EthosUQuantizer(Int8Quantizer):
    """Static int8 for Ethos-U; see `Int8Quantizer` for what that means and how parts of a model are configured.

    Args:
        compile_spec: the accelerator.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        is_qat: for quantization-aware training.

    Raises:
        OptionError: an argument is of another type.
    """

    tables = True

    def __init__(self, compile_spec: EthosUCompileSpec, *, per_channel: bool = True, is_qat: bool = False) -> None:
        if not isinstance(compile_spec, EthosUCompileSpec):
            raise OptionError(
                f"`compile_spec` is a {type(compile_spec).__name__}.", hint='EthosUCompileSpec("ethos-u55-128")'
            )
        super().__init__(per_channel=per_channel, is_qat=is_qat)
        self.compile_spec = compile_spec
