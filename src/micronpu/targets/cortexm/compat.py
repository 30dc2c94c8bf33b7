"""Cortex-M cores under ExecuTorch's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from executorch.export import RecipeType

from micronpu.base.arguments import check_switch, check_text, check_type, described
from micronpu.base.errors import OptionError
from micronpu.chips.core import CORES, Core, InstructionSet, find_core
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.cortexm.options import CortexMOptions
from micronpu.targets.cortexm.rules import CAPABILITIES

_PREFIX = "cortex-"
CortexM = Enum("CortexM", [(name.removeprefix(_PREFIX).upper(), name) for name in CORES], module=__name__)  # type: ignore[misc]
"""The cores that CMSIS-NN supports: `CortexM.M55` and so on; the value is the name of a target."""


@dataclass(frozen=True)
class CortexMTargetConfig:
    """A core and its instruction set.

    Attributes:
        cpu: such as `CortexM.M55`, or its name.
        isa: instruction set for CMSIS-NN: "SCALAR", "DSP" or "MVE", or a value of that name; default: what most cores
            of that name have.

    Raises:
        OptionError: CMSIS-NN does not support the core, or the core cannot have these instructions.
    """

    cpu: Any
    isa: Any = None
    core: Core = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = self.cpu
        if not isinstance(name, str):
            name = _PREFIX + str(getattr(name, "name", name)).lower()
        isa = self.isa if isinstance(self.isa, str) else getattr(self.isa, "name", self.isa)
        if isa is not None and isa not in [i.value for i in InstructionSet]:
            raise OptionError(f"`isa` is {described(self.isa)}.", hint="SCALAR, DSP, MVE or None")
        object.__setattr__(self, "core", find_core(name, isa or ""))

    @property
    def backend(self) -> InstructionSet:
        """Instruction set that CMSIS-NN uses."""
        return self.core.instructions

    @property
    def target_string(self) -> str:
        """The target's name, such as "cortex-m55"."""
        return self.core.name

    @property
    def options(self) -> CortexMOptions:
        """The equivalent options for `micronpu.compile`."""
        return CortexMOptions(self.core.name, instructions=self.backend.value if self.isa is not None else "")

    @classmethod
    def from_target_string(cls, target: str) -> CortexMTargetConfig:
        """Return the core of a target's name, such as "cortex-m55"."""
        check_text("target", target, '"cortex-m55"')
        return cls(target)


INT8_PER_TENSOR_CONFIG, INT8_PER_CHANNEL_CONFIG = QuantizationConfig(per_channel=False), QuantizationConfig()
"""Configurations under the names of ExecuTorch's own quantizer."""


class CortexMQuantizer(StaticQuantizer):
    """Static int8 for a Cortex-M core with CMSIS-NN.

    See `StaticQuantizer` for its meaning and for the configuration of parts of a model.

    Args:
        per_tensor_config: quantization of operators; default int8.
        use_explicit_layout: ignored; accepted for compatibility with existing scripts.

    Raises:
        OptionError: an argument has another type, or activations are not int8.
    """

    def __init__(self, per_tensor_config: QuantizationConfig | None = None, use_explicit_layout: bool = False) -> None:
        check_switch("use_explicit_layout", use_explicit_layout)
        name = str(getattr(per_tensor_config, "label", "")).rpartition(".")[2]
        if name in ("INT8_PER_TENSOR_CONFIG", "INT8_PER_CHANNEL_CONFIG"):  # of ExecuTorch itself
            per_tensor_config = globals()[name]
        check_type("per_tensor_config", per_tensor_config, QuantizationConfig, type(None), hint="QuantizationConfig()")
        super().__init__(CAPABILITIES, is_qat=None if per_tensor_config is None else per_tensor_config.is_qat)
        if per_tensor_config is not None:
            self.set_global(per_tensor_config)


class CortexMRecipeType(RecipeType):
    """Recipes for a Cortex-M core with CMSIS-NN, alone or with an NPU."""

    INT8 = "micronpu_cortexm_int8"
    INT8_QAT = "micronpu_cortexm_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        return "micronpu_cortexm"
