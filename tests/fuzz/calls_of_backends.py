"""A good call of the public names of Neutron, Ethos-U and the core alone."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from tests.fuzz.malformed import Call
from tests.fuzz.wrong_values import (
    CALIBRATION,
    DISABLED,
    NEUTRON_WRONG,
    NO_PATHS,
    TARGETS,
    X,
    net,
    new_file,
)
from torch import nn

import micronpu
from micronpu import compat, cortexm, ethosu, neutron


def _setting(name: str) -> Iterator[Call]:
    for quantizer in (neutron.NeutronQuantizer, ethosu.EthosUQuantizer):
        made = quantizer(ethosu.EthosUOptions("ethos-u55-128")) if "Ethos" in quantizer.__name__ else quantizer()
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


_ETHOS_WRONG: dict[str, Any] = {
    "extra_flags": [["--no-such-flag"], ["--optimise"], ["--optimise=Fast"], ["--arena-cache-size=much"], [3]],
    "system_entries": [["no_equals"], ["=3"], [3], ["core_clock=fast"]],
    "max_sram_bytes": [-1, math.inf],
    "disabled_passes": DISABLED,
    "intermediates_dir": ["a\0b", "/dev/null/x"],
    "config_ini": ["/dev/null", ".", "no.ini", "a\0b"],
}


_ETHOS_ANY = (
    *("extra_flags", "intermediates_dir", "external_commands", "external_weights"),
    *("disabled_passes", "system_entries", "measurements"),  # a compilation reads the file of `measurements`
)


def _target() -> neutron.NeutronTargetSpec:
    return neutron.NeutronTargetSpec("imxrt700")


_FILES = ("cmd_data", "weight_data")


CALLS: tuple[Call, ...] = (
    Call(
        "NeutronTargetSpec",
        neutron.NeutronTargetSpec,
        lambda: {"target": "imxrt700"},
        {"target": ["cortex-m33", "ethos-u55-128"]},
    ),
    Call("VelaExternalBlockPlacements", compat.VelaExternalBlockPlacements, dict, {"cmd_data": ["", "ä"]}, any=_FILES),
    *(
        Call(f.__name__, f, dict, {"is_dynamic": [True], "weight_qmin": [-3], "weight_qmax": [10**9]})
        for f in (ethosu.get_symmetric_quantization_config, ethosu.get_symmetric_a16w8_quantization_config)
    ),
    Call("get_symmetric_a8w4_quantization_config", ethosu.get_symmetric_a8w4_quantization_config),
    Call(
        "get_uint8_io_quantization_config",
        ethosu.get_uint8_io_quantization_config,
        dict,
        {"is_dynamic": [True]},
    ),
    Call("QuantizeInfConfig", compat.QuantizeInfConfig),
    Call("CustomDelegationOptions", neutron.CustomDelegationOptions),
    Call(
        "NeutronOptions",
        neutron.NeutronOptions,
        dict,
        NEUTRON_WRONG,
        any=("extra_flags", "intermediates_dir", "sdk_version"),
    ),
    Call(
        "generate_neutron_compile_spec",
        neutron.generate_neutron_compile_spec,
        lambda: {"config": "imxrt700"},
        NEUTRON_WRONG,
        any=("system_config", "extra_flags", "intermediates_dir", "sdk_version"),
    ),
    Call(
        "NeutronCompileSpecBuilder",
        neutron.NeutronCompileSpecBuilder().neutron_compile_spec,
        lambda: {"config": "imxrt700"},
        {"no_such_option": [3], **NEUTRON_WRONG},
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
        {"compile_spec": [[3], ["a"], ethosu.EthosUOptions("ethos-u55-128").to_specs()]},
    ),
    Call("NeutronEdgePassManager", neutron.NeutronEdgePassManager, dict, {"passes": [[3], ["a"]]}),
    Call("QuantizationConfig", neutron.QuantizationConfig, dict, {"activations": ["int4", torch.int32, 8]}),
    Call(
        "calibrate_and_quantize",
        neutron.calibrate_and_quantize,
        lambda: {
            "model": torch.export.export(net(), (X,)),
            "calibration_inputs": [X],
            "quantizer": neutron.NeutronQuantizer(_target()),
        },
        {"model": [net(), nn.Conv2d], "calibration_inputs": CALIBRATION, "quantizer": [neutron.NeutronQuantizer]},
    ),
    Call(
        "merge_kernel_selections",
        neutron.merge_kernel_selections,
        lambda: {"files": [], "output": new_file().with_suffix(".c")},
        {
            "files": [[], ["no.c"], [3], [""], ["a\0b"], ["/dev/null"], ["."]],
            "output": NO_PATHS,
            "timeout": [0, -1, math.nan],
        },
    ),
    Call(
        "EthosUOptions",
        ethosu.EthosUOptions,
        lambda: {"silicon": "ethos-u55-128"},
        {"silicon": TARGETS, **_ETHOS_WRONG},
        any=_ETHOS_ANY,
        empty=("system_config", "memory_mode", "config_ini"),
    ),
    Call(
        "EthosUCompileSpec",
        ethosu.EthosUCompileSpec,
        lambda: {"target": "ethos-u55-128"},
        {"target": TARGETS, "silicon": ["ethos-u55-128"], **_ETHOS_WRONG},
        any=_ETHOS_ANY,
        empty=("system_config", "memory_mode", "config_ini"),
    ),
    Call("EthosUQuantizer", ethosu.EthosUQuantizer, lambda: {"compile_spec": ethosu.EthosUOptions("ethos-u55-128")}),
    Call(
        "EthosUPartitioner",
        ethosu.EthosUPartitioner,
        lambda: {"compile_spec": ethosu.EthosUOptions("ethos-u55-128")},
        {"additional_checks": [[3], ["a"]]},
    ),
    Call(
        "CortexMOptions",
        micronpu.CortexMOptions,
        dict,
        {"disabled_passes": DISABLED, "instructions": ["MVE", "NEON"]},
        empty=("instructions",),
    ),
    Call(
        "CortexMTargetConfig",
        cortexm.CortexMTargetConfig,
        lambda: {"cpu": cortexm.CortexM.M33},
        {"cpu": ["cortex-a55", 3], "isa": ["MVE", "NEON", 3]},
    ),
    Call("CortexMQuantizer", cortexm.CortexMQuantizer, dict, {"per_tensor_config": ["int8", 3]}),
    Call(
        "CortexMPassManager",
        cortexm.CortexMPassManager,
        lambda: {"exported_program": torch.export.export(net(), (X,))},
        {"passes": [[]], "target_config": ["cortex-m55"], "exported_program": [net()]},
    ),
    Call(
        "TOSAQuantizationConfig",
        compat.TOSAQuantizationConfig,
        lambda: dict.fromkeys(("input_activation", "output_activation", "weight", "bias")),
        {"input_activation": [3], "output_activation": ["int8"], "weight": [torch.int8]},
        any=("bias", "label"),
    ),
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
)
