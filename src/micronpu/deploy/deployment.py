"""`deploy`: a program in, a folder for the firmware engineer out."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from micronpu.base.arguments import check_switch, check_text
from micronpu.base.errors import MicroNpuError, ModelError, OptionError, PayloadError, UnsupportedError
from micronpu.base.files import check_name
from micronpu.base.installed import VERSION
from micronpu.base.parsing import parse_json
from micronpu.deploy import csource, integration, kernels
from micronpu.deploy.board import Board, board_of
from micronpu.deploy.bundled import bundle
from micronpu.deploy.csource import Facts
from micronpu.deploy.folder import check_target, write_folder
from micronpu.deploy.pools import Pools, pools_of
from micronpu.deploy.readme import readme
from micronpu.deploy.vectors import Array, Vectors, from_arrays, from_rows, made_up
from micronpu.program.border import Border, Meaning, borders_of
from micronpu.program.digest import Digest, seal, state_of, unsealed
from micronpu.program.plan import Plan, read_plan
from micronpu.program.plan_check import check_plan
from micronpu.program.states import states_of
from micronpu.program.strip import strip

SECTION = "network_model_sec"
"""Section of the program: the name that Arm's examples use."""
_VERSIONED = ("executorch", "ethos-u-vela")


@dataclass(frozen=True)
class Deployment:
    """What `deploy` wrote.

    Attributes:
        folder: where.
        files: names in it, in order.
        program_bytes: of the program for the board.
        notes: what the user should know, a sentence each.
    """

    folder: Path
    files: tuple[str, ...]
    program_bytes: int
    pools: Pools
    board: Board
    vectors: int
    notes: tuple[str, ...]


def deploy(
    program: bytes,
    folder: str | os.PathLike[str],
    *,
    target: str | None = None,
    vectors: Mapping[str, Array] | None = None,
    vectors_name: str = "the vectors",
    rows: Sequence[Sequence[Array]] | None = None,
    rows_name: str = "calibration rows",
    known: tuple[Sequence[Meaning | None], Sequence[Meaning | None]] | None = None,
    run: Callable[[Sequence[Array]], Sequence[Array]] | None = None,
    name: str = "model",
    section: str = SECTION,
    force: bool = False,
    source: str = "The program",
    data_files: Mapping[str, bytes] | None = None,
) -> Deployment:
    """Writes a folder with all that the firmware needs beside the runtime: the same bytes every time.

    Args:
        program: a `.pte`.
        folder: which is new or empty.
        target: the board; what the program was compiled for unless given.
        vectors: arrays with a row per golden vector, one per input in order; ``output_0`` and so on may follow.
        rows: inputs of the program, of which the first few become the vectors where none are given.
        known: what integer inputs and outputs mean, where the caller knows better than the file.
        run: computes a vector's outputs; this machine's ExecuTorch runtime unless given.
        name: of files and C names.
        section: in which the program stands in the firmware.
        force: write into a folder that holds files.
        source: what to call the program in messages.
        data_files: by file name; what the program looks up by name is taken along.

    Raises:
        MicroNpuError: the program is damaged, the target cannot take it, vectors do not fit, or the folder holds files.
    """
    check_text("name", name)
    check_text("section", section)
    check_switch("force", force)
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise OptionError(f"The name {name!r} is none in C.", hint="letters, digits and underscores, such as keywords")
    if name in csource.RESERVED:
        raise OptionError(f"The name {name!r} means something else in C, C++ or a linker script.", hint=f"{name}_model")
    if not re.fullmatch(r"[A-Za-z_.][\w.$-]*", section, re.ASCII):
        raise OptionError(f"The section {section!r} is no name of a section.", hint=SECTION)
    path = check_name(folder)
    check_target(path, force=force)
    plan, summary = read_plan(program, name=source)
    if state_of(program, source) is Digest.WRONG:
        raise PayloadError(
            f"{source} is damaged: it is not what its own digest says.", hint="copy the file again, or compile again"
        )
    if len(summary.methods) > 1:
        # Pools, header and vectors are those of one method; sizes that leave the others out would fail on the board.
        raise UnsupportedError(
            f"{source} has {len(summary.methods)} methods ({', '.join(sorted(summary.methods))}), and the folder is "
            "written for one.",
            hint="a program of each method, each deployed with a --name of its own",
        )
    check_plan(program, source, plan.name)
    states = states_of(plan, summary.named_data)
    _check_names(source, plan, [state.name for state in states])
    board = board_of(plan, target)
    inputs, outputs = borders_of(plan, summary.named_data, known)
    for border in (*inputs, *outputs):
        _check(border)
    if not inputs or not outputs:
        raise ModelError(
            f"{source} has no {'outputs' if inputs else 'inputs'}.", hint="a program that computes something"
        )
    called, notes = _called(plan)
    made, problem = _vectors(vectors, vectors_name, rows, rows_name, inputs, outputs, run or _host(program))
    stripped = strip(unsealed(program), name=source)
    facts = Facts(
        name=name,
        header=f"{name}: made by micronpu {VERSION} for {board.name or 'a Cortex-M'}. Do not edit.",
        section=section,
        program=stripped,
        sha256=hashlib.sha256(stripped).hexdigest(),
        versions=_versions(),
        plan=plan,
        pools=pools_of(plan),
        board=board,
        inputs=inputs,
        outputs=outputs,
        vectors=made,
        states=states,
    )
    wanted = _external(plan)
    beside = {file: data for file, data in (data_files or {}).items() if file in wanted}
    files = _files(facts, called, beside, [file for file in wanted if file not in beside])
    write_folder(path, files, force=force)
    if not board.on_device:
        notes.insert(0, "The program runs on a laptop only: its NPU part is a reference container.")
    notes += [*facts.pools.open, *([problem] if problem else [])]
    for region in board.regions(len(stripped), facts.pools):
        if region.over:
            notes.append(f"The memory {region.name} of {board.name} is too small: {region.verdict}.")
    return Deployment(
        path, tuple(files), len(stripped), facts.pools, board, len(made) if made is not None else 0, tuple(notes)
    )


def _check_names(source: str, plan: Plan, states: Sequence[str]) -> None:
    """Refuses names out of the program that would be more than names in C, CMake, YAML and Markdown.

    Raises:
        PayloadError: there is one.
    """
    for what, rule, names in (
        ("method", r"[A-Za-z_]\w*", (plan.name,)),
        ("operator", r"[\w:.]+", plan.operators),
        ("state", r"[\w.\-+ :@]+", states),
    ):
        for name in names:
            if not re.fullmatch(rule, name, re.ASCII):
                raise PayloadError(
                    f"{source} has a {what} called {name!r}, which cannot stand in the sources of a firmware.",
                    hint="compile the model again, with another name",
                )


def _versions() -> dict[str, str]:
    """Versions of the tools, as far as they are installed."""
    found = {"micronpu": VERSION}
    for tool in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[tool] = metadata.version(tool)
    return found


def _check(border: Border) -> None:
    if not csource.is_known(border):
        raise UnsupportedError(
            f"The {border.name.replace('_', ' ')} of the program is {border.tensor.dtype}, which C has no type for.",
            hint="float32 inputs and outputs, or io='int8'",
        )


def _called(plan: Plan) -> tuple[tuple[kernels.Kernel, ...], list[str]]:
    """The kernels, and what to say where one is none of ExecuTorch's."""
    found: list[kernels.Kernel] = []
    notes = []
    for operator in plan.operators:
        try:
            found += kernels.kernels_of((operator,))
        except UnsupportedError as error:
            notes.append(str(error))
    return tuple(found), notes


def _external(plan: Plan) -> list[str]:
    """Names of the files in which the program looks up data by name."""
    found = []
    for delegate in plan.delegates:
        for key, value in delegate.specs:
            if key.startswith("external_"):
                try:
                    file = parse_json(value)
                except ValueError:
                    continue
                found += [f"{file}.ptd"] if isinstance(file, str) and file else []
    return list(dict.fromkeys(found))


def _vectors(
    arrays: Mapping[str, Array] | None,
    arrays_name: str,
    rows: Sequence[Sequence[Array]] | None,
    rows_name: str,
    inputs: tuple[Border, ...],
    outputs: tuple[Border, ...],
    run: Callable[[Sequence[Array]], Sequence[Array]],
) -> tuple[Vectors | None, str]:
    """The golden vectors, or why there are none."""
    if arrays is not None:
        return from_arrays(arrays, inputs, outputs, run, arrays_name), ""
    try:
        return (from_rows(rows, inputs, run, rows_name) if rows else made_up(inputs, run)), ""
    except MicroNpuError as error:
        return None, f"There are no golden vectors, because this machine cannot run the program: {error.what}"


def _host(program: bytes) -> Callable[[Sequence[Array]], Sequence[Array]]:
    """Runs the program in this machine's ExecuTorch, which is loaded when it is first needed."""
    loaded: list[Any] = []

    def run(row: Sequence[Array]) -> Sequence[Array]:
        from micronpu.runtime import ArrayProgram, RunOptions

        if not loaded:
            # As one from a file: in a process of its own, unless its digest says that it is whole.
            loaded.append(ArrayProgram(program, RunOptions(isolated=state_of(program) is not Digest.RIGHT)))
        return tuple(loaded[0].run_arrays(*row))

    return run


def _files(
    facts: Facts, called: tuple[kernels.Kernel, ...], data_files: dict[str, bytes], missing: list[str]
) -> dict[str, bytes]:
    """The contents of the folder, by name."""
    name = facts.name
    comment = f"// {facts.header}\n"
    texts = {
        f"{name}.S": csource.assembly(facts),
        f"{name}_data.h": csource.data_header(facts),
        f"{name}.h": csource.header(facts),
        f"{name}_kernels.cpp": kernels.registration(called, comment),
        "selected_operators.yaml": kernels.selected_operators(facts.plan),
    }
    binary = {"model.pte": seal(facts.program), **data_files}
    if facts.vectors is not None:
        texts[f"{name}_vectors.h"] = csource.vectors_header(facts, facts.vectors)
        texts[f"{name}_vectors.c"] = csource.vectors_source(facts, facts.vectors)
        texts["main.cpp"] = csource.application(facts)
        texts["CMakeLists.txt"] = integration.cmake(facts, called)
        texts |= integration.zephyr(facts, called)
        binary["model.bpte"] = bundle(facts.program, facts.plan.name, facts.inputs, facts.outputs, facts.vectors)
    texts[f"{name}_sections.ld"] = integration.sections(facts)
    if facts.vectors is not None:
        texts[f"{name}.clayer.yml"] = integration.clayer(facts, called)
    names = sorted([*texts, *binary, "README.md"])
    texts["README.md"] = readme(facts, called, names, missing)
    return {file: binary[file] if file in binary else texts[file].encode() for file in names}
