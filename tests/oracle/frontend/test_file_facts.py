"""What a model file states about its inputs and outputs arrives in the program, the header and `evaluate`."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from tests.oracle.frontend.litert_files import FileWriter
from tests.runtime import neutron_programs as programs
from tests.tools import need
from typer.testing import CliRunner

import micronpu
from micronpu.cli.inspection import inspect_pte
from micronpu.cli.main import app
from micronpu.deploy.deployment import Source, deploy_together
from micronpu.frontend.model_files import read_model
from micronpu.frontend.model_files.metadata import of_onnx
from micronpu.program.file_facts import FileFacts
from micronpu.program.io import FILE_KEY, file_facts_of
from micronpu.program.pte import read_pte

SCALES = {"input": (0.03, 7), "output": (0.25, -9)}


def linear(dtype: str = "int8") -> FileWriter:
    """One dense layer of a quantized file; its input is of a type."""
    random, file = np.random.default_rng(0), FileWriter()
    scale, zero = SCALES["input"]
    x = file.tensor([1, 16], dtype, scale, zero + (128 if dtype == "uint8" else 0))
    x8 = x if dtype == "int8" else file.add("QUANTIZE", [x], [file.tensor([1, 16], "int8", scale, zero)])
    weight = file.constant(random.integers(-127, 128, (4, 16), np.int8), 0.02)
    bias = file.constant(random.integers(-99, 99, 4, np.int32), 0.02 * scale)
    y = file.tensor([1, 4], "int8", *SCALES["output"])
    file.add("FULLY_CONNECTED", [x8, weight, bias], [y], "FullyConnectedOptions")
    file.ends([x], [y])
    return file


def written(file: FileWriter, folder: Path) -> Path:
    path = folder / "net.tflite"
    path.write_bytes(file.data())
    return path


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "cortex-m55", "imxrt700"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_qparams_of_a_quantized_file(dtype: str, target: str, tmp_path: Path):
    path = written(linear(dtype), tmp_path)
    program = micronpu.compile(path, target=target)
    shift = 128 if dtype == "uint8" else 0
    assert program.integer_io is not None
    (given,), (made,) = program.integer_io.inputs, program.integer_io.outputs
    assert made is not None
    assert (given.dtype, given.zero_point, made.dtype, made.zero_point) == (dtype, 7 + shift, "int8", -9)
    assert np.float32(given.scale) == np.float32(0.03) and np.float32(made.scale) == np.float32(0.25)
    deploy_together([Source(program.buffer)], tmp_path / "out")  # the file alone has them, too
    header = (tmp_path / "out" / "model.h").read_text()
    assert f"#define MODEL_INPUT_0_ZERO_POINT ({7 + shift})" in header and "model_quantize_input_0" in header
    assert "#define MODEL_OUTPUT_0_SCALE 0.25f" in header and "model_dequantize_output_0" in header
    assert "not recorded" not in (tmp_path / "out" / "README.md").read_text()
    assert [tensor.place for tensor in inspect_pte(program.buffer).methods["forward"]] == [
        f"t0, 0.0299999993 * (q - {7 + shift})",
        f"t{4 if dtype == 'uint8' else 3}, 0.25 * (q + 9)",
    ]


def test_numbers_are_given_to_a_quantized_file(tmp_path: Path):
    """They go into `evaluate` and `run`, although the file's own inputs and outputs are integers."""
    path = written(linear(), tmp_path)
    program = micronpu.compile(path, target="cortex-m55")
    rows = np.random.default_rng(1).uniform(-3, 3, (32, 16)).astype(np.float32)
    integers = np.clip(np.rint(rows / np.float32(0.03)) + 7, -128, 127).astype(np.int8)
    runtime = programs.interpreter(path.read_bytes())
    labels = np.array([programs.invoke(runtime, row[None])[0][0].argmax() for row in integers])
    found = micronpu.evaluate(read_model(path).module, rows, program.buffer, labels)
    assert found.program.score is not None and found.program.score.value == 1.0
    assert found.program.against_float is not None and found.program.against_float.largest <= 0.25 + 1e-6
    program.save(tmp_path / "net.pte")
    np.savez(tmp_path / "rows.npz", x=rows.astype(np.float64), q=integers)
    both = []
    for name in ("x", "q"):
        words = ["run", str(tmp_path / "net.pte"), "-i", f"{tmp_path}/rows.npz:{name}", "--rows", "--json"]
        both.append(json.loads(CliRunner().invoke(app, words).stdout))
    assert both[0]["outputs"] == both[1]["outputs"] and not both[1]["notes"]
    assert "0.0299999993 * (q - 7)" in both[0]["notes"][0]
    with pytest.raises(micronpu.ModelError, match=r"float32\[1, 16\] was given\. Try: the integers of the numbers"):
        program.run(torch.from_numpy(rows[:1]))


NAMES = ("cat", 'a "dog"', "Löwe??/", "*/ \\ snake")


def metadata(labels: str, *, axis: int = 2) -> bytes:
    """Metadata with a normalization of the input, a name and a label file of the output."""
    b = flatbuffers.Builder(256)

    def table(**fields: Any) -> int:
        """A table; fields are named by their number and kind."""
        b.StartObject(8)
        for field, value in fields.items():
            number = int(field[1:])
            if field[0] == "o":
                b.PrependUOffsetTRelativeSlot(number, value, 0)
            else:
                b.PrependByteSlot(number, value, 0)
        return b.EndObject()

    def tables(one: int) -> int:
        b.StartVector(4, 1, 4)
        b.PrependUOffsetTRelative(one)
        return b.EndVector()

    def floats(*values: float) -> int:
        return b.CreateNumpyVector(np.array(values, np.float32))

    options = table(o0=floats(127.5), o1=floats(127.5))
    given = table(o0=b.CreateString("image"), o4=tables(table(b0=1, o1=options)))
    file = table(o0=b.CreateString(labels), b2=axis)
    made = table(o0=b.CreateString("scores"), o6=tables(file))
    graph = table(o2=tables(given), o3=tables(made))
    b.Finish(table(o3=tables(graph)), b"M001")
    return bytes(b.Output())


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_rows_of_a_quantized_file_are_its_own_integers(dtype: str, tmp_path: Path):
    """`evaluate` takes them for the floats that they mean, and a compilation tells what it has no use for."""
    path = written(linear(dtype), tmp_path)
    integers = np.random.default_rng(2).integers(*((0, 256) if dtype == "uint8" else (-128, 128)), (64, 16), dtype)
    floats = (integers.astype(np.float32) - (7 + 128 * (dtype == "uint8"))) * np.float32(0.03)
    labels = np.random.default_rng(3).integers(0, 4, 64)
    checks = micronpu.Verification(metric="top1")
    rows = list(torch.from_numpy(integers).split(1))
    program = micronpu.compile(
        path, target="cortex-m55", calibration=rows, quantization={"equalize": True}, verify=checks
    )
    notes = "\n".join(program.report.notes)
    assert "calibration data, quantization, the metric; `micronpu evaluate` measures it" in notes
    assert "compared with LiteRT's when it was read" in notes
    assert "change nothing" not in "\n".join(micronpu.compile(path, target="cortex-m55").report.notes)
    module = read_model(path).module
    ours, theirs = (micronpu.evaluate(module, x, program, labels) for x in (integers, floats))
    assert ours.program.score == theirs.program.score and ours.program.against_float == theirs.program.against_float
    assert ours.notes == theirs.notes and ours.notes[-1].startswith("The quantized model itself is right on ")
    with pytest.raises(
        micronpu.ModelError, match=rf"int16, the model .* Try: values as in training, or the .*: {dtype}, 0\.03 "
    ):
        micronpu.evaluate(module, integers.astype(np.int16), program)


def test_the_command_takes_rows_of_a_quantized_file(tmp_path: Path):
    path, data = str(written(linear(), tmp_path)), str(tmp_path / "rows.npz")
    np.savez(data, x=np.zeros((8, 16), np.int8), y=np.arange(8) % 4)
    pte, judged = str(tmp_path / "net.pte"), ["--data", f"{data}:x", "--labels", f"{data}:y"]

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, words)
        return f"{done.exit_code} {' '.join((done.output + done.stderr).split())}"

    compiled = said("compile", path, "-t", "cortex-m55", "-o", pte, *judged, "--budget", "accuracy=0.01")
    assert compiled.startswith("0 ") and "change nothing" not in compiled
    compiled = said("compile", path, "-t", "cortex-m55", "-o", pte, *judged, "--metric", "top1")
    assert "change nothing: samples to judge on, the metric; `micronpu evaluate`" in compiled
    assert "quantized model" in said("evaluate", path, pte, *judged)
    assert f"but 2 were given. Try: --input {data}:x." in said("run", pte, "--input", data)
    for command in ("run", "inspect"):
        assert "is a model, and a compiled program is expected. Try: micronpu compile" in said(command, path)


def described(folder: Path, content: bytes, name: str = "labels.txt") -> Path:
    """A quantized file with metadata and a label file behind it."""
    file, buffer, entry = linear(), schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(metadata(name), np.uint8)
    entry.name, entry.buffer = b"TFLITE_METADATA", len(file.model.buffers)
    file.model.buffers.append(buffer)
    file.model.metadata = [entry]
    path = written(file, folder)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("labels.txt", content)
    path.write_bytes(path.read_bytes() + archive.getvalue())
    return path


def test_labels_and_normalization_of_litert_metadata(tmp_path: Path):
    path = described(tmp_path, "\n".join(NAMES).encode() + b"\n")
    program = micronpu.compile(path, target="cortex-m55")
    text = "\n".join(program.report.notes)
    assert program.labels == NAMES
    assert "`evaluate`: cat, " in text and "and 1 more." in text and "[127.5] / [127.5]" in text
    deploy_together([Source(program.buffer)], tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "MODEL_LABELS" in readme and "input_0, image" in readme and "mean 127.5" in readme
    (tmp_path / "main.c").write_text(
        '#include "model.h"\n#include <stdio.h>\nstatic const char *const labels[] = MODEL_LABELS;\n'
        "static const float mean[] = MODEL_INPUT_0_MEAN;\n"
        "int main(void) {\n  for (int i = 0; i < MODEL_LABELS_COUNT; i++) puts(labels[i]);\n"
        '  printf("%s %s %g\\n", MODEL_INPUT_0_NAME, MODEL_OUTPUT_0_NAME, (double)mean[0]);\n  return 0;\n}\n'
    )
    need("gcc")
    command = ["gcc", "-std=c99", "-Wall", "-Werror", "-I", "out", "main.c", "-o", "a"]
    subprocess.run(command, check=True, cwd=tmp_path)
    printed = subprocess.run([tmp_path / "a"], check=True, capture_output=True).stdout.decode()
    assert printed.splitlines() == [*NAMES, "image scores 127.5"]
    rows = np.random.default_rng(1).uniform(-3, 3, (8, 16)).astype(np.float32)
    module = read_model(path).module
    numbers = np.arange(8) % 4
    by_name, by_number = (
        micronpu.evaluate(module, rows, program.buffer, y).program for y in (np.array(NAMES)[numbers], numbers)
    )
    assert by_name.score == by_number.score and by_name.score is not None and by_name.score.value > 0
    with pytest.raises(micronpu.ModelError, match=r"no label 'bird'.*cat"):
        micronpu.evaluate(module, rows, program.buffer, ["bird"] * 8)


@pytest.mark.parametrize(
    ("content", "name", "why"),
    [
        (b"a\n" * 20_000, "labels.txt", "20,000 labels"),
        (b"a" * (2 << 20), "labels.txt", "more than"),
        (b"a", "other.txt", "other.txt"),
    ],
)
def test_labels_that_cannot_be_read_are_a_note(content: bytes, name: str, why: str, tmp_path: Path):
    path = described(tmp_path, content, name)
    program = micronpu.compile(path, target="cortex-m55")
    assert program.integer_io is not None
    assert any("left out" in note and why in note for note in program.report.notes)
    deploy_together([Source(program.buffer)], tmp_path / "out")
    assert "LABELS" not in (tmp_path / "out" / "model.h").read_text()


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{0: 'person', 1: \"dog's\", 2: 'a\\'b'}", ("person", "dog's", "a'b")),
        ('["a", "b\\n"]', ("a", "b")),
        ("a, b,c", ("a", "b", "c")),
        ("{0: 'a', 2: 'b'}", ()),
        ("{0: __import__('os')}", ()),
        ("[" * 1000, ()),
        ("[1, 2]", ()),
    ],
)
def test_labels_of_onnx_properties(text: str, labels: tuple[str, ...]):
    found = of_onnx([("stride", "32"), ("names", text)], FileFacts(("x",)))
    assert found.labels == labels and found.inputs == ("x",)
    assert bool(found.notes) != bool(labels)


def test_an_onnx_file_names_its_tensors_and_classes(tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    sides = [[helper.make_tensor_value_info(name, number, [1, 3])] for name in ("pixels", "scores")]
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["pixels"], ["scores"])], "g", *sides))
    helper.set_model_props(model, {"names": "{0: 'a', 1: 'b', 2: 'c'}"})
    model.ir_version, model.opset_import[0].version = 8, 17
    onnx.save(model, tmp_path / "net.onnx")
    data = [torch.randn(1, 3) for _ in range(8)]
    program = micronpu.compile(tmp_path / "net.onnx", target="cortex-m55", calibration=data)
    facts = file_facts_of(read_pte(program.buffer).named_data, "")
    assert facts == FileFacts(("pixels",), ("scores",), ("a", "b", "c"))
    assert any("`evaluate`: a, b, c." in note for note in program.report.notes)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_of_a_quantized_onnx_file(dtype: str, tmp_path: Path):
    """They mean what the first DequantizeLinear and the last QuantizeLinear say, to `evaluate` and in the program."""
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node
    kind, shift = getattr(onnx.TensorProto, dtype.upper()), 128 if dtype == "uint8" else 0
    random = np.random.default_rng(4)
    weight = random.integers(-90, 90, (4, 16), "int8")
    constants = {
        **{"sx": np.float32(0.03), "zx": np.array(7 + shift, dtype), "w": weight, "sw": np.float32(0.01)},
        **{"sy": np.float32(0.25), "zy": np.array(shift - 9, dtype)},
    }
    nodes = [
        node("DequantizeLinear", ["x", "sx", "zx"], ["real"]),
        node("DequantizeLinear", ["w", "sw"], ["weight"]),
        node("Gemm", ["real", "weight"], ["sums"], transB=1),
        node("QuantizeLinear", ["sums", "sy", "zy"], ["y"]),
    ]
    given, made = (onnx.helper.make_tensor_value_info(n, kind, s) for n, s in (("x", [1, 16]), ("y", [1, 4])))
    tensors = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "net", [given], [made], tensors)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    program = micronpu.compile(tmp_path / "net.onnx", target="ethos-u55-128")
    assert program.integer_io is not None
    (x,), (y,) = program.integer_io.inputs, program.integer_io.outputs
    assert y is not None and (x.name, x.dtype, x.zero_point) == ("x", dtype, 7 + shift)
    assert (y.dtype, y.zero_point, np.float32(y.scale)) == (dtype, shift - 9, np.float32(0.25))
    integers = random.integers(shift - 128, shift + 128, (32, 16)).astype(dtype)
    floats = (integers.astype(np.float32) - (7 + shift)) * np.float32(0.03)
    right = (floats @ weight.T.astype(np.float32)).argmax(1)
    module = read_model(tmp_path / "net.onnx").module
    ours, theirs = (micronpu.evaluate(module, rows, program, right) for rows in (integers, floats))
    assert ours.program.score is not None and ours.program.score.value > 0.9
    assert ours.program.score == theirs.program.score and ours.notes == theirs.notes == ()


def test_damaged_facts_of_a_program_are_refused():
    for data in (b"[1]", b'[[],[],[],[["x",[[1],[1]]]]]', b"[[],[],3,[]]"):
        with pytest.raises(micronpu.PayloadError, match="model file is damaged"):
            file_facts_of({FILE_KEY: data}, "")
    long = json.dumps([["\x1b[2J" + "n" * 999], [], [], [[0, [[1.0], [0.0]]]]]).encode()
    facts = file_facts_of({FILE_KEY: long}, "")
    assert len(facts.inputs[0]) == 200 and facts.inputs[0].startswith("?[2J") and not facts.normalization
