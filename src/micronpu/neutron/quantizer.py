"""The PT2E quantizer for Neutron."""

from __future__ import annotations

from collections.abc import Iterable

from micronpu.errors import OptionError
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.quantize.quantizer import Int8Quantizer


class NeutronQuantizer(Int8Quantizer):
    """Static int8 for Neutron; see `Int8Quantizer` for what that means and how parts of a model are configured.

    Args:
        neutron_target_spec: the device; i.MX RT700 unless given.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        is_qat: for quantization-aware training.
        disabled_rewrites: names of rewrites of the float program to leave out; `micronpu passes` lists them.

    Raises:
        OptionError: an argument is of another type, or there is no such rewrite.
    """

    def __init__(
        self,
        neutron_target_spec: NeutronTargetSpec | None = None,
        *,
        per_channel: bool = True,
        is_qat: bool = False,
        disabled_rewrites: Iterable[str] = (),
    ) -> None:
        if neutron_target_spec is not None and not isinstance(neutron_target_spec, NeutronTargetSpec):
            raise OptionError(
                f"`neutron_target_spec` is a {type(neutron_target_spec).__name__}.",
                hint='NeutronTargetSpec("imxrt700")',
            )
        super().__init__(per_channel=per_channel, is_qat=is_qat, disabled_rewrites=disabled_rewrites)
        self.target = neutron_target_spec or NeutronTargetSpec("imxrt700")
