"""Scripts for ExecuTorch's own back ends run with nothing but their imports changed, by the table of the docs."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from micronpu.program.pte import read_pte
from micronpu.runtime import HostProgram

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "upstream_scripts"
PEERS = ("executorch.backends.nxp", "executorch.backends.arm", "executorch.backends.cortex_m")


def table() -> dict[tuple[str, str], tuple[str, str]]:
    """Module and name in ExecuTorch, to module and name here: the page's table."""
    found = {}
    for row in (ROOT / "docs" / "from-executorch.md").read_text(encoding="utf-8").splitlines():
        if row.startswith("| `from executorch"):
            old, new = (re.findall(r"`(from [^`]+)`", cell) for cell in row.split(" | "))
            there = {alias.asname or alias.name: (f.module, alias.name) for f in map(_import, new) for alias in f.names}
            for line in map(_import, old):
                found.update({(line.module or "", a.name): there[a.name] for a in line.names})
    return found


def _import(line: str) -> ast.ImportFrom:
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.ImportFrom)
    return statement


def changed(source: str) -> str:
    """The script with the imports of the table; the rest stays as it is."""
    names, tree = table(), ast.parse(source)
    for statement in list(tree.body):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(PEERS):
            new = [
                ast.ImportFrom(module, [ast.alias(name, alias.asname or alias.name)], 0)
                for alias in statement.names
                for module, name in (names[statement.module or "", alias.name],)
            ]
            at = tree.body.index(statement)
            tree.body[at : at + 1] = new
    return ast.unparse(ast.fix_missing_locations(tree))


def run(name: str, folder: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    text = changed((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    assert "executorch.backends" not in text
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    return runpy.run_path(str(path), run_name="__main__")


def test_the_minimal_example_of_an_ethos_u(tmp_path, monkeypatch):
    names = run("ethosu_minimal", tmp_path, str(tmp_path / "sum.pte"), monkeypatch=monkeypatch)
    data = (tmp_path / "sum.pte").read_bytes()
    program = HostProgram(data)
    assert read_pte(data).methods["forward"].delegates == ("EthosUBackend",)
    (y,) = program.run(*names["ones"])
    torch.testing.assert_close(y, torch.full((1, 1, 1, 1), 2.0), rtol=0, atol=2 / 255)


def test_the_tutorial_on_quantizers(tmp_path, monkeypatch):
    names = run("quantizer_tutorial", tmp_path, str(tmp_path / "toy.pte"), monkeypatch=monkeypatch)
    types = {n.args[5] for n in names["mixed"].graph.nodes if "quantize_per_tensor" in str(n.target)}
    assert types == {torch.int8, torch.int16}
    zeros = {n.args[0].name: n.args[2] for n in names["special"].graph.nodes if str(n.target) == QUANTIZE}
    assert zeros["x"] == 0 and zeros["y"] != 0  # the symmetric grid is for what the first convolution reads
    program = HostProgram((tmp_path / "toy.pte").read_bytes())
    (y,) = program.run(*names["ones"])
    torch.testing.assert_close(y, names["special"](*names["ones"]), rtol=0, atol=0.02)


QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"


def test_the_flow_of_nxp(tmp_path, monkeypatch):
    files = [str(tmp_path / name) for name in ("net.pte", "net.etrecord")]
    names = run("nxp_profiling", tmp_path, *files, monkeypatch=monkeypatch)
    data = Path(files[0]).read_bytes()
    program = HostProgram(data)
    assert read_pte(data).methods["forward"].delegates == ("NeutronBackend",)
    (y,) = program.run(*names["image"])
    torch.testing.assert_close(y, names["module"](*names["image"]), rtol=0, atol=0.02)
    assert Path(files[1]).stat().st_size > 1000


def test_the_example_of_a_cortex_m(tmp_path, monkeypatch):
    files = [str(tmp_path / name) for name in ("net.pte", "net.bpte")]
    names = run("cortex_m", tmp_path, *files, monkeypatch=monkeypatch)
    data = Path(files[0]).read_bytes()
    program = HostProgram(data)
    operators = read_pte(data).methods["forward"].operators
    assert "cortex_m::quantized_conv2d_nhwc.out" in operators and "aten::convolution.out" not in operators
    assert names["passes"].report.in_float == ()
    (image,) = names["images"][:1]
    (y,) = program.run(image)
    expected = names["quantized"].module(check_guards=False)(image)
    torch.testing.assert_close(y, expected, rtol=0, atol=float(expected.abs().max()) / 50)
    assert b"BP" in Path(files[1]).read_bytes()[:8]
