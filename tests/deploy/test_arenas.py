"""Planned tensors in a fast and a slow memory: the same results, in a real runtime."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from micronpu.base.errors import MicroNpuError, OptionError, UnsupportedError
from micronpu.deploy.deployment import Source, deploy_together
from micronpu.deploy.vectors import made_up
from micronpu.program.arenas import divided
from micronpu.program.digest import unsealed
from micronpu.program.edit import strip
from micronpu.program.io import io_of
from micronpu.program.plan import Plan, read_plan
from micronpu.program.plan_check import check_plan
from micronpu.program.pte import ELEMENT_BYTES
from micronpu.runtime import ArrayProgram, RunOptions
from tests.deploy import programs
from tests.deploy.host_build import built, sized
from tests.deploy.test_pools import PLAIN, made
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = [
    "host",
    "two",
    "core",
    "Cortex-M33",
    "two partitions in float",
    "neutron",
    "ethosu",
    *(n for n in PLAIN if "file" not in n and "vary" not in n),
]
NOT = ("a condition", "a buffer that is written", "parts", "a cell")
"""Those that are refused; the last two because the check of plans refuses a kernel with a list of results."""


def _size(plan: Plan, number: int) -> int:
    value = plan.values[number]
    assert value.tensor is not None
    return int(np.prod(value.tensor.shape)) * ELEMENT_BYTES[value.tensor.dtype]


@pytest.mark.sweep
@pytest.mark.parametrize("name", [n for n in KINDS if n not in NOT])
@pytest.mark.parametrize("share", [3, 1])
def test_the_same_results(name: str, share: int) -> None:
    """A third of the memory as a fast one, and all of it."""
    buffer = strip(unsealed(made(name).buffer))
    before = read_plan(buffer)[0]
    try:
        found = divided(buffer, fast := before.memories[0] // share)
    except UnsupportedError as error:
        assert share > 1 and "the smallest has" in error.what  # views of one large tensor are one block
        found = divided(buffer, fast := before.memories[0])
    check_plan(found, "It", "forward")
    plan, summary = read_plan(found)
    assert len(plan.memories) == 2 and 0 < plan.memories[1] <= fast + 16
    assert sum(plan.memories) <= 2 * before.memories[0] + 64
    assert {v.planned for v in plan.values if v.tensor is not None} <= {0, 1, 2}
    inputs, _ = io_of(plan, summary.named_data, None)
    wanted = made_up(inputs, lambda row: ArrayProgram(buffer, RunOptions(isolated=False)).run_arrays(*row))
    again = made_up(inputs, lambda row: ArrayProgram(found, RunOptions(isolated=False)).run_arrays(*row))
    for one, other in zip(wanted.outputs, again.outputs, strict=True):
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def test_those_that_are_touched_most_come_first() -> None:
    plan = read_plan(divided(strip(unsealed(programs.program("core").buffer)), 600))[0]
    touches = dict.fromkeys((1, 2), 0.0)
    for memory in touches:
        held = [i for i, v in enumerate(plan.values) if v.planned == memory]
        used = sum(call.arguments.count(i) for call in plan.calls for i in held)
        touches[memory] = used / max(sum(_size(plan, i) for i in held), 1)
    assert touches[2] > touches[1]


@pytest.mark.sweep
def test_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    one = Source(made("convolution").buffer, "net")
    done = deploy_together([one], folder, target=chip(tmp_path), hot="dtcm=2000")
    named = {region.name: region for region in done.regions}
    assert 0 < named["dtcm"].bytes <= 2000 and named["sram"].bytes > 0
    assert 'MICRONPU_SECTION(".micronpu.hot")' in (folder / "micronpu_pools.c").read_text()
    assert "*(.micronpu.hot)" in (folder / "micronpu_sections.ld").read_text()
    need("g++")
    app = built(sized(folder), tmp_path / "app")
    assert subprocess.run([str(app)], capture_output=True, text=True).stdout.startswith("PASS: 4 vectors, 0 elements")


def test_a_memory_that_is_too_small_alone(tmp_path: Path) -> None:
    """Over one memory, inside two: said, with the option that does it."""
    one = [Source(made("convolution").buffer, "net")]
    roomy = deploy_together(one, tmp_path / "first", target=chip(tmp_path))
    taken = {region.name: region.bytes for region in roomy.regions}["sram"]
    target = chip(tmp_path, taken - 100)
    (note,) = [note for note in deploy_together(one, tmp_path / "second", target=target).notes if "too small" in note]
    assert note.endswith("over by 100 bytes. --hot dtcm places planned tensors there as well.")
    done = deploy_together(one, tmp_path / "third", target=target, hot="dtcm")
    assert not any("too small" in note for note in (*roomy.notes, *done.notes))
    assert {"sram", "dtcm"} < {region.name for region in done.regions}


def chip(folder: Path, sram: int = 2000000) -> str:
    """A chip with a fast memory and a slow one."""
    (folder / "chip.toml").write_text(
        'name = "c"\ntitle = "C"\nsource = "s"\n[core]\nname = "cortex-m55"\n'
        '[npu]\nfamily = "neutron"\nvariant = "N3-64"\nclass = "C"\npipelines = 8\nmacs = 8\n'
        f'[[memory]]\nname = "sram"\nbytes = {sram}\n[[memory]]\nname = "dtcm"\nbytes = 65536\n'
        '[[memory]]\nname = "mram"\nbytes = 4000000\n'
        '[[target]]\nname = "c-npu"\ntitle = "C"\n'
    )
    return str(folder / "chip.toml")


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="branches or loops"):
        divided(made("a condition").buffer, 4)
    with pytest.raises(UnsupportedError, match="No tensor of the program fits into 1 bytes"):
        divided(made("linear").buffer, 1)
    target = chip(tmp_path)
    one = [Source(programs.program("two").buffer, "two")]
    for hot, words in (
        ("psram", "has no memory `psram`"),
        ("sram", "has the planned memories"),
        ("dtcm=many", "is no size"),
        ("dtcm=100000", "has 65,536 bytes"),
        ("mram", "`mram` of c-npu keeps programs, and nothing is written to it at run time"),
    ):
        with pytest.raises(OptionError, match=words):
            deploy_together(one, tmp_path / "no", target=target, hot=hot)
    with pytest.raises(MicroNpuError, match="keeps values"):
        kept = Source(made("a buffer that is written").buffer, "kept")
        deploy_together([kept], tmp_path / "no", target=target, hot="dtcm=8")
    assert not (tmp_path / "no").exists()
