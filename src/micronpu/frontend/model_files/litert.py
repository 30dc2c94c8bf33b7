"""Reader of LiteRT (TensorFlow Lite) files.

The operators of the main subgraph become the steps of a `Network` in PyTorch's operators.  In a quantized file, each
result is quantized and dequantized with the file's own parameters, so that the compiled program has the file's integer
arithmetic and needs no calibration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError
from micronpu.frontend.model_files.budget import Budget, Cost, reading
from micronpu.frontend.model_files.litert_sparse import dense
from micronpu.frontend.model_files.metadata import BUFFER
from micronpu.frontend.model_files.network import (
    MAX_ELEMENTS,
    FileValue,
    Function,
    NetworkBuilder,
    Operand,
    Rounding,
    State,
    tensor,
)

IDENTIFIER = b"TFL3"
LAST, FIRST = "channels last", "channels first"
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def _names(enumeration: object) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


_OPERATORS, _TYPES = _names(schema.BuiltinOperator), _names(schema.TensorType)
DTYPES: dict[str, Any] = {
    "FLOAT32": np.float32, "FLOAT16": np.float16, "INT8": np.int8, "UINT8": np.uint8, "INT16": np.int16,
    "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_,
}  # fmt: skip
_ROUNDED = {"INT8": torch.int8, "INT16": torch.int16}
_SLACK = {
    "INT8": {"SOFTMAX": 1.0, "LOG_SOFTMAX": 1.0, "HARD_SWISH": 1.0, "RESIZE_BILINEAR": 0.5, "LEAKY_RELU": 0.25},
    "INT16": {
        "SOFTMAX": 8.0, "TANH": 8.0, "LOGISTIC": 8.0, "RESIZE_BILINEAR": 655.0, "EXP": 655.0, "LOG": 655.0,
        "RSQRT": 655.0,
    },
}  # fmt: skip
"""LSB by which LiteRT's kernels of integers are off beside their rounding, by the type of the result: those of int16
interpolate in tables of 513 values, and resize with weights of 10 bits."""
_OVERFLOW = 1 << 15
"""Ratio of the scales of an operand and the result above which LiteRT's kernels overflow."""
_SUMS = {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL", "SUM", "MEAN"}


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file.

    Attributes:
        index: in the subgraph.
        graph: index of the subgraph.
        shape: of the file, channels last.
        type: name in LiteRT's `TensorType`.
        scale, zero_point: quantization parameters; one, or one for each index of ``axis``; empty without quantization.
        data: the value of a constant, None for an input or a computed tensor.
        open: True for each axis whose size the file leaves open; () if it leaves none.
    """

    index: int
    graph: int
    name: str
    shape: tuple[int, ...]
    type: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int
    data: Array | None
    open: tuple[bool, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        return self.graph, self.index

    @property
    def rounding(self) -> Rounding | None:
        """Return the quantization of an activation; uint8 becomes int8, 128 less."""
        is_bytes = self.type == "UINT8"
        if not self.scale or (self.type not in _ROUNDED and not is_bytes) or self.data is not None:
            return None
        if len(self.scale) > 1:
            raise ModelError(
                f"Tensor {self.index} `{self.name}` is an activation with {len(self.scale)} scales; activations have "
                "one.",
                hint="quantize the model with per-tensor activations",
            )
        if is_bytes:
            return Rounding(self.scale[0], self.zero_point[0] - 128, torch.int8)
        return Rounding(self.scale[0], self.zero_point[0], _ROUNDED[self.type])


@dataclass(frozen=True)
class FileOperator:
    """An operator of a file.

    Attributes:
        position: in the subgraph, from 0.
        graph: index of the subgraph.
        kind: name in LiteRT's `BuiltinOperator`.
        options: the table of its options, or None; bytes for a custom operator.
        inputs: None for an operand that is left out.
    """

    position: int
    graph: int
    kind: str
    options: Any
    inputs: tuple[FileTensor | None, ...]
    outputs: tuple[FileTensor, ...]

    def __str__(self) -> str:
        where = f" of subgraph {self.graph}" if self.graph else ""
        name = next((t.name for t in (*self.outputs, *self.inputs) if t is not None), "")
        return f"Operator {self.position}{where} ({self.kind}, `{name}`)"

    def error(self, what: str, hint: str) -> ModelError:
        return ModelError(f"{self} {what}.", hint=hint)

    def operand(self, i: int) -> FileTensor:
        given = self.inputs[i] if i < len(self.inputs) else None
        if given is None:
            raise self.error(f"has no operand {i}", "write the model again with the converter")
        return given

    def has(self, i: int) -> bool:
        """True if the operand is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def option(self, name: str, default: object = 0) -> Any:
        return getattr(self.options, name, default) if self.options is not None else default


@dataclass(frozen=True)
class LiteRtFile:
    """The main subgraph of a file, checked.

    Attributes:
        others: the subgraphs that its operators call, by index.
        budget: what reading the file has cost so far.
        metadata: content of the buffer that describes the model; b"" without.
    """

    tensors: tuple[FileTensor, ...]
    operators: tuple[FileOperator, ...]
    inputs: tuple[FileTensor, ...]
    outputs: tuple[FileTensor, ...]
    others: Mapping[int, LiteRtFile] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    metadata: bytes = b""

    @property
    def is_quantized(self) -> bool:
        """True if activations are integers; weights alone in int8 are a float model."""
        return any(t.scale and t.type in _ROUNDED and t.data is None for t in self.tensors)

    @property
    def has_integer_io(self) -> bool:
        """True if all inputs are quantized and no output is a float."""
        is_float = ("FLOAT32", "FLOAT16")
        return all(t.scale for t in self.inputs) and all(t.type not in is_float for t in (*self.inputs, *self.outputs))

    @property
    def bytes(self) -> tuple[bool, ...]:
        """True for each input and output, in order, that is uint8."""
        return tuple(t.type == "UINT8" for t in (*self.inputs, *self.outputs))


def parse(data: bytes, sizes: Mapping[int, tuple[int, ...]] | None = None) -> LiteRtFile:
    """Read the main subgraph, and those that it calls.

    Args:
        sizes: shapes of its tensors in place of the file's, by index; None to refuse a file that leaves some open.
    """
    if data[4:8] != IDENTIFIER:
        raise ModelError(
            "The file is no LiteRT model: bytes 4 to 7 are not TFL3.", hint="a file that a converter wrote"
        )
    # Generated readers raise any exception for offsets outside of the file.
    with reading("The LiteRT file", "is damaged: a table or a vector leads outside of it"):
        budget, root = Budget(), schema.Model.GetRootAs(data, 0)
        _count(root, budget)
        return _Parser(schema.ModelT.InitFromObj(root), data, budget, sizes).file()


def _count(model: Any, budget: Budget) -> None:
    """Count the entries of all lists before they are unpacked: lists may share tables, and numbers."""

    def spend(table: object, *lists: str, weight: int = 1) -> None:
        if table is not None:
            entries = sum(getattr(table, f"{name}Length")() for name in lists)
            budget.spend(Cost.ENTRIES, weight * entries, "The LiteRT file")

    spend(model, "OperatorCodes", "Buffers", "Metadata", "SignatureDefs", "Subgraphs", weight=10)
    for signature in map(model.SignatureDefs, range(model.SignatureDefsLength())):
        spend(signature, "Inputs", "Outputs", weight=10)
    graphs = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    for graph in graphs:
        spend(graph, "Operators", "Tensors", "Inputs", "Outputs", weight=10)
        budget.spend(Cost.OPERATORS, graph.OperatorsLength(), "The LiteRT file")
    for graph in graphs:
        for operator in map(graph.Operators, range(graph.OperatorsLength())):
            spend(operator, "Inputs", "Outputs")
        for given in map(graph.Tensors, range(graph.TensorsLength())):
            spend(given, "Shape", "ShapeSignature", "VariantTensors")
            spend(given.Quantization(), "Scale", "ZeroPoint")
            spend(given.Sparsity(), "DimMetadata", "TraversalOrder", "BlockMap")


class _Parser:
    def __init__(self, model: Any, data: bytes, budget: Budget, sizes: Mapping[int, tuple[int, ...]] | None) -> None:
        self._model, self._data, self._budget, self._sizes = model, data, budget, sizes

    def file(self) -> LiteRtFile:
        graphs, signatures = self._model.subgraphs or [], self._model.signatureDefs or []
        if len(signatures) > 1 or not graphs:
            names = ", ".join((given.signatureKey or b"").decode("utf-8", "replace") for given in signatures)
            raise ModelError(
                f"The LiteRT file has {len(graphs)} subgraphs and {len(signatures)} signatures ({names}); one of each "
                "is read.",
                hint="convert one signature of the model to a separate file",
            )
        main, *others = (self._graph(i, graph) for i, graph in enumerate(graphs))
        if not main.inputs or not main.outputs:
            raise ModelError("The LiteRT file has no inputs or no outputs.", hint="a model with both")
        for given in main.inputs:
            for i, is_open in enumerate(given.open):
                if is_open and i > 0 and self._sizes is None:  # an open batch size is 1
                    raise ModelError(
                        f"Dimension {i} of the input `{given.name}` is open, and a program has fixed sizes.",
                        hint="example inputs of these sizes, or on the command line FILE:INPUT=1x96x96x3",
                    )
        return replace(main, others=dict(enumerate(others, 1)), budget=self._budget, metadata=self._metadata())

    def _metadata(self) -> bytes:
        """Return the content of the buffer of `metadata.BUFFER`."""
        for entry in self._model.metadata or []:
            if entry.name == BUFFER.encode() and entry.buffer < len(self._model.buffers):
                content = self._model.buffers[entry.buffer].data
                return b"" if content is None else np.asarray(content, np.uint8).tobytes()
        return b""

    def _graph(self, number: int, graph: Any) -> LiteRtFile:
        tensors = tuple(self._tensor(i, number, table) for i, table in enumerate(graph.tensors or []))
        operators = tuple(self._operator(i, number, table, tensors) for i, table in enumerate(graph.operators or []))
        inputs, outputs = (self._listed(ids, tensors) for ids in (graph.inputs, graph.outputs))
        return LiteRtFile(tensors, operators, inputs, outputs)

    @staticmethod
    def _listed(ids: Any, tensors: Sequence[FileTensor]) -> tuple[FileTensor, ...]:
        wanted = [int(i) for i in ids] if ids is not None else []
        if not all(0 <= i < len(tensors) for i in wanted):
            raise ModelError(
                f"The LiteRT file is damaged: it names tensor {max(wanted)} of {len(tensors)}.", hint="copy it again"
            )
        return tuple(tensors[i] for i in wanted)

    def _tensor(self, index: int, graph: int, table: Any) -> FileTensor:
        name = (table.name or b"").decode("utf-8", "replace")
        shape = tuple(int(n) for n in table.shape) if table.shape is not None else ()
        shape = (self._sizes or {}).get(index, shape) if graph == 0 else shape
        type = _TYPES.get(table.type, str(table.type))
        place = f"Tensor {index} `{name}`"
        if any(n < 0 for n in shape) or int(np.prod(shape, dtype=object)) > MAX_ELEMENTS:
            raise ModelError(f"{place} has the shape {list(shape)}.", hint="a model of fixed sizes that fits a chip")
        q = table.quantization
        scale = tuple(map(float, q.scale)) if q is not None and q.scale is not None else ()
        zero = tuple(map(int, q.zeroPoint)) if q is not None and q.zeroPoint is not None else (0,) * len(scale)
        if len(zero) == 1:
            zero *= max(len(scale), 1)
        axis = int(q.quantizedDimension) if q is not None else 0
        is_listed = len(scale) <= 1 or (axis < len(shape) and len(scale) == shape[axis])
        if len(zero) < len(scale) or not is_listed or not all(np.isfinite(s) and s > 0 for s in scale):
            raise ModelError(f"{place} has quantization parameters that do not fit it.", hint="convert the model again")
        data = self._constant(table, shape, place)
        is_open = () if table.shapeSignature is None else tuple(int(n) < 0 for n in table.shapeSignature)
        return FileTensor(index, graph, name, shape, type, scale, zero[: len(scale)], axis, data, is_open)

    def _constant(self, table: Any, shape: tuple[int, ...], place: str) -> Array | None:
        buffer = self._model.buffers[table.buffer] if table.buffer < len(self._model.buffers) else None
        if buffer is None:
            raise ModelError(f"{place} names buffer {table.buffer}, which is not there.", hint="copy the file again")
        if buffer.offset > 1:
            content: Any = np.frombuffer(self._data[buffer.offset : buffer.offset + buffer.size], np.uint8)
        else:
            content = buffer.data
        if table.buffer == 0 or content is None or len(content) == 0:
            return None
        kind = DTYPES.get(_TYPES.get(table.type, ""))
        if kind is None:
            raise ModelError(
                f"{place} holds {_TYPES.get(table.type, table.type)}, which is not read.",
                hint=f"weights of {', '.join(DTYPES)}",
            )
        count, rest = divmod(len(content), np.dtype(kind).itemsize)
        is_sparse = table.sparsity is not None
        if rest or not (is_sparse or count == int(np.prod(shape, dtype=np.int64))):
            raise ModelError(
                f"{place} has the shape {list(shape)} and {len(content)} bytes, which do not fit.",
                hint="copy the file again",
            )
        self._budget.spend(Cost.CONSTANTS, int(np.prod(shape, dtype=object)), place)
        values = np.frombuffer(np.asarray(content, np.uint8).tobytes(), kind)
        return dense(table.sparsity, values, shape, place) if is_sparse else values.reshape(shape)

    def _operator(self, position: int, graph: int, table: Any, tensors: Sequence[FileTensor]) -> FileOperator:
        code = self._model.operatorCodes[table.opcodeIndex]
        # Codes above 127 are in the newer of two fields; old files have only the older one.
        kind = _OPERATORS.get(max(code.builtinCode, code.deprecatedBuiltinCode), "?")
        if kind == "CUSTOM":
            kind = f"CUSTOM {(code.customCode or b'').decode('utf-8', 'replace')}"
        given = [int(i) for i in table.inputs] if table.inputs is not None else []
        inputs = tuple(None if i == -1 else self._listed([i], tensors)[0] for i in given)
        options = table.builtinOptions if table.builtinOptions is not None else table.builtinOptions2
        if kind.startswith("CUSTOM"):
            options = np.asarray(() if table.customOptions is None else table.customOptions, np.uint8).tobytes()
        return FileOperator(position, graph, kind, options, inputs, self._listed(table.outputs, tensors))


@dataclass
class LitertValue:
    """Tensors of the network for a tensor of the file.

    Attributes:
        numbers: by the order of axes; a 4-D tensor may exist in both.
    """

    numbers: dict[str, int]
    rounding: Rounding | None


class LiteRtBuilder(NetworkBuilder):
    """Builds the steps of a file; `litert_operators` defines the lowering of each operator.

    LiteRT's images are [N, H, W, C], and PyTorch's operators take [N, C, H, W]; a tensor is permuted when it is first
    read in the other order.

    Args:
        graphs: the subgraphs after the main one, by index.

    Attributes:
        graphs: those that no operator has called yet.
        variables: the name of a variable, by the tensor of its handle.
        initial, kinds, by_name: initial value, tensor description and state of a variable, by its name.
    """

    def __init__(self, graphs: Mapping[int, LiteRtFile], budget: Budget) -> None:
        super().__init__()
        self.budget = budget
        self.graphs = dict(graphs)
        self.variables: dict[tuple[int, int], str] = {}
        self.initial: dict[str, Array] = {}
        self.kinds: dict[str, tuple[object, ...]] = {}
        self.by_name: dict[str, State] = {}
        self._values: dict[tuple[int, int], LitertValue] = {}
        self._constants: dict[tuple[int, int], Array] = {}

    # -- constants

    def constant(self, given: FileTensor) -> Array | None:
        """Return the value of a tensor that does not depend on the inputs, in the file's type, or None."""
        return self._constants.get(given.key, given.data)

    def real_constant(self, given: FileTensor) -> Array | None:
        """Return the value of a constant as float32, dequantized; integers without a scale remain integers."""
        data = self.constant(given)
        if data is None or (data.dtype.kind != "f" and not given.scale):
            return data
        if data.dtype.kind == "f":
            return data.astype(np.float32)
        shape = [1] * data.ndim
        if len(given.scale) > 1:
            shape[given.axis] = -1
        scale, zero = (np.reshape(v, shape) for v in (given.scale, given.zero_point))
        return np.asarray((data.astype(np.float64) - zero) * scale, np.float32)

    def fold(self, given: FileTensor, value: Array) -> None:
        """Record that a result is a constant."""
        self.check_shape(given.name, value.shape, constant=True)
        self._constants[given.key] = value

    def integers(self, operator: FileOperator, i: int) -> list[int]:
        """Return the numbers of an operand that must be a constant, such as a shape or axes."""
        value = self.constant(operator.operand(i))
        if 0 in operator.operand(i).shape:
            return []
        if value is None:
            raise operator.error(
                f"computes its operand {i} at run time, and shapes are fixed when a program is compiled",
                "a model of fixed shapes, converted with a static batch size",
            )
        return [int(n) for n in value.reshape(-1)]

    # -- operands

    def define(
        self,
        given: FileTensor,
        number: int,
        rounding: Rounding | None,
        order: str = LAST,
        operator: FileOperator | None = None,
    ) -> None:
        """Record the number of a tensor of the file, and the operator that computes it."""
        order = order if len(given.shape) == 4 else LAST
        self._values[given.key] = LitertValue({order: number}, rounding)
        if given.graph == 0:  # LiteRT runs one of several branches
            kind, where = (operator.kind, f"operator {operator.position}, {operator.kind}") if operator else ("", "")
            operands = [] if operator is None else [t for t in operator.inputs if t is not None]
            slack = _SLACK.get(given.type, {}).get(kind, 0.0)
            if rounding is not None and any(t.scale and t.scale[0] > rounding.scale * _OVERFLOW for t in operands):
                slack = math.inf
            hybrid = kind in _SUMS and rounding is None and any(t.type in ("INT8", "UINT8") for t in operands)
            axes, name = TO_FIRST if order == FIRST else (), given.name.partition(";")[0]
            value = FileValue(name, given.key, axes, where, slack, kind in _SUMS, hybrid)
            self.sources.setdefault(number, []).append(value)

    def written(self, state: State, given: FileTensor) -> int:
        """Return the last value of a state, rounded as a tensor of the file."""
        if given.rounding is None:
            return state.written
        return self.add(given.name, lambda x: x, [state.written], [given.rounding])[0]

    def is_first(self, given: FileTensor) -> bool:
        """Return True if an image exists with its channels first."""
        return given.key in self._values and FIRST in self._values[given.key].numbers

    def read(self, operator: FileOperator, i: int, order: str = LAST) -> Operand:
        """Return an operand in an order of axes: the number of a tensor, or a constant."""
        return self.value(operator, operator.operand(i), order)

    def value(self, operator: FileOperator, given: FileTensor, order: str = LAST) -> Operand:
        """Return a tensor that an operator reads, in an order of axes: its number, or a constant."""
        if self.constant(given) is not None:
            return self._constant_operand(operator, given, order)
        number = self.number(given, order)
        if number is None:
            raise operator.error(
                f"reads tensor {given.index}, which no operator before it makes", "copy the file again"
            )
        return number

    def called(self, operator: FileOperator, option: str) -> LiteRtFile:
        """Return the subgraph that an option of an operator names; each is called from one place."""
        number = int(operator.option(option, -1))
        if number not in self.graphs:
            raise operator.error(
                f"calls subgraph {number}, which is not there or called already", "a subgraph for each call"
            )
        return self.graphs.pop(number)

    def number(self, given: FileTensor, order: str = LAST) -> int | None:
        """Return the number of a tensor in an order of axes, permuted if necessary; None if no operator computes it."""
        value = self._values.get(given.key)
        if value is None:
            return None
        if len(given.shape) != 4:
            return value.numbers[LAST]
        if order not in value.numbers:
            (other,) = value.numbers.values()
            axes, suffix = (TO_FIRST, "nchw") if order == FIRST else (TO_LAST, "nhwc")
            (value.numbers[order],) = self.add(
                f"{given.name}_{suffix}", lambda x: x.permute(axes), [other], [value.rounding]
            )
        return value.numbers[order]

    def _constant_operand(self, operator: FileOperator, given: FileTensor, order: str) -> Operand:
        """Return a constant; a quantized one as its own integers, dequantized, which the compiler reads unchanged."""

        def arranged(data: Array | None) -> torch.Tensor:
            assert data is not None
            if order == FIRST and data.ndim and len(operator.outputs[0].shape) == 4:
                data = data.reshape((1,) * (4 - data.ndim) + data.shape).transpose(TO_FIRST)
            return tensor(data)

        if given.type not in _ROUNDED or len(given.scale) != 1:
            return arranged(self.real_constant(given))
        rounding = Rounding(given.scale[0], given.zero_point[0], _ROUNDED[given.type])
        return self.add(f"{given.name}_real", rounding.dequantize, [arranged(self.constant(given))])[0]

    def before(self, operator: FileOperator, i: int, order: str, *functions: Function) -> Operand:
        """Return an operand after functions that only move its values or add zeros; its quantization stays.

        Each is a separate step, because every operator of a quantized program is between a dequantize and a quantize.
        """
        x, name = self.read(operator, i, order), operator.outputs[0].name
        for k, function in enumerate(functions):
            (x,) = self.add(f"{name}_operand{i}_{k}", function, [x], [operator.operand(i).rounding])
        return x

    def move(self, operator: FileOperator, i: int, *functions: Function, order: str = LAST, result: int = 0) -> None:
        """Append the operator as a sequence of functions that only move values."""
        *first, last = functions
        self.compute(operator, last, [self.before(operator, i, order, *first)], order, result)

    def order_of(self, operator: FileOperator) -> str:
        """Return channels first if all operands are images and one exists in that order; otherwise channels last."""
        given = [t for t in operator.inputs if t is not None and self.constant(t) is None]
        is_image = all(len(t.shape) == 4 for t in (*given, *operator.outputs))
        return FIRST if is_image and any(map(self.is_first, given)) else LAST

    # -- results

    def compute(
        self,
        operator: FileOperator,
        function: Function,
        operands: Sequence[Operand],
        order: str = LAST,
        result: int = 0,
    ) -> None:
        """Append the operator as a function with one result, and its fused activation."""
        fused, made = activation_of(operator), operator.outputs[result]
        if made.type == "UINT8" and made.scale and operator.kind != "QUANTIZE":
            raise operator.error("computes with uint8", "the converter's int8 quantization")
        for given in filter(None, operator.inputs if operator.kind in _SUMS else ()):
            if given.type in _ROUNDED and given.data is not None and not given.scale:
                what = f"reads `{given.name}`, which is {given.type} without a scale"
                raise operator.error(what, "the converter's int8 quantization")
        whole = function if fused is None else lambda *given: fused(function(*given))
        (number,) = self.add(made.name, whole, operands, [made.rounding])
        own = tuple(made.shape[a] for a in TO_FIRST) if order == FIRST and len(made.shape) == 4 else made.shape
        if tuple(self.meta[number].shape) != own:
            raise operator.error(
                f"makes a tensor of shape {list(self.meta[number].shape)}, and the file has {list(own)}",
                "write the file again with the converter that made it",
            )
        self.define(made, number, made.rounding, order, operator)


_ACTIVATIONS: dict[str, Function | None] = {
    "NONE": None,
    "RELU": torch.relu,
    "RELU6": torch.nn.functional.relu6,
    "RELU_N1_TO_1": torch.nn.functional.hardtanh,
    "TANH": torch.tanh,
}


def activation_of(operator: FileOperator) -> Function | None:
    """Return the function that an operator applies to its result, or None."""
    code = operator.option("fusedActivationFunction", 0)
    name = _names(schema.ActivationFunctionType).get(code, str(code))
    if name not in _ACTIVATIONS:
        raise operator.error(f"has the fused activation {name}, which is not read", f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def walk(file: LiteRtFile) -> Iterator[FileOperator]:
    """Yield the operators; check that each result is computed once."""
    made = {given.index for given in file.inputs}
    for operator in file.operators:
        for given in operator.outputs:
            if given.index in made or given.data is not None:
                raise operator.error(f"makes tensor {given.index}, which has a value already", "copy the file again")
            made.add(given.index)
        yield operator
