"""What a program is deployed to: chip, core, memory mode; and whether it fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from micronpu.base.errors import OptionError
from micronpu.base.parsing import parse_json
from micronpu.chips import ACTIVATIONS, WEIGHTS, Chip, shipped_chips
from micronpu.chips.core import InstructionSet, find_core, is_cortex_m, runs_linux
from micronpu.deploy.kernels import kernels_of
from micronpu.deploy.pools import Pools
from micronpu.program.plan import Plan
from micronpu.report.memory import Item, Region
from micronpu.targets.family import Target
from micronpu.targets.registry import FAMILIES, find_target, firmware_of, options_for

SRAM_ONLY, DEDICATED_SRAM = "Sram_Only", "Dedicated_Sram"
_LINEAR = "cortex_m::quantized_linear.out"
_FLAGS = {
    "cortex-m0": "-mcpu=cortex-m0",
    "cortex-m0plus": "-mcpu=cortex-m0plus",
    "cortex-m3": "-mcpu=cortex-m3",
    "cortex-m4": "-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16",
    "cortex-m7": "-mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-d16",
    "cortex-m23": "-mcpu=cortex-m23",
    "cortex-m35p": "-mcpu=cortex-m35p -mfloat-abi=hard -mfpu=fpv5-sp-d16",
    "cortex-m33": "-mcpu=cortex-m33 -mfloat-abi=hard -mfpu=fpv5-sp-d16",
    "cortex-m55": "-mcpu=cortex-m55 -mfloat-abi=hard",
    "cortex-m85": "-mcpu=cortex-m85 -mfloat-abi=hard",
}
"""What gcc is called with for a core, beside ``-mthumb``."""


@dataclass(frozen=True)
class Board:
    """What a program is deployed to.

    Attributes:
        name: of the target, "" where none is known.
        chip: None for an Ethos-U by itself, or where none is known.
        core: such as "cortex-m55"; "" where it is not known.
        accelerator: the Ethos-U of the program's command stream, such as "ethos-u55-128"; "" without one.
        system_config, memory_mode: of Vela, as the program was compiled with; "" without an Ethos-U.
        on_device: False for a program that only a laptop runs.
        hot: the memory for planned tensors that are touched most; "" for none.
        hot_bytes: of it that they may take.
    """

    name: str
    chip: Chip | None
    core: str
    accelerator: str = ""
    system_config: str = ""
    memory_mode: str = ""
    on_device: bool = True
    hot: str = ""
    hot_bytes: int = 0

    @property
    def has_start_up(self) -> bool:
        """Whether the core is one for which the folder has start-up code: a Cortex-M, or one that is not known."""
        return not self.core or is_cortex_m(self.core)

    @property
    def flags(self) -> str:
        """What gcc is called with for the core."""
        return _FLAGS.get(self.core, "-mcpu=cortex-m55 -mfloat-abi=hard")

    @property
    def sram(self) -> str:
        """Name of the memory that tensors are computed in."""
        return self._memory_for(ACTIVATIONS) or "sram"

    @property
    def far(self) -> str:
        """Name of the memory outside of the chip."""
        names = [m.name for m in self.chip.memories] if self.chip is not None else []
        return next((n for n in ("ddr", "dram") if n in names), "dram")

    @property
    def flash(self) -> str:
        """Name of the memory that programs stand in."""
        if self.memory_mode == SRAM_ONLY:
            return self.sram
        has_far = self.chip is not None and any(m.name == self.far for m in self.chip.memories)
        return self._memory_for(WEIGHTS) or (self.far if has_far else "flash")

    def _memory_for(self, role: str) -> str:
        memory = self.chip.memory_for(role) if self.chip is not None else None
        return memory.name if memory is not None else ""

    def regions(self, program: int | Sequence[Item], pools: Pools, more: Sequence[Item] = ()) -> tuple[Region, ...]:
        """What stands in each memory of the chip, without the firmware's own code.

        Args:
            program: bytes of the program's file, or what it consists of.
            more: what else stands in the memory that tensors are computed in.
        """
        sizes = {m.name: m.bytes for m in self.chip.memories} if self.chip is not None else {}
        sram, far, flash = self.sram, self.far, self.flash
        dedicated = self.memory_mode.startswith(DEDICATED_SRAM)
        file = [Item("the program", program)] if isinstance(program, int) else list(program)
        found: dict[str, list[Item]] = {flash: file}
        for number, size in enumerate(pools.planned, 1):
            place = self.hot if number in pools.hot else sram
            found.setdefault(place, []).append(Item(f"planned memory {number}", size))
        found.setdefault(sram, []).extend((Item("pool of the method allocator", pools.method), *more))
        found.setdefault(far if dedicated else sram, []).append(
            Item("pool of the temporary allocator", pools.temporary)
        )
        if dedicated and self.fast_scratch:
            found[sram].append(Item("fast scratch memory of the NPU (of the memory mode)", self.fast_scratch))
        outside = self.chip is not None and self.chip.external_flash
        kinds = {name: {far: "dram", sram: "sram", self.hot: "sram"}.get(name, "flash") for name in found}
        return tuple(
            Region(name, kinds[name], tuple(items), sizes.get(name), outside and kinds[name] == "flash")
            for name, items in found.items()
        )

    @property
    def fast_scratch(self) -> int:
        """Bytes of the fast scratch memory that the memory mode's name promises the NPU, 0 where there is none."""
        size = re.fullmatch(rf"{DEDICATED_SRAM}_(\d+)KB", self.memory_mode)
        return int(size[1]) * 1024 if size else 0


def board_of(plan: Plan, target: str | None) -> Board:
    """What a program is for.

    Args:
        target: as `micronpu.compile` knows it; what the program itself was compiled with unless given.

    Raises:
        OptionError: there is no such target, or it cannot take the program.
        PayloadError: a payload cannot be read.
    """
    options = {key: _text(value) for d in plan.delegates for key, value in d.specs}
    accelerator, on_device = "", True
    for delegate in plan.delegates:
        firmware = firmware_of(delegate.backend)
        if firmware is not None:
            accelerator = firmware.accelerator(delegate.payload, options) or accelerator
            on_device &= firmware.is_for_silicon(delegate.payload)
    chosen = find_target(target) if target is not None else _own_target(options, accelerator)
    if target is not None and chosen is not None:
        _check(plan, chosen, accelerator)
    chip = chosen.chip if chosen is not None else None
    modes = {key: options.get(key, "") for key in ("system_config", "memory_mode")} if accelerator else {}
    if accelerator and not all(modes.values()):
        usual = options_for(chosen if chosen is not None else find_target(accelerator))
        modes = {key: value or getattr(usual, key, "") for key, value in modes.items()}
    return Board(
        name=chosen.name if chosen is not None else "",
        chip=chip,
        core=_core(chosen) if chosen is not None else "",
        accelerator=accelerator,
        on_device=on_device,
        system_config=modes.get("system_config", ""),
        memory_mode=modes.get("memory_mode", ""),
    )


def check_system(plan: Plan, board: Board) -> None:
    """Refuses a core that runs another delegate than the program is for: it would hand over inputs elsewhere.

    Raises:
        OptionError: which it is.
        PayloadError: a payload cannot be read.
    """
    known = ((firmware_of(delegate.backend), delegate.payload) for delegate in plan.delegates)
    systems = {firmware.is_for_linux(payload) for firmware, payload in known if firmware is not None}
    core = board.core
    if True in systems and not runs_linux(core):
        name = board.name if board.chip is not None else "no chip"
        raise OptionError(
            f"The program's inputs and outputs lie apart, as the NPU's driver for Linux wants them, and {name} was "
            "named whose core runs Linux.",
            hint="--for imx93; for firmware on a microcontroller compile for that target, or with separate_io=False",
        )
    if False in systems and runs_linux(core):
        raise OptionError(
            f"The {core} runs Linux, whose driver wants the NPU's inputs and outputs apart, and the program has them "
            "inside the scratch memory.",
            hint="compile for the target, without separate_io=False",
        )


def with_hot(board: Board, given: str) -> Board:
    """A board with a memory for planned tensors that are touched most.

    Args:
        given: the name of a memory of the chip, with ``=`` and the bytes that they may take unless it is all of it.

    Raises:
        OptionError: the chip has no such memory, or less of it.
    """
    name, is_sized, size = given.partition("=")
    memories = {m.name: m.bytes for m in board.chip.memories} if board.chip is not None else {}
    if name not in memories:
        others = ", ".join(m for m in memories if m != board.sram) or "none that is known"
        raise OptionError(f"{board.name or 'The board'} has no memory `{name}`.", hint=f"its memories: {others}")
    if name == board.sram:
        raise OptionError(f"`{name}` is where planned memories stand in any case.", hint="a faster memory of the chip")
    if is_sized and not re.fullmatch(r"[1-9]\d{0,9}", size, re.ASCII):
        raise OptionError(f"`{size}` is no size of a memory.", hint=f"{name}=65536")
    if is_sized and int(size) > memories[name]:
        raise OptionError(f"The memory `{name}` of {board.name} has {memories[name]:,} bytes.", hint="at most these")
    return replace(board, hot=name, hot_bytes=int(size) if is_sized else memories[name])


_OPTION = re.compile(r"[\w.+ /-]{0,200}", re.ASCII)


def _text(value: bytes) -> str:
    """An option of a compile spec, "" where it is no string, or none that has a place in C and CMake."""
    try:
        told = parse_json(value)
    except ValueError:
        return ""
    return told if isinstance(told, str) and _OPTION.fullmatch(told) else ""


def _own_target(options: dict[str, str], accelerator: str) -> Target | None:
    """The target that the program's options name."""
    name = options.get("config") or accelerator
    if not name:
        return None
    try:
        return find_target(name)
    except OptionError:
        chip = shipped_chips().get(name)
        return find_target(chip.targets[0].name) if chip is not None else None


def _core(target: Target) -> str:
    """The core of a target's chip, or else the one that its family knows of."""
    return target.chip.core if target.chip is not None else FAMILIES[target.family].core_beside(target.silicon)


def _check(plan: Plan, target: Target, accelerator: str) -> None:
    """Refuses a target that cannot take the program.

    Raises:
        OptionError: which it is, and why.
    """
    hint = "the target that the program was compiled for"
    families = {family.backend: family for family in FAMILIES.values() if family.backend}
    for backend in plan.backends:
        family = families.get(backend)
        if family is None:
            raise OptionError(
                f"The program calls the delegate {backend}, which no target of micronpu has.", hint="another program"
            )
        if family.name != target.family:
            other = FAMILIES[target.family].title
            raise OptionError(f"The program is for {family.title}, but {target.name} is for {other}.", hint=hint)
    if accelerator and accelerator != target.silicon:
        raise OptionError(
            f"The program's command stream is for {accelerator}, but {target.name} has {target.silicon}.", hint=hint
        )
    core = _core(target)
    of_core = [o for o in plan.operators if o.startswith("cortex_m::")]
    if of_core and core and not is_cortex_m(core):
        raise OptionError(
            f"The program calls {of_core[0]} of CMSIS-NN, which does not run on the {core} of {target.name}.", hint=hint
        )
    has_helium = find_core(core).instructions is InstructionSet.MVE if is_cortex_m(core) else None
    for_helium = _is_for_helium(plan)
    if has_helium is not None and for_helium is not None and has_helium is not for_helium:
        raise OptionError(
            f"The program's matrix products are for a core {'with' if for_helium else 'without'} Helium (MVE), and the "
            f"{core} of {target.name} is one {'with' if has_helium else 'without'}: results would be wrong in silence.",
            hint=hint,
        )


def _is_for_helium(plan: Plan) -> bool | None:
    """Whether the fully connected operators of CMSIS-NN have sums of their weights, as a core with Helium reads them.

    The others have a bias in their place.  None where the program has none of them.
    """
    for call in plan.calls:
        if call.operator == _LINEAR:
            names = [name for _, name in kernels_of([_LINEAR])[0].arguments]
            return plan.values[call.arguments[names.index("kernel_sum")]].tensor is not None
    return None
