"""Firmware requirements of the Ethos-U delegate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

from micronpu.targets.ethosu.npu import EthosUNpu
from micronpu.targets.ethosu.payload import APART, COMMANDS, missing_blocks, parse
from micronpu.targets.ethosu.stream import GENERATIONS, accelerator_of
from micronpu.targets.firmware import Firmware, Started


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

    def startup(self, header: str, started: Sequence[Started], pools: Sequence[tuple[str, int]]) -> dict[str, str]:
        places = [_place(number, one) for number, one in enumerate(started)]
        fast = max((one.fast_scratch for one in started), default=0)
        written = [*pools, *([("fast_scratch", fast)] if fast else [])]
        words = {
            "HEADER": header,
            "COUNT": str(len(started)),
            "PLACES": "".join(places),
            "ROWS": "".join(_row(number, one) for number, one in enumerate(started)),
            "FAST": _fast(fast),
            "FAST_POINTER": "fast_scratch" if fast else "NULL",
            "FAST_SIZE": "sizeof fast_scratch" if fast else "0",
            "POOLS": _pools(written),
            "ALIASES": _aliases(started),
        }
        return {name: _filled(name, words) for name in ("micronpu_npu.h", "micronpu_npu.c")}

    def is_for_linux(self, payload: bytes) -> bool | None:
        held = parse(payload)
        return any(tensor.region in APART for tensor in (*held.inputs, *held.outputs))

    def has_platform(self, accelerator: str) -> bool:
        return accelerator.startswith(("ethos-u55", "ethos-u85"))

    def accelerator(self, payload: bytes, options: Mapping[str, str]) -> str:
        if options.get("target"):
            return options["target"]
        return "" if COMMANDS in missing_blocks(payload) else accelerator_of(parse(payload).commands)


def _filled(name: str, words: Mapping[str, str]) -> str:
    text = (resources.files("micronpu.targets.ethosu") / "startup" / f"{name}.in").read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _place(number: int, one: Started) -> str:
    """Lines of the header with the NPU's base address, from the chip's file or to be filled in."""
    name = f"MICRONPU_NPU_{number}"
    npu = EthosUNpu.of(one.chip) if one.chip is not None and one.chip.npu is not None else None
    base = npu.base if npu is not None else None
    interrupt = npu.interrupt if npu is not None else None
    where = one.chip.title if one.chip is not None else "the chip"
    lines = [f"/* {one.accelerator} of {where}: address of its registers, number of its interrupt. */"]
    lines += [f"#ifndef {name}_BASE"]
    if base is None:
        lines += [
            "#if !defined(MICRONPU_NPU_DRIVER_ELSEWHERE)",
            f'#error "It is not known where this NPU is: -D{name}_BASE=0x..., from the manual or header of the chip"',
            "#endif",
            f"#define {name}_BASE 0u",
        ]
    else:
        lines += [f"#define {name}_BASE 0x{base:08x}u"]
    lines += ["#endif", f"#ifndef {name}_IRQ"]
    known = f"#define {name}_IRQ {interrupt}"
    lines += [known if interrupt is not None else f"#define {name}_IRQ (-1) /* enable it yourself */"]
    return "\n".join(["", *lines, "#endif", ""])


def _row(number: int, one: Started) -> str:
    _, product, macs = one.accelerator.split("-")
    name = f"MICRONPU_NPU_{number}"
    return f'    {{{name}_BASE, {name}_IRQ, {GENERATIONS.index(product)}u, {macs}u, "{one.accelerator}"}},\n'


def _fast(size: int) -> str:
    """The NPU's fast scratch memory, under the symbol that ExecuTorch's delegate expects."""
    if not size:
        return ""
    return (
        "\n/* The NPU's own memory, which ExecuTorch's delegate hands over. */\n"
        f"static unsigned char fast_scratch[{size}] __attribute__((aligned(32)))\n"
        '    MICRONPU_SECTION(".micronpu.fast_scratch");\n'
        "extern unsigned char *ethosu_fast_scratch;\nextern size_t ethosu_fast_scratch_size;\n"
        "unsigned char *ethosu_fast_scratch = fast_scratch;\nsize_t ethosu_fast_scratch_size = sizeof fast_scratch;\n"
    )


def _pools(pools: Sequence[tuple[str, int]]) -> str:
    lines = [f"extern unsigned char {name}[];" for name, _ in pools if name != "fast_scratch"]
    lines += ["", "static const struct {", "  const unsigned char *begin;", "  size_t bytes;", "} pools[] = {"]
    return "\n".join([*lines, *(f"    {{{name}, {size}u}}," for name, size in pools), "};", ""])


def _aliases(started: Sequence[Started]) -> str:
    """Address translation for memories with other addresses on the NPU's bus than on the core's."""
    chips = [one.chip for one in started if one.chip is not None]
    seen = {(m.address, m.bytes, m.npu_address, m.name) for chip in chips for m in chip.memories if m.npu_address}
    if not seen:
        return ""
    lines = ["", "/* Memories with other addresses on the core's bus than on the NPU's. */"]
    lines += ["uint64_t ethosu_address_remap(uint64_t address, int index) {", "  (void)index;"]
    for address, size, other, name in sorted(seen):
        end = (address or 0) + size
        inside = f"address < 0x{end:08x}u"
        inside = f"address >= 0x{address:08x}u && {inside}" if address else inside
        lines += [
            f"  if ({inside}) {{ /* {name} */",
            f"    return address - 0x{address or 0:08x}u + 0x{other:08x}u;",
            "  }",
        ]
    return "\n".join([*lines, "  return address;", "}", ""])
