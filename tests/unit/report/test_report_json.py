"""The report as data: written, read back, checked against the schema that comes with the package."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import jsonschema
import pytest
from tests.report_schema import PLACE, report_schema, schema_of
from tests.unit.report.test_report import compiled, report

from micronpu.base.errors import FileError
from micronpu.report.accuracy import Agreement, Comparison, OutputAccuracy, ProgramAccuracy
from micronpu.report.codec import DecodeError, decode, encode
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import Cost, IOTensor, Latency


def full() -> DelegationReport:
    """With something in every field."""
    made = compiled()
    first, second = made.operations
    cost = Cost(1234, 1000, {"Sram": 200}, 4096, 0.25)
    exact = Comparison(1, math.inf, 0.0, 0.0)
    return replace(
        made,
        operations=(replace(first, cost=cost, scale=0.5, zero_point=-3, dtype="int8"), second),
        latency=(Latency("NPU", 1234, 150.0, 0.8, 1.25, "a source"),),
        accuracy=ProgramAccuracy((3,), 16, True, (OutputAccuracy(0, Comparison(1, 28.6, 0.5, 0.1, 1), exact),)),
        agreement=Agreement(2, 10, 0.9, 1.0, 4.0),
        inputs=(IOTensor("x", "float32", (1, 3), 0.25, 0),),
        outputs=(IOTensor("output_0", "int64", ()),),
        tools={"torch": "1"},
        hashes={"program": "ab"},
    )


@pytest.mark.parametrize("made", [DelegationReport("chip", ()), report(), compiled(), full()])
def test_what_is_written_is_read(made):
    read = DelegationReport.from_json(made.to_json())
    assert read == made and read.to_json() == made.to_json()


def test_the_schema_of_the_package_is_that_of_the_classes():
    assert json.loads(PLACE.read_text()) == report_schema(), "run `python -m tests.report_schema`"


def test_reports_keep_the_schema_and_it_is_strict():
    checker = jsonschema.Draft202012Validator(json.loads(PLACE.read_text()))
    checker.check_schema(checker.schema)
    data = full().to_dict()
    checker.validate(json.loads(json.dumps(data)))
    for key in data:
        assert not checker.is_valid({k: v for k, v in data.items() if k != key}), key
    for key in data["operations"][0]:
        wrong = {k: v for k, v in data["operations"][0].items() if k != key}
        assert not checker.is_valid(data | {"operations": [wrong]}), key
    assert not checker.is_valid(data | {"version": DelegationReport.VERSION + 1})


def test_every_entry_of_the_schema_is_described():
    schema = report_schema()
    for kind in (schema, *schema["$defs"].values()):
        for name, entry in kind["properties"].items():
            assert "description" in entry or "const" in entry, name


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"version": 2},
            "r.json is a report of version 2, but this micronpu reads version 1.",
        ),
        ({"version": None}, "r.json is a report of version None"),
        ({"format": "x"}, 'r.json is not a report: it has no "format": "micronpu report".'),
        ({"target": 3}, "r.json is a damaged report: target must be a string, but is int."),
        ({"has_npu": 1}, "has_npu must be a boolean, but is int."),
        ({"program_bytes": True}, "program_bytes must be an integer, but is bool."),
        ({"verdicts": {}}, "verdicts must be a list, but is dict."),
        ({"operations": [{}]}, "operations[0].partition is missing."),
        ({"tools": {"torch": None}}, "tools.torch must be a string, but is null."),
        ({"latency": [1]}, "latency[0] must be an object, but is int."),
    ],
)
def test_what_is_no_report_ends_in_a_sentence(tmp_path, change, sentence):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(full().to_dict() | change))
    with pytest.raises(FileError) as caught:
        DelegationReport.load(path)
    assert sentence in str(caught.value) and " Try: " in str(caught.value) and str(caught.value).count("\n") == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_files_that_are_something_else(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match="is not a report"):
        DelegationReport.load(path)
    with pytest.raises(FileError, match="cannot be read"):
        DelegationReport.load(tmp_path / "none.json")


def test_keys_of_a_later_micronpu_are_passed_over():
    data = full().to_dict()
    data["new"] = 1
    data["operations"][0]["new"] = 1
    assert DelegationReport.from_json(json.dumps(data)) == full()


@dataclass(frozen=True)
class Numbers:
    """Floats.

    Attributes:
        values: any.
        pair: two.
    """

    values: tuple[float, ...]
    pair: tuple[float, float] = (0.0, 0.0)


def test_floats_that_json_does_not_know():
    made = Numbers((math.inf, -math.inf, 1.5), (1.0, 2.0))
    data = encode(made)
    assert data["values"] == ["inf", "-inf", 1.5]
    jsonschema.validate(data, schema_of(Numbers))
    assert decode(Numbers, data) == made
    assert math.isnan(decode(Numbers, encode(Numbers((math.nan,)))).values[0])
    with pytest.raises(DecodeError, match=r"pair has 1 entries instead of 2"):
        decode(Numbers, {"values": [], "pair": [1]})
    with pytest.raises(DecodeError, match=r"values\[0\] must be a number, but is 'x'"):
        decode(Numbers, {"values": ["x"]})
