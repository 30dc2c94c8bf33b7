"""The Ethos-U backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import OptionError
from micronpu.chips import Chip, load_measured
from micronpu.chips.core import Core, runs_linux
from micronpu.targets.backend import Backend, Target, sentences
from micronpu.targets.ethosu import BACKEND
from micronpu.targets.ethosu.accelerators import EthosUNpu, accelerators, areas, system_entries, vela_package

if TYPE_CHECKING:
    from executorch.export import RecipeType

    from micronpu.host.litert_executor import Executor
    from micronpu.host.proof import Proof, Reference
    from micronpu.report.inside import InspectedDelegate
    from micronpu.targets.ethosu.device import EthosUDevice
    from micronpu.targets.ethosu.firmware import EthosUFirmware
    from micronpu.targets.ethosu.host.disassembly import StreamDisassembly
    from micronpu.targets.ethosu.options import EthosUOptions


_REFERENCE_CORES = {"ethos-u55": "cortex-m55", "ethos-u85": "cortex-m85"}
"""Cores of Arm's Corstone-300 and Corstone-320."""


class EthosU(Backend):
    """Arm Ethos-U."""

    name = "ethos-u"
    title = "Ethos-U"
    usual = "ethos-u55-128"
    backend_id = BACKEND
    tools = ("ethos-u-vela",)
    sparse = "Ethos-U85"
    is_calibrated = True

    @property
    def options(self) -> type[EthosUOptions]:
        from micronpu.targets.ethosu.options import EthosUOptions

        return EthosUOptions

    def silicon(self, chip: Chip) -> str:
        return EthosUNpu.of(chip).accelerator

    def bare(self) -> Mapping[str, str]:
        return dict.fromkeys(accelerators(), "an Ethos-U on any chip")

    def core_beside(self, silicon: str) -> str:
        return _REFERENCE_CORES.get(silicon.rpartition("-")[0], "")

    def missing(self) -> tuple[str, str]:
        return ("", "") if vela_package() is not None else ("Vela, its compiler", "pip install ethos-u-vela==5.2.0")

    def defaults(self, target: Target) -> dict[str, Any]:
        if target.chip is None:
            return {}
        npu, memory = EthosUNpu.of(target.chip), areas(target.chip)["cache_mem_area"]
        return {
            "system_config": npu.system_config,
            "memory_mode": npu.memory_mode,
            "system_entries": system_entries(target.chip),
            "max_sram_bytes": memory.bytes if memory is not None else 0,
            **({"separate_io": True} if runs_linux(target.chip.core) else {}),
        }

    def choose(self, target: Target, given: Mapping[str, object] | None = None) -> Any:
        """Keep a Vela configuration chosen by the user."""
        given = dict(given or {})
        if given.get("system_config") or given.get("config_ini"):
            given.setdefault("system_entries", ())
        return super().choose(target, given)

    def checked(self, target: Target, options: EthosUOptions) -> EthosUOptions:
        if options.measurements:
            measured = load_measured(options.measurements)
            npus = [chip.npu for chip in (measured, target.chip) if chip is not None]
            if target.name not in measured.names or len({npu.clock_mhz for npu in npus if npu is not None}) != 1:
                raise OptionError(
                    f"The measurements {options.measurements} are of another chip than {target.name}, or of another "
                    f"clock: {', '.join(sorted(measured.names))}.",
                    hint=f"--target {options.measurements}, or measurements of this chip",
                )
        return options

    def device(self, options: EthosUOptions, name: str = "", core: Core | None = None) -> EthosUDevice:
        from micronpu.targets.ethosu.device import EthosUDevice

        return EthosUDevice(options, name, core=core)

    def inspect(self, payload: bytes) -> InspectedDelegate:
        from micronpu.targets.ethosu.host.disassembly import inspect

        return inspect(self.backend_id, payload)

    def build_host(self) -> None:
        from micronpu.host.build import build_simulator
        from micronpu.targets.ethosu.host.simulator import SOURCES

        build_simulator(SOURCES)

    def executor(
        self, payload: bytes | memoryview, graph: Callable[[], Executor] | None = None, proof: Proof | None = None
    ) -> Executor:
        from micronpu.targets.ethosu.host.executor import StreamCheck, StreamProgram

        assert proof is None or isinstance(proof, StreamCheck)
        return StreamProgram(payload, graph, proof)

    def whole(self, payload: bytes, named_data: Mapping[str, bytes]) -> bytes:
        from micronpu.targets.ethosu.payload import inlined

        return inlined(payload, named_data)

    def proof(self, payload: bytes, named_data: Mapping[str, bytes], reference: Reference | None) -> Proof | None:
        from micronpu.targets.ethosu.host.executor import check_of

        return check_of(payload, named_data, reference)

    def recorded_bytes(self, payload: bytes | memoryview) -> int:
        from micronpu.targets.ethosu.host.executor import recorded_bytes

        return recorded_bytes(payload)

    def disassembly(self, payload: bytes, named_data: Mapping[str, bytes]) -> StreamDisassembly:
        from micronpu.container.trace import trace_of
        from micronpu.targets.ethosu.host.disassembly import disassemble

        return disassemble(self.whole(payload, named_data), trace_of(payload, named_data))

    def firmware(self) -> EthosUFirmware:
        from micronpu.targets.ethosu.firmware import EthosUFirmware

        return EthosUFirmware()

    def rewrites(self) -> dict[str, dict[str, str]]:
        from micronpu.targets.ethosu.rewrites import TO_BE_SOUND, TO_COME_EARLIER, TO_COST_LESS, TO_FIT, TO_SPARE

        return {
            "Rewrites of an operator that Vela refuses for an Ethos-U": sentences(TO_FIT),
            "Rewrites of an operator that Vela has trouble with for an Ethos-U": sentences(TO_SPARE),
            "Rewrites of an operator, used if Vela estimates that they cost less on an Ethos-U": sentences(
                TO_COST_LESS
            ),
            "Rewrites of an operator whose weights come too late in one piece on an Ethos-U (`prefetch`)": sentences(
                TO_COME_EARLIER
            ),
            "Rewrites of an operator that Vela compiles wrongly for an Ethos-U, which cannot be left out": sentences(
                TO_BE_SOUND
            ),
        }

    def recipes(self) -> type[RecipeType]:
        from micronpu.targets.ethosu.compat import EthosURecipeType

        return EthosURecipeType
