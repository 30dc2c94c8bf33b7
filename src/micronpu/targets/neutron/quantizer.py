"""The PT2E quantizer for Neutron."""

from __future__ import annotations

from collections.abc import Iterable

from micronpu.base.arguments import check_switch
from micronpu.base.errors import OptionError
from micronpu.quantize.config import Activations, IOType
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.neutron.rules import capabilities_of
from micronpu.targets.neutron.target_spec import NeutronTargetSpec


class NeutronQuantizer(StaticQuantizer):
    """Static int8 for Neutron; see `StaticQuantizer` for its meaning and for the configuration of parts of a model.

    Args:
        neutron_target_spec: the chip; default i.MX RT700.
        is_qat: for quantization-aware training.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        disabled_rewrites: names of rewrites of the float program to skip; `micronpu passes` lists them.
        activations: "int8", the only type that Neutron supports.
        io: "int8" or "uint8" for a program with integer inputs and outputs, see `StaticQuantizer.set_io`.

    Raises:
        OptionError: an argument has another type, there is no such rewrite, or activations are not int8.
    """

    wider = "EthosUQuantizer has int16 activations"

    def __init__(
        self,
        neutron_target_spec: NeutronTargetSpec | None = None,
        is_qat: bool = False,
        *,
        per_channel: bool = True,
        disabled_rewrites: Iterable[str] = (),
        activations: Activations = "int8",
        io: IOType | None = None,
    ) -> None:
        if neutron_target_spec is not None and not isinstance(neutron_target_spec, NeutronTargetSpec):
            raise OptionError(
                f"`neutron_target_spec` is a {type(neutron_target_spec).__name__}.",
                hint='NeutronTargetSpec("imxrt700")',
            )
        check_switch("is_qat", is_qat)
        self.target = neutron_target_spec or NeutronTargetSpec("imxrt700")
        super().__init__(
            capabilities_of(self.target),
            per_channel=per_channel,
            is_qat=is_qat,
            disabled_rewrites=disabled_rewrites,
            activations=activations,
            io=io,
        )
