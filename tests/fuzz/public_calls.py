"""One good call of everything public, for `tests/fuzz/malformed.py` to spoil."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.fuzz.malformed import Call, broken_iterator
from torch import nn

import micronpu
from micronpu import ethosu, neutron, recipes, runtime
from micronpu.chips import load_chip
from micronpu.recipes.providers import RecipeOptions
from micronpu.report.delegation import DelegationReport
from micronpu.targets.cortexm.options import CortexMOptions

MODULES = ("micronpu", "micronpu.neutron", "micronpu.ethosu", "micronpu.runtime", "micronpu.recipes")

NOT_CALLED = {
    "CompiledProgram": "`compile` makes it; its methods are below",
    "MicroNpuError": "micronpu raises it",
    "NeutronBackend": "ExecuTorch calls it",
    "EthosUBackend": "ExecuTorch calls it",
    "Digest": "an enumeration",
    "Plugin": "`load_plugin` makes it",
    "PteSummary": "`read_pte` makes it",
    "TensorSignature": "`HostProgram` makes it",
    "build_plugin": "without arguments",
    "cache_directory": "without arguments",
    "CortexMRecipeProvider": "ExecuTorch calls it",
    "EthosURecipeProvider": "ExecuTorch calls it",
    "NeutronRecipeProvider": "ExecuTorch calls it",
    "CortexMRecipeType": "an enumeration",
    "EthosURecipeType": "an enumeration",
    "NeutronRecipeType": "an enumeration",
    "CorePartitioner": "`get_chip_recipe` makes it",
    "OutliningPartitioner": "`get_chip_recipe` makes it",
    "NumericGap": "ExecuTorch's Inspector calls it",
    "Sparsified": "`sparsify` makes it",
    "sparsify": "a good call trains for half a minute",
    "fix": "a good call compiles for a minute",
    "NeutronHWVersion": "an enumeration",
    "core_aten_ops_exception_list": "a list",
    "RemoveIOQuantOpsPass": "it needs an edge program, which takes seconds; anything else is refused",
    "FILES": "the name of a stage",
    "FilesStage": "`stages_with_files` makes it",
}
"""What is public and not called here, and why."""


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()).eval()


X = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))


class _Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class _Gives(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        return self.result


def _poisoned(value: float) -> nn.Module:
    net = _net()
    with torch.no_grad():
        next(net.parameters()).fill_(value)
    return net


MODELS: tuple[Any, ...] = (
    nn.Conv2d,
    nn.Sequential(nn.Dropout()).train(),
    _net().half(),
    _net().bfloat16(),
    _net().to("meta"),
    _poisoned(math.nan),
    _poisoned(math.inf),
    _Raises(ValueError()),
    _Raises(KeyError("k\nl")),
    _Raises(RuntimeError("")),
    _Raises(AssertionError()),
    _Raises(RecursionError("deep")),
    _Raises(SystemExit(2)),
    _Raises(MemoryError()),
    _Raises(StopIteration()),
    _Gives(None),
    _Gives(3.0),
    _Gives([[], ()]),
    _Gives({"a": object()}),
    _Gives(np.zeros(3)),
    _Gives("text"),
    _Gives(b""),
    [_net()],
    {"model": _net()},
    torch.jit.ScriptModule,
)
INPUTS: tuple[Any, ...] = (
    (),
    (X, X),
    X[0],
    X[:, :1],
    X.double(),
    X.int(),
    X.bool(),
    X.half(),
    X.to("meta"),
    X.to_sparse(),
    X.to(torch.complex64),
    X[:0],
    torch.tensor(1.0),
    (X.numpy().tolist(),),
    ("x",),
    (None,),
    {"x": X},
    [[X]],
    ((X,),),
    (nn.Parameter(X), 3),
    X.numpy().astype("U8"),
    (X, None),
    range(3),
    np.array(["a"]),
    torch.zeros(1, 2, 2, 2),
    torch.zeros(1, 2, 6),
    torch.zeros(1, 2, 6, 6, 1),
    (X, {}),
)
CALIBRATION: tuple[Any, ...] = (
    [],
    [()],
    [X, None],
    [X[0, 0]],
    [X.double()],
    [X * math.nan],
    [X, X * math.inf],
    [(X, X)],
    {"x": X},
    "data.npz",
    broken_iterator(),
    [X.to("meta")],
    [X.to_sparse()],
    [X.numpy().astype(object)],
    [["a"]],
    [{"x": X}],
    [X[:0]],
    3,
    lambda: [X],
    [torch.zeros(0, 2, 6, 6)],
    [np.zeros((1, 2, 6, 6), "U3")],
    np.zeros((3, 3)),
    [0.5],
    ["a"],
)
TARGETS: tuple[Any, ...] = (
    ["imxrt700"],
    "imxrt7000",
    "ethos",
    "cortex",
    "IMXRT700 ",
    "no/chip.toml",
    ".",
    "/dev/null",
    "a.py",
)
NO_PATHS: tuple[Any, ...] = ("a\0b", "no/such/folder/file", "x" * 5000, ".", "", Path("a\0b"), "\udce4/a")
"""Where nothing can be written."""


@functools.cache
def program() -> micronpu.CompiledProgram:
    return micronpu.compile(_net(), X, "imxrt700-neutron", calibration=[X])


@functools.cache
def _stream() -> micronpu.CompiledProgram:
    return micronpu.compile(_net(), X, "ethos-u55-128", calibration=[X], verify=False)


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="micronpu-malformed-"))


def _new() -> Path:
    return Path(tempfile.mkdtemp(dir=_folder())) / "file.pte"


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


def _target() -> neutron.NeutronTargetSpec:
    return neutron.NeutronTargetSpec("imxrt700")


def _run(function: Any) -> Any:
    """The function with its variadic inputs as a parameter."""

    def call(inputs: Any, **options: Any) -> Any:
        return function(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)), **options)

    return call


def _setting(name: str) -> Iterator[Call]:
    for quantizer in (neutron.NeutronQuantizer, ethosu.EthosUQuantizer):
        made = quantizer(ethosu.EthosUCompileSpec("ethos-u55-128")) if "Ethos" in quantizer.__name__ else quantizer()
        call = getattr(made, name)
        first = next(iter(inspect.signature(call).parameters))
        good: dict[str, Any] = (
            {}
            if first == "config"
            else {first: {"type": nn.Conv2d, "target": torch.ops.aten.add.Tensor}.get(first, "conv2d")}
        )
        yield Call(
            f"{quantizer.__name__}.{name}",
            call,
            functools.partial(dict, good | {"config": neutron.QuantizationConfig()}),
            any=("name", "type"),
        )


_DISABLED = [["no such pass"], "fold_pads"]
_NEUTRON_WRONG: dict[str, Any] = {
    "extra_flags": [[3], ["a", None]],
    "operators_not_to_delegate": [["conv"], [3], [""]],
    "converter_timeout": [0, -1, math.nan, math.inf],
    "disabled_passes": _DISABLED,
    "intermediates_dir": ["a\0b", "/dev/null/x"],
}
_ETHOS_WRONG: dict[str, Any] = {
    "target": TARGETS,
    "extra_flags": [["--no-such-flag"], ["--optimise"], ["--optimise=Fast"], ["--arena-cache-size=much"], [3]],
    "system_entries": [["no_equals"], ["=3"], [3], ["core_clock=fast"]],
    "max_sram_bytes": [-1, math.inf],
    "disabled_passes": _DISABLED,
    "intermediates_dir": ["a\0b", "/dev/null/x"],
    "config_ini": ["/dev/null", ".", "no.ini", "a\0b"],
}
_COMPILE_WRONG: dict[str, Any] = {
    "model": MODELS,
    "example_inputs": INPUTS,
    "target": TARGETS,
    "calibration": CALIBRATION,
    "activations": ["int4", "uint8", "int16", "INT8", torch.int8, torch.int16, 8],
    "io": ["int4", "uint8", "float", torch.int8, 8],
    "quantizer": [neutron.NeutronQuantizer],
    "options": [
        ethosu.EthosUCompileSpec("ethos-u55-128"),
        neutron.NeutronCompileOptions("mcxn94x"),
        {"config": "imxrt700"},
    ],
    "held_out": [-1, 10**9, 0.5],
    "quantization": ["no.toml", "a\0b", {"no such": 1}, {"global": 3}],
}


def _compile() -> dict[str, Any]:
    return {"model": _net(), "example_inputs": X, "target": "imxrt700-neutron", "calibration": [X], "verify": False}


def _check() -> dict[str, Any]:
    return {"model": _net(), "example_inputs": X, "target": "imxrt700-neutron"}


_FILES = ("cmd_data", "weight_data")
_MAPPED = {"quantization": "str | Path | Mapping[str, Any] | None"}


CALLS: tuple[Call, ...] = (
    Call("compile", micronpu.compile, _compile, _COMPILE_WRONG, any=("listener", "train", "etrecord"), further=_MAPPED),
    Call(
        "check",
        micronpu.check,
        _check,
        {**_COMPILE_WRONG, "example_inputs": [*INPUTS[3:11], *INPUTS[12:]], "held_out": (), "quantization": ()},
    ),
    Call(
        "evaluate",
        micronpu.evaluate,
        lambda: {"model": _net(), "program": program(), "data": [X, X + 1]},
        {
            "model": MODELS,
            "program": ["no.pte", "a\0b", b"abc", b"", _net()],
            "data": CALIBRATION,
            "labels": ["a", [[1]], np.zeros((3, 3)), [math.nan, 0], [None, None], {"a": 1}, [0], 3],
            "metric": ["top7", lambda: 1, lambda a, b: "x", lambda a, b: math.nan, lambda a, b: 1 / 0],
            "output": [-1, 7],
        },
        any=("listener", "labels"),
    ),
    Call(
        "blame",
        micronpu.blame,
        lambda: {"model": _net(), "data": [X], "target": "imxrt700-neutron"},
        {k: v for k, v in _COMPILE_WRONG.items() if k not in ("held_out", "io", "example_inputs")}
        | {"data": CALIBRATION, "example_inputs": [*INPUTS[3:11], *INPUTS[12:]], "sort": ["no such"]},
        further=_MAPPED,
        any=("listener",),
    ),
    Call(
        "CompiledProgram.save",
        lambda path, vela=False: program().save(path, vela=vela),
        lambda: {"path": _new()},
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
        _run(program().run),
        lambda: {"inputs": (X,)},
        {"inputs": INPUTS},
        further={"inputs": "Any", "fast": "bool"},
    ),
    Call(
        "CompiledProgram.deploy",
        program().deploy,
        lambda: {"folder": _new().parent / "deployed"},
        {
            "folder": ["a\0b", "/dev/null/a", "x" * 5000],
            "target": TARGETS,
            "vectors": [{"x": None}, {"input_0": np.zeros(3)}, {"input_0": "a"}, {3: X}],
            "name": ["3a", "a b", "", "ä", "a/b"],
        },
        any=("folder", "section"),
    ),
    Call(
        "NeutronTargetSpec",
        neutron.NeutronTargetSpec,
        lambda: {"target": "imxrt700"},
        {"target": ["cortex-m33", "ethos-u55-128"]},
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
    Call("VelaExternalBlockPlacements", ethosu.VelaExternalBlockPlacements, dict, {"cmd_data": ["", "ä"]}, any=_FILES),
    *(
        Call(f.__name__, f, dict, {"is_dynamic": [True], "weight_qmin": [-3], "weight_qmax": [10**9]})
        for f in (ethosu.get_symmetric_quantization_config, ethosu.get_symmetric_a16w8_quantization_config)
    ),
    Call("get_symmetric_a8w4_quantization_config", ethosu.get_symmetric_a8w4_quantization_config),
    Call("CustomDelegationOptions", neutron.CustomDelegationOptions),
    Call(
        "NeutronCompileOptions",
        neutron.NeutronCompileOptions,
        dict,
        _NEUTRON_WRONG,
        any=("extra_flags", "intermediates_dir", "sdk_version"),
    ),
    Call(
        "generate_neutron_compile_spec",
        neutron.generate_neutron_compile_spec,
        lambda: {"config": "imxrt700"},
        _NEUTRON_WRONG,
        any=("system_config", "extra_flags", "intermediates_dir", "sdk_version"),
    ),
    Call(
        "NeutronCompileSpecBuilder",
        neutron.NeutronCompileSpecBuilder().neutron_compile_spec,
        lambda: {"config": "imxrt700"},
        {"no_such_option": [3], **_NEUTRON_WRONG},
        any=("extra_flags", "intermediates_dir"),
    ),
    Call(
        "NeutronQuantizer",
        neutron.NeutronQuantizer,
        lambda: {"neutron_target_spec": _target()},
        {"disabled_rewrites": [["no such"], [3]]},
        any=("disabled_rewrites",),
    ),
    Call(
        "NeutronPartitioner",
        neutron.NeutronPartitioner,
        lambda: {"compile_spec": neutron.generate_neutron_compile_spec("imxrt700"), "neutron_target_spec": _target()},
        {"compile_spec": [[3], ["a"], ethosu.EthosUCompileSpec("ethos-u55-128").to_specs()]},
    ),
    Call("NeutronEdgePassManager", neutron.NeutronEdgePassManager, dict, {"passes": [[3], ["a"]]}),
    Call("QuantizationConfig", neutron.QuantizationConfig, dict, {"activations": ["int4", torch.int32, 8]}),
    Call(
        "calibrate_and_quantize",
        neutron.calibrate_and_quantize,
        lambda: {
            "model": torch.export.export(_net(), (X,)),
            "calibration_inputs": [X],
            "quantizer": neutron.NeutronQuantizer(_target()),
        },
        {"model": [_net(), nn.Conv2d], "calibration_inputs": CALIBRATION, "quantizer": [neutron.NeutronQuantizer]},
    ),
    Call(
        "merge_kernel_selections",
        neutron.merge_kernel_selections,
        lambda: {"files": [], "output": _new().with_suffix(".c")},
        {
            "files": [[], ["no.c"], [3], [""], ["a\0b"], ["/dev/null"], ["."]],
            "output": NO_PATHS,
            "timeout": [0, -1, math.nan],
        },
    ),
    Call(
        "EthosUCompileSpec",
        ethosu.EthosUCompileSpec,
        lambda: {"target": "ethos-u55-128"},
        _ETHOS_WRONG,
        any=(
            "extra_flags",
            "intermediates_dir",
            "external_commands",
            "external_weights",
            "disabled_passes",
            "system_entries",
        ),
        further=dict.fromkeys(("system_config", "memory_mode", "config_ini"), "str | None")
        | {"extra_flags": "list | None"},
        empty=("system_config", "memory_mode", "config_ini"),
    ),
    Call(
        "EthosUQuantizer", ethosu.EthosUQuantizer, lambda: {"compile_spec": ethosu.EthosUCompileSpec("ethos-u55-128")}
    ),
    Call(
        "EthosUPartitioner",
        ethosu.EthosUPartitioner,
        lambda: {"compile_spec": ethosu.EthosUCompileSpec("ethos-u55-128")},
        {"additional_checks": [[3], ["a"]]},
    ),
    Call("CortexMOptions", CortexMOptions, dict, {"disabled_passes": _DISABLED}),
    *(
        c
        for n in (
            "set_global",
            "set_io",
            "set_module_name",
            "set_module_type",
            "set_node_name",
            "set_node_target",
            "set_operator",
        )
        for c in _setting(n)
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
    Call("HostProgram.run", _run(host().run), lambda: {"inputs": (X,)}, {"inputs": INPUTS}, further={"inputs": "Any"}),
    Call(
        "ArrayProgram.run_arrays",
        _run(_arrays().run_arrays),
        lambda: {"inputs": (X.numpy(),)},
        {"inputs": INPUTS},
        further={"inputs": "Any"},
    ),
    Call(
        "HostProgram.profile",
        _run(host().profile),
        lambda: {"inputs": (X,), "etdump": _new()},
        {"inputs": INPUTS[:8], "etdump": NO_PATHS},
        further={"inputs": "Any", "etdump": "str | Path"},
        any=("etdump",),
    ),
    Call(
        "HostProgram.save_etdump",
        _recorder().save_etdump,
        lambda: {"etdump": _new(), "debug_buffer": _new()},
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
    Call(
        "DelegationReport.to_html",
        program().report.to_html,
        lambda: {"path": _new()},
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
            **{k: v for k, v in _NEUTRON_WRONG.items()},
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


def missing() -> list[str]:
    """Public names without a good call here, and names that are here and no more public."""
    known = {call.name.split(".")[0] for call in CALLS}
    public = {name for module in MODULES for name in importlib.import_module(module).__all__}
    return sorted({*(public - known - NOT_CALLED.keys()), *(NOT_CALLED.keys() - public)})


__all__ = ["CALLS", "MODULES", "NOT_CALLED", "missing"]
