"""Options of a compilation for a core alone."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from micronpu.base.arguments import strings
from micronpu.chips.core import find_core
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.cortexm.rewrites import REWRITES
from micronpu.targets.options import Options, Switches


@dataclass(frozen=True)
class CortexMOptions(Switches, Options):
    """Options of a compilation for a core.

    Attributes:
        silicon: the core, such as "cortex-m33"; it decides which form of CMSIS-NN's kernels the program is for.
        instructions: instruction set, if it differs from the core's default: "SCALAR", "DSP" or "MVE".
        disabled_passes: names of passes and rewrites to skip; see `micronpu passes`.

    Raises:
        OptionError: CMSIS-NN does not run on the core, or the core cannot have these instructions.
    """

    only_where_given: ClassVar[tuple[str, ...]] = ("disabled_passes", "instructions")
    switchable_rewrites: ClassVar[tuple[Rewrite, ...]] = REWRITES
    maker: ClassVar[str] = 'CortexMOptions("cortex-m33").to_specs()'
    silicon_key: ClassVar[str] = "core"

    silicon: str = "cortex-m33"
    _: KW_ONLY
    disabled_passes: tuple[str, ...] = ()
    instructions: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "disabled_passes", strings("disabled_passes", self.disabled_passes))
        self.check_switches()
        find_core(self.silicon, self.instructions)
