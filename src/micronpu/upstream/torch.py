"""Doors of torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule

from micronpu.upstream.door import declared, through

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
    "no operator is told from its other forms",
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
_FUNCTIONS = declared(
    "torch._functorch.predispatch", "the operators by which torch.vmap stands in a graph are not told from others"
)


@through(_FUNCTIONS)
def has_transforms(graph: Graph) -> bool:
    """Whether a graph begins and ends transforms such as torch.vmap, as operators that stand for no arithmetic."""
    home = importlib.import_module("torch._functorch.predispatch").__name__
    return any(getattr(node.target, "__module__", "") == home for node in graph.nodes)


@through(_SCHEMA)
def schema_of(overload: Any) -> Any:
    """The schema of an ATen overload: its name, arguments and results."""
    return overload._schema


@through(_OVERLOAD)
def overload_part(overload: OpOverload) -> str:
    """``Tensor`` of ``add.Tensor``."""
    return str(overload._overloadname)


@through(_PACKET)
def packet_name(packet: OpOverloadPacket) -> str:
    """``aten::add`` and the like."""
    return str(packet._qualified_op_name)


@through(_BY_NAME)
def schema_named(name: str, overload: str) -> Any:
    """The schema of ``aten::add``, ``out`` and the like; None where there is no such operator."""
    try:
        return torch._C._get_schema(name, overload)
    except RuntimeError:
        return None


@through(_RESHAPE)
def reshape_copy() -> OpOverload:
    """A reshape that ExecuTorch leaves alone."""
    found: OpOverload = torch.ops.aten._reshape_copy.default
    return found


@through(_CAST)
def cast() -> OpOverload:
    """x, dtype -> x of that dtype."""
    found: OpOverload = torch.ops.aten._to_copy.default
    return found


@through(_SCAN)
def scan_operator() -> Any:
    """The loop of a graph, called with (step, initial states, sequences, constants)."""
    from torch._higher_order_ops.scan import scan_op

    return scan_op


_COMPOSITE = declared(
    "torch._C:_dispatch_has_kernel_for_dispatch_key", "operators of the host are not taken apart into others"
)
_NORM = declared("torch._decomp:get_decompositions", "norms on the host have no kernel")


_DISPATCHER = declared(
    "torch._dispatch.python:enable_python_dispatcher", "a batch norm on the host becomes one that has no kernel"
)


@through(_DISPATCHER)
def as_exported() -> Any:
    """A context in which operators are taken apart as `torch.export` does it."""
    return importlib.import_module("torch._dispatch.python").enable_python_dispatcher()


@through(_COMPOSITE)
def is_composite(operator: OpOverload) -> bool:
    """Whether torch computes an operator by calling others, whatever the device."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


@through(_NORM)
def decomposition_table() -> Mapping[OpOverload, Callable[..., Any]]:
    """The operators that are taken apart before ExecuTorch sees them, and by what."""
    norm = torch._decomp.get_decompositions([torch.ops.aten.linalg_vector_norm.default])
    return {**torch.export.default_decompositions(), **norm}


@through(_DECOMPOSED)
def register_quantized_operators() -> None:
    """Defines `torch.ops.quantized_decomposed`."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")


# ---------------------------------------------------------------- tensors, graphs, programs

_VERSION = declared("torch:Tensor._version", "weights that training changes keep their first grid")
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
    """Whether a module is the check of input shapes in `ExportedProgram.module`."""
    kind: type = importlib.import_module("torch.export._unlift").GuardsFn
    return isinstance(module, kind)


@through(_VERSION)
def version_of(tensor: torch.Tensor) -> int:
    """Another number where a tensor was written into since."""
    return tensor._version


@through(_VIEW)
def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows a tensor as a part, or as another form, of one that is there."""
    return tensor._is_view()


@through(_BUFFERS)
def buffers_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers of a module itself; `setattr` would be seen by `torch.export` and written into the program."""
    return module._buffers


@through(_CODEGEN)
def codegen_of(graph: Graph) -> Any:
    """What packs and unpacks the tuples of a graph, for `torch.fx.Graph.set_codegen`."""
    return graph._codegen


@through(_MODULE, _SIGNATURE)
def set_graph(program: ExportedProgram, module: GraphModule, signature: ExportGraphSignature | None = None) -> None:
    """Gives an exported program another graph, in place, and with it another signature."""
    _ = program._graph_module, program._graph_signature  # an attribute of another name would be written and never read
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
    """The module of dataclasses that a `.pt2` is written from: `ExportedProgram`, `PayloadConfig` and their parts."""
    return importlib.import_module("torch._export.serde.schema")


@through(_FORM, _ELEMENT)
def element_type(number: int) -> torch.dtype:
    """Of a tensor in a `.pt2`."""
    found: torch.dtype = importlib.import_module("torch._export.serde.serialize").deserialize_scalar_type(
        form_of_programs().ScalarType(number)
    )
    return found


@through(_PICKLES)
def pickle_reader(file: Any) -> Any:
    """Reads the records of what `torch.save` writes, and nothing of another form."""
    return torch._C.PyTorchFileReader(file)


@through(_READER)
def archive_reader(file: Any) -> Any:
    """Reads the records of a `.pt2`: ``get_file_names()``, ``read_bytes(name)``."""
    from torch.export.pt2_archive import _package

    return _package.PT2ArchiveReader(file)


@through(_LOAD)
def read_archive(file: Any) -> dict[str, ExportedProgram]:
    """The programs of a `.pt2` by name; not `torch.export.load`, which goes on to an older format where it fails."""
    from torch.export.pt2_archive import _package

    return dict(_package.load_pt2(file).exported_programs)
