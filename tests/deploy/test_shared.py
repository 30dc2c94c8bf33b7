"""Several programs in one firmware, and the C interface, in the runtime of this machine."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch.exir import to_edge
from torch import nn

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.board.logs import CALL, read_log
from micronpu.compiler.program import CompiledProgram
from micronpu.deploy.deployment import Deployment, Source, deploy_together
from micronpu.neutron import NeutronOptions
from micronpu.program.plan import read_plan
from micronpu.targets import board as pools
from tests.compile.small import linear
from tests.deploy import firmware, programs
from tests.deploy.host_build import built, host, host_sizes, sized
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def compiler() -> None:
    need("g++")


class Mean(nn.Module):
    """Keeps a running mean of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(x)
        return self.mean * 2.0


class Norm(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y, -1) + torch.atan2(x, x * 2.0)


@functools.cache
def plain(name: str) -> bytes:
    """A program that ExecuTorch made by itself, of portable kernels, which this machine has."""
    model, inputs = (Mean(), (torch.ones(1, 4),)) if name == "mean" else (Norm(), (torch.ones(6, 6), torch.ones(6, 6)))
    return bytes(to_edge(torch.export.export(model.eval(), inputs)).to_executorch().buffer)


@functools.cache
def with_state() -> CompiledProgram:
    """A program of ours with a state, all of it in portable kernels."""
    options = NeutronOptions(
        silicon="imxrt700", operators_not_to_delegate=("aten.mul.Tensor", "aten.mul.Scalar", "aten.add.Tensor")
    )
    random = torch.Generator().manual_seed(2)
    sequences = [[torch.randn(1, 4, generator=random) for _ in range(6)] for _ in range(2)]
    return micronpu.compile(
        Mean().eval(), (torch.zeros(1, 4),), "imxrt700-neutron", calibration=sequences, options=options, verify=False
    )


def source(kind: str, name: str) -> Source:
    if kind in ("mean", "two"):
        return Source(plain(kind), name)
    program = with_state() if kind == "state" else programs.program(kind)
    return Source(program.buffer, name, rows=[tuple(t.detach().numpy() for t in row) for row in program.rows])


def deployed(folder: Path, *kinds: str, concurrent: bool = False) -> Deployment:
    return deploy_together([source(kind, f"p_{kind}") for kind in kinds], folder, concurrent=concurrent)


@pytest.mark.sweep
def test_three_programs_run_in_one_firmware(tmp_path: Path) -> None:
    """Kernels are registered once, though the runtime of this machine has registered them already."""
    folder = tmp_path / "out"
    done = deployed(folder, "host", "two", "state")
    assert done.vectors == 12 and set(done.programs) == {"p_host", "p_two", "p_state"}
    app = built(sized(folder), tmp_path / "app", kernels=True)
    assert host([str(app)]) == "PASS: 12 vectors, 0 elements differ\n"


@pytest.mark.sweep
def test_pools_are_exact_for_all_together(tmp_path: Path) -> None:
    """The shared temporary pool is the largest, each method has its own; a byte less is a sentence with the number."""
    own = host_sizes(tmp_path)
    found = {f"p_{kind}": pools.pools_of(read_plan(source(kind, "x").program)[0], own) for kind in ("host", "two")}
    given = {name: (p.method, p.temporary) for name, p in found.items()}

    def printed(sizes: dict[str, tuple[int, int]]) -> str:
        folder = tmp_path / "out"
        shutil.rmtree(folder, ignore_errors=True)
        deployed(folder, "host", "two")
        app = built(sized(folder, sizes), tmp_path / "app")
        return subprocess.run([str(app)], capture_output=True, text=True).stdout

    assert printed(given) == "PASS: 8 vectors, 0 elements differ\n"
    method, temporary = given["p_two"]
    short = printed({**given, "p_two": (method - 1, temporary)})
    assert re.match(r"FAIL: p_two: the pool of the method allocator is too small by \d+ bytes", short)


@pytest.mark.sweep
def test_what_programs_share(tmp_path: Path) -> None:
    """The largest memory serves all that run one after the other; states have theirs."""
    alone = {kind: pools.pools_of(read_plan(source(kind, "x").program)[0]) for kind in ("host", "two", "state")}
    done = deployed(tmp_path / "one", "host", "two", "state")
    shared = max(alone["host"].planned[0], alone["two"].planned[0])
    assert sorted(done.pools.planned) == sorted([shared, *alone["state"].planned])
    assert done.pools.temporary == max(p.temporary for p in alone.values())
    assert done.pools.method == sum(p.method for p in alone.values())
    text = (tmp_path / "one" / "micronpu_pools.c").read_text()
    assert f"uint8_t micronpu_planned_1[{-(-shared // 32) * 32}] __attribute__((aligned(32)" in text
    # A buffer of a program that ExecuTorch made by itself is not called a state in the file, and must not be shared.
    kept = deployed(tmp_path / "kept", "mean", "two", "host")
    assert len(kept.pools.planned) == 2
    apart = deployed(tmp_path / "apart", "host", "two", concurrent=True)
    assert apart.pools.total == alone["host"].total + alone["two"].total


def test_calls_from_c(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    deploy_together([source("state", "first"), source("host", "second")], folder)
    (folder / "main.cpp").unlink()
    shutil.copy(Path(__file__).parent / "calls.c", folder)
    app = built(sized(folder), tmp_path / "app")
    assert host([str(app)]) == "DONE\n"


def test_a_profile_has_a_line_for_each_instruction(tmp_path: Path) -> None:
    deployed(tmp_path / "out", "host")
    app = built(sized(tmp_path / "out"), tmp_path / "app", "-DMICRONPU_PROFILE")
    lines = host([str(app)]).splitlines()
    program = programs.program("host")
    calls = len(read_plan(program.buffer)[0].calls)
    assert lines[-1] == "PASS: 4 vectors, 0 elements differ"
    log = read_log("\n".join(lines).encode(), "board.log")
    assert [row.number for row in log.of(CALL)] == list(range(calls)) and not log.program  # it calls no NPU
    assert [line.split()[:3] for line in lines[:-1] if "micronpu-program" not in line] == [
        ["micronpu-cycles", "p_host", str(i)] for _ in range(4) for i in range(calls)
    ]


def test_a_profile_says_by_its_payload_which_program_it_is(tmp_path: Path) -> None:
    """The report has the payload's SHA-256, too, though the folder's program is a smaller file."""
    made = programs.program("ethosu")
    made.deploy(tmp_path / "out")
    text = (tmp_path / "out" / "micronpu_profile.c").read_text()
    assert text.count(made.report.hashes["partition 0"]) == 1 and "@" not in text


@pytest.mark.sweep
def test_nothing_is_defined_twice(tmp_path: Path) -> None:
    """All objects of a firmware with three programs, for a core: every symbol once."""
    need("arm-none-eabi-gcc", "arm-none-eabi-g++", "arm-none-eabi-nm")
    folder = tmp_path / "out"
    deploy_together([source("core", "one"), source("core", "two"), source("two", "three")], folder)
    objects = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".c", ".cpp", ".S"):
            flags = firmware.executorch_flags() if path.suffix == ".cpp" else ()
            objects.append(str(firmware.compile_source(path, tmp_path, "cortex-m55", *flags)))
    listed = host(["arm-none-eabi-nm", "--defined-only", "-g", *objects])
    symbols = re.findall(r"^[0-9a-f]+ [TDBR] (\S+)$", listed, re.M)
    assert len(symbols) > 40 and len(symbols) == len(set(symbols))
    registered = (folder / "micronpu_kernels.cpp").read_text()
    assert all(registered.count(f'Kernel("{o}"') == 1 for o in read_plan(programs.program("core").buffer)[0].operators)


@pytest.mark.parametrize(
    ("sources", "target", "words"),
    [
        ((("host", "a"), ("two", "A")), None, "Two programs have the name a"),
        ((("ethosu", "a"), ("neutron", "b")), None, "for different boards: a has the target"),
        ((("ethosu", "a"), ("neutron", "b")), "corstone300", "is for Neutron"),
        ((("ethosu", "a"), ("ethosu", "b")), "corstone300,nowhere", "nowhere"),
        ((("ethosu", "a"), ("neutron", "b")), "corstone300,imxrt700", "for different boards"),
        ((("host", "micronpu_pools"), ("two", "b")), None, "that of the folder's own files"),
        ((("host", "main"),), None, "means something else in C"),
        ((), None, "no program to deploy"),
    ],
    ids=["one name", "two boards", "another family", "no target", "two chips", "own files", "main", "none"],
)
def test_programs_that_do_not_go_together(
    sources: tuple[tuple[str, str], ...], target: str | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(MicroNpuError, match=words):
        deploy_together([source(*s) for s in sources], tmp_path / "out", target=target)
    assert not (tmp_path / "out").exists()


def test_the_command_takes_several(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from micronpu.cli.main import app

    for kind in ("host", "two"):
        (tmp_path / f"my-{kind}.pte").write_bytes(source(kind, "x").program)
    files = [str(tmp_path / f"my-{kind}.pte") for kind in ("host", "two")]
    done = CliRunner().invoke(app, ["deploy", *files, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert {"my_host.h", "my_two.h", "my_two.pte", "my_two.bpte"} <= {p.name for p in (tmp_path / "out").iterdir()}
    refused = CliRunner().invoke(app, ["deploy", *files, "-o", str(tmp_path / "no"), "--name", "a,b,c"])
    assert refused.exit_code == 1 and "`--name` has 3 names, not 2" in refused.output


def test_data_in_a_file_beside_the_program(tmp_path: Path) -> None:
    """Constants that stand in a file of their own are in the firmware, and the runtime finds them there."""
    from tests.deploy.test_pools import made

    program = made("constants in a file")
    vectors = {"x": np.ones((1, 2, 8), np.float32) * 0.5}
    layer = linear(8, 3)
    wanted = layer(torch.full((2, 8), 0.5)).detach().numpy()[None]
    given = Source(program.buffer, "kept", vectors={**vectors, "output_0": wanted}, data_files=program.files)
    done = deploy_together([given, source("two", "other")], tmp_path / "out")
    (file,) = program.files
    assert done.data == {file: len(program.files[file])} and file in done.files
    app = built(sized(tmp_path / "out"), tmp_path / "app")
    assert host([str(app)]) == "PASS: 5 vectors, 0 elements differ\n"
    data = tmp_path / "out" / file
    data.write_bytes(bytes(len(program.files[file])))
    said = subprocess.run([str(built(tmp_path / "out", tmp_path / "app"))], capture_output=True, text=True).stdout
    assert said == "FAIL: kept: a file with data of the program is damaged, or not aligned to 16 bytes\n"
    alone = deploy_together([dataclasses.replace(given, data_files=None)], tmp_path / "alone")
    assert any("the file with the program's external constants" in note for note in alone.notes)
    damaged = {file: program.files[file][:-1] + b"x"}
    with pytest.raises(MicroNpuError, match="look up other data in files of one name"):
        deploy_together([given, dataclasses.replace(given, name="b", data_files=damaged)], tmp_path / "no")


@pytest.mark.sweep
def test_two_npus_of_one_chip(tmp_path: Path) -> None:
    """Alif's E8: one core drives an Ethos-U55 and an Ethos-U85, and each program starts its own."""
    need("arm-none-eabi-gcc")
    from tests.deploy.test_start_up import network

    sources = [Source(network(1, "alif-e8").buffer, "large"), Source(network(1, "alif-e8-hp").buffer, "small")]
    done = deploy_together(sources, tmp_path / "out", target="alif-e8,alif-e8-hp")
    assert done.board.name and len(done.programs) == 2
    text = (tmp_path / "out" / "micronpu_npu.c").read_text()
    assert '{MICRONPU_NPU_0_BASE, MICRONPU_NPU_0_IRQ, 2u, 256u, "ethos-u85-256"},' in text
    assert '{MICRONPU_NPU_1_BASE, MICRONPU_NPU_1_IRQ, 0u, 256u, "ethos-u55-256"},' in text
    assert "#define MICRONPU_NPU_0_BASE 0x49042000u" in text and "#define MICRONPU_NPU_1_IRQ 55" in text
    assert "micronpu_npu_use(0, program, bytes)" in (tmp_path / "out" / "large.cpp").read_text()
    assert "micronpu_npu_use(1, program, bytes)" in (tmp_path / "out" / "small.cpp").read_text()
    assert "**Several NPUs**" in (tmp_path / "out" / "README.md").read_text()
    folder = tmp_path / "out"
    for name in ("micronpu_npu.c", "large.cpp", "small.cpp", "micronpu_model.cpp"):
        flags = firmware.executorch_flags() if name.endswith(".cpp") else (f"-I{Path(__file__).parent / 'driver'}",)
        firmware.compile_source(folder / name, tmp_path, "cortex-m55", *flags, "-Wno-int-to-pointer-cast")
    with pytest.raises(MicroNpuError, match="do not run at the same time"):
        deploy_together(sources, tmp_path / "no", target="alif-e8,alif-e8-hp", concurrent=True)
    with pytest.raises(MicroNpuError, match="for different boards"):
        deploy_together(sources, tmp_path / "no", target="alif-e8,alif-e7")
