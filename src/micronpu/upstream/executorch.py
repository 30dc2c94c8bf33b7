"""Private names of ExecuTorch. Nothing of it is imported before it is needed: its compiler takes seconds."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from micronpu.upstream.pte import check_schema
from micronpu.upstream.shim import declared, through

# ---------------------------------------------------------------- the compiler

_STORE = declared(
    "executorch.exir._serialize._named_data_store:NamedDataStore",
    "a partition returns no data in addition to its payload",
)
_TABLE = declared(
    "executorch.exir.tracer:_default_decomposition_table",
    "`to_edge_transform_and_lower` decomposes operators that an NPU runs whole",
    parameters=("_use_old_decomp_table",),
)
_EMPTY = declared(
    "executorch.exir.dialects._ops:ops.edge.dim_order_ops._empty_dim_order",
    "scratch memory of a core's kernels is filled in every call",
    probe=lambda: _edge_operators().edge.dim_order_ops._empty_dim_order.default,
)
_VALIDITY = declared(
    "executorch.exir:EdgeCompileConfig._check_ir_validity",
    "operators outside of the edge dialect cannot be lowered",
    probe=lambda: importlib.import_module("executorch.exir").EdgeCompileConfig(_check_ir_validity=False),
)


def _edge_operators() -> Any:
    return importlib.import_module("executorch.exir.dialects._ops").ops


@through(_STORE)
def named_data_store() -> Any:
    """Return a store of bytes by key, for a partition's named data."""
    return importlib.import_module("executorch.exir._serialize._named_data_store").NamedDataStore()


@through(_TABLE)
def decompositions() -> Sequence[Any]:
    """Return the operators that ExecuTorch decomposes by default."""
    return tuple(importlib.import_module("executorch.exir.tracer")._default_decomposition_table())


def is_edge_operator(target: object) -> bool:
    """Return True if the target of a node is an operator of the edge dialect."""
    return type(target).__name__ == "EdgeOpOverload"


def operator_behind(target: Any) -> Any:
    """Return the ATen operator of an edge operator; anything else unchanged."""
    if not is_edge_operator(target):
        return target
    return getattr(target.overloadpacket, target.name().partition(".")[2] or "default")


@through(_EMPTY)
def empty_tensor() -> Any:
    """Return the edge operator that makes a tensor without values."""
    return _edge_operators().edge.dim_order_ops._empty_dim_order.default


@through(_VALIDITY)
def edge_config() -> Any:
    """Return the configuration of the lowering: operators of other packages are allowed."""
    return importlib.import_module("executorch.exir").EdgeCompileConfig(_check_ir_validity=False)


# ---------------------------------------------------------------- states

_INITIALIZED = declared(
    "executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass",
    "states begin with undefined values",
    parameters=("patterns",),
)


@through(_INITIALIZED)
def initialized(prefix: str) -> Any:
    """Return a pass that gives buffers with this name prefix their initial values."""
    return importlib.import_module("executorch.exir.passes.init_mutable_pass").InitializedMutableBufferPass([prefix])


# ---------------------------------------------------------------- the kernels of a core

_CORE = "executorch.backends.cortex_m"
_CORE_OPERATORS = declared(
    f"{_CORE}.ops.operators", "no operator of CMSIS-NN is known", probe=lambda: _define_core_operators()
)
_LOCK = threading.Lock()
SOFTMAX_QPARAMS = {"CMSIS_SOFTMAX_SCALE": 1 / 256, "CMSIS_SOFTMAX_ZERO_POINT": -128}
"""Values from ExecuTorch's `quantization_configs`: the qparams of the results of CMSIS-NN's softmax."""
_SIZES = declared(f"{_CORE}.library.cmsis_nn", "how much scratch memory a kernel of CMSIS-NN needs is not known")


@through(_SIZES)
def cmsis_nn() -> Any:
    """Return CMSIS-NN's functions for buffer sizes."""
    return importlib.import_module(f"{_CORE}.library.cmsis_nn")


def _define_core_operators() -> None:
    """Define `torch.ops.cortex_m`, once, without the rest of ExecuTorch's backend for Cortex-M.

    The module that defines the operators reads a few functions and two numbers from packages that import ExecuTorch's
    backend for Arm's NPUs, and with it `tosa_serializer`, which a default installation does not have and no Cortex-M
    needs.  So the module gets a custom `__import__`, which reads these from their files; other modules and threads are
    not affected.
    """
    operators = f"{_CORE}.ops.operators"
    with _LOCK:
        if sys.modules.get(operators) is not None:
            return
        spec = importlib.util.find_spec(operators)
        if spec is None or spec.loader is None or spec.origin is None:
            raise ImportError(f"no module named {operators}")
        module = importlib.util.module_from_spec(spec)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_for_operators}
        sys.modules[operators] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[operators]
            raise


def _import_for_operators(name: str, *others: Any, **named: Any) -> Any:
    if name == f"{_CORE}.quantizer.quantization_configs":
        return SimpleNamespace(**SOFTMAX_QPARAMS)
    if name.startswith(f"{_CORE}.passes."):
        folder, place = importlib.import_module(_CORE).__path__[0], name.removeprefix(f"{_CORE}.").split(".")
        path = os.path.join(folder, *place) + ".py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return builtins.__import__(name, *others, **named)


@through(_CORE_OPERATORS)
def core_operator(name: str) -> Any:
    """Return an operator of `torch.ops.cortex_m`, such as "quantized_add"."""
    import torch

    _define_core_operators()
    return getattr(torch.ops.cortex_m, name).default


# ---------------------------------------------------------------- the runtime and its tools


_BINDINGS = "executorch.extension.pybindings._C"
_BACKENDS = declared(f"{_BINDINGS}:_get_registered_backend_names", "a delegate that the host lacks ends the load")
_OPERATORS = declared(f"{_BINDINGS}:_get_operator_names", "kernels that the host lacks are not named")
_LOAD = declared(f"{_BINDINGS}:_load_program_from_buffer", "no program runs with recorded values")
_SCHEMA = declared(
    "executorch.schema:program.fbs", "a `.pte` is read and written as another version's", probe=check_schema
)
_RECORD = declared(
    "executorch.devtools.etrecord:ETRecord",
    "no ETRecord tells where in the model an instruction comes from",
    parameters=(
        "exported_program",
        "export_graph_id",
        "edge_dialect_program",
        "graph_map",
        "_debug_handle_map",
        "_delegate_map",
        "_instruction_id_to_num_outs_map",
        "_reference_outputs",
        "_representative_inputs",
    ),
)
_REFERENCE = declared(
    "executorch.devtools:Inspector._resolve_reference_graph",
    "values of a profile have no scales",
    parameters=("self", "reference_graph", "disable_debug_handle_validation"),
)


@through(_BACKENDS)
def bindings() -> Any:
    """Return ExecuTorch's Python interface; not `portable_lib`, which imports its compiler for a class of warnings."""
    return importlib.import_module(_BINDINGS)


@through(_BACKENDS)
def registered_backends() -> list[str]:
    """Return the delegates of the host's runtime."""
    return list(bindings()._get_registered_backend_names())


@through(_OPERATORS)
def registered_operators() -> list[str]:
    """Return the kernels of the host's runtime."""
    return list(bindings()._get_operator_names())


@through(_LOAD)
def load_program(data: bytes, *, profile: bool, debug_buffer_size: int) -> Any:
    """Return a program in ExecuTorch's own wrapper, whose methods take and return tensors of torch."""
    native = bindings()
    return native._load_program_from_buffer(
        data,
        enable_etdump=profile,
        debug_buffer_size=debug_buffer_size,
        program_verification=native.Verification.InternalConsistency,
    )


@through(_RECORD)
def debug_record(reference: object, *, handles: object, delegates: object, outputs: object, inputs: object) -> Any:
    """Return an ETRecord of a program that was not made by ExecuTorch's compiler.

    Args:
        reference: exported program that the values of a run are compared with.
        handles, delegates, outputs: meaning of the instruction numbers.
        inputs: of the reference.
    """
    record: Any = importlib.import_module("executorch.devtools.etrecord").ETRecord
    return record(  # the Inspector reads the maps of a method of this name alone
        edge_dialect_program=reference,
        _debug_handle_map={"forward": handles},
        _delegate_map={"forward": delegates},
        _instruction_id_to_num_outs_map={"forward": outputs},
        _representative_inputs=[inputs],
    )


@through(_REFERENCE)
def reference_graph(inspector: Any) -> Any:
    """Return the graph of a profile's reference; ExecuTorch 1.5 lacks the documented `get_reference_graph`."""
    return inspector._resolve_reference_graph()[0]
