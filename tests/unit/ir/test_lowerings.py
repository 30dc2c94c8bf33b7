"""The registry of ways: what an overload may become, and what of a device chooses."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import micronpu.ops
from micronpu.base.errors import InternalError
from micronpu.ir.lowering import LOWERINGS, Capabilities, Decomposition, Kind, add_lowering, decomposes, decompositions
from micronpu.ir.types import DType
from micronpu.ops import ATEN_IMPORTS, comparisons
from micronpu.ops.tables import functions

PLAIN, TABLES = Capabilities(), Capabilities(tables=True, index_types=(DType.INT32,))
MODULES = sorted(Path(micronpu.ops.__file__).parent.glob("*.py"))


@pytest.fixture
def registry() -> Iterator[None]:
    """Lets a test register ways, which are gone afterwards."""
    before = dict(LOWERINGS)
    yield
    LOWERINGS.clear()
    LOWERINGS.update(before)


def written(source: str) -> set[str]:
    """The overloads in ``write("overload", ..)``, and in choices between two of them."""
    found: set[str] = set()
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "write":
            found |= {a.value for a in ast.walk(call.args[0]) if isinstance(a, ast.Constant) and "." in str(a.value)}
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_decompositions_write_what_operators_import(module: Path) -> None:
    """A misspelt overload would be found only by the model that needs it."""
    for overload in written(module.read_text(encoding="utf-8")):
        assert PLAIN.computes(overload) or PLAIN.decompositions(overload) or TABLES.computes(overload), overload


def test_the_check_of_overloads_sees_them() -> None:
    assert written('write("add.Tensor" if a else "sub.Tensor", write("exp.default", x), "mean")') == {
        "add.Tensor",
        "sub.Tensor",
        "exp.default",
    }


def test_every_function_of_one_element_has_its_table_and_decomposition_in_one_module() -> None:
    assert functions.SELU == (1.6732632423543772, 1.0507009873554805)
    for overload, lowerings in LOWERINGS.items():
        if {Kind.TABLE, Kind.DECOMPOSITION} <= {lowering.kind for lowering in lowerings}:
            (decomposition,) = (lowering for lowering in lowerings if isinstance(lowering, Decomposition))
            assert decomposition.decompose.__module__ in (functions.__name__, comparisons.__name__), overload


def test_forms_in_place_become_what_the_plain_ones_do() -> None:
    for overload in (name for name in LOWERINGS if name.split(".")[0].endswith("_") and name[:2] != "__"):
        packet, form = overload.split(".")
        forms = (form, f"Tensor_{form}", "int")  # transpose_.default is transpose.int
        plain = {f"{packet[:-1]}.{f}" for f in forms} & set(LOWERINGS)
        assert plain, overload
        assert {w.kind for w in LOWERINGS[overload]} <= {w.kind for name in plain for w in LOWERINGS[name]}, overload


def test_capabilities_choose() -> None:
    assert PLAIN.decompositions("silu.default") and not TABLES.decompositions("silu.default")
    assert TABLES.decompositions("gt.Scalar"), "a truth value becomes a number, whoever computes it"
    tried = [lowering.name for lowering in PLAIN.decompositions("masked_fill.Scalar")]
    assert tried == ["masked_scores", "filled"], "a mask of attention is no choice"
    assert not PLAIN.computes("silu.default") and TABLES.computes("silu.default")
    assert PLAIN.computes("relu.default") and not PLAIN.computes("layer_norm.default")
    assert TABLES.decompositions("layer_norm.default")
    assert not PLAIN.decompositions("frobnicate.default") and not TABLES.computes("frobnicate.default")


def test_imports_are_a_view_of_the_registry() -> None:
    assert set(ATEN_IMPORTS) == {
        name for name, lowerings in LOWERINGS.items() if any(w.kind is not Kind.DECOMPOSITION for w in lowerings)
    }
    assert len(ATEN_IMPORTS) == len(list(ATEN_IMPORTS)) and "layer_norm.default" not in ATEN_IMPORTS
    assert all(sentence for sentence in decompositions().values())


def test_two_ways_of_a_kind_are_refused(registry: None) -> None:
    (silu,) = PLAIN.decompositions("silu.default")
    with pytest.raises(InternalError, match=r"Two decompositions of silu\.default are called silu"):
        add_lowering(silu)
    with pytest.raises(InternalError, match=r"Two operators import relu\.default"):
        add_lowering(ATEN_IMPORTS["relu.default"])


def test_a_decomposition_has_a_description(registry: None) -> None:
    with pytest.raises(InternalError, match="no docstring"):
        decomposes("frobnicate.default")(lambda write: None)


def test_the_registry_needs_no_torch() -> None:
    code = "import sys, micronpu.ops; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
