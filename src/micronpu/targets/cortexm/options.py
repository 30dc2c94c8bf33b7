"""Options of a compilation for a core alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from micronpu.chips.core import find_core
from micronpu.targets.options import Options


@dataclass(frozen=True, kw_only=True)
class CortexMOptions(Options):
    """What a user can choose about a core.

    Attributes:
        core: such as "cortex-m33"; it decides which form of CMSIS-NN's kernels the program is for.

    Raises:
        OptionError: CMSIS-NN does not run on the core.
    """

    maker: ClassVar[str] = 'CortexMOptions(core="cortex-m33").to_specs()'

    core: str = "cortex-m33"

    def __post_init__(self) -> None:
        find_core(self.core)
