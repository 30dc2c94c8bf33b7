"""The toy as one of the families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from executorch.export import RecipeType
from tests.compile.targets.toy import MAGIC

from micronpu.base.errors import OptionError, PayloadError
from micronpu.chips import Chip
from micronpu.chips.core import Core
from micronpu.report.inside import InspectedDelegate
from micronpu.targets.backend import Backend, Target
from micronpu.targets.options import Options

if TYPE_CHECKING:
    from tests.compile.targets.toy.device import ToyDevice

    from micronpu.host.litert_executor import Executor, Mode
    from micronpu.host.proof import Proof


@dataclass(frozen=True, kw_only=True)
class ToyOptions(Options):
    """What a user can choose about a toy.

    Attributes:
        silicon: its name.
        bounces: how high it is thrown.
    """

    maker: ClassVar[str] = "ToyOptions().to_specs()"

    silicon: str = "toy-1"
    bounces: int = 1

    def __post_init__(self) -> None:
        if self.silicon not in ("toy-1", "toy-4"):
            raise OptionError(f"There is no toy {self.silicon!r}.", hint="toy-1 or toy-4")


class ToyRecipeType(RecipeType):
    INT8 = "toy_int8"

    @classmethod
    def get_backend_name(cls) -> str:
        return "toy"


class Toy(Backend):
    name = "toy"
    title = "Toy"
    usual = "toy-1"
    backend_id = "ToyBackend"

    @property
    def options(self) -> type[ToyOptions]:
        return ToyOptions

    def silicon(self, chip: Chip) -> str:
        return f"toy-{chip.npu.fields('lanes').integer('lanes')}"

    def bare(self) -> Mapping[str, str]:
        return {"toy-1": "a toy whatever the chip"}

    def defaults(self, target: Target) -> dict[str, Any]:
        return {"bounces": int(target.chip.npu.clock_mhz)} if target.chip is not None else {}

    def device(self, options: ToyOptions, name: str = "", core: Core | None = None) -> ToyDevice:
        from tests.compile.targets.toy.device import ToyDevice

        return ToyDevice(options, name)

    def inspect(self, payload: bytes) -> InspectedDelegate:
        if not payload.startswith(MAGIC):
            raise PayloadError("No toy.", hint="a toy")
        return InspectedDelegate(self.backend_id, len(payload), kind="made for play")

    def executor(
        self,
        payload: bytes | memoryview,
        mode: Mode,
        num_inputs: int,
        num_outputs: int,
        graph: Callable[[], Executor] | None = None,
        proof: Proof | None = None,
    ) -> Executor:
        from tests.compile.targets.toy.simulator import Simulator

        return Simulator(bytes(payload))

    def rewrites(self) -> dict[str, dict[str, str]]:
        return {"Games": {"catch": "Catches."}}

    def recipes(self) -> type[RecipeType]:
        return ToyRecipeType
