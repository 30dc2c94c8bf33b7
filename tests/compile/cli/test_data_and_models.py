"""Pictures as calibration data, models of libraries by name, files of custom operators, an ETRecord."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
import types
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from micronpu.base.errors import FileError, ModelError, OptionError
from micronpu.cli.files import load_model, register
from micronpu.cli.main import app
from micronpu.cli.sources import Pictures
from micronpu.runtime import HostProgram

pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = """
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval(), torch.randn(1, 3, 8, 12)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures = tmp_path / "pictures"
    (pictures / "inner").mkdir(parents=True)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (16, 24, 3)).astype(np.uint8)).save(pictures / "b.png")
    Image.fromarray(np.full((30, 12, 3), (255, 0, 128), np.uint8)).save(pictures / "inner" / "a.bmp")
    Image.fromarray(np.full((8, 12), 64, np.uint8)).save(pictures / "a.png")  # a grey one
    (pictures / "notes.txt").write_text("no picture")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_numbers_of_pictures(folder: Path) -> None:
    example = (torch.zeros(1, 3, 8, 12),)
    loaded = list(Pictures(folder / "pictures").load(example))
    assert [list(x.shape) for x in loaded] == [[1, 3, 8, 12]] * 3 and all(x.dtype is torch.float32 for x in loaded)
    assert torch.equal(loaded[0], torch.full((1, 3, 8, 12), 64 / 255))  # in the order of their names
    wanted = torch.tensor([255.0, 0.0, 128.0]).reshape(1, 3, 1, 1)
    assert torch.equal(loaded[2], (wanted / 255).expand(1, 3, 8, 12))
    symmetric = list(Pictures(folder / "pictures", "-1..1").load(example))[2]
    assert torch.allclose(symmetric, (wanted / 255 * 2 - 1).expand(1, 3, 8, 12), atol=1e-6)
    imagenet = list(Pictures(folder / "pictures", "imagenet").load(example))[2]
    mean, spread = (torch.tensor(v).reshape(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    assert torch.allclose(imagenet, ((wanted / 255 - mean) / spread).expand(1, 3, 8, 12), atol=1e-6)
    grey = next(Pictures(folder / "pictures").load((torch.zeros(1, 1, 8, 12),)))
    assert torch.equal(grey, torch.full((1, 1, 8, 12), 64 / 255))


def test_a_picture_of_another_shape_is_cut_in_its_middle(tmp_path: Path) -> None:
    columns = np.zeros((8, 24, 3), np.uint8)
    columns[:, 8:16] = 200
    Image.fromarray(columns).save(tmp_path / "wide.png")
    (found,) = Pictures(tmp_path).load((torch.zeros(1, 3, 8, 8),))
    assert torch.equal(found, torch.full((1, 3, 8, 8), 200 / 255))


def test_compile_with_pictures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments = ["compile", "model.py:net", "-t", "ethos-u55-128", "--images", "pictures", "--normalize", "-1..1"]
    done = CliRunner().invoke(app, [*arguments, "-o", "out.pte", "--etrecord", "out.bin"])
    assert done.exit_code == 0, done.output
    assert "Calibrated with pictures: 3 inputs" in done.output and "Wrote out.bin" in done.output
    assert (folder / "out.pte").stat().st_size > 1000 and (folder / "out.bin").stat().st_size > 1000


def test_a_program_on_pictures_and_when_what_of_it_ran(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.output

    def fails(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 1 and done.exception.__class__ is SystemExit, done.output
        return " ".join(done.output.split())

    (folder / "ops.py").write_text("open('registered', 'a').write('x')\n")
    call("compile", "model.py:net", "-t", "ethos-u55-128", "--images", "pictures", "-o", "out.pte")
    shown = call("evaluate", "model.py:net", "out.pte", "--images", "pictures", "--library", "ops.py", "--json")
    assert json.loads(shown[shown.index("{") :])["rows"] == 3 and (folder / "registered").read_text() == "x"
    assert "There are no inputs" in fails("evaluate", "model.py:net", "out.pte")
    assert "--images and --data" in fails(
        "evaluate", "model.py:net", "out.pte", "--images", "pictures", "--data", "x.npy"
    )

    np.save("x.npy", np.zeros((1, 3, 8, 12), np.float32))
    call("run", "out.pte", "-i", "x.npy", "--trace", "here.json", "--profile", "board.etdump")
    call("run", "out.pte", "--recorded", "board.etdump", "--trace", "board.json")
    for name in ("here.json", "board.json"):
        events = json.loads((folder / name).read_text())["traceEvents"]
        spans = {e["name"]: e for e in events if e["ph"] == "X"}
        whole, inside = spans["DELEGATE_CALL"], [e for e in spans.values() if e["tid"] == 1]
        assert min(e["ts"] for e in spans.values()) == 0 and "convolution" in {e["name"] for e in inside}
        for event in inside:  # on one clock with what called them
            assert whole["ts"] <= event["ts"] and event["ts"] + event["dur"] <= whole["ts"] + whole["dur"]
    assert "--recorded needs --trace" in fails("run", "out.pte", "--recorded", "board.etdump")
    assert "x.npy is no ETDump" in fails("run", "out.pte", "--recorded", "x.npy", "--trace", "no.json")
    (folder / "half.etdump").write_bytes((folder / "board.etdump").read_bytes()[:64])
    assert "half.etdump is no ETDump" in fails("run", "out.pte", "--recorded", "half.etdump", "--trace", "no.json")
    assert "--trace records one run" in fails("run", "out.pte", "-i", "x.npy", "--rows", "--trace", "no.json")
    assert not (folder / "no.json").exists()


def test_a_baseline_in_float(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["compile", "model.py:net", "--float", "-o", "base.pte"])
    assert done.exit_code == 0 and "in float, nothing on an NPU" in done.output, done.output
    model, x = load_model("model.py:net").module, torch.randn(1, 3, 8, 12)
    with HostProgram(folder / "base.pte") as program, torch.no_grad():
        torch.testing.assert_close(program.run(x)[0], model(x))
    for other in (["-t", "imxrt700"], ["--images", "pictures"], ["--quantization", "int16"]):
        done = CliRunner().invoke(app, ["compile", "model.py:net", "--float", "-o", "no.pte", *other])
        assert done.exit_code == 1 and "--float makes ExecuTorch's own program, for which --" in done.output
    assert not (folder / "no.pte").exists()


@pytest.mark.parametrize("side", (10_000, 30_000))
def test_a_picture_that_says_it_is_huge_is_refused(side: int, folder: Path) -> None:
    """A header of 33 bytes: neither is room made for it nor does Pillow warn on the side."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(head)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (folder / "pictures" / "huge.png").write_bytes(data + b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FileError, match=r"huge\.png is no picture that can be read: Image size"):
            list(Pictures(folder / "pictures").load((torch.zeros(1, 3, 8, 12),)))


def test_bad_pictures(folder: Path, tmp_path: Path) -> None:
    example = (torch.zeros(1, 3, 8, 12),)
    with pytest.raises(OptionError, match="--normalize is about pictures"):
        Pictures(None, "imagenet").check()
    with pytest.raises(OptionError, match="are both typical inputs"):
        Pictures(folder).check("rows.npz")
    with pytest.raises(OptionError, match="There is no normalization '0-1'"):
        Pictures(folder, "0-1").check()
    with pytest.raises(FileError, match="There is no folder"):
        Pictures(folder / "none").check()
    (folder / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no pictures"):
        list(Pictures(folder / "empty").load(example))
    for wrong in ((torch.zeros(1, 4, 8, 8),), (torch.zeros(2, 3, 8, 8),), example * 2, (torch.zeros(1, 8),)):
        with pytest.raises(ModelError, match=r"and pictures are float32\[1, 3, height, width\]"):
            list(Pictures(folder / "pictures").load(wrong))
    with pytest.raises(OptionError, match="is for 3 channels, and the input has 1"):
        list(Pictures(folder / "pictures", "imagenet").load((torch.zeros(1, 1, 8, 8),)))
    (folder / "pictures" / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(FileError, match=r"c\.png is no picture that can be read"):
        list(Pictures(folder / "pictures").load(example))


def need(library: str) -> None:
    """Skips where a library is not installed."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "text", ["torchvision:squeezenet1_1", "torchvision:fcn_resnet50", "timm:mobilenetv3_small_050"]
)
def test_models_by_name(text: str) -> None:
    library, _, name = text.partition(":")
    need(library)
    model = load_model(f"{text}:untrained")
    assert model.name == name and not model.module.training
    assert list(model.examples[0].shape) == [1, 3, 224, 224]


@pytest.mark.sweep
def test_a_torchvision_for_another_torch(tmp_path: Path) -> None:
    """Its compiled operators are missing, which its networks do not call."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "models.py").write_text(
        "import torch\n"
        "def list_models(): return ['small']\n"
        "def get_model_builder(name): return lambda weights: torch.nn.Conv2d(3, 2, 3)\n"
    )
    (package / "__init__.py").write_text(
        "import torch\nfor name in ('nms', 'qnms'):\n    torch.library.register_fake(f'torchvision::{name}')(print)\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from micronpu.cli.files import load_model\n"
        "print(type(load_model('torchvision:small:untrained').module).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "Conv2d\n", done.stderr


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Something with the functions of timm, which is not installed everywhere."""
    made = types.ModuleType("timm")
    made.list_models = lambda pretrained=False: ["small", "small.in1k"] if pretrained else ["small"]  # type: ignore[attr-defined]

    def create_model(name: str, pretrained: bool) -> torch.nn.Module:
        if pretrained:
            raise OSError("no route to host")
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3))
        network.default_cfg = {"input_size": (3, 32, 40)}  # type: ignore[assignment]
        return network

    made.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", made)
    return made


def test_a_model_of_a_library(library: types.ModuleType) -> None:
    model = load_model("timm:small:untrained")
    assert model.name == "small" and not model.module.training and list(model.examples[0].shape) == [1, 3, 32, 40]
    with pytest.raises(ModelError, match=r"timm cannot make small with its weights: OSError: no route to host\."):
        load_model("timm:small")
    with pytest.raises(ModelError, match=r"timm has no model 'smal'\. Try: one of its 3, such as small"):
        load_model("timm:smal")


@pytest.mark.parametrize("text", ["torchvision:", "timm:resnet18:later", "keras:resnet-18"])
def test_names_of_no_model(text: str) -> None:
    with pytest.raises(ModelError, match="names no model"):
        load_model(text)


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"is a model of timm, which is not installed\. Try: pip install timm"):
        load_model("timm:resnet18")


def test_custom_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_ops.py").write_text(
        "import torch\n\n"
        '@torch.library.custom_op("mine::twice", mutates_args=())\n'
        "def twice(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n\n"
        "@twice.register_fake\ndef _(x):\n    return torch.empty_like(x)\n"
    )
    (tmp_path / "model.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.ops.mine.twice(x)\n\ndef net():\n    return Net().eval(), torch.randn(1, 4)\n"
    )
    (tmp_path / "raises.py").write_text('raise OSError("my library is not built")\n')
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["check", "model.py:net", "-t", "ethos-u55-128", "--library", "my_ops.py"])
    assert "twice" in done.output and "has no attribute" not in done.output, done.output
    with pytest.raises(ModelError, match=r"raises\.py cannot be imported in line 1: OSError: my library is not built"):
        register(["raises.py"])
    with pytest.raises(ModelError, match=r"There is no file none\.py"):
        register(["none.py"])


@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700-neutron"])
def test_where_the_time_goes(folder: Path, target: str) -> None:
    """Every step with its parts; their sum is no more than the whole."""
    (folder / "m.py").write_text(MODEL + "\ndef calibration(): return [torch.randn(1, 3, 8, 12) for _ in range(3)]\n")
    path = folder / "times.json"
    words = ["compile", f"{folder / 'm.py'}:net", "-t", target, "-o", str(folder / "net.pte"), "--no-cache"]
    done = CliRunner().invoke(app, [*words, "--profile", str(path)])
    assert done.exit_code == 0 and "Compiling for the NPU" in done.output, done.output
    reported = json.loads(path.read_text())
    steps = [row["step"] for row in reported["parts"] if not row["part"]]
    assert {"load", "export", "quantize", "partition", "compile", "lower", "verify"} == set(steps)
    assert sum(row["seconds"] for row in reported["parts"] if not row["part"]) <= reported["seconds"]
    parts = {row["part"] for row in reported["parts"]}
    assert any(part.startswith("pass ") for part in parts)
    assert ({"Vela"} if target.startswith("ethos") else {"converter"}) <= parts
    done = CliRunner().invoke(app, [*words, "--profile", str(folder)])
    assert done.exit_code == 1 and done.stderr.startswith("Error: ")


CALIBRATED = MODEL + "\ndef calibration():\n    return [torch.randn(1, 3, 8, 12) for _ in range(4)]\n"


def test_deploy_compiles_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run = CliRunner()
    refused = {
        ("deploy", "model.py:net", "-t", "cortex-m55", "-o", "out"): "micronpu compile model.py:net -t cortex-m55",
        ("deploy", "model.py:net", "-o", "out"): "--for TARGET",
        ("board", "run", "model.py:net"): "micronpu compile model.py:net -t corstone300",
        ("board", "run", "model.py:net", "--gdb", "localhost:1"): "micronpu compile model.py:net",
        ("deploy", "model.py", "-t", "cortex-m55", "-o", "out"): "model.py:FUNCTION",
    }
    for command, text in refused.items():
        found = run.invoke(app, command)
        assert found.exit_code == 1 and text in " ".join(found.output.split()), found.output
    (folder / "model.py").write_text(CALIBRATED)
    found = run.invoke(app, ["deploy", "model.py:net", "-t", "cortex-m55", "-o", "out", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["vectors"] > 0
    again = run.invoke(app, ["compile", "model.py:net", "-t", "cortex-m55", "-o", "net.pte", "--deploy", "same"])
    assert again.exit_code == 0, again.output
    assert (folder / "out" / "model.pte").read_bytes() == (folder / "same" / "model.pte").read_bytes()


@pytest.mark.sweep
def test_every_command_with_data_takes_pictures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run, rng = CliRunner(), np.random.default_rng(1)
    for number in range(24):
        Image.fromarray(rng.integers(0, 256, (8, 12, 3)).astype(np.uint8)).save(folder / "pictures" / f"{number}.png")
    for command, more in {"blame": [], "fix": ["--time-limit", "1"], "advise": [], "compare": []}.items():
        both = ["--data" if command in ("blame", "fix") else "--calibration", "x.npy"]
        found = run.invoke(app, [command, "model.py:net", "-t", "cortex-m55", "--images", "pictures", *both])
        assert found.exit_code == 1 and "both typical inputs" in " ".join(found.output.split()), found.output
        found = run.invoke(app, [command, "model.py:net", "-t", "cortex-m55", "--images", "pictures", *more])
        assert found.exit_code == 0, found.output
