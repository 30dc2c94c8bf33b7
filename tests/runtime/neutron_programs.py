"""Small LiteRT models and `.pte` programs around them, made by hand: these tests need nothing of the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from micronpu.container.payload import PayloadLayout, TensorSlot, pack
from micronpu.targets.neutron.converter import ConverterOptions, ReferenceConverter

TYPES = {np.dtype(n): getattr(schema.TensorType, n.upper()) for n in ("int8", "uint8", "int16", "int32", "float32")}


@dataclass
class T:
    """A tensor: a constant if it has data."""

    shape: tuple[int, ...]
    scale: float | Sequence[float] = 0.0
    zero: int = 0
    data: np.ndarray | None = None
    dtype: str = "int8"


@dataclass
class O:  # noqa: E742
    """An operator: name, tensor numbers, options."""

    name: str
    inputs: list[int]
    outputs: list[int]
    options: object = None


def litert(tensors: list[T], operators: list[O], inputs: list[int], outputs: list[int]) -> bytes:
    """A LiteRT flatbuffer."""
    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    model.operatorCodes = []
    graph = schema.SubGraphT()
    graph.tensors = []
    for number, tensor in enumerate(tensors):
        made = schema.TensorT()
        made.name = f"t{number}"
        made.shape = list(tensor.shape)
        made.type = TYPES[np.dtype(tensor.dtype)]
        if np.any(tensor.scale):
            quantization = schema.QuantizationParametersT()
            scales = np.atleast_1d(np.float32(tensor.scale))
            quantization.scale = list(scales)
            quantization.zeroPoint = [tensor.zero] * len(scales)
            made.quantization = quantization
        if tensor.data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(tensor.data, tensor.dtype).tobytes(), np.uint8)
            model.buffers.append(buffer)
            made.buffer = len(model.buffers) - 1
        graph.tensors.append(made)
    graph.operators = []
    for operator in operators:
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, operator.name)
        code.version = 3 if operator.name == "CONV_2D" else 2
        model.operatorCodes.append(code)
        made = schema.OperatorT()
        made.opcodeIndex = len(model.operatorCodes) - 1
        made.inputs, made.outputs = operator.inputs, operator.outputs
        if operator.options is not None:
            made.builtinOptions = operator.options
            kind = type(operator.options).__name__.removesuffix("T")
            made.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        graph.operators.append(made)
    graph.inputs, graph.outputs = inputs, outputs
    model.subgraphs = [graph]
    return packed(model)


def packed(model: schema.ModelT) -> bytes:
    """The flatbuffer of a LiteRT model."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def add_model(shape: tuple[int, ...] = (1, 8)) -> bytes:
    """y = a + b, int8."""
    tensors = [T(shape, 0.05, 3), T(shape, 0.02, -7), T(shape, 0.06, 1)]
    return litert(tensors, [O("ADD", [0, 1], [2], schema.AddOptionsT())], [0, 1], [2])


def conv_model(h: int = 5, w: int = 4, c: int = 3, o: int = 6, seed: int = 0) -> bytes:
    """[1, h, w, c] -> conv 3x3, same padding, ReLU -> add of itself -> [1, h, w, o], int8, per-channel weights."""
    random = np.random.default_rng(seed)
    scales = random.uniform(0.003, 0.02, o)
    tensors = [
        T((1, h, w, c), 0.04, -3),
        T((o, 3, 3, c), scales, 0, random.integers(-127, 128, (o, 3, 3, c))),
        T((o,), scales * 0.04, 0, random.integers(-500, 500, o), "int32"),
        T((1, h, w, o), 0.05, -128),
        T((1, h, w, o), 0.1, -128),
    ]
    conv = schema.Conv2DOptionsT()
    conv.strideH = conv.strideW = conv.dilationHFactor = conv.dilationWFactor = 1
    conv.padding, conv.fusedActivationFunction = schema.Padding.SAME, schema.ActivationFunctionType.RELU
    add = O("ADD", [3, 3], [4], schema.AddOptionsT())
    return litert(tensors, [O("CONV_2D", [0, 1, 2], [3], conv), add], [0], [4])


def split_model() -> bytes:
    """a [1, 6], b [1, 4] -> a's halves [1, 3] twice, and b + b [1, 4]; three outputs."""
    tensors = [
        T((1, 6), 0.1, 0),
        T((1, 4), 0.05, 2),
        *(T((2,), 0.0, 0, np.array(value), "int32") for value in ([0, 0], [0, 3], [1, 3])),
        T((1, 3), 0.1, 0),
        T((1, 3), 0.1, 0),
        T((1, 4), 0.1, 2),
    ]
    halves = [O("SLICE", [0, begin, 4], [5 + i], schema.SliceOptionsT()) for i, begin in enumerate((2, 3))]
    return litert(tensors, [*halves, O("ADD", [1, 1], [7], schema.AddOptionsT())], [0, 1], [5, 6, 7])


def interpreter(model: bytes, fast: bool = False) -> Interpreter:
    """LiteRT with the model loaded."""
    kind = OpResolverType.AUTO if fast else OpResolverType.BUILTIN_REF
    loaded = Interpreter(model_content=model, experimental_op_resolver_type=kind)
    loaded.allocate_tensors()
    return loaded


def invoke(loaded: Interpreter, *inputs: np.ndarray) -> list[np.ndarray]:
    """What LiteRT itself computes: the oracle."""
    for detail, value in zip(loaded.get_input_details(), inputs, strict=True):
        loaded.set_tensor(detail["index"], np.asarray(value, order="C"))
    loaded.invoke()
    return [loaded.get_tensor(detail["index"]) for detail in loaded.get_output_details()]


def interpret(model: bytes, *inputs: np.ndarray, fast: bool = False) -> list[np.ndarray]:
    """One run of a model that is loaded for it."""
    return invoke(interpreter(model, fast), *inputs)


def payload(model: bytes, inputs: list[TensorSlot], outputs: list[TensorSlot], num_arguments: int) -> bytes:
    """The delegate blob that the reference converter gives."""
    artifacts = ReferenceConverter().convert(model, ConverterOptions("imxrt700"))
    return pack(PayloadLayout(tuple(inputs), tuple(outputs), num_arguments), artifacts)


def pte(blob: bytes, inputs: tuple, outputs: tuple, delegate: str = "NeutronBackend", inline: bool = False) -> bytes:
    """A program that is one delegate call.

    Args:
        inputs: example tensors.
        outputs: tensors whose shape, type and memory format the delegate's outputs have.
        inline: keep the payload in the flatbuffer; the program then has no segments and no extended header.
    """
    from tests.runtime.program_writer import Writer

    writer = Writer()
    writer.delegate(delegate, blob, inputs, outputs)
    return writer.written(inline=inline)
