"""Convert a legalised graph to calls of `cortex_m::*` operators and of ExecuTorch's operators that only move integers.

Every tensor is contiguous in its graph shape, so images are [N, H, W, C] and no kernel depends on a dim order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError
from micronpu.chips.core import Core, InstructionSet
from micronpu.frontend.facts import HANDLES
from micronpu.frontend.program import calls_into
from micronpu.ir.arithmetic import float32_quotient, per_channel_multipliers, quantize_multiplier
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Op, Value
from micronpu.ir.types import DType
from micronpu.ir.window import Padding2d, Size2d
from micronpu.ops.activation import Prelu
from micronpu.ops.calls import BROADCAST, CLONE, PADDING, PERMUTATION, UNINITIALIZED
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add, Binary, Elementwise, Maximum, Minimum, Mul
from micronpu.ops.indices import ArgMax, GatherRows
from micronpu.ops.matmul import BatchMatmul
from micronpu.ops.movement import RESHAPE, TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Amax, Amin
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.slicing import Concat, Slice
from micronpu.ops.softmax import Softmax, softmax_multiplier
from micronpu.partition.kernels import CoreKernel
from micronpu.partition.outline import HostModule
from micronpu.upstream.executorch import cmsis_nn

Lowering = Callable[["Emitter", Node], fx.Node]
_ADD_LEFT_SHIFT = 20
"""Left shift in bits of `quantized_add`'s operands, for precision."""

LOWERINGS: dict[type[Op], Lowering] = {}

_MAX_KERNEL_RANK = 4  # of CMSIS-NN's kernels that move data


def _lowers(*operators: type[Op]) -> Callable[[Lowering], Lowering]:
    def register(lowering: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(operators, lowering))
        return lowering

    return register


def emit(graph: Graph, core: Core) -> fx.GraphModule:
    """Return a module that computes the graph: int8 inputs of the graph's shapes, and a tuple of such outputs.

    Raises:
        InternalError: an operator has no kernel; `micronpu.targets.cortexm.rules` should have refused it.
    """
    return Emitter(graph, core).module()


class Emitter:
    """Writes one graph; used by the lowerings of operators."""

    def __init__(self, graph: Graph, core: Core) -> None:
        self.graph = graph
        self.core = core
        self.producer = graph.producers()
        self._root = nn.Module()
        self._calls = fx.Graph()
        self._aten = calls_into(self._calls)
        self._values: dict[Tensor, fx.Node] = {}
        self._tables: dict[Tensor, tuple[Tensor, npt.NDArray[np.int8]]] = {}
        self._handles: tuple[int, ...] = ()
        self._constants = 0

    def module(self) -> fx.GraphModule:
        for index, tensor in enumerate(self.graph.inputs):
            given = self._calls.placeholder(f"input_{index}")
            self._values[tensor] = self._to_graph(given, tensor) if index in self.graph.channels_last_inputs else given
        for node in self.graph.nodes:
            self._handles = node.origin.debug_handles
            self._values[node.output] = self._lowered(node)
        self._handles = ()
        results = [
            self._to_program(self.value(t), t) if i in self.graph.channels_last_outputs else self.value(t)
            for i, t in enumerate(self.graph.outputs)
        ]
        self._calls.output(tuple(results))
        self._calls.eliminate_dead_code()
        return HostModule(self._root, self._calls)

    def _to_graph(self, given: fx.Node, tensor: Tensor) -> fx.Node:
        """Return the [N, H, W, C] form of an image that the program has as [N, C, H, W] in channels-last order."""
        shape = [tensor.shape[i] for i in TO_CHANNELS_FIRST]
        plain = self.aten(CLONE, given, memory_format=torch.contiguous_format)
        return self.transpose(plain, shape, TO_CHANNELS_LAST)

    def _to_program(self, value: fx.Node, tensor: Tensor) -> fx.Node:
        """The reverse of `_to_graph`."""
        plain = self.transpose(value, tensor.shape, TO_CHANNELS_FIRST)
        return self.aten(CLONE, plain, memory_format=torch.channels_last)

    def _lowered(self, node: Node) -> fx.Node:
        operand = table_operand(node)
        if operand is not None:
            return self._looked_up(node.output, operand, table_of(node))
        lowering = LOWERINGS.get(type(node.op))
        if lowering is None:
            raise InternalError(f"No kernel of a Cortex-M core computes {node.op}.")
        return lowering(self, node)

    def _looked_up(self, y: Tensor, operand: Tensor, table: npt.NDArray[np.int8]) -> fx.Node:
        """Combine consecutive lookups into one table."""
        source, before = self._tables.get(operand, (operand, None))
        if before is not None:
            table = table[before.astype(np.int64) + 128]
        self._tables[y] = (source, table)
        return self.kernel("quantized_activation", source.shape, self.value(source), self.constant(table))

    # -- used by lowerings

    def value(self, tensor: Tensor) -> fx.Node:
        if tensor.data is not None and tensor not in self._values:
            self._values[tensor] = self.constant(tensor.data)
        return self._values[tensor]

    def call(self, operator: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        made = self._calls.call_function(operator, arguments, keywords)
        HANDLES.say(made, self._handles)
        return made

    def aten(self, overload: str, *arguments: object, **keywords: object) -> fx.Node:
        made = self._aten(overload, *arguments, **keywords)
        HANDLES.say(made, self._handles)
        return made

    def kernel(self, name: str, shape: Sequence[int], *operands: object, dtype: torch.dtype = torch.int8) -> fx.Node:
        """Call a CMSIS-NN kernel with all arguments of its schema; ``shape`` is the shape of the result."""
        made = self.call(CoreKernel(name), *operands)
        made.meta["val"] = torch.empty(tuple(shape), dtype=dtype, device="meta")
        return made

    def constant(self, data: Array) -> fx.Node:
        name = f"constant_{self._constants}"
        self._constants += 1
        self._root.register_buffer(name, torch.from_numpy(np.array(data, order="C")))
        return self._calls.get_attr(name)

    def scratch(self, size: int) -> fx.Node:
        """Scratch memory of a kernel; `micronpu.targets.cortexm.device.plan_scratch` plans it."""
        return self.aten(UNINITIALIZED, [size], dtype=DType.UINT8)

    def reshape(self, x: fx.Node, shape: Sequence[int]) -> fx.Node:
        return self.aten(RESHAPE, x, list(shape))

    def transpose(self, x: fx.Node, shape: Sequence[int], permutation: Sequence[int]) -> fx.Node:
        """Permute the axes of x, which has the given shape, after merging adjacent ones."""
        wanted = [shape[i] for i in permutation]
        runs: list[list[int]] = []  # axes that stay adjacent, in the order of the result
        for axis in (i for i in permutation if shape[i] != 1):
            previous = [i for i in range(axis) if shape[i] != 1]
            if runs and previous and runs[-1][-1] == previous[-1]:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        order = sorted(range(len(runs)), key=lambda i: runs[i][0])
        if order == list(range(len(runs))):
            return self.reshape(x, wanted)
        short = self.reshape(x, [math.prod(shape[i] for i in runs[run]) for run in order])
        places = [order.index(i) for i in range(len(runs))]
        if len(runs) <= _MAX_KERNEL_RANK:
            moved = self.kernel("transpose", [math.prod(shape[i] for i in run) for run in runs], short, places)
            return self.reshape(moved, wanted)
        return self.reshape(self.aten(PERMUTATION, short, places), wanted)

    def broadcast(self, tensor: Tensor, shape: tuple[int, ...]) -> fx.Node:
        """Broadcast a tensor: CMSIS-NN's binary kernels need equal shapes."""
        if tensor.shape == shape:
            return self.value(tensor)
        x = self.reshape(self.value(tensor), (1,) * (len(shape) - tensor.type.rank) + tensor.shape)
        return self.aten(BROADCAST, x, list(shape))


# ---------------------------------------------------------------- products


def _multipliers(emit: Emitter, node: Node) -> tuple[fx.Node, fx.Node]:
    x, weight, _ = node.input_types
    assert weight.qparams is not None
    pairs = per_channel_multipliers(x.scale, weight.qparams.scale, node.output.type.scale)
    channels = node.output.type.channels
    multiplier, shift = (emit.constant(np.broadcast_to(v, (channels,)).astype(np.int32)) for v in pairs)
    return multiplier, shift


def _is_matrix_product(node: Node) -> bool:
    """True if a convolution is a matrix product of rows with one scale: CMSIS-NN's fully connected layer."""
    x, weight = node.inputs[:2]
    qparams = weight.type.qparams
    return x.shape[1:3] == weight.shape[1:3] == (1, 1) and qparams is not None and qparams.is_per_tensor


def _matrix_product(emit: Emitter, node: Node) -> fx.Node:
    x, weight, bias = node.inputs
    assert weight.data is not None and bias.data is not None and weight.type.qparams is not None
    op: Any = node.op
    matrix = weight.data.reshape(weight.shape[0], weight.shape[3])
    multiplier, shift = quantize_multiplier(x.type.scale * weight.type.qparams.scale[0] / node.output.type.scale)
    biases, sums = bias.data.astype(np.int32), None
    if emit.core.instructions is InstructionSet.MVE:  # the zero point's contribution is added at compile time
        sums = emit.constant((biases - x.type.zero_point * matrix.astype(np.int64).sum(1)).astype(np.int32)[None])
    low, high = op.activation.limits(node.output.type)
    y = emit.kernel(
        "quantized_linear",
        (x.shape[0], weight.shape[0]),
        emit.reshape(emit.value(x), (x.shape[0], x.shape[3])),
        emit.constant(matrix),
        None if sums is not None else emit.constant(biases),
        sums,
        -x.type.zero_point,
        0,
        node.output.type.zero_point,
        [multiplier],
        [shift],
        high,
        low,
    )
    return emit.reshape(y, node.output.shape)


@_lowers(Conv2d, DepthwiseConv2d, TransposeConv2d)
def _convolution(emit: Emitter, node: Node) -> fx.Node:
    op, (x, weight, bias) = node.op, node.inputs
    assert isinstance(op, (Conv2d, DepthwiseConv2d, TransposeConv2d)) and bias.data is not None
    more: list[object]
    scratch: tuple[int, ...]
    if isinstance(op, TransposeConv2d):
        kind, begin, more = "transpose_", op.crop, [[0, 0], [1, 1]]
        scratch = transposed_convolution_bytes(node, emit.core)
    elif isinstance(op, Conv2d) and _is_matrix_product(node):
        return _matrix_product(emit, node)
    else:
        more = [list(op.dilation), *([weight.shape[3] // x.shape[3]] if isinstance(op, DepthwiseConv2d) else [])]
        kind, begin = "depthwise_" if isinstance(op, DepthwiseConv2d) else "", op.padding
        scratch = (convolution_bytes(node, emit.core),)
    return emit.kernel(
        f"quantized_{kind}conv2d_nhwc",
        node.output.shape,
        emit.value(x),
        emit.value(weight),
        emit.constant(bias.data.astype(np.int32)),
        list(op.stride),
        [begin.top, begin.left],
        *more,
        -x.type.zero_point,
        node.output.type.zero_point,
        *_multipliers(emit, node),
        *op.activation.limits(node.output.type),
        *map(emit.scratch, scratch),
    )


@_lowers(BatchMatmul)
def _batch_matmul(emit: Emitter, node: Node) -> fx.Node:
    x, z = node.inputs
    y = node.output.type
    _, inner, columns = z.shape
    before = emit.producer.get(z)
    if before is not None and before.op == Transpose((0, 2, 1)):
        turned = emit.value(before.inputs[0])
    else:
        turned = emit.transpose(emit.value(z), z.shape, (0, 2, 1))
    return emit.kernel(
        "quantized_batch_matmul",
        node.output.shape,
        emit.value(x),
        -x.type.zero_point,
        turned,
        -z.type.zero_point,
        y.zero_point,
        *quantize_multiplier(x.type.scale * z.type.scale / y.scale),
        emit.scratch(_bytes("fully_connected", emit.core, filter_nhwc=[inner, -1, -1, columns])),
    )


# ---------------------------------------------------------------- elements


@_lowers(Add)
def _add(emit: Emitter, node: Node) -> fx.Node:
    op, (x, z), y = node.op, node.inputs, node.output.type
    assert isinstance(op, Add)
    largest = 2.0 * max(x.type.scale, z.type.scale)
    operands: list[object] = []
    for tensor in (x, z):
        operands += [emit.broadcast(tensor, y.shape), tensor.type.zero_point]
        operands += quantize_multiplier(tensor.type.scale / largest)
    back = quantize_multiplier(largest / ((1 << _ADD_LEFT_SHIFT) * y.scale))
    return emit.kernel("quantized_add", y.shape, *operands, y.zero_point, *back, *op.activation.limits(y))


@_lowers(Mul)
def _mul(emit: Emitter, node: Node) -> fx.Node:
    (x, z), y = node.inputs, node.output.type
    return emit.kernel(
        "quantized_mul",
        y.shape,
        emit.broadcast(x, y.shape),
        x.type.zero_point,
        emit.broadcast(z, y.shape),
        z.type.zero_point,
        y.zero_point,
        *quantize_multiplier(float32_quotient(y.scale, x.type.scale, z.type.scale)),
    )


@_lowers(Minimum, Maximum)
def _selection(emit: Emitter, node: Node) -> fx.Node:
    kernel = "minimum" if isinstance(node.op, Minimum) else "maximum"
    shape = node.output.shape
    flat = (math.prod(shape),)  # as vectors, so that the number of axes does not matter
    operands = (emit.reshape(emit.broadcast(t, shape), flat) for t in node.inputs)
    return emit.reshape(emit.kernel(kernel, flat, *operands), shape)


@_lowers(Softmax)
def _softmax(emit: Emitter, node: Node) -> fx.Node:
    (x,) = node.inputs
    multiplier, shift, lowest = softmax_multiplier(x.type.scale)
    shape = (x.type.size // x.type.channels, x.type.channels)
    y = emit.kernel(
        "softmax", shape, emit.reshape(emit.value(x), shape), 1, x.type.zero_point, -128, multiplier, shift, lowest
    )
    return emit.reshape(y, node.output.shape)


# ---------------------------------------------------------------- windows


def _pooled(emit: Emitter, node: Node) -> list[object]:
    """Arguments of both pooling kernels: operand, kernel, stride and padding."""
    op = node.op
    assert isinstance(op, MaxPool2d | AvgPool2d)
    return [emit.value(node.inputs[0]), list(op.kernel), list(op.stride), [op.padding.top, op.padding.left]]


@_lowers(MaxPool2d)
def _max_pool(emit: Emitter, node: Node) -> fx.Node:
    zero = node.inputs[0].type.zero_point
    operands = (*_pooled(emit, node), [1, 1], False, zero, zero, -128, 127)
    return emit.kernel("quantized_max_pool2d_nhwc", node.output.shape, *operands)


@_lowers(AvgPool2d)
def _average_pool(emit: Emitter, node: Node) -> fx.Node:
    zero, scale = node.inputs[0].type.zero_point, quantize_multiplier(node.inputs[0].type.scale)
    operands = (*_pooled(emit, node), False, zero, *scale, emit.scratch(average_pool_bytes(node, emit.core)))
    return emit.kernel("quantized_avg_pool2d_nhwc", node.output.shape, *operands)


@_lowers(Amax, Amin, ArgMax, Concat, GatherRows, ResizeNearest, Slice)
def _by_aten(emit: Emitter, node: Node) -> fx.Node:
    """ExecuTorch's own kernels compare and move integers."""
    op: Any = node.op
    made: fx.Node = op.to_aten(emit, node, *map(emit.value, node.inputs))
    return made


# ---------------------------------------------------------------- moving


@_lowers(Reshape)
def _reshape(emit: Emitter, node: Node) -> fx.Node:
    return emit.reshape(emit.value(node.inputs[0]), node.output.shape)


@_lowers(Transpose)
def _transpose(emit: Emitter, node: Node) -> fx.Node:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Transpose)
    return emit.transpose(emit.value(x), x.shape, op.permutation)


@_lowers(Pad)
def _pad(emit: Emitter, node: Node) -> fx.Node:
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Pad)
    value = op.integer(x.type)
    shape, before, after = list(x.shape), list(op.before), list(op.after)
    while len(shape) >= _MAX_KERNEL_RANK and shape[0] == 1 and before[0] == after[0] == 0:
        del shape[0], before[0], after[0]
    # ExecuTorch interprets some 4-D tensors [N, C, H, W] as channels-last; with fewer axes it is unambiguous.
    if len(shape) < _MAX_KERNEL_RANK:
        whole = [b + n + a for b, n, a in zip(before, shape, after, strict=True)]
        front = [0] * (_MAX_KERNEL_RANK - len(shape))
        padded = emit.kernel(
            "pad", whole, emit.reshape(emit.value(x), shape), [*front, *before], [*front, *after], value
        )
        return emit.reshape(padded, node.output.shape)
    sides = [side for b, a in zip(reversed(op.before), reversed(op.after), strict=True) for side in (b, a)]
    return emit.aten(PADDING, emit.value(x), sides, value)


TABLE_SIZE = 256


def is_table(node: Node) -> bool:
    """True if each element of the result depends on one element of one int8 operand only."""
    return table_operand(node) is not None


def table_operand(node: Node) -> Tensor | None:
    """Return the operand that indexes the table, or None if the operator is not a table.

    This is the operand of a unary function, or of an operator that combines it with a constant of one element or with
    itself.
    """
    if node.output.type.dtype is not DType.INT8:
        return None
    if not isinstance(node.op, (Elementwise, Binary, Prelu)):
        return None
    varying = list(dict.fromkeys(t for t in node.inputs if not (t.is_constant and t.type.size == 1)))
    if len(varying) != 1 or varying[0].is_constant or varying[0].type.dtype is not DType.INT8:
        return None
    # A constant of one element and more axes would add axes to the result.
    return varying[0] if varying[0].shape == node.output.shape else None


def table_of(node: Node) -> npt.NDArray[np.int8]:
    """Results of the operator's reference for the operands -128 to 127."""
    operand = table_operand(node)
    assert operand is not None
    every = np.arange(-128, 128).astype(np.int8)

    def value(tensor: Tensor) -> Value:
        if tensor is operand:
            return Value(every, tensor.type.with_shape((TABLE_SIZE,)))
        assert tensor.data is not None
        return Value(tensor.data.reshape(1), tensor.type.with_shape((1,)))

    result = node.op.reference(node.output.type.with_shape((TABLE_SIZE,)), *(value(t) for t in node.inputs))
    return np.ascontiguousarray(result, np.int8)


# ---------------------------------------------------------------- scratch memory

_FEW_CHANNELS = 16
"""Maximum input channels of a transposed convolution; above it CMSIS-NN convolves with the reversed kernel."""
_SUM_BYTES = 4


def _bytes(query: str, core: Core, *arguments: object, **geometry: object) -> int:
    """Query CMSIS-NN for the size of scratch memory, which depends on the core's instruction set."""
    library = cmsis_nn()
    backend = getattr(library.Backend, core.instructions.value)
    return int(getattr(library, f"{query}_buffer_size")(backend, library.DataType.A8W8, *arguments, **geometry))


def _image(node: Node, filter: list[int], padding: Padding2d, stride: Size2d, dilation: Size2d) -> dict[str, object]:
    """Arguments of CMSIS-NN's queries for all convolutions."""
    return {
        "input_nhwc": list(node.inputs[0].shape),
        "filter_nhwc": filter,
        "output_nhwc": list(node.output.shape),
        "padding_hw": [padding.top, padding.left],
        "stride_hw": list(stride),
        "dilation_hw": list(dilation),
        "input_offset": -node.inputs[0].type.zero_point,
        "output_offset": node.output.type.zero_point,
    }


def convolution_bytes(node: Node, core: Core) -> int:
    """Scratch bytes of a `conv2d` or `depthwise_conv2d`."""
    op = node.op
    assert isinstance(op, (Conv2d, DepthwiseConv2d))
    weight = node.inputs[1].shape
    if isinstance(op, Conv2d):
        return _bytes("convolve_wrapper", core, **_image(node, list(weight), op.padding, op.stride, op.dilation))
    image = _image(node, [weight[3], weight[1], weight[2], 1], op.padding, op.stride, op.dilation)
    return _bytes("depthwise_conv_wrapper", core, ch_mult=weight[3] // node.inputs[0].type.channels, **image)


def transposed_convolution_bytes(node: Node, core: Core) -> tuple[int, int]:
    """Bytes of the two scratch tensors of a `transpose_conv2d`."""
    op: Any = node.op
    image = _image(node, list(node.inputs[1].shape), op.crop, op.stride, (1, 1))
    first = _bytes("transpose_conv", core, **image)
    (_, rows, columns, channels), (high, wide) = node.inputs[1].shape, op.stride
    if channels <= _FEW_CHANNELS or max(op.stride) > 2:
        # At least as many rows of sums as the kernel has; the library of ExecuTorch 1.5 swaps the strides.
        sums = max(rows, high) * ((node.inputs[0].shape[2] - 1) * wide + max(columns, wide)) * node.output.shape[3]
        first = max(first, _SUM_BYTES * sums)
    del image["output_nhwc"]
    return first, _bytes("transpose_conv_reverse_conv", core, **image)


def average_pool_bytes(node: Node, core: Core) -> int:
    """Scratch bytes of an `avg_pool2d`."""
    width, channels = node.output.shape[2:]
    return _bytes("avgpool", core, dim_dst_width=width, ch_src=channels)
