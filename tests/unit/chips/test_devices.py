"""Chips with a Neutron, as data."""

from __future__ import annotations

import pytest
from tests.chip_files import SMALL_NEUTRON

from micronpu.base.errors import OptionError
from micronpu.chips import load_chip, shipped_chips
from micronpu.chips.chip import parse_chip
from micronpu.targets.neutron.target_spec import FLAVORS, LATEST, NeutronNpu, NeutronTargetSpec, neutron_chips
from micronpu.targets.registry import all_targets, find_target

# Class, pipelines, multipliers, NPU clock in MHz: published where `assumed` is empty or not about it.
PUBLISHED = {
    "imxrt700": ("C", 8, 8, 325),
    "mcxn94x": ("C", 4, 4, 150),
    "mcxn54x": ("C", 4, 4, 150),
    "imx95": ("S", 32, 32, 1000),
}
UNPUBLISHED = {"imx943": "S", "imx952": "S", "s32k5": "C", "s32n79": "S"}

CHIP = f"""
name = "mine"
title = "My chip"
source = "me"
[core]
name = "cortex-m4"
clock_mhz = 100
{SMALL_NEUTRON}clock_mhz = 100
{{npu}}
[[target]]
name = "mine-neutron"
title = "Mine"
"""


def test_every_known_chip_is_there():
    assert {n for n in neutron_chips()} >= set(PUBLISHED) | set(UNPUBLISHED)
    for name, expected in PUBLISHED.items():
        npu = NeutronTargetSpec(name).npu
        assert (npu.kind, npu.pipelines, npu.macs, npu.clock_mhz) == expected
    for name, kind in UNPUBLISHED.items():
        spec = NeutronTargetSpec(name)
        assert spec.npu.kind == kind
        assert any("not published" in note for note in spec.notes), name


def test_peak_is_the_published_one():
    """Two operations per multiplier and cycle: 4.8 GOPS, 41.6 GOPS and 2.0 TOPS stand in the vendor's articles."""
    for name, giga in (("mcxn94x", 4.8), ("imxrt700", 41.6), ("imx95", 2048)):
        npu = NeutronTargetSpec(name).npu
        assert 2 * npu.pipelines * npu.macs * npu.clock_mhz / 1000 == pytest.approx(giga)


def test_only_the_chip_that_the_runtime_serves_has_a_name_for_the_vendors_converter():
    assert {name for name, npu in neutron_chips().items() if npu.converter} == {"imxrt700"}


def test_memories():
    sizes = {(chip.name, m.name): m.bytes for chip in shipped_chips().values() for m in chip.memories}
    assert sizes["imxrt700", "sram"] == 7.5 * 2**20
    assert sizes["mcxn94x", "sram"] == 512 * 1024 and sizes["mcxn94x", "flash"] == 2 * 2**20
    assert sizes["imx95", "npu_itcm"] == 64 * 1024 and sizes["imx95", "npu_dtcm"] == 32 * 1024


@pytest.mark.parametrize(
    ("name", "chip"),
    [("mcxn947-neutron", "mcxn94x"), ("mcxn947", "mcxn94x"), ("imx95", "imx95"), ("imx952-neutron", "imx952")],
)
def test_targets_by_name_and_alias(name, chip):
    assert find_target(name).silicon == chip


def test_names_are_unique():
    names = [n for t in all_targets().values() for n in (t.name, *t.entry.aliases)]
    assert len(names) == len(set(names))


def test_unknown_names_list_the_known_ones():
    with pytest.raises(OptionError, match=r"'imx93' has no Neutron.*imx95.*imxrt700"):
        NeutronTargetSpec("imx93")
    with pytest.raises(OptionError, match=r"no converter flavor 'SDK_24_09'.*SDK_25_06, SDK_25_09, SDK_25_12, latest"):
        NeutronTargetSpec("imxrt700", "SDK_24_09")
    assert NeutronTargetSpec("imxrt700").converter_flavor == LATEST
    assert all(NeutronTargetSpec("imxrt700", flavor).converter_flavor == flavor for flavor in FLAVORS)


def test_a_chip_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(CHIP.format(npu='assumed = ["a", "b"]\nconverter = "x"'))
    npu = NeutronNpu.of(load_chip(file))
    assert (npu.assumed, npu.converter) == (("a", "b"), "x")
    for wrong in ('assumed = "a"', "assumed = [1]", 'assumed = [""]', "converter = 3", "note = []"):
        file.write_text(CHIP.format(npu=wrong))
        with pytest.raises(OptionError, match=wrong.split(" ", maxsplit=1)[0]):
            NeutronTargetSpec(str(file))


@pytest.mark.parametrize(
    ("field", "text"),
    [("name", 'a"b'), ("name", "../x"), ("title", "x */ int y; /*"), ("title", "${HOME}"), ("source", "a\\nb")],
)
def test_texts_of_a_chip_stay_text_in_the_sources(field, text):
    """Of firmware: C, CMake, linker scripts and Markdown, into which they are copied."""
    chip = (
        'name = "x"\ntitle = "X"\nsource = "nobody"\n[core]\nname = "cortex-m33"\n[[target]]\nname = "x"\ntitle = "X"\n'
    )
    assert parse_chip(chip, "x.toml").name == "x"
    old = next(line for line in chip.splitlines() if line.startswith(f"{field} ="))
    with pytest.raises(OptionError, match=f"`{field}` in the chip file x.toml is"):
        parse_chip(
            chip.replace(old, f"{field} = '{text}'" if "\\n" not in text else f'{field} = "{text}"', 1), "x.toml"
        )
