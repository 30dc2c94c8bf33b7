"""Saved programs, `.pt2`: they load, and nothing in them runs."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from micronpu.base.errors import FileError, ModelError
from micronpu.cli.files import load_model

RECORDS = "a/"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.table = torch.arange(36.0).reshape(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) + self.table


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, bytes]:
    """The records of a good archive."""
    path = tmp_path_factory.mktemp("saved") / "a.pt2"
    torch.export.save(torch.export.export(Net(), (torch.randn(1, 3, 8, 8),)), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, records: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return path


def pickled(value: object) -> bytes:
    memory = io.BytesIO()
    torch.save(value, memory)
    return memory.getvalue()


def changed(records: dict[str, bytes], name: str, change) -> dict[str, bytes]:
    """The records with one JSON record changed in place."""
    content = json.loads(records[name])
    change(content)
    return {**records, name: json.dumps(content).encode()}


def test_a_good_archive_loads(saved, tmp_path):
    model = load_model(str(written(tmp_path / "a.pt2", saved)))
    assert model.name == "a"
    assert [tuple(x.shape) for x in model.examples] == [(1, 3, 8, 8)]


WEIGHTS = "a/data/weights/model_weights_config.json"
CONSTANTS = "a/data/constants/model_constants_config.json"
MODEL = "a/models/model.json"
INPUTS = "a/data/sample_inputs/model.pt"


def _pickle_the_weights(content):
    for payload in content["config"].values():
        payload["use_pickle"] = True


def _call(name: str):
    def change(content):
        content["graph_module"]["graph"]["nodes"][0]["target"] = name

    return change


def _size(text: str):
    def change(content):
        sizes = content["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
        sizes[0] = {"as_expr": {"expr_str": text, "hint": {"as_int": 1}}}

    return change


def _enumeration(content):
    call = content["graph_module"]["module_call_graph"][0]["signature"]
    protocol, spec = json.loads(call["in_spec"])
    spec["context"] = json.dumps({"__enum__": True, "fqn": "antigravity:A", "name": "B"})
    call["in_spec"] = json.dumps([protocol, spec])


def _other_type(content):
    call = content["graph_module"]["module_call_graph"][0]["signature"]
    call["in_spec"] = call["in_spec"].replace("builtins.tuple", "collections.defaultdict")


CASES = {
    "inputs": (lambda r, evil: {**r, INPUTS: pickled((evil,))}, "a pickle of other things"),
    "weights": (
        lambda r, evil: {**changed(r, WEIGHTS, _pickle_the_weights), "a/data/weights/weight_0": pickled(evil)},
        "a pickle of other things",
    ),
    "old weights": (lambda r, evil: {**r, "a/data/weights/model.pt": pickled(evil)}, "a pickle of other things"),
    "old constants": (lambda r, evil: {**r, "a/data/constants/model.pt": pickled(evil)}, "a pickle of other things"),
    "opaque": (
        lambda r, evil: {
            **changed(
                r,
                CONSTANTS,
                lambda c: c["config"].update(
                    x={"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
                ),
            ),
            "a/data/constants/opaque_obj_0": pickle.dumps(evil),
        },
        "an object that is no tensor",
    ),
    "library": (lambda r, evil: {**r, "a/data/aotinductor/model/x.so": b"\x7fELF"}, "a compiled library"),
    "call": (lambda r, evil: changed(r, MODEL, _call("torch.os.system")), "a call of 'torch.os.system'"),
    "getter": (lambda r, evil: changed(r, MODEL, _call("_operator.methodcaller")), "a call of '_operator.methodc"),
    "file": (lambda r, evil: changed(r, MODEL, _call("torch.ops.aten.from_file.default")), "a call of .*from_file"),
    "size": (
        lambda r, evil: changed(r, MODEL, _size(f"__import__('pathlib').Path('{evil.path}').touch()")),
        "which is no arithmetic",
    ),
    "enumeration": (lambda r, evil: changed(r, MODEL, _enumeration), "an enumeration"),
    "type": (lambda r, evil: changed(r, MODEL, _other_type), "the type collections.defaultdict"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_would_run_code_is_refused_before_it_does(saved, tmp_path, case):
    made, sentence = CASES[case]
    target = tmp_path / "executed"
    path = written(tmp_path / "a.pt2", made(saved, Evil(target)))
    with pytest.raises(ModelError, match=rf"a\.pt2 is not loaded, because it holds .*{sentence}"):
        load_model(str(path))
    assert not target.exists()


def test_the_format_of_older_versions_is_refused(saved, tmp_path):
    target = tmp_path / "executed"
    records = {
        "version": b"8.13",
        "serialized_exported_program.json": saved[MODEL],
        **{
            f"serialized_{name}.pt": pickled({"x": Evil(target)})
            for name in ("state_dict", "constants", "example_inputs")
        },
    }
    with pytest.raises(ModelError, match="no program that torch can load"):
        load_model(str(written(tmp_path / "a.pt2", records)))
    assert not target.exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\0" * 100])
def test_what_is_no_archive_is_a_sentence(tmp_path, data):
    (tmp_path / "a.pt2").write_bytes(data)
    with pytest.raises(ModelError, match="no program that torch can load"):
        load_model(str(tmp_path / "a.pt2"))


@pytest.mark.parametrize("name", ["a\0b.pt2", "a" * 300 + ".pt2"])
def test_names_that_no_file_has(name):
    with pytest.raises(FileError, match=r"NUL|too long"):
        load_model(name)
