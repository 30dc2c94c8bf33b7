"""Options of an Ethos-U compilation."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from micronpu.base.arguments import check_switch, check_text, described, strings
from micronpu.base.errors import FileError, OptionError
from micronpu.base.files import check_intermediates, check_name, read_file
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.cortexm import rewrites as core
from micronpu.targets.ethosu.accelerators import (
    Accelerator,
    check_configuration,
    default_ini,
    find_accelerator,
    memories_of,
    with_entries,
)
from micronpu.targets.ethosu.rewrites import REWRITES, TO_BE_SOUND
from micronpu.targets.ethosu.schedule.engines import Memories
from micronpu.targets.options import Options
from micronpu.targets.switches import Switches

_VIA = ("auto", "litert", "tosa")
_IN_SRAM, WHERE_IT_PAYS = "sram", "auto"
_WEIGHTS = ("flash", _IN_SRAM, WHERE_IT_PAYS)
_SHARED, _RESIDENT = "Shared_Sram", "Sram_Only"
"""Memory modes of Vela: the constants in flash and all else in SRAM, and both in SRAM."""

_ALIGNMENT, _LEAST_ALIGNMENT = "--cpu-tensor-alignment", 16

# Flags of the `vela` command that mean something for a program in memory: key in the compiler's options and its values.
VELA_FLAGS: dict[str, tuple[str, str, tuple[str, ...] | type]] = {
    "--optimise": ("scheduler", "optimize", ("Performance", "Size")),
    "--arena-cache-size": ("scheduler", "arena_size_limit", int),
    "--tensor-allocator": ("scheduler", "tensor_allocator", ("HillClimb", "LinearAlloc")),
    _ALIGNMENT: ("scheduler", "cpu_tensor_alignment", int),
    "--cop-format": ("compiler", "cop_format", ("COP1", "COP2")),
    "--separate-io-regions": ("scheduler", "separate_io_regions", ("true",)),
}
_SWITCHES = ("--separate-io-regions",)
"""Those that stand alone."""


# Flags that a script may hold and that change nothing about the program: what is made of it is never a file, always by
# Vela's newer compiler, and says nothing on the way.
_NO_EFFECT = (
    *("--output-format", "--debug-force-regor", "--recursion-limit", "--verbose-"),
    *("--enable-debug-db", "--show-cpu-operations", "--timing"),
)


def _checked_value(flag: str, value: str) -> str:
    """The value of one of `VELA_FLAGS`.

    Raises:
        OptionError: it is none that the flag takes.
    """
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
    """What a user can choose about an Ethos-U compilation.

    Attributes:
        silicon: the accelerator, such as "ethos-u55-128".
        system_config: section of the Vela configuration; the family's default unless given.
        memory_mode: section of the Vela configuration; the family's default unless given.
        extra_flags: further flags of the ``vela`` command, one string each ("--optimise=Size"); those about its
            files and its own output have no effect, and the report says so.
        system_entries: what stands in the place of entries of the system configuration, such as "core_clock=400e6"; a
            target that is a chip brings along the clock and the bandwidths of its file where neither system_config nor
            config_ini is given.
        config_ini: path of an own Vela configuration, spaces allowed; Vela's own unless given.
        via: format that Vela is given: "litert", "tosa", or "auto" for the better of both.
        carry_graph: carry the integer graph that Vela was given along as named data, for `RunOptions(graph=True)`. A
            host runs the command stream either way; the bytes that the board reads are the same.
        prefetch: weights that Vela leaves in flash until they are computed with are brought into SRAM before, by
            transfers beside the arithmetic, where that saves 3 % of the cycles; takes what SRAM of `max_sram_bytes` is
            free, or none beyond Vela's where that is 0.
        weights: where weights are read: "flash", or whatever memory the memory mode names; "sram" for a program that
            stands in the SRAM from the start of the firmware on, which is the memory mode Sram_Only; "auto" for that
            where it fits `max_sram_bytes` and saves 3 % of the cycles.
        search: seconds to look for a faster program beyond the plans that usually pay: layers in parts, limits of the
            arena, Vela's own switches, formats, each with its weights brought ahead. The programs of two searches may
            differ; what was tried is kept on disk, and the next search goes on behind it. An interrupt ends it with the
            best so far.
        ray: a search works on a Ray cluster (`micronpu[ray]`): the one that the environment names, else this machine.
        verify_streams: run what Vela makes in the simulator, beside the graph that it was made of, before it is used.
        external_commands: where a runtime finds the command stream, as named data of a file of this name
            (``NAME`` or ``NAME.ptd``); "" keeps it in the payload.
        external_weights: the same for weights and tables.
        shared_weights: methods of one program read one copy of their weights, as named data of the program; a firmware
            with ExecuTorch before 1.5 does not find them there.
        separate_io: inputs and outputs lie in regions of their own, outside the scratch memory, as the driver of Linux
            wants them (`EthosUBackend_Cortex_A`); a target whose core runs Linux brings it along. The flag
            ``--separate-io-regions`` is the same.
        max_sram_bytes: SRAM that there is; a program that needs more is refused. 0 for no limit; a target that is a
            chip brings along the SRAM of its file.
        intermediates_dir: folder for what each partition goes through: graph, flatbuffer, payload, Vela's figures;
            made if missing, "" for none.
        debug_info: write there, too, what every operator was in the model, as ``debug.json``.
        disabled_passes: names of passes and rewrites to leave out, on the graph or on the float program; `micronpu
            passes` lists them.

    Raises:
        OptionError: a value of the wrong type, or a name that does not exist.
    """

    of_this_machine: ClassVar[tuple[str, ...]] = (
        *("intermediates_dir", "debug_info", "config_ini", "verify_streams"),
        *("search", "ray"),
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
        for name in ("system_config", "memory_mode", "config_ini", "external_commands", "external_weights"):
            check_text(name, getattr(self, name))
        for name in ("external_commands", "external_weights"):  # the suffix is written behind the name
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
        """What a report says about options that change nothing."""
        idle = [flag for flag in self.extra_flags if flag.startswith(_NO_EFFECT)]
        found = [f"Flags of the vela command without effect here: {', '.join(idle)}."] if idle else []
        if self.debug_info and not self.intermediates_dir:
            found.append("`debug_info` has no folder to write to: give `intermediates_dir`, too.")
        return tuple(found)

    @property
    def accelerator(self) -> Accelerator:
        """The NPU that `silicon` names, with its defaults for Vela."""
        return find_accelerator(self.silicon)

    @property
    def memories(self) -> Memories | None:
        """What moving constants into the memory of the tensors takes; None where both are in the same."""
        return memories_of(self.ini, self.system_config, self.memory_mode, self.accelerator)

    @property
    def ini(self) -> str:
        """Text of the Vela configuration, with the entries that the chip or the user has given."""
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
                "Inputs and outputs in regions of their own need the driver actions COP2.", hint="--cop-format=COP2"
            )
        return options

    @property
    def is_io_separate(self) -> bool:
        """Whether inputs and outputs lie in regions of their own, by option or by flag."""
        return ("scheduler", "separate_io_regions") in self.vela_options()


def _check_search(seconds: Any, ray: bool) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds < math.inf):
        told = f"{seconds:g}" if is_number else described(seconds)
        raise OptionError(
            f"`search` is {told}; it is a number of seconds in which a faster program is looked for.",
            hint="search=60, or none",
        )
    if ray and seconds is None:
        raise OptionError("`ray` is for a search, which nothing asks for.", hint="search=60 as well")


def _default(kind: str, preferred: str, offered: tuple[str, ...]) -> str:
    """The family's default where the configuration has it, or else the only one of a configuration of the user's."""
    if preferred in offered:
        return preferred
    if len(offered) == 1:
        return offered[0]
    raise OptionError(f"The Vela configuration leaves `{kind.lower()}` open.", hint=_offer(kind, offered))


def _offer(kind: str, offered: tuple[str, ...]) -> str:
    return f"one of {', '.join(offered)}" if offered else f"an ini file with a section [{kind}.NAME] for this Ethos-U"
