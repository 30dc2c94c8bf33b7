"""External data of ONNX files is read from plain files of the model's folder, and from nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import micronpu
from micronpu import MicroNpuError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

W = np.arange(4, dtype=np.float32)
Save = Callable[..., Path]


def tensor(location: str, **entries: object) -> TensorProto:
    made = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        made.external_data.add(key=key, value=str(value))
    return made


def initializer(folder: Path, given: TensorProto) -> Path:
    return saved(folder, [helper.make_node("Add", ["x", "w"], ["y"])], [given])


def constant_node(folder: Path, given: TensorProto) -> Path:
    nodes = [helper.make_node("Constant", [], ["w"], value=given), helper.make_node("Add", ["x", "w"], ["y"])]
    return saved(folder, nodes, [])


def constant_of_shape(folder: Path, given: TensorProto) -> Path:
    given.dims[:] = [1]
    sizes = numpy_helper.from_array(np.array([4]), "s")
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["w"], value=given), helper.make_node("Add", ["x", "w"], ["y"])]
    return saved(folder, nodes, [sizes])


def saved(folder: Path, nodes: list[Any], constants: list[TensorProto]) -> Path:
    sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])] for name in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", sides[0], sides[1], constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


PLACES = (initializer, constant_node, constant_of_shape)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder in a folder with other files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    made = tmp_path / "model"
    made.mkdir()
    return made


@pytest.mark.sweep
@pytest.mark.parametrize("save", PLACES)
def test_data_of_the_folder_is_read(folder: Path, save: Save) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "net.data").write_bytes(bytes(8) + W.tobytes())
    size = 4 if save is constant_of_shape else 16
    for entries in ({"offset": 8, "length": size}, {"offset": 8}):
        read = micronpu.read_model(save(folder, tensor("parts/net.data", **entries)))
        x = torch.ones(1, 4)
        assert torch.equal(read.module(x), x + torch.from_numpy(W[: size // 4]))


@pytest.mark.parametrize("save", PLACES)
@pytest.mark.parametrize(
    "location", ["secret.bin", "../secret.bin", "/etc/passwd", "", ".", "link", "linked/secret.bin", "fifo", "a\\..\\b"]
)
def test_other_files_are_not_read(folder: Path, save: Save, location: str) -> None:
    (folder / "link").symlink_to(folder.parent / "secret.bin")
    (folder / "linked").symlink_to(folder.parent)
    os.mkfifo(folder / "fifo")
    with pytest.raises(MicroNpuError, match=r"only plain files in the model's folder are read.*Try: "):
        micronpu.read_model(save(folder, tensor(location, offset=0)))


@pytest.mark.parametrize(
    "entries", [{"offset": -1}, {"offset": "9" * 30}, {"length": 15}, {"length": -1}, {"offset": 1}]
)
def test_sizes_that_do_not_fit(folder: Path, entries: dict[str, object]) -> None:
    (folder / "net.data").write_bytes(W.tobytes())
    with pytest.raises(MicroNpuError, match=r"by its shape, and the file states|which ends before"):
        micronpu.read_model(initializer(folder, tensor("net.data", **entries)))


def test_a_default_export_is_read(folder: Path) -> None:
    model = torch.nn.Linear(4, 4)
    whole = saved(folder, [helper.make_node("MatMul", ["x", "w"], ["y"])],
                  [numpy_helper.from_array(model.weight.detach().T.numpy(), "w")])  # fmt: skip
    onnx.save(onnx.load(whole), whole, save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    x = torch.ones(1, 4)
    got = micronpu.read_model(whole).module(x)
    assert torch.allclose(got, torch.nn.functional.linear(x, model.weight), atol=1e-6)
