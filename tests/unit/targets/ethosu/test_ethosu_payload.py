"""The Ethos-U payload, block by block, and the options of a compilation."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from micronpu.base.errors import OptionError, PayloadError
from micronpu.targets.ethosu.accelerators import accelerators, clock_hz, default_ini
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import BLOCKS, PayloadBlock, VelaIO, blocks, pack, parse
from micronpu.targets.ethosu.payload import _parts as parts
from micronpu.targets.ethosu.vela.compiler import VelaProgram

PROGRAM = VelaProgram(
    commands=b"COP1" + bytes(range(17)),
    constants=b"\x07" * 33,
    scratch_size=4096,
    fast_scratch_size=0,
    inputs=(VelaIO((1, 8, 8, 3), 1, 64, 1),),
    outputs=(VelaIO((1, 12), 1, 0, 1), VelaIO((1, 4), 2, 128, 1)),
    cycles=1000,
    memory={"Sram": 4096},
    layers=(),
    clock_hz=500e6,
)


def test_packed_payload_is_read_back() -> None:
    payload = parse(pack(PROGRAM))
    assert payload.commands == PROGRAM.commands
    assert payload.constants == PROGRAM.constants
    assert payload.scratch_size == 4096
    assert payload.inputs == (VelaIO((1, 1, 1, 8, 8, 3), 1, 64, 1),)
    assert [o.shape for o in payload.outputs] == [(1, 1, 1, 1, 1, 12), (1, 1, 1, 1, 1, 4)]


def test_layout_is_the_published_one() -> None:
    data = pack(PROGRAM)
    assert data[:16] == b"vela_bin_stream\0"
    assert data[16:32] == bytes(16)
    assert data[32:48] == b"cmd_data".ljust(16, b"\0")
    assert struct.unpack_from("<IB", data, 48) == (21, 0)
    assert data[64:68] == b"COP1"
    assert len(data) % 16 == 0
    assert data[-32:-16] == b"vela_end_stream\0"
    assert [b.name for b in blocks(data)] == list(BLOCKS)


def test_every_truncation_is_a_sentence() -> None:
    data = pack(PROGRAM)
    for length in range(1, len(data), 7):
        with pytest.raises(PayloadError, match=r"truncated|no block|does not begin"):
            parse(data[:length])


def test_unknown_block_is_refused_by_name() -> None:
    data = pack(PROGRAM)
    foreign = data[:-32] + b"".join(parts(PayloadBlock("tosa_copy", b"x"))) + data[-32:]
    with pytest.raises(PayloadError, match="unknown block 'tosa_copy'"):
        parse(foreign)


def test_block_twice_is_refused() -> None:
    data = pack(PROGRAM)
    twice = data[:-32] + b"".join(parts(PayloadBlock("scratch_size", struct.pack("<I", 1)))) + data[-32:]
    with pytest.raises(PayloadError, match="two blocks 'scratch_size'"):
        parse(twice)


def test_command_stream_without_its_mark_is_refused() -> None:
    with pytest.raises(PayloadError, match="COP1 or COP2"):
        parse(pack(PROGRAM).replace(b"COP1", b"XXXX"))


def test_every_accelerator_has_defaults_that_fit() -> None:
    assert len(accelerators()) == 11
    for name in accelerators():
        spec = EthosUOptions(name)
        assert spec.system_config in spec.accelerator.system_configs(spec.ini)
        assert spec.memory_mode in spec.accelerator.memory_modes(spec.ini)
        assert clock_hz(spec.ini, spec.system_config) >= 100e6


def test_cores_and_macs_of_the_larger_u65() -> None:
    accelerator = EthosUOptions("ethos-u65-512").accelerator
    assert (accelerator.macs, accelerator.cores) == (256, 2)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"silicon": "ethos-u55-64k"}, "There is no Ethos-U 'ethos-u55-64k'. Try: one of ethos-u55-32"),
        ({"memory_mode": "Dedicated_Sram"}, "has no memory mode 'Dedicated_Sram'. Try: one of Sram_Only, Shared_Sram"),
        ({"system_config": "Ethos_U85_SYS_DRAM_Low"}, "has no system configuration 'Ethos_U85_SYS_DRAM_Low'"),
        (
            {"extra_flags": ("--no-such-flag",)},
            "'--no-such-flag' has no effect on a program in memory or does not exist",
        ),
        ({"extra_flags": ("--optimise=Speed",)}, "--optimise is 'Speed'. Try: one of Performance, Size"),
        ({"extra_flags": ("--arena-cache-size", "-5")}, "it is a positive number"),
        ({"extra_flags": "--optimise=Size"}, "it is a list of strings"),
        ({"system_entries": ("core_clok=4e8",)}, "has no 'core_clok'. Try: one of core_clock, axi0_port"),
        ({"system_entries": ("core_clock=fast",)}, "'core_clock=fast' has no positive number. Try: core_clock=400e6"),
        ({"via": "onnx"}, "`via` is 'onnx'. Try: one of auto, litert, tosa"),
        ({"config_ini": "no such.ini"}, "There is no Vela configuration `no such.ini`"),
        ({"carry_graph": 1}, "`carry_graph` is 1; it is True or False"),
    ],
)
def test_impossible_options_are_sentences(options: dict[str, object], part: str) -> None:
    with pytest.raises(OptionError) as caught:
        EthosUOptions(**({"silicon": "ethos-u55-128"} | options))  # type: ignore[arg-type]
    assert part in str(caught.value)


def test_own_configuration_with_a_space_in_its_path(tmp_path: Path) -> None:
    own = tmp_path / "my board.ini"
    own.write_text(default_ini().replace("Ethos_U55_High_End_Embedded", "My_Board"))
    spec = EthosUOptions("ethos-u55-128", config_ini=str(own), system_config="My_Board")
    assert spec.system_config == "My_Board"
    with pytest.raises(OptionError, match="no system configuration 'Ethos_U55_High_End_Embedded'"):
        EthosUOptions("ethos-u55-128", config_ini=str(own), system_config="Ethos_U55_High_End_Embedded")


def test_flags_with_value_apart_or_joined() -> None:
    joined = EthosUOptions("ethos-u85-256", extra_flags=("--optimise=Size",)).vela_options()
    apart = EthosUOptions("ethos-u85-256", extra_flags=("--optimise", "Size")).vela_options()
    assert joined == apart == {("scheduler", "optimize"): "Size"}
