"""Firmware requirements of the Ethos-U delegate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from micronpu.targets.ethosu.npu import EthosUNpu
from micronpu.targets.ethosu.payload import APART, COMMANDS, missing_blocks, parse
from micronpu.targets.ethosu.stream import GENERATIONS, accelerator_of
from micronpu.targets.firmware import Firmware, Started, StartUp


class EthosUFirmware(Firmware):
    """ExecuTorch's `EthosUBackend` and Arm's core driver."""

    handle_bytes = 4
    build_options = ("-DEXECUTORCH_BUILD_ARM_BAREMETAL=ON",)
    runtime_sources = ("backends/arm/runtime/{EthosUBackend,EthosUBackend_Cortex_M,VelaBinStream}.cpp",)
    whole_libraries = ("executorch_delegate_ethos_u",)
    cmake = (
        "# Arm's core driver for the Ethos-U, ethosu_core_driver, as your board's software builds it.\n"
        'set({upper}_ETHOSU_DRIVER "" CACHE STRING "Libraries of the driver")\n'
        'set({upper}_ETHOSU_INCLUDE "" CACHE PATH "Its folder include")\n'
        "if(MICRONPU_BOARD AND NOT {upper}_ETHOSU_DRIVER)\n"
        '  message(FATAL_ERROR "The programs need Arm\'s core driver for the Ethos-U: set {upper}_ETHOSU_DRIVER to "\n'
        '                      "its library and {upper}_ETHOSU_INCLUDE to its folder include.")\n'
        "endif()\n"
        "target_include_directories({name}_app SYSTEM PRIVATE ${{{upper}_ETHOSU_INCLUDE}})\n"
        "target_link_libraries({name}_app PRIVATE ${{{upper}_ETHOSU_DRIVER}})\n"
    )
    driver = " -DMICRONPU_ETHOSU_DRIVER=... -DMICRONPU_ETHOSU_INCLUDE=..."
    zephyr = ("CONFIG_ETHOS_U=y",)
    zephyr_libraries = ("ethosu_core_driver",)
    fast_scratch = (" * the array ethosu_fast_scratch, of ethosu_fast_scratch_size bytes, which the firmware defines.",)
    packs = ("    - pack: ARM::ethos-u-core-driver",)
    components = (
        "    - component: ARM::Machine Learning:NPU Support:Ethos-U Driver",
        "    - component: Machine Learning:ExecuTorch:Backend EthosU",
    )
    build_note = (
        "- **Ethos-U**: Arm's core driver, built for {accelerator}: `-DMICRONPU_ETHOSU_DRIVER=libethosu_core_driver.a "
        "-DMICRONPU_ETHOSU_INCLUDE=.../include`."
    )
    several_note = (
        "- **Several NPUs**: each program starts its own. They run one after the other: the driver of the one is ended "
        "before that of the other begins, since the driver hands out whichever NPU is free. Arm's driver is built for "
        "Ethos-U55 and U65, or for U85: a folder with both wants one that has both."
    )
    start_note = (
        "`NAME_init` starts {accelerator} through `micronpu_npu.c` with Arm's core driver, once: if the NPU does "
        "not match the program, it prints a message to the console and returns `MICRONPU_NPU` before anything "
        "runs.\n\n"
        "- **Interrupt**: put `micronpu_npu_interrupt` in the vector table; `-DMICRONPU_NPU_HANDLER=NAME` gives it the "
        "name in your table. Set `-DMICRONPU_NPU_0_BASE` and `-DMICRONPU_NPU_0_IRQ` if the chip's file has no address, "
        "and `-DMICRONPU_NPU_SECURE=0u` if the core is not in the secure state.\n"
        "- **Memories** as the mode {memory_mode} says. MPU: programs are normal memory that is read only (XN); pools "
        "and scratch are normal memory, write-back with read and write allocation, or not cacheable, and "
        "not shareable; the registers of the NPU are device memory (nGnRE, XN).\n"
        "- **Data cache**: the pools that core and NPU share are cleaned before a run and invalidated after it. They "
        "are aligned and padded to cache lines. `NAME_init` cleans a program that the core has copied. For drivers "
        "that pass one range at a time: `-DMICRONPU_ETHOSU_CACHE_BY_ADDRESS`.\n"
        "- **RTOS**: `NAME_invoke` blocks while the NPU works; `micronpu_use_os` gives it your semaphores, so that "
        "other threads run. Without, the core sleeps with WFE.\n"
        "- **Time limit**: with `-DMICRONPU_NPU_MILLISECONDS=100` and your own `micronpu_milliseconds` a run that does "
        "not end returns `MICRONPU_TIME`.\n"
        "- **Power**: `micronpu_npu_power(number, is_on)` is called before `NAME_init` and `NAME_invoke` touch "
        "the NPU, and when they are done with it; its clock may stop between calls. Keep it powered; "
        "after power-off call `NAME_init` again."
    )

    linux_options = ("-DEXECUTORCH_BUILD_ARM_ETHOSU_LINUX=ON",)
    linux_note = (
        "`EXECUTORCH_BUILD_ARM_ETHOSU_LINUX` builds ExecuTorch's delegate for Linux, `EthosUBackend_Cortex_A.cpp`, "
        "with the driver library of Arm's `ethos-u-linux-driver-stack`, which CMake fetches. ExecuTorch's main of "
        "August 2026 has it, release 1.5.1 does not. The board needs the kernel module of the same driver stack, "
        "which makes `/dev/ethosu0`, and the firmware of the NPU's microcontroller that it talks to. The program's "
        "inputs and outputs are in separate regions, as this delegate passes them (`separate_io`); LiteRT "
        "and firmware on a microcontroller have them inside the scratch memory: compile for them with "
        "`separate_io=False`, or for a target of the microcontroller. Where there are several inputs or outputs, "
        "Vela has them in one region each, at the places that `micronpu inspect` shows; the driver's layout "
        "of several buffers is not documented, and this was not run on a board."
    )

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
