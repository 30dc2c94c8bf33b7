"""`README.md` of the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from micronpu.base.parsing import parse_toml
from micronpu.board.platforms import core_of, emulated_board, fvp_lines
from micronpu.board.zephyr import zephyr_board
from micronpu.chips.machines import machine_of
from micronpu.deploy.csource import filled, text_of
from micronpu.deploy.integration import RUN, board_options, build_options, runtime_sources
from micronpu.deploy.shared import LINE, SHARED, ProgramSet
from micronpu.targets.firmware import TOOLCHAIN


def readme(program_set: ProgramSet, files: Sequence[str], data_files: Sequence[str]) -> str:
    """Return the text.

    Args:
        files: names of the files of the folder, in order.
        data_files: names of files that the programs read, and that are not in the folder.
    """
    board, first = program_set.board, program_set.programs[0]
    core, npu = core_of(board.core), board.accelerator if program_set.started else ""
    text = filled(
        "README.md",
        program_set,
        LINE=LINE,
        RUN=RUN,
        TOOLCHAIN=TOOLCHAIN,
        regions=board.regions(program_set.files, program_set.pools),
        files=_described(program_set, files),
        missing=data_files,
        in_c=True,
        core=core,
        build_options=sorted(build_options(program_set)),
        runtime_sources=runtime_sources(program_set),
        zephyr=zephyr_board(board.chip, board.accelerator),
        machine=machine_of(core),
        emulated=emulated_board(core, npu),
        board_options=board_options(program_set),
        fvp=fvp_lines(core, npu, f"build/{SHARED}_app"),
        has_platform=first.vectors is not None and any(f.has_platform(first.board.accelerator) for f in first.firmware),
        # The runner has all but the portable kernels; those cannot be derived from a bundled program.
        portable=[o for o in first.plan.operators if o.startswith(("aten::", "dim_order_ops::"))],
    )
    return text.rstrip("\n") + "\n"


def _described(program_set: ProgramSet, files: Sequence[str]) -> dict[str, str]:
    """Return the description of each file, by name."""
    known = parse_toml(text_of("files.toml"))
    words = dict(known["shared"])
    for methods in program_set.groups:
        own = _named(known["program"], methods[0].file)
        words |= {name: text.replace("@section@", methods[0].section) for name, text in own.items()}
    for facts in program_set.programs:
        words |= _named(known["method"], facts.name)
    boards = {True: "the NPU and the SRAM for Zephyr's board", False: "the NPU's size"}
    words |= {file: boards[file.endswith(".overlay")] for file in files if file.startswith("zephyr/boards/")}
    return {file: words.get(file, "data that the program looks up by name") for file in files}


def _named(texts: Mapping[str, str], name: str) -> dict[str, str]:
    return {file.replace("@name@", name): text.replace("@name@", name) for file, text in texts.items()}
