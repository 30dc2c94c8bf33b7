"""Nodes of ONNX files, and the builder of a network from them.

A lowering reads a node by its accessors, which record what was read. An attribute or an operand that it leaves out ends
in an error, unless it is the schema's default: no part of a node is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from micronpu.base.errors import ModelError, UnsupportedError
from micronpu.frontend.model_files.network import DAMAGED as DAMAGED
from micronpu.frontend.model_files.network import FileValue, Function, NetworkBuilder, Operand, Rounding
from micronpu.frontend.model_files.onnx_constants import constant_of
from micronpu.frontend.program import BYTE_SHIFT

FLOATS = (1, 10, 11, 16)
"""Element types of ONNX that are computed as float32: float32, float16, float64 and bfloat16."""
DTYPES = {
    **dict.fromkeys(FLOATS, torch.float32), 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32,
    7: torch.int64, 9: torch.bool,
}  # fmt: skip
"""Dtypes by the number in ONNX's `TensorProto.DataType`."""


_POSITIVE = {"kernel_shape", "strides", "dilations", "group", "num_groups", "blocksize", "size", "hidden_size"}
"""Attributes that are sizes or steps, and divide others."""

_SINGLE = {
    "Add", "Cast", "Clip", "Concat", "Div", "Identity", "LogSoftmax", "Max", "Min", "Mul", "Pad", "Relu", "Reshape",
    "Sigmoid", "Slice", "Softmax", "Sub", "Tanh", "Transpose", "Where",
}  # fmt: skip
"""Operators whose rounding does not depend on the size of operands that cancel, such as masks of -1e9."""


@lru_cache(maxsize=1024)
def schema_of(kind: str, opset: int) -> Any:
    """Return the schema of an operator of the default domain; None for an unknown one."""
    import onnx

    return onnx.defs.get_schema(kind, opset, "") if onnx.defs.has(kind, opset, "") else None


@lru_cache(maxsize=1024)
def _attributes_of(kind: str, opset: int) -> dict[str, tuple[int, object]]:
    """Return the type and the default, or None, of each attribute that an operator has."""
    schema = schema_of(kind, opset)
    return {
        name: (int(a.type), _decoded(a.default_value) if a.default_value.type else None)
        for name, a in (schema.attributes if schema else {}).items()
    }


def _decoded(attribute: Any) -> Any:
    """Return the value of an attribute; texts as str."""
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in _listed(value)]
    return texts if not isinstance(value, bytes) and _is_list(value) else texts[0]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (bytes, str))


def _listed(value: Any) -> list[Any]:
    return list(value) if _is_list(value) else [value]


@dataclass(frozen=True)
class Qparams:
    """How QuantizeLinear rounds an activation: an int8 or int16 tensor, which may represent unsigned bytes.

    Attributes:
        is_bytes: the file's integers are 128 more, as uint8.
    """

    rounding: Rounding
    is_bytes: bool

    def integers(self, x: torch.Tensor) -> torch.Tensor:
        """Return the int8 or int16 tensor of floats."""
        r, limits = self.rounding, torch.iinfo(self.rounding.dtype)
        made: torch.Tensor = torch.ops.quantized_decomposed.quantize_per_tensor.default(
            x, r.scale, r.zero_point, limits.min, limits.max, r.dtype
        )
        return made

    @property
    def _of_bytes(self) -> tuple[object, ...]:
        return self.rounding.scale, self.rounding.zero_point + BYTE_SHIFT, 0, 255, torch.uint8

    def bytes_of(self, integers: torch.Tensor) -> torch.Tensor:
        """Return the uint8 tensor that an int8 tensor represents."""
        real = self.rounding.dequantize(integers)
        made: torch.Tensor = torch.ops.quantized_decomposed.quantize_per_tensor.default(real, *self._of_bytes)
        return made

    def from_bytes(self, data: torch.Tensor) -> torch.Tensor:
        """Return the int8 tensor that represents a uint8 tensor."""
        return self.integers(torch.ops.quantized_decomposed.dequantize_per_tensor.default(data, *self._of_bytes))


@dataclass(frozen=True)
class Integers:
    """A result of QuantizeLinear: the number of its int8 or int16 tensor."""

    number: int
    qparams: Qparams


@dataclass(frozen=True)
class OnnxNode:
    """A node of the file.

    Attributes:
        given: attributes by name, as the file has them.
        opset: version of the default operator set.
        seen: names of attributes and numbers of operands that have been read.
    """

    builder: OnnxBuilder
    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    given: Mapping[str, Any]
    opset: int
    seen: set[str | int] = field(default_factory=set)

    def __str__(self) -> str:
        return f"Node `{self.name}` ({self.kind})"

    def error(self, what: str, hint: str) -> UnsupportedError:
        return UnsupportedError(f"{self} {what}.", hint=hint)

    def attribute(self, name: str) -> Any:
        """Return an attribute, or the default of this version of the operator; None without either."""
        self.seen.add(name)
        if name in self.given:
            return _decoded(self.given[name])
        return _attributes_of(self.kind, self.opset).get(name, (0, None))[1]

    def attributes(self, *names: str) -> list[Any]:
        """Return attributes, see `attribute`."""
        return [self.attribute(name) for name in names]

    def flag(self, name: str) -> bool:
        """Return an attribute that is 0 or 1."""
        value = self.attribute(name)
        if value not in (None, 0, 1):
            raise ModelError(f"{self} has {name} = {value}.", hint="0 or 1")
        return bool(value)

    def ignores(self, *names: str) -> None:
        """Note attributes that have no effect on the results, or only in training."""
        self.seen.update(names)

    def check_given(self) -> None:
        """Check names and types of the attributes, and the signs of sizes."""
        known = _attributes_of(self.kind, self.opset)
        for name, attribute in self.given.items():
            if schema_of(self.kind, self.opset) is not None and known.get(name, (0,))[0] != attribute.type:
                what = "another type than" if name in known else "an unknown name for"
                raise ModelError(f"{self} has an attribute `{name}` of {what} opset {self.opset}.", hint=DAMAGED)
            if name in _POSITIVE and any(n < 1 for n in _listed(_decoded(attribute))):
                raise ModelError(f"{self} has {name} = {_decoded(attribute)}.", hint="positive numbers")

    def check_seen(self) -> None:
        """Check that the lowering has read the whole node."""
        known = _attributes_of(self.kind, self.opset)
        for name, attribute in self.given.items():
            if name not in self.seen and known.get(name, (0, None))[1] != (value := _decoded(attribute)):
                text = f" = {value}" if isinstance(value, (int, float, str, list)) else ""
                raise self.error(f"has the attribute {name}{text}, which is not read", f"a node without `{name}`")
        for i, name in enumerate(self.inputs):
            if name and i not in self.seen:
                raise self.error(f"has the operand {i} `{name}`, which is not read", "a node without it")

    def has(self, i: int) -> bool:
        """True if the operand is given."""
        self.seen.add(i)
        return i < len(self.inputs) and bool(self.inputs[i])

    def operand(self, i: int) -> Operand:
        """Return the number of a tensor, or a constant."""
        if not self.has(i):
            raise self.error(f"has no operand {i}", DAMAGED)
        return self.builder.value(self, self.inputs[i])

    def operands(self) -> list[Operand]:
        return [self.operand(i) for i in range(len(self.inputs)) if self.has(i)]

    def meta(self, i: int) -> torch.Tensor:
        """Return shape and dtype of an operand."""
        value = self.operand(i)
        return value if isinstance(value, torch.Tensor) else self.builder.meta[value]

    def axis(self, name: str = "axis", rank: int | None = None) -> int:
        """Return an attribute that is an axis of the first operand, counted from 0."""
        rank, axis = self.meta(0).dim() if rank is None else rank, self.attribute(name)
        if axis is None or not -rank <= axis < max(rank, 1):
            raise ModelError(f"{self} has {name} = {axis}, and its operand has {rank} dimensions.", hint=DAMAGED)
        return int(axis) % max(rank, 1)

    def constant(self, i: int) -> torch.Tensor | None:
        """Return a constant operand; None if it is not given."""
        if not self.has(i):
            return None
        value = self.operand(i)
        if not isinstance(value, torch.Tensor):  # the floats of stored integers are computed
            maker = next((step for _, step in reversed(self.builder.steps) if value in step.results), None)
            if maker is not None and not maker.reads:
                return maker.computed(maker.operands_from({}))[maker.results.index(value)]
            raise self.error(
                f"computes its operand {i} `{self.inputs[i]}` from the inputs, and it has to be a constant",
                "a model whose shapes do not depend on data",
            )
        return value

    def required(self, i: int) -> torch.Tensor:
        """Return a constant operand that has to be given, see `constant`."""
        value = self.constant(i)
        if value is None:
            raise self.error(f"has no operand {i}", DAMAGED)
        return value

    def integers(self, i: int, attribute: str = "") -> list[int] | None:
        """Return the numbers of an operand, or in older files of an attribute; None without either."""
        value = self.constant(i)
        if value is not None:
            return [int(n) for n in value.reshape(-1).tolist()]
        given = self.attribute(attribute) if attribute else None
        return None if given is None else [int(n) for n in _listed(given)]

    def emit(self, function: Function, operands: Sequence[Operand] | None = None) -> None:
        """Append the node as a function of PyTorch; it is computed now if all its operands are constants."""
        self.builder.emit(self, function, self.operands() if operands is None else operands)

    def define(self, value: Operand, result: int = 0) -> None:
        """Set a result to a constant or to the number of a tensor."""
        if result < len(self.outputs):
            self.builder.values[self.outputs[result]] = value


class OnnxBuilder(NetworkBuilder):
    """Builds the steps of a file; `LOWERINGS` has the lowering of each node.

    Attributes:
        path: of the file, in whose folder its external data is.
        values: by name, a constant or the number of a tensor.
        quantized: results of QuantizeLinear, by name.
        readers: nodes of the graph by the names that they read.
        missing: results that a node names and its lowering does not compute.
        equalities: nodes that compare for equality, by their result.
        declared: shape, with None for an open size, and element type of values, as the file states them.
        has_open_sizes: True if the user gives sizes that the file leaves open: those that it states of its values may
            be of other inputs.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.values: dict[str, Operand] = {}
        self.quantized: dict[str, Integers] = {}
        self.readers: dict[str, list[OnnxNode]] = {}
        self.missing: dict[str, OnnxNode] = {}
        self.equalities: dict[str, OnnxNode] = {}
        self.declared: dict[str, tuple[list[int | None] | None, int]] = {}
        self.has_open_sizes = False

    def constant(self, given: object, name: str) -> torch.Tensor:
        """Return a constant of the file, wherever it stands."""
        return constant_of(given, name, self.path, self.budget)

    def note_source(self, name: str, kind: str, position: int) -> None:
        """Note the number of a value as a tensor of the file; see `FileValue`."""
        operator, sums = f"{kind}, node {position}", kind not in _SINGLE
        if (integers := self.quantized.get(name)) is not None:
            source = FileValue(name, (name, integers.qparams.is_bytes), (), operator, sums=sums)
            source = replace(source, rounds=integers.qparams.rounding)
            self.sources.setdefault(integers.number, []).append(source)
        elif isinstance(number := self.values.get(name), int):
            self.sources.setdefault(number, []).append(FileValue(name, (name, False), (), operator, sums=sums))

    def value(self, node: OnnxNode | None, name: str) -> Operand:
        if name in self.values:
            return self.values[name]
        if name in self.quantized:  # unsigned bytes, which are kept as int8
            integers = self.quantized[name]
            (self.values[name],) = self.add(name, integers.qparams.bytes_of, [integers.number], ())
            return self.values[name]
        if (maker := self.missing.get(name)) is not None:
            raise maker.error(f"has the result `{name}`, which is not computed", "a model that does not read it")
        what = "The file" if node is None else str(node)
        raise ModelError(f"{what} reads `{name}`, which no node before it makes.", hint=DAMAGED)

    def note_readers(self, nodes: Sequence[Any], outputs: Sequence[str], opset: int) -> None:
        """Note the nodes of a graph by the names that they read; an output is a reader, too."""
        for node in nodes:
            reader = OnnxNode(self, node.op_type, node.name, tuple(node.input), (), {}, opset)
            for name in set(node.input):
                self.readers.setdefault(name, []).append(reader)
        for name in outputs:
            self.readers.setdefault(name, []).append(OnnxNode(self, "output", name, (name,), (), {}, opset))

    @contextmanager
    def scope(self, values: Mapping[str, Operand]) -> Iterator[None]:
        """Hide the names of the file behind others, for the nodes of a function."""
        outside = self.values, self.quantized, self.missing, self.declared, self.readers
        self.values, self.quantized, self.missing, self.declared, self.readers = dict(values), {}, {}, {}, {}
        try:
            yield
        finally:
            self.values, self.quantized, self.missing, self.declared, self.readers = outside

    def emit(self, node: OnnxNode, function: Function, operands: Sequence[Operand]) -> None:
        """Append a node, see `OnnxNode.emit`; results that the node does not name are dropped."""
        named = node.outputs
        constants = [o for o in operands if isinstance(o, torch.Tensor)]
        if len(constants) == len(operands):
            self.values.update(zip(named, self.folded(node.name, function, constants), strict=False))
            return

        def first(*given: torch.Tensor) -> Any:
            results = function(*given)
            return tuple(results[: len(named)]) if isinstance(results, (tuple, list)) else results

        whole = function if isinstance(function, torch.nn.Module) else first
        self.values.update(zip(named, self.add(node.name, whole, operands, ()), strict=False))

    def by_reference(self, node: OnnxNode) -> None:
        """Compute a node of constants with the reference implementation of the onnx package."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        given = onnx.NodeProto(op_type=node.kind, input=node.inputs, output=node.outputs)
        given.attribute.extend(node.given.values())
        names = [name for name in node.inputs if name]
        infos = [onnx.ValueInfoProto(name=name) for name in names]
        graph = onnx.helper.make_graph([given], "node", infos, [onnx.ValueInfoProto(name=n) for n in node.outputs])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", node.opset)])
        operands = {name: node.required(i).numpy() for i, name in enumerate(node.inputs) if name}
        node.ignores(*node.given)
        for name, made in zip(node.outputs, ReferenceEvaluator(model).run(None, operands), strict=True):
            data = np.asarray(made)
            self.values[name] = torch.from_numpy(np.array(data, np.float32 if data.dtype.kind == "f" else data.dtype))

    def know(self, condition: str) -> None:
        """Note the value of an input, if a condition that is always true says that it equals a constant."""
        if (node := self.equalities.get(condition)) is None:
            return
        for number, other in (node.operands(), node.operands()[::-1]):
            if isinstance(number, int) and number in self.inputs and isinstance(other, torch.Tensor):
                like = self.meta[number]
                self.known[number] = other.to(like.dtype).expand(like.shape).clone()

    def lower(self, node: OnnxNode) -> None:
        """Append a node by its lowering, and compare its results with what the file states of them."""
        if node.kind not in LOWERINGS:
            raise node.error(
                "is of an operator that is not read from ONNX files",
                "a model without it; or the model in PyTorch, with a function for that part",
            )
        node.check_given()
        LOWERINGS[node.kind](node)
        node.check_seen()
        for name in filter(None, node.outputs):
            if name not in self.values and name not in self.quantized:
                self.missing[name] = node
            elif name in self.declared:
                self._check_declared(node, name)

    def _check_declared(self, node: OnnxNode, name: str) -> None:
        sizes, element = self.declared[name]
        value = self.values[name] if name in self.values else self.quantized[name].number
        made = value if isinstance(value, torch.Tensor) else self.meta[value]
        shape = tuple(made.shape)
        fits = sizes is None or (
            len(sizes) == len(shape)
            and (self.has_open_sizes or all(n in (None, m) for n, m in zip(sizes, shape, strict=True)))
        )
        if not fits:
            raise ModelError(
                f"{node} makes `{name}` of shape {list(shape)}, and the file states {sizes}.",
                hint="onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True) on the model without "
                "its value_info",
            )
        known = DTYPES.get(element)
        if known is not None and known is not made.dtype and name in self.values:
            raise ModelError(
                f"{node} makes `{name}` of {str(made.dtype).removeprefix('torch.')}, and the file states "
                f"{str(known).removeprefix('torch.')}.",
                hint=DAMAGED,
            )

    def declare(self, infos: Sequence[Any]) -> None:
        """Note what the file states of its values."""
        for info in infos:
            if info.type.HasField("tensor_type"):
                stated = info.type.tensor_type
                # Paddle writes open sizes as -1.
                sizes = [n if d.HasField("dim_value") and (n := d.dim_value) >= 0 else None for d in stated.shape.dim]
                self.declared[info.name] = (sizes if stated.HasField("shape") else None, stated.elem_type)


Lowering = Callable[[OnnxNode], None]
LOWERINGS: dict[str, Lowering] = {}
"""Lowerings by the name of the operator."""


def lowering(*kinds: str) -> Callable[[Lowering], Lowering]:
    """Register the lowering of operators."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(kinds, function))
        return function

    return register
