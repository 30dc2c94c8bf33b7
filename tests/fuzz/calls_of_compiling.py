"""A good call of what compiles and judges models, and of what it returns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tests.fuzz.malformed import Call
from tests.fuzz.wrong_values import (
    CALIBRATION,
    INPUTS,
    MODELS,
    NO_PATHS,
    TARGETS,
    X,
    net,
    new_file,
    of_inputs,
    program,
)
from torch import nn

import micronpu
from micronpu import ethosu, neutron
from micronpu.report.delegation import DelegationReport

_TYPES: list[Any] = ["int4", "INT8", torch.int8, torch.int16, 8]
_COMPILE_WRONG: dict[str, Any] = {
    "model": MODELS,
    "example_inputs": INPUTS,
    "target": TARGETS,
    "calibration": CALIBRATION,
    "options": [
        ethosu.EthosUOptions("ethos-u55-128"),
        neutron.NeutronOptions("mcxn94x"),
        {"config": "imxrt700"},
    ],
    "quantization": [
        *("no.toml", "a\0b", {"no such": 1}, {"global": 3}, "int4", "int16", "INT8", torch.int8, 8),
        neutron.NeutronQuantizer,
        micronpu.Quantization(activations="int16"),
        micronpu.Quantization(io="int16"),
    ],
    "verify": [micronpu.Verification(held_out=10**9), 8, "yes"],
    "transforms": ["3:4", 8, 0.01],
}


def _compile() -> dict[str, Any]:
    return {"model": net(), "example_inputs": X, "target": "imxrt700-neutron", "calibration": [X], "verify": False}


def _check() -> dict[str, Any]:
    return {"model": net(), "example_inputs": X, "target": "imxrt700-neutron"}


_MAPPED = {"quantization": "str | Path | Mapping[str, Any] | None"}


CALLS: tuple[Call, ...] = (
    Call(
        "compile",
        micronpu.compile,
        _compile,
        _COMPILE_WRONG,
        any=("callback", "train"),
        further=_MAPPED | {"verify": "bool"},
    ),
    Call(
        "check",
        micronpu.check,
        _check,
        {**_COMPILE_WRONG, "example_inputs": [*INPUTS[3:11], *INPUTS[12:]], "verify": (), "transforms": ()},
        further=_MAPPED,
    ),
    Call(
        "evaluate",
        micronpu.evaluate,
        lambda: {"model": net(), "program": program(), "data": [X, X + 1]},
        {
            "model": MODELS,
            "program": ["no.pte", "a\0b", b"abc", b"", net()],
            "data": CALIBRATION,
            "labels": ["a", [[1]], np.zeros((3, 3)), [math.nan, 0], [None, None], {"a": 1}, [0], 3],
            "metric": ["top7", lambda: 1, lambda a, b: "x", lambda a, b: math.nan, lambda a, b: 1 / 0],
            "output": [-1, 7],
        },
        any=("callback", "labels"),
    ),
    Call(
        "blame",
        micronpu.blame,
        lambda: {"model": net(), "data": [X], "target": "imxrt700-neutron"},
        {k: v for k, v in _COMPILE_WRONG.items() if k not in ("verify", "transforms", "example_inputs")}
        | {"data": CALIBRATION, "example_inputs": [*INPUTS[3:11], *INPUTS[12:]], "sort": ["no such"]},
        further=_MAPPED,
        any=("callback",),
    ),
    Call(
        "fix",
        micronpu.fix,
        # A time in which nothing new is begun: the network as it is.
        lambda: {"model": net(), "data": [X * i for i in range(16)], "target": "imxrt700-neutron", "budget": 1e-9},
        {
            **{k: _COMPILE_WRONG[k] for k in ("model", "target", "calibration", "options", "quantization")},
            "data": CALIBRATION,
            "example_inputs": [*INPUTS[3:11], *INPUTS[12:]],
            "budget": [0, -1, math.nan, math.inf],
        },
        further=_MAPPED,
        any=("callback",),
    ),
    Call("Pipeline", micronpu.Pipeline, dict, {"phases": ["cleanup", (3,)]}),
    Call(
        "advise",
        micronpu.advise,
        lambda: {"model": net(), "example_inputs": X, "target": "imxrt700-neutron", "calibration": [X]},
        {
            **{k: _COMPILE_WRONG[k] for k in ("model", "target", "calibration", "options", "quantization")},
            "example_inputs": [*INPUTS[3:11], *INPUTS[12:]],
        },
        further=_MAPPED,
        any=("callback",),
    ),
    Call(
        "sparsify",
        micronpu.sparsify,
        # A target that gains nothing: nothing is trained.
        lambda: {"model": net(), "calibration": [X, X + 1], "target": "imxrt700-neutron"},
        {
            **{k: _COMPILE_WRONG[k] for k in ("calibration", "target", "options", "quantization")},
            "model": [*MODELS[:2], *MODELS[4:]],  # a float16 model is trained as float32
            "example_inputs": [*INPUTS[3:11], *INPUTS[12:]],
            "score": [3, lambda: 1],
        },
        further=_MAPPED,
        any=("callback", "score"),
    ),
    Call(
        "Quantization",
        micronpu.Quantization,
        dict,
        {"activations": [*_TYPES, "uint8"], "io": _TYPES, "quantizer": [neutron.NeutronQuantizer]},
        further={"settings": "str | Path | Mapping[str, Any] | None"},
        any=("settings",),
    ),
    Call("Verification", micronpu.Verification, dict, {"held_out": [-1, 0.5]}),
    Call("Transforms", micronpu.Transforms, dict, {"sparsity": ["3:4"], "compress": [-1, math.nan]}),
    Call(
        "CompiledProgram.save",
        lambda path, vela=False: program().save(path, vela=vela),
        lambda: {"path": new_file()},
        {"path": [*NO_PATHS, "/dev/null/a.pte"]},
        further={"path": "str | Path", "vela": "bool"},
        any=("path",),
    ),
    Call(
        "CompiledProgram.to_litert",
        lambda vela=False: program().to_litert(vela=vela),
        dict,
        {"vela": [True]},
        further={"vela": "bool"},
    ),
    Call(
        "CompiledProgram.run",
        of_inputs(program().run),
        lambda: {"inputs": (X,)},
        {"inputs": [*INPUTS[:4], *INPUTS[5:]]},  # float64 is converted
        further={"inputs": "Any", "fast": "bool"},
    ),
    Call(
        "CompiledProgram.deploy",
        program().deploy,
        lambda: {"folder": new_file().parent / "deployed"},
        {
            "folder": ["a\0b", "/dev/null/a", "x" * 5000],
            "target": TARGETS,
            "vectors": [{"x": None}, {"input_0": np.zeros(3)}, {"input_0": "a"}, {3: X}],
            "name": ["3a", "a b", "", "ä", "a/b"],
        },
        any=("folder", "section"),
    ),
    Call(
        "Budgets",
        micronpu.Budgets,
        dict,
        {name: [0, -1, math.nan, math.inf] for name in ("max_ms", "max_sram", "max_flash", "min_sqnr")},
    ),
    Call(
        "SparsityOptions",
        micronpu.SparsityOptions,
        dict,
        {name: [-1, math.nan] for name in ("max_loss", "points", "steps", "rate", "batch", "held_back")},
        any=("dense",),
    ),
    Call(
        "streaming",
        micronpu.streaming,
        lambda: {"model": nn.Sequential(nn.Conv1d(2, 4, 3)).eval(), "example_inputs": torch.zeros(1, 2, 8)},
        {"dim": [7, -7], "step": [0, -1]},
    ),
    Call(
        "DelegationReport.to_html",
        program().report.to_html,
        lambda: {"path": new_file()},
        {"path": NO_PATHS},
        any=("path",),
    ),
    Call("DelegationReport.to_json", program().report.to_json, dict),
    Call(
        "DelegationReport.from_json",
        DelegationReport.from_json,
        lambda: {"text": program().report.to_json()},
        {"text": ["", "{}", "[]", "3", "null", '{"version": 1}', '{"version": "x"}', program().report.to_json()[:-9]]},
        any=("name",),
    ),
    Call(
        "DelegationReport.load",
        DelegationReport.load,
        lambda: {"path": "no.json"},
        {"path": [*NO_PATHS, "/dev/null", __file__]},
    ),
)
