"""Ethos-U accelerators with Vela's system configurations and memory modes, and the Ethos-U section of a chip file."""

from __future__ import annotations

import configparser
import functools
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path

from micronpu.base.arguments import check_text
from micronpu.base.errors import OptionError, RuntimeUnavailableError
from micronpu.chips import ACTIVATIONS, MEASURED, WEIGHTS, Chip, Memory
from micronpu.targets.ethosu.schedule.engines import Memories, Port

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_AREAS = ("const_mem_area", "arena_mem_area", "cache_mem_area")
_PORT_NAMES, _MEMORIES = ("Axi0", "Axi1"), ("Sram", "Dram", "OnChipFlash", "OffChipFlash")
"""Keys and values of a Vela configuration, documented in Vela's vela.ini."""

# Vela models the larger U65 as two cores.
_TWO_CORES = "ethos-u65-512"


@dataclass(frozen=True)
class Accelerator:
    """An Ethos-U of one size.

    Attributes:
        name: Vela's name, such as "ethos-u55-128".
        family: "u55", "u65" or "u85".
        architecture: name of the architecture in Vela's compiler core.
        macs: multiply-accumulate units of one core.
        cores: number of cores.
        port_bytes: maximum bytes per cycle of one AXI port.
        system_config: default system configuration.
        memory_mode: default memory mode.
        dedicated_sram: True if memory modes with SRAM for the NPU alone apply.
    """

    name: str
    family: str
    architecture: str
    macs: int
    cores: int
    port_bytes: int
    system_config: str
    memory_mode: str
    dedicated_sram: bool

    @property
    def skips_zeros(self) -> bool:
        """True if a layer with 2:4 sparse weights takes half the cycles."""
        return self.family == "u85"

    def system_configs(self, ini: str) -> tuple[str, ...]:
        """System configurations of an ini text for this accelerator, or for none in particular."""
        names = sections(ini, "System_Config.")
        own = f"Ethos_{self.family.upper()}"
        return tuple(n for n in names if n.startswith(own) or not n.startswith("Ethos_U"))

    def memory_modes(self, ini: str) -> tuple[str, ...]:
        """Memory modes of an ini text that this accelerator supports."""
        return tuple(
            n for n in sections(ini, "Memory_Mode.") if self.dedicated_sram or not n.startswith("Dedicated_Sram")
        )


@functools.lru_cache(maxsize=1)
def accelerators() -> dict[str, Accelerator]:
    """Every accelerator by name."""
    text = resources.files("micronpu.targets.ethosu").joinpath("accelerators.toml").read_text(encoding="utf-8")
    found: dict[str, Accelerator] = {}
    for family, entry in tomllib.loads(text)["family"].items():
        for macs in entry["macs"]:
            name = f"ethos-{family}-{macs}"
            cores = 2 if name == _TWO_CORES else 1
            found[name] = Accelerator(
                name,
                family,
                entry["architecture"],
                macs // cores,
                cores,
                entry["port_bytes"],
                entry["system_config"],
                entry["memory_mode"],
                entry["dedicated_sram"],
            )
    return found


def find_accelerator(name: str) -> Accelerator:
    """Return the accelerator of a name; raise `OptionError` with the known names otherwise."""
    check_text("target", name, 'the name of an accelerator, such as "ethos-u55-128"')
    if name not in accelerators():
        raise OptionError(f"There is no Ethos-U {name!r}.", hint=f"one of {', '.join(accelerators())}")
    return accelerators()[name]


def vela_package() -> Path | None:
    """The folder of Vela's package ``ethosu``; None if it is not installed.

    It is not looked up as an import, because a user's file may have that name, such as the model's ``ethosu.py``.
    """
    for folder in sys.path:
        package = PathFinder.find_spec("ethosu", [folder])
        for place in (package.submodule_search_locations if package is not None else None) or ():
            if PathFinder.find_spec("ethosu.regor", [place]) is not None:
                return Path(place).absolute()
    return None


@functools.lru_cache(maxsize=1)
def default_ini() -> str:
    """Text of the vela.ini in Vela's package."""
    package = vela_package()
    if package is not None and (file := package / "config_files" / "Arm" / "vela.ini").is_file():
        return file.read_text(encoding="utf-8")
    raise RuntimeUnavailableError("Vela is not installed.", hint="pip install ethos-u-vela==5.2.0")


@functools.lru_cache(maxsize=8)
def sections(ini: str, prefix: str) -> tuple[str, ...]:
    """Suffixes of the section names of an ini text that start with ``prefix``."""
    parser = configparser.ConfigParser(strict=False)
    try:
        parser.read_string(ini)
    except configparser.Error as error:
        first = str(error).splitlines()[0]
        raise OptionError(
            f"The Vela configuration cannot be read: {first.rstrip('.')}.", hint="an ini file such as Vela's vela.ini"
        ) from error
    return tuple(s.removeprefix(prefix) for s in parser.sections() if s.startswith(prefix))


@functools.lru_cache(maxsize=32)
def clock_hz(ini: str, system_config: str) -> float:
    """Clock of the NPU in a system configuration, in hertz; raise `OptionError` if it is missing, or not a number."""
    given = _entries(ini, f"System_Config.{system_config}").get("core_clock", "")
    try:
        clock = float(given)
    except ValueError:
        clock = 0.0
    if not 0 < clock < math.inf:
        has = f"core_clock={given}" if given else "no core_clock"
        raise OptionError(f"The system configuration {system_config!r} has {has}.", hint="core_clock=500e6, in hertz")
    return clock


@functools.lru_cache(maxsize=32)
def with_entries(ini: str, system_config: str, entries: tuple[str, ...]) -> str:
    """Override entries of a system configuration in an ini text, ``key=value`` each, with a key that it has and a
    positive number."""
    name = f"System_Config.{system_config}"
    known = _entries(ini, name)
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(ini)
    for entry in entries:
        key, _, value = entry.partition("=")
        if key.lower() not in known:
            raise OptionError(
                f"The system configuration {system_config!r} has no {key!r}.", hint=f"one of {', '.join(known)}"
            )
        try:
            sound = 0 < float(value) < math.inf
        except ValueError:
            sound = False
        if not sound:
            raise OptionError(f"The system entry {entry!r} has no positive number.", hint="core_clock=400e6")
        there = [k for k in parser[name] if k.lower() == key.lower()]
        parser[name][there[0] if there else key] = value
    text = io.StringIO()
    parser.write(text, space_around_delimiters=False)
    return text.getvalue()


def entries_for(
    accelerator: Accelerator, system_config: str, memory_mode: str, clock: float, areas: Mapping[str, float]
) -> tuple[str, ...]:
    """Entries of Vela's system configuration to override with a chip's data, for `with_entries`.

    Args:
        clock: of the NPU, in hertz.
        areas: read bandwidth of the NPU in bytes per second by area of the memory mode, such as ``{"const_mem_area":
            0.4e9}``. Missing keys are reported by the later checks.
    """
    ini = default_ini()
    system, mode = _entries(ini, f"System_Config.{system_config}"), _entries(ini, f"Memory_Mode.{memory_mode}")
    found = {"core_clock": clock}
    for area, bandwidth in areas.items():
        memory = system.get(f"{mode.get(area, '').lower()}_port", "")
        ports = int(system.get(f"{memory.lower()}_ports_used", "1"))
        scale = bandwidth / (clock * accelerator.port_bytes * ports)
        found.setdefault(f"{memory}_clock_scale", min(round(scale, 4), 1.0))
    return tuple(
        f"{key}={value:.10g}" for key, value in found.items() if float(system.get(key.lower(), value)) != value
    )


@functools.lru_cache(maxsize=32)
def memories_of(ini: str, system_config: str, memory_mode: str, accelerator: Accelerator) -> Memories | None:
    """The two memories of a Vela configuration that stores constants in a separate one; None otherwise."""
    system, mode = _entries(ini, f"System_Config.{system_config}"), _entries(ini, f"Memory_Mode.{memory_mode}")
    constants, arena, near = (system.get(f"{mode.get(area, '').lower()}_port", "") for area in _AREAS)
    if constants == near or arena != near:
        return None

    def figure(memory: str, key: str, usual: float) -> float:
        return float(system.get(f"{memory}_{key}".lower(), usual))

    def rate(memory: str) -> float:
        return accelerator.port_bytes * figure(memory, "clock_scale", 1) * figure(memory, "ports_used", 1)

    return Memories(
        constants,
        near,
        rate(constants),
        rate(near),
        int(figure(constants, "read_latency", 0)),
        int(figure(near, "write_latency", 0)),
    )


@functools.lru_cache(maxsize=32)
def ports_of(ini: str, system_config: str, memory_mode: str, accelerator: Accelerator) -> Mapping[int, Port]:
    """Port and memory of each region of a stream: constants, tensors, fast scratch, separate inputs and outputs."""
    system, mode = _entries(ini, f"System_Config.{system_config}"), _entries(ini, f"Memory_Mode.{memory_mode}")

    def port(area: str) -> Port:
        name = mode.get(area, "")
        memory = system.get(f"{name.lower()}_port", "")
        scale, used = (float(system.get(f"{memory}_{key}".lower(), 1)) for key in ("clock_scale", "ports_used"))
        return Port(name.upper(), memory, accelerator.port_bytes * scale * used, accelerator.port_bytes)

    constants, arena, near = map(port, _AREAS)
    return {0: constants, 1: arena, 2: near, 3: arena, 4: arena}


@functools.lru_cache(maxsize=32)
def check_configuration(ini: str, system_config: str, memory_mode: str) -> None:
    """Refuse a Vela configuration with entries that the compiler core would silently ignore."""
    clock_hz(ini, system_config)
    system, mode = _entries(ini, f"System_Config.{system_config}"), _entries(ini, f"Memory_Mode.{memory_mode}")
    for key in _AREAS:
        area = _one_of(mode, key, _PORT_NAMES, f"memory mode {memory_mode!r}")
        owner = f"system configuration {system_config!r}"
        memory = _one_of(system, f"{area.lower()}_port", _MEMORIES, owner)
        if not any(name.startswith(f"{memory.lower()}_") for name in system):
            raise OptionError(
                f"The {owner} does not say how fast the memory {memory} is.",
                hint=f"{memory}_clock_scale=1.0 and so on, as in Vela's vela.ini",
            )


def _one_of(entries: Mapping[str, str], key: str, values: Sequence[str], owner: str) -> str:
    value = entries.get(key, "")
    if value not in values:
        raise OptionError(
            f"The {owner} has {f'{key}={value}' if value else f'no {key}'}.", hint=f"{key}={' or '.join(values)}"
        )
    return value


def _entries(ini: str, section: str) -> dict[str, str]:
    """Keys and values of a section, including inherited ones."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(ini)
    found: dict[str, str] = {}
    seen: set[str] = set()
    while section and section not in seen and parser.has_section(section):
        seen.add(section)
        found = {**dict(parser[section]), **found}
        section = parser[section].get("inherit", "")
    return found


@dataclass(frozen=True)
class Timing:
    """Error bands of the estimate relative to silicon.

    Attributes:
        low, high: range of measured over estimated time, without invocations.
        call_us: microseconds of an invocation in addition to the NPU's time: minimum, typical, maximum.
        basis: source of these, one clause.
        measured: "measured on your board, 3 networks"; "" for other sources.
    """

    low: float
    high: float
    call_us: tuple[float, float, float]
    basis: str
    measured: str = ""


_OTHERS = Timing(0.5, 2.0, (0.0, 10.0, 100.0), "nothing is published of this chip, so the band is a wide one")
"""Default for chips whose file has no bands."""


def timing_of(chip: Chip | None) -> Timing:
    """Return the bands in the chip's file, or else the default."""
    usual = _OTHERS
    if chip is None or chip.npu is None:
        return usual
    band = chip.npu.own.optional_numbers("band", 2)
    call = chip.npu.own.optional_numbers("call_us", 3)
    if band is None and call is None:
        return usual
    low, high = (usual.low, usual.high) if band is None else band
    least, middle, most = usual.call_us if call is None else call
    return Timing(low, high, (least, middle, most), chip.measured or "the band is the chip file's", chip.measured)


@dataclass(frozen=True)
class EthosUNpu:
    """The Ethos-U of a chip.

    Attributes:
        accelerator: Vela's name, such as "ethos-u55-128".
        system_config, memory_mode: sections of the Vela configuration for the chip; "" for the accelerator's defaults.
        base, interrupt: address of its registers and number of its interrupt on the core; None if unknown.
    """

    accelerator: str
    system_config: str = ""
    memory_mode: str = ""
    base: int | None = None
    interrupt: int | None = None

    @classmethod
    def of(cls, chip: Chip) -> EthosUNpu:
        """Return the Ethos-U of a chip that has one."""
        assert chip.npu is not None
        own = chip.npu.fields(
            *("accelerator", "system_config", "memory_mode", "band", "call_us", MEASURED, "base", "interrupt")
        )
        accelerator = find_accelerator(own.text("accelerator"))
        timing_of(chip)
        return cls(
            accelerator.name,
            own.optional_text("system_config"),
            own.optional_text("memory_mode"),
            *(own.optional_integer(name) for name in ("base", "interrupt")),
        )


def areas(chip: Chip) -> dict[str, Memory | None]:
    """Return the chip's memories for Vela's memory areas."""
    memory = chip.memory_for(ACTIVATIONS)
    others = (m for m in chip.memories if m != memory and m.bandwidth is not None)  # such as DRAM
    return {"cache_mem_area": memory, "const_mem_area": chip.memory_for(WEIGHTS) or next(others, None)}


def system_entries(chip: Chip, system_config: str = "", memory_mode: str = "") -> tuple[str, ...]:
    """Return the entries of Vela's system configuration that a chip with a clock overrides, by default for the chip's
    own configuration and memory mode, or else the accelerator's."""
    npu = EthosUNpu.of(chip)
    assert chip.npu is not None
    accelerator = find_accelerator(npu.accelerator)
    if chip.npu.clock_mhz is None:
        return ()
    return entries_for(
        accelerator,
        system_config or npu.system_config or accelerator.system_config,
        memory_mode or npu.memory_mode or accelerator.memory_mode,
        chip.npu.clock_mhz * 1e6,
        {area: m.bandwidth for area, m in areas(chip).items() if m is not None and m.bandwidth is not None},
    )
