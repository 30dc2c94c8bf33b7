"""Firmware requirements of the Ethos-U delegate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from micronpu.base.parsing import parse_toml
from micronpu.targets.ethosu.accelerators import EthosUNpu
from micronpu.targets.ethosu.payload import APART, COMMANDS, missing_blocks, parse
from micronpu.targets.ethosu.stream import GENERATIONS, accelerator_of
from micronpu.targets.firmware import Firmware, Started, StartUp

_TEXTS = parse_toml((resources.files("micronpu.targets.ethosu") / "firmware.toml").read_text(encoding="utf-8"))


class EthosUFirmware(Firmware):
    """ExecuTorch's `EthosUBackend` and Arm's core driver."""

    handle_bytes = 4
    build_options = ("-DEXECUTORCH_BUILD_ARM_BAREMETAL=ON",)
    runtime_sources = ("backends/arm/runtime/{EthosUBackend,EthosUBackend_Cortex_M,VelaBinStream}.cpp",)
    whole_libraries = ("executorch_delegate_ethos_u",)
    cmake = _TEXTS["cmake"]
    driver = " -DMICRONPU_ETHOSU_DRIVER=... -DMICRONPU_ETHOSU_INCLUDE=..."
    zephyr = ("CONFIG_ETHOS_U=y",)
    zephyr_libraries = ("ethosu_core_driver",)
    fast_scratch = (" * the array ethosu_fast_scratch, of ethosu_fast_scratch_size bytes, which the firmware defines.",)
    packs = ("    - pack: ARM::ethos-u-core-driver",)
    components = (
        "    - component: ARM::Machine Learning:NPU Support:Ethos-U Driver",
        "    - component: Machine Learning:ExecuTorch:Backend EthosU",
    )
    build_note, several_note, start_note = (_TEXTS[name] for name in ("build_note", "several_note", "start_note"))
    linux_options = ("-DEXECUTORCH_BUILD_ARM_ETHOSU_LINUX=ON",)
    linux_note = _TEXTS["linux_note"]

    def temporary(self, payload: bytes) -> tuple[int, str]:
        return parse(payload).scratch_size, ""

    def start_up(self, started: Sequence[Started]) -> StartUp:
        folder = resources.files("micronpu.targets.ethosu") / "startup"
        names = ("micronpu_npu.h", "micronpu_npu.c")
        memories = {m for one in started if one.chip is not None for m in one.chip.memories if m.npu_address}
        words = {
            "npus": [_StartedNpu.of(one) for one in started],
            "fast": max((one.fast_scratch for one in started), default=0),
            "aliases": sorted({(m.address or 0, m.bytes, m.npu_address, m.name) for m in memories}),
        }
        return StartUp({name: (folder / f"{name}.in").read_text(encoding="utf-8") for name in names}, words)

    def is_for_linux(self, payload: bytes) -> bool | None:
        held = parse(payload)
        return any(tensor.region in APART for tensor in (*held.inputs, *held.outputs))

    def has_platform(self, accelerator: str) -> bool:
        return accelerator.startswith(("ethos-u55", "ethos-u85"))

    def accelerator(self, payload: bytes, options: Mapping[str, str]) -> str:
        if options.get("target"):
            return options["target"]
        return "" if COMMANDS in missing_blocks(payload) else accelerator_of(parse(payload).commands)


@dataclass(frozen=True)
class _StartedNpu:
    """An NPU as the template of its start-up reads it; None for what the chip's file does not say."""

    accelerator: str
    where: str
    base: int | None
    interrupt: int | None
    generation: int
    macs: str

    @classmethod
    def of(cls, one: Started) -> _StartedNpu:
        npu = EthosUNpu.of(one.chip) if one.chip is not None and one.chip.npu is not None else None
        base, interrupt = (npu.base, npu.interrupt) if npu is not None else (None, None)
        _, product, macs = one.accelerator.split("-")
        where = one.chip.title if one.chip is not None else "the chip"
        return cls(one.accelerator, where, base, interrupt, GENERATIONS.index(product), macs)
