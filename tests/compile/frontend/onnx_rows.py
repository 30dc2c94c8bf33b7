"""ONNX nodes as rows of data: operator, operands (arrays are constants, shapes are inputs), attributes, opset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """One node, whose inputs are those operands that are shapes."""

    kind: str
    operands: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1

    def __str__(self) -> str:
        shapes = "-".join("none" if o is None else "x".join(map(str, getattr(o, "shape", o))) for o in self.operands)
        return f"{self.kind}-{shapes}-{'-'.join(f'{k}_{v}' for k, v in self.attributes.items())}-{self.opset}"

    def model(self) -> bytes:
        """The file."""
        names, inputs, constants = [], [], []
        for i, operand in enumerate(self.operands):
            names.append("" if operand is None else f"x{i}")
            if isinstance(operand, np.ndarray):
                constants.append(numpy_helper.from_array(operand, f"x{i}"))
            elif operand is not None:
                inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, list(operand)))
        results = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.kind, names, results, name="node", **self.attributes)
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph([node], "row", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        return bytes(model.SerializeToString())


def f(*shape: int, seed: int = 0) -> Array:
    """A float constant."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def i(*values: int) -> Array:
    """An int64 constant."""
    return np.array(values, np.int64)


_X = (1, 6, 7, 9)
_UNARY = (
    "Abs", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu",
    "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
)  # fmt: skip
_REDUCED = ("ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceProd")
ROWS = [
    *(Row(kind, [(2, 5)]) for kind in _UNARY),
    *(Row(kind, [(2, 5), (5,)]) for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum")),
    Row("Pow", [(2, 5), np.array(2.0, np.float32)]),
    Row("Mish", [(2, 5)], opset=18),
    Row("Gelu", [(2, 5)], {"approximate": "tanh"}, 20),
    Row("Clip", [(2, 5), np.array(-0.5, np.float32), None]),
    Row("Clip", [(2, 5), (), np.array(0.5, np.float32)]),
    Row("Clip", [(2, 5), None, ()]),
    Row("Clip", [(2, 5), np.array(0, np.float32), np.array(6, np.float32)]),
    Row("PRelu", [_X, f(6, 1, 1)]),
    Row("Softmax", [(2, 3, 4)]),
    Row("Softmax", [(2, 3, 4)], {"axis": 1}, 11),
    Row("LogSoftmax", [(2, 3, 4)], {"axis": 1}),
    Row("Conv", [_X, f(4, 6, 3, 3), f(4)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    Row("Conv", [_X, f(4, 6, 3, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Row("Conv", [_X, f(4, 6, 3, 2)], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    Row("Conv", [_X, f(6, 1, 3, 3)], {"group": 6, "pads": [0, 1, 2, 1]}),
    Row("Conv", [(1, 3, 11), f(4, 3, 3), f(4)], {"dilations": [2]}),
    Row("ConvTranspose", [_X, f(6, 4, 3, 3), f(4)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Row("ConvTranspose", [_X, f(6, 4, 3, 3)], {"strides": [2, 2], "pads": [1, 1, 0, 0]}),
    Row("Gemm", [(2, 5), f(3, 5), f(3)], {"transB": 1}),
    Row("Gemm", [(2, 5), f(5, 3), f(1, 3)], {"alpha": 0.5, "beta": 2.0}),
    Row("MatMul", [(2, 3, 4), f(4, 5)]),
    Row("MatMul", [(2, 3, 4), (2, 4, 5)]),
    Row("BatchNormalization", [_X, f(6), f(6), f(6), np.abs(f(6)) + 0.1]),
    Row("InstanceNormalization", [_X, f(6), f(6)]),
    Row("LayerNormalization", [(2, 3, 4), f(4), f(4)]),
    Row("LayerNormalization", [(2, 3, 4), f(3, 4), f(3, 4)], {"axis": 1}),
    Row("MaxPool", [_X], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Row("MaxPool", [_X], {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Row("AveragePool", [_X], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Row("AveragePool", [_X], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    Row("AveragePool", [_X], {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1}),
    Row("GlobalAveragePool", [_X]),
    Row("GlobalMaxPool", [_X]),
    Row("GlobalLpPool", [_X]),
    *(Row(kind, [(2, 3, 4)], {"axes": [1, 2]}, 11) for kind in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")),
    *(Row(kind, [(2, 3, 4), i(-1)], {"keepdims": 0}, 18) for kind in _REDUCED),
    Row("ReduceSum", [(2, 3, 4)]),
    Row("ArgMax", [(2, 5)], {"axis": 1, "keepdims": 0}),
    Row("Reshape", [(2, 3, 4), i(0, -1)]),
    Row("Flatten", [(2, 3, 4)], {"axis": 2}),
    Row("Transpose", [(2, 3, 4)], {"perm": [2, 0, 1]}),
    Row("Transpose", [(2, 3, 4)]),
    Row("Squeeze", [(1, 3, 1), i(0)]),
    Row("Squeeze", [(1, 3, 1)], {"axes": [2]}, 11),
    Row("Unsqueeze", [(3, 4), i(0, 3)]),
    Row("Concat", [(2, 3), (2, 4), f(2, 1)], {"axis": 1}),
    Row("Split", [(2, 6), i(1, 2, 3)], {"axis": 1}, outputs=3),
    Row("Split", [(2, 6)], {"axis": 1}, outputs=2),
    Row("Slice", [(5, 6), i(1, -4), i(9, -1), i(0, 1), i(2, 1)]),
    Row("Slice", [(5, 6), i(-1), i(-9), i(1), i(-2)]),
    Row("Gather", [(5, 6), i(0, -1, 2)], {"axis": 1}),
    Row("Gather", [(5, 6), np.array(3, np.int64)]),
    Row("Gather", [(5, 6), np.array([[1, 2], [0, 4]], np.int64)]),
    Row("Expand", [(3, 1), i(2, 1, 4)]),
    Row("Tile", [(2, 3), i(1, 2)]),
    Row("Pad", [_X, i(0, 0, 1, 2, 0, 0, 3, 0), np.array(1.5, np.float32)]),
    Row("Pad", [_X, i(0, 0, 1, 2, 0, 0, 3, 0)], {"mode": "reflect"}),
    Row("Pad", [_X, i(0, 0, 1, 2, 0, 0, 3, 0)], {"mode": "edge"}),
    Row("DepthToSpace", [(1, 8, 2, 3)], {"blocksize": 2}),
    Row("DepthToSpace", [(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    Row("SpaceToDepth", [(1, 2, 4, 6)], {"blocksize": 2}),
    Row("Resize", [(1, 2, 4, 6), None, np.array([1, 1, 2, 2], np.float32)], {"mode": "nearest"}),
    Row("Resize", [(1, 2, 4, 6), None, np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
    *(
        Row("Resize", [(1, 2, 4, 6), None, np.array([1, 1, *by], np.float32)],
            {"mode": "nearest", "coordinate_transformation_mode": how, "nearest_mode": rounding})
        for how in ("asymmetric", "half_pixel", "align_corners")
        for rounding, by in (("floor", (2, 3)), ("ceil", (3, 2)),
                             ("round_prefer_floor", (3, 1.5 if how == "align_corners" else 1.7)),
                             ("round_prefer_ceil", (2, 0.5)))
    ),
    Row("Resize", [(1, 2, 4, 6), None, None, i(1, 2, 7, 8)],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    Row("Resize", [(1, 2, 4, 6), None, np.array([1, 1, 2, 2], np.float32)],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    Row("Einsum", [(2, 3, 4), (2, 4, 5)], {"equation": "bij,bjk->bik"}),
    Row("CumSum", [(2, 5), i(1)]),
    Row("Where", [np.array([True, False, True]), (2, 3), (3,)]),
    Row("LSTM", [(4, 1, 3), f(1, 20, 3), f(1, 20, 5), f(1, 40)], {"hidden_size": 5}, outputs=3),
    Row("LSTM", [(4, 1, 3), f(2, 20, 3), f(2, 20, 5), f(2, 40), None, (2, 1, 5), (2, 1, 5)],
        {"hidden_size": 5, "direction": "bidirectional"}),
    Row("LSTM", [(4, 1, 3), f(1, 20, 3), f(1, 20, 5)], {"hidden_size": 5, "direction": "reverse"}),
    Row("GRU", [(4, 1, 3), f(1, 15, 3), f(1, 15, 5), f(1, 30)],
        {"hidden_size": 5, "linear_before_reset": 1}, outputs=2),
    Row("GRU", [(4, 2, 3), f(1, 15, 3), f(1, 15, 5), f(1, 30)], {"hidden_size": 5}, outputs=2),
    Row("GRU", [(4, 1, 3), f(2, 15, 3), f(2, 15, 5), f(2, 30), None, (2, 1, 5)],
        {"hidden_size": 5, "direction": "bidirectional"}, outputs=2),
    Row("GRU", [(4, 1, 3), f(1, 15, 3), f(1, 15, 5)], {"hidden_size": 5, "direction": "reverse"}),
    Row("RNN", [(4, 1, 3), f(1, 5, 3), f(1, 5, 5), f(1, 10)], {"hidden_size": 5}),
]  # fmt: skip
