"""Inputs and outputs by name, in memory, in a saved program and on the command line."""

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import ModelError
from micronpu.cli.main import app
from micronpu.compiler.program import CompiledProgram
from micronpu.program.containers import Names, containers_of
from micronpu.runtime import HostProgram, RunOptions

TARGET = "cortex-m55"


class Pair(typing.NamedTuple):
    scores: torch.Tensor
    boxes: list[torch.Tensor]


@dataclasses.dataclass
class Parts:
    scores: torch.Tensor
    boxes: list[torch.Tensor]


FORMS: dict[str, Any] = {"dictionary": lambda **parts: parts, "dataclass": Parts, "named tuple": Pair}


class Net(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.scores, self.boxes = form, nn.Linear(8, 4), nn.Linear(6, 2)

    def forward(self, image: torch.Tensor, threshold: float = 0.0, *, sound: torch.Tensor) -> Any:
        scores = self.scores(image) - threshold
        return FORMS[self.form](scores=scores, boxes=[self.boxes(sound), -scores])


def rows(count: int = 8) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [{"sound": torch.randn(1, 6), "image": torch.randn(1, 8)} for _ in range(count)]


def compiled(form: str) -> CompiledProgram:
    return micronpu.compile(Net(form).eval(), rows()[0], TARGET, calibration=rows())


def model(form: str = "dictionary") -> Any:
    """The model of the command line."""
    return Net("named tuple").eval(), rows()[0]


def calibration() -> Any:
    return rows()


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS)
def test_results_by_name(form: str, tmp_path: Path) -> None:
    program, row = compiled(form), rows()[3]
    found = program.run(row)
    assert list(found) == ["scores", "boxes"] and isinstance(found["boxes"], list)
    for mine, wanted in zip(tree_leaves(found), tree_leaves(Net("dictionary")(**row)), strict=True):
        assert mine.shape == wanted.shape and (mine - wanted).abs().max() < 0.1
    saved = program.save(tmp_path / "net.pte")
    for isolated in (False, True):
        with HostProgram(saved, RunOptions(isolated=isolated)) as loaded:
            assert loaded.input_names == ("sound", "image") and loaded.output_names == ("scores", "boxes.0", "boxes.1")
            for again in (loaded.run(row), loaded.run(dict(reversed(row.items()))), loaded.run(*row.values())):
                same = tree_map(torch.equal, again, found)
                assert same == {"scores": True, "boxes": [True, True]}
            assert isinstance(loaded.run_in_order(*row.values()), tuple)
            with pytest.raises(ModelError, match="'sound' were given, and the program takes 'sound', 'image'"):
                loaded.run({"sound": row["sound"]})


def test_tuples_have_no_names(tmp_path: Path) -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.relu(x), (x + x,)

    x = torch.randn(1, 8)
    program = micronpu.compile(Several().eval(), x, TARGET, calibration=[x * n for n in range(8)])
    found = program.run({"x": x})
    assert isinstance(found, tuple) and [type(one) for one in found] == [torch.Tensor] * 2
    with HostProgram(program.save(tmp_path / "net.pte")) as loaded:
        assert (loaded.input_names, loaded.output_names) == ((), ())
        with pytest.raises(ModelError, match="have no names"):
            loaded.run({"x": x})


def invoked(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command_line(tmp_path: Path) -> None:
    saved, arrays, row = str(tmp_path / "net.pte"), tmp_path / "row.npz", rows()[3]
    invoked("compile", f"{__file__}:model", "--target", TARGET, "-o", saved)
    np.savez(arrays, **{name: row[name].numpy() for name in ("image", "sound")})  # not in the program's order
    outputs = json.loads(invoked("run", saved, "--input", str(arrays), "--json"))["outputs"]
    assert [output["name"] for output in outputs] == ["scores", "boxes.0", "boxes.1"]
    with HostProgram(saved) as loaded:
        for output, tensor in zip(outputs, loaded.run_in_order(*row.values()), strict=True):
            assert torch.equal(torch.tensor(output["values"]), tensor)
    assert "output 1 (boxes.0): float32[1, 2]" in invoked("run", saved, "--input", str(arrays))


LEAF = {"type": None, "context": None, "children_spec": []}


def spec(keys: str, *children: Any, kind: str = "builtins.dict") -> str:
    return json.dumps([1, {"type": kind, "context": keys, "children_spec": children}])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "[1, 2]",
        "[" * 2000,
        '[2, {"type": null}]',
        spec('["a"]'),
        spec('["a"]', LEAF, LEAF),
        spec('["a", "b", "c"]', LEAF, LEAF, LEAF),
        spec('[["a"], "b"]', LEAF, LEAF),
        spec("null", LEAF, LEAF, kind="builtins.tuple"),
        spec('["a", "b"]', LEAF, LEAF, kind="os.system"),
    ],
)
def test_a_specification_that_names_no_two_outputs(text: str) -> None:
    assert containers_of(text, 2) is None
    assert Names.of(text, text, 2, 2) == Names()
