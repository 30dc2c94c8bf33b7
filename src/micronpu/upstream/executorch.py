"""Doors of ExecuTorch; imports nothing of it before it is needed, which for its compiler takes seconds."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from micronpu.upstream.door import declared, through
from micronpu.upstream.pte import check_schema

# ---------------------------------------------------------------- the compiler

_STORE = declared(
    "executorch.exir._serialize._named_data_store:NamedDataStore", "a partition hands on no data beside its payload"
)
_PROGRAM_STORE = declared(
    "executorch.exir:EdgeProgramManager._named_data_store",
    "a `.pte` has no digest, no borders and no names of states",
    probe=lambda: _edge()._named_data_store,
)
_TENSORS = declared(
    "executorch.exir:ExecutorchProgramManager._tensor_data",
    "`.ptd` files beside a program are lost",
    probe=lambda: _edge().to_executorch()._tensor_data,
)
_TABLE = declared(
    "executorch.exir.tracer:_default_decomposition_table",
    "`to_edge_transform_and_lower` takes apart what an NPU computes whole",
    parameters=("_use_old_decomp_table",),
)
_EDGE_OPERATOR = declared(
    "executorch.exir.dialects.edge._ops:EdgeOpOverload._op",
    "no operator of an edge program is known",
    probe=lambda: _edge_operators().edge.aten.add.Tensor._op,
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
_SUBCLASSES = declared(
    "executorch.exir.backend.backend_api:BackendDetails",
    "ExecuTorch finds no back end by the name of its class, the last one that was defined",
)


def _edge() -> Any:
    import torch

    exir: Any = importlib.import_module("executorch.exir")
    return exir.to_edge(torch.export.export(torch.nn.ReLU(), (torch.zeros(1),)))


def _edge_operators() -> Any:
    return importlib.import_module("executorch.exir.dialects._ops").ops


@through(_STORE)
def named_data_store() -> Any:
    """A store of bytes by key, as a partition hands it on."""
    return importlib.import_module("executorch.exir._serialize._named_data_store").NamedDataStore()


@through(_PROGRAM_STORE)
def add_named_data(edge: Any, key: str, data: bytes) -> None:
    """Puts bytes into the `.pte` that an edge program becomes."""
    edge._named_data_store.add_named_data(key, data)


@through(_TENSORS)
def data_files(program: Any) -> Mapping[str, bytes]:
    """The `.ptd` files of an ExecuTorch program, by name."""
    return {f"{name}.ptd": bytes(data) for name, data in program._tensor_data.items()}


@through(_TABLE)
def decompositions() -> Sequence[Any]:
    """The operators that ExecuTorch takes apart unless it is asked not to."""
    return tuple(importlib.import_module("executorch.exir.tracer")._default_decomposition_table())


def is_edge_operator(target: Any) -> bool:
    """Whether the target of a node is one of the edge dialect."""
    return type(target).__name__ == "EdgeOpOverload"


@through(_EDGE_OPERATOR)
def operator_behind(target: Any) -> Any:
    """The ATen operator that one of the edge dialect stands for; anything else as it is."""
    return target._op if is_edge_operator(target) else target


@through(_EMPTY)
def empty_tensor() -> Any:
    """The edge operator that makes a tensor without values."""
    return _edge_operators().edge.dim_order_ops._empty_dim_order.default


@through(_VALIDITY)
def edge_config() -> Any:
    """How programs are lowered: operators of other packages are allowed."""
    return importlib.import_module("executorch.exir").EdgeCompileConfig(_check_ir_validity=False)


@through(_SUBCLASSES)
def backends_named(name: str) -> list[type[Any]]:
    """The back ends of a name in the order in which ExecuTorch sees them: the last one is asked."""
    base: Any = importlib.import_module("executorch.exir.backend.backend_details").BackendDetails
    return [c for c in base.__subclasses__() if c.__name__ == name]


def missing_out_variants(error: RuntimeError) -> list[str]:
    """The operators, such as ``aten::sort``, for want of which ExecuTorch raised an error; [] for any other error."""
    found = re.match(r"Missing out variants: \{(.*)\}", str(error))
    return re.findall(r"'([^']+)'", found[1]) if found is not None else []


# ---------------------------------------------------------------- the runtime and its tools


def _field_of_record(name: str) -> Any:
    record: Any = importlib.import_module("executorch.devtools.etrecord").ETRecord
    return inspect.signature(record).parameters[name]


_BINDINGS = "executorch.extension.pybindings._C"
_BACKENDS = declared(f"{_BINDINGS}:_get_registered_backend_names", "a delegate that the host lacks ends the load")
_OPERATORS = declared(f"{_BINDINGS}:_get_operator_names", "kernels that the host lacks are not named")
_LOAD = declared(f"{_BINDINGS}:_load_program_from_buffer", "no program runs with recorded values")
_SCHEMA = declared(
    "executorch.schema:program.fbs", "a `.pte` is read and written as another version's", probe=check_schema
)
_RECORD = [
    declared(
        f"executorch.devtools.etrecord:ETRecord.{name}",
        "no ETRecord tells where in the model an instruction comes from",
        probe=functools.partial(_field_of_record, name),
    )
    for name in ("_debug_handle_map", "_delegate_map", "_instruction_id_to_num_outs_map", "_representative_inputs")
]
_REFERENCE = declared(
    "executorch.devtools:Inspector._resolve_reference_graph",
    "values of a profile have no scales",
    parameters=("self", "reference_graph", "disable_debug_handle_validation"),
)


@through(_BACKENDS)
def bindings() -> Any:
    """ExecuTorch's Python interface; not `portable_lib`, which brings its compiler along, for a class of warnings."""
    return importlib.import_module(_BINDINGS)


@through(_BACKENDS)
def registered_backends() -> list[str]:
    """The delegates of the host's runtime."""
    return list(bindings()._get_registered_backend_names())


@through(_OPERATORS)
def registered_operators() -> list[str]:
    """The kernels of the host's runtime."""
    return list(bindings()._get_operator_names())


@through(_LOAD)
def load_program(data: bytes, *, profile: bool, debug_buffer_size: int) -> Any:
    """A program in ExecuTorch's own wrapping, whose methods run with tensors of torch."""
    native = bindings()
    return native._load_program_from_buffer(
        data,
        enable_etdump=profile,
        debug_buffer_size=debug_buffer_size,
        program_verification=native.Verification.InternalConsistency,
    )


@through(*_RECORD)
def debug_record(reference: Any, *, handles: Any, delegates: Any, outputs: Any, inputs: Any) -> Any:
    """An ETRecord of a program that ExecuTorch's compiler has not made.

    Args:
        reference: what the values of a run are compared with, an exported program.
        handles, delegates, outputs: by method, what the numbers of instructions stand for.
        inputs: of the reference, one list for each method.
    """
    record: Any = importlib.import_module("executorch.devtools.etrecord").ETRecord
    return record(
        edge_dialect_program=reference,
        _debug_handle_map=handles,
        _delegate_map=delegates,
        _instruction_id_to_num_outs_map=outputs,
        _representative_inputs=inputs,
    )


@through(_REFERENCE)
def reference_graph(inspector: Any) -> Any:
    """The graph of a profile's reference; the doc-strings name `get_reference_graph`, which 1.5 does not have."""
    return inspector._resolve_reference_graph()[0]
