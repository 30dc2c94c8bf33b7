"""Options of a compilation for a core alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from micronpu.chips.core import find_core
from micronpu.targets.options import Options
from micronpu.targets.switches import Switches, strings


@dataclass(frozen=True, kw_only=True)
class CortexMOptions(Switches, Options):
    """What a user can choose about a core.

    Attributes:
        core: such as "cortex-m33"; it decides which form of CMSIS-NN's kernels the program is for.
        disabled_passes: names of passes and rewrites to leave out, on the graph or on the float program; `micronpu
            passes` lists them.

    Raises:
        OptionError: CMSIS-NN does not run on the core, or a name that does not exist.
    """

    maker: ClassVar[str] = 'CortexMOptions(core="cortex-m33").to_specs()'

    core: str = "cortex-m33"
    disabled_passes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        find_core(self.core)
        object.__setattr__(self, "disabled_passes", strings("disabled_passes", self.disabled_passes))
        self.check_switches()
