"""Programs through the stock ExecuTorch runtime and the plug-in, against LiteRT's own interpreter, bit for bit."""

from __future__ import annotations

import functools
import gc
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.runtime import neutron_programs as programs

from micronpu.base.errors import FileError, MicroNpuError, ModelError, OptionError, PayloadError
from micronpu.container.payload import TensorSlot as Slot
from micronpu.program.plan import recorded_bytes
from micronpu.runtime import HostProgram, RunOptions, read_pte
from micronpu.runtime.plugin import load_plugin


def int8(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + len(shape))
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)


@functools.cache
def add_blob() -> bytes:
    return programs.payload(programs.add_model(), [Slot(0), Slot(1)], [Slot(0)], 2)


@functools.cache
def add_pte() -> bytes:
    return programs.pte(add_blob(), (int8(1, 8), int8(1, 8)), (int8(1, 8),))


@functools.cache
def conv_pte(in_last: bool = False, out_last: bool = False, h: int = 5, w: int = 4, c: int = 3, o: int = 6) -> bytes:
    def layout(last: bool) -> torch.memory_format:
        return torch.channels_last if last else torch.contiguous_format

    blob = programs.payload(programs.conv_model(h, w, c, o), [Slot(0, True)], [Slot(0, True)], 1)
    x = int8(1, c, h, w).contiguous(memory_format=layout(in_last))
    return programs.pte(blob, (x,), (int8(1, o, h, w).contiguous(memory_format=layout(out_last)),))


def patched(pte: bytes, blob: bytes, position: int, new: bytes) -> bytes:
    """The program with some bytes of its payload replaced."""
    start = pte.index(blob) + position
    return pte[:start] + new + pte[start + len(new) :]


def nchw(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(array, -1, 1)))


def nhwc(tensor: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.permute(0, 2, 3, 1).numpy())


# --- numbers ------------------------------------------------------------------------------------------------------


def test_add_is_litert_bit_for_bit():
    program = HostProgram(add_pte())
    for seed in range(20):
        a, b = int8(1, 8, seed=seed), int8(1, 8, seed=seed + 100)
        (y,) = program.run(a, b)
        (expected,) = programs.interpret(programs.add_model(), a.numpy(), b.numpy())
        assert np.array_equal(y.numpy(), expected)


@pytest.mark.parametrize("in_last", [False, True])
@pytest.mark.parametrize("out_last", [False, True])
@pytest.mark.parametrize(("h", "w", "c", "o"), [(5, 4, 3, 6), (1, 1, 3, 6), (5, 1, 1, 6), (1, 4, 3, 1), (3, 2, 1, 1)])
def test_convolution_with_channels_moved(in_last, out_last, h, w, c, o):
    """Flagged tensors, contiguous or channels last, also where sizes of 1 make the strides ambiguous."""
    program = HostProgram(conv_pte(in_last, out_last, h, w, c, o))
    x = int8(1, c, h, w, seed=7)
    (expected,) = programs.interpret(programs.conv_model(h, w, c, o), nhwc(x))
    fits, other = torch.channels_last, torch.contiguous_format
    if not in_last:
        fits, other = other, fits
    gaps = torch.zeros(1, c, h, w + 1, dtype=torch.int8)[..., :w]
    gaps.copy_(x)
    for given in (x.contiguous(memory_format=fits), gaps.permute(0, 3, 1, 2).clone().permute(0, 2, 3, 1)):
        if given.is_contiguous(memory_format=other) and not given.is_contiguous(memory_format=fits):
            continue  # a size of 1 made the odd view one of the other layout
        (y,) = program.run(given)
        assert torch.equal(y, nchw(expected))
    refused = x.contiguous(memory_format=other)
    if not refused.is_contiguous(memory_format=fits):
        wanted = "channels-last" if in_last else "contiguous"
        with pytest.raises(ModelError, match=f"another memory layout than the program, .* compiled for {wanted}"):
            program.run(refused)


@pytest.mark.parametrize(
    ("h", "w", "c", "flag"), [(5, 4, 1, True), (5, 4, 1, False), (1, 1, 3, False), (5, 4, 3, False)]
)
def test_orders_of_axes_that_the_device_refuses_do_not_run(h, w, c, flag):
    """One channel, or no flag: the device compares the list of axes, though the bytes may be the same."""
    model = programs.add_model((1, h, w, c) if flag else (1, c, h, w))
    blob = programs.payload(model, [Slot(0, flag), Slot(1, flag)], [Slot(0, flag)], 2)
    last = int8(1, c, h, w).contiguous(memory_format=torch.channels_last)
    pte = with_dim_order(programs.pte(blob, (last, last), (int8(1, c, h, w),)), (0, 2, 3, 1))
    with pytest.raises(PayloadError, match=r"Input 0 of NeutronBackend has .* dim order \(0, 2, 3, 1\)"):
        HostProgram(pte).run(last, last)
    contiguous = programs.pte(blob, (int8(1, c, h, w),) * 2, (int8(1, c, h, w),))
    HostProgram(contiguous).run(int8(1, c, h, w), int8(1, c, h, w))


def with_dim_order(pte: bytes, order: tuple[int, ...]) -> bytes:
    """The program with this order of axes for its inputs."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    file = deserialize_pte_binary(pte)
    plan = file.program.execution_plan[0]
    for index in plan.inputs:
        plan.values[index].val.dim_order = list(order)
    return bytes(serialize_pte_binary(file))


def test_maps_permute_inputs_and_outputs():
    """Three outputs and two inputs, each in another order than in the LiteRT program; one argument is not used."""
    model = programs.split_model()
    blob = programs.payload(model, [Slot(2), Slot(0)], [Slot(2), Slot(0), Slot(1)], 3)
    b, unused, a = int8(1, 4, seed=1), int8(1, 5), int8(1, 6, seed=2)
    program = HostProgram(programs.pte(blob, (b, unused, a), (int8(1, 3), int8(1, 4), int8(1, 3))))
    first, second, doubled = programs.interpret(model, a.numpy(), b.numpy())
    for got, expected in zip(program.run(b, unused, a), (second, doubled, first), strict=True):
        assert np.array_equal(got.numpy(), expected)


def test_rank_3_and_5_permute_the_last_three_axes():
    for shape in ((3, 4, 5), (2, 2, 3, 4, 5)):
        moved = (*shape[:-3], *shape[-2:], shape[-3])
        blob = programs.payload(programs.add_model(moved), [Slot(0, True), Slot(1, True)], [Slot(0, True)], 2)
        a, b = int8(*shape, seed=1), int8(*shape, seed=2)
        (y,) = HostProgram(programs.pte(blob, (a, b), (a,))).run(a, b)
        arrays = [np.ascontiguousarray(np.moveaxis(t.numpy(), -3, -1)) for t in (a, b)]
        (expected,) = programs.interpret(programs.add_model(moved), *arrays)
        assert np.array_equal(y.numpy(), np.moveaxis(expected, -1, -3))


@pytest.mark.parametrize("dtype", ["int32", "float32", "int16"])
def test_element_sizes_are_permuted_whole(dtype):
    shape = (1, 4, 5, 3)
    tensors = [programs.T(shape, 0.1 if dtype == "int16" else 0.0, 0, None, dtype) for _ in range(3)]
    model = programs.litert(tensors, [programs.O("ADD", [0, 1], [2], programs.schema.AddOptionsT())], [0, 1], [2])
    blob = programs.payload(model, [Slot(0, True), Slot(1, True)], [Slot(0, True)], 2)
    a, b = (torch.randint(-9999, 9999, (1, 3, 4, 5)).to(getattr(torch, dtype)) for _ in range(2))
    (y,) = HostProgram(programs.pte(blob, (a, b), (a,))).run(a, b)
    (expected,) = programs.interpret(model, nhwc(a), nhwc(b))
    assert torch.equal(y, nchw(expected))


def test_fast_mode_is_litert_with_its_fast_kernels():
    x = int8(1, 3, 5, 4, seed=3)
    (y,) = HostProgram(conv_pte(), RunOptions(fast=True)).run(x)
    (expected,) = programs.interpret(programs.conv_model(), nhwc(x), fast=True)
    assert torch.equal(y, nchw(expected))


def test_fast_mode_computes_with_other_kernels_than_the_reference():
    """A large convolution rounds a few elements differently; a program loaded afterwards is exact again."""
    size = {"h": 48, "w": 48, "c": 32, "o": 32}
    x = int8(1, 32, 48, 48)
    pte = conv_pte(False, False, **size)
    (fast,), (exact,) = (HostProgram(pte, RunOptions(fast=f)).run(x) for f in (True, False))
    (expected,) = programs.interpret(programs.conv_model(**size), nhwc(x))
    assert torch.equal(exact, nchw(expected))
    differences = (fast.int() - exact.int()).abs()
    assert 0 < (differences > 0).sum() < fast.numel() // 100 and differences.max() <= 2


def test_two_programs_interleaved_and_each_run_twice():
    add, conv = HostProgram(add_pte()), HostProgram(conv_pte())
    a, b, x = int8(1, 8, seed=1), int8(1, 8, seed=2), int8(1, 3, 5, 4)
    (first,), (image,) = add.run(a, b), conv.run(x)
    kept = first.clone()
    assert torch.equal(add.run(a, b)[0], first) and torch.equal(conv.run(x)[0], image)
    add.run(b, a)
    assert torch.equal(first, kept), "an output was overwritten by a later run"


def test_programs_are_freed():
    gc.collect()
    before = load_plugin().live_programs
    first, second = HostProgram(add_pte()), HostProgram(add_pte())
    assert load_plugin().live_programs == before + 2
    first.close()
    first.close()
    del second
    gc.collect()
    assert load_plugin().live_programs == before
    with pytest.raises(ModelError, match=r"closed"):
        first.run(int8(1, 8), int8(1, 8))


@pytest.mark.sweep
def test_a_program_may_outlive_python(tmp_path):
    """C++ destroys a module-level program after callbacks have become impossible: no crash at exit.

    And a process that runs a program has not imported ExecuTorch's compiler, which takes seconds.
    """
    (tmp_path / "add.pte").write_bytes(add_pte())
    code = (
        "import sys, torch; from micronpu.runtime import HostProgram, RunOptions; "
        "p = HostProgram(sys.argv[1], RunOptions(isolated=False)); sys.keep = p; "
        "x = torch.zeros(1, 8, dtype=torch.int8); print(p.run(x, x)[0].tolist()); "
        "assert 'executorch.exir' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "add.pte")], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[[1, 1, 1, 1, 1, 1, 1, 1]]"), done.stderr


# --- recording ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
def test_profile_shows_each_npu_operation_with_time_value_and_name(tmp_path, fast):
    from executorch.devtools import Inspector

    x = int8(1, 3, 5, 4, seed=5)
    program = HostProgram(conv_pte(), RunOptions(fast=fast))
    (y,) = program.profile(x, etdump=tmp_path / "e.etdp", debug_buffer=tmp_path / "e.bin")
    assert torch.equal(y, program.run(x)[0]), "operator by operator gives other numbers"
    inspector = Inspector(etdump_path=str(tmp_path / "e.etdp"), debug_buffer_path=str(tmp_path / "e.bin"))
    events = [e for block in inspector.event_blocks for e in block.events if e.is_delegated_op]
    assert [e.delegate_debug_identifier for e in events] == [0, 1]
    assert [e.delegate_debug_metadatas for e in events] == [[b"CONV_2D"], [b"ADD"]]
    assert all(e.perf_data.raw[0] > 0 and len(e.debug_data) == 1 for e in events)
    assert torch.equal(events[1].debug_data[0], torch.from_numpy(nhwc(y)))


def test_profile_of_operators_with_constants(tmp_path):
    from executorch.devtools import Inspector

    blob = programs.payload(programs.split_model(), [Slot(0), Slot(1)], [Slot(0), Slot(1), Slot(2)], 2)
    a, b = int8(1, 6, seed=2), int8(1, 4, seed=1)
    program = HostProgram(programs.pte(blob, (a, b), (int8(1, 3), int8(1, 3), int8(1, 4))))
    got = program.profile(a, b, etdump=tmp_path / "e", debug_buffer=tmp_path / "b")
    for mine, expected in zip(got, programs.interpret(programs.split_model(), a.numpy(), b.numpy()), strict=True):
        assert np.array_equal(mine.numpy(), expected)
    inspector = Inspector(etdump_path=str(tmp_path / "e"), debug_buffer_path=str(tmp_path / "b"))
    events = [e for block in inspector.event_blocks for e in block.events if e.is_delegated_op]
    assert [[t.tolist() for t in e.debug_data] for e in events] == [[t.tolist()] for t in got]


def test_recording_never_overruns_the_debug_buffer(tmp_path):
    """The runtime ends the process when the buffer is full, so a run that may not fit is refused."""
    x = int8(1, 3, 5, 4)
    bound = recorded_bytes(conv_pte(), "forward")
    program = HostProgram(conv_pte(), RunOptions(profile=True, debug_buffer_size=2 * bound))
    program.run(x)
    program.run(x)
    with pytest.raises(OptionError, match=f"debug_buffer_size={3 * bound}"):
        program.run(x)
    program.save_etdump(tmp_path / "e", tmp_path / "b")
    assert (tmp_path / "b").stat().st_size > 0 and len(list(tmp_path.iterdir())) == 2


def test_recording_mistakes_are_sentences(tmp_path):
    with pytest.raises(OptionError, match="without recording"):
        HostProgram(add_pte()).save_etdump(tmp_path / "e")
    program = HostProgram(add_pte(), RunOptions(profile=True, debug_buffer_size=0))
    program.run(int8(1, 8), int8(1, 8))
    with pytest.raises(OptionError, match="debug_buffer_size=0"):
        program.save_etdump(tmp_path / "e", tmp_path / "b")
    with pytest.raises(FileError, match="cannot be written"):
        program.save_etdump(tmp_path / "missing" / "e")
    program.save_etdump(tmp_path / "e")
    assert [p.name for p in tmp_path.iterdir()] == ["e"]
    for bad in ({"fast": 1}, {"profile": "yes"}, {"debug_buffer_size": -1}, {"debug_buffer_size": True}):
        with pytest.raises(OptionError):
            RunOptions(**bad)


def test_recording_goes_on_behind_what_was_saved(tmp_path):
    """ExecuTorch's recorder writes once; a second time, or a run behind it, would end the process."""
    program = HostProgram(add_pte(), RunOptions(profile=True))
    with pytest.raises(ModelError, match="has not run since it was loaded"):
        program.save_etdump(tmp_path / "e")
    a, b = int8(1, 8, seed=1), int8(1, 8, seed=2)
    for name in ("first", "second"):
        (y,) = program.run(a, b)
        program.save_etdump(tmp_path / name, tmp_path / "values")
        with pytest.raises(ModelError, match="has not run since"):
            program.save_etdump(tmp_path / "e")
    assert torch.equal(y, program.run(a, b)[0])
    assert (tmp_path / "first").stat().st_size == (tmp_path / "second").stat().st_size > 0


# --- damaged and unsuited programs --------------------------------------------------------------------------------


def test_every_truncation_is_a_sentence():
    data = add_pte()
    for length in range(len(data)):
        with pytest.raises(PayloadError, match=r"empty|not an ExecuTorch|truncated|damaged") as caught:
            read_pte(data[:length])
        assert "Try: " in str(caught.value)
    for length in (0, 3, 8, 39, 40, len(data) // 2, len(data) - 1):
        with pytest.raises(PayloadError):
            HostProgram(data[:length])


def test_every_truncation_of_a_program_without_segments():
    """There the payload is inside the flatbuffer and no header tells the size: reader and runtime find it together."""
    data = programs.pte(add_blob(), (int8(1, 8), int8(1, 8)), (int8(1, 8),), inline=True)
    assert data[8:12] != b"eh00" and read_pte(data).payloads == (("NeutronBackend", add_blob()),)
    expected = HostProgram(add_pte()).run(int8(1, 8), int8(1, 8))
    assert torch.equal(HostProgram(data).run(int8(1, 8), int8(1, 8))[0], expected[0])
    for length in range(0, len(data), 7):
        with pytest.raises(PayloadError):
            HostProgram(data[:length])


def test_files_that_are_no_programs(tmp_path):
    (tmp_path / "a.pte").write_bytes(b"PK\x03\x04" + b"\0" * 400)
    with pytest.raises(PayloadError, match=r"a\.pte is not an ExecuTorch program"):
        HostProgram(tmp_path / "a.pte")
    with pytest.raises(PayloadError, match=r"b\.pte cannot be read: No such file"):
        HostProgram(str(tmp_path / "b.pte"))
    with pytest.raises(PayloadError, match="has the ExecuTorch format b'ET99'"):
        HostProgram(add_pte()[:4] + b"ET99" + add_pte()[8:])


HEADER = 16  # of a payload with at most 6 tensors in all


def test_a_damaged_payload_is_a_sentence_of_the_plugin():
    blob, pte = add_blob(), add_pte()
    record, model = HEADER, HEADER + 64
    for position, new, sentence in (
        (9, b"\x07", "payload has version 7"),
        (record, struct.pack("<I", 0x64434D6E), "real chip, which the host cannot execute"),
        (record, b"ABCD", "neither microcode of an NPU"),
        (record + 4, b"\x02", "format version 2"),
        (record + 16, b"\0\0\0\0", "record of the reference container is corrupted"),
        (record + 28, b"\xff\xff\xff\xff", "record of the reference container is corrupted"),
        (model + 100, bytes([blob[model + 100] ^ 4]), "LiteRT model in the reference container is corrupted"),
        (3, b"\x05", "unknown format 5"),
        (6, b"\x09", "reads argument 9 of 2"),
        (8, b"\x01", "writes delegate output 1"),
        (2, b"\x05", "called with 3 arguments"),
    ):
        with pytest.raises(PayloadError, match=sentence) as caught:
            HostProgram(patched(pte, blob, position, new)).run(int8(1, 8), int8(1, 8))
        assert str(caught.value).count("Try: ") == 1
    HostProgram(pte).run(int8(1, 8), int8(1, 8))  # an error leaves nothing behind


def test_a_truncated_payload_in_a_whole_program():
    for length in (3, 10, 40, 80, len(add_blob()) - 16):
        data = programs.pte(add_blob()[:length], (int8(1, 8), int8(1, 8)), (int8(1, 8),))
        with pytest.raises(PayloadError, match=r"truncated|corrupted"):
            HostProgram(data)


def test_program_and_payload_that_do_not_fit_each_other():
    """Other sizes and types round the delegate call than inside: found before anything is copied."""
    cases = (
        ((int8(1, 9), int8(1, 8)), int8(1, 8), "Input 0 .* has 8 bytes of int8, but .* 9 bytes"),
        ((int8(1, 8), int8(1, 8).to(torch.uint8)), int8(1, 8), "Input 1 .* int8, .* uint8"),
        ((int8(1, 8), int8(1, 8)), int8(1, 4), "Output 0 .* has 8 bytes of int8, but .* 4 bytes"),
    )
    for inputs, output, sentence in cases:
        program = HostProgram(programs.pte(add_blob(), inputs, (output,)))
        with pytest.raises(PayloadError, match=sentence):
            program.run(*inputs)


def test_a_layout_that_the_device_refuses_is_refused_here():
    blob = programs.payload(programs.add_model((1, 3, 4, 5)), [Slot(0), Slot(1)], [Slot(0)], 2)
    a = int8(1, 3, 4, 5)
    last = a.contiguous(memory_format=torch.channels_last)
    program = HostProgram(programs.pte(blob, (last, a), (a,)))
    with pytest.raises(
        PayloadError, match=r"Input 0 of NeutronBackend has shape \(1, 3, 4, 5\) and dim order \(0, 2, 3, 1\)"
    ):
        program.run(last, a)
    flagged = programs.payload(programs.add_model(), [Slot(0, True), Slot(1)], [Slot(0)], 2)
    program = HostProgram(programs.pte(flagged, (int8(1, 8), int8(1, 8)), (int8(1, 8),)))
    with pytest.raises(PayloadError, match="a memory layout that the NPU cannot take"):
        program.run(int8(1, 8), int8(1, 8))


def test_a_model_that_litert_refuses_is_a_sentence():
    tensors = [programs.T((1, 8), 0.1), programs.T((1, 7), 0.1), programs.T((1, 8), 0.1)]
    model = programs.litert(tensors, [programs.O("ADD", [0, 1], [2], programs.schema.AddOptionsT())], [0, 1], [2])
    blob = programs.payload(model, [Slot(0), Slot(1)], [Slot(0)], 2)
    with pytest.raises(PayloadError, match="LiteRT cannot load"):
        HostProgram(programs.pte(blob, (int8(1, 8), int8(1, 7)), (int8(1, 8),)))


def test_an_unregistered_delegate_is_a_sentence():
    data = programs.pte(b"x" * 16, (int8(1, 8),), (int8(1, 8),), delegate="NoSuchBackend")
    with pytest.raises(PayloadError, match=r"delegate 'NoSuchBackend', which is not registered.*NeutronBackend"):
        HostProgram(data)


def test_missing_operators_are_listed():
    class Sin(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x)

    from executorch.exir import to_edge

    data = to_edge(torch.export.export(Sin(), (torch.zeros(2),))).to_executorch().buffer
    assert read_pte(data).methods["forward"].operators == ("aten::sin.out",)
    assert torch.equal(HostProgram(data).run(torch.zeros(2))[0], torch.zeros(2))
    renamed = data.replace(b"aten::sin", b"aten::sun")
    assert renamed != data
    with pytest.raises(PayloadError, match=r"operators that the host runtime does not have: aten::sun\.out"):
        HostProgram(renamed)


@pytest.mark.parametrize("seed", range(8))
def test_reading_a_damaged_program_never_ends_in_a_traceback(seed):
    random = np.random.default_rng(seed)
    for _ in range(200):
        data = bytearray(add_pte())
        for position in random.integers(0, len(data), 3):
            data[position] = random.integers(256)
        try:
            read_pte(bytes(data))
        except MicroNpuError as error:
            assert isinstance(error, PayloadError)


# --- inputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ((), "takes 2 inputs .int8.1, 8., int8.1, 8.., but 0 were given"),
        ((int8(1, 8),) * 3, "but 3 were given"),
        (((int8(1, 8), int8(1, 8)),), "but 1 were given"),
        ((int8(1, 8), int8(8)), "Input 1 .* must be int8.1, 8., but int8.8. was given.*reshape"),
        ((int8(1, 8), int8(1, 9)), "Input 1 .* but int8.1, 9. was given.*example inputs"),
        ((torch.zeros(1, 8), int8(1, 8)), "Input 0 .* but float32.1, 8. was given.*micronpu inspect"),
        ((int8(1, 8), [1] * 8), "Input 1 .* a list was given"),
        ((int8(1, 8).to("meta"), int8(1, 8)), "on meta was given"),
        ((int8(1, 8).to_sparse(), int8(1, 8)), "dense tensor on the CPU"),
    ],
)
def test_wrong_inputs_are_sentences(inputs, sentence):
    with pytest.raises(ModelError, match=sentence):
        HostProgram(add_pte()).run(*inputs)


def test_inputs_of_any_memory_layout_give_the_same_numbers():
    program = HostProgram(add_pte())
    a, b = int8(1, 8, seed=1), int8(1, 8, seed=2)
    (expected,) = program.run(a, b)
    wide = torch.zeros(2, 16, dtype=torch.int8)
    wide[:1, ::2] = a
    (y,) = program.run(wide[:1, ::2], b.t().contiguous().t())
    assert torch.equal(y, expected)


def test_signature_and_names(tmp_path):
    path = tmp_path / "conv.pte"
    path.write_bytes(conv_pte())
    program = HostProgram(path)
    assert [str(s) for s in program.inputs] == ["int8[1, 3, 5, 4]"]
    assert [(s.dtype, s.shape) for s in program.outputs] == [("int8", (1, 6, 5, 4))]
    assert program.delegates == ("NeutronBackend",) and "conv.pte" in repr(program)
    with pytest.raises(OptionError, match=r"no method 'backward'.*'forward'"):
        HostProgram(path, method="backward")


def test_an_exception_in_the_simulator_is_reported_and_interrupts_pass_through(monkeypatch):
    from micronpu.host.litert_executor import LiteRtProgram

    program = HostProgram(add_pte())

    def fail(error):
        def run(*_):
            raise error

        return run

    monkeypatch.setattr(LiteRtProgram, "run", fail(MemoryError("no room")))
    with pytest.raises(PayloadError, match="MemoryError: no room"):
        program.run(int8(1, 8), int8(1, 8))
    monkeypatch.setattr(LiteRtProgram, "run", fail(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        program.run(int8(1, 8), int8(1, 8))
    monkeypatch.undo()
    program.run(int8(1, 8), int8(1, 8))
