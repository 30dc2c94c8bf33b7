"""Flatbuffers from nested tables, read back."""

from __future__ import annotations

from micronpu.base.flatbuffer import root
from micronpu.emit.flatbuffer_tables import Fields, FlatbufferWriter, Number, Vector


def test_everything_is_read_back() -> None:
    inner: Fields = {0: Number("Uint8", 7), 2: "naïve"}
    fields: Fields = {
        0: Number("Int64", -5),
        1: Number("Bool", True),
        2: Vector("Int32", [1, -2, 3]),
        3: Vector("bytes", b"abcde", 16),
        4: Vector("tables", [inner, {}, inner]),
        5: Number("Int32", -1, -1),
        6: inner,
        7: Vector("bytes", b""),
    }
    for cpp in (False, True):
        writer = FlatbufferWriter(cpp=cpp)
        data = writer.finish(writer.table(fields), b"TEST")
        read = root(data, b"TEST")
        assert read.fields() == (0, 1, 2, 3, 4, 6, 7)  # what has its default is not there
        assert (read.integer(0, "<q"), read.integer(1, "<B")) == (-5, 1)
        assert read.vector(2).integers() == (1, -2, 3)
        aligned = read.vector(3)
        assert data[aligned.start : aligned.start + aligned.length] == b"abcde" and aligned.start % 16 == 0
        assert [table.string(2) for table in read.vector(4).tables()] == ["naïve", "", "naïve"]
        nested = read.table(6)
        assert nested is not None and nested.integer(0, "<B") == 7
        assert read.vector(7).length == 0
        assert read.offset(0) % 8 == 0 and len(data) % 16 == 0


def test_tables_alike_share_their_layout() -> None:
    writer = FlatbufferWriter()
    one = writer.finish(writer.table({0: Vector("tables", [{0: Number("Int32", i)} for i in (1, 2)])}), b"TEST")
    writer = FlatbufferWriter()
    two = writer.finish(writer.table({0: Vector("tables", [{0: Number("Int32", i)} for i in (1, 2, 3)])}), b"TEST")
    assert len(two) == len(one) + 12  # an offset in the vector, and in the table an offset and the number
