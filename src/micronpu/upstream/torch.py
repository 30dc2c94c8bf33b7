"""Private names of torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule

from micronpu.upstream.shim import declared, through

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
    OpOverload = declared("torch._ops:OpOverload", "no operator of a graph is known as one").find()
    OperatorBase = declared("torch._ops:OperatorBase", "control flow is calibrated as if it were arithmetic").find()
    OpOverloadPacket = declared("torch._ops:OpOverloadPacket", "no operator is found by its name alone").find()
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


def _add() -> Any:
    return torch.ops.aten.add.Tensor


def _program() -> ExportedProgram:
    return torch.export.export(nn.Identity(), (torch.zeros(1),))


# ---------------------------------------------------------------- operators

_SCHEMA = declared("torch._ops:OpOverload._schema", "no argument of an operator is read", probe=lambda: _add()._schema)
_OVERLOAD = declared(
    "torch._ops:OpOverload._overloadname",
    "overloads of an operator cannot be distinguished",
    probe=lambda: _add()._overloadname,
)
_PACKET = declared(
    "torch._ops:OpOverloadPacket._qualified_op_name",
    "`set_operator(torch.ops.aten.conv2d, ...)` finds no operator",
    probe=lambda: torch.ops.aten.add._qualified_op_name,
)
_BY_NAME = declared("torch._C:_get_schema", "calls of unlisted kernels in a `.pte` are not checked")
_RESHAPE = declared(
    "torch.ops:aten._reshape_copy",
    "`to_edge_transform_and_lower` makes copies and views of reshapes that an NPU computes",
    probe=lambda: torch.ops.aten._reshape_copy.default,
)
_CAST = declared(
    "torch.ops:aten._to_copy", "the core part of a program has no casts", probe=lambda: torch.ops.aten._to_copy.default
)
_SCAN = declared("torch._higher_order_ops.scan:scan_op", "a long recurrent layer on the host has no loop")
_DECOMPOSED = declared(
    "torch.ao.quantization.fx._decomposed",
    "the operators `quantized_decomposed::*` of quantized programs are not there",
)
_FUNCTIONS = declared("torch._functorch.predispatch", "operators of torch.vmap in a graph cannot be recognized")


@through(_FUNCTIONS)
def has_transforms(graph: Graph) -> bool:
    """Return True if a graph has operators that start and end transforms such as torch.vmap."""
    home = importlib.import_module("torch._functorch.predispatch").__name__
    return any(getattr(node.target, "__module__", "") == home for node in graph.nodes)


@through(_SCHEMA)
def schema_of(overload: Any) -> Any:
    """Return the schema of an ATen overload: its name, arguments and results."""
    return overload._schema


@through(_OVERLOAD)
def overload_part(overload: OpOverload) -> str:
    """Return ``Tensor`` of ``add.Tensor``."""
    return str(overload._overloadname)


@through(_PACKET)
def packet_name(packet: OpOverloadPacket) -> str:
    """Return a name such as ``aten::add``."""
    return str(packet._qualified_op_name)


@through(_BY_NAME)
def schema_named(name: str, overload: str) -> Any:
    """Return the schema of a name such as ``aten::add`` and an overload such as ``out``; None if there is no such
    operator."""
    try:
        return torch._C._get_schema(name, overload)
    except RuntimeError:
        return None


@through(_RESHAPE)
def reshape_copy() -> OpOverload:
    """Return a reshape that ExecuTorch does not replace."""
    found: OpOverload = torch.ops.aten._reshape_copy.default
    return found


@through(_CAST)
def cast() -> OpOverload:
    """Return the operator x, dtype -> x of that dtype."""
    found: OpOverload = torch.ops.aten._to_copy.default
    return found


@through(_SCAN)
def scan_operator() -> Any:
    """Return the operator for loops, called with (step, initial states, sequences, constants)."""
    from torch._higher_order_ops.scan import scan_op

    return scan_op


_COMPOSITE = declared("torch._C:_dispatch_has_kernel_for_dispatch_key", "operators of the host are not decomposed")
_NORM = declared("torch._decomp:get_decompositions", "norms on the host have no kernel")


_DISPATCHER = declared(
    "torch._dispatch.python:enable_python_dispatcher", "a batch norm on the host becomes one that has no kernel"
)


@through(_DISPATCHER)
def as_exported() -> Any:
    """Return a context in which operators are decomposed as in `torch.export`."""
    return importlib.import_module("torch._dispatch.python").enable_python_dispatcher()


@through(_COMPOSITE)
def is_composite(operator: OpOverload) -> bool:
    """Return True if torch computes an operator by calling others, on any device."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


@through(_NORM)
def decomposition_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """Return the decompositions that are applied before ExecuTorch's."""
    norm = torch._decomp.get_decompositions([torch.ops.aten.linalg_vector_norm.default])
    return {**torch.export.default_decompositions(), **norm}


@through(_DECOMPOSED)
def register_quantized_operators() -> None:
    """Define `torch.ops.quantized_decomposed`."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")


# ---------------------------------------------------------------- tensors, graphs, programs

_VERSION = declared("torch:Tensor._version", "weights that training changes keep their first qparams")
_VIEW = declared("torch:Tensor._is_view", "torch.export takes the sizes of what an example is part of for symbols")
_BUFFERS = declared(
    "torch.nn:Module._buffers",
    "what a model assigns to its buffers is lost",
    probe=lambda: nn.Identity()._buffers,
)
_CODEGEN = declared(
    "torch.fx:Graph._codegen",
    "a rewritten model forgets which tuples it takes and gives",
    probe=lambda: Graph()._codegen,
)
_MODULE = declared(
    "torch.export:ExportedProgram._graph_module",
    "the graph of an exported program cannot be exchanged",
    probe=lambda: _program()._graph_module,
)
_SIGNATURE = declared(
    "torch.export:ExportedProgram._graph_signature",
    "programs that write into their inputs cannot be compiled",
    probe=lambda: _program()._graph_signature,
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


@through(_VIEW)
def is_view(tensor: torch.Tensor) -> bool:
    """Return True if autograd regards a tensor as a view of another."""
    return tensor._is_view()


@through(_BUFFERS)
def buffers_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the buffers of a module itself; `setattr` would be traced by `torch.export`."""
    return module._buffers


@through(_CODEGEN)
def codegen_of(graph: Graph) -> Any:
    """Return the object that packs and unpacks the tuples of a graph, for `torch.fx.Graph.set_codegen`."""
    return graph._codegen


@through(_MODULE, _SIGNATURE)
def set_graph(program: ExportedProgram, module: GraphModule, signature: ExportGraphSignature | None = None) -> None:
    """Replace the graph and, if given, the signature of an exported program, in place."""
    _ = (
        program._graph_module,
        program._graph_signature,
    )  # raises if an attribute was renamed, which would be written and never read
    program._graph_module = module
    if signature is not None:
        program._graph_signature = signature


# ---------------------------------------------------------------- saved programs

_READER = declared(
    "torch.export.pt2_archive._package:PT2ArchiveReader", "no `.pt2` file is looked at before it is read"
)
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


@through(_READER)
def archive_reader(file: Any) -> Any:
    """Return a reader for records of a `.pt2`: ``get_file_names()``, ``read_bytes(name)``."""
    from torch.export.pt2_archive import _package

    return _package.PT2ArchiveReader(file)


@through(_LOAD)
def read_archive(file: Any) -> dict[str, ExportedProgram]:
    """Return the programs of a `.pt2` by name. `torch.export.load` would fall back to an older format."""
    from torch.export.pt2_archive import _package

    return dict(_package.load_pt2(file).exported_programs)
