"""Every row of the support tables ends where the table says, and the files are what the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests import support_tables
from tests.neutron_limits import limits_table
from tests.support_outcomes import PATH, Column
from tests.support_rows import Rows, batches, module_of, overloads

import micronpu
from micronpu.frontend.program import overload_name
from micronpu.ir.lowering import LOWERINGS, Kind
from micronpu.ops.comparisons import OPPOSITES
from micronpu.targets.registry import BACKENDS, device_for

pytestmark = pytest.mark.sweep(together=True)
ROOT = Path(__file__).parents[3]
STAND_INS = {"cudnn_batch_norm.default": "batch_norm.default", "lift_fresh.default": "lift_fresh_copy.default"}
"""Overloads that export on this machine makes others of."""


WRITTEN = (ROOT / PATH).read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def columns() -> dict[str, Column]:
    return support_tables.columns()


@pytest.mark.parametrize("overload", overloads())
def test_a_row_ends_where_the_table_says(overload: str, columns: dict[str, Column]) -> None:
    line = next(line for line in WRITTEN if line.startswith(f"| `aten.{overload}`"))
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[3:-1]]
    assert cells == [str(column[overload]) for column in columns.values()], f"run: {support_tables.COMMAND}"


def test_the_files_are_current(columns: dict[str, Column], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_tables, "columns", lambda: columns)
    for path, text in support_tables.pages().items():
        written = (ROOT / path).read_text(encoding="utf-8").splitlines()
        different = [line for line in text.splitlines() if line not in written]
        assert not different, f"run: {support_tables.COMMAND}\n" + "\n".join(different[:20])
        assert written == text.splitlines()


def test_an_operator_in_int8_requantizes_operands_in_int16() -> None:
    target = "ethos-u55-128"
    report = device_for(target).partition(support_tables.quantized(target, "int8", "int16")).report
    mixed = {v.origin.module: r.detail for v in report.verdicts for r in v.reasons if " makes int" in r.detail}
    assert not mixed


def test_every_row_holds_its_overload() -> None:
    found: dict[str, set[str]] = {}
    for node in support_tables.exported().graph.nodes:
        path = next(reversed((node.meta.get("nn_module_stack") or {"": ("", "")}).values()))[0]
        found.setdefault(str(path).rpartition(".")[2], set()).add(overload_name(node))
    missing = [n for n in overloads() if STAND_INS.get(n, n) not in found.get(module_of(n), ())]
    assert not missing


def test_what_runs_is_in_the_table(columns: dict[str, Column]) -> None:
    """Overloads that an older table denied or left out, and those that Neutron lacks."""
    neutron, ethosu = columns["Neutron"], columns["Ethos-U55"]
    names = ("silu", "gelu", "sqrt", "elu", "layer_norm", "scaled_dot_product_attention", "einsum", "glu", "gather")
    for overload in (*(f"{name}.default" for name in names), "gru.input", "lstm.input", "std.dim", "chunk.default"):
        assert str(neutron[overload]) == str(ethosu[overload]) == "yes", overload
    for overload in ("sin.default", "round.default", "floor.default"):
        assert (str(neutron[overload]), str(ethosu[overload])) == ("no", "yes"), overload


COMPARISONS = tuple(f"{name}.{form}" for name in OPPOSITES for form in ("Scalar", "Tensor"))
"""Written with differences and clamps where a chip has no tables."""


def test_tables_only_run_where_there_are_tables(columns: dict[str, Column]) -> None:
    only = [n for n in overloads() if [w.kind for w in LOWERINGS[n]] == [Kind.TABLE]]
    assert len(only) > 15
    assert {str(columns["Neutron"][n]) for n in only} == {"no"}
    assert {str(columns["Neutron"][n]) for n in COMPARISONS} == {"yes"}
    assert {str(columns["Ethos-U85"][n]) for n in only} == {"yes"}


def test_the_limits_do_not_deny_what_runs(columns: dict[str, Column]) -> None:
    rows = [line.split(" | ") for line in limits_table().splitlines() if line.startswith("| `aten.")]
    for name, _, *cells in rows:
        overload = name.strip("|` ").removeprefix("aten.")
        for title, cell in zip(("Neutron", "Neutron to SDK 25.12"), cells, strict=True):
            outcome = columns[title][overload]
            if cell.strip("| ") == "no such operator":
                stays = str(outcome) == "no" or overload in outcome.outside
                assert stays or outcome.rewrites or overload in COMPARISONS, (overload, title)


def test_every_backend_has_a_column() -> None:
    titles = [title.casefold() for title in support_tables.COLUMNS]
    for backend in BACKENDS.values():
        assert any(title.startswith(backend.title.casefold()) for title in titles), backend.name


PART = 100
"""Rows to a program: a container has at most 255 inputs and outputs."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(-(-len(overloads()) // PART)))
@pytest.mark.parametrize("target", ["imxrt700-neutron", "ethos-u55-128", "ethos-u85-256"])
def test_what_is_inside_compiles_and_runs(target: str, part: int) -> None:
    """Compiled as one program, the rows that the partitions hold are in the payload and compute what they should.

    The bound is of the range of a result: a mean has the grid of its operand, which is several times as coarse.
    """
    partitions = device_for(target).partition(support_tables.quantized(target)).report.verdicts
    inside = [name for name, outcome in support_tables.outcomes(partitions).items() if not outcome.outside]
    rows = Rows(inside[part * PART : (part + 1) * PART])
    data = batches()
    program = micronpu.compile(rows, data[0], calibration=data, target=target)
    assert not program.report.host, [str(v) for v in program.report.host]
    leaves = torch.utils._pytree.tree_leaves
    names = [name for name, y in zip(rows.rows, rows(*data[1]), strict=True) for _ in leaves(y)]
    wrong = []
    for name, y, quantized in zip(
        names, leaves(program.run(*data[1])), leaves(program.quantized(*data[1])), strict=True
    ):
        span = float(quantized.max() - quantized.min()) or 1.0
        if float((y - quantized).abs().max()) > 0.06 * span:
            wrong.append(name)
    assert not wrong
