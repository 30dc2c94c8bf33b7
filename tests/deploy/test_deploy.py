"""What `deploy` writes: its numbers against real runtimes, its files against their readers, and bad input."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge

import micronpu
from micronpu.base.errors import FileError, MicroNpuError, ModelError, NotOnHostError, OptionError, PayloadError
from micronpu.cli.inspection import inspect_pte
from micronpu.deploy import kernels
from micronpu.deploy.csource import filled
from micronpu.deploy.deployment import _check_names
from micronpu.program.digest import Digest, seal, state_of, unsealed, with_digest_of
from micronpu.program.edit import strip
from micronpu.program.io import IO_KEY, io_of
from micronpu.program.plan import Delegate, Plan, read_plan
from micronpu.program.pte import PREFIX, read_pte
from micronpu.runtime import ArrayProgram
from micronpu.targets import board as pools
from micronpu.targets.registry import core_library
from tests.compile.small import batches, conv, image
from tests.deploy import firmware, programs
from tests.deploy.host_build import built, host, sized
from tests.tools import need

HERE = Path(__file__).parent


def plan_of(kind: str) -> Plan:
    return read_plan(programs.program(kind).buffer)[0]


def test_sizes_are_those_of_the_core(tmp_path: Path) -> None:
    """The very headers of ExecuTorch, compiled for a Cortex-M."""
    need("arm-none-eabi-g++")
    checks = "\n".join(
        f"static_assert(kExpected_{f.name} == kActual_{f.name});" for f in dataclasses.fields(pools.Sizes)
    )
    expected = "\n".join(
        f"constexpr size_t kExpected_{f.name} = {getattr(pools.ON_CORE, f.name)};"
        for f in dataclasses.fields(pools.Sizes)
    )
    (tmp_path / "sizes.cpp").write_text(
        '#include "sizes.inc"\n#define MAKE(name, value) constexpr size_t kActual_##name = value;\n'
        f"FOR_ALL_SIZES(MAKE)\n{expected}\n{checks}\n"
    )
    for core in ("cortex-m33", "cortex-m55"):
        command = [
            "arm-none-eabi-g++",
            "-std=c++17",
            "-fsyntax-only",
            f"-I{HERE}",
            *firmware.executorch_flags(),
            *firmware.CORES[core],
        ]
        host([*command, "-mthumb", str(tmp_path / "sizes.cpp")])


def test_measured_pools() -> None:
    """A DS-CNN on Ethos-U55 ran in firmware with pools of these sizes: 27 values, an input, two kernels, a delegate."""
    plan = plan_of("ethosu")
    assert pools.method_bytes(plan) - pools.method_bytes(plan, handles={}) == 4
    found = pools.pools_of(plan)
    assert found.scratch == (found.temporary,) and found.temporary % 16 == 0


@pytest.mark.sweep
@pytest.mark.parametrize("kind", programs.KINDS)
def test_stripped_program(kind: str) -> None:
    """Nothing of ours is left, and what the board reads is as it was."""
    data = programs.program(kind).buffer
    device = strip(data)
    before, after = read_pte(data), read_pte(device)
    assert not any(key.startswith(PREFIX) for key in after.named_data)
    assert PREFIX.encode() not in device
    assert (after.methods, after.payloads) == (before.methods, before.payloads)
    assert strip(device) == device
    if kind == "ethosu_int8":
        assert len(device) < 0.6 * len(data), "this one carries its graph"


@pytest.mark.parametrize("kind", ["core", "two", "neutron"])
def test_stripped_program_computes_the_same(kind: str) -> None:
    from micronpu.runtime import HostProgram

    own = programs.program(kind)
    with HostProgram(own.buffer) as whole, HostProgram(strip(own.buffer)) as device:
        for row in own.rows:
            assert all(torch.equal(a, b) for a, b in zip(whole.run(*row), device.run(*row), strict=True))


@pytest.mark.parametrize("kind", ["core", "neutron"])
def test_a_damaged_program_of_a_folder_is_refused(kind: str) -> None:
    """It has no place for a digest, and has it behind its end."""
    device = strip(programs.program(kind).buffer)
    sealed = seal(device)
    assert (state_of(device), state_of(sealed)) == (Digest.MISSING, Digest.RIGHT)
    assert unsealed(sealed) == device and read_pte(sealed).methods == read_pte(device).methods
    for position in range(64, len(sealed), 61):
        damaged = bytearray(sealed)
        damaged[position] ^= 0x40
        assert state_of(bytes(damaged)) is Digest.WRONG, position
    assert all(state_of(sealed[:-cut]) is Digest.WRONG for cut in range(1, 48))


@pytest.mark.parametrize("kind", programs.KINDS)
def test_io_from_the_file_alone(kind: str) -> None:
    """What the file says of its integers is what the compiler knew."""
    program = programs.program(kind)
    plan, summary = read_plan(program.buffer)
    inputs, outputs = io_of(plan, summary.named_data, None)
    if program.integer_io is None:
        assert all(b.scale is None and b.tensor.dtype == "float32" for b in (*inputs, *outputs))
        return
    for io, known in zip((*inputs, *outputs), (*program.integer_io.inputs, *program.integer_io.outputs), strict=True):
        assert known is not None
        assert (io.scale, io.zero_point, io.tensor.dtype) == (known.scale, known.zero_point, known.dtype)
        values = torch.linspace(-8, 8, 1001)
        assert np.array_equal(io.quantize(values.numpy()), known.quantize(values).numpy())


def test_io_from_the_carried_graph() -> None:
    """A program of an older compiler says nothing of its integers; the graph that the host runs does."""
    program = programs.program("ethosu_int8")
    plan, summary = read_plan(program.buffer)
    carried = {k: v for k, v in summary.named_data.items() if k.startswith("micronpu_graph")}
    assert io_of(plan, carried, None) == io_of(plan, summary.named_data, None)


@pytest.mark.parametrize("reported", [b'{"inputs": [], "outputs": []}', b'{"inputs": [null], "outputs": [[]]}', b"[]"])
def test_damaged_io_is_one_message(reported: bytes) -> None:
    with pytest.raises(PayloadError, match="integer inputs and outputs is damaged"):
        io_of(plan_of("neutron"), {IO_KEY: reported}, None)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", programs.KINDS)
def test_bundled_program(kind: str, tmp_path: Path) -> None:
    """ExecuTorch's own reader finds the program and the vectors, and its runtime verifies them."""
    from executorch.devtools.bundled_program.serialize import deserialize_from_flatbuffer_to_bundled_program
    from executorch.extension.pybindings import portable_lib

    from micronpu.runtime.plugin import load_plugin

    program = programs.program(kind)
    written = program.deploy(tmp_path / "out")
    data = (tmp_path / "out" / "model.bpte").read_bytes()
    read = deserialize_from_flatbuffer_to_bundled_program(data)
    assert read.program == unsealed((tmp_path / "out" / "model.pte").read_bytes())
    (suite,) = read.method_test_suites
    assert (suite.method_name, len(suite.test_cases)) == ("forward", written.vectors)
    for case, row in zip(suite.test_cases, program.rows, strict=False):
        expected = program.run(*row)
        results = expected if isinstance(expected, tuple) else (expected,)
        for value, tensor in zip((*case.inputs, *case.expected_outputs), (*row, *results), strict=True):
            assert list(value.val.sizes) == list(tensor.shape)
            assert sorted(bytes(value.val.data)) == sorted(tensor.contiguous().numpy().tobytes())
    if not kind.startswith("ethosu"):  # a host needs the graph that was stripped
        load_plugin()
        bundled = portable_lib._load_bundled_program_from_buffer(data)
        for number in range(written.vectors):
            bundled.verify_result_with_bundled_expected_output("forward", number, 0.0, 0.0)
        last = bytes(read.method_test_suites[0].test_cases[0].expected_outputs[0].val.data)
        wrong = data.replace(last, bytes(b ^ 64 for b in last))
        with pytest.raises(RuntimeError):
            changed = portable_lib._load_bundled_program_from_buffer(wrong)
            changed.verify_result_with_bundled_expected_output("forward", 0, 0.0, 0.0)


def test_every_kernel_has_a_registration(tmp_path: Path) -> None:
    """Declarations have the signatures of ExecuTorch's kernels: what they name links, or is not in the wheel at all."""
    need("g++", "nm")
    names = [name if "::" in name else f"aten::{name}" for name in kernels._functions()]
    known = [*names, *(f"cortex_m::{name}" for name in core_library("cortex_m").schemas() if name.endswith(".out"))]
    found, refused = [], []
    for operator in sorted(known):
        try:
            found += kernels.kernels_of([operator])
        except MicroNpuError:
            refused.append(operator)
    assert len(found) > 240
    # Without a variant that writes into a given tensor, or with a list of truth values.
    assert all("out" not in o or o == "aten::convolution_backward.out" for o in refused)
    source = tmp_path / "all.cpp"
    source.write_text(filled("kernels.cpp", SimpleNamespace(name="a", upper="A", header="a test"), kernels=found))
    flags = ["g++", "-std=c++17", "-O0", "-fPIC", "-shared", *firmware.executorch_flags()]
    host([*flags, str(source), "-o", str(tmp_path / "all.so")])
    undefined = set(re.findall(r" U (\S+native::\w+)\(.*", host(["nm", "-C", str(tmp_path / "all.so")])))
    assert undefined
    folder = Path(firmware.executorch_flags()[2]).parent / "lib"
    text = "".join(
        host(["nm", "-DC", str(folder / f"libexecutorch_kernels_{n}.so")]) for n in ("optimized", "quantized")
    )
    defined = set(re.findall(r" T (torch::executor::native::\w+\(.*\))$", text, re.MULTILINE))
    wanted = set(
        re.findall(r" U (torch::executor::native::\w+\(.*\))$", host(["nm", "-C", str(tmp_path / "all.so")]), re.M)
    )
    functions = {signature.partition("(")[0] for signature in defined}
    wrong = {s for s in wanted - defined if s.partition("(")[0] in functions}
    assert not wrong
    assert len(wanted & defined) > 180


def test_selected_operators(tmp_path: Path) -> None:
    """The same as ExecuTorch's own tool finds in the program."""
    yaml = pytest.importorskip("yaml")
    from executorch.codegen.tools.gen_oplist import gen_oplist

    program = programs.program("two")
    program.deploy(tmp_path / "out")
    own = yaml.safe_load((tmp_path / "out" / "selected_operators.yaml").read_text())
    layer = yaml.safe_load((tmp_path / "out" / "micronpu.clayer.yml").read_text())["layer"]
    assert {"component": "Machine Learning:ExecuTorch Operators:Portable atan2"} in layer["components"]
    assert {"component": "Machine Learning:ExecuTorch Operators:Quantized quantize"} in layer["components"]
    assert all((tmp_path / "out" / entry["file"]).is_file() for entry in layer["groups"][0]["files"])
    gen_oplist(tmp_path / "theirs.yaml", model_file_path=str(tmp_path / "out" / "model.pte"))
    theirs = yaml.safe_load((tmp_path / "theirs.yaml").read_text())
    for operator in theirs["operators"].values():
        operator["debug_info"] = ["model.pte"]
    theirs["et_kernel_metadata"] = {k: sorted(v) for k, v in theirs["et_kernel_metadata"].items()}
    assert own == theirs


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    program = programs.program("neutron_int8")
    first, second = (
        program.deploy(tmp_path / "a"),
        programs.deploy(program.buffer, tmp_path / "b", rows=[tuple(t.numpy() for t in row) for row in program.rows]),
    )
    assert first.files == second.files
    for name in first.files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert "outside of the chip, its size is the board's" in (tmp_path / "a" / "README.md").read_text()
    digest = hashlib.sha256(unsealed((tmp_path / "a" / "model.pte").read_bytes())).hexdigest()
    assert digest in (tmp_path / "a" / "model.h").read_text()
    listed = {str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*") if p.is_file()}
    assert listed == set(first.files)
    assert not re.search(r"@[A-Z]+@", "".join((tmp_path / "a" / n).read_text(errors="replace") for n in listed))


def test_sizes_against_the_chip(tmp_path: Path) -> None:
    program = programs.program("ethosu")
    done = program.deploy(tmp_path / "out", target="corstone300")
    text = (tmp_path / "out" / "README.md").read_text()
    total = done.pools.total
    assert f"| sram | {total:,} | 2,097,152 | fits, {100 * total / 2097152:.1f} % of it |" in text
    assert f"| ddr | {done.program_bytes:,} |" in text
    chip = tmp_path / "small.toml"
    shipped = Path(__file__).parents[2] / "src" / "micronpu" / "chips" / "corstone300.toml"
    body = shipped.read_text().replace('name = "corstone300"', 'name = "small"')
    chip.write_text(
        body.replace("corstone300-", "small-").replace("2097152", "1024").replace('["corstone300"]', '["small"]')
    )
    done = program.deploy(tmp_path / "over", target=str(chip))
    assert f"over by {total - 1024:,} bytes" in (tmp_path / "over" / "README.md").read_text()
    assert any("too small" in note for note in done.notes)
    compiled = micronpu.compile(conv(8, 8).eval(), (image(),), str(chip), calibration=batches((image(),), 4))
    assert any("too small" in note for note in compiled.deploy(tmp_path / "own").notes)
    chip.unlink()
    for made in (compiled.deploy(tmp_path / "gone"), programs.deploy(program.buffer, tmp_path / "bare")):
        text = (made.folder / "README.md").read_text()
        assert "of unknown size: no chip is named" in text and "`micronpu deploy --for CHIP`" in text
        assert any("no chip" in note.lower() and "--for " in note for note in made.notes)


def test_vectors_of_the_user(tmp_path: Path) -> None:
    program = programs.program("ethosu_int8")
    assert program.integer_io is not None
    floats = np.linspace(-2, 2, 3 * 8 * 36, dtype=np.float32).reshape(3, 8, 6, 6)
    program.deploy(tmp_path / "floats", vectors={"x": floats})
    integers = program.integer_io.inputs[0].quantize(torch.from_numpy(floats)).numpy()
    program.deploy(tmp_path / "integers", vectors={"x": integers})
    outputs = np.concatenate([program.run(torch.from_numpy(x[None])).numpy() for x in integers])
    program.deploy(tmp_path / "both", vectors={"x": integers, "output_0": outputs})
    texts = {n: (tmp_path / n / "model_vectors.c").read_bytes() for n in ("floats", "integers", "both")}
    assert len(set(texts.values())) == 1
    assert "#define MODEL_VECTORS 3" in (tmp_path / "floats" / "model_vectors.h").read_text()


REFUSED = {
    "shape": ({"x": np.zeros((2, 8, 5, 6), np.int8)}, "shape"),
    "type": ({"x": np.zeros((2, 8, 6, 6), np.int16)}, "int16"),
    "count": ({"x": np.zeros((2, 8, 6, 6), np.int8), "y": np.zeros(3)}, "2 arrays"),
    "rows": ({"x": np.zeros((2, 8, 6, 6), np.int8), "output_0": np.zeros((3, 10), np.int8)}, "rows"),
    "empty": ({"x": np.zeros((0, 8, 6, 6), np.int8)}, "rows"),
    "outputs": (
        {"x": np.zeros((1, 8, 6, 6), np.int8), "output_0": np.zeros((1, 10), np.int8), "output_1": np.zeros(1)},
        "2 arrays for outputs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_vectors_that_do_not_fit(case: str, tmp_path: Path) -> None:
    vectors, words = REFUSED[case]
    with pytest.raises(ModelError, match=words):
        programs.program("ethosu_int8").deploy(tmp_path / "out", vectors=vectors)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    program = programs.program("neutron")
    (tmp_path / "out").mkdir()
    program.deploy(tmp_path / "out")  # an empty folder will do
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "out" / "model.h").write_text("old")
    with pytest.raises(FileError, match="force"):
        program.deploy(tmp_path / "out")
    assert (tmp_path / "out" / "model.h").read_text() == "old"
    program.deploy(tmp_path / "out", force=True)
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    assert "MODEL_PTE_BYTES" in (tmp_path / "out" / "model.h").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    with pytest.raises(FileError, match="is a file"):
        program.deploy(tmp_path / "out" / "mine.txt")
    with pytest.raises(FileError, match="does not exist"):
        program.deploy(tmp_path / "no" / "where")


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        ("ethosu", "imxrt700", "is for Ethos-U"),
        ("neutron", "corstone300", "Neutron"),
        ("ethosu", "ethos-u55-256", "ethos-u55-128"),
        ("ethosu", "nonsense", "no target"),
    ],
)
def test_target_that_cannot_take_the_program(kind: str, target: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        programs.program(kind).deploy(tmp_path / "out", target=target)


def test_reference_container_is_for_a_laptop_only(tmp_path: Path) -> None:
    done = programs.program("neutron").deploy(tmp_path / "out")
    assert any("laptop only" in note for note in done.notes)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "runs on a laptop only" in readme and "No board takes this program" in readme
    assert not any(promise in readme for promise in ("PASS:", "MICRONPU_BOARD", "fetch_constants_to_sram"))
    assert "#define MODEL_ON_DEVICE 0" in (tmp_path / "out" / "model.h").read_text()


def test_damaged_programs(tmp_path: Path) -> None:
    data = programs.program("ethosu").buffer
    for damaged in (b"", b"PK\3\4" * 100, data[: len(data) // 2], data[:200]):
        with pytest.raises(PayloadError):
            programs.deploy(damaged, tmp_path / "out")
    random = np.random.default_rng(0)
    for _ in range(200):
        image = bytearray(data)
        for position in random.integers(0, 2000, 4):
            image[position] = random.integers(256)
        try:
            plan, _ = read_plan(bytes(image))
            pools.pools_of(plan)
            strip(bytes(image))
        except MicroNpuError:
            pass
    for name in ("2nd", "a b", "", "b" * 300):
        with pytest.raises(OptionError, match=r"none in C|has 300 letters"):
            programs.deploy(data, tmp_path / "out", name=name)


def test_what_run_refuses_is_not_deployed(tmp_path: Path) -> None:
    """A damaged payload with a right digest."""
    data = programs.program("neutron").buffer
    (_, payload), *_ = read_pte(data).payloads
    image = bytearray(data)
    image[data.index(bytes(payload[:64])) + len(payload) // 2] ^= 0xFF
    damaged = with_digest_of(data, unsealed(bytes(image)))
    assert state_of(damaged) is Digest.RIGHT
    for use in (lambda: ArrayProgram(damaged), lambda: programs.deploy(damaged, tmp_path / "out")):
        with pytest.raises(PayloadError, match=r"cannot be loaded: .*checksum is wrong") as refused:
            use()
        assert not isinstance(refused.value, NotOnHostError)
    assert not (tmp_path / "out").exists()


@pytest.mark.sweep
def test_command(tmp_path: Path) -> None:
    """Without torch where the outputs are given: NumPy and the file are enough."""
    program = programs.program("ethosu_int8")
    program.save(tmp_path / "model.pte")
    rows = np.concatenate([row[0].numpy() for row in program.rows])
    outputs = np.concatenate([np.asarray(program.run(*row)) for row in program.rows])
    np.savez(tmp_path / "vectors.npz", x=rows, output_0=outputs)
    script = (
        "import sys\nfrom micronpu.cli.main import app\n"
        "try:\n    app(prog_name='micronpu')\n"
        "finally:\n    print([m for m in ('torch', 'executorch') if m in sys.modules])"
    )
    command = [sys.executable, "-c", script, "deploy", str(tmp_path / "model.pte"), "-o", str(tmp_path / "out")]
    reported = host([*command, "--for", "corstone300", "--vectors", str(tmp_path / "vectors.npz")])
    files = sum(path.is_file() for path in (tmp_path / "out").rglob("*"))
    assert f"{files} files, 4 golden vectors" in reported and files > 30
    assert reported.endswith("[]\n")
    program.deploy(tmp_path / "own", target="corstone300", vectors={"x": rows, "output_0": outputs})
    for path in (tmp_path / "own").iterdir():
        if path.is_file() and "vectors" not in path.name and path.suffix != ".md":
            assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    done = subprocess.run([*command, "--for", "imxrt700"], capture_output=True, text=True)
    assert done.returncode == 1 and "holds files already" in done.stderr


def test_inspection_has_the_same_pools() -> None:
    from micronpu.cli.inspection import inspect_pte

    program = programs.program("core")
    assert inspect_pte(program.buffer).pools == {"forward": pools.pools_of(plan_of("core"))}


def test_application_runs(tmp_path: Path) -> None:
    """`main.cpp` on this machine: the runtime and the kernels of the wheel, pools of this machine's sizes."""
    need("g++")
    folder = tmp_path / "out"
    programs.program("host").deploy(folder)
    folder = sized(folder)
    assert "PASS: 4 vectors, 0 elements differ" in host([str(built(folder, tmp_path / "app"))])
    other = tmp_path / "other"
    rows = np.concatenate([row[0].numpy() for row in programs.program("host").rows])
    outputs = np.concatenate([np.asarray(programs.program("host").run(*row)) for row in programs.program("host").rows])
    outputs[2, 7] += 1
    programs.program("host").deploy(other, vectors={"x": rows, "output_0": outputs})
    done = subprocess.run([str(built(sized(other), tmp_path / "app"))], capture_output=True, text=True)
    assert done.returncode == 1
    assert "vector 2, output 0, element 7: expected float" in done.stdout
    assert "FAIL: 4 vectors, 1 elements differ" in done.stdout


@pytest.mark.sweep
def test_programs_of_others(tmp_path: Path) -> None:
    """A program that ExecuTorch made by itself, of another delegate, of a shape that varies."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge, to_edge_transform_and_lower

    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    inputs = (torch.ones(2, 3), torch.ones(2, 3))
    exported = torch.export.export(Add().eval(), inputs)
    plain = bytes(to_edge(exported).to_executorch().buffer)
    done = programs.deploy(plain, tmp_path / "plain")
    assert (done.vectors, done.board.name) == (4, "")
    assert '"aten::add.out"' in (tmp_path / "plain" / "micronpu_kernels.cpp").read_text()
    delegated = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
    done = programs.deploy(bytes(delegated.buffer), tmp_path / "xnnpack")
    assert any("what the delegate XnnpackBackend allocates" in note for note in done.notes)
    with pytest.raises(OptionError, match="XnnpackBackend, which no target"):
        programs.deploy(bytes(delegated.buffer), tmp_path / "no", target="corstone300")
    varies = {0: torch.export.Dim("rows", min=2, max=8)}
    dynamic = torch.export.export(Add().eval(), inputs, dynamic_shapes={"x": varies, "y": varies})
    with pytest.raises(ModelError, match="shape that varies"):
        programs.deploy(bytes(to_edge(dynamic).to_executorch().buffer), tmp_path / "no")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain", "xnnpack"]


def test_core_alone(tmp_path: Path) -> None:
    """The target is the core; a chip with flash and SRAM gives verdicts on both."""
    program = programs.program("core")
    done = program.deploy(tmp_path / "core", target="cortex-m33")
    assert (done.board.core, done.board.flags.split()[0]) == ("cortex-m33", "-mcpu=cortex-m33")
    text = (tmp_path / "core" / "CMakeLists.txt").read_text()
    assert "IN ITEMS cortex_m_kernels" in text and "-DEXECUTORCH_BUILD_CORTEX_M=ON" in text
    program.deploy(tmp_path / "chip", target="nrf5340")
    readme = (tmp_path / "chip" / "README.md").read_text()
    assert f"| flash | {done.program_bytes:,} | 1,048,576 | fits" in readme
    layer = (tmp_path / "chip" / "micronpu.clayer.yml").read_text()
    assert "Machine Learning:ExecuTorch Operators:Cortex-M quantized_conv2d\n" in layer
    with pytest.raises(OptionError, match="cortex-a55"):
        program.deploy(tmp_path / "no", target="imx95")


@pytest.mark.parametrize(("own", "other", "words"), [("m33", "m55", "without Helium"), ("m55", "m33", "with Helium")])
def test_core_with_another_form_of_matrix_products(own: str, other: str, words: str, tmp_path: Path) -> None:
    """CMSIS-NN takes sums of the weights on one, the bias on the other, and does not say when it has the wrong one."""
    inputs = (torch.randn(1, 16, generator=torch.Generator().manual_seed(0)),)
    network = torch.nn.Sequential(torch.nn.Linear(16, 8)).eval()
    program = micronpu.compile(
        network, inputs, f"cortex-{own}", calibration=[inputs], quantization=micronpu.Quantization(per_channel=False)
    )
    assert "cortex_m::quantized_linear.out" in read_plan(program.buffer)[0].operators
    assert program.deploy(tmp_path / "named").board.core == f"cortex-{own}"  # the file does not name its core
    program.deploy(tmp_path / "own", target=f"cortex-{own}")
    with pytest.raises(OptionError, match=words):
        program.deploy(tmp_path / "no", target=f"cortex-{other}")


@pytest.mark.parametrize("kind", ["state", "state_int8"])
def test_states(kind: str, tmp_path: Path) -> None:
    """Bytes, places and first values of states, and the C function that sets them back."""
    made = programs.program(kind)
    made.deploy(tmp_path / "firmware")
    header = (tmp_path / "firmware" / "model.h").read_text()
    reported = {
        n: int(v) for n, v in re.findall(r"^#define MODEL_(STATE\w*|PLANNED_1_BYTES) \(?(-?\d+)\)?$", header, re.M)
    }
    (state,) = made.states
    assert reported["STATES"] == 1
    assert reported["STATE_BYTES"] == reported["STATE_0_BYTES"] == state.bytes == 48
    assert reported["STATE_0_ZERO_POINT"] == state.zero_point
    assert reported["STATE_0_OFFSET"] + 48 <= reported["PLANNED_1_BYTES"]
    (shown,) = inspect_pte(made.buffer).states["forward"]
    assert (shown.name, shown.shape, shown.element) == ("ring", (1, 8, 6), "int8")
    main = tmp_path / "main.c"
    main.write_text(
        '#include "model.h"\n#include <stdio.h>\nstatic uint8_t memory[MODEL_PLANNED_1_BYTES];\n'
        "int main(void) {\n  uint8_t* const memories[] = {memory};\n  memset(memory, 1, sizeof memory);\n"
        "  model_reset_states(memories);\n  for (int i = 0; i < MODEL_PLANNED_1_BYTES; ++i) {\n"
        '    printf("%d\\n", memory[i]);\n  }\n  return 0;\n}\n'
    )
    host(["cc", "-I", str(tmp_path / "firmware"), str(main), "-o", str(tmp_path / "main")])
    memory = np.array(host([str(tmp_path / "main")]).split(), np.uint8)
    own = slice(reported["STATE_0_OFFSET"], reported["STATE_0_OFFSET"] + 48)
    assert np.array_equal(memory[own].view(np.int8), state.initial.numpy().reshape(-1))
    assert set(np.delete(memory, own)) == {1}
    assert "`ring`" in (tmp_path / "firmware" / "README.md").read_text()
    # Golden vectors are one sequence from the first values on, whatever has run before.
    vectors = [d for d in (tmp_path / "firmware").iterdir() if d.suffix == ".bpte"]
    assert len(vectors) == 1
    made.run(*made.rows[0])
    made.deploy(tmp_path / "again")
    assert (tmp_path / "again" / "model.bpte").read_bytes() == vectors[0].read_bytes()


def test_a_program_of_executorch_with_two_methods(tmp_path: Path) -> None:
    """Header and vectors of each method, and pools for both."""
    exported = torch.export.export(torch.nn.ReLU(), (torch.zeros(2, 3),))
    data = to_edge({"prefill": exported, "decode": exported}).to_executorch().buffer
    done = programs.deploy(data, tmp_path / "firmware")
    assert done.vectors == 8 and {"model.h", "model_decode.h", "model_prefill.h"} <= set(done.files)


class Keeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(x)
        return self.kept * 2.0


def test_methods_that_would_overwrite_each_others_states_are_refused(tmp_path: Path) -> None:
    """ExecuTorch plans a state into the memory that whichever method runs is given, unless told otherwise."""
    exported = torch.export.export(Keeps(), (torch.ones(1, 4),))
    data = bytes(to_edge({"a": exported, "b": exported}).to_executorch().buffer)
    with pytest.raises(MicroNpuError, match="which its methods a, b share"):
        programs.deploy(data, tmp_path / "firmware")
    assert not (tmp_path / "firmware").exists()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"name": 'forward";int x;//'}, "a method called"),
        ({"name": "forward\n#include <x>"}, "a method called"),
        ({"operators": ("aten::add.out\n- evil: yes",)}, "an? operator called"),
        ({"states": ["h */ int x; /*"]}, "a state called"),
        ({"states": ["h\\"]}, "a state called"),
        ({"delegates": (Delegate("B", b"", (("external_weights", b'"../../x"'),)),)}, "a file of data called"),
    ],
)
def test_names_of_a_program_stay_names_in_the_sources(names: dict[str, Any], found: str) -> None:
    """Of a stranger's program they would be C, CMake, YAML or Markdown of the firmware."""
    plan, _ = read_plan(programs.program("neutron").buffer)
    _check_names("It", plan, ["blocks.0.state_1"])
    changed = dataclasses.replace(plan, **{k: v for k, v in names.items() if k in ("name", "delegates")})
    if "operators" in names:
        changed = types.SimpleNamespace(name="forward", operators=names["operators"], delegates=())  # type: ignore[assignment]
    with pytest.raises(PayloadError, match=found):
        _check_names("It", changed, names.get("states", []))
