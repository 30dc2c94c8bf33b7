"""Target of a deployment: chip, core, memory mode, and its memory pools; and checks that the program fits.

Allocations of ExecuTorch's runtime on a 32-bit core are computed from the `.pte` alone. The method allocator is
simulated in the order of `Method::init` of ExecuTorch 1.5, with the sizes of its structures on the core; `tests`
compile the same headers for Cortex-M to compare them, and measure a real runtime on the host with the host's sizes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from micronpu.base.arguments import check_text
from micronpu.base.errors import OptionError
from micronpu.base.parsing import parse_json
from micronpu.chips import ACTIVATIONS, WEIGHTS, Chip
from micronpu.chips.core import USUAL, Core, InstructionSet, find_core, runs_cmsis_nn, runs_linux
from micronpu.program.plan import Plan, PlanValue, needs_data
from micronpu.report.memory import Item, Region
from micronpu.targets.backend import Target
from micronpu.targets.registry import BACKENDS, core_library, find_target, firmware_of, options_for

SRAM_ONLY, DEDICATED_SRAM = "Sram_Only", "Dedicated_Sram"


_KEPT = ("flash", "mram", "rram")
"""Non-volatile memories."""


@dataclass(frozen=True)
class Board:
    """Target of a deployment.

    Attributes:
        name: of the target; "" if unknown.
        chip: None for an Ethos-U without a chip, or if unknown.
        core: such as "cortex-m55"; "" if unknown.
        accelerator: the Ethos-U of the program's command stream, such as "ethos-u55-128"; "" without one.
        system_config, memory_mode: Vela's options in the compilation; "" without an Ethos-U.
        on_device: False for a program that runs only on the host.
        hot: the memory for the most used planned tensors; "" for none.
        hot_bytes: maximum number of bytes for them.
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
        """True if the folder has start-up code for the core: a microcontroller's, or unknown."""
        return not self.core or runs_cmsis_nn(self.core)

    @property
    def has_helium(self) -> bool:
        """True if the core has vector instructions for integers and floats."""
        return runs_cmsis_nn(self.core) and self._core.instructions is InstructionSet.MVE

    @property
    def flags(self) -> str:
        """Options of gcc for the core."""
        return (self._core if runs_cmsis_nn(self.core) else USUAL).flags

    @property
    def _core(self) -> Core:
        return find_core(self.core, self.chip.core_instructions if self.chip is not None else "")

    @property
    def sram(self) -> str:
        """Name of the memory for activations."""
        return self._memory_for(ACTIVATIONS) or "sram"

    @property
    def beside_sram(self) -> tuple[str, ...]:
        """Names of the other memories that are written at run time."""
        memories = self.chip.memories if self.chip is not None else ()
        kept = {*_KEPT, "" if self.is_resident else self._memory_for(WEIGHTS)}
        return tuple(m.name for m in memories if m.name not in kept and m.name != self.sram)

    @property
    def far(self) -> str:
        """Name of the memory outside of the chip."""
        names = [m.name for m in self.chip.memories] if self.chip is not None else []
        return next((n for n in ("ddr", "dram") if n in names), "dram")

    @property
    def flash(self) -> str:
        """Name of the memory that programs are in at run time."""
        if self.is_resident:
            return self.sram
        has_far = self.chip is not None and any(m.name == self.far for m in self.chip.memories)
        return self._memory_for(WEIGHTS) or (self.far if has_far else "flash")

    @property
    def is_resident(self) -> bool:
        """True if programs are copied into the memory for activations when the firmware starts."""
        return self.memory_mode == SRAM_ONLY

    @property
    def stored(self) -> str:
        """Name of the memory that programs are stored in without power."""
        return self._memory_for(WEIGHTS) or "flash" if self.is_resident else self.flash

    def memory(self, name: str) -> str:
        """Return the name in `regions` of a memory that Vela or a cost model names."""
        far = self.far if self.memory_mode.startswith(DEDICATED_SRAM) else self.flash
        names = {"Sram": self.sram, "Dram": far, "OnChipFlash": self.flash, "OffChipFlash": self.flash}
        return (names | {"flash": self.flash}).get(name, name)

    def _memory_for(self, role: str) -> str:
        memory = self.chip.memory_for(role) if self.chip is not None else None
        return memory.name if memory is not None else ""

    def regions(self, program: int | Sequence[Item], pools: Pools) -> tuple[Region, ...]:
        """Return the content of each memory of the chip, without the firmware's own code; ``program`` is the bytes of
        the program's file, or its parts."""
        sizes = {m.name: m.bytes for m in self.chip.memories} if self.chip is not None else {}
        sram, far, flash = self.sram, self.far, self.flash
        dedicated = self.memory_mode.startswith(DEDICATED_SRAM)
        file = [Item("the program", program)] if isinstance(program, int) else list(program)
        found: dict[str, list[Item]] = {flash: file}
        for number, size in enumerate(pools.planned, 1):
            place = self.hot if number in pools.hot else sram
            found.setdefault(place, []).append(Item(f"planned memory {number}", size))
        found.setdefault(sram, []).append(Item("pool of the method allocator", pools.method))
        if pools.inside:
            found[sram].append(Item("inside of the NPU's partitions, at least", pools.inside))
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
        """Bytes of the NPU's fast scratch memory, from the memory mode's name; 0 without one."""
        size = re.fullmatch(rf"{DEDICATED_SRAM}_(\d+)KB", self.memory_mode)
        return int(size[1]) * 1024 if size else 0


def board_of(plan: Plan, target: str | None, program: str = "The program") -> Board:
    """Return the board that a program is for, by default of the target that it names; refuse one on which it cannot
    run."""
    options = {key: _text(value) for d in plan.delegates for key, value in d.specs}
    accelerator, on_device = "", True
    for delegate in plan.delegates:
        firmware = firmware_of(delegate.backend)
        if firmware is not None:
            accelerator = firmware.accelerator(delegate.payload, options) or accelerator
            on_device &= firmware.is_for_silicon(delegate.payload)
    chosen = find_target(target) if target is not None else _own_target(options, accelerator)
    if target is not None and chosen is not None:
        _check(plan, chosen, accelerator, program)
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


def whole_board(plans: Sequence[Plan], target: str | None, program: str) -> Board:
    """Return the board for all methods of a program: the first suitable one of comma-separated targets; see
    `board_of`."""
    whole = plans[0]
    if len(plans) > 1:
        # A plan with the calls of all methods; only delegates and operators are examined.
        delegates = tuple(delegate for plan in plans for delegate in plan.delegates)
        whole = replace(whole, delegates=delegates, chains=tuple(chain for plan in plans for chain in plan.chains))
    if target is not None:
        check_text("target", target)
    names = target.split(",") if target is not None else [None]
    for name in names if len(names) > 1 else ():
        find_target(str(name))
    for name in names:
        try:
            board = board_of(whole, name, program)
        except OptionError:
            if name is names[-1]:
                raise
        else:
            break
    check_system(whole, board)
    return board


def check_system(plan: Plan, board: Board) -> None:
    """Refuse a core that expects another delegate than the program's, because inputs would be passed differently."""
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
    """Return a board with a memory for the most used planned tensors.

    Args:
        given: the name of a memory of the chip, optionally with ``=`` and the maximum number of bytes.

    Raises:
        OptionError: the chip has no such memory, or less of it.
    """
    name, is_sized, size = given.partition("=")
    memories = {m.name: m.bytes for m in board.chip.memories} if board.chip is not None else {}
    others = ", ".join(board.beside_sram) or "none that is known"
    if name not in memories:
        raise OptionError(f"{board.name or 'The board'} has no memory `{name}`.", hint=f"its memories: {others}")
    if name != board.sram and name not in board.beside_sram:
        raise OptionError(
            f"`{name}` of {board.name} keeps programs, and nothing is written to it at run time.",
            hint=f"another memory of the chip: {others}",
        )
    if name == board.sram:
        raise OptionError(f"`{name}` has the planned memories in any case.", hint="a faster memory of the chip")
    if is_sized and not re.fullmatch(r"[1-9]\d{0,9}", size, re.ASCII):
        raise OptionError(f"`{size}` is no size of a memory.", hint=f"{name}=65536")
    if is_sized and int(size) > memories[name]:
        raise OptionError(f"The memory `{name}` of {board.name} has {memories[name]:,} bytes.", hint="at most these")
    return replace(board, hot=name, hot_bytes=int(size) if is_sized else memories[name])


_OPTION = re.compile(r"[\w.+ /-]{0,200}", re.ASCII)


def _text(value: bytes) -> str:
    """Return an option of a compile spec; "" if it is no string, or unsafe in C and CMake."""
    try:
        record = parse_json(value)
    except ValueError:
        return ""
    return record if isinstance(record, str) and _OPTION.fullmatch(record) else ""


def _own_target(options: dict[str, str], accelerator: str) -> Target | None:
    """Return the target in the program's options, or None."""
    with contextlib.suppress(OptionError):
        return find_target(options.get("config") or accelerator)
    return None


def _core(target: Target) -> str:
    """Return the core of a target's chip, or else the one that its backend knows."""
    return target.chip.core if target.chip is not None else BACKENDS[target.backend].core_beside(target.silicon)


def _check(plan: Plan, target: Target, accelerator: str, program: str) -> None:
    hint = "the target that the program was compiled for"
    backends = {backend.backend_id: backend for backend in BACKENDS.values() if backend.backend_id}
    for backend_id in plan.backends:
        backend = backends.get(backend_id)
        if backend is None:
            raise OptionError(
                f"{program} calls the delegate {backend_id}, which no target of micronpu has.", hint="another program"
            )
        if backend.name != target.backend:
            other = BACKENDS[target.backend].title
            raise OptionError(f"{program} is for {backend.title}, but {target.name} is for {other}.", hint=hint)
    if accelerator and accelerator != target.silicon:
        raise OptionError(
            f"{program} has a command stream for {accelerator}, but {target.name} has {target.silicon}.", hint=hint
        )
    core = _core(target)
    instructions = target.chip.core_instructions if target.chip is not None else ""
    for namespace in {operator.partition("::")[0] for operator in plan.operators}:
        library = core_library(namespace)
        objection = library.objection(plan, core, target.name, instructions) if library is not None and core else ""
        if objection:
            raise OptionError(objection, hint=hint)


@dataclass(frozen=True)
class Sizes:
    """Bytes of ExecuTorch's structures in a build; by default of ExecuTorch 1.5 on any 32-bit Arm core with the EABI.

    Attributes:
        pointer: size of an address, and of `size_t`.
        evalue: `EValue`.
        tensor_impl: `TensorImpl`.
        list: `BoxedEvalueList`.
        optional_tensor: `std::optional<Tensor>`.
        chain: `Chain`.
        delegate: `BackendDelegate`.
        spec: `CompileSpec`.
        span: `Span` and `ArrayRef`.
        tensor_meta: `TensorMeta`, the key for looking up a kernel.
        named: `NamedData`, one for each external constant.
        merged: `MergedDataMap`, for data in the program and in files beside it.
        buffer_alignment: alignment of `FreeableBuffer`, a member of `BackendDelegate` and `NamedData`.
        wide: alignment of 64-bit numbers.
    """

    pointer: int = 4
    evalue: int = 16
    tensor_impl: int = 32
    list: int = 12
    optional_tensor: int = 8
    chain: int = 16
    delegate: int = 40
    spec: int = 12
    span: int = 8
    tensor_meta: int = 12
    named: int = 40
    merged: int = 12
    buffer_alignment: int = 8
    wide: int = 8


ON_CORE = Sizes()
_MOST_AXES = 16
"""`kTensorDimensionLimit` of ExecuTorch; an axis takes a byte."""
HANDLES = {backend.backend_id: backend.firmware().handle_bytes for backend in BACKENDS.values() if backend.backend_id}
"""Bytes of a delegate's own handle, by backend."""


@dataclass(frozen=True)
class Pools:
    """Memory that a program needs at run time in addition to its own bytes.

    Attributes:
        planned: bytes of each planned memory: activations, and scratch of the core's kernels.
        method: bytes of the method allocator.
        temporary: bytes of the temporary allocator, with the largest scratch of a delegate.
        scratch: scratch of the delegates that need one, in order, within `temporary`.
        alignment: alignment of each pool: a line of the data cache.
        hot: numbers of the planned memories in a faster memory than the others, from 1.
        open: unknown figures, a sentence each.
        inside: minimum bytes for tensors inside of the NPU's partitions that are in no pool.
    """

    planned: tuple[int, ...]
    method: int
    temporary: int
    scratch: tuple[int, ...] = ()
    alignment: int = 32
    open: tuple[str, ...] = ()
    hot: tuple[int, ...] = ()
    inside: int = 0

    @property
    def total(self) -> int:
        return sum(self.planned) + self.method + self.temporary


def pools_of(plan: Plan, sizes: Sizes = ON_CORE) -> Pools:
    """Return the pools of a method."""
    scratch, unknown, inside = [], [], 0
    temporary = max((lookup_bytes(call.arguments, sizes) for call in plan.calls if call.operator), default=0)
    for delegate in plan.delegates:
        firmware = firmware_of(delegate.backend)
        if firmware is None:
            unknown.append(f"micronpu does not know what the delegate {delegate.backend} allocates.")
            continue
        need, sentence = firmware.temporary(delegate.payload)
        scratch.append(need)
        inside = max(inside, firmware.inside(delegate.payload))
        temporary = max(temporary, need)
        unknown += [sentence] if sentence else []
    return Pools(
        planned=plan.memories,
        method=method_bytes(plan, sizes),
        temporary=temporary,
        scratch=tuple(scratch),
        open=tuple(dict.fromkeys(unknown)),
        inside=inside,
    )


def pools_of_all(plans: Sequence[Plan], sizes: Sizes = ON_CORE) -> Pools:
    """Return the pools of all methods of a program, which share allocators and run one at a time."""
    every = [pools_of(plan, sizes) for plan in plans]
    return Pools(
        planned=tuple(max(row) for row in zip_longest(*(own.planned for own in every), fillvalue=0)),
        method=methods_bytes(plans, sizes),
        temporary=max(own.temporary for own in every),
        scratch=tuple(size for own in every for size in own.scratch),
        open=tuple(dict.fromkeys(line for own in every for line in own.open)),
        inside=max(own.inside for own in every),
    )


def methods_bytes(plans: Sequence[Plan], sizes: Sizes = ON_CORE, handles: Mapping[str, int] = HANDLES) -> int:
    """Return the bytes that one method allocator needs for several methods, in order."""
    used = 0
    for plan in plans:
        used = method_bytes(plan, sizes, handles, used)
    return used


def method_bytes(plan: Plan, sizes: Sizes = ON_CORE, handles: Mapping[str, int] = HANDLES, used: int = 0) -> int:
    """Return the bytes that the method allocator has allocated after a method is loaded.

    Args:
        handles: bytes that a delegate allocates when it is loaded, by backend.
        used: bytes allocated before.
    """

    def take(size: int, alignment: int) -> None:
        nonlocal used
        used = -(-used // alignment) * alignment + size

    word = sizes.pointer
    take(sizes.evalue * len(plan.values), sizes.wide)
    take(len(plan.inputs), 1)
    external = sum(v.external for v in plan.values)
    if external:
        take(sizes.named * external, sizes.buffer_alignment)
    for value in plan.values:
        for size, alignment in _value_bytes(value, sizes):
            take(size, alignment)
    take(sizes.delegate * len(plan.delegates), sizes.buffer_alignment)  # aligned even without delegates
    if needs_data(plan) and plan.named_data:
        take(sizes.merged, word)
    for delegate in plan.delegates:
        take(sizes.spec * len(delegate.specs), word)
        take(handles.get(delegate.backend, 0), word)
    take(sizes.chain * len(plan.chains), word)
    for chain in plan.chains:
        take(word * len(chain), word)
        take(sizes.span * len(chain), word)
        for call in chain:
            if call.arguments or call.kind in ("KernelCall", "DelegateCall"):
                take(word * len(call.arguments), word)
    return used


def _value_bytes(value: PlanValue, sizes: Sizes) -> list[tuple[int, int]]:
    """Return size and alignment of a value's allocations besides its `EValue`."""
    word = sizes.pointer
    if value.tensor is not None:
        rank = len(value.tensor.shape)
        own = [(4 * rank, 4), (rank, 1)] if value.tensor.dynamic else []
        return [*own, (4 * rank, 4), (sizes.tensor_impl, word)]
    if value.kind == "IntList":
        return [(word * value.length, word), (8 * value.length, sizes.wide), (sizes.list, word)]
    if value.kind in ("TensorList", "OptionalTensorList"):
        element = word if value.kind == "TensorList" else sizes.optional_tensor
        return [(element * value.length, word), (word * value.length, word), (sizes.list, word)]
    if value.kind in ("BoolList", "DoubleList", "String"):
        return [(sizes.span, word)]
    return []


def lookup_bytes(arguments: Sequence[int], sizes: Sizes = ON_CORE) -> int:
    """Return the bytes that the temporary pool must have to look up a kernel.

    `Method::resolve_operator` needs types and orders of axes of the arguments. It uses the temporary allocator only if
    that has space for the maximum rank of each, and otherwise, permanently, the method allocator.
    """
    return (sizes.tensor_meta + _MOST_AXES) * len(arguments)
