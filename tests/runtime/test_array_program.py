"""Programs on NumPy arrays, without torch: the same integers, checks and sentences as with torch."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runtime.test_host_program import conv_pte, int8

from micronpu.base.errors import ModelError, PayloadError
from micronpu.program.operators import describe, needs_torch
from micronpu.runtime import ArrayProgram, Digest, HostProgram, RunOptions
from micronpu.runtime.plugin import load_plugin

GOLDEN = Path(__file__).parents[1] / "golden"
KERNELS = Path(sys.modules[describe.__module__].__file__ or "").with_name("kernels.txt")

_WITHOUT_TORCH = """
import sys
import numpy as np
from micronpu.runtime import ArrayProgram
for path in sys.argv[1:]:
    arrays = np.load(path.replace(".pte", ".npz"))
    with ArrayProgram(path) as program:
        assert program.is_native
        outputs = program.run_arrays(*(arrays[n] for n in arrays.files if n.startswith("input")))
    expected = [arrays[n] for n in arrays.files if n.startswith("output")]
    assert len(outputs) == len(expected) > 0
    for got, wanted in zip(outputs, expected):
        assert got.dtype == wanted.dtype and np.array_equal(got, wanted), path
heavy = {"torch", "torchao", "executorch.exir", "executorch.extension.pybindings._C"} & set(sys.modules)
assert not heavy, heavy
"""


def test_golden_programs_compute_the_same_without_torch() -> None:
    paths = [str(GOLDEN / f"{name}.pte") for name in ("neutron", "combined", "ethosu-litert", "cortexm")]
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_command_runs_without_torch(tmp_path: Path) -> None:
    arrays = np.load(GOLDEN / "combined.npz")
    np.save(tmp_path / "x.npy", arrays["input_0"])
    (tmp_path / "out").mkdir()
    code = "import sys, micronpu.cli.main as m\ntry:\n m.app()\nexcept SystemExit as e:\n assert not e.code\n"
    code += "assert 'torch' not in sys.modules and 'torchao' not in sys.modules"
    command = ["run", str(GOLDEN / "combined.pte"), "-i", "x.npy", "-o", "out"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "out/output_0.npy"), arrays["output_0"])


@pytest.mark.parametrize("in_last", [False, True])
@pytest.mark.parametrize("out_last", [False, True])
def test_axes_keep_their_meaning_in_every_layout(in_last: bool, out_last: bool) -> None:
    pte = conv_pte(in_last, out_last)
    x = int8(1, 3, 5, 4)
    layout = torch.channels_last if in_last else torch.contiguous_format
    laid_out = x.contiguous(memory_format=layout)
    with HostProgram(pte, RunOptions(profile=True)) as by_executorch, HostProgram(pte) as native:
        assert native.is_native and not by_executorch.is_native
        (expected,), (tensor,) = by_executorch.run(laid_out), native.run(laid_out)
        assert torch.equal(tensor, expected) and tensor.stride() == expected.stride()
    with ArrayProgram(pte) as program:
        assert program.is_native
        array = x.numpy()
        for given in (array, np.asfortranarray(array), array[:, :, ::-1][:, :, ::-1]):
            (got,) = program.run_arrays(given)
            assert np.array_equal(got, expected.numpy())
        (tensor,) = program.run(laid_out)
        assert torch.equal(tensor, expected)
        (first,) = program.run_arrays(array)
        kept = first.copy()
        program.run_arrays(-array)
        assert np.array_equal(first, kept), "an output is the runtime's memory"
    # The way with torch, here because a profile is asked for.
    with ArrayProgram(pte, RunOptions(profile=True)) as program:
        assert not program.is_native
        (got,) = program.run_arrays(x.numpy())
        assert np.array_equal(got, expected.numpy())


def test_what_does_not_fit_is_a_sentence() -> None:
    program = ArrayProgram(conv_pte())
    x = int8(1, 3, 5, 4).numpy()
    with pytest.raises(ModelError, match=r"takes 1 input .* but 2 were given"):
        program.run_arrays(x, x)
    with pytest.raises(ModelError, match=r"must be int8\[1, 3, 5, 4\], but float32\[1, 3, 5, 4\] was given"):
        program.run_arrays(x.astype(np.float32))
    with pytest.raises(ModelError, match=r"but int8\[1, 3, 4, 5\] was given"):
        program.run_arrays(x.reshape(1, 3, 4, 5))
    with pytest.raises(ModelError, match="must be an array, but a list was given"):
        program.run_arrays(x.tolist())  # type: ignore[arg-type]
    program.close()
    program.close()
    with pytest.raises(ModelError, match="is closed"):
        program.run_arrays(x)


def test_the_checks_come_first(tmp_path: Path) -> None:
    data = bytearray((GOLDEN / "combined.pte").read_bytes())
    data[-100] ^= 1
    with pytest.raises(PayloadError):
        ArrayProgram(bytes(data))
    unstamped = tmp_path / "conv.pte"
    unstamped.write_bytes(conv_pte())
    with ArrayProgram(unstamped) as program:
        assert program.digest is Digest.MISSING
        assert program.is_isolated and not program.is_native


def test_threads_run_programs_of_both_ways() -> None:
    pte, arrays = conv_pte(), [int8(1, 3, 5, 4, seed=i).numpy() for i in range(8)]
    with (
        ArrayProgram(pte) as program,
        HostProgram(pte, RunOptions(profile=True, debug_buffer_size=0)) as other,
        ThreadPoolExecutor(4) as pool,
    ):
        assert program.is_native and not other.is_native
        expected = [other.run(torch.from_numpy(a))[0].numpy() for a in arrays]
        found = list(pool.map(lambda a: (program.run_arrays(a)[0], other.run(torch.from_numpy(a))[0]), arrays * 5))
    assert all(np.array_equal(a, e) and np.array_equal(b, e) for (a, b), e in zip(found, expected * 5, strict=True))


def test_a_payload_that_fails_says_why() -> None:
    pte = conv_pte()
    at = pte.index(b"TFL3")
    damaged = pte[: at - 4] + b"\xff" * 4 + pte[at:]
    with pytest.raises(PayloadError) as with_torch:
        HostProgram(damaged, RunOptions(profile=True))
    with pytest.raises(PayloadError) as without:
        ArrayProgram(damaged)
    assert str(without.value) == str(with_torch.value)


def test_the_list_of_kernels_is_torchs() -> None:
    load_plugin()
    from executorch.runtime import Runtime

    spaces = ("executorch_prim::", "cortex_m::")
    known = {n for n in Runtime.get().operator_registry.operator_names if not n.startswith(spaces)}
    listed = {line.partition("(")[0]: line for line in KERNELS.read_text(encoding="utf-8").splitlines()}
    assert set(listed) <= known and len(listed) > 200
    for name, line in listed.items():
        assert line == describe(name)
    assert not needs_torch(listed)
    assert needs_torch(["mylib::twice.out"])
