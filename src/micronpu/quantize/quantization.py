"""The user's quantization options, as one value."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args

from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import OptionError
from micronpu.quantize.config import Activations, IOType, check_activations, check_io
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.settings_file import Settings, configure
from micronpu.quantize.thresholds import SLOWDOWN

_TYPES = (*get_args(Activations), *SLOWDOWN)
UNSET: Literal["int8", "auto"] = "auto"
"""The activations of `micronpu.compile` without options and settings."""


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Quantization of a float model.

    Attributes:
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        activations: "int8", or "int16" if the NPU supports it; weights are always int8.  "auto", of `micronpu.compile`:
            int8 if that is near float, and otherwise the cheapest program near float that takes at most twice int8's
            time, with int16, or float on the core, for some operators.  "accurate" chooses the nearest one.  None is
            "auto" in `micronpu.compile` without ``settings`` and ``train``, and otherwise "int8".  See
            docs/quantization.md.
        max_slowdown: for "auto" and "accurate", the maximum time of a program, as a multiple of int8's.
        io: "int8", "uint8" or "int16" for integer inputs and outputs, see ``program.integer_io``; None for floats.
            uint8 numbers are 128 more than int8's.
        settings: observers, corrections, and settings for parts of the model: the path of a TOML file, or a dictionary
            of its form, such as ``{"equalize": True, "default": {"activation_observer": "mse"}}``; see
            docs/accuracy.md.
        quantizer: a custom quantizer, such as an `EthosUQuantizer` with settings for parts of the model; it replaces
            all of the above.

    Raises:
        OptionError: a value is invalid, or conflicts with a quantizer.
    """

    per_channel: bool = True
    activations: Activations | Literal["auto", "accurate"] | None = None
    max_slowdown: float | None = None
    io: IOType | None = None
    settings: Settings | None = None
    quantizer: StaticQuantizer | None = None

    def __post_init__(self) -> None:
        check_switch("per_channel", self.per_channel)
        if self.activations is not None and not (isinstance(self.activations, str) and self.activations in SLOWDOWN):
            check_activations(self.activations)
        self._check_slowdown()
        if self.io is not None:
            check_io(self.io)
        if self.settings is not None and not isinstance(self.settings, Mapping | str | os.PathLike):
            what = f"The settings of quantization are {described(self.settings)}."
            raise OptionError(what, hint='the path of a TOML file, or a dictionary such as {"equalize": True}')
        if self.quantizer is None:
            return
        if not isinstance(self.quantizer, StaticQuantizer):
            what = f"`quantizer` is {described(self.quantizer)}."
            raise OptionError(what, hint="the quantizer of the NPU's family, made by you")
        if self.settings is not None:
            what = "`quantizer` and `settings` are both given, and each says how parts are quantized."
            raise OptionError(what, hint="micronpu.quantize.settings_file.configure(quantizer, settings)")
        if not self.per_channel or self.activations not in (None, "int8") or self.io is not None:
            what = "`quantizer` is given together with `per_channel`, `activations` or `io`, which it decides."
            raise OptionError(what, hint="set them on the quantizer")

    def _check_slowdown(self) -> None:
        most = self.max_slowdown
        if most is None:
            return
        if isinstance(most, bool) or not isinstance(most, int | float) or not 1 <= most < math.inf:
            raise OptionError(
                f"`max_slowdown` is {described(most)}; it is the time of a program as a multiple of that of int8, 1 or "
                "more.",
                hint="max_slowdown=1.1",
            )
        if not self.is_auto:
            what = "`max_slowdown` is given, and the precision is fixed."
            raise OptionError(what, hint='activations="auto", or leave it out')

    @classmethod
    def of(cls, given: object) -> Quantization:
        """Convert the argument of `micronpu.compile`.

        None is the default; "int8", "int16", "auto" or "accurate" is `activations`; a path or a dictionary is
        `settings`, a quantizer is `quantizer`.

        Raises:
            OptionError: it is none of these.
        """
        if given is None:
            return cls()
        if isinstance(given, Quantization):
            return given
        if isinstance(given, str) and given in _TYPES:
            return cls(activations=given)  # type: ignore[arg-type]
        if isinstance(given, str) and not given.endswith(".toml") and not os.path.exists(given):
            what = f"`quantization` is {described(given)}, which is no type and no file."
            raise OptionError(what, hint=f"{', '.join(_TYPES)}, or the path of a TOML file")
        if isinstance(given, StaticQuantizer):
            return cls(quantizer=given)
        if isinstance(given, Mapping | str | os.PathLike):
            return cls(settings=given)
        hint = 'Quantization(activations="int16"), the path of a TOML file, or a dictionary such as {"equalize": True}'
        if hasattr(given, "annotate"):
            hint = "one of micronpu's quantizers with `add_quantizer(yours)`, or what convert_pt2e returns as the model"
        raise OptionError(f"`quantization` is {described(given)}.", hint=hint)

    def only(self, *names: str, where: str) -> None:
        """Refuse fields that a function does not support.

        Raises:
            OptionError: a field that is not among ``names`` is set.
        """
        plain = Quantization(), Quantization(activations="int8")
        for field in fields(self):
            if field.name not in names and getattr(self, field.name) not in [getattr(p, field.name) for p in plain]:
                what = f"`{where}` chooses `{field.name}` of the quantization itself."
                raise OptionError(what, hint=f"leave {field.name} out")

    @property
    def is_auto(self) -> bool:
        """True if the compiler chooses the precision."""
        if self.activations is None:
            return UNSET in SLOWDOWN and self.settings is None and self.quantizer is None
        return self.activations in SLOWDOWN

    @property
    def slowdown(self) -> float | None:
        """The maximum time of a program, as a multiple of int8's; None for a fixed precision."""
        if not self.is_auto or self.max_slowdown is not None:
            return self.max_slowdown
        return SLOWDOWN[self.activations or UNSET]

    @property
    def base(self) -> Activations:
        """The activations if no others are chosen."""
        return "int16" if self.activations == "int16" else "int8"

    @property
    def proposal(self) -> str:
        """Hint for more precision than int8; "" if unknown."""
        return 'quantization="auto"' if self.base == "int8" and not self.is_auto and self.quantizer is None else ""

    def quantizer_for(
        self, make: Callable[..., StaticQuantizer], is_qat: bool = False, *, chooses: bool = False
    ) -> StaticQuantizer:
        """Return the user's quantizer, or the device's with the user's options.

        Args:
            make: `Device.quantizer` of the device.
            chooses: True if the caller can choose more precision than int8.

        Raises:
            OptionError: the device, or training, does not support a value.
        """
        if self.activations in SLOWDOWN and (is_qat or not chooses):
            raise OptionError(
                f'activations="{self.activations}" is chosen by `micronpu.compile` with calibration data, and by '
                "nothing else.",
                hint="int8 or int16, or `calibration` (of several methods by method), no `train` and no sparse weights",
            )
        if self.quantizer is None:
            made = make(per_channel=self.per_channel, is_qat=is_qat, activations=self.base, io=self.io)
            return made if self.settings is None else configure(made, self.settings)
        if self.quantizer.is_qat != is_qat:
            raise OptionError(
                f"The quantizer has is_qat={self.quantizer.is_qat}, but `train` is "
                f"{'given' if is_qat else 'not given'}.",
                hint="is_qat=True with `train`, and is_qat=False with `calibration`",
            )
        return self.quantizer


HowToQuantize: TypeAlias = Quantization | Activations | Literal["auto", "accurate"] | Settings | StaticQuantizer | None
"""Values of the argument ``quantization``; see `Quantization.of`."""
