"""The support table in the documentation is the one that the rules give."""

from __future__ import annotations

from pathlib import Path

from micronpu.ops import ATEN_IMPORTS, OPERATORS
from micronpu.ops.activation import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.targets.neutron import support_table
from micronpu.targets.neutron.rules import RULES

TABLE = support_table.support_table()
FILE = Path(__file__).parents[2] / support_table.PATH


def rows() -> dict[str, list[str]]:
    """Cells behind the ATen name, by name."""
    lines = [line.split(" | ") for line in TABLE.splitlines() if line.startswith("| `aten.")]
    return {cells[0].strip("|` ").removeprefix("aten."): cells[1:] for cells in lines}


def test_the_file_is_current():
    assert FILE.read_text(encoding="utf-8") == TABLE, "run: python -m micronpu.targets.neutron.support_table"


def test_every_overload_has_a_row_and_every_rule_a_place():
    assert set(rows()) == set(ATEN_IMPORTS)
    for rule in RULES:
        assert rule.sentence in TABLE, f"no ATen operator leads to what {rule.name} is about"


def test_operators_are_found_in_the_importers():
    assert {Conv2d, DepthwiseConv2d} <= set(support_table.operators_of(ATEN_IMPORTS["conv2d.default"]))
    assert support_table.operators_of(ATEN_IMPORTS["hardtanh.default"]) == [Clamp, Relu]
    assert support_table.operators_of(ATEN_IMPORTS["clone.default"]) == []
    assert [o.name for o in support_table.operators_of(ATEN_IMPORTS["view.default"])] == ["reshape"]
    assert [o.name for o in support_table.operators_of(ATEN_IMPORTS["sigmoid.default"])] == ["sigmoid"]


def test_every_operator_has_a_litert_name():
    assert support_table.litert_names(Relu) == {"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"}
    assert support_table.litert_names(Conv2d) == {"CONV_2D"}
    for operator in OPERATORS.values():
        assert support_table.litert_names(operator), operator.name


def test_a_row_tells_the_flavors_apart():
    _, latest, published = (c.strip("| ") for c in rows()["sub.Tensor"])
    assert published == "not on the NPU" and latest != published
    assert "multiple of 8" in rows()["softmax.int"][2] and "multiple of 8" not in rows()["softmax.int"][1]


def test_check_fails_for_an_old_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    assert support_table.main(["--check"]) == 1
    assert support_table.main([]) == 0
    assert support_table.main(["--check"]) == 0
    path = tmp_path / support_table.PATH
    path.write_text(path.read_text().replace("multiple of 8", "multiple of 4", 1))
    assert support_table.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().out
