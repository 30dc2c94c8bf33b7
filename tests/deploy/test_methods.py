"""Several methods of one program in a firmware: loaded together, with one set of states, pools and vectors."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.compiler.program import CompiledMethods
from micronpu.deploy.deployment import Source, deploy_together
from micronpu.deploy.image import make_image
from micronpu.neutron import NeutronOptions
from micronpu.program.plan import read_plan
from micronpu.targets import board as pools
from tests.deploy.host_build import built, host, host_sizes, sized
from tests.deploy.test_shared import source
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = Path(__file__).parent
ON_THE_CORE = tuple(f"aten.{name}" for name in ("mul.Tensor", "mul.Scalar", "add.Tensor"))


class Notes(nn.Module):
    """Keeps a running sum of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.ones(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, 4] -> [1, 4], the sum after it"""
        self.sum.copy_(self.sum * 0.5 + x)
        return self.sum * 2.0

    def peek(self, x: torch.Tensor) -> torch.Tensor:
        """Only reads the sum."""
        return self.sum + x


@functools.cache
def notes() -> CompiledMethods:
    """Three methods, all of it in kernels that this machine has."""
    own, x = Notes().eval(), torch.zeros(1, 4)
    rows = [torch.full((1, 4), i * 0.25) for i in range(6)]
    return micronpu.compile(
        {"forward": (own, (x,)), "peek": (own.peek, (x,))},
        target="imxrt700-neutron",
        calibration={"forward": [rows, rows[::-1]], "peek": [rows[:2]]},
        options=NeutronOptions(silicon="imxrt700", operators_not_to_delegate=ON_THE_CORE),
    )


@pytest.fixture
def compiler() -> None:
    need("g++")


@pytest.mark.sweep
@pytest.mark.usefixtures("compiler")
def test_methods_run_in_one_firmware(tmp_path: Path) -> None:
    """Each from the first values of the states, beside another program; what they share is there once."""
    program = notes()
    methods = {name: own.source("notes", None) for name, own in program.methods.items()}
    both = [Source(program.buffer, "notes", methods=methods), source("two", "other")]
    done = deploy_together(both, tmp_path / "out")
    assert done.vectors == 12 - (4 - len(program.methods["peek"].rows)) and set(done.programs) == {"notes", "other"}
    app = built(sized(tmp_path / "out"), tmp_path / "app", kernels=True)
    assert host([str(app)]) == f"PASS: {done.vectors} vectors, 0 elements differ\n"
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "`notes_init` loads all methods of `notes.pte`" in readme and "### notes_peek" in readme


@pytest.mark.usefixtures("compiler")
def test_methods_see_each_others_states_in_c(tmp_path: Path) -> None:
    """In ExecuTorch's runtime, in turns: the bytes of `program.run`, and a reset of all."""
    program = notes()
    program.deploy(tmp_path / "out", name="notes")
    (tmp_path / "out" / "main.cpp").unlink()
    shutil.copy(HERE / "methods.c", tmp_path / "out")
    printed = host([str(built(sized(tmp_path / "out"), tmp_path / "app"))]).split()
    program.reset()
    wanted = []
    for call in range(3):
        x = (call + torch.arange(4.0)).reshape(1, 4) * 0.25
        program.run(x)
        wanted.append(program.run(x, method="peek").numpy().tobytes().hex())
    assert printed == wanted * 2 and len(set(wanted)) == 3


@pytest.mark.usefixtures("compiler")
def test_pools_of_all_methods_are_exact(tmp_path: Path) -> None:
    """One behind the other in one pool: a byte less, and the last of them does not load."""
    plans = [read_plan(notes().buffer, method=name)[0] for name in ("forward", "peek")]
    found = pools.pools_of_all(plans, host_sizes(tmp_path))
    notes().deploy(tmp_path / "out", name="notes")
    given = {"notes": (found.method, found.temporary)}
    vectors = sum(min(len(own.rows), 4) for own in notes().methods.values())
    app = built(sized(tmp_path / "out", given), tmp_path / "app")
    assert host([str(app)]) == f"PASS: {vectors} vectors, 0 elements differ\n"
    text = (tmp_path / "out" / "micronpu_pools.c").read_text()
    assert text.count("_method_pool[]") == 1 and text.count("_planned_2[]") == 1


def test_an_image_of_several_methods() -> None:
    own = nn.Linear(8, 4).eval()
    x = torch.randn(1, 8, generator=torch.Generator().manual_seed(1))
    program = micronpu.compile(
        {"a": (own, (x,)), "b": (nn.Sequential(own, nn.ReLU()).eval(), (x,))},
        target="corstone300",
        calibration={"a": [(x,)], "b": [(x,)]},
        quantization=micronpu.Quantization(io="int8"),
    )
    made = make_image(program.buffer, version="1.2.3")
    alone = [pools.pools_of(read_plan(program.buffer, method=name)[0]) for name in "ab"]
    assert max(p.method for p in alone) < made.pools.method <= sum(p.method for p in alone) + 8
    assert made.pools.planned == tuple(max(sizes) for sizes in zip(*(p.planned for p in alone), strict=True))


def test_what_several_methods_cannot(tmp_path: Path) -> None:
    program = notes()
    row = np.zeros((1, 4), np.float32)
    for words, call in (
        ("`peek` is one of several methods", lambda: program.methods["peek"].deploy(tmp_path / "out")),
        (
            "The vectors are for one method",
            lambda: deploy_together([Source(program.buffer, vectors={"x": row})], tmp_path / "out"),
        ),
        ("no method 'nothing'", lambda: program.deploy(tmp_path / "out", vectors={"nothing": {"x": row}})),
        (
            "whose planned memories are not divided",
            lambda: deploy_together([Source(program.buffer)], tmp_path / "out", hot="dtcm=64", target="corstone300"),
        ),
        (
            "share their memories",
            lambda: deploy_together([Source(program.buffer), source("two", "b")], tmp_path / "out", concurrent=True),
        ),
        (
            "have the name m_peek",
            lambda: deploy_together([Source(program.buffer, "m"), source("two", "m_peek")], tmp_path / "out"),
        ),
    ):
        with pytest.raises(MicroNpuError, match=words):
            call()
        assert not (tmp_path / "out").exists()
    done = program.deploy(tmp_path / "given", vectors={"peek": {"x": np.zeros((3, 4), np.float32)}})
    assert done.vectors == 3 + min(len(program.methods["forward"].rows), 4)


class Counting(nn.Module):
    """Writes rows where it counts itself, and is told which row of a table to add."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))
        self.register_buffer("rows", torch.zeros(5, 4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """x [1, 4], which [1] -> [5, 4]"""
        self.rows.index_copy_(0, self.count, x + self.table[which])
        self.count.add_(1)
        return self.rows * 2.0


COUNTING = """
#include "count.h"
#include <stdio.h>

int main(void) {
  static float in[4], out[20];
  static int64_t which[1] = {2};
  const void *const inputs[] = {in, which};
  void *const outputs[] = {out};
  char text[160];
  if (count_init() != MICRONPU_OK) {
    return 1;
  }
  for (int call = 0; call < 6; ++call) {
    printf("%d ", (int)count_invoke(inputs, outputs));
  }
  micronpu_error_text(count_error(), text, sizeof text);
  count_reset();
  printf("%d ", (int)count_invoke(inputs, outputs));
  which[0] = 3;
  printf("%d ", (int)count_invoke(inputs, outputs));
  which[0] = -1;
  printf("%d\\n%s\\n", (int)count_invoke(inputs, outputs), text);
  return 0;
}
"""


@pytest.mark.usefixtures("compiler")
def test_what_is_outside_is_refused_in_c(tmp_path: Path) -> None:
    """Rows that are not there, and a sequence longer than its cache: before the run, not a wrap-around in silence."""
    rows = [[(torch.full((1, 4), i * 0.5), torch.tensor([i % 3])) for i in range(5)]] * 2
    program = micronpu.compile(
        Counting().eval(),
        rows[0][0],
        "imxrt700-neutron",
        calibration=rows,
        options=NeutronOptions(silicon="imxrt700", operators_not_to_delegate=ON_THE_CORE),
    )
    program.deploy(tmp_path / "out", name="count")
    (tmp_path / "out" / "main.cpp").unlink()
    (tmp_path / "out" / "calls.c").write_text(COUNTING)
    codes, text = host([str(built(sized(tmp_path / "out"), tmp_path / "app"))]).splitlines()
    assert codes.split() == ["0"] * 5 + ["15", "0", "15", "15"]
    assert text == "an input picks rows that are not there, or the sequence is longer than the program has room for"
