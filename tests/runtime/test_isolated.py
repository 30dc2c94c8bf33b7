"""Digests, and programs in a process of their own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
import torch
from tests.runtime import neutron_programs as programs
from tests.runtime.test_host_program import add_pte, conv_pte, int8

from micronpu.base.errors import ModelError, OptionError, PayloadError
from micronpu.container.payload import TensorSlot as Slot
from micronpu.program.pte import DIGEST_KEY, EMPTY_DIGEST
from micronpu.runtime import Digest, HostProgram, RunOptions, stamp, state_of

A, B = int8(1, 8, seed=1), int8(1, 8, seed=2)


def with_place(pte: bytes) -> bytes:
    """The program with a place for a digest, as micronpu's partitioners give it."""
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    file = deserialize_pte_binary(pte)
    store = NamedDataStore()
    store.add_named_data(DIGEST_KEY, EMPTY_DIGEST)
    file.named_data = store.get_named_data_store_output()
    return bytes(serialize_pte_binary(file))


@pytest.fixture(scope="module")
def stamped() -> bytes:
    return stamp(with_place(add_pte()))


def test_a_digest_is_right_until_one_byte_changes(stamped):
    assert state_of(add_pte()) is Digest.MISSING
    assert state_of(with_place(add_pte())) is Digest.MISSING
    assert state_of(stamped) is Digest.RIGHT
    assert stamp(stamped) == stamped
    for position in range(40, len(stamped), 5):
        damaged = bytearray(stamped)
        damaged[position] ^= 0x40
        assert state_of(bytes(damaged)) is Digest.WRONG
    with pytest.raises(PayloadError, match="no place for a digest"):
        stamp(add_pte())


def test_a_damaged_program_does_not_run(stamped, tmp_path):
    """The byte is in the plan, where nothing else would find it: a zero point."""
    (y,) = HostProgram(stamped).run(A, B)
    damaged = bytearray(stamped)
    damaged[-1] ^= 1  # of the segment, or of its padding
    for source in (bytes(damaged), tmp_path / "a.pte"):
        (tmp_path / "a.pte").write_bytes(damaged)
        with pytest.raises(PayloadError, match=r"is damaged: .*digest that it carries.*--isolated"):
            HostProgram(source)
    with HostProgram(bytes(damaged), RunOptions(isolated=True)) as program:
        assert program.digest is Digest.WRONG
        assert torch.equal(program.run(A, B)[0], y)


@pytest.mark.sweep
def test_files_without_digest_are_isolated_and_compute_the_same(stamped, tmp_path):
    x = int8(1, 3, 5, 4).contiguous(memory_format=torch.channels_last)
    (tmp_path / "conv.pte").write_bytes(conv_pte(True, True))
    (tmp_path / "stamped.pte").write_bytes(stamped)
    with HostProgram(tmp_path / "conv.pte") as program:
        assert program.is_isolated
        (y,) = program.run(x)
        (expected,) = HostProgram(conv_pte(True, True)).run(x)
        assert torch.equal(y, expected) and y.stride() == expected.stride()
        with pytest.raises(ModelError, match="takes 1 input "):
            program.run(x, x)
        assert torch.equal(program.profile(x, etdump=tmp_path / "e", debug_buffer=tmp_path / "b")[0], expected)
        assert (tmp_path / "e").stat().st_size and (tmp_path / "b").stat().st_size
    with pytest.raises(ModelError, match="is closed"):
        program.run(x)
    assert not HostProgram(tmp_path / "stamped.pte").is_isolated
    assert not HostProgram(tmp_path / "conv.pte", RunOptions(isolated=False)).is_isolated
    with pytest.raises(OptionError, match="`isolated` is 'yes'"):
        RunOptions(isolated="yes")


def test_a_refusal_in_the_process_is_the_same_sentence(tmp_path):
    blob = programs.payload(programs.add_model(), [Slot(0), Slot(1)], [Slot(0)], 2)
    damaged = bytearray(programs.pte(blob, (A, B), (A,)))
    damaged[bytes(damaged).index(b"MNPR")] ^= 255
    (tmp_path / "a.pte").write_bytes(damaged)
    sentences = []
    for isolated in (False, True):
        with pytest.raises(PayloadError) as caught:
            HostProgram(tmp_path / "a.pte", RunOptions(isolated=isolated))
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]


def test_the_end_of_the_process_is_a_sentence(tmp_path):
    (tmp_path / "a.pte").write_bytes(add_pte())
    program = HostProgram(tmp_path / "a.pte")
    os.kill(program._isolated._worker.process.pid, signal.SIGSEGV)
    with pytest.raises(PayloadError, match=r"a\.pte ran in a process that crashed with SIGSEGV: "):
        program.run(A, B)


def test_a_program_that_ends_its_process_is_a_sentence(tmp_path):
    """LiteRT divides by the stride of a convolution without asking whether it is 0."""
    model = bytearray(programs.conv_model())
    from ai_edge_litert import schema_py_generated as schema

    whole = schema.ModelT.InitFromPackedBuf(model, 0)
    whole.subgraphs[0].operators[0].builtinOptions.strideH = 0
    blob = programs.payload(programs.packed(whole), [Slot(0, True)], [Slot(0, True)], 1)
    path = Path(tmp_path / "a.pte")
    path.write_bytes(programs.pte(blob, (int8(1, 3, 5, 4),), (int8(1, 6, 5, 4),)))
    with pytest.raises(PayloadError):
        HostProgram(path).run(int8(1, 3, 5, 4))


def test_a_program_that_never_ends_is_stopped(tmp_path):
    (tmp_path / "a.pte").write_bytes(add_pte())
    program = HostProgram(tmp_path / "a.pte", RunOptions(isolated=True))
    process = program._isolated._worker.process
    os.kill(process.pid, signal.SIGSTOP)
    program._isolated._limit = 0.1
    with pytest.raises(PayloadError, match=r"a\.pte took more than 0\.1 s to run and was stopped.*--time-limit"):
        program.run(A, B)
    assert process.returncode == -signal.SIGKILL
    for wrong in (0, -1, math.nan, math.inf, "60", True):
        with pytest.raises(OptionError, match=r"time_limit is .* number of seconds above 0, or None"):
            RunOptions(time_limit=wrong)
    assert RunOptions(time_limit=None).time_limit is None


TENSOR = {"dtype": "int8", "shape": [1, 8], "order": [0, 1]}
ANSWERS = {
    "a list": [1],
    "no sizes": {"outputs": []},
    "sizes below zero": {"sizes": [-5]},
    "much data": {"sizes": [1 << 62]},
    "no outputs": {"sizes": []},
    "a number": {"outputs": 5, "sizes": []},
    "too few": {"outputs": [], "sizes": []},
    "no tensor": {"outputs": [float("nan")], "sizes": []},
    "another type": {"outputs": [TENSOR | {"dtype": "O"}], "sizes": [8]},
    "another shape": {"outputs": [TENSOR | {"shape": [1 << 40]}], "sizes": [8]},
    "sizes that are no integers": {"outputs": [TENSOR | {"shape": [1e300, 8]}], "sizes": [8]},
    "the same axis twice": {"outputs": [TENSOR | {"order": [0, 0]}], "sizes": [8]},
    "many": {"outputs": [TENSOR] * 50_000, "sizes": [8] * 50_000},
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", ANSWERS)
def test_a_process_that_was_taken_over_answers_anything(case, monkeypatch):
    """The answer is read up to what the program's results need, and compared with them."""
    with HostProgram(add_pte(), RunOptions(isolated=True)) as program:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            text = json.dumps(ANSWERS[case]).encode()
            answer = len(text).to_bytes(8, "little") + text + bytes(8)

            def write() -> None:
                with contextlib.suppress(OSError):  # an answer that is too long is not read to its end
                    theirs.sendall(answer)

            writer = threading.Thread(target=write)
            writer.start()
            monkeypatch.setattr(program._isolated._worker, "_channel", ours)
            monkeypatch.setattr(program._isolated._worker, "how_it_ended", lambda: ("ended", ""))
            with pytest.raises(PayloadError, match=r"made to do this|gave something that is no tensor"):
                program.run(A, B)
            ours.close()
            writer.join()
