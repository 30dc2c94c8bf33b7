"""Pass options of ExecuTorch's own backend, accepted without effect.

All forms that these options select compute the same function. Here softmax is one operator, or one of Vela's, leaky
ReLU is one operator, and infinities in constant masks become values that a softmax maps to zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum, auto

from micronpu.base.errors import OptionError


class SoftmaxDecompositionConfig(Enum):
    """Decompositions of softmax."""

    MASKED = auto()
    STABLE = auto()


class LeakyReLULoweringConfig(Enum):
    """Lowerings of leaky ReLU."""

    TABLE = auto()
    DECOMPOSE = auto()


class SDPASafeSoftmaxGuardPolicy(Enum):
    """Policies for guarding fully masked rows of attention."""

    PRESERVE = auto()
    REMOVE = auto()
    REMOVE_WHEN_PROVEN = auto()


@dataclass
class QuantizeInfConfig:
    """Finite replacements of infinities.

    Attributes:
        neg_inf, pos_inf: finite numbers.
    """

    neg_inf: float = -256.0
    pos_inf: float = 255.0

    def __post_init__(self) -> None:
        for name in ("neg_inf", "pos_inf"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise OptionError(f"`{name}` is {value!r}; it is a number.", hint=f"{name}=-100.0")


@dataclass
class ArmPassPipelineConfig:
    """Pass options of ExecuTorch's own backend, under their names; see `notes`.

    Raises:
        OptionError: a value has the wrong type.
    """

    softmax: SoftmaxDecompositionConfig = SoftmaxDecompositionConfig.MASKED
    leaky_relu: LeakyReLULoweringConfig = LeakyReLULoweringConfig.DECOMPOSE
    quantize_inf: QuantizeInfConfig = field(default_factory=QuantizeInfConfig)
    sdpa_safe_softmax_guard: SDPASafeSoftmaxGuardPolicy = SDPASafeSoftmaxGuardPolicy.PRESERVE

    def __post_init__(self) -> None:
        kinds = (SoftmaxDecompositionConfig, LeakyReLULoweringConfig, QuantizeInfConfig, SDPASafeSoftmaxGuardPolicy)
        for option, kind in zip(fields(self), kinds, strict=True):
            given = getattr(self, option.name)
            if not isinstance(given, kind):
                raise OptionError(f"`{option.name}` is {given!r}, no {kind.__name__}.", hint=f"a {kind.__name__}")

    @property
    def notes(self) -> tuple[str, ...]:
        """One note that names the selected options without effect; empty if there are none."""
        usual = ArmPassPipelineConfig()
        chosen = [f.name for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)]
        if not chosen:
            return ()
        return (
            f"Options of ExecuTorch's passes without effect here: {', '.join(chosen)}; the operators that "
            "they combine are whole; use `disabled_passes`.",
        )
