"""Programs of a search for precision, and the limits of the search."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from micronpu.compiler import thresholds as at
from micronpu.frontend.graphs import GraphModule
from micronpu.quantize.config import Activations
from micronpu.quantize.loops import loops_of
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.running import Row
from micronpu.verify.sensitivity import Fidelity, PrecisionPrice

CORRECTED = {"adaptive_rounding": True, "bias_correction": True}
PROJECTIONS: Cures = ((("projections", {"projections": True}),),)
CURES: Cures = (
    (("adaptive rounding and bias correction", CORRECTED),),
    (("ranges by results", {"fit_ranges": True}),),
)
"""Settings without a cost on the chip; at most one of each group is kept."""
AFTER = frozenset({"fit_ranges", *CORRECTED})
"""Corrections of a calibrated model."""
Settings: TypeAlias = dict[str, Any]
"""Settings in the form that `micronpu.quantize.settings_file` reads."""
Modules: TypeAlias = Mapping[str, GraphModule]
Names: TypeAlias = tuple[str, ...]
Results: TypeAlias = Mapping[str, list[list[Row]]]
"""Results of each call of each recording, by method."""
Cures: TypeAlias = tuple[tuple[tuple[str, Settings], ...], ...]


@dataclass(frozen=True)
class Allowed:
    """Limits and functions of a search."""

    # Makes the quantizer for "int8" or "int16" activations, with some settings.
    quantizer: Callable[[Activations, Settings], StaticQuantizer]
    # Compiles quantized methods, which are not changed, without verifying the program.
    price: Callable[[Modules], PrecisionPrice]
    slowdown: float  # maximum time of a program, as a multiple of int8's; inf to measure all improvements
    activations: Activations = "int8"  # of the program that the search starts with
    cures: Cures = CURES  # corrections to try, group by group, in addition to projections
    # Returns whether a second program is significantly nearer to float than a first one.
    helps: Callable[[Fidelity, Fidelity], bool] | None = None
    # Returns whether there is time for another program; called with its name.
    has_time: Callable[[str], bool] = lambda name: True
    is_accurate: bool = False  # True if the user requests `NEAR`, even if no decision changes

    @property
    def everything(self) -> bool:
        return math.isinf(self.slowdown)

    @property
    def is_cheapest(self) -> bool:
        """Return True if the cheapest program near float is chosen, not the nearest one."""
        return not self.is_accurate and not self.everything


@dataclass(frozen=True, eq=False)
class Tried:
    """A program that has been evaluated."""

    activations: Activations  # of most operators
    modules: Modules  # quantized, by method
    settings: Settings  # in addition to the activations
    fidelity: Fidelity
    names: Names = ()  # of the corrections among them
    more: str = ""  # description of operators with another precision, for the report
    # The float methods with observers, if further corrections are possible; not changed by them.
    calibrated: Modules | None = None
    price: PrecisionPrice | None = None
    lost: float = 0.0  # loss of the user's metric against the float model; 0 without a metric
    # True if there are decisions, or the user's metric, and all are known to equal the float model's.
    decides_alike: bool = False
    # True if decisions differ from the float model's, or are expected to, see `Search.rated`.
    decides_otherwise: bool = False
    has_decisions: bool = False  # True if all outputs are judged by decisions, or by the user's metric
    results: Results | None = None  # of each method for each call of its trial

    @property
    def module(self) -> GraphModule:
        return next(iter(self.modules.values()))

    @property
    def is_whole(self) -> bool:
        """True if single operators are not evaluated: those of several methods, and of loops, which run slowly."""
        return len(self.modules) > 1 or any(loops_of(self.module))

    @property
    def name(self) -> str:
        return self.activations + self.more + ("" if self.price else " (not possible on this target)")

    def gains_on(self, other: Tried) -> float:
        """Return dB by which this program is nearer to float; one for each percent of the user's metric."""
        if abs(self.lost - other.lost) > at.METRIC:
            return 100 * (other.lost - self.lost)
        return self.fidelity.gains_on(other.fidelity)

    @property
    def is_near(self) -> bool:
        """Return True if it is near float by the outputs and by decisions, and as good by the user's metric."""
        return self.lost < at.LOST and self.fidelity.score >= at.NEAR and not self.decides_otherwise

    @property
    def reaches(self) -> bool:
        """Return True if a search may end with it: it is near float, by more than dB where there are no decisions."""
        return self.is_near and (self.has_decisions or self.fidelity.score >= at.REACHED)

    @property
    def serves(self) -> bool:
        """Return True if it is known to be as good as float, so that the search ends."""
        return self.is_near or (self.lost < at.LOST and self.decides_alike)

    @property
    def cycles(self) -> float:
        return math.inf if self.price is None else self.price.cycles


def typed(tried: Tried, best: Tried, start: Tried) -> str:
    """Return the option for a program that was not chosen; "" if that gains little, or it cannot be compiled."""
    if tried is start and best is not start and not tried.settings:
        return f'quantization="{tried.activations}"'
    if tried is best or tried.price is None or tried.gains_on(best) < at.PAID_GAIN:
        return ""
    if len(tried.settings.get("nodes", ())) > at.MOST_TYPED:
        factor = math.ceil(10 * tried.cycles / start.cycles) / 10
        return f'quantization=Quantization(activations="auto", max_slowdown={factor:g})'
    if not tried.settings:
        return f'quantization="{tried.activations}"'
    settings = json.dumps(tried.settings).replace("true", "True")
    return f'quantization=Quantization(activations="{tried.activations}", settings={settings})'
