"""Saved programs, `.pt2`: they load, and nothing in them runs."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import typing
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._export.serde import schema

import micronpu
from micronpu.base.errors import FileError, ModelError
from micronpu.cli.archive import REFUSED, RULES, RefusedContentError, check_fields
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


def _signature(content):
    return content["graph_module"]["module_call_graph"][0]["signature"]


def _touch(evil: Evil) -> str:
    """Source that does what unpickling does."""
    return f"open({str(evil.path)!r}, 'w')"


def _renamed(records: dict[str, bytes], name: str, new: str) -> dict[str, bytes]:
    """The records with a name changed wherever it stands."""
    old, text = json.dumps(name).encode(), json.dumps(new).encode()
    return {key: data.replace(old, text) if key.endswith(".json") else data for key, data in records.items()}


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
        "a size that depends on its inputs",
    ),
    "size of characters": (  # of nothing but names, brackets and digits: sympy evaluates calls of builtins
        lambda r, evil: changed(r, MODEL, _size(f"exec({'+'.join(f'chr({ord(c)})' for c in _touch(evil))})")),
        "a size that depends on its inputs",
    ),
    "guard": (
        lambda r, evil: changed(r, MODEL, lambda c: c["guards_code"].append(_touch(evil))),
        "the guard .*which torch would run",
    ),
    "input": (lambda r, evil: _renamed(r, "x", f"a, b={_touch(evil)}"), "which is no identifier"),
    "parameter": (
        lambda r, evil: _renamed(r, "layer.weight", f'x", None) or {_touch(evil)} or (lambda *a: self)(self, "'),
        "which no module or parameter may have",
    ),
    "argument": (
        lambda r, evil: changed(r, MODEL, lambda c: _signature(c).update(forward_arg_names=[f"a, b={_touch(evil)}"])),
        "which is no identifier",
    ),
    "unknown field": (lambda r, evil: changed(r, MODEL, lambda c: c.update(more="")), "the field 'more'"),
    "unknown record": (lambda r, evil: {**r, "a/data/more": b""}, "the record 'data/more'"),
    "second model": (lambda r, evil: {**r, "a/models/other.json": r[MODEL]}, "the record 'models/other.json'"),
    "another case": (lambda r, evil: {**r, "a/extra/a": b"", "a/extra/A": b""}, "a record twice"),
    "path": (
        lambda r, evil: changed(
            r, WEIGHTS, lambda c: c["config"]["layer.weight"].update(path_name="../../../etc/passwd")
        ),
        "where it has no place",
    ),
    "symbols": (
        lambda r, evil: changed(
            r, MODEL, lambda c: c["range_constraints"].update(u99999999999={"min_val": 0, "max_val": 1})
        ),
        "which is no number",
    ),
    "large tensor": (
        lambda r, evil: changed(
            r,
            WEIGHTS,
            lambda c: c["config"]["layer.bias"]["tensor_meta"].update(
                sizes=[{"as_int": 1 << 40}], strides=[{"as_int": 0}]
            ),
        ),
        "of 4,398,046,511,104 bytes, of which 16 are stored",
    ),
    "large input": (
        lambda r, evil: {**r, INPUTS: pickled(((torch.zeros(1).expand(1 << 40),), {}))},
        "of 4,398,046,511,104 bytes, of which 4 are stored",
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


def test_a_compressed_archive_is_refused_before_it_is_unpacked(saved, tmp_path):
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**saved, "a/data/weights/weight_0": bytes(64 << 20)}.items():
            archive.writestr(name, data)
    with pytest.raises(ModelError, match="because it holds compressed records"):
        load_model(str(path))


def _texts(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Where texts stand in a value of JSON, and the names of fields."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key, None)
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _texts(item, (*path, position))
    elif isinstance(value, str):
        yield path


INJECTIONS = ("a, b=exec('1')", '"or exec("1")or"', "a\nexec('1')", "a\\", "\x1b[2J")
NOTES = {"stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node", "as_string"}


@pytest.mark.parametrize("record", [MODEL, WEIGHTS])
def test_no_text_of_an_archive_can_be_source(saved, record):
    """Whatever field or key it stands in; what is kept beside a node for messages is never source."""
    kind = schema.ExportedProgram if record == MODEL else schema.PayloadConfig
    good = json.loads(saved[record])
    check_fields(kind, good)
    places = list(_texts(good))
    assert len(places) > 20
    for place in places:
        for injected in INJECTIONS:
            content = json.loads(saved[record])
            *parents, last = place if place[-1] is not None else place[:-1]
            holder = content
            for parent in parents:
                holder = holder[parent]
            if place[-1] is None:
                holder[injected] = holder.pop(last)
            elif last in NOTES and "\x1b" not in injected:
                continue
            else:
                holder[last] = injected
            with pytest.raises((RefusedContentError, ValueError)):
                check_fields(kind, content)


def test_every_text_of_torchs_schema_has_a_rule():
    found = set()
    waiting, seen = [schema.ExportedProgram, schema.PayloadConfig], set()
    while waiting:
        kind = waiting.pop()
        if kind in seen or kind.__name__ in REFUSED:
            continue
        seen.add(kind)
        for name, hint in typing.get_type_hints(kind, localns=vars(schema)).items():
            for inner, is_key in _leaves(hint):
                if inner is str:
                    found.add((kind.__name__, f"{name} key" if is_key else name))
                elif dataclasses.is_dataclass(inner):
                    waiting.append(inner)
    assert found == set(RULES)


def _leaves(hint: object, is_key: bool = False) -> Iterator[tuple[object, bool]]:
    parts = typing.get_args(hint)
    for position, part in enumerate(parts):
        yield from _leaves(part, typing.get_origin(hint) is dict and position == 0)
    if not parts:
        yield hint, is_key


def test_names_that_models_have_are_read(tmp_path):
    """Keys of module dictionaries, and of dictionaries among inputs and outputs, are no identifiers."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"res-1": nn.Linear(4, 4), "größe 2": nn.ReLU()})
            self.register_buffer("tail", torch.randn(100)[96:])
            self.register_buffer("wide", torch.ones(1).expand(4))

        def forward(self, x):
            return {"box.loc": self.parts["res-1"](x) + self.tail, "a b": self.parts["größe 2"](x) * self.wide}

    torch.export.save(torch.export.export(Named(), (torch.ones(1, 4),)), tmp_path / "a.pt2", extra_files={"a.txt": "b"})
    assert (
        len(micronpu.check(load_model(str(tmp_path / "a.pt2")).module, torch.ones(1, 4), "imxrt700").report.verdicts)
        > 2
    )


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
