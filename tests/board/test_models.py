"""Programs in Arm's own runners on emulated boards: the integers of this machine, refusals, states, limits."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError, OptionError, UnsupportedError
from micronpu.board import BoardError, VirtualBoard, read_model
from micronpu.board.check import MachineOptions, check_on_board, reference
from micronpu.board.runners import find_runner
from micronpu.board.session import check_fits
from micronpu.compiler.program import CompiledProgram
from micronpu.deploy.vectors import made_up
from micronpu.ethosu import EthosUOptions
from micronpu.targets.ethosu.payload import missing_blocks
from tests.board.needed import need_runners
from tests.compile.targets.ethosu.test_prefetch import compiled, part_of
from tests.deploy import programs

pytestmark = pytest.mark.filterwarnings("ignore")
GOLDEN = Path(__file__).parents[1] / "golden" / "ethosu-litert.pte"


@pytest.fixture(autouse=True)
def _runners() -> None:
    need_runners()


def check(data: bytes, board: str = "corstone300", **options: object) -> None:
    model = read_model(data)
    outcome = check_on_board(model, made_up(model.inputs, reference(model)), board, MachineOptions(**options))  # type: ignore[arg-type]
    assert outcome.equal and outcome.vectors == 4 and outcome.compared.elements >= 16, list(outcome.lines())
    assert outcome.cycles > 0 and outcome.runs % 4 == 0


def test_golden_program() -> None:
    arrays = np.load(GOLDEN.with_suffix(".npz"))
    with VirtualBoard(read_model(GOLDEN.read_bytes())) as board:
        for _ in range(2):
            (found,) = board.run(arrays["input_0"])
            assert np.array_equal(found, arrays["output_0"])
        assert "CPU: Cortex-M55" in board.output and board.output.count("1 output tensor/s worth 4 bytes") == 2
        assert len(board.runs) == 2 and board.accesses > 80


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["ethosu", "ethosu_int8", "ethosu_int16", "state_int8"])
def test_programs(kind: str) -> None:
    """Floats, which the core quantizes; int8; int16; and states that live on from vector to vector."""
    check(programs.program(kind).buffer)


@pytest.mark.sweep
@pytest.mark.parametrize("classes", [40, 500])
def test_prefetched_weights(classes: int) -> None:
    """By transfers that Vela knows nothing of, in Arm's own driver; the larger one in parts, too."""
    program = compiled("corstone300", classes)
    prefetch = part_of(program).prefetch
    assert prefetch is not None and prefetch.size > 50_000
    check(program.buffer)


@pytest.mark.parametrize("board", ["corstone300", "corstone310"])
@pytest.mark.parametrize("kind", ["ethosu_int8", "ethosu_int16"])
def test_litert_models(kind: str, board: str) -> None:
    check(programs.program(kind).to_litert(vela=True), board)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("accelerator", "mode"),
    [
        ("ethos-u55-128", "Shared_Sram"),
        ("ethos-u55-128", "Sram_Only"),
        ("ethos-u65-256", "Shared_Sram"),
        ("ethos-u65-256", "Sram_Only"),
        ("ethos-u65-256", "Dedicated_Sram"),
    ],
)
def test_memory_modes(accelerator: str, mode: str) -> None:
    """Where Vela puts tensors and weights is another matter to the driver: regions, limits and base pointers."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)).eval()
    rows = [torch.randn(1, 3, 20, 20) for _ in range(2)]
    options = EthosUOptions(accelerator, memory_mode=mode)
    program = micronpu.compile(
        network, rows[0], accelerator, calibration=rows, options=options, quantization=micronpu.Quantization(io="int8")
    )
    check(program.to_litert(vela=True))
    if accelerator.startswith("ethos-u55"):  # Arm's ExecuTorch runner for a U65 is not in the package
        check(program.buffer)


def test_in_python() -> None:
    program = programs.program("ethosu_int8")
    (x,) = program.rows[0]
    assert torch.equal(program.run(x), program.run(x, on="corstone300"))
    assert torch.equal(program.run(x), program.run(x, on="corstone310"))  # as a LiteRT model
    with program.board(seconds=60) as board:
        for row in program.rows[:2]:
            assert np.array_equal(board.run(row[0].numpy())[0], program.run(*row).numpy())
    with pytest.raises(OptionError, match="`fast`, `check` and `profile` are not available"):
        program.run(x, on="corstone300", fast=True)
    with pytest.raises(UnsupportedError, match="calls the delegate NeutronBackend"):
        programs.program("neutron_int8").run(x, on="corstone300")


def test_states_begin_again_after_a_reset() -> None:
    program = programs.program("state_int8")
    model = read_model(program.buffer)
    rng = np.random.default_rng(0)
    rows = [rng.integers(-128, 128, model.inputs[0].tensor.shape).astype(np.int8) for _ in range(3)]
    with VirtualBoard(model) as board:
        first = [board.run(x)[0] for x in rows]
        board.reset()
        assert all(np.array_equal(a, board.run(x)[0]) for a, x in zip(first, rows, strict=True))
        board.reset()
        assert not np.array_equal(board.run(rows[2])[0], first[2]), "the state says nothing"


def test_a_difference_is_found() -> None:
    model = read_model(GOLDEN.read_bytes())
    rows = made_up(model.inputs, reference(model))
    wrong = [tuple(a.copy() for a in row) for row in rows.outputs]
    wrong[2][0][0, 3] ^= 1
    outcome = check_on_board(model, replace(rows, outputs=tuple(wrong)), "corstone300")
    assert not outcome.equal and outcome.compared.differing == 1 and outcome.compared.first is not None
    assert (outcome.compared.first.vector, outcome.compared.first.output, outcome.compared.first.element) == (2, 0, 3)
    assert int(outcome.compared.first.board) ^ 1 == int(outcome.compared.first.wanted)
    assert "first difference: vector 2, output 0, element 3" in "\n".join(outcome.lines())
    assert json.dumps(outcome.to_dict())


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("bus", r"Ethos-U invocation failed error \(-1\)\. The NPU has stopped with a bus error, on purpose"),
        ("hang", "within 3 seconds"),
        # The driver asks 100,000 times whether the reset is over, twice.
        pytest.param("reset", "Failed to initialise Ethos-U device", marks=pytest.mark.slow),
    ],
)
def test_faults_reach_the_driver(fault: str, said: str) -> None:
    model = read_model(GOLDEN.read_bytes())
    with (
        VirtualBoard(model, seconds=3 if fault == "hang" else 300, fault=fault) as board,
        pytest.raises(BoardError, match=said),
    ):
        board.run(np.zeros((1, 2, 6, 5), np.int8))


def test_another_npu_is_refused_by_the_driver() -> None:
    model = read_model(GOLDEN.read_bytes())
    with (
        VirtualBoard(model, accelerator="ethos-u55-256") as board,
        pytest.raises(
            BoardError, match=r"failed error \(-1\)\. The model is for ethos-u55-128, and the board has ethos-u55-256"
        ),
    ):
        board.run(np.zeros((1, 2, 6, 5), np.int8))


def test_interrupts_as_late_as_the_estimate() -> None:
    """At 0.001 MHz the 507 cycles take half a second; the counters say so, too."""
    model = read_model(GOLDEN.read_bytes())
    with VirtualBoard(model, clock_hz=1000.0) as board:
        board.run(np.zeros((1, 2, 6, 5), np.int8))
        run = board.runs[0]
        assert f"NPU TOTAL: {run.cycles} cycles" in board.output and 100 < run.cycles < 2000


def test_what_is_refused_before_the_start() -> None:
    model = read_model(GOLDEN.read_bytes())
    with pytest.raises(OptionError, match="no ExecuTorch runner for corstone310"):
        VirtualBoard(model, "corstone310")
    with pytest.raises(OptionError, match=r"corstone320 with an Ethos-U85\. Try: `micronpu deploy` and"):
        find_runner("corstone320", "pte", "u85")
    with pytest.raises(UnsupportedError, match=r"no part for an Ethos-U: .* Try: `micronpu run`, .*once for the core"):
        read_model(GOLDEN.with_name("cortexm.pte").read_bytes())
    with pytest.raises(OptionError, match=r"has no ethos-u85-256"):
        VirtualBoard(model, accelerator="ethos-u85-256")
    with pytest.raises(UnsupportedError, match=r"calls cortex_m::quantized_add\.out, and Arm's runner"):
        check_fits(replace(model, operators=("cortex_m::quantized_add.out", "aten::add.out")), b"aten::add.out\0", 1000)
    scalar = replace(model.outputs[0], tensor=replace(model.outputs[0].tensor, shape=(), dim_order=()))
    with pytest.raises(UnsupportedError, match="The output 0 of the model has no axes, and Arm's runner ends"):
        check_fits(replace(model, outputs=(scalar,)), b"", 2 << 20)
    with pytest.raises(UnsupportedError, match="its planned memory takes 3,000,000 bytes of 2,097,152"):
        check_fits(replace(model, planned=3_000_000), b"", 2 << 20)
    with pytest.raises(UnsupportedError, match=r"the file takes 40,\d{3},\d{3} bytes"):
        check_fits(replace(model, data=bytes(40_000_000)), b"", 2 << 20)
    with VirtualBoard(model) as board:
        with pytest.raises(ModelError, match=r"Input 0 of the model must be int8.* but float32.*Try: the integers"):
            board.run(np.zeros((1, 2, 6, 5), np.float32))
        with pytest.raises(ModelError, match="takes 1 input, but 0 were given"):
            board.run()
        assert not board.output, "nothing was started"
    swapped = np.arange(60, dtype=">i2").reshape(1, 2, 6, 5)
    wide = replace(model, inputs=(replace(model.inputs[0], tensor=replace(model.inputs[0].tensor, scalar_type=2)),))
    assert wide.pack([swapped]) == wide.pack([swapped.astype("<i2")])


def test_ten_boards_at_once() -> None:
    arrays = np.load(GOLDEN.with_suffix(".npz"))
    model = read_model(GOLDEN.read_bytes())

    def run(_: int) -> bool:
        with VirtualBoard(model) as board:
            return np.array_equal(board.run(arrays["input_0"])[0], arrays["output_0"])

    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(run, range(10)))


def damaged(program: CompiledProgram | bytes, number: int) -> bytes:
    """A copy with a byte of its command stream changed."""
    data = bytearray(program if isinstance(program, bytes) else program.buffer)
    begin = data.index(b"COP1")
    rng = np.random.default_rng(number)
    data[begin + int(rng.integers(0, 2000))] ^= 1 << int(rng.integers(8))
    return bytes(data)


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(6))
def test_damaged_streams_end_in_a_sentence_or_in_numbers(number: int) -> None:
    """The firmware or the board refuses, or something else is computed; nothing hangs."""
    try:
        with VirtualBoard(read_model(damaged(GOLDEN.read_bytes(), number)), seconds=600) as board:
            board.run(np.zeros((1, 2, 6, 5), np.int8))
    except MicroNpuError as error:
        assert "within" not in str(error), error


def test_methods_one_by_one(tmp_path: Path) -> None:
    """Arm's runner loads the first method: each is put there in turn, and keeps its states from call to call."""
    from typer.testing import CliRunner

    from micronpu.cli.main import app
    from tests.compile.state_rows import ROWS, sequences

    own, x = ROWS["slices"](), torch.zeros(1, 8)
    program = micronpu.compile(
        {"forward": (own, (x,)), "only": (torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval(), (x,))},
        target="corstone300",
        calibration={"forward": sequences(), "only": [(x,)] * 2},
        quantization=micronpu.Quantization(io="int8"),
    )
    path = program.save(tmp_path / "both.pte")
    done = CliRunner().invoke(app, ["board", "run", str(path), "--json"])
    assert done.exit_code == 0, done.output
    reported = json.loads(done.stdout)["methods"]
    assert [one["equal"] for one in reported] == [True, True] and "method only" in reported[1]["name"]
    assert all(one["runs"] >= 4 for one in reported)
    with program.board(method="only") as board:
        rows = np.arange(8, dtype=np.int8).reshape(1, 8)
        assert np.array_equal(board.run(rows)[0], program.run(torch.from_numpy(rows), method="only").numpy())
    with pytest.raises(MicroNpuError, match="has no method 'nothing'"):
        read_model(program.buffer, method="nothing")


@pytest.mark.sweep
def test_weights_of_several_methods() -> None:
    """They stand beside the payloads, where Arm's runner does not look: it is given them inside."""
    from tests.compile.targets.ethosu.test_shared_weights import compiled as methods

    program = methods("ethos-u55-128", "int8")
    assert all(missing_blocks(part.payload) for method in program.methods.values() for part in method.partitions)
    for method in program.methods:
        model = read_model(program.buffer, method=method)
        outcome = check_on_board(model, made_up(model.inputs, reference(model)), "corstone300")
        assert outcome.equal and outcome.vectors == 4 and outcome.compared.elements >= 16, list(outcome.lines())
