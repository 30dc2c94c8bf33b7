"""Bad input ends in one sentence with what, where, why and what to try: in Python and on the command line."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compile.refusals import failed, refused, sentence
from torch import nn
from torch.export import Dim, export

import micronpu
from micronpu.base.errors import FileError, ModelError, OptionError, PayloadError
from micronpu.runtime import HostProgram
from micronpu.targets.neutron.options import NeutronOptions


class Net(nn.Module):
    """[n, 2, 6, 6] -> [n, 4]"""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.drop = nn.Dropout()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.conv(x)).mean((2, 3))))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


X = torch.linspace(-1, 1, 72).reshape(1, 2, 6, 6)
GOOD = [X, -X]


@pytest.fixture(scope="module")
def program():
    return micronpu.compile(net(), X, "imxrt700", calibration=GOOD)


@pytest.fixture(scope="module")
def pte(program, tmp_path_factory) -> Path:
    return program.save(tmp_path_factory.mktemp("programs") / "net.pte")


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\0b", "import", 'x", None) or exec("raise KeyError") or ("'])
@pytest.mark.parametrize("kind", ["add_module", "register_buffer", "an exported program"])
def test_names_that_torch_cannot_write_into_source(name, kind):
    class Named(nn.Module):
        def forward(self, x):
            return getattr(self, name)(x) if kind != "register_buffer" else x + getattr(self, name)

    model = Named()
    if kind == "register_buffer":
        model.register_buffer(name, torch.ones(4))
    else:
        model.add_module(name, nn.Linear(4, 4))
    given = export(model, (torch.ones(1, 4),)) if kind == "an exported program" else model.eval()
    with pytest.raises(ModelError, match="which torch cannot write as Python") as caught:
        micronpu.compile(given, torch.ones(1, 4), "imxrt700", calibration=[torch.ones(1, 4)])
    sentence(caught.value)


# --- calibration data ---------------------------------------------------------------------------------------------

WRONG = "Calibration item 1, input 0 "
CALIBRATION = {
    "none": (
        None,
        "A float model needs calibration data",
        "quantized tensors. Try: calibration=[...] with some",
    ),
    "empty": ([], "The calibration data is empty. Try: pass some dozens of typical inputs."),
    "no rows": (np.zeros((0, 2, 6, 6), np.float32), "The calibration data is empty."),
    "shape": ([X, X[:, :, :5]], WRONG, "has shape [1, 2, 5, 6], the model takes [1, 2, 6, 6]. Try: shape the data"),
    "channels last": (
        [X, X.movedim(1, -1)],
        WRONG,
        "has shape [1, 6, 6, 2], the",
        "Try: channels first: x.movedim(-1, -3)",
    ),
    "channels last, one row": (
        [X, X[0].movedim(0, -1).numpy()],
        WRONG,
        "has shape [6, 6, 2], the",
        "x.movedim(-1, -3)",
    ),
    "rank": ([X, X[0, 0]], WRONG, "has shape [6, 6], the model takes [1, 2, 6, 6]."),
    "dtype": ([X, X.int()], WRONG, "has dtype int32, the model takes float32. Try: values as in training"),
    "dtype of NumPy": ([X, X.numpy().astype(np.uint16)], WRONG, "has dtype uint16, the model takes float32."),
    "number": ([X, (X, X)], "Calibration item 1 has 2 inputs, the model has 1. Try: give one tuple of inputs per item"),
    "labels": ([(X, 3)], "Calibration item 0 has 2 inputs, the model has 1.", "without labels."),
    "NaN": ([X, X / 0], WRONG, "holds NaN or infinity, from which no range can be learnt. Try: look for missing"),
    "text": ([X, "x"], WRONG, "is a str, not a tensor. Try: give tensors or NumPy arrays"),
    "objects": ([X, np.array([[None] * 2])], WRONG, "is a NumPy array of object, not a tensor."),
    "dictionary": ({"x": X}, "Calibration data is of type dict, not a list of inputs. Try: [x1, x2, ...]."),
    "path": ("x.npy", "Calibration data is of type str, not a list of inputs. Try: numpy.load(path)."),
    "number as data": (7, "Calibration data is of type int, not a list of inputs."),
}


@pytest.mark.parametrize("name", CALIBRATION)
def test_calibration(name):
    data, *parts = CALIBRATION[name]
    refused(lambda: micronpu.compile(net(), X, "imxrt700", calibration=data), ModelError, *parts)


def test_calibration_that_torch_cannot_share_memory_with(program):
    """Foreign byte order, negative strides, read-only: the same numbers, the same program."""
    array = torch.cat(GOOD).numpy()
    frozen = array.copy()
    frozen.flags.writeable = False
    for same in (array.astype(">f4"), np.flip(array, 3).copy()[..., ::-1], frozen):
        assert micronpu.compile(net(), X, "imxrt700", calibration=same).buffer == program.buffer


class Log(nn.Module):
    def forward(self, x):
        return torch.relu(torch.log(x)) + 1


def test_not_finite_inside_the_model():
    model, node, good = Log(), "log", X.abs() + 1
    line = model.forward.__code__.co_firstlineno + 1
    refused(
        lambda: micronpu.compile(model.eval(), X.abs(), "imxrt700", calibration=[good, X]),
        ModelError,
        f"`{node}` ({__file__}:{line}) computes NaN or infinity with calibration item 1, so that it has no range.",
        "Try: a finite number such as -30 in a mask instead of infinity; otherwise look for a division by zero",
    )


class Growing(nn.Module):
    def forward(self, x):
        for _ in range(5):
            x = torch.relu(x) * 1e10
        return x


@pytest.mark.parametrize("quantization", ["int8", "int16"])
def test_values_beyond_float32_inside_the_model(quantization: str):
    """Calibration in float64 has finite values there, whose scale is infinite as a float32."""
    data = [X.abs() + 1]
    refused(
        lambda: micronpu.compile(Growing().eval(), X, "ethos-u85-256", calibration=data, quantization=quantization),
        ModelError,
        "`relu_4` (",
        "computes NaN or infinity with calibration item 0",
        "or values that grow from layer to layer",
    )


# --- models -------------------------------------------------------------------------------------------------------


def in_training(name: str) -> nn.Module:
    model = net()
    model.get_submodule(name).train()
    return model


def with_nan() -> nn.Module:
    model = net()
    model.conv.bias.data[3] = float("nan")
    return model


def dynamic():
    return export(net(), (torch.cat([X, X]),), dynamic_shapes=({0: Dim("batch")},))


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Overlapping(nn.Module):
    """Two buffers of the same elements, one of them written."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(1, 2, 6, 6)
        self.register_buffer("past", memory)
        self.register_buffer("part", memory[:, :, :4])

    def forward(self, x):
        self.past.copy_(x + self.past)
        return x + self.part.sum()


class Positions(nn.Module):
    def forward(self, x):
        return torch.nonzero(torch.relu(x))


OTHER = "Try: the inputs that the program was exported with."
MODELS = {
    "training": (lambda: (in_training(""), X), "The model Net is in training mode", "Try: model.eval() before"),
    "part in training": (lambda: (in_training("drop"), X), "`drop` (Dropout) of the model Net is in training mode"),
    "dynamic shapes": (
        lambda: (dynamic(), torch.cat([X, X])),
        "of `x` is only known at run time; an NPU program has fixed shapes. Try: export without dynamic_shapes.",
    ),
    "positions": (
        lambda: (Positions().eval(), X),
        "of `nonzero` is only known at run time",
        "choose in the application",
    ),
    "shared buffers": (
        lambda: (Overlapping().eval(), X),
        "cannot write changes in place",
        "clones in `past` and `part`",
    ),
    "branch": (lambda: (Branch().eval(), X), "cannot trace Branch", "branches on the value", "Try: torch.where"),
    "NaN weights": (lambda: (with_nan(), X), "The parameter `conv.bias` of the model holds NaN", "Try: look for a tr"),
    "no module": (lambda: (np.tanh, X), "The model is of type ufunc", "neither", "Try: pass the module itself"),
    "path of weights": (lambda: ("net.pth", X), "The model is of type str", "Try: model = Net(); model.load_state"),
    "path of a program": (lambda: (Path("net.pt2"), X), "neither a torch.nn.Module", "Try: torch.export.load(path)"),
    "class": (lambda: (Net, X), "The model is of type type", "Try: pass the module itself, compile(Net().eval()"),
    "no examples": (
        lambda: (net(), ()),
        "`example_inputs` is a tuple of nothing; it is a tuple of tensors. Try: (torch.r",
    ),
    "examples of numbers": (
        lambda: (net(), [1, 2]),
        "`example_inputs` is a list of int, int; it is a tuple of tensors.",
    ),
    "example of texts": (
        lambda: (net(), np.array(["a"])),
        "`example_inputs` is of type ndarray; it is a tuple of tenso",
    ),
    "example of integers": (lambda: (net(), X.to(torch.uint8)), "Input type (unsigned char)", "x.float() for integers"),
    "example shape": (lambda: (net(), X[:, :1]), "torch.export cannot trace Net", "to have 2 channels, but got 1"),
    "example features": (
        lambda: (nn.Linear(8, 4).eval(), (torch.zeros(1, 9),)),
        "cannot trace Linear",
        "[1, 9] X [8, 4]",
    ),
    "example number": (lambda: (net(), (X, X)), "torch.export cannot trace Net", "too many positional arguments). Try"),
    "program shape": (
        lambda: (export(net(), (X,)), X[..., :5]),
        f"Example input 0 is float32[1, 2, 6, 5], but the program takes float32[1, 2, 6, 6]. {OTHER}",
    ),
    "program dtype": (
        lambda: (export(net(), (X,)), X.double()),
        f"Example input 0 is float64[1, 2, 6, 6], but the program takes float32[1, 2, 6, 6]. {OTHER}",
    ),
    "program number": (
        lambda: (export(net(), (X,)), (X, X)),
        f"`example_inputs` holds 2 tensors, but the program takes 1. {OTHER}",
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("call", ["compile", "check"])
def test_model(name, call, capfd):
    make, *parts = MODELS[name]
    model, examples = make()
    logged = Logged()
    shapes = logging.getLogger("torch._subclasses.fake_tensor")
    shapes.addHandler(logged)
    refused(lambda: getattr(micronpu, call)(model, examples, "imxrt700", calibration=GOOD), ModelError, *parts)
    shapes.removeHandler(logged)
    printed = capfd.readouterr()
    assert printed.out == ""
    # torch prints the graph up to the branch; holding that back would take stderr from other threads.
    assert name == "branch" or printed.err == ""
    assert logged.texts == []


class Logged(logging.Handler):
    """Keeps what is logged; torch's own handler writes to the stderr that there was when it was imported."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def test_half_precision_is_computed_as_float32():
    program = micronpu.compile(net().half(), X.half(), "imxrt700", calibration=[X.half()])
    assert program.report.delegated == program.report.operators > 0
    assert any("float16 is computed as float32" in note for note in program.report.notes)


def test_unknown_target_names_the_nearest():
    with pytest.raises(OptionError) as caught:
        micronpu.compile(net(), X, "imxrt7000", calibration=GOOD)
    text = sentence(caught.value)
    assert text.startswith("There is no target 'imxrt7000'. Try: imxrt700, ")
    with pytest.raises(OptionError, match=r"no target 'ethos-u55'\. Try: ethos-u55-128, ethos-u55-256, ethos-u55-32;"):
        micronpu.compile(net(), X, "ethos-u55", calibration=GOOD)


def test_options_for_another_chip():
    refused(
        lambda: micronpu.compile(net(), X, "imxrt700", calibration=GOOD, options=NeutronOptions("imx95")),
        OptionError,
        'The target is imxrt700, but the options are for imx95. Try: NeutronOptions("imxrt700").',
    )


# --- files --------------------------------------------------------------------------------------------------------


def truncated(pte: Path, path: Path) -> Path:
    path.write_bytes(pte.read_bytes()[:-100])
    return path


def test_programs_that_are_none(pte, tmp_path):
    cases = {
        truncated(pte, tmp_path / "cut.pte"): (
            "cut.pte is truncated: it has",
            "Try: copy or export the file again.",
        ),
        tmp_path / "empty.pte": ("empty.pte is empty, so it is not an ExecuTorch program.", "Try:"),
        tmp_path / "text.pte": (
            "text.pte is not an ExecuTorch program (.pte): its 4000 bytes",
            "Try: pass a .pte file",
        ),
    }
    (tmp_path / "empty.pte").write_bytes(b"")
    (tmp_path / "text.pte").write_bytes(b"text" * 1000)
    for path, parts in cases.items():
        refused(lambda path=path: HostProgram(path), PayloadError, *parts)
        assert parts[0] in failed("run", path, "-i", tmp_path / "x.npy")
    missing = tmp_path / "missing.pte"
    refused(
        lambda: HostProgram(missing), PayloadError, "missing.pte cannot be read: No such file", "Try: check the path"
    )
    assert f"{missing} cannot be read: No such file or directory. Try: check the path" in failed("run", missing)


def test_inputs_that_do_not_fit(program):
    refused(lambda: program.run(), ModelError, "takes 1 input (float32[1, 2, 6, 6]), but 0 were given.", "Try: pass")
    refused(lambda: program.run(X, X), ModelError, "takes 1 input ", "but 2 were given.")
    refused(
        lambda: program.run(X[:, 0]), ModelError, "must be float32[1, 2, 6, 6], but float32[1, 6, 6] was given. Try"
    )
    refused(lambda: program.run(X.int()), ModelError, "but int32[1, 2, 6, 6] was given. Try: tensor.to(torch.float32)")
    refused(lambda: program.run(X.tolist()), ModelError, "must be a tensor", "but a list was given. Try: torch.as_te")


def test_arrays_and_doubles_are_converted_as_in_calibration(program):
    expected = program.run(X)
    for given in (X.numpy(), X.double(), X.double().numpy(), X.numpy().astype(">f8")):
        assert torch.equal(program.run(given)[0], expected[0])


def test_output_folder_that_does_not_exist(program, tmp_path):
    path = tmp_path / "no" / "net.pte"
    refused(
        lambda: program.save(path), FileError, f"{path} cannot be written: the folder {path.parent} does not exist."
    )
    refused(lambda: program.report.to_html(path), FileError, f"Try: mkdir -p {path.parent}.")
    assert not path.parent.exists()


def test_a_full_disk_leaves_the_old_file(program, tmp_path):
    """The limit on the size of files stands for it: the write fails half-way."""
    path = tmp_path / "net.pte"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(program.buffer) // 2, limits[1]))
    try:
        refused(lambda: program.save(path), FileError, f"{path} cannot be written: File too large.", "Try: another")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("net.pte", b"old")]
    program.save(path)
    assert path.read_bytes() == program.buffer


# --- command line -------------------------------------------------------------------------------------------------

FILE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()).eval(), (torch.zeros(1, 2, 6, 6),)

def training(): return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout()), (torch.zeros(1, 2, 6, 6),)
def alone(): return net()[0]
def triple(): return (*net(), 3)
def swapped(): return net()[::-1]
def numbers(): return net()[0], (1, 2)
def nothing(): return None
def fails(): raise RuntimeError("no such\\nweights.")
def leaves(): raise SystemExit(3)
def needs(path): return net()
def nan(): return [torch.full((1, 2, 6, 6), float("nan"))]
def short(): return [torch.zeros(1, 2, 5, 6)]
def number(): return 7
def breaks_off():
    yield torch.zeros(1, 2, 6, 6)
    raise OSError("the disk is gone")
"""


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    (tmp_path / "broken.py").write_text("import torch\n\ndef net(:\n")
    (tmp_path / "raises.py").write_text("import no_such_library\n")
    (tmp_path / "own.py").write_text(FILE + "def calibration(): return [torch.zeros(1, 2, 6, 6)]\n")
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "text.pt2").write_text("text")
    np.save("x.npy", X.numpy())
    np.save("ints.npy", np.zeros((1, 2, 6, 6), np.int64))
    np.save("words.npy", np.array(["a"]))
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    np.save("rows.npy", np.zeros((5, 2, 6, 5), np.float32))
    np.savez("two.npz", a=X.numpy(), b=X.numpy())
    return tmp_path


HINT = "Try: return model.eval(), (torch.randn(1, 3, 32, 32),)."
DEBUG = "Try: --debug, which shows the traceback."
COMMANDS = {
    "compile none.py:net": "There is no file none.py. Try: check the path.",
    "compile .:net": ". is a folder. Try: a file in it, model.py:function.",
    "compile m.py": "'m.py' names no model. Try: m.py:FUNCTION.",
    "compile m.py:": "'m.py:' names no model. Try: path/to/file.py:function, a file .tflite, .onnx or .pt2",
    "compile net": "'net' names no model.",
    "compile net.pth": "'net.pth' is a pickle or TorchScript, which is not loaded. Try: a function in net.py",
    "compile m.py:nett": "m.py has no function 'nett'. Try: one of net, training, alone, triple,",
    "compile m.py:fails": f"`fails` of m.py raised an error in line 15: RuntimeError: no such. {DEBUG}",
    "compile m.py:leaves": f"`leaves` of m.py raised an error in line 16: SystemExit: 3. {DEBUG}",
    "compile m.py:needs": "`needs` of m.py cannot be called without arguments: missing a required argument: 'path'.",
    "compile m.py:alone": f"`alone` of m.py returns a Sequential, not a pair of the model and its example "
    f"inputs. {HINT}",
    "compile m.py:nothing": "`nothing` of m.py returns a NoneType, not a pair of the model and its example inputs.",
    "compile m.py:triple": "`triple` of m.py returns 3 values, not a pair",
    "compile m.py:swapped": "`swapped` of m.py returns a tuple where the torch.nn.Module is expected.",
    "compile m.py:numbers": "`numbers` of m.py returns as example inputs a tuple of int, int, not a tuple of tensors.",
    "compile m.py:training": "The model Sequential is in training mode",
    "compile broken.py:net": f"broken.py cannot be imported in line 3: SyntaxError: invalid syntax (broken.py, line "
    f"3). {DEBUG}",
    "compile raises.py:net": "raises.py cannot be imported in line 1: ModuleNotFoundError: No module named",
    "compile none.pt2": "There is no file none.pt2. Try: check the path.",
    "compile text.pt2": "text.pt2 is no program that torch can load: ",
    "compile m.py:net": "A float model needs calibration data to choose the ranges of its quantized tensors. Try: "
    "--calibration inputs.npy (or .npz), --calibration file.py:function, or a function `calibration` in m.py.",
    "compile own.py:net -t rt700": "There is no target 'rt700'. Try: imxrt700",
    "compile own.py:net -o no/net.pte": "no/net.pte cannot be written: the folder no does not exist. Try: mkdir -p no.",
    "compile own.py:net -o .": ". cannot be written: it is a folder. Try: a file in it, NAME.",
    "compile own.py:net --report-html no/r.html": "no/r.html cannot be written: the folder no does not exist.",
    "compile own.py:net --report-json m.py/r": "m.py/r cannot be written: m.py is a file, not a folder.",
    "compile own.py:net --disabled-passes x": "There is no pass 'x' to leave out. Try: one of ",
    "compile own.py:net --operators-not-to-delegate x": "There is no operator 'x' in `operators_not_to_delegate`.",
    "compile m.py:net --calibration none.npz": "There is no file none.npz. Try: check the path; a .npy or .npz file",
    "compile m.py:net --calibration m.py:nan": "Calibration item 0, input 0 holds NaN or infinity",
    "compile m.py:net --calibration m.py:short": "Calibration item 0, input 0 has shape [1, 2, 5, 6], the model takes",
    "compile m.py:net --calibration m.py:number": "`number` of m.py gives a value of type int, not a list of",
    "compile m.py:net --calibration m.py:breaks_off": "`breaks_off` of m.py raised an error in line 23: OSError: the",
    "compile m.py:net --calibration text.npy": "text.npy cannot be read as .npy or .npz: ",
    "compile m.py:net --calibration .": ". is a folder. Try: --images . for its pictures; or a .npy or .npz file.",
    "compile m.py:net --calibration m.py": "m.py cannot be read as .npy or .npz: it is neither. Try: save it with",
    "compile m.py:net --calibration objects.npy": "objects.npy cannot be read as .npy or .npz: it holds Python "
    "objects, which are not loaded. Try: numpy.array(rows, numpy.float32)",
    "compile m.py:net --images x.npy": "x.npy is a file, not a folder of pictures. Try: --calibration x.npy.",
    "compile m.py:net --calibration x.npy --quantization equalization": "which is no type and no file. Try: int8, "
    "int16, auto, accurate, or the path of a TOML file; settings without a value are equalize, ",
    "check net.pte": "net.pte is a compiled program, and the model is expected in its place. Try: the model that it",
    "run m.py:net": "m.py:net is a model, and a compiled program is expected. Try: micronpu compile m.py:net -t "
    "TARGET -o net.pte, and then net.pte.",
    "compile m.py:net --calibration ints.npy": "input 0 has dtype int64, the model takes float32.",
    "compile m.py:net --calibration rows.npy": "Calibration item 0, input 0 has shape [2, 6, 5], the model takes",
    "compile m.py:net --calibration two.npz": "two.npz holds 2 arrays (a, b), but the model has 1 input. Try: name "
    "the arrays in the order of the inputs: two.npz:name,...",
    "compile m.py:net --calibration two.npz:c": "two.npz has no array 'c'. Try: one of a, b.",
    "check m.py:nett": "m.py has no function 'nett'. Try: one of net,",
    "check m.py:training": "The model Sequential is in training mode",
    "check m.py:net --report-html no/r.html": "no/r.html cannot be written: the folder no does not exist.",
    "run PTE": "net.pte takes 1 input (float32[1, 2, 6, 6]), but 0 were given. Try: --input x.npy, once per input",
    "run PTE -i x.npy -i x.npy": "net.pte takes 1 input (float32[1, 2, 6, 6]), but 2 were given.",
    "run PTE -i none.npy": "There is no file none.npy.",
    "run PTE -i rows.npy": "must be float32[1, 2, 6, 6], but float32[5, 2, 6, 5] was given. Try: the shape of",
    "run PTE -i rows.npy --rows": "must be float32[1, 2, 6, 6], but float32[1, 2, 6, 5] was given.",
    "run PTE -i ints.npy": "must be float32[1, 2, 6, 6], but int64[1, 2, 6, 6] was given.",
    "run PTE -i words.npy": "The array words of words.npy has dtype <U1, which no program takes. Try:",
    "run PTE -i x.npy -o m.py": "m.py is a file, not a folder.",
}


@pytest.mark.sweep
@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, files, pte):
    words = [str(pte) if word == "PTE" else word for word in command.split()]
    text = failed(*words, *(() if "-t" in words or words[0] == "run" else ("-t", "imxrt700")))
    assert COMMANDS[command] in text


@pytest.mark.sweep
def test_command_in_a_process_of_its_own(files):
    """The exit code that a shell sees, and no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "micronpu.cli", "compile", "-t", "imxrt700", "m.py:nett"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        timeout=900,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: m.py has no function 'nett'. Try: one of net, ")
    assert "Traceback" not in done.stderr


def test_nothing_is_left_behind_by_a_failing_compilation(files, monkeypatch):
    Path("net.pte").write_bytes(b"old")
    assert "in training mode" in failed(
        "compile", "-t", "imxrt700", "m.py:training", "-o", "net.pte", "--report-json", "r.json"
    )
    assert Path("net.pte").read_bytes() == b"old"
    assert not Path("r.json").exists()
