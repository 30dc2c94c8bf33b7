"""Reader of ONNX files, with the `onnx` package.

Sizes and constants are checked while they are read; beside the file, external data of its folder is opened. The
lowerings of operators are in the modules `onnx_*`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from micronpu.base.errors import ErrorsAs, ModelError, UnsupportedError
from micronpu.base.texts import plural
from micronpu.frontend.model_files import onnx_movement, onnx_norms, onnx_recurrent, onnx_resize
from micronpu.frontend.model_files.budget import Cost, reading
from micronpu.frontend.model_files.metadata import of_onnx
from micronpu.frontend.model_files.network import Network, Shapes
from micronpu.frontend.model_files.onnx_functions import DEFAULT_DOMAINS, Functions
from micronpu.frontend.model_files.onnx_nodes import DAMAGED, DTYPES, OnnxBuilder, OnnxNode
from micronpu.frontend.model_files.onnx_nodes import LOWERINGS as LOWERINGS
from micronpu.frontend.model_files.onnx_quantized import keep_integers
from micronpu.program.file_facts import clean

_MODULES = (onnx_movement, onnx_norms, onnx_recurrent, onnx_resize)
"""Modules that register lowerings when they are imported."""
keep_integers()
OLDEST_OPSET = 7


def read_onnx(data: bytes, path: Path, shapes: Shapes = ()) -> Network:
    """Return the file as a module with the file's inputs and outputs.

    Args:
        path: for messages.
        shapes: of the inputs, in order or by name, for those whose sizes the file leaves open.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ModelError("Reading ONNX needs the package `onnx`.", hint='pip install "micronpu[onnx]"') from error

    model = onnx.ModelProto()
    with ErrorsAs(lambda _: ModelError(f"{path} is no ONNX model, or is damaged.", hint=DAMAGED)):
        model.ParseFromString(data)
        opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
        if not model.graph.node:
            raise ValueError("no nodes")
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"{path} is of opset {opset}; files of opset {OLDEST_OPSET} and newer are read.",
            hint="onnx.version_converter.convert_version(model, 17)",
        )
    builder = OnnxBuilder(path)
    for initializer in model.graph.initializer:
        builder.values[initializer.name] = builder.constant(initializer, initializer.name)
    builder.declare([*model.graph.value_info, *model.graph.output])
    _inputs(builder, [i for i in model.graph.input if i.name not in builder.values], shapes, path)
    if not builder.inputs or not model.graph.output:
        raise ModelError(f"{path} has no inputs or no outputs.", hint="a model with both")
    functions = Functions({(f.domain, f.name): f for f in model.functions})
    _Walk(builder, functions).read(model.graph.node, [o.name for o in model.graph.output], opset)
    _note_sources(builder, model.graph.node)
    outputs = [builder.value(None, given.name) for given in model.graph.output]
    for given, number in zip(model.graph.output, outputs, strict=True):
        if not isinstance(number, int):
            raise ModelError(f"The output `{given.name}` of {path} does not depend on the inputs.", hint="leave it out")
    network = builder.network([n for n in outputs if isinstance(n, int)])
    named = replace(network.file_facts, outputs=tuple(clean(o.name) for o in model.graph.output))
    network.file_facts = of_onnx([(p.key, p.value) for p in model.metadata_props], named)
    return network


def _note_sources(builder: OnnxBuilder, nodes: Sequence[Any]) -> None:
    """Note which tensors of the file the numbers of the network represent."""
    for i, node in enumerate(nodes):
        for k, name in enumerate(node.output):
            if name and not _has_ties(builder, node, k):
                builder.note_source(name, node.op_type, i)


def _has_ties(builder: OnnxBuilder, node: Any, result: int) -> bool:
    """Return True for a result that is one of several right ones: an index of equal elements."""
    if node.op_type == "TopK":
        return result == 1 or any(a.name == "sorted" and not a.i for a in node.attribute)
    if node.op_type not in ("ArgMax", "ArgMin"):
        return False
    given = builder.values.get(node.input[0])
    return not isinstance(given, int) or not builder.meta[given].is_floating_point()


@dataclass
class _Walk:
    """Reads nodes in order."""

    builder: OnnxBuilder
    functions: Functions

    def read(self, nodes: Sequence[Any], outputs: Sequence[str], opset: int) -> None:
        """Read nodes of a version of the default operator set, some of whose results are read elsewhere."""
        self.builder.budget.spend(Cost.OPERATORS, len(nodes), "The graph")
        self.builder.note_readers(nodes, outputs, opset)
        for i, given in enumerate(nodes):
            name = given.name or next(filter(None, given.output), f"node {i}")
            with reading(f"Node `{name}` ({given.op_type})", hint=DAMAGED):
                self._append(given, name, opset)

    def _append(self, given: Any, name: str, opset: int) -> None:
        kind = given.op_type if given.domain in DEFAULT_DOMAINS else f"{given.domain}.{given.op_type}"
        attributes = {a.name: a for a in given.attribute}
        node = OnnxNode(self.builder, kind, name, tuple(given.input), tuple(given.output), attributes, opset)
        if not node.outputs:
            raise ModelError(f"{node} has no result.", hint=DAMAGED)
        if kind == "Constant":
            node.define(_constant(node))
        elif kind == "If":
            self._branch(node)
        elif (body := self.functions.body(node, given.domain)) is not None:
            self.functions.read(node, body, self.read)
        else:
            self.builder.lower(node)
        if kind == "Equal":
            self.builder.equalities[node.outputs[0]] = node

    def _branch(self, node: OnnxNode) -> None:
        """Read the branch that a constant selects; otherwise compute both and select each result."""
        builder, condition = node.builder, node.operand(0)
        names = ["then_branch", "else_branch"]
        if isinstance(condition, torch.Tensor):
            names = [names[not bool(condition)]]
        found, refused = [], []
        for name in names:
            branch = node.attribute(name)
            if branch is None or len(branch.output) != len(node.outputs):
                raise ModelError(f"{node} has no branch of {len(node.outputs)} results.", hint=DAMAGED)
            outside = dict(builder.values)
            for initializer in branch.initializer:
                builder.values[initializer.name] = builder.constant(initializer, initializer.name)
            builder.declare([*branch.value_info, *branch.output])
            try:
                self.read(branch.node, [o.name for o in branch.output], node.opset)
                found.append([builder.value(node, v.name) for v in branch.output])
            except ModelError as error:  # one that does not fit these inputs never runs
                refused.append((name, error))
            builder.values = outside  # names of a branch are unknown outside of it
        if len(refused) == len(names):
            raise refused[0][1]
        for name, reason in refused:
            builder.left_out.append(f"`{node.name}`: its {name} does not fit the inputs. {reason.what}")
            if name == "else_branch":
                builder.know(node.inputs[0])
        if len(found) == 1:
            builder.values.update(zip(node.outputs, found[0], strict=True))
            return
        for output, *values in zip(node.outputs, *found, strict=True):
            one = OnnxNode(builder, "Where", output, (), (output,), {}, node.opset)
            one.emit(torch.where, [condition, *values])


def _constant(node: OnnxNode) -> torch.Tensor:
    for key in node.given:
        if key == "value":
            return node.builder.constant(node.attribute(key), node.name)
        if key in ("value_float", "value_floats", "value_int", "value_ints"):
            return torch.tensor(node.attribute(key), dtype=torch.float32 if "float" in key else torch.int64)
    raise node.error(f"holds {', '.join(node.given)}", "numbers")


def _inputs(builder: OnnxBuilder, given: Sequence[Any], shapes: Shapes, path: Path) -> None:
    names = [i.name for i in given]
    if not isinstance(shapes, Mapping):
        if len(shapes) not in (0, len(given)):
            raise ModelError(
                f"{path} has {plural(len(given), 'input')} ({', '.join(names)}), but got {len(shapes)} shapes.",
                hint="a shape for each",
            )
        shapes = dict(zip(names, shapes, strict=False))
    if unknown := [name for name in shapes if name not in names]:
        raise ModelError(f"{path} has no input `{unknown[0]}`.", hint=f"one of {', '.join(names)}")
    named: dict[str, int] = {}  # sizes by their name in the file, which several inputs may share
    for one in given:
        dimensions = one.type.tensor_type.shape.dim
        given_sizes = zip(dimensions, shapes.get(one.name) or _batch(one), strict=False)
        named.update({d.dim_param: size for d, size in given_sizes if d.dim_param and size is not None})
    known = {one.name: _known(one, shapes, named) for one in given}
    is_open = [one.name for one in given if None in _known(one, {}, {})]
    for one in given:
        sizes = _sizes(one, known, is_open, path)
        own = zip(one.type.tensor_type.shape.dim, sizes, _batch(one), strict=True)
        builder.has_open_sizes |= any(d.dim_value <= 0 and n != usual for d, n, usual in own)
        builder.values[one.name] = builder.input(one.name, sizes, _input_type(one, path))


def _batch(given: Any) -> list[int | None]:
    """Return the usual size of each dimension of an input that a file leaves open: a batch of 1, and no other."""
    return [1 if i == 0 else None for i in range(len(given.type.tensor_type.shape.dim))]


def _known(given: Any, shapes: Mapping[str, Sequence[int]], named: Mapping[str, int]) -> list[int | None]:
    """Return the shape of an input, None for unknown sizes; the first size that a file leaves open is the batch, 1."""
    dimensions = given.type.tensor_type.shape.dim
    usual = [named.get(d.dim_param, u) for d, u in zip(dimensions, _batch(given), strict=True)]
    known = [d.dim_value if d.dim_value > 0 else u for d, u in zip(dimensions, usual, strict=True)]
    return list(shapes.get(given.name, ())) or known


def _sizes(given: Any, known: Mapping[str, Sequence[int | None]], is_open: Sequence[str], path: Path) -> list[int]:
    """Return the shape of an input, from the known sizes of all; ``is_open``: the inputs whose sizes a user gives."""
    dimensions, wanted = given.type.tensor_type.shape.dim, known[given.name]
    declared = [d.dim_value if d.dim_value > 0 else None for d in dimensions]
    if len(wanted) != len(declared) or any(n not in (w, None) for n, w in zip(declared, wanted, strict=True)):
        raise ModelError(
            f"The input `{given.name}` of {path} cannot have the shape {list(wanted)}; it is {declared} there.",
            hint="sizes where the file has None",
        )
    for dimension, size, declares in zip(count(), wanted, dimensions):
        if size is None:
            name = f" ({declares.dim_param})" if declares.dim_param else ""
            examples = (f"{other}={'x'.join(str(n or 64) for n in known[other])}" for other in is_open)
            raise ModelError(
                f"Dimension {dimension} of the input `{given.name}` of {path} is open{name}, and a program has fixed "
                "sizes.",
                hint=f"example inputs of the right shape; on the command line {path.name}:{','.join(examples)}",
            )
    return [n for n in wanted if n is not None]


def _input_type(given: Any, path: Path) -> torch.dtype:
    import onnx

    kinds, number = onnx.TensorProto, given.type.tensor_type.elem_type
    if number not in DTYPES:
        name = kinds.DataType.Name(number) if number in kinds.DataType.values() else str(number)
        raise UnsupportedError(
            f"The input `{given.name}` of {path} is {name}.",
            hint="inputs of float32, int8, uint8, int16, int32 or int64",
        )
    return DTYPES[number]
