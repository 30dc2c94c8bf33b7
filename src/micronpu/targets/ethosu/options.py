"""Options of an Ethos-U compilation."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

from micronpu.base.arguments import check_switch, check_text, described, strings
from micronpu.base.errors import FileError, OptionError
from micronpu.base.files import check_intermediates, check_name, read_file
from micronpu.chips import load_measured
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.cortexm import rewrites as core
from micronpu.targets.ethosu.accelerators import (
    Accelerator,
    check_configuration,
    default_ini,
    find_accelerator,
    memories_of,
    system_entries,
    with_entries,
)
from micronpu.targets.ethosu.rewrites import REWRITES, TO_BE_SOUND
from micronpu.targets.ethosu.schedule.engines import Memories
from micronpu.targets.options import Options, Switches

_VIA = ("auto", "litert", "tosa")
_IN_SRAM, WHERE_IT_PAYS = "sram", "auto"
_WEIGHTS = ("flash", _IN_SRAM, WHERE_IT_PAYS)
_SHARED, _RESIDENT = "Shared_Sram", "Sram_Only"
"""Memory modes of Vela: constants in flash and all else in SRAM, and both in SRAM."""

_ALIGNMENT, _LEAST_ALIGNMENT = "--cpu-tensor-alignment", 16

# Flags of the `vela` command that affect a program in memory: key in the compiler's options, and values.
VELA_FLAGS: dict[str, tuple[str, str, tuple[str, ...] | type]] = {
    "--optimise": ("scheduler", "optimize", ("Performance", "Size")),
    "--arena-cache-size": ("scheduler", "arena_size_limit", int),
    "--tensor-allocator": ("scheduler", "tensor_allocator", ("HillClimb", "LinearAlloc")),
    _ALIGNMENT: ("scheduler", "cpu_tensor_alignment", int),
    "--cop-format": ("compiler", "cop_format", ("COP1", "COP2")),
    "--separate-io-regions": ("scheduler", "separate_io_regions", ("true",)),
}
_SWITCHES = ("--separate-io-regions",)
"""Flags without value."""


# Flags that are accepted but have no effect: the output is never a file, always from Vela's newer compiler, and nothing
# is printed.
_NO_EFFECT = (
    *("--output-format", "--debug-force-regor", "--recursion-limit", "--verbose-"),
    *("--enable-debug-db", "--show-cpu-operations", "--timing"),
)


def _checked_value(flag: str, value: str) -> str:
    allowed = VELA_FLAGS[flag][2]
    if isinstance(allowed, tuple) and value not in allowed:
        raise OptionError(f"The Vela flag {flag} is {value!r}.", hint=f"one of {', '.join(allowed)}")
    if allowed is int and (not value.isdigit() or int(value) == 0):
        raise OptionError(f"The Vela flag {flag} is {value!r}; it is a positive number.", hint=f"{flag}=65536")
    if flag == _ALIGNMENT and (int(value) < _LEAST_ALIGNMENT or int(value) & (int(value) - 1)):
        raise OptionError(
            f"The Vela flag {flag} is {value!r}; it is a power of two from {_LEAST_ALIGNMENT} on.",
            hint=f"{flag}={_LEAST_ALIGNMENT}",
        )
    return value


@dataclass(frozen=True)
class EthosUOptions(Switches, Options):
    """Options of an Ethos-U compilation.

    Attributes:
        silicon: the accelerator, such as "ethos-u55-128".
        system_config: system configuration in vela.ini; default: the backend's.
        memory_mode: memory mode in vela.ini; default: the backend's.
        extra_flags: further flags of the ``vela`` command, one string each ("--optimise=Size"); flags about files and
            output have no effect and are reported.
        system_entries: override entries of Vela's system configuration, such as "core_clock=400e6"; a chip target sets
            clock and bandwidths itself unless system_config or config_ini is given.
        config_ini: path to your own vela.ini.
        via: format of Vela's input: "litert", "tosa", or "auto" for the better of both.
        carry_graph: store the integer graph as named data, for `RunOptions(graph=True)`; the command stream does not
            change.
        prefetch: prefetch weights from flash into free SRAM, up to `max_sram_bytes`, if that saves 3 % of the cycles;
            with 0 only into SRAM that Vela allocates anyway.
        weights: memory of the weights: "flash" (or what the memory mode names); "sram" for a program copied to SRAM at
            boot (memory mode Sram_Only); "auto" for "sram" if it fits `max_sram_bytes` and saves 3 % of the cycles.
        search: search this many seconds for a faster schedule. Results are cached and resumed; Ctrl+C keeps the best.
            Two searches may give different programs.
        ray: search on a Ray cluster (`micronpu[ray]`): the one that the environment names, else this machine.
        verify_streams: check command streams in the simulator against their graphs.
        external_commands: put the command stream into a data file of this name (``NAME`` or ``NAME.ptd``); "" keeps it
            in the payload.
        external_weights: put weights and tables into a data file of this name; "" keeps them in the payload.
        shared_weights: share weights between methods (needs ExecuTorch 1.5).
        separate_io: place inputs and outputs outside the scratch memory, as the Linux driver needs them
            (`EthosUBackend_Cortex_A`); default for targets whose core runs Linux. Same as ``--separate-io-regions``.
        measurements: chip file of `micronpu calibrate` whose numbers the report's times rest on; the program does not
            change. (As the target, such a file also decides how the program is planned.)
        max_sram_bytes: available SRAM (bytes); 0 = unlimited. Default: the chip's.
        intermediates_dir: folder for the intermediate files of each partition: graph, flatbuffer, payload, Vela's
            figures; created if missing, "" for none.
        debug_info: also write debug.json there: operators mapped to source lines.
        disabled_passes: names of passes and rewrites to skip; see `micronpu passes`.

    Raises:
        OptionError: a value of the wrong type, or a name that does not exist.
    """

    of_this_machine: ClassVar[tuple[str, ...]] = (
        *("intermediates_dir", "debug_info", "config_ini", "verify_streams"),
        *("search", "ray", "measurements"),
    )
    files: ClassVar[tuple[str, ...]] = ("config_ini",)
    only_where_given: ClassVar[tuple[str, ...]] = (
        "system_entries",
        "disabled_passes",
        "prefetch",
        "separate_io",
        "shared_weights",
        "weights",
        "search",
        "ray",
        "measurements",
    )
    switchable_rewrites: ClassVar[tuple[Rewrite, ...]] = (*REWRITES, *core.REWRITES)
    needed_rewrites: ClassVar[tuple[Rewrite, ...]] = TO_BE_SOUND
    maker: ClassVar[str] = 'EthosUOptions("ethos-u55-128").to_specs()'
    silicon_key: ClassVar[str] = "target"

    silicon: str
    _: KW_ONLY
    system_config: str = ""
    memory_mode: str = ""
    extra_flags: tuple[str, ...] = ()
    config_ini: str = ""
    system_entries: tuple[str, ...] = ()
    via: str = "auto"
    carry_graph: bool = False
    prefetch: bool = True
    weights: str = "flash"
    search: float | None = None
    ray: bool = False
    verify_streams: bool = True
    external_commands: str = ""
    external_weights: str = ""
    shared_weights: bool = True
    separate_io: bool = False
    measurements: str = ""
    max_sram_bytes: int = 0
    intermediates_dir: str = field(default="", compare=False)
    debug_info: bool = field(default=False, compare=False)
    disabled_passes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        accelerator = find_accelerator(self.silicon)
        for name in ("extra_flags", "system_entries", "disabled_passes"):
            object.__setattr__(self, name, strings(name, getattr(self, name)))
        self.check_switches()
        if self.via not in _VIA:
            raise OptionError(f"`via` is {described(self.via)}.", hint=f"one of {', '.join(_VIA)}")
        files = ("external_commands", "external_weights")
        for name in ("system_config", "memory_mode", "config_ini", "measurements", *files):
            check_text(name, getattr(self, name))
        for name in files:  # the suffix is added to the name
            object.__setattr__(self, name, getattr(self, name).removesuffix(".ptd"))
        given = self.max_sram_bytes
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise OptionError(f"`max_sram_bytes` is {described(given)}; it is a number of bytes.", hint="256 * 1024")
        check_intermediates(self.intermediates_dir)
        for name in ("carry_graph", "prefetch", "verify_streams", "debug_info", "separate_io", "shared_weights", "ray"):
            check_switch(name, getattr(self, name))
        if self.weights not in _WEIGHTS:
            raise OptionError(f"`weights` is {described(self.weights)}.", hint=f"one of {', '.join(_WEIGHTS)}")
        _check_search(self.search, self.ray)
        if self.weights in (_IN_SRAM, WHERE_IT_PAYS):
            if self.memory_mode not in ("", _SHARED, _RESIDENT):
                raise OptionError(
                    f"`weights` is {self.weights!r}, but the memory mode {self.memory_mode!r} keeps them elsewhere.",
                    hint=f"memory_mode={_RESIDENT!r}, or none",
                )
            if self.weights == _IN_SRAM:
                object.__setattr__(self, "memory_mode", _RESIDENT)
        ini = self._file
        systems, modes = accelerator.system_configs(ini), accelerator.memory_modes(ini)
        if not self.system_config:
            object.__setattr__(self, "system_config", _default("System_Config", accelerator.system_config, systems))
        if not self.memory_mode:
            object.__setattr__(self, "memory_mode", _default("Memory_Mode", accelerator.memory_mode, modes))
        if self.system_config not in systems:
            raise OptionError(
                f"{self.silicon} has no system configuration {self.system_config!r}.",
                hint=_offer("System_Config", systems),
            )
        if self.memory_mode not in modes:
            raise OptionError(
                f"{self.silicon} has no memory mode {self.memory_mode!r}.", hint=_offer("Memory_Mode", modes)
            )
        check_configuration(self.ini, self.system_config, self.memory_mode)
        self.vela_options()

    @property
    def notes(self) -> tuple[str, ...]:
        """Report notes on options without effect."""
        idle = [flag for flag in self.extra_flags if flag.startswith(_NO_EFFECT)]
        found = [f"Flags of the vela command without effect here: {', '.join(idle)}."] if idle else []
        if self.debug_info and not self.intermediates_dir:
            found.append("`debug_info` has no folder to write to: give `intermediates_dir`, too.")
        return tuple(found)

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator named by `silicon`, with its defaults for Vela."""
        return find_accelerator(self.silicon)

    @property
    def for_estimates(self) -> EthosUOptions:
        """These options with the memories of `measurements`, if there are any."""
        if not self.measurements:
            return self
        entries = system_entries(load_measured(self.measurements), self.system_config, self.memory_mode)
        return replace(self, system_entries=entries, measurements="")

    @property
    def memories(self) -> Memories | None:
        """Data of the two memories for moving constants; None if constants and tensors share one."""
        return memories_of(self.ini, self.system_config, self.memory_mode, self.accelerator)

    @property
    def ini(self) -> str:
        """Text of the Vela configuration, with overridden entries."""
        return with_entries(self._file, self.system_config, self.system_entries) if self.system_entries else self._file

    @property
    def _file(self) -> str:
        if not self.config_ini:
            return default_ini()
        try:
            path = check_name(self.config_ini)
        except FileError as error:
            raise OptionError(f"`config_ini` cannot be used: {error.what}", hint=error.hint) from error
        if not path.is_file():
            raise OptionError(f"There is no Vela configuration `{path}`.", hint="the path of an ini file")
        try:
            return read_file(path).decode()
        except (FileError, UnicodeDecodeError) as error:
            raise OptionError(f"The Vela configuration `{path}` is no text: {error}.", hint="an ini file") from error

    def vela_options(self) -> dict[tuple[str, str], str]:
        """The extra flags as (section, key) and value of the compiler's options."""
        apart = {VELA_FLAGS["--separate-io-regions"][:2]: "true", VELA_FLAGS["--cop-format"][:2]: "COP2"}
        options: dict[tuple[str, str], str] = apart if self.separate_io else {}
        flags = list(self.extra_flags)
        while flags:
            flag, _, value = flags.pop(0).partition("=")
            if flag.startswith(_NO_EFFECT):
                own = value or (flags.pop(0) if flags and not flags[0].startswith("--") else "")
                if flag == "--output-format" and own != "raw":
                    raise OptionError(
                        f"The Vela flag {flag} is {own!r}; a program holds what Vela calls raw.",
                        hint="`micronpu compile -o model.tflite --vela` for an optimised LiteRT model",
                    )
                continue
            if flag not in VELA_FLAGS:
                raise OptionError(
                    f"The Vela flag {flag!r} has no effect on a program in memory or does not exist.",
                    hint=f"one of {', '.join(VELA_FLAGS)}",
                )
            if flag in _SWITCHES:
                value = value or "true"
            elif not value and flags and not flags[0].startswith("--"):
                value = flags.pop(0)
            section, key, _ = VELA_FLAGS[flag]
            options[section, key] = _checked_value(flag, value)
        regions, actions = apart
        if regions in options and options.setdefault(actions, "COP2") != "COP2":
            raise OptionError(
                "Inputs and outputs in separate regions need the driver actions COP2.", hint="--cop-format=COP2"
            )
        return options

    @property
    def is_io_separate(self) -> bool:
        """True if inputs and outputs are in separate regions, by option or by flag."""
        return ("scheduler", "separate_io_regions") in self.vela_options()


def _check_search(seconds: Any, ray: bool) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds < math.inf):
        shown = f"{seconds:g}" if is_number else described(seconds)
        raise OptionError(
            f"`search` is {shown}; it is a number of seconds in which a faster program is looked for.",
            hint="search=60, or none",
        )
    if ray and seconds is None:
        raise OptionError("`ray` is for a search, which nothing asks for.", hint="search=60 as well")


def _default(kind: str, preferred: str, offered: tuple[str, ...]) -> str:
    """The accelerator's default if the configuration has it, or else the only one of a user's configuration."""
    if preferred in offered:
        return preferred
    if len(offered) == 1:
        return offered[0]
    raise OptionError(f"The Vela configuration leaves `{kind.lower()}` open.", hint=_offer(kind, offered))


def _offer(kind: str, offered: tuple[str, ...]) -> str:
    return f"one of {', '.join(offered)}" if offered else f"an ini file with a section [{kind}.NAME] for this Ethos-U"
