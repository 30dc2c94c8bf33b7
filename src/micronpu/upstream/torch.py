"""Private names of torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from micronpu.upstream.shim import declared, through

_SCHEMA = declared(
    "torch._ops:OpOverload._schema", "no argument is read", probe=lambda: _default(torch.ops.aten.t)._schema
)

if TYPE_CHECKING:
    from torch._ops import OperatorBase as OperatorBase
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch._subclasses import FakeTensor as FakeTensor
    from torch._subclasses import FakeTensorMode as FakeTensorMode
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_structure as tree_structure
    from torch.utils._pytree import treespec_dumps as treespec_dumps
else:
    OpOverload, OpOverloadPacket = _SCHEMA.owner()[0], type(torch.ops.aten.add)
    OperatorBase = OpOverload.__base__  # of control flow, too
    FakeTensor = declared("torch._subclasses:FakeTensor", "values of a graph and weights are mixed up").find()
    FakeTensorMode = declared("torch._subclasses:FakeTensorMode", "no shapes are found without computing").find()
    _TREE = "results of a model in tuples, lists and dictionaries are not found"
    tree_leaves = declared("torch.utils._pytree:tree_leaves", _TREE, parameters=("tree", "is_leaf")).find()
    tree_map = declared("torch.utils._pytree:tree_map", _TREE, parameters=("func", "tree", "rests", "is_leaf")).find()
    tree_structure = declared("torch.utils._pytree:tree_structure", _TREE, parameters=("tree", "is_leaf")).find()
    treespec_dumps = declared(
        "torch.utils._pytree:treespec_dumps",
        "a `.pte` does not say which tuples and dictionaries it takes and gives",
        parameters=("treespec", "protocol"),
    ).find()


# ---------------------------------------------------------------- operators

_RESHAPE = declared(
    "torch.ops:aten._reshape_copy",
    "`to_edge_transform_and_lower` makes copies and views of reshapes that an NPU computes",
    probe=lambda: _default(torch.ops.aten._reshape_copy),
)
_CAST = declared(
    "torch.ops:aten._to_copy", "the core part has no casts", probe=lambda: _default(torch.ops.aten._to_copy)
)
_DECOMPOSED = declared(
    "torch.ao.quantization.fx._decomposed",
    "the operators `quantized_decomposed::*` of quantized programs are not there",
)
_FUNCTIONS = declared("torch._functorch.predispatch", "operators of torch.vmap in a graph cannot be recognized")


def _default(packet: OpOverloadPacket) -> OpOverload:
    found: OpOverload = packet.default
    return found


@through(_FUNCTIONS)
def has_transforms(graph: Graph) -> bool:
    """Return True if a graph has operators that start and end transforms such as torch.vmap."""
    home = importlib.import_module("torch._functorch.predispatch").__name__
    return any(getattr(node.target, "__module__", "") == home for node in graph.nodes)


@through(_SCHEMA)
def schema_of(overload: Any) -> Any:
    """Return the schema of an ATen overload: its name, arguments and results."""
    return overload._schema


@through(_RESHAPE)
def reshape_copy() -> OpOverload:
    """Return a reshape that ExecuTorch does not replace."""
    return _default(torch.ops.aten._reshape_copy)


@through(_CAST)
def cast() -> OpOverload:
    """Return the operator x, dtype -> x of that dtype."""
    return _default(torch.ops.aten._to_copy)


_TABLE = declared("torch._decomp:get_decompositions", "norms on the host have no kernel")


_DISPATCHER = declared(
    "torch._dispatch.python:enable_python_dispatcher", "a batch norm on the host becomes one that has no kernel"
)


@through(_DISPATCHER)
def as_exported() -> Any:
    """Return a context in which operators are decomposed as in `torch.export`."""
    return importlib.import_module("torch._dispatch.python").enable_python_dispatcher()


@through(_TABLE)
def decomposition_table(more: Sequence[OpOverload]) -> Mapping[OpOverload, Callable[..., Any]]:
    """Return the decompositions that are applied before ExecuTorch's: torch's default ones, and those of ``more``."""
    return {**torch.export.default_decompositions(), **torch._decomp.get_decompositions(more)}


@through(_DECOMPOSED)
def register_quantized_operators() -> None:
    """Define `torch.ops.quantized_decomposed`."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")


def watched_calls(watch: Callable[..., None]) -> AbstractContextManager[Any]:
    """Return a context that calls ``watch(overload, args, kwargs, result)`` after each call of an ATen operator."""

    def call(self: object, overload: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = overload(*args, **(kwargs or {}))
        watch(overload, args, kwargs or {}, result)
        return result

    base: Any = FakeTensorMode.__base__
    context: AbstractContextManager[Any] = type("WatchedCalls", (base,), {"__torch_dispatch__": call})()
    return context


@contextmanager
def calls_before_decomposition(call: Callable[..., object]) -> Iterator[None]:
    """Call ``call(overload, args, kwargs)`` in place of each ATen operator of the context, as `torch.export` sees it:
    before a composite operator is decomposed."""

    def called(self: object, overload: object, types: object, args: object = (), kwargs: object = None) -> Any:
        return call(overload, args, kwargs or {})

    # torch has no other mode at this level; only its replaced method would use the tracer.
    mode: Any = type("CallsBeforeDecomposition", (ProxyTorchDispatchMode,), {"__torch_dispatch__": called})
    with as_exported(), mode(None, "fake", pre_dispatch=True):
        yield


# ---------------------------------------------------------------- tensors, graphs, programs

_VERSION = declared("torch:Tensor._version", "weights that training changes keep their first qparams")
_BUFFERS = declared(
    "torch.nn:Module._buffers", "what a model assigns to its buffers is lost", probe=lambda: nn.Identity()._buffers
)
_CODEGEN = declared(
    "torch.fx:Graph._codegen",
    "a rewritten model forgets which tuples it takes and gives",
    probe=lambda: Graph()._codegen,
)
_GUARDS = declared(
    "torch.export._unlift:GuardsFn", "the check of shapes in an exported module counts as a module in training mode"
)


@through(_GUARDS)
def is_guard(module: nn.Module) -> bool:
    """Return True if a module is the check of input shapes in `ExportedProgram.module`."""
    kind: type = importlib.import_module("torch.export._unlift").GuardsFn
    return isinstance(module, kind)


@through(_VERSION)
def version_of(tensor: torch.Tensor) -> int:
    """Return a number that changes when a tensor is written."""
    return tensor._version


@through(_BUFFERS)
def buffers_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the buffers of a module itself; `setattr` would be traced by `torch.export`."""
    return module._buffers


@through(_CODEGEN)
def codegen_of(graph: Graph) -> Any:
    """Return the object that packs and unpacks the tuples of a graph, for `torch.fx.Graph.set_codegen`."""
    return graph._codegen


# ---------------------------------------------------------------- saved programs

_FORM = declared("torch._export.serde.schema", "the texts of a `.pt2` are not checked before it is read")
_ELEMENT = declared(
    "torch._export.serde.serialize:deserialize_scalar_type",
    "the sizes of tensors in a `.pt2` are not checked",
    parameters=("st",),
)
_PICKLES = declared("torch._C:PyTorchFileReader", "the pickles of a `.pt2` are not checked")
_LOAD = declared("torch.export.pt2_archive._package:load_pt2", "no `.pt2` file is read")


@through(_FORM)
def form_of_programs() -> Any:
    """Return the module of dataclasses that a `.pt2` is written from: `ExportedProgram`, `PayloadConfig` and their
    parts."""
    return importlib.import_module("torch._export.serde.schema")


@through(_FORM, _ELEMENT)
def element_type(number: int) -> torch.dtype:
    """Return the dtype of a tensor in a `.pt2`."""
    found: torch.dtype = importlib.import_module("torch._export.serde.serialize").deserialize_scalar_type(
        form_of_programs().ScalarType(number)
    )
    return found


@through(_PICKLES)
def pickle_reader(file: Any) -> Any:
    """Return a reader for records of `torch.save`; it refuses other formats."""
    return torch._C.PyTorchFileReader(file)


@through(_LOAD)
def read_archive(file: Any) -> dict[str, ExportedProgram]:
    """Return the programs of a `.pt2` by name. `torch.export.load` would fall back to an older format."""
    from torch.export.pt2_archive import _package

    return dict(_package.load_pt2(file).exported_programs)
