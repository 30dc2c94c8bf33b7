"""Programs of one firmware: reading and verifying them, shared memory, and memory of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from micronpu.base.arguments import strings
from micronpu.base.errors import OptionError, PayloadError, UnsupportedError
from micronpu.chips.core import ANY
from micronpu.deploy.csource import Facts, rendered
from micronpu.deploy.kernels import Kernel, kernels_of
from micronpu.program.digest import Digest, state_of
from micronpu.program.plan import Plan, PlanValue, read_plan
from micronpu.program.plan_check import check_plan
from micronpu.program.pte import ELEMENT_BYTES, PteSummary
from micronpu.report.memory import Item
from micronpu.targets.board import Board, Pools
from micronpu.targets.firmware import Firmware, Started

SHARED = "micronpu"
"""Prefix of names that all programs of a folder share."""
LINE = 32
"""Bytes of a line of the core's data cache, to which pools are aligned and padded."""


@dataclass(frozen=True)
class Array:
    """A pool or memory of the firmware.

    Attributes:
        name: in C.
        size: bytes.
        section: its section in the linker script.
    """

    name: str
    size: int
    section: str
    what: str

    @property
    def padded(self) -> int:
        """Bytes with the padding to whole lines of the data cache."""
        return -(-max(self.size, 1) // LINE) * LINE


@dataclass(frozen=True)
class ProgramSet:
    """The programs of a folder.

    Attributes:
        programs: in the order of the arguments.
        kernels: all kernels that they call.
        concurrent: they may run at the same time, and share no memory.
        functions: names of the included functions of `micronpu.deploy.functions`.
    """

    programs: tuple[Facts, ...]
    kernels: tuple[Kernel, ...]
    concurrent: bool = False
    functions: tuple[str, ...] = ()
    name: ClassVar[str] = SHARED
    upper: ClassVar[str] = SHARED.upper()

    @property
    def board(self) -> Board:
        """The most specific board of the programs: with an NPU, or at least a name."""
        boards = [facts.board for facts in self.programs]
        return max(boards, key=lambda board: (bool(board.accelerator), bool(board.name)))

    @property
    def place(self) -> str:
        """Name of the board for the user."""
        return self.board.chip.title if self.board.chip is not None else self.board.name or ANY

    @property
    def on_device(self) -> bool:
        """False if a program runs only on the host."""
        return all(facts.board.on_device for facts in self.programs)

    @property
    def vectors(self) -> int:
        """Number of golden vectors of all programs."""
        return sum(len(facts.vectors) for facts in self.programs if facts.vectors is not None)

    @property
    def reads_files(self) -> bool:
        """True if a program reads data from files."""
        return any(facts.data for facts in self.programs)

    @property
    def release(self) -> str:
        """Release of ExecuTorch that made the programs."""
        return self.programs[0].versions.get("executorch", "1.5.1").partition("+")[0]

    @property
    def groups(self) -> list[tuple[Facts, ...]]:
        found: dict[str, list[Facts]] = {}
        for facts in self.programs:
            found.setdefault(facts.file, []).append(facts)
        return [tuple(methods) for methods in found.values()]

    @property
    def file_names(self) -> list[str]:
        return [methods[0].file for methods in self.groups]

    @property
    def firmware(self) -> list[Firmware]:
        found = {type(firmware): firmware for facts in self.programs for firmware in facts.firmware}
        return list(found.values())

    @property
    def started(self) -> tuple[Started, ...]:
        """The NPUs that the firmware starts, each once: none for a core that is no Cortex-M, or the host."""
        boards = [facts.board for facts in self.programs]
        found = {(b.accelerator, b.name): b for b in boards if b.accelerator and b.on_device and b.has_start_up}
        return tuple(Started(b.accelerator, b.chip, b.fast_scratch) for b in found.values())

    def npu(self, facts: Facts) -> int | None:
        """Return the index of a program's NPU among those that the firmware starts."""
        one = Started(facts.board.accelerator, facts.board.chip, facts.board.fast_scratch)
        return self.started.index(one) if one in self.started else None

    @property
    def start_up(self) -> dict[str, str]:
        pools = [(a.name, a.size) for a in self.arrays if a.section == ".micronpu.scratch" and a.size]
        found: dict[str, str] = {}
        for firmware in self.firmware if self.started else ():
            found |= start_up_sources(firmware, self.header, self.started, pools)
        return found

    @property
    def header(self) -> str:
        """First line of the files that all programs share."""
        return self.programs[0].header.partition(": ")[2].join(("micronpu: ", ""))

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that any program calls, each once, in order."""
        return tuple(dict.fromkeys(o for facts in self.programs for o in facts.plan.operators))

    def planned(self, facts: Facts) -> list[Array]:
        """Return the planned memories of a program; those with states are not shared, since values persist in them."""
        own = self.concurrent or self._keeps_values(facts) or len(self.groups) == 1
        prefix = facts.file if own else SHARED
        sharing = [facts] if own else [f for f in self.programs if not self._keeps_values(f)]
        found = []
        for number in range(len(facts.pools.planned)):
            size = max(f.pools.planned[number] for f in sharing if number < len(f.pools.planned))
            whose = f" of {facts.file}" if own and len(self.groups) > 1 else ""
            what = f"planned memory {number + 1}{whose}"
            section = ".micronpu.hot" if number + 1 in facts.pools.hot else ".micronpu.pools"
            found.append(Array(f"{prefix}_planned_{number + 1}", size, section, what))
        return found

    def _keeps_values(self, facts: Facts) -> bool:
        """Return True if values persist in memories of any method of a program."""
        return any(keeps_values(own) for own in self.programs if own.file == facts.file)

    def method(self, facts: Facts) -> Array:
        """Return the pool of a program's method allocator."""
        whose = f" of {facts.file}" if len(self.groups) > 1 else ""
        return Array(
            f"{facts.file}_method_pool", facts.pools.method, ".micronpu.pools", f"pool of the method allocator{whose}"
        )

    def temporary(self, facts: Facts) -> Array:
        """Return the pool of the temporary allocator: programs that run one after the other share the largest."""
        own = self.concurrent or len(self.groups) == 1
        size = facts.pools.temporary if own else max(f.pools.temporary for f in self.programs)
        whose = f" of {facts.file}" if own and len(self.groups) > 1 else ""
        prefix = facts.file if own else SHARED
        return Array(f"{prefix}_temporary_pool", size, ".micronpu.scratch", f"pool of the temporary allocator{whose}")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All memories that the firmware must provide, each once."""
        found: dict[str, Array] = {}
        for facts in self.programs:
            for array in (*self.planned(facts), self.method(facts), self.temporary(facts)):
                found[array.name] = array
        return tuple(found.values())

    @property
    def pools(self) -> Pools:
        arrays = self.arrays
        planned = [a for a in arrays if "_planned_" in a.name]
        temporary = [a.size for a in arrays if a.section == ".micronpu.scratch"]
        return Pools(
            planned=tuple(a.size for a in planned),
            hot=tuple(number for number, a in enumerate(planned, 1) if a.section == ".micronpu.hot"),
            method=sum(methods[0].pools.method for methods in self.groups),
            temporary=sum(temporary),
            scratch=tuple(size for methods in self.groups for size in methods[0].pools.scratch),
            alignment=max(LINE, *(facts.pools.alignment for facts in self.programs)),
            open=tuple(dict.fromkeys(line for facts in self.programs for line in facts.pools.open)),
            inside=(sum if self.concurrent else max)(facts.pools.inside for facts in self.programs),
        )

    @property
    def files(self) -> list[Item]:
        every = [methods[0] for methods in self.groups]
        return [Item(f"the program, {facts.file}.pte", len(facts.program)) for facts in every] + [
            Item(f"data, {file}", len(content)) for facts in every for file, content in facts.data
        ]


def start_up_sources(
    firmware: Firmware, header: str, started: Sequence[Started], pools: Sequence[tuple[str, int]]
) -> dict[str, str]:
    """Return the sources, by name, that start the accelerators of a delegate; see `StartUp`."""
    made = firmware.start_up(started)
    return {name: rendered(text, HEADER=header, pools=pools, **made.words) for name, text in made.templates.items()}


def keeps_values(facts: Facts) -> bool:
    """Return True if values persist in a program's planned memories from call to call.

    States of this package are recorded in the program. A buffer of a program made by ExecuTorch alone is not: it is a
    tensor that is read before it is written.
    """
    return bool(facts.states or kept_memories(facts.plan))


def kept_memories(plan: Plan) -> set[int]:
    """Return the planned memories in which values persist between calls of a method."""
    found = {value.planned for value in plan.values if value.initial is not None and value.planned}
    written = [_place(plan.values[index]) for index in plan.inputs]
    for call in plan.calls:
        # Operands and results of a delegate look alike; states of programs with delegates of this package are known.
        outs = _written(call.operator, call.arguments) if call.operator else set(call.arguments)
        for value in (plan.values[index] for index in call.arguments if index not in outs):
            memory, first, _ = _place(value)
            # A view is not written by a call: it is a part of another tensor.
            if memory and not any(m == memory and begin <= first < end for m, begin, end in written):
                found.add(memory)
        written += [_place(plan.values[index]) for index in outs]
    return found


def _place(value: PlanValue) -> tuple[int, int, int]:
    """Return the planned memory of a tensor, and the offsets of its first byte and behind its last; memory 0: none."""
    if value.tensor is None or not value.planned:
        return 0, 0, 0
    size = prod(value.tensor.shape) * ELEMENT_BYTES.get(value.tensor.dtype, 0)
    return value.planned, value.offset, value.offset + size


def _written(operator: str, arguments: Sequence[int]) -> set[int]:
    try:
        (kernel,) = kernels_of((operator,))
    except (UnsupportedError, ValueError):  # a custom kernel, or one of the runtime
        return set(arguments[-1:])
    return {index for index, (kind, _) in zip(arguments, kernel.arguments, strict=False) if kind.startswith("out")}


FUNCTIONS = ("resize", "ssd_decode", "nms", "smooth", "topk")
"""C functions that can be added to the programs; their definitions are in `micronpu.deploy.functions`."""


def check_functions(given: Sequence[str]) -> tuple[str, ...]:
    """Check names of functions."""
    names = strings("functions", given)
    for name in names:
        if name not in FUNCTIONS:
            raise OptionError(f"There is no function `{name}`.", hint=f"one of {', '.join(FUNCTIONS)}")
        if names.count(name) > 1:
            raise OptionError(f"The function `{name}` is named twice.", hint="each once")
    return names


def check_file_names(names: Sequence[str]) -> None:
    """Refuse two programs of one name, even if they differ only in case."""
    taken = Counter(name.lower() for name in names)
    for name in names:
        if taken[name.lower()] > 1:
            raise OptionError(
                f"Two programs have the name {name} in C.", hint="files of different names, or --name a,b"
            )


def check_shared(programs: Sequence[Facts], *, concurrent: bool = False) -> None:
    """Refuse programs that cannot be in one firmware."""
    _check_names(programs)
    several = [facts.file for facts in programs if not facts.is_whole]
    if concurrent and several:
        raise OptionError(
            f"The methods of {several[0]} share their memories, so that they do not run at the same time.",
            hint="without --concurrent",
        )
    if concurrent and len({facts.board.accelerator for facts in programs} - {""}) > 1:
        raise OptionError(
            "Programs for different NPUs do not run at the same time here: the driver takes whichever NPU is free.",
            hint="without --concurrent",
        )
    contents: dict[str, tuple[str, bytes]] = {}
    for facts in programs:
        for file, content in facts.data:
            owner, first = contents.setdefault(file, (facts.name, content))
            if first != content:
                raise OptionError(
                    f"{owner} and {facts.name} look up other data in files of one name, {file}.",
                    hint="external_weights with another name for one of them",
                )
    beside = all(_side_by_side(programs[0].board, facts.board) for facts in programs)
    for what in ("core", "memory_mode") if beside else ("name", "core", "accelerator", "memory_mode"):
        # A program without this information, such as one without an NPU, is compatible with any other.
        known = [(facts.name, said) for facts in programs if (said := getattr(facts.board, what))]
        for name, said in known:
            if said != known[0][1]:
                word = "target" if what == "name" else what.replace("_", " ")
                raise OptionError(
                    f"The programs are for different boards: {known[0][0]} has the {word} {known[0][1]}, {name} has "
                    f"{said}.",
                    hint="--for TARGET, or programs compiled for one target; NPUs that one core drives go together as "
                    "--for alif-e8,alif-e8-hp",
                )


def _check_names(programs: Sequence[Facts]) -> None:
    """Refuse methods whose files, or names in C, collide with others."""
    several = [facts for facts in programs if not facts.is_whole]
    own = {file: [file, f"{file}_data"] for file in (facts.file for facts in several)}
    names = [facts.name for facts in programs] + [f"{facts.name}_vectors" for facts in several]
    check_file_names([*names, *(name for group in own.values() for name in group)])


def _side_by_side(one: Board, other: Board) -> bool:
    """Return True if the NPUs of two boards are in one chip and driven by one core."""
    if one.chip is None or other.chip is None or not (one.accelerator and other.accelerator):
        return False
    cores = [board.chip.same_core_as or board.chip.name for board in (one, other) if board.chip is not None]
    return cores[0] == cores[1]


def opened(program: bytes, source: str) -> tuple[tuple[Plan, ...], PteSummary]:
    """Return the plan of each method of a `.pte` in the file's order, and the summary of the file."""
    plan, summary = read_plan(program, name=source)
    if state_of(program, source) is Digest.WRONG:
        raise PayloadError(
            f"{source} is damaged: it is not what its own digest says.", hint="copy the file again, or compile again"
        )
    names = list(summary.methods) if len(summary.methods) > 1 else [plan.name]
    plans = tuple(read_plan(program, name=source, method=name)[0] for name in names)
    for plan in plans:
        check_plan(program, source, plan.name, external=True)
    return plans, summary
