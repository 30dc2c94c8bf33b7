"""The quantized network as one LiteRT model: its integers are the program's, and Vela takes it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from torch import nn

import micronpu
from micronpu.base.errors import OptionError, UnsupportedError
from micronpu.compiler.program import CompiledProgram
from micronpu.emit.litert import to_litert
from micronpu.ir.interpreter import interpret
from micronpu.program.plan import read_plan
from micronpu.targets.ethosu import payload
from micronpu.targets.whole import whole_network
from tests.compile.small import Small, batches, conv, image
from tests.deploy import programs


def model_of(data: bytes) -> Any:
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))


def litert(data: bytes) -> tuple[Interpreter, Any]:
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    return interpreter, interpreter.get_signature_runner("serving_default")


def check_integers(program: CompiledProgram, rows: list[tuple[torch.Tensor, ...]]) -> int:
    """Runs a program with integer inputs and its LiteRT model; how many elements were compared, all of them equal."""
    _, run = litert(program.to_litert())
    compared = 0
    for row in rows:
        names = sorted(run.get_input_details())
        given = {name: tensor.numpy() for name, tensor in zip(names, row, strict=True)}
        found = run(**given)
        expected = program.run(*row)
        for number, tensor in enumerate(expected if isinstance(expected, tuple) else (expected,)):
            assert np.array_equal(found[f"output_{number}"], tensor.numpy())
            compared += tensor.numel()
    return compared


def test_the_same_integers(tmp_path: Path) -> None:
    program = programs.program("neutron_int8")
    assert check_integers(program, list(program.rows)) == 40
    path = program.save(tmp_path / "model.tflite")
    # The network is the same, whether the program takes floats or integers, and whatever it was compiled for.
    assert path.read_bytes() == programs.program("neutron").to_litert() == programs.program("ethosu").to_litert()


def test_int16_activations() -> None:
    """Against the definition of the arithmetic; an Ethos-U rounds as Vela's stream says."""
    program = programs.program("ethosu_int16")
    assert isinstance(program.quantized, torch.fx.GraphModule)
    network = whole_network(program.quantized)
    _, run = litert(network.data)
    for row in program.rows:
        (expected,) = interpret(network.graph, [row[0].numpy()])
        found = run(**{network.inputs[0]: row[0].numpy()})["output_0"]
        assert found.dtype == np.int16 and np.array_equal(found, expected)


def _both(self: Any, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.relu(self.a(second)) + first
    return self.a(z), z, second * 2


def test_names_and_order_of_several_inputs() -> None:
    inputs = (image(1, 8, 6, 6), image(1, 8, 6, 6) * 3)
    network = Small(_both, a=conv(8, 8))
    program = micronpu.compile(
        network,
        inputs,
        "imxrt700-neutron",
        calibration=batches(inputs, 4),
        quantization=micronpu.Quantization(io="int8"),
    )
    assert check_integers(program, list(program.rows)) == 4 * 3 * 288
    interpreter, run = litert(program.to_litert())
    assert program.integer_io is not None
    for io, name in zip(program.integer_io.inputs, sorted(run.get_input_details()), strict=True):
        scale, zero = run.get_input_details()[name]["quantization"]
        assert (np.float32(io.scale), io.zero_point) == (np.float32(scale), zero)
    assert [d["name"] for d in interpreter.get_input_details()] == ["inputs_0", "inputs_1"]
    assert sorted(run.get_output_details()) == ["output_0", "output_1", "output_2"]


def test_metadata() -> None:
    model = model_of(programs.program("ethosu").to_litert())
    (reported,) = [model.buffers[m.buffer].data for m in model.metadata if m.name == b"micronpu"]
    assert json.loads(bytes(reported)) == {
        "micronpu": micronpu.__version__,
        "inputs": ["inputs_0"],
        "outputs": ["output_0"],
    }
    assert [s.signatureKey for s in model.signatureDefs] == [b"serving_default"]


def test_what_cannot_be_in_it_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"`atan2.*small\.py:\d+"):
        programs.program("two").save(tmp_path / "model.tflite")
    assert not list(tmp_path.iterdir())


def test_vela_needs_an_ethos_u_alone(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no part for an NPU that LiteRT Micro has an operator for"):
        programs.program("neutron").save(tmp_path / "model.tflite", vela=True)
    with pytest.raises(OptionError, match="is for a LiteRT model"):
        programs.program("ethosu").save(tmp_path / "model.pte", vela=True)
    assert not list(tmp_path.iterdir())


def shape_of(model: Any) -> Any:
    """What LiteRT Micro's kernel depends on."""
    (operator,), graph = model.subgraphs[0].operators, model.subgraphs[0]
    (code,) = model.operatorCodes
    kinds = [(t.name, t.type, t.buffer > 0) for t in (graph.tensors[i] for i in operator.inputs)]
    io = [
        (
            graph.tensors[i].name,
            graph.tensors[i].type,
            list(graph.tensors[i].shape),
            graph.tensors[i].quantization.scale,
        )
        for i in (*graph.inputs, *graph.outputs)
    ]
    return (
        (code.builtinCode, code.deprecatedBuiltinCode, code.customCode, code.version),
        bytes(operator.customOptions),
        operator.customOptionsFormat,
        kinds,
        io,
        list(operator.outputs) == list(graph.outputs),
    )


def allocation(model: Any) -> list[int]:
    (data,) = [model.buffers[m.buffer].data for m in model.metadata if m.name == b"OfflineMemoryAllocation"]
    return list(np.frombuffer(bytes(data), "<i4"))


def test_optimised_model_is_as_vela_writes_it(tmp_path: Path) -> None:
    """Vela's command takes the plain model, and writes what has the form of ours; ours has the program's stream."""
    program = programs.program("ethosu_int8")
    program.save(tmp_path / "model.tflite")
    vela = Path(sys.executable).parent / "vela"
    command = [str(vela), str(tmp_path / "model.tflite"), "--output-dir", str(tmp_path)]
    command += ["--accelerator-config", "ethos-u55-128", "--system-config", "Ethos_U55_High_End_Embedded"]
    done = subprocess.run([*command, "--memory-mode", "Shared_Sram"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU operators = 0" in done.stdout
    theirs = model_of((tmp_path / "model_vela.tflite").read_bytes())
    own = model_of(program.to_litert(vela=True))
    assert shape_of(own) == shape_of(theirs)
    ((delegate,),) = ((d for d in read_plan(program.buffer)[0].delegates),)
    held = payload.parse(delegate.payload)
    graph = own.subgraphs[0]
    stream, constants, scratch, fast, *_ = (graph.tensors[i] for i in graph.operators[0].inputs)
    # Not a byte more: the driver would take it for an action.
    assert bytes(own.buffers[stream.buffer].data) == held.commands
    assert bytes(own.buffers[constants.buffer].data)[: len(held.constants)] == held.constants
    assert list(scratch.shape) == [held.scratch_size] and fast is not None
    assert allocation(own)[:6] == allocation(theirs)[:6] == [0, 1, 5, -1, -1, 0]
    assert allocation(own)[6:] == [held.inputs[0].address, held.outputs[0].address]


def offsets(data: bytes) -> list[int]:
    """Where the contents of each buffer begin in the file."""
    model = schema.Model.GetRootAs(data)
    buffers = [model.Buffers(i) for i in range(model.BuffersLength())]
    tables = [buffer._tab for buffer in buffers if not buffer.DataIsNone()]
    return [table.Vector(table.Offset(4)) for table in tables]


@pytest.mark.parametrize(
    ("kind", "vela"),
    [
        *((kind, False) for kind in ("ethosu_int8", "ethosu_int16", "neutron_int8", "state_int8")),
        *((kind, True) for kind in ("ethosu_int8", "ethosu_int16")),
    ],
)
def test_contents_begin_at_multiples_of_16(kind: str, vela: bool) -> None:
    """The schema asks for it, and Arm's driver refuses a command stream that does not."""
    data = programs.program(kind).to_litert(vela=vela)
    found = offsets(data)
    assert len(found) >= 3 and not [offset for offset in found if offset % 16]
    # The offsets are those of contents: they are found there.
    longest = max(model_of(data).buffers, key=lambda b: 0 if b.data is None else len(b.data))
    assert bytes(longest.data) in [data[at : at + len(longest.data)] for at in found]


def test_contents_in_payloads_begin_at_multiples_of_16() -> None:
    for part in programs.program("neutron").partitions:
        data = to_litert(part.graph).data
        assert offsets(data) and not [offset for offset in offsets(data) if offset % 16]


def test_optimised_model_needs_a_single_call() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.atan2(torch.relu(x), x)

    inputs = (image(),)
    program = micronpu.compile(Net().eval(), inputs, "ethos-u55-128", calibration=batches(inputs))
    with pytest.raises((UnsupportedError, OptionError)):
        program.to_litert(vela=True)


def test_command(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()).eval(), (torch.randn(1, 8, 6, 6),)\n"
        "def calibration():\n    return [(torch.randn(1, 8, 6, 6),) for _ in range(3)]\n"
    )
    assert importlib.util.find_spec("micronpu.cli") is not None
    from typer.testing import CliRunner

    from micronpu.cli.main import app

    arguments = ["compile", f"{tmp_path / 'net.py'}:net", "-t", "ethos-u55-128", "-o"]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "net.tflite"), "--vela"])
    assert done.exit_code == 0, done.output
    assert model_of((tmp_path / "net.tflite").read_bytes()).operatorCodes[0].customCode == b"ethos-u"
    command = [*arguments, str(tmp_path / "net.pte"), "--deploy", str(tmp_path / "firmware")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "3 golden vectors" in done.output
    assert "calibration rows" in (tmp_path / "firmware" / "README.md").read_text()
    (tmp_path / "net.pte").unlink()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1 and not (tmp_path / "net.pte").exists()
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "net.pte"), "--vela"])
    assert done.exit_code == 1 and not (tmp_path / "net.pte").exists()
