"""The numbers of fields, kinds and element types are those of the schema of a `.pte` that is installed."""

from __future__ import annotations

import re

import pytest

from micronpu.program.pte import ELEMENT_TYPES
from micronpu.upstream import pte
from micronpu.upstream.shim import SHIMS

CHANGES = {
    "another kind of value": ("  Null,\n  Int,", "  Null,\n  Short,\n  Int,", "KernelTypes.INT is 3"),
    "a list with a name": ("table TensorList {", "table TensorList {\n  name: string;", "TensorList has other fields"),
    "another place": ("  SEGMENT = 1,", "  SEGMENT = 2,", "DataLocation.SEGMENT is 2"),
}


@pytest.mark.parametrize(("old", "new", "found"), CHANGES.values(), ids=CHANGES)
def test_another_schema_is_noticed(old, new, found, monkeypatch):
    text = pte.schema_text()
    assert old in text
    changed = text.replace(old, new, 1)
    assert any(found in difference for difference in pte.differences(changed))
    monkeypatch.setattr(pte, "schema_text", lambda: changed)
    assert "has no `executorch.schema:program.fbs`" in str(SHIMS["executorch.schema:program.fbs"].misfit())


def test_fields_have_the_numbers_of_the_schema():
    text = pte.schema_text().replace("table Tensor {", "table Tensor {\n  new: int;")
    assert (pte.Tensor.SIZES, pte.parsed(text).tables["Tensor"]["sizes"].number) == (2, 3)
    with pytest.raises(AttributeError, match=r"Tensor\.NOTHING is not there"):
        _ = pte.Tensor.NOTHING


def test_a_field_at_the_end_changes_nothing():
    text = pte.schema_text()
    old = "  named_data: [NamedData];"
    assert old in text and pte.differences(text.replace(old, f"{old}\n  later: int;")) == []


def test_the_types_of_elements():
    text = pte.schema_text()
    assert 'include "scalar_type.fbs"' in text
    names = {"byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64", "half": "float16"}
    names |= {"float": "float32", "double": "float64", "bool": "bool", "bfloat16": "bfloat16"}
    names |= {"complexfloat": "complex64", "complexdouble": "complex128"}
    listed = dict(re.findall(r"(\w+) = (\d+)", pte.schema_text("schema/scalar_type.fbs")))
    numbers = {int(number): names[name.lower()] for name, number in listed.items() if name.lower() in names}
    assert numbers == ELEMENT_TYPES
