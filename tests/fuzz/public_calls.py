"""One good call of everything public, for `tests/fuzz/malformed.py` to spoil."""

from __future__ import annotations

import enum
import importlib

from tests.fuzz import calls_of_backends, calls_of_compiling, calls_of_running
from tests.fuzz.malformed import Call

from micronpu.base import errors

MODULES = (
    *("micronpu", "micronpu.neutron", "micronpu.ethosu", "micronpu.cortexm"),
    *("micronpu.compat", "micronpu.runtime", "micronpu.recipes"),
)

NOT_CALLED = {
    "CompiledProgram": "`compile` makes it; its methods are below",
    "CompiledMethods": "`compile` makes it of several methods",
    **{name: "micronpu raises it" for name in vars(errors) if name.endswith("Error")},
    **dict.fromkeys(("Blame", "Deployment", "Evaluation", "Fixes"), "a call of `micronpu` makes it"),
    **dict.fromkeys(("DelegationReport", "Partitioning", "Reason", "Streaming", "Verdict"), "the same"),
    "AccuracyWarning": "Python's `warnings` show it",
    "CacheWarning": "Python's `warnings` show it",
    "no_cache": "without arguments",
    "FileModel": "`read_model` makes it",
    "Pass": "a class to inherit from",
    "ReportWarning": "`compile` makes it",
    "NeutronBackend": "ExecuTorch calls it",
    "EthosUBackend": "ExecuTorch calls it",
    "cortex_m_edge_compile_config": "without arguments",
    "Plugin": "`load_plugin` makes it",
    "PteSummary": "`read_pte` makes it",
    "TensorSignature": "`HostProgram` makes it",
    "build_plugin": "without arguments",
    "cache_directory": "without arguments",
    "CortexMRecipeProvider": "ExecuTorch calls it",
    "EthosURecipeProvider": "ExecuTorch calls it",
    "NeutronRecipeProvider": "ExecuTorch calls it",
    "CorePartitioner": "`get_chip_recipe` makes it",
    "OutliningPartitioner": "`get_chip_recipe` makes it",
    "NumericGap": "ExecuTorch's Inspector calls it",
    "Sparsified": "`sparsify` makes it",
    "ArmPassPipelineConfig": "its fields are enumerations, and anything else is refused",
    "RemoveAdditionalQDQClustersPass": "without arguments",
    "RemoveIOQuantOpsPass": "it needs an edge program, which takes seconds; anything else is refused",
    "FilesStage": "`stages_with_files` makes it",
}
"""What is public, can be called and is not called here, and why."""


CALLS: tuple[Call, ...] = (*calls_of_compiling.CALLS, *calls_of_backends.CALLS, *calls_of_running.CALLS)


def _is_called(value: object) -> bool:
    """Return True for a function or class; an enumeration, a list or a configuration that is ready takes no values."""
    return callable(value) and not (isinstance(value, type) and issubclass(value, enum.Enum))


def missing() -> list[str]:
    """Public names that can be called, without a good call here, and names that are here and no more public."""
    known = {call.name.split(".")[0] for call in CALLS}
    modules = [importlib.import_module(module) for module in MODULES]
    public = {name for module in modules for name in module.__all__ if _is_called(getattr(module, name))}
    return sorted({*(public - known - NOT_CALLED.keys()), *(NOT_CALLED.keys() - public)})
