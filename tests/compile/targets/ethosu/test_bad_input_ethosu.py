"""Bad input for Ethos-U, for chips and for recipes ends in one sentence, in Python and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compile.refusals import failed, refused
from torch import nn

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError, OptionError, PayloadError
from micronpu.cli.inspection import inspect_pte
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.quantize.config import QuantizationConfig
from micronpu.runtime import HostProgram, RunOptions
from micronpu.targets.ethosu.plans import MemoryLimitError
from micronpu.targets.neutron.options import NeutronOptions

TARGET = "ethos-u55-128"
X = torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)


def net() -> nn.Module:
    """[1, 3, 8, 8] -> [1, 8, 8, 8]"""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).eval()


class Rows(nn.Module):
    """Rows of a table, chosen by integers: int64 [1, 5] -> [1, 5, 4]"""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.fc = nn.Linear(8, 4)

    def forward(self, numbers):
        return self.fc(self.table(numbers))


class Pixels(nn.Module):
    """uint8 [1, 3, 8, 8] -> [1, 8, 8, 8]"""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, pixels):
        return self.net(pixels.float() / 255)


def compiled(model: nn.Module | None = None, x: torch.Tensor = X, target: str = TARGET, **options: Any) -> Any:
    return micronpu.compile(model or net(), x, target, calibration=[x], **options)


def spec(**options: Any) -> EthosUOptions:
    return EthosUOptions(TARGET, **options)


SYSTEM = """[System_Config.Mine]
core_clock=500e6
axi0_port=Sram
axi1_port=OffChipFlash
Sram_clock_scale=1.0
OffChipFlash_clock_scale=0.125
"""
MODE = "[Memory_Mode.Mine]\nconst_mem_area=Axi1\narena_mem_area=Axi0\ncache_mem_area=Axi0\n"
INIS = {
    "empty": ("", "The Vela configuration leaves `system_config` open.", "a section [System_Config.NAME]"),
    "no mode": (SYSTEM, "The Vela configuration leaves `memory_mode` open.", "a section [Memory_Mode.NAME]"),
    "two": (SYSTEM + SYSTEM.replace("Mine", "Yours") + MODE, "leaves `system_config` open. Try: one of Mine, Yours."),
    "no ini": ("hello\n", "The Vela configuration cannot be read: File contains no section headers."),
    "no text": (b"\xff\xfe\x80", "The Vela configuration `", "own vela.ini` is no text:"),
    "no clock": (SYSTEM.replace("core_clock=500e6\n", "") + MODE, "system configuration 'Mine' has no core_clock."),
    "clock": (SYSTEM.replace("500e6", "fast") + MODE, "'Mine' has core_clock=fast. Try: core_clock=500e6, in hertz."),
    "port": (SYSTEM.replace("=OffChipFlash", "=Tape") + MODE, "'Mine' has axi1_port=Tape. Try: axi1_port=Sram or Dram"),
    "no port": (
        SYSTEM.replace("axi0_port=Sram\n", "") + MODE,
        "configuration 'Mine' has no axi0_port. Try: axi0_port=",
    ),
    "memory": (
        SYSTEM.replace("Sram_clock_scale=1.0", "") + MODE,
        "does not say how fast the memory Sram is. Try: Sram_",
    ),
    "area": (SYSTEM + MODE.replace("Axi1", "Axi7"), "memory mode 'Mine' has const_mem_area=Axi7. Try: const_mem_area="),
}


@pytest.mark.parametrize("name", INIS)
def test_own_vela_configuration(name, tmp_path):
    text, *parts = INIS[name]
    path = tmp_path / "own vela.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(lambda: spec(config_ini=str(path)), OptionError, *parts)


def test_own_vela_configuration_that_is_whole(tmp_path):
    path = tmp_path / "own vela.ini"
    path.write_text(SYSTEM + MODE)
    options = spec(config_ini=str(path))
    assert (options.system_config, options.memory_mode) == ("Mine", "Mine")
    assert compiled(options=options).report.host == ()


OPTIONS: dict[str, tuple[Any, ...]] = {
    "target": (lambda: EthosUOptions("ethos-u66"), "There is no Ethos-U 'ethos-u66'. Try: one of ethos-u55-32,"),
    "system": (
        lambda: spec(system_config="No"),
        "ethos-u55-128 has no system configuration 'No'. Try: one of Ethos",
    ),
    "mode": (
        lambda: spec(memory_mode="Dedicated_Sram"),
        "has no memory mode 'Dedicated_Sram'. Try: one of Sram_Only, ",
    ),
    "ini": (lambda: spec(config_ini="none.ini"), "There is no Vela configuration `none.ini`. Try: the path of an ini"),
    "via": (lambda: spec(via="onnx"), "`via` is 'onnx'. Try: one of auto, litert, tosa."),
    "sram": (lambda: spec(max_sram_bytes=-1), "`max_sram_bytes` is -1; it is a number of bytes. Try: 256 * 1024."),
    "flag": (
        lambda: spec(extra_flags=["--no-such"]),
        "The Vela flag '--no-such'",
        "does not exist. Try: one of --",
    ),
    "value": (lambda: spec(extra_flags=["--optimise=Fast"]), "--optimise is 'Fast'. Try: one of Performance, Size."),
    "number": (lambda: spec(extra_flags=["--arena-cache-size=big"]), "--arena-cache-size is 'big'; it is a positive"),
    "alignment": (
        lambda: spec(extra_flags=["--cpu-tensor-alignment", "3"]),
        "is '3'; it is a power of two from 16",
    ),
    "family": (
        lambda: compiled(options=NeutronOptions()),
        "The target ethos-u55-128 takes EthosUOptions, but the options are of type NeutronOptions. Try: ",
    ),
    "size": (
        lambda: compiled(options=EthosUOptions("ethos-u85-256")),
        "The target is ethos-u55-128, but the options are for ethos-u85-256. Try: EthosUOptions(",
    ),
    "int4": (
        lambda: compiled(quantization=micronpu.Quantization(activations="int4")),
        "`activations` is 'int4'; activations are int8 or int16.",
    ),
    "uint8": (
        lambda: compiled(quantization=micronpu.Quantization(activations="uint8")),
        "`activations` is 'uint8'",
        'a program that takes the bytes of an image has `io="uint8"`',
    ),
    "uint8 of torch": (lambda: EthosUQuantizer(spec(), io=torch.uint8), "`io` is", '"uint8" for the bytes of a camera'),
    "uint8 at the border": (
        lambda: EthosUQuantizer(spec()).set_io(QuantizationConfig(activations="uint8")),
        "`activations` is 'uint8'",
        'a program that takes the bytes of an image has `io="uint8"`',
    ),
    "int16 on Neutron": (
        lambda: compiled(target="imxrt700", quantization="int16"),
        "does not compute with int16.",
    ),
    "QAT": (lambda: micronpu.compile(net(), X, TARGET, train=3), "`train` is of type int, not a function"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name):
    call, *parts = OPTIONS[name]
    refused(call, OptionError, *parts)


MODELS: dict[str, tuple[Callable[[], Any], type[MicroNpuError], str, str]] = {
    "SRAM": (
        lambda: compiled(options=spec(max_sram_bytes=100)),
        MemoryLimitError,
        "bytes of SRAM with the memory mode Shared_Sram; there are 100.",
        "Try: smaller pictures",
    ),
    "int64 as an integer": (
        lambda: compiled(
            Rows().eval(), torch.zeros(1, 5, dtype=torch.int64), quantization=micronpu.Quantization(io="int8")
        ),
        ModelError,
        "The input `numbers` is int64; integer inputs are quantized floats, int8 or int16",
        "Try: leave out the integer inputs of the program",
    ),
    "uint8 as an integer": (
        lambda: compiled(
            Pixels().eval(), torch.zeros(1, 3, 8, 8, dtype=torch.uint8), quantization=micronpu.Quantization(io="int8")
        ),
        ModelError,
        "The input `pixels` is uint8;",
        'a model that takes floats, and `io="uint8"`',
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    call, kind, *parts = MODELS[name]
    refused(call, kind, *parts)


@pytest.mark.parametrize("model", [Rows, Pixels])
def test_integer_inputs_stay_what_they_are(model):
    """An index or an image as integers is no error: the host turns it into floats, and the program runs."""
    x = torch.zeros(1, 5, dtype=torch.int64) if model is Rows else torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    module = model().eval()
    program = compiled(module, x)
    assert program.report.delegated
    assert torch.allclose(program.run(x), module(x), atol=0.1)


def test_weights_of_zero():
    """A channel without weights, and weights without any: scales stay finite, and the bias comes through."""
    for rows in (slice(3, 4), slice(None)):
        model = net()
        with torch.no_grad():
            model[0].weight[rows] = 0
        assert torch.allclose(compiled(model).run(X), model(X), atol=0.05)


def test_layout_of_memory():
    """A contiguous tensor in a channels-last program would be read as other pixels."""
    last = X.contiguous(memory_format=torch.channels_last)
    for target in (TARGET, "corstone300", "imxrt700"):
        program = compiled(x=last, target=target)
        refused(lambda program=program: program.run(X), ModelError, "Input 0 of the program", "channels-last inputs.")
        assert torch.equal(program.run(last), program.run(last.clone(memory_format=torch.channels_last)))
    refused(lambda: compiled().run(last), ModelError, "compiled for contiguous inputs. Try: x.contiguous()")


def damaged(program: bytes, block: bytes, other: bytes) -> bytes:
    assert program.count(block) == 1 and len(block) == len(other)
    return program.replace(block, other)


def test_payload_with_an_unknown_block():
    good, apart = bytes(compiled().buffer), RunOptions(isolated=True)
    for block, other in ((b"cmd_data", b"cmd_dota"), (b"vela_end_stream", b"vela_and_stream")):
        bad = damaged(good, block, other)
        says = "The Ethos-U payload has an unknown block"
        refused(lambda bad=bad: HostProgram(bad, apart), PayloadError, says, other.decode())
        (delegate,) = inspect_pte(bad, "bad.pte").delegates
        assert says in delegate.objection and other.decode() in delegate.objection


CHIP = """name = "toy"
title = "Toy"
source = "none"
[core]
name = "cortex-m55"
clock_mhz = 400
[npu]
family = "ethos-u"
variant = "U55-128"
accelerator = "ethos-u55-128"
memory_mode = "Shared_Sram"
clock_mhz = 500
[[memory]]
name = "sram"
bytes = 1048576
[[target]]
name = "toy-ethosu"
title = "all of it"
"""
CHIPS = {
    "core": ("[core]\n", "[kore]\n", "has no `core`. Try: add a table [core]."),
    "clock": ("clock_mhz = 400", "clock_mhz = 0", "is 0; it must be positive."),
    "accelerator": (
        "u55-128",
        "u55-129",
        "cannot be used: There is no Ethos-U 'ethos-u55-129'. Try: one of ethos-u55-32",
    ),
    "mode": (
        "Shared_Sram",
        "Shared",
        "cannot be used: ethos-u55-128 has no memory mode 'Shared'. Try: one of Sram_Only,",
    ),
    "bytes": ("1048576", '"1 MB"', "is '1 MB', which is not of the expected type"),
    "target": ("[[target]]", "[[goal]]", "has no `target`. Try: add a table [[target]]."),
}


@pytest.mark.parametrize("name", CHIPS)
def test_chip_file(name, tmp_path):
    old, new, says = CHIPS[name]
    assert old in CHIP
    path = tmp_path / "toy.toml"
    path.write_text(CHIP.replace(old, new))
    with pytest.raises(OptionError) as caught:
        compiled(target=str(path))
    assert str(path) in str(caught.value) and says in str(caught.value)


def test_chip_file_that_is_whole(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(CHIP)
    assert compiled(target=str(path)).report.target == "toy-ethosu"


# --- command line -------------------------------------------------------------------------------------------------

FILE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), (torch.zeros(1, 3, 8, 8),)

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Embedding(16, 8), nn.Linear(8, 4)
    def forward(self, numbers): return self.fc(self.table(numbers))

def rows(): return Rows().eval(), (torch.zeros(1, 5, dtype=torch.int64),)
def calibration(): return [torch.randn(1, 3, 8, 8)]
def numbers(): return [torch.zeros(1, 5, dtype=torch.int64)]
"""
COMMANDS = {
    "--extra-flags=--no-such": "The Vela flag '--no-such' has no effect on a program in memory or does not exist. ",
    "--config-ini none.ini": "There is no Vela configuration `none.ini`.",
    "--config-ini m.py": "The Vela configuration cannot be read: File contains no section headers.",
    "--config-ini one.ini": "The Vela configuration leaves `memory_mode` open.",
    "--system-config None": "ethos-u55-128 has no system configuration 'None'. Try: one of Ethos_U55_Deep_Embedded, ",
    "--memory-mode Dedicated_Sram_384KB": "has no memory mode 'Dedicated_Sram_384KB'. Try: one of Sram_Only, Shared",
    "--max-sram-bytes 100": "bytes of SRAM with the memory mode Shared_Sram; there are 100. Try: smaller pictures",
    "--io uint16": "`--io` is 'uint16'; inputs and outputs are int8, uint8, int16, or floats. Try:",
    "--quantization int4": "`quantization` is 'int4', which is no type and no file. Try: int8, int16, auto, accurate, ",
    "--converter sdk": "The option --converter is for Neutron, but ethos-u55-128 is a target with Ethos-U. Try: leave",
    "--external-weights w -o no/n.pte": "no/n.pte cannot be written: the folder no does not exist.",
}


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    (tmp_path / "one.ini").write_text(SYSTEM)
    (tmp_path / "toy.toml").write_text(CHIP.replace("[core]", "[kore]"))
    return tmp_path


@pytest.mark.parametrize("options", COMMANDS)
def test_command(options, files):
    assert COMMANDS[options] in failed("compile", "m.py:net", "-t", TARGET, *options.split())


def test_commands_with_other_models_and_chips(files):
    says = "The input `numbers` is int64; integer inputs are quantized floats, int8 or int16"
    assert says in failed("compile", "m.py:rows", "-t", TARGET, "--io", "int8", "--calibration", "m.py:numbers")
    assert "toy.toml has no `core`" in failed("compile", "m.py:net", "-t", "toy.toml")
    assert "does not compute with int16" in failed("compile", "-t", "imxrt700", "m.py:net", "--quantization", "int16")
