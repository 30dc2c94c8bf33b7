"""Chip files: those that come along, and what is said about a broken one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys

import pytest

from micronpu.base.errors import OptionError, RuntimeUnavailableError
from micronpu.chips import load_chip, shipped_chips
from micronpu.chips.chip import ACTIVATIONS, WEIGHTS, Chips, Memory, parse_chip
from micronpu.targets.ethosu.accelerators import clock_hz, default_ini
from micronpu.targets.neutron.target_spec import FLAVORS, NeutronNpu, NeutronTargetSpec, neutron_chips
from micronpu.targets.registry import BACKENDS, all_targets, chip_targets, find_target, options_for

CHIP = """
name = "toy"
title = "Toy"
source = "imagination"

[core]
name = "cortex-m0"
clock_mhz = 48

[npu]
family = "neutron"
variant = "N0"
class = "C"
pipelines = 2
macs = 4
clock_mhz = 12.5

[[memory]]
name = "sram"
bytes = 1024

[[target]]
name = "toy-neutron"
title = "the only one"
aliases = ["toy"]
"""


def broken(old: str, new: str) -> str:
    assert old in CHIP
    return CHIP.replace(old, new)


# ---------------------------------------------------------------- chips that come with the package


@pytest.mark.parametrize("chip", shipped_chips().values(), ids=lambda chip: chip.name)
def test_a_shipped_chip_is_plausible(chip):
    assert chip.title and chip.source and chip.targets
    clocks = [chip.core_clock_mhz, *([chip.npu.clock_mhz] if chip.npu is not None else [])]
    assert all(10 <= clock <= 2000 for clock in clocks if clock is not None)
    assert None not in clocks or chip.name == "atomiq110"  # there is no silicon of it
    assert all(1024 <= m.bytes <= 1 << 40 for m in chip.memories)
    assert len({m.name for m in chip.memories}) == len(chip.memories)
    if chip.name in neutron_chips():
        npu = NeutronTargetSpec(chip.name).npu
        assert npu == neutron_chips()[chip.name] and 1 <= npu.pipelines <= 64 and 1 <= npu.macs <= 64
    assert chip_targets(chip)


def test_chips_are_sorted_and_have_names_of_their_own():
    assert list(shipped_chips()) == sorted(shipped_chips())
    assert all(name == chip.name for name, chip in shipped_chips().items())
    targets = [t for chip in shipped_chips().values() for entry in chip.targets for t in (entry.name, *entry.aliases)]
    assert len(targets) == len(set(targets))


def test_a_chip_is_a_target_by_its_name():
    """It is also the name of its board, and what a program's options say."""
    assert all(find_target(chip.name).name == chip.targets[0].name for chip in shipped_chips().values())


def test_the_geometry_of_imxrt700():
    npu = neutron_chips()["imxrt700"]
    assert (npu.pipelines, npu.macs) == (8, 8)


@pytest.mark.parametrize("name", ["imxrt700", "imxrt700-neutron-cortexm"])
def test_a_target_is_found_by_name_and_alias(name: str):
    target = find_target(name)
    assert (target.silicon, target.name) == ("imxrt700", "imxrt700-neutron-cortexm")
    assert all_targets()[target.name] == target


def test_an_unknown_target_names_the_nearest():
    with pytest.raises(OptionError) as caught:
        find_target("imxrt7000")
    message = str(caught.value)
    assert message.startswith("There is no target 'imxrt7000'. Try: imxrt700, ")
    assert message.count(",") <= 3 and "`micronpu targets` lists all" in message
    with pytest.raises(OptionError, match="The target is of type list; it is a name"):
        find_target(["imxrt700"])  # type: ignore[arg-type]


def test_the_device_of_an_unknown_chip_or_flavor_lists_the_known_ones():
    with pytest.raises(OptionError) as caught:
        NeutronTargetSpec("toaster")
    assert str(caught.value) == f"'toaster' has no Neutron. Try: one of {', '.join(neutron_chips())}, or a chip file."
    with pytest.raises(OptionError) as caught:
        NeutronTargetSpec("imxrt700", "SDK_1")
    assert str(caught.value) == f"There is no converter flavor 'SDK_1'. Try: one of {', '.join(FLAVORS)}."


def test_chips_are_read_without_torch():
    code = "import sys, micronpu.chips; micronpu.chips.shipped_chips(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- a user's own chip


def test_a_chip_from_a_file(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(CHIP)
    chip = load_chip(path)
    assert (chip.name, chip.core, chip.core_clock_mhz) == ("toy", "cortex-m0", 48.0)
    npu = NeutronNpu.of(chip)
    assert (npu.pipelines, npu.macs, npu.clock_mhz) == (2, 4, 12.5)
    assert chip.memories == (Memory("sram", 1024),)
    assert [(t.name, t.aliases) for t in chip.targets] == [("toy-neutron", ("toy",))]


def test_the_bandwidth_of_a_memory_may_be_known():
    text = broken("bytes = 1024", "bytes = 1024\nbandwidth = 4_000_000_000")
    (memory,) = parse_chip(text, "toy.toml").memories
    assert memory == Memory("sram", 1024, 4e9) and str(memory) == "sram 1 KB, 4 GB/s"
    assert str(Memory("flash", 7 << 19)) == "flash 3.5 MB" and str(Memory("otp", 64)) == "otp 64 bytes"


@pytest.mark.parametrize(
    ("name", "npu", "core", "leftovers"),
    [
        ("imxrt700", "N3-64", "cortex-m33", True),
        ("corstone300", "U55-128", "cortex-m55", True),
        ("corstone320", "U85-256", "cortex-m85", True),
        ("imx93", "U65-256", "cortex-a55", False),
    ],
)
def test_the_chips_of_the_recipes(name: str, npu: str, core: str, leftovers: bool):
    target = find_target(name)
    assert target.chip is not None
    assert (target.chip.npu.variant, target.chip.core, target.core is not None) == (npu, core, leftovers)
    if target.backend == "ethos-u":
        assert options_for(target).accelerator.macs == int(npu.split("-")[1])
        assert any(m.bandwidth for m in target.chip.memories) and target.chip.npu.assumed


@pytest.mark.parametrize(
    ("name", "chip", "npu", "mhz", "core", "kilobytes"),
    [
        ("alif-e1", "alif-e1", "U55-128", 160, "cortex-m55", 2560),
        ("alif-e3", "alif-e7-hp", "U55-256", 400, "cortex-m55", 4096),
        ("alif-e5", "alif-e7-hp", "U55-256", 400, "cortex-m55", 4096),
        ("alif-e7", "alif-e7-hp", "U55-256", 400, "cortex-m55", 4096),
        ("alif-e7-he", "alif-e7-he", "U55-128", 160, "cortex-m55", 4096),
        ("alif-e8-hp", "alif-e8-hp", "U55-256", 400, "cortex-m55", 8192),
        ("alif-e8-he", "alif-e8-he", "U55-128", 160, "cortex-m55", 8192),
        ("alif-e4", "alif-e8-u85", "U85-256", 400, "cortex-m55", 8192),
        ("alif-e6", "alif-e8-u85", "U85-256", 400, "cortex-m55", 8192),
        ("alif-e8", "alif-e8-u85", "U85-256", 400, "cortex-m55", 8192),
        ("himax-we2", "himax-we2", "U55-64", 400, "cortex-m55", 1924),
        ("psoc-edge-e84", "psoc-edge-e84", "U55-128", 400, "cortex-m55", 5120),
        ("ra8p1", "ra8p1", "U55-256", 500, "cortex-m85", 1664),
        ("m55m1", "m55m1", "U55-256", 220, "cortex-m55", 1344),
        ("imx93", "imx93", "U65-256", 1000, "", 640),
        ("imx93-m33", "imx93-m33", "U65-256", 1000, "cortex-m33", 640),
        ("corstone300", "corstone300", "U55-128", 500, "cortex-m55", 2048),
    ],
)
def test_the_chips_with_an_ethos_u(name: str, chip: str, npu: str, mhz: float, core: str, kilobytes: int):
    target = find_target(name)
    assert target.chip is not None and target.chip.npu is not None
    assert (target.chip.name, target.chip.npu.variant, target.chip.npu.clock_mhz) == (chip, npu, mhz)
    assert (target.core.name if target.core is not None else "") == core
    assert target.silicon == f"ethos-{npu.lower()}" and target.chip.npu.assumed
    spec = options_for(target)  # refuses a system configuration or a memory mode that Vela does not have
    assert spec.max_sram_bytes == kilobytes * 1024
    memory = target.chip.memory_for(ACTIVATIONS)
    assert memory is not None and memory.bytes == spec.max_sram_bytes


@pytest.mark.parametrize(
    ("name", "entries", "mhz"),
    [
        ("corstone300", (), 500),
        ("corstone320", (), 1000),
        ("imx93", ("Dram_clock_scale=0.375",), 1000),
        ("ra8p1", ("Sram_clock_scale=0.525", "OffChipFlash_clock_scale=0.525"), 500),
        ("m55m1", ("core_clock=220000000",), 220),
        ("alif-e1", ("core_clock=160000000", "OffChipFlash_clock_scale=0.3031"), 160),
        ("alif-e7", ("core_clock=400000000", "Sram_clock_scale=0.7625", "OffChipFlash_clock_scale=0.1209"), 400),
    ],
)
def test_the_figures_of_a_chip_go_into_velas_configuration(name: str, entries: tuple[str, ...], mhz: float):
    spec = options_for(find_target(name))
    assert spec.system_entries == entries
    assert clock_hz(spec.ini, spec.system_config) == mhz * 1e6
    assert (spec.ini == default_ini()) == (not entries)
    chosen = options_for(find_target(name), given={"system_config": spec.system_config})
    assert chosen.system_entries == () and chosen.ini == default_ini()


def test_the_role_of_a_memory_is_claimed_or_that_of_its_usual_name():
    more = '\n[[memory]]\nname = "near"\nbytes = 512\nrole = "activations"\n'
    usual, claimed = parse_chip(CHIP, "toy.toml"), parse_chip(CHIP + more, "toy.toml")
    assert usual.memory_for(ACTIVATIONS) == Memory("sram", 1024) and usual.memory_for(WEIGHTS) is None
    assert claimed.memory_for(ACTIVATIONS) == Memory("near", 512, role="activations")
    other = parse_chip(broken("bytes = 1024", 'bytes = 1024\nrole = "weights"'), "toy.toml")
    assert other.memory_for(ACTIVATIONS) is None and other.memory_for(WEIGHTS) == Memory("sram", 1024, role="weights")
    with pytest.raises(OptionError, match=r"near and far in the chip file toy\.toml have the role 'activations'"):
        parse_chip(CHIP + more + more.replace("near", "far"), "toy.toml")
    with pytest.raises(OptionError, match=r"`role` of the memory near .* is 'heap'\. Try: 'activations' or 'weights'"):
        parse_chip(CHIP + more.replace("activations", "heap"), "toy.toml")


def test_memories_and_aliases_may_be_absent():
    text = broken('[[memory]]\nname = "sram"\nbytes = 1024\n', "").replace('aliases = ["toy"]\n', "")
    chip = parse_chip(text, "toy.toml")
    assert chip.memories == () and chip.targets[0].aliases == ()


def test_cmsis_nn_needs_a_core_that_runs_it():
    text = broken('aliases = ["toy"]', 'leftovers = "cmsis-nn"')
    (target,) = chip_targets(parse_chip(text, "toy.toml"))
    assert target.core is not None and target.core.title == "Cortex-M0 (CMSIS-NN)"
    with pytest.raises(OptionError, match="computes with CMSIS-NN, which does not run on the core 'cortex-a55'"):
        parse_chip(text.replace("cortex-m0", "cortex-a55"), "toy.toml")


def test_a_file_that_does_not_exist(tmp_path):
    with pytest.raises(OptionError, match=r"There is no chip file .*toy\.toml\."):
        load_chip(tmp_path / "toy.toml")


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match=r"The chip file .*toy\.toml is not UTF-8 text\."):
        load_chip(path)


NO_TYPE = "which is not of the expected type."
BROKEN = {
    'name = "toy"\n': {
        "name = \n": "The chip file toy.toml is not valid TOML: ",
        "": "The chip file toy.toml has no `name`. Try: add `name = ...` beside `title`,",
        "name = 3\n": f"`name` in the chip file toy.toml is 3, {NO_TYPE}",
    },
    "macs = 4": {
        "macs = true": f"`macs` in the chip file toy.toml is True, {NO_TYPE}",
        "macs = 4.5": f"`macs` in the chip file toy.toml is 4.5, {NO_TYPE}",
        "macs = 0": "`macs` in the chip file toy.toml is 0; it must be positive.",
        "macs = 4\nmac = 3": "The npu in the chip file toy.toml has the field `mac`, which there is not.",
    },
    "clock_mhz = 48": {
        f"clock_mhz = {number}": f"`clock_mhz` in the chip file toy.toml is {number}; it must be positive."
        for number in (-1, "nan", "inf")
    },
    "bytes = 1024": {
        "bytes = 1024\nbandwidth = 0": "`bandwidth` in the chip file toy.toml is 0; it must be positive.",
        "bytes = 1024\nbandwidth = true": f"`bandwidth` in the chip file toy.toml is True, {NO_TYPE}",
        "bytes = 1024\nbandwidth = '4 GB/s'": f"`bandwidth` in the chip file toy.toml is '4 GB/s', {NO_TYPE}",
        "bytes = 1024\nbandwith = 4e9": "The memory sram in the chip file toy.toml has the field `bandwith`",
        'bytes = "1 KB"': f"`bytes` in the chip file toy.toml is '1 KB', {NO_TYPE}",
    },
    '["toy"]': {
        '"toy"': f"`aliases` in the chip file toy.toml is 'toy', {NO_TYPE}",
        "[1]": "`aliases` in the chip file toy.toml is [1]; it is a list of filled strings.",
    },
    'aliases = ["toy"]': {
        'leftovers = "float"': "`leftovers` of the target toy-neutron in the chip file toy.toml is 'float'."
    },
    "[core]": {"[cores]": "The chip file toy.toml has no `core`."},
    "[[memory]]": {"[memory]": "`memory` in the chip file toy.toml is {'name': 'sram', 'bytes': 1024}, which is"},
    "[[target]]": {"[target]": "`target` in the chip file toy.toml is {'name': 'toy-neutron', "},
}
"""What a file is told in which a text is replaced by another."""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [(old, new, sentence) for old, changes in BROKEN.items() for new, sentence in changes.items()],
)
def test_messages_for_broken_files(old: str, new: str, sentence: str):
    with pytest.raises(OptionError) as caught:
        NeutronNpu.of(parse_chip(broken(old, new), "toy.toml"))
    assert str(caught.value).startswith(sentence)


def test_lists_of_tables_that_hold_something_else():
    text = broken('[[memory]]\nname = "sram"\nbytes = 1024\n', "")
    with pytest.raises(OptionError, match=r"`memory` in the chip file toy\.toml is \[3\]; it is a list of tables\."):
        parse_chip(f"memory = [3]\n{text}", "toy.toml")


def test_a_target_from_a_users_file(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(CHIP)
    for name in (str(path), f"{path}:toy", f"{path}:toy-neutron"):
        target = find_target(name)
        assert (target.name, target.silicon, target.backend) == ("toy-neutron", str(path), "neutron")
        assert options_for(target).target_spec.macs == 4
    with pytest.raises(OptionError, match="'toy' has no Neutron"):  # reading a file leaves nothing behind
        NeutronTargetSpec("toy")
    with pytest.raises(OptionError, match=r"has no target 'tay'\. Try: one of toy-neutron"):
        find_target(f"{path}:tay")
    path.write_text(broken('name = "toy"\n', 'name = "imxrt700"\n'))
    with pytest.raises(OptionError, match="is called `imxrt700`, as a chip of micronpu"):
        find_target(str(path))


def test_two_chip_files_of_one_name(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(broken('"Toy"', f'"Toy {name}"'))
    chips = shipped_chips()
    more = chips.with_files(tmp_path / "a.toml", tmp_path / "a.toml")
    assert set(more) - set(chips) == {"toy"} and "toy" not in shipped_chips()
    with pytest.raises(OptionError, match=r"a\.toml and .*b\.toml both describe a chip called `toy`\. Try: another"):
        more.with_files(tmp_path / "b.toml")
    assert all_targets(more).keys() - all_targets().keys() == {"toy-neutron"}
    assert Chips(*chips.values()) == chips


def test_an_ethos_u_is_a_target_without_a_chip():
    target = find_target("ethos-u55-128")
    assert (target.backend, target.silicon, target.chip) == ("ethos-u", "ethos-u55-128", None)


ETHOS_U_CHIP = """
name = "board"
title = "Board"
source = "imagination"
core = { name = "cortex-m55", clock_mhz = 400 }
target = [{ name = "board-ethos-u", title = "NPU" }]

[npu]
family = "ethos-u"
variant = "U55-128"
clock_mhz = 400
accelerator = "ethos-u55-128"
memory_mode = "Sram_Only"
"""


def test_an_ethos_u_of_a_chip(tmp_path):
    path = tmp_path / "board.toml"
    path.write_text(ETHOS_U_CHIP)
    target = find_target(str(path))
    assert target.silicon == "ethos-u55-128"
    assert BACKENDS[target.backend].defaults(target) == {
        "system_config": "",
        "memory_mode": "Sram_Only",
        "system_entries": ("core_clock=400000000",),
        "max_sram_bytes": 0,
    }
    for old, new, sentence in (
        ('"ethos-u"', '"tpu"', "The NPU family in the chip file .* is 'tpu'.*Try: one of .*neutron.*ethos-u"),
        ('"ethos-u55-128"', '"ethos-u55-1"', "There is no Ethos-U 'ethos-u55-1'"),
    ):
        path.write_text(ETHOS_U_CHIP.replace(old, new, 1))
        with pytest.raises(OptionError, match=sentence):
            find_target(str(path))


@pytest.mark.parametrize(
    ("name", "package", "sentence"),
    [
        (
            "corstone300",
            "ethosu",
            "A program for Ethos-U needs Vela, its compiler, which is not installed. Try: pip install "
            "ethos-u-vela==5.2.0, or a target of another family: Neutron",
        ),
        (
            "cortex-m4",
            "executorch.backends.cortex_m",
            "A program for Cortex-M needs executorch.backends.cortex_m, the operators of CMSIS-NN, which is not "
            'installed. Try: pip install "executorch==1.5.*", or a target of another family: Neutron',
        ),
    ],
)
def test_a_backend_whose_compiler_is_missing(monkeypatch, name, package, sentence):
    for finder in (importlib.util, importlib.machinery.PathFinder):
        there = finder.find_spec
        monkeypatch.setattr(
            finder, "find_spec", lambda p, *rest, there=there: None if p == package else there(p, *rest)
        )
    assert find_target(name).name in all_targets()  # it is listed all the same
    with pytest.raises(RuntimeUnavailableError) as caught:
        options_for(find_target(name))
    assert str(caught.value).startswith(sentence)
    assert BACKENDS[find_target(name).backend].title not in str(caught.value).partition("another family")[2]
