"""The payload header and the reference container, byte by byte. NumPy and the standard library only."""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from micronpu.base.errors import MicroNpuError, ModelError, OptionError, PayloadError
from micronpu.container.payload import (
    RECORD_SIZE,
    SILICON_MAGIC,
    Artifacts,
    PayloadLayout,
    TensorSlot,
    align,
    pack,
    parse,
    read_container,
)
from micronpu.targets.neutron.converter import ConverterOptions, NeutronConverter, ReferenceConverter
from micronpu.targets.registry import BACKENDS

OPTIONS = ConverterOptions("imxrt700")


def flatbuffer(inputs: int = 1, outputs: int = 1, operators: int = 1, subgraphs: int = 1, identifier: bytes = b"TFL3"):
    """The skeleton of a LiteRT model: vectors of the right lengths, written by hand."""
    import flatbuffers

    b = flatbuffers.Builder(64)
    graphs = []
    for _ in range(subgraphs):
        tables = []
        for _ in range(operators):
            b.StartObject(0)
            tables.append(b.EndObject())
        b.StartVector(4, len(tables), 4)
        for table in reversed(tables):
            b.PrependUOffsetTRelative(table)
        operator_vector = b.EndVector()
        vectors = []
        for count in (inputs, outputs):
            b.StartVector(4, count, 4)
            for index in range(count):
                b.PrependInt32(index)
            vectors.append(b.EndVector())
        b.StartObject(5)
        b.PrependUOffsetTRelativeSlot(1, vectors[0], 0)
        b.PrependUOffsetTRelativeSlot(2, vectors[1], 0)
        b.PrependUOffsetTRelativeSlot(3, operator_vector, 0)
        graphs.append(b.EndObject())
    b.StartVector(4, len(graphs), 4)
    for graph in reversed(graphs):
        b.PrependUOffsetTRelative(graph)
    graph_vector = b.EndVector()
    b.StartObject(5)
    b.PrependUOffsetTRelativeSlot(2, graph_vector, 0)
    b.Finish(b.EndObject(), identifier)
    return bytes(b.Output())


def silicon(weights: bytes = b"W" * 5, kernels: bytes = b"") -> Artifacts:
    """Stands for a vendor's output: only the published words of the microcode."""
    code = struct.pack("<8I", SILICON_MAGIC, 0, 0, 0, 0, 0, 40, len(weights)) + b"\xee" * 8
    return Artifacts(code, weights, kernels, "silicon")


def test_header_is_the_published_one_byte_for_byte():
    layout = PayloadLayout((TensorSlot(2, True), TensorSlot(0)), (TensorSlot(0, True),), num_arguments=3, version=1)
    data = pack(layout, silicon(b"weights", b"kernel"))
    assert data[:16] == bytes([2, 1, 3, 1, 0, 1, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    assert data[16:20] == bytes.fromhex("6e4d4364")
    assert data[16 + 48 :][:16] == b"weights".ljust(16, b"\0")
    assert data[16 + 48 + 16 :] == b"kernel".ljust(16, b"\0")


slots = st.lists(st.booleans(), max_size=40)


@given(data=st.data(), formats=slots, out_formats=slots, arguments=st.integers(1, 255), version=st.sampled_from((0, 1)),
       weights=st.binary(max_size=100), kernels=st.binary(max_size=40))  # fmt: skip
def test_parse_gives_back_what_pack_was_given(data, formats, out_formats, arguments, version, weights, kernels):
    inputs = tuple(TensorSlot(data.draw(st.integers(0, arguments - 1)), f) for f in formats)
    order = data.draw(st.permutations(range(len(out_formats))))
    outputs = tuple(TensorSlot(i, f) for i, f in zip(order, out_formats, strict=True))
    layout = PayloadLayout(inputs, outputs, arguments, version)
    artifacts = silicon(weights, kernels)
    blob = pack(layout, artifacts)
    assert len(blob) % 16 == 0
    back = parse(blob)
    assert back.layout == layout
    assert (back.kind, back.microcode, back.weights) == ("silicon", artifacts.microcode, weights)
    assert back.kernels == kernels.ljust(align(len(kernels)), b"\0")


def test_most_tensors_that_fit():
    layout = PayloadLayout(tuple(TensorSlot(i) for i in range(255)), tuple(TensorSlot(i) for i in range(255)), 255)
    assert parse(pack(layout, silicon())).layout == layout


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PayloadLayout((TensorSlot(0),) * 256, (), 1), "256 inputs"),
        (lambda: PayloadLayout((), tuple(TensorSlot(min(i, 255)) for i in range(256)), 0), "256 outputs"),
        (lambda: PayloadLayout((), (), 256), "256 arguments"),
        (lambda: TensorSlot(256), "index 256"),
        (lambda: TensorSlot(-1), "index -1"),
        (lambda: PayloadLayout((TensorSlot(2),), (), 2), "reads argument 2"),
        (lambda: PayloadLayout((), (TensorSlot(0), TensorSlot(0)), 0), "must be written once"),
        (lambda: PayloadLayout((), (TensorSlot(1),), 0), "must be written once"),
        (lambda: PayloadLayout((), (), 0, version=2), "version 2"),
    ],
)
def test_impossible_layouts_are_sentences(make, sentence):
    with pytest.raises(PayloadError, match=sentence) as caught:
        make()
    assert str(caught.value).endswith(".") and caught.value.hint


@pytest.mark.parametrize("make", [silicon, lambda: ReferenceConverter().convert(flatbuffer(), OPTIONS)])
def test_every_truncation_is_noticed(make):
    artifacts = make()
    blob = pack(PayloadLayout((TensorSlot(0, True),), (TensorSlot(0),), 1), artifacts)
    for length in range(len(blob)):
        with pytest.raises(PayloadError):
            parse(blob[:length])
    assert parse(blob).microcode == artifacts.microcode


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_end_in_a_traceback(data):
    try:
        parse(data)
    except PayloadError as error:
        assert str(error).count("Try: ") == 1


@given(st.binary(max_size=120), st.integers(0, 31), st.integers(0, 0xFFFFFFFF))
def test_arbitrary_section_sizes_stay_inside_the_payload(tail, position, word):
    blob = bytearray(pack(PayloadLayout((), (), 0), silicon()) + tail)
    struct.pack_into("<I", blob, 16 + position // 4 * 4, word)
    try:
        payload = parse(bytes(blob))
    except PayloadError:
        return
    assert payload.microcode + payload.weights in bytes(blob) or len(payload.microcode) % 16
    assert len(payload.microcode) + len(payload.weights) + len(payload.kernels) <= len(blob)


def test_unknown_magic_version_and_format():
    blob = bytearray(pack(PayloadLayout((TensorSlot(0),), (TensorSlot(0),), 1), silicon()))
    for position, value, sentence in ((16, 0, "neither microcode of an NPU"), (7, 9, "version 9"), (3, 7, "format 7")):
        damaged = bytearray(blob)
        damaged[position] = value
        with pytest.raises(PayloadError, match=sentence):
            parse(bytes(damaged))


def test_pack_refuses_size_words_that_lie():
    code = struct.pack("<8I", SILICON_MAGIC, 0, 0, 0, 0, 0, 32, 6)
    with pytest.raises(PayloadError, match="announces 32 bytes of microcode and 6 bytes of weights"):
        pack(PayloadLayout((), (), 0), Artifacts(code, b"12345", b"", "silicon"))


def test_reference_record_words():
    model = flatbuffer(inputs=2, outputs=3, operators=4)
    artifacts = ReferenceConverter().convert(model, OPTIONS)
    assert len(artifacts.microcode) == RECORD_SIZE and artifacts.microcode[:4] == b"MNPR"
    words = struct.unpack("<16I", artifacts.microcode)
    assert words[0] != SILICON_MAGIC
    assert words[1:8] == (1, 2, 3, zlib.crc32(model), 4, 64, len(model))
    assert words[8] == zlib.crc32(artifacts.microcode[:32]) and words[9:] == (0,) * 7
    assert (artifacts.weights, artifacts.kernels, artifacts.kind) == (model, b"", "reference")


def test_reference_container_is_read_back_through_the_payload():
    model = flatbuffer(inputs=2, outputs=1, operators=7)
    blob = pack(
        PayloadLayout((TensorSlot(1), TensorSlot(0)), (TensorSlot(0),), 2), ReferenceConverter().convert(model, OPTIONS)
    )
    payload = parse(blob)
    container = read_container(payload.microcode, payload.weights)
    assert payload.kind == "reference" and container.model == model
    assert (container.num_inputs, container.num_outputs, container.num_operators) == (2, 1, 7)


def test_what_inspect_says_of_a_container():
    artifacts = ReferenceConverter().convert(flatbuffer(operators=7), OPTIONS)
    layout = PayloadLayout((TensorSlot(0),), (TensorSlot(0),), 1)
    seen = BACKENDS["neutron"].inspect(pack(layout, artifacts))
    assert seen.kind.startswith("open reference container") and not seen.objection
    (record,) = (s.detail for s in seen.sections if s.name == "microcode")
    assert re.fullmatch("7 LiteRT operators, checksum [0-9a-f]{8} is right", record)
    damaged = replace(artifacts, weights=artifacts.weights[:-1] + bytes([artifacts.weights[-1] ^ 1]))
    with pytest.raises(PayloadError, match="LiteRT model in the reference container is corrupted"):
        BACKENDS["neutron"].inspect(pack(layout, damaged))


def test_conversion_is_deterministic_and_ignores_the_target():
    model = flatbuffer()
    first = ReferenceConverter().convert(model, OPTIONS)
    second = ReferenceConverter().convert(model, ConverterOptions("mcxn947", ("--x",), (), True, True))
    assert first == second and hash(first) == hash(second)
    assert isinstance(ReferenceConverter(), NeutronConverter)


def test_every_flipped_bit_of_record_and_model_is_noticed():
    artifacts = ReferenceConverter().convert(flatbuffer(), OPTIONS)
    for position in range(36):
        for bit in range(8):
            damaged = bytearray(artifacts.microcode)
            damaged[position] ^= 1 << bit
            with pytest.raises(PayloadError):
                read_container(bytes(damaged), artifacts.weights)
    for position in range(len(artifacts.weights)):
        damaged = bytearray(artifacts.weights)
        damaged[position] ^= 0x10
        with pytest.raises(PayloadError, match="corrupted"):
            read_container(artifacts.microcode, bytes(damaged))


def test_container_refusals():
    artifacts = ReferenceConverter().convert(flatbuffer(), OPTIONS)
    with pytest.raises(PayloadError, match="for a real chip"):
        read_container(silicon().microcode, b"")
    with pytest.raises(PayloadError, match="record has 63 bytes"):
        read_container(artifacts.microcode[:63], artifacts.weights)
    with pytest.raises(PayloadError, match="model in the reference container is truncated"):
        read_container(artifacts.microcode, artifacts.weights[:-1])
    newer = bytearray(artifacts.microcode)
    newer[4] = 2
    with pytest.raises(PayloadError, match="format version 2"):
        read_container(bytes(newer), artifacts.weights)


@pytest.mark.parametrize(
    "model",
    [b"", b"TFL3", b"\0" * 40, flatbuffer(identifier=b"TFL2"), flatbuffer(subgraphs=2), flatbuffer(subgraphs=0)],
)
def test_converter_refuses_what_is_no_single_graph_model(model):
    with pytest.raises(ModelError):
        ReferenceConverter().convert(model, OPTIONS)


@given(position=st.integers(0, 150), value=st.integers(0, 255), cut=st.integers(0, 150))
def test_damaged_models_are_sentences(position, value, cut):
    model = bytearray(flatbuffer(operators=3))
    model[position % len(model)] = value
    try:
        ReferenceConverter().convert(bytes(model[: len(model) - cut % len(model)]), OPTIONS)
    except MicroNpuError as error:
        assert isinstance(error, ModelError)


@pytest.mark.parametrize(
    "arguments",
    [
        {"target": ""},
        {"target": "a b"},
        {"target": None},
        {"target": "x", "extra_flags": ["--a"]},
        {"target": "x", "extra_flags": ("",)},
        {"target": "x", "extra_flags": "abc"},
        {"target": "x", "fetch_constants_to_sram": 1},
        {"target": "x", "dump_kernel_selection_code": "yes"},
    ],
)
def test_converter_options_are_validated(arguments):
    with pytest.raises(OptionError):
        ConverterOptions(**arguments)


def test_artifacts_must_be_of_the_kind_they_claim_and_cannot_change():
    with pytest.raises(PayloadError, match="is reference, but the microcode is silicon"):
        Artifacts(silicon().microcode, b"", b"", "reference")
    versions = {"tool": "1"}
    artifacts = Artifacts(silicon().microcode, b"", b"", "silicon", versions)
    versions["tool"] = "2"
    assert artifacts.versions["tool"] == "1"
