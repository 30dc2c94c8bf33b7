"""The folder for a core that runs Linux: steps and files of Linux alone, and a script that finds a wrong byte."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import micronpu
from micronpu.base.errors import OptionError
from micronpu.deploy.image import make_image
from tests.compile.state_rows import ROWS, sequences
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")

RUNNER = """#!{python}
import sys
from pathlib import Path

import numpy as np

from micronpu.runtime import ArrayProgram

given = dict(zip((flag.removeprefix("--") for flag in sys.argv[1::2]), sys.argv[2::2], strict=True))
assert set(given) == {{"model_path", "inputs", "output_file"}}
program = ArrayProgram(given["model_path"])
files = given["inputs"].split(",")
arrays = [np.fromfile(f, s.dtype).reshape(s.shape) for f, s in zip(files, program.inputs, strict=True)]
for number, array in enumerate(program.run_arrays(*arrays)):
    data = bytearray(np.ascontiguousarray(array).tobytes())
    data[0] ^= {wrong} and number
    Path(f"{{given['output_file']}}-{{number}}.bin").write_bytes(data)
"""


class Two(torch.nn.Module):
    """Two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.relu(self.conv(x)) + y
        return z, z.mean((2, 3))


def compiled() -> micronpu.CompiledProgram:
    torch.manual_seed(0)
    rows = [(torch.randn(1, 3, 8, 8), torch.randn(1, 4, 6, 6)) for _ in range(3)]
    return micronpu.compile(
        Two().eval(), rows[0], "imx93", calibration=rows, quantization=micronpu.Quantization(io="int8")
    )


def runner(folder: Path, wrong: int = 0) -> Path:
    path = folder / f"executor_runner_{wrong}"
    path.write_text(RUNNER.format(python=sys.executable, wrong=wrong))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def check(folder: Path, program: Path) -> tuple[int, str]:
    done = subprocess.run(["sh", folder / "check.sh", program], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.sweep
def test_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "linux"
    done = compiled().deploy(folder)
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert {"model.pte", "model.bpte", "check.sh", "aarch64-linux.cmake", "README.md"} <= names
    assert "vectors/model/0/input-1.bin" in names and "vectors/model/2/output-1.bin" in names
    assert not [n for n in names if n.endswith((".c", ".cpp", ".h", ".S", ".ld", ".conf", ".yml"))]
    text = (folder / "README.md").read_text()
    assert "-DEXECUTORCH_BUILD_ARM_ETHOSU_LINUX=ON" in text and "/dev/ethosu0" in text and "cortex-a55" in text
    assert "cortex-m" not in text and "Zephyr" not in text and "linker" not in text and "mthumb" not in text
    assert set(done.files) == names
    assert check(folder, runner(tmp_path)) == (0, "PASS: 3 vectors, no output differs\n")
    code, said = check(folder, runner(tmp_path, wrong=1))
    assert code == 1 and said.count("output 1 differs") == 3 and "output 0" not in said
    code, said = check(folder, tmp_path / "no_such_runner")
    assert code == 1 and "the runner ends with an error" in said


def test_the_same_chips_microcontroller_has_the_other_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = [(torch.randn(1, 3, 8, 8), torch.randn(1, 4, 6, 6)) for _ in range(2)]
    program = micronpu.compile(
        Two().eval(), rows[0], "imx93-m33", calibration=rows, quantization=micronpu.Quantization(io="int8")
    )
    program.deploy(tmp_path / "m33", target="imx93-m33")
    with pytest.raises(OptionError, match="The cortex-a55 runs Linux, whose driver wants"):
        program.deploy(tmp_path / "other", target="imx93")
    for target in ("imx93-m33", "ethos-u65-256"):
        with pytest.raises(OptionError, match="lie apart, as the NPU's driver for Linux wants them"):
            compiled().deploy(tmp_path / "other", target=target)
    assert not (tmp_path / "other").exists()
    with pytest.raises(OptionError, match="lie apart, as the NPU's driver for Linux wants them"):
        make_image(compiled().buffer, version="1.0.0", target="imx93-m33")
    assert (tmp_path / "m33" / "micronpu_sections.ld").is_file() and not (tmp_path / "m33" / "check.sh").exists()
    assert "-mcpu=cortex-m33" in (tmp_path / "m33" / "CMakeLists.txt").read_text()


def test_of_a_program_with_states_the_first_vector_is_checked(tmp_path: Path) -> None:
    program = micronpu.compile(
        ROWS["slices"](),
        (torch.zeros(1, 8),),
        "imx93",
        calibration=sequences(),
        quantization=micronpu.Quantization(io="int8"),
    )
    program.deploy(tmp_path / "linux")
    assert sorted(p.name for p in (tmp_path / "linux" / "vectors" / "model").iterdir()) == ["0"]
    assert check(tmp_path / "linux", runner(tmp_path)) == (0, "PASS: 1 vectors, no output differs\n")


def test_the_toolchain_file_builds_for_the_core(tmp_path: Path) -> None:
    need("cmake", "aarch64-linux-gnu-g++")
    compiled().deploy(tmp_path / "linux")
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.19)\nproject(hello CXX)\nadd_executable(hello hello.cpp)\n"
    )
    (source / "hello.cpp").write_text("int main() { return 0; }\n")
    toolchain = tmp_path / "linux" / "aarch64-linux.cmake"
    for command in (["-B", tmp_path / "build", "-S", source, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"],
                    ["--build", tmp_path / "build"]):  # fmt: skip
        subprocess.run(["cmake", *map(str, command)], check=True, capture_output=True, timeout=120)
    assert (tmp_path / "build" / "hello").read_bytes()[18:20] == b"\xb7\x00"  # EM_AARCH64
