"""What is read off a command stream without running it."""

from __future__ import annotations

import struct

import pytest

from micronpu.base.errors import PayloadError
from micronpu.targets.ethosu.firmware import EthosUFirmware
from micronpu.targets.ethosu.host.disassembly import inspect
from micronpu.targets.ethosu.payload import COMMANDS, EthosUPayload, pack
from micronpu.targets.ethosu.stream import accelerator_of, commands_in, operation_offsets


def cop1(*words: int) -> bytes:
    return b"COP1" + struct.pack(f"<{len(words)}I", *words)


def cop2(word: int) -> bytes:
    """Version and size, type and length of the entry, size of the metadata, compiler and its version, data's length."""
    return b"COP2" + struct.pack("<10I", 1, 48, 0, 1, 48, 36, 0x414C4556, 5, 0, word)


@pytest.mark.parametrize(
    ("word", "name"), [(0x07, "ethos-u55-128"), (0x10000008, "ethos-u65-256"), (0x2000000B, "ethos-u85-2048")]
)
def test_accelerator(word: int, name: str) -> None:
    assert accelerator_of(cop1(5, 1, word, 0)) == name
    assert accelerator_of(cop2(word)) == name


def test_an_accelerator_that_there_is_not() -> None:
    with pytest.raises(PayloadError, match="configuration 0x10000007, which there is not"):
        accelerator_of(cop1(1, 0x10000007))


@pytest.mark.parametrize("stream", [b"", b"COP1", cop1(2, 0), cop1(1), b"COP2", b"NOPE" + bytes(64)])
def test_a_stream_that_does_not_say(stream: bytes) -> None:
    with pytest.raises(PayloadError, match="do not say which accelerator"):
        accelerator_of(stream)


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (cop1(1, 0x10000008), "Ethos-U65 with 256 MACs per cycle"),
        (cop2(0x10000008), "Ethos-U65 with 256 MACs per cycle"),
        (cop1(1, 0x10000007), "an Ethos-U"),
        (cop1(2, 1, 0x10000008), "an Ethos-U"),
    ],
)
def test_what_inspect_and_firmware_say_is_what_the_executor_reads(stream: bytes, kind: str) -> None:
    """Words of another action are no configuration, and neither is one of no accelerator."""
    payload = pack(EthosUPayload(stream, b"", 16, (), ()))
    assert inspect("EthosUBackend", payload).kind == f"{kind}, 16 bytes of scratch memory"
    firmware = EthosUFirmware()
    assert firmware.accelerator(payload, {"target": "ethos-u55-64"}) == "ethos-u55-64"
    if kind == "an Ethos-U":
        with pytest.raises(PayloadError, match=r"which there is not|do not say which accelerator"):
            firmware.accelerator(payload, {})
    else:
        assert firmware.accelerator(payload, {}) == accelerator_of(stream) == "ethos-u65-256"


def test_the_accelerator_of_a_stream_that_stands_elsewhere_is_not_known() -> None:
    payload = pack(EthosUPayload(cop1(1, 0x10000008), b"", 16, (), ()), {COMMANDS: "0" * 64})
    assert inspect("EthosUBackend", payload).kind.startswith("an Ethos-U, ")
    assert EthosUFirmware().accelerator(payload, {}) == ""


def test_a_stream_that_ends_before_a_second_word() -> None:
    commands = list(commands_in([0x002, 0x4030, 7, 0x4031]))
    assert [command.at for command in commands] == [0, 1, 3]
    assert [command.value for command in commands] == [None, 7, None]
    assert [command.register for command in commands] == [(False, 0x002), (True, 0x030), (True, 0x031)]


def test_operations_are_found_behind_values() -> None:
    has_value, region, base, conv, dma, stop = 0x4000, 0x10F, 0x000, 0x002, 0x010, 0x000
    words = [region | 1 << 16, base | has_value, conv, dma, conv | 1 << 16, base | has_value, 0x10, stop]
    stream = cop1(1, 0x07, 0, 2 | len(words) << 16, *words)
    assert operation_offsets(stream) == [12, 16], "a value that looks like a command is none"
    with pytest.raises(PayloadError, match="hold no command stream"):
        operation_offsets(cop1(1, 0x07, 0))
