"""Programs that are pickled and copied, and listeners that raise."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compile.small import Small, conv, image
from tests.compile.state_rows import ROWS, sequences

import micronpu
from micronpu.base.errors import ModelError

TARGETS = ("imxrt700-neutron", "ethos-u55-128", "cortex-m55")
X = image()


def compiled(target: str, **options: object) -> micronpu.CompiledProgram:
    torch.manual_seed(0)
    network = Small(lambda self, x: torch.relu(self.first(x)), first=conv(8, 8))
    return micronpu.compile(network, (X,), target, calibration=[(X,)], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_travels_with_bytes_and_report(target: str, tmp_path: Path) -> None:
    program = compiled(target)
    wanted = program.run(X)
    there = pickle.loads(pickle.dumps(program))
    assert (there.buffer, there.report, there.rows[0][0].tolist()) == (
        program.buffer,
        program.report,
        program.rows[0][0].tolist(),
    )
    assert torch.equal(there.run(X), wanted)
    assert there.save(tmp_path / "net.pte").read_bytes() == program.buffer
    assert str(there) == str(program) and repr(there)
    for again in (copy.copy(there), copy.deepcopy(there), pickle.loads(pickle.dumps(there))):
        assert again.buffer == program.buffer
    for name in ("partitions", "quantized"):
        with pytest.raises(ModelError, match=f"was pickled, and `{name}` does not travel"):
            getattr(there, name)
    with pytest.raises(AttributeError):
        there.quantised  # noqa: B018
    for own in (copy.copy(program), copy.deepcopy(program)):
        assert own.partitions is program.partitions and torch.equal(own.quantized(X), program.quantized(X))
        assert own.report == program.report and torch.equal(own.run(X), wanted)


@pytest.mark.sweep
def test_another_process_reads_it(tmp_path: Path) -> None:
    program = compiled("ethos-u55-128")
    (tmp_path / "program").write_bytes(pickle.dumps(program))
    np.save(tmp_path / "x.npy", X.numpy())
    runs = (
        "import numpy, pickle, torch; program = pickle.load(open('program', 'rb'));"
        "print(program.run(torch.from_numpy(numpy.load('x.npy'))).double().sum().item())"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", runs], cwd=tmp_path, capture_output=True, text=True)
    assert float(done.stdout) == program.run(X).double().sum().item(), done.stderr


def test_a_copy_has_states_of_its_own() -> None:
    name = next(iter(ROWS))
    torch.manual_seed(0)
    program = micronpu.compile(ROWS[name](), (torch.zeros(1, 8),), TARGETS[0], calibration=sequences())
    row = torch.ones(1, 8)
    first = program.run(row)
    second = program.run(row)
    assert not torch.equal(first, second)
    for own in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert torch.equal(own.run(row), first) and torch.equal(own.run(row), second)
        own.reset()
        assert torch.equal(own.run(row), first)


class OwnError(Exception):
    pass


@pytest.mark.parametrize("step", ["export", "quantize", "partition", "compile", "lower", "verify"])
def test_what_a_callback_raises_is_passed_on(step: str) -> None:
    def callback(name: str, part: float) -> None:
        if name == step and part > 0.2:
            raise OwnError(name)

    with pytest.raises(OwnError, match=step):
        compiled(TARGETS[1], callback=callback)
