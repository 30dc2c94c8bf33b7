"""A good call of what runs programs, of chips, and of recipes."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import torch
from tests.cases import case, i8, q, w8
from tests.fuzz.malformed import Call
from tests.fuzz.wrong_values import (
    INPUTS,
    NEUTRON_WRONG,
    NO_PATHS,
    TARGETS,
    X,
    net,
    new_file,
    of_inputs,
    program,
)

import micronpu
from micronpu import recipes, runtime
from micronpu.chips import load_chip
from micronpu.emit.litert import to_litert
from micronpu.ops.convolution import Conv2d
from micronpu.recipes.providers import RecipeOptions


@functools.cache
def _stream() -> micronpu.CompiledProgram:
    return micronpu.compile(net(), X, "ethos-u55-128", calibration=[X], verify=False)


@functools.cache
def host() -> runtime.HostProgram:
    return runtime.HostProgram(program().buffer)


@functools.cache
def _recorder() -> runtime.HostProgram:
    recorder = runtime.HostProgram(program().buffer, runtime.RunOptions(profile=True))
    recorder.run(X)
    return recorder


@functools.cache
def _arrays() -> runtime.ArrayProgram:
    return runtime.ArrayProgram(program().buffer)


def _model_file() -> Path:
    row = case(Conv2d(), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3), out=q(0.1), name="file")
    path = new_file().with_suffix(".tflite")
    path.write_bytes(to_litert(row.graph()).data)
    return path


CALLS: tuple[Call, ...] = (
    Call(
        "read_model",
        micronpu.read_model,
        lambda: {"path": _model_file()},
        {"path": [*NO_PATHS, "no.tflite", "no.onnx", "/dev/null"]},
        any=("shapes",),
        empty=("shapes",),
    ),
    Call(
        "ArrayProgram",
        runtime.ArrayProgram,
        lambda: {"source": program().buffer},
        {"source": ["no.pte", "a\0b", ".", b"", b"abc", bytes(100), program().buffer[:-100], "/dev/null"]},
        any=("name",),
    ),
    Call(
        "HostProgram",
        runtime.HostProgram,
        lambda: {"source": program().buffer},
        {"source": ["no.pte", "a\0b", ".", b"", b"abc", bytes(100), program().buffer[:-100], "/dev/null"]},
        any=("name",),
    ),
    Call(
        "HostProgram.run",
        of_inputs(host().run),
        lambda: {"inputs": (X,)},
        {"inputs": [*INPUTS[:4], *INPUTS[5:]]},  # float64 is converted
        further={"inputs": "Any"},
    ),
    Call(
        "ArrayProgram.run_arrays",
        of_inputs(_arrays().run_arrays),
        lambda: {"inputs": (X.numpy(),)},
        {"inputs": INPUTS},
        further={"inputs": "Any"},
    ),
    Call(
        "HostProgram.profile",
        of_inputs(host().profile),
        lambda: {"inputs": (X,), "etdump": new_file()},
        {"inputs": [*INPUTS[:4], *INPUTS[5:8]], "etdump": NO_PATHS},
        further={"inputs": "Any", "etdump": "str | Path"},
        any=("etdump",),
    ),
    Call(
        "HostProgram.save_etdump",
        _recorder().save_etdump,
        lambda: {"etdump": new_file(), "debug_buffer": new_file()},
        {"etdump": NO_PATHS, "debug_buffer": NO_PATHS},
        any=("etdump", "debug_buffer"),
    ),
    Call(
        "RunOptions", runtime.RunOptions, dict, {"time_limit": [0, -1, math.nan, math.inf], "debug_buffer_size": [-1]}
    ),
    Call("load_plugin", runtime.load_plugin),
    *(
        Call(
            f.__name__,
            f,
            lambda: {"data": program().buffer},
            {"data": [b"", b"abc", bytes(1000), program().buffer[:-50], "a.pte"]},
            any=("name",),
        )
        for f in (runtime.read_pte, runtime.stamp)
    ),
    Call("state_of", runtime.state_of, lambda: {"data": program().buffer}, any=("name",)),
    Call("load_chip", load_chip, lambda: {"path": "no.toml"}, {"path": [*NO_PATHS, "/dev/null", __file__]}),
    Call(
        "get_chip_recipe",
        recipes.get_chip_recipe,
        lambda: {"target": "imxrt700-neutron"},
        {
            "target": TARGETS,
            "quantization": ["int4", torch.int8],
            "no_such_option": [3],
            "config": ["mcxn94x"],
            "io": ["int4"],
            "per_channel": [3, None],
            "files_dir": ["a\0b", "no/such"],
            **NEUTRON_WRONG,
        },
    ),
    *(
        Call(f.__name__, f, dict, {"no_such_option": [3]})
        for f in (
            recipes.get_corstone300_recipe,
            recipes.get_corstone320_recipe,
            recipes.get_imx93_recipe,
            recipes.get_imxrt700_recipe,
        )
    ),
    Call("RecipeOptions", RecipeOptions, dict, {"io": ["int4", 8], "files_dir": ["a\0b", "no"]}, empty=("files_dir",)),
    Call(
        "combine",
        recipes.combine,
        lambda: {"recipes": [recipes.get_imxrt700_recipe()]},
        {"recipes": [[3], [recipes.get_imxrt700_recipe(), None]]},
        any=("name",),
    ),
    Call("stages_with_files", recipes.stages_with_files, lambda: {"recipe": recipes.get_imxrt700_recipe()}),
)
