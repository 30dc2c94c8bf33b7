"""`micronpu deploy`: write a folder for the firmware from programs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from micronpu.base.arguments import check_switch, check_text
from micronpu.base.arrays import Array
from micronpu.base.errors import (
    InternalError,
    MicroNpuError,
    ModelError,
    NotOnHostError,
    OptionError,
    PayloadError,
    UnsupportedError,
)
from micronpu.base.files import check_name
from micronpu.base.installed import VERSION, installed
from micronpu.base.texts import plural
from micronpu.chips.core import ANY, runs_linux
from micronpu.deploy import csource, integration, kernels
from micronpu.deploy.csource import Facts, Limit, filled
from micronpu.deploy.folder import LICENSE, check_target, licensed, write_folder
from micronpu.deploy.image import crc_of_io
from micronpu.deploy.integration import (
    application,
    emulated_files,
    linux_files,
    program_sources,
    readme,
    shared_sources,
    vector_sources,
)
from micronpu.deploy.shared import (
    SHARED,
    ProgramSet,
    check_file_names,
    check_functions,
    check_shared,
    keeps_values,
    kept_memories,
    opened,
)
from micronpu.deploy.vectors import Vectors, bundle, from_arrays, from_rows, made_up
from micronpu.program.arenas import HOT, divided
from micronpu.program.digest import Digest, seal, state_of, unsealed
from micronpu.program.edit import strip
from micronpu.program.io import Meaning, ProgramIO, counts_of, file_facts_of, io_of, ranges_of, states_of
from micronpu.program.plan import Plan, files_of_delegates, read_plan, taken
from micronpu.program.plan_check import check_plan
from micronpu.program.pte import ELEMENT_BYTES
from micronpu.report.memory import Item, Region
from micronpu.targets.board import Board, Pools, pools_of, pools_of_all, whole_board, with_hot
from micronpu.targets.registry import BACKENDS, all_targets, find_target

SECTION = "network_model_sec"
"""Section of the program, with the name of Arm's examples."""


@dataclass(frozen=True)
class Source:
    """A program to deploy.

    Attributes:
        name: prefix of files and C names.
        vectors: arrays with a row per golden vector, one per input in order; ``output_0`` and so on may follow.
        rows: inputs of the program; the first few become the vectors if none are given.
        known: meaning of integer inputs and outputs, if the caller knows more than the file.
        run: computes a vector's outputs; default: this machine's ExecuTorch runtime.
        source: name of the program in messages.
        data_files: by file name; files that the program reads are included.
        methods: for a program with several methods, by name: `vectors`, `rows`, `known` and `run` of the method.
    """

    program: bytes
    name: str = "model"
    vectors: Mapping[str, Array] | None = None
    vectors_name: str = "the vectors"
    rows: Sequence[Sequence[Array]] | None = None
    rows_name: str = "calibration rows"
    known: tuple[Sequence[Meaning | None], Sequence[Meaning | None]] | None = None
    run: Callable[[Sequence[Array]], Sequence[Array]] | None = None
    source: str = "The program"
    data_files: Mapping[str, bytes] | None = None
    methods: Mapping[str, Source] | None = None

    def of(self, method: str) -> Source:
        own = (self.methods or {}).get(method)
        return replace(self, vectors=None, rows=None, known=None, run=None) if own is None else own


@dataclass(frozen=True)
class Deployment:
    """Result of `deploy_together`.

    Attributes:
        files: names of the files in it, in order.
        program_bytes: of each program for the board, by its name in C.
        pools: memory that the firmware must provide for all of them.
        vectors: number of golden vectors of all programs.
        notes: notes for the user, a sentence each.
        data: bytes of each file from which the programs read data.
    """

    folder: Path
    files: tuple[str, ...]
    programs: Mapping[str, int]
    pools: Pools
    board: Board
    vectors: int
    notes: tuple[str, ...]
    data: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        vectors = plural(self.vectors, "golden vector") if self.vectors else "no golden vectors"
        return f"{self.folder}: {len(self.files)} files, {vectors}; start with README.md."

    @property
    def program_bytes(self) -> int:
        """Bytes of all programs."""
        return sum(self.programs.values())

    @property
    def regions(self) -> tuple[Region, ...]:
        """The content of each memory of the chip."""
        items = [Item(f"the program, {name}.pte", size) for name, size in self.programs.items()]
        items += [Item(f"data, {file}", size) for file, size in self.data.items()]
        return self.board.regions(items, self.pools)


def deploy_together(
    sources: Sequence[Source],
    folder: str | os.PathLike[str],
    *,
    target: str | None = None,
    section: str = SECTION,
    force: bool = False,
    concurrent: bool = False,
    functions: Sequence[str] = (),
    hot: str | None = None,
) -> Deployment:
    """Write a folder with all that a firmware with these programs needs in addition to the runtime, reproducibly.

    Each kernel is registered once. Programs that run one after the other share the temporary pool and the planned
    memories, except those with states.

    Args:
        target: the board; default: the programs' target. Several, comma-separated, for NPUs of one core: each program
            uses the one that it was compiled for.
        concurrent: the programs may run at the same time, and share no memory.
        functions: C functions to add, of `micronpu.deploy.functions`.
        hot: a memory of the chip for the most used planned tensors, as far as they fit: "dtcm" or "dtcm=65536".
    """
    check_text("section", section)
    check_switch("force", force)
    check_switch("concurrent", concurrent)
    if not re.fullmatch(r"[A-Za-z_.][\w.$-]*", section, re.ASCII):
        raise OptionError(f"The section {section!r} is no name of a section.", hint=SECTION)
    if not sources:
        raise OptionError("There is no program to deploy.", hint="one or more files that `micronpu compile` wrote")
    chosen = check_functions(functions)
    path = check_name(folder)
    check_target(path, force=force)
    notes: list[str] = []
    programs, called, missing = [], {}, []
    for source in sources:
        check_text("name", source.name)
    check_file_names([source.name for source in sources])
    for source in sources:
        methods, own = _facts(source, target, section, notes)
        programs += [_divided(facts, source, hot) for facts in methods] if hot is not None else methods
        called.update({kernel.operator: kernel for kernel in own})
        missing += [file for facts in methods for file in taken(facts.plan, source.data_files or {})[1]]
    check_shared(programs, concurrent=concurrent)
    program_set = ProgramSet(tuple(programs), tuple(called.values()), concurrent, chosen)
    files = _files(program_set, missing)
    write_folder(path, files, force=force)
    return _deployed(path, program_set, tuple(files), notes, missing)


def _deployed(
    path: Path, program_set: ProgramSet, files: tuple[str, ...], notes: list[str], missing: Sequence[str]
) -> Deployment:
    programs = program_set.programs
    if not program_set.on_device:
        notes.insert(0, "The program runs on a laptop only: its NPU part is a reference container.")
    if missing:
        notes.append(f"The program looks up data in files that are not here: {', '.join(dict.fromkeys(missing))}.")
    sizes = {facts.file: len(facts.program) for facts in programs}
    data_sizes = {file: len(content) for facts in programs for file, content in facts.data}
    done = Deployment(path, files, sizes, program_set.pools, program_set.board, program_set.vectors, (), data_sizes)
    notes += program_set.pools.open
    if program_set.board.chip is None:
        notes.append(_no_chip(program_set.board))
    for region in done.regions:
        if region.over:
            note = f"The memory {region.name} of {program_set.board.name} is too small: {region.verdict}."
            notes.append(note + _second_memory(program_set, region))
    return replace(done, notes=tuple(dict.fromkeys(notes)))


def _no_chip(board: Board) -> str:
    """Return a note that sizes are unknown, with chips of the target"""
    what, chips = "No chip is named", ["TARGET"]
    if board.name:
        own, of = find_target(board.name), [t for t in all_targets().values() if t.chip is not None]
        fit = (t for t in of if t.backend == own.backend and own.silicon in (t.silicon, t.chip and t.chip.core))
        what, chips = f"{board.name} is no chip", [t.chip.name for t in fit if t.chip]
    names = ", ".join([*dict.fromkeys(chips), "CHIP.toml (a chip file)"])
    unknown = "sizes of memories and the NPU's address" if board.accelerator else "sizes of memories"
    return f"{what}: {unknown} are unknown. Try: --for {names}."


def _second_memory(program_set: ProgramSet, region: Region) -> str:
    """Return a hint at a memory that is large enough for a part of the planned tensors, or ""."""
    board = program_set.board
    if region.name != board.sram or board.hot or sum(program_set.pools.planned) < region.over or board.chip is None:
        return ""
    sizes = {m.name: m.bytes for m in board.chip.memories}
    room = [n for n in board.beside_sram if n not in ("itcm", "npu_itcm", board.far) and sizes[n] >= region.over]
    return f" --hot {room[0]} places planned tensors there as well." if room else ""


def _facts(
    source: Source, target: str | None, section: str, notes: list[str]
) -> tuple[list[Facts], tuple[kernels.Kernel, ...]]:
    """Return the facts about each method of a program, and the kernels that they call."""
    check_c_name(source.name)
    plans, summary = opened(source.program, source.source)
    several = len(plans) > 1
    if source.vectors is not None and several:
        raise OptionError(
            f"The vectors are for one method, and {source.source} has {len(plans)}: {_listed(plans)}.",
            hint='without vectors, or in Python vectors={"METHOD": {...}}',
        )
    if several and any(1 in kept_memories(plan) for plan in plans):
        raise UnsupportedError(
            f"{source.source} keeps values in the first planned memory, which its methods {_listed(plans)} share: one "
            "would overwrite what the other keeps.",
            hint="micronpu.compile of the methods; in ExecuTorch MemoryPlanningPass(share_mutable_buffers=True)",
        )
    # A state of several methods has the same place in each; any other is reset together with them.
    states = {(s.memory, s.offset): s for plan in plans for s in states_of(plan, summary.named_data)}
    for plan in plans:
        _check_names(source.source, plan, [state.name for state in states.values()])
    board = whole_board(plans, target, source.source)
    stripped = strip(unsealed(source.program), name=source.source)
    whole = Facts(
        name=source.name,
        file=source.name,
        header=f"{source.name}: made by micronpu {VERSION} for {board.name or ANY}. Do not edit.",
        section=section,
        program=stripped,
        sha256=hashlib.sha256(stripped).hexdigest(),
        versions=_versions(),
        plan=plans[0],
        pools=pools_of_all(plans),
        board=board,
        inputs=(),
        outputs=(),
        vectors=None,
        states=tuple(states.values()),
        io_crc=crc_of_io(plans, summary.named_data),
        data=tuple({k: v for plan in plans for k, v in taken(plan, source.data_files or {})[0].items()}.items()),
    )
    methods, called = [], {}
    for plan in plans:
        own = source.of(plan.name) if several or source.methods else source
        name = f"{source.name}_{plan.name}" if several else source.name
        facts = _of_method(whole, own, plan, io_of(plan, summary.named_data, own.known), name, notes)
        named = file_facts_of(summary.named_data, plan.name)
        methods.append(replace(facts, limits=_limits(facts, summary.named_data), file_facts=named))
        found, said = _called(plan)
        called.update({kernel.operator: kernel for kernel in found})
        notes += said
    return methods, tuple(called.values())


def _of_method(
    whole: Facts,
    source: Source,
    plan: Plan,
    tensors: tuple[tuple[ProgramIO, ...], tuple[ProgramIO, ...]],
    name: str,
    notes: list[str],
) -> Facts:
    inputs, outputs = tensors
    for io in (*inputs, *outputs):
        if not csource.is_known(io):
            raise UnsupportedError(
                f"The {io.name.replace('_', ' ')} of the program is {io.tensor.dtype}, which C has no type for.",
                hint="float32 inputs and outputs, or io='int8'",
            )
    if not inputs or not outputs:
        raise ModelError(
            f"{source.source} has no {'outputs' if inputs else 'inputs'}.", hint="a program that computes something"
        )
    made, problem = _vectors(source, plan.name, inputs, outputs)
    notes += [problem] if problem else []
    return replace(whole, name=name, plan=plan, inputs=inputs, outputs=outputs, vectors=made)


def _limits(facts: Facts, named_data: dict[str, bytes]) -> tuple[Limit, ...]:
    """Return the limits of integers that select rows."""
    found = []
    for number, below in ranges_of(named_data, facts.plan.name).items():
        if 0 <= number < len(facts.inputs) and (io := facts.inputs[number]).tensor.dtype in _POSITIONS:
            found.append(Limit(number, io.elements, io.tensor.dtype, below))
    states = states_of(facts.plan, named_data)
    for number, size, _, _ in counts_of(named_data, facts.plan.name):
        if size is not None and 0 <= number < len(states) and (state := states[number]).dtype in _POSITIONS:
            count = len(state.initial) // ELEMENT_BYTES[state.dtype]
            found.append(Limit(None, count, state.dtype, size, state.memory, state.offset))
    return tuple(found)


_POSITIONS = ("int32", "int64")


def _listed(plans: Sequence[Plan]) -> str:
    return ", ".join(plan.name for plan in plans)


def _divided(facts: Facts, source: Source, hot: str) -> Facts:
    """Return a program with its planned tensors in two memories by use, or all of them in the faster one."""
    board = with_hot(facts.board, hot)
    memories = facts.pools.planned
    if not facts.is_whole:
        raise UnsupportedError(
            f"{source.source} has several methods, whose planned memories are not divided.", hint="without --hot"
        )
    if len(memories) == 1 and memories[0] <= board.hot_bytes:
        return replace(facts, board=board, pools=replace(facts.pools, hot=(1,)))
    if keeps_values(facts):
        raise UnsupportedError(
            f"{source.source} keeps values in its planned memory from call to call, which is not divided.",
            hint="without --hot",
        )
    made = divided(facts.program, board.hot_bytes, source.source)
    check_plan(made, source.source, facts.plan.name, external=True)
    _check_the_same(facts, made, source.source)
    plan, _ = read_plan(made)
    digest = hashlib.sha256(made).hexdigest()
    pools = replace(pools_of(plan), hot=(HOT,))
    return replace(facts, program=made, sha256=digest, plan=plan, pools=pools, board=board)


def _check_the_same(facts: Facts, made: bytes, name: str) -> None:
    """Run the golden vectors before and after, if this machine can run the program.

    Raises:
        InternalError: a result differs.
    """
    before, after = _host(facts.program, facts.plan.name), _host(made, facts.plan.name)
    for row in facts.vectors.inputs if facts.vectors is not None else ():
        with contextlib.suppress(MicroNpuError):
            pairs = list(zip(before(row), after(row), strict=True))
            if any(one.tobytes() != other.tobytes() for one, other in pairs):
                break
    else:
        return
    raise InternalError(f"{name} computes another result with its tensors in two memories.", hint="without --hot")


def check_c_name(name: str) -> None:
    """Refuse invalid names of a program in C."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise OptionError(f"The name {name!r} is none in C.", hint="letters, digits and underscores, such as keywords")
    if len(name) > 63:  # C11, 5.2.4.1
        raise OptionError(f"The name {name[:20]}... has {len(name)} letters.", hint="at most 63, as C tells them apart")
    if name in csource.RESERVED:
        raise OptionError(f"The name {name!r} means something else in C, C++ or a linker script.", hint=f"{name}_model")
    if name == SHARED or name.startswith(f"{SHARED}_"):
        raise OptionError(
            f"The name {name!r} is that of the folder's own files.", hint="another name, such as keywords"
        )


def _check_names(source: str, plan: Plan, states: Sequence[str]) -> None:
    """Refuse names in the program that are unsafe in C, CMake, YAML and Markdown."""
    for what, rule, names in (
        ("method", r"[A-Za-z_]\w*", (plan.name,)),
        ("operator", r"[\w:.]+", plan.operators),
        ("state", r"[\w.\-+ :@]+", states),
        ("file of data", r"[\w\-+][\w.\-+]*", files_of_delegates(plan)),
    ):
        for name in names:
            if not re.fullmatch(rule, name, re.ASCII):
                raise PayloadError(
                    f"{source} has a {what} called {name!r}, which cannot be in the sources of a firmware.",
                    hint="compile the model again, with another name",
                )


def _versions() -> dict[str, str]:
    tools = ("executorch", *(tool for backend in BACKENDS.values() for tool in backend.tools))
    return {"micronpu": VERSION} | {tool: version for tool in tools if (version := installed(tool))}


def _called(plan: Plan) -> tuple[tuple[kernels.Kernel, ...], list[str]]:
    """Return the kernels, and notes about those that ExecuTorch does not have."""
    found: list[kernels.Kernel] = []
    notes = []
    for operator in plan.operators:
        try:
            found += kernels.kernels_of((operator,))
        except UnsupportedError as error:
            notes.append(str(error))
    return tuple(found), notes


def _vectors(
    source: Source, method: str, inputs: tuple[ProgramIO, ...], outputs: tuple[ProgramIO, ...]
) -> tuple[Vectors | None, str]:
    """Return the golden vectors of a method, starting with the initial states; or the reason why there are none."""
    run = source.run or _host(source.program, method)
    if source.vectors is not None:
        return from_arrays(source.vectors, inputs, outputs, run, source.vectors_name), ""
    try:
        return (from_rows(source.rows, inputs, run, source.rows_name) if source.rows else made_up(inputs, run)), ""
    except MicroNpuError as error:
        if isinstance(error, PayloadError) and not isinstance(error, NotOnHostError):
            raise  # the board would refuse it as well
        return None, (
            f"There are no golden vectors, and so no application that runs them, because this machine cannot run the "
            f"program: {error.what}"
        )


def _host(program: bytes, method: str) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Return a function that runs the program in this machine's ExecuTorch, which is loaded on first use."""
    loaded: list[Any] = []

    def run(row: Sequence[Array]) -> Sequence[Array]:
        from micronpu.runtime import ArrayProgram, RunOptions

        if not loaded:
            # Run it in a separate process, like one from a file, unless its digest is right.
            isolated = state_of(program) is not Digest.RIGHT
            loaded.append(ArrayProgram(program, RunOptions(isolated=isolated), method=method))
        return tuple(loaded[0].run_arrays(*row))

    return run


def _files(program_set: ProgramSet, missing: list[str]) -> dict[str, bytes]:
    """Return the contents of the folder, by name."""
    if runs_linux(program_set.board.core):
        return licensed(linux_files(program_set, missing))
    texts = shared_sources(program_set)
    binary = {file: content for facts in program_set.programs for file, content in facts.data}
    for methods in program_set.groups:
        texts |= program_sources(methods, program_set)
        binary[f"{methods[0].file}.pte"] = seal(methods[0].program)
    for facts in program_set.programs:
        if facts.vectors is not None:
            texts |= vector_sources(facts, facts.vectors)
            bundled = bundle(facts.program, facts.plan.name, facts.inputs, facts.outputs, facts.vectors)
            binary[f"{facts.name}.bpte"] = bundled
    texts["micronpu_kernels.cpp"] = filled("kernels.cpp", program_set, kernels=program_set.kernels)
    texts["selected_operators.yaml"] = filled(
        "selected_operators.yaml",
        program_set,
        operators={
            name: sorted({key for facts in program_set.programs for key in kernels.kernel_keys(facts.plan, name)})
            for name in sorted(program_set.operators)
        },
    )
    texts["micronpu_sections.ld"] = integration.sections(program_set)
    sections = dict.fromkeys(facts.section for facts in program_set.programs)
    texts |= emulated_files(
        *(program_set.board.core, program_set.board.flags, sections, program_set.header),
        resident=program_set.board.is_resident,
    )
    if program_set.vectors:
        texts["main.cpp"] = application(program_set)
        texts["CMakeLists.txt"] = integration.cmake(program_set)
        texts |= integration.zephyr(program_set)
        texts["micronpu.clayer.yml"] = integration.clayer(program_set)
    names = sorted([*texts, *binary, LICENSE, "README.md"])
    texts["README.md"] = readme(program_set, names, missing)
    return licensed(binary | {file: text.encode() for file, text in texts.items()})
