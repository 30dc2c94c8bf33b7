"""What connects the folder with other people's builds, read as their tools read it, as far as these are packages."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from micronpu.board.boards import emulated_board, fvp_lines
from micronpu.chips import shipped_chips
from micronpu.deploy.integration import board_files
from tests.deploy import programs

A_TEST = SimpleNamespace(name="a", upper="A", header="a test")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", params=["ethosu_int8", "core"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("build") / "out"
    target = {"ethosu_int8": "corstone300", "core": "cortex-m33"}[request.param]
    programs.program(request.param).deploy(made, name="net", target=target)
    return made


def test_the_module_of_zephyr(folder: Path) -> None:
    """Keys and types of `module.yml` are those that Zephyr's documentation of modules names."""
    module = yaml.safe_load((folder / "zephyr" / "module.yml").read_text())
    assert set(module) == {"name", "build", "samples"} and set(module["build"]) == {"cmake", "kconfig", "depends"}
    assert re.fullmatch(r"[\w-]+", module["name"])
    assert (folder / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    assert (folder / module["build"]["kconfig"]).is_file()
    assert all((folder / sample / "sample.yaml").is_file() for sample in module["samples"])
    cmake = (folder / "zephyr" / "module" / "CMakeLists.txt").read_text()
    named = re.findall(r"\$\{folder\}/([\w.]+)", cmake)
    assert named and all((folder / name).is_file() for name in named) and "main.cpp" not in named
    wanted = {p.name for p in folder.iterdir() if p.suffix in (".c", ".cpp", ".S")} - {"main.cpp"}
    assert wanted == set(named)


def test_the_options_of_zephyr(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kconfig's own reader takes both files, and the options have the values that the page says."""
    kconfiglib = pytest.importorskip("kconfiglib", reason="pip install kconfiglib")
    (tmp_path / "Kconfig.zephyr").write_text("config EXECUTORCH\n\tbool\n\tdefault y\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("srctree", str(tmp_path))
    (tmp_path / "Kconfig").write_text(f'source "Kconfig.zephyr"\nsource "{folder}/zephyr/module/Kconfig"\n')
    read = kconfiglib.Kconfig("Kconfig", warn_to_stderr=False)
    read.syms["MICRONPU"].set_value("y")
    assert read.syms["MICRONPU"].str_value == "y" and not read.warnings
    application = kconfiglib.Kconfig(str(folder / "zephyr" / "Kconfig"), warn_to_stderr=False)
    header = (folder / "net.h").read_text()
    pool = re.search(r"NET_METHOD_POOL_BYTES (\d+)", header)
    assert pool and application.syms["EXECUTORCH_METHOD_ALLOCATOR_POOL_SIZE"].str_value == pool[1]


def test_the_sample_of_twister(folder: Path) -> None:
    sample = yaml.safe_load((folder / "zephyr" / "sample.yaml").read_text())
    assert set(sample) == {"sample", "common", "tests"} and set(sample["sample"]) == {"name", "description"}
    assert set(sample["common"]) == {"tags", "modules", "harness", "harness_config"}
    (pattern,) = sample["common"]["harness_config"]["regex"]
    assert re.fullmatch(pattern, "PASS: 4 vectors, 0 elements differ")
    assert all(re.fullmatch(r"[\w-]+(\.[\w-]+)+", name) for name in sample["tests"])


def test_the_layer_of_cmsis(folder: Path) -> None:
    """Keys of a clayer as CMSIS-Toolbox's documentation names them; its schema is in no package."""
    text = (folder / "micronpu.clayer.yml").read_text()
    (layer,) = yaml.safe_load(text).values()
    assert set(layer) == {"description", "packs", "components", "groups"}
    assert all(set(pack) == {"pack"} and "::" in pack["pack"] for pack in layer["packs"])
    assert all(set(one) == {"component"} and one["component"].count(":") >= 2 for one in layer["components"])
    (group,) = layer["groups"]
    assert set(group) == {"group", "add-path", "files"}
    assert all((folder / file["file"]).is_file() for file in group["files"])


def test_the_page_says_what_a_build_needs(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    assert "--branch v1.5.1" in page and "cmake --preset arm-baremetal" in page
    assert "runtime/executor/{method,method_meta,program," in page
    assert (folder / "board" / "link.ld").is_file() and "-DMICRONPU_BOARD=ON" in page
    listed = re.findall(r"^\| `([\w./]+)` \| (.+) \|$", page, re.M)
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {name for name, _ in listed} == files
    assert not [name for name, what in listed if what == "data that the program looks up by name"]


BOARD = """/dts-v1/;
/ {
	#address-cells = <1>;
	#size-cells = <1>;
	chosen { zephyr,sram = &dtcm; };
	dtcm: memory@20000000 { reg = <0x20000000 0x80000>; };
	isram: memory@31000000 { reg = <0x31000000 0x200000>; };
	soc: soc {
		#address-cells = <1>;
		#size-cells = <1>;
		nvic: interrupt-controller@e000e100 { reg = <0xe000e100 0xc00>; #interrupt-cells = <2>; };
		sram0: sram@2000000 { reg = <0x2000000 0x400000>; };
		sram1: sram@2400000 { reg = <0x2400000 0x400000>; };
	};
};
"""
"""What the boards' own devicetrees have of it, by the labels of ExecuTorch's samples."""


@pytest.mark.parametrize(
    ("name", "accelerator", "sram", "size"),
    [
        ("corstone300", "ethos-u55-128", "/memory@31000000", 0x200000),
        ("corstone320", "ethos-u85-256", "/memory@31000000", 0x200000),
        ("alif-e8-hp", "ethos-u55-256", "/soc/sram@2000000", 0x800000),
        ("alif-e8-he", "ethos-u55-128", "/soc/sram@2000000", 0x800000),
    ],
)
def test_the_boards_of_zephyr(name: str, accelerator: str, sram: str, size: int, tmp_path: Path) -> None:
    """Zephyr's own reader takes board and overlay together; RAM is where the NPU reads, and the NPU is there."""
    dtlib = pytest.importorskip("devicetree.dtlib", reason="pip install devicetree")
    files = board_files(shipped_chips()[name], accelerator, A_TEST)
    (overlay,) = (text for file, text in files.items() if file.endswith(".overlay"))
    path = tmp_path / "board.dts"
    path.write_text(BOARD + overlay)
    tree = dtlib.DT(str(path))
    memory = tree.get_node("/chosen").props["zephyr,sram"].to_path()
    assert memory.path == sram and memory.props["reg"].to_nums()[1] == size
    confs = [text for file, text in files.items() if file.endswith(".conf")]
    if not name.startswith("alif"):
        assert not confs
        return
    npu = tree.get_node(f"/soc/{accelerator[:9].replace('-', '')}@400e1000")
    assert npu.props["reg"].to_nums() == [0x400E1000, 0x1000] and npu.props["interrupts"].to_nums() == [55, 0]
    assert npu.props["compatible"].to_strings() == ["arm,ethos-u"]
    symbol = accelerator.upper().replace("-", "_")
    assert confs[0].splitlines()[-1] == f"CONFIG_{symbol}=y"


def test_a_board_without_files() -> None:
    assert not board_files(None, "ethos-u55-128", A_TEST)
    assert not board_files(shipped_chips()["corstone300"], "", A_TEST)
    assert not board_files(shipped_chips()["ra8p1"], "ethos-u55-256", A_TEST)


@pytest.mark.parametrize(
    ("core", "npu", "board", "platform"),
    [
        ("cortex-m55", "", "corstone300", "FVP_Corstone_SSE-300_Ethos-U55 -a app --timelimit"),
        ("", "ethos-u55-64", "corstone300", "FVP_Corstone_SSE-300_Ethos-U55 -a app -C ethosu.num_macs=64 "),
        ("cortex-m55", "ethos-u65-256", "corstone300", "FVP_Corstone_SSE-300_Ethos-U65 -a app -C ethosu.num_macs=256 "),
        ("", "ethos-u65-512", "corstone300", "FVP_Corstone_SSE-300_Ethos-U65 -a app -C ethosu.num_macs=512 "),
        ("cortex-m55", "ethos-u85-256", "corstone320", ""),
        ("cortex-m33", "", "mps2-an505", ""),
        ("cortex-m33", "ethos-u65-256", "", ""),
        ("cortex-m85", "ethos-u55-256", "", ""),
    ],
)
def test_the_board_and_the_platform_of_a_core(core: str, npu: str, board: str, platform: str) -> None:
    """Names of Arm's packages of FVPs, and of ExecuTorch's `run_fvp.sh`; the board has the NPU, or there is none."""
    found = emulated_board(core, npu)
    assert (found.name if found is not None else "") == board
    lines = fvp_lines(core, npu, "app")
    assert bool(lines) == bool(platform) and (not lines or lines[0].startswith(platform))
    assert all(line.endswith(" \\") for line in lines[:-1]) and not any(line.endswith("\\") for line in lines[-1:])


def test_the_page_has_the_platform(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    board = "mps3/corstone300/fvp" if "ethos-u55" in page else "<board>"
    assert f"`west build -b {board} zephyr`" in page
    assert ("FVP_Corstone_SSE-300_Ethos-U55 -a build/micronpu_app" in page) is ("ethos-u55" in page)
