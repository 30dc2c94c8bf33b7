"""Reader of ONNX files, with the `onnx` package.

It has the lowerings of quantization and of recurrent layers, and `onnx_operators` those of other operators. Sizes and
constants are checked while they are read; beside the file, external data of its folder is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from micronpu.base.errors import ModelError, UnsupportedError
from micronpu.frontend.model_files.budget import Cost, reading
from micronpu.frontend.model_files.network import DAMAGED, Network, OnnxBuilder, OnnxNode, Rounding, Shapes
from micronpu.frontend.model_files.onnx_constants import constant_of
from micronpu.frontend.model_files.onnx_operators import LOWERINGS as LOWERINGS
from micronpu.frontend.model_files.onnx_operators import lowering

# ---------------------------------------------------------------- quantization


@lowering("QuantizeLinear")
def _quantize(node: OnnxNode) -> None:
    # Results remain floats that the integers can represent, so that the following DequantizeLinear is the identity.
    rounding = _rounding(node)
    node.emit(lambda x: x, [node.operand(0)], rounding)
    node.builder.rounded.add(node.outputs[0])


def _rounding(node: OnnxNode) -> Rounding:
    scale, zero = node.constant(1), node.constant(2)
    if scale is None or scale.numel() != 1:
        raise node.error("quantizes an activation with several scales", "per-tensor activations")
    dtype = torch.uint8 if zero is None else zero.dtype
    point = 0 if zero is None else int(zero.reshape(-1)[0])
    if dtype is torch.uint8:  # the same numbers, 128 less
        dtype, point = torch.int8, point - 128
    if dtype not in (torch.int8, torch.int16):
        raise node.error(f"quantizes to {dtype}", "int8, uint8 or int16")
    return Rounding(float(scale), point, dtype)


@lowering("DequantizeLinear")
def _dequantize(node: OnnxNode) -> None:
    if node.inputs[0] in node.builder.rounded:
        node.builder.values[node.outputs[0]] = node.operand(0)
        return
    integers, scale, zero = (node.constant(i) for i in range(3))
    assert integers is not None and scale is not None
    if zero is not None and bool(zero.any()) and integers.dtype is not torch.uint8:
        raise node.error("has weights with a zero point", "symmetric weights")
    if integers.dtype is torch.uint8:
        raise node.error("has weights of uint8", "int8 weights, symmetric")
    number = node.builder.dequantized(
        node.name, integers, scale.reshape(-1).to(torch.float64), node.attributes.get("axis", 1) % integers.dim()
    )
    node.builder.values[node.outputs[0]] = number


# ---------------------------------------------------------------- recurrent layers


@lowering("LSTM", "GRU", "RNN")
def _recurrent(node: OnnxNode) -> None:
    w, r, b = (node.constant(i) for i in (1, 2, 3))
    assert w is not None and r is not None
    hidden, directions = node.attributes["hidden_size"], w.shape[0]
    first_h, first_c = 5, 6
    plain = not ({"clip", "activations", "layout"} & {k for k, v in node.attributes.items() if v}) and not node.has(7)
    if node.attributes.get("activations") and not node.attributes.get("clip"):
        usual = {"LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "GRU": [b"Sigmoid", b"Tanh"], "RNN": [b"Tanh"]}[node.kind]
        plain = list(node.attributes["activations"]) == usual * directions and not node.has(7)
    direction = node.attributes.get("direction", b"forward").decode()
    if not plain:
        raise node.error(
            "has peepholes, a clip, or other activations than PyTorch's layer",
            "the recurrent layer as PyTorch computes it",
        )
    lengths = node.constant(4)
    if lengths is not None and bool((lengths != node.meta(0).shape[0]).any()):
        raise node.error("has sequences of unequal lengths", "whole sequences")
    initial = [node.operand(i) for i in (first_h, first_c) if node.has(i)]
    steps, batch = node.meta(0).shape[:2]
    if node.kind == "GRU" and not node.attributes.get("linear_before_reset", 0):
        if steps > MOST_STEPS:
            raise node.error(
                f"resets before the matrix product, in {steps} steps; at most {MOST_STEPS} are written out",
                "linear_before_reset=1, as PyTorch exports it",
            )
        layer: nn.Module = _ResetBefore(w, r, b)
    else:
        layer = _layer(node.kind, w, r, b, direction == "bidirectional")
    turned = [0] if direction == "reverse" else []

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given: Any = (states[0] if len(states) == 1 else tuple(states)) if states else None
            y, last = self.layer(torch.flip(x, turned) if turned else x, given)
            y = torch.flip(y, turned) if turned else y
            whole = y.reshape(steps, batch, directions, hidden).permute(0, 2, 1, 3)
            return (whole, *(last if isinstance(last, tuple) else (last,)))[: len(node.outputs)]

    node.emit(Recurrent().eval(), [node.operand(0), *initial])


MOST_STEPS = 64
"""Maximum number of steps of a recurrent layer that PyTorch does not have, which is unrolled."""


class _ResetBefore(nn.Module):
    """A GRU that resets its state before the matrix product, with the operands and results of `nn.GRU`.

    z, r = sigmoid(Wx + Rh + b); n = tanh(Wx + R(r * h) + b); h = (1 - z) * n + z * h
    """

    def __init__(self, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor | None) -> None:
        super().__init__()
        self.directions, gates, self.hidden = r.shape
        first, second = torch.zeros(2, self.directions, gates) if b is None else b.chunk(2, 1)
        values = {"w": w, "gates": r[:, : -self.hidden], "new": r[:, -self.hidden :], "bias": first + second}
        for name, value in values.items():
            for d in range(self.directions):
                self.register_buffer(f"{name}{d}", value[d])

    def forward(self, x: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        results, states = [], []
        for d in range(self.directions):
            w, gates, new, bias = (getattr(self, f"{name}{d}") for name in ("w", "gates", "new", "bias"))
            given = functional.linear(torch.flip(x, [0]) if d else x, w, bias)
            h = x.new_zeros(x.shape[1], self.hidden) if state is None else state[d]
            made = []
            for t in range(x.shape[0]):
                zr, n = given[t].split([2 * self.hidden, self.hidden], -1)
                z, r = torch.sigmoid(zr + functional.linear(h, gates)).chunk(2, -1)
                n = torch.tanh(n + functional.linear(r * h, new))
                h = n + z * (h - n)
                made.append(h)
            results.append(torch.stack(made[::-1] if d else made))
            states.append(h)
        return torch.cat(results, -1), torch.stack(states)


_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""PyTorch's gates by their index in ONNX: i, f, g, o of i, o, f, c; r, z, n of z, r, h."""


def _layer(kind: str, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor | None, both: bool) -> nn.RNNBase:
    make: Any = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}[kind]
    hidden = r.shape[2]
    layer: nn.RNNBase = make(w.shape[2], hidden, bias=b is not None, bidirectional=both)

    def ordered(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([value[g * hidden : (g + 1) * hidden] for g in _GATES[kind]])

    with torch.no_grad():
        for d in range(w.shape[0]):
            end = "_reverse" if d else ""
            getattr(layer, f"weight_ih_l0{end}").copy_(ordered(w[d]))
            getattr(layer, f"weight_hh_l0{end}").copy_(ordered(r[d]))
            if b is not None:
                for name, part in zip(("bias_ih", "bias_hh"), b[d].chunk(2), strict=True):
                    getattr(layer, f"{name}_l0{end}").copy_(ordered(part))
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    return layer


OLDEST_OPSET = 11


def read_onnx(data: bytes, path: Path, shapes: Shapes = ()) -> Network:
    """Return the file as a module with the file's inputs and outputs.

    Args:
        path: for messages.
        shapes: of the inputs, in order or by name, for those whose sizes the file leaves open.

    Raises:
        ModelError: `onnx` is not installed, or the file is damaged, too old, or has sizes that are not fixed.
        UnsupportedError: a node is unsupported; the message names it.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ModelError("Reading ONNX needs the package `onnx`.", hint='pip install "micronpu[onnx]"') from error

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
        if not model.graph.node:
            raise ValueError("no nodes")
    except Exception as error:  # the exception class depends on protobuf's version
        raise ModelError(f"{path} is no ONNX model, or is damaged.", hint=DAMAGED) from error
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"{path} is of opset {opset}; files of opset {OLDEST_OPSET} and newer are read.",
            hint="onnx.version_converter.convert_version(model, 17)",
        )
    builder = OnnxBuilder(path)
    for initializer in model.graph.initializer:
        builder.values[initializer.name] = constant_of(initializer, initializer.name, path, builder.budget)
    _inputs(builder, [i for i in model.graph.input if i.name not in builder.values], shapes, path)
    if not builder.inputs or not model.graph.output:
        raise ModelError(f"{path} has no inputs or no outputs.", hint="a model with both")
    _walk(builder, model.graph.node, opset)
    outputs = [builder.values.get(given.name) for given in model.graph.output]
    for given, number in zip(model.graph.output, outputs, strict=True):
        if not isinstance(number, int):
            raise ModelError(f"The output `{given.name}` of {path} does not depend on the inputs.", hint="leave it out")
    return builder.network([n for n in outputs if isinstance(n, int)])


def _walk(builder: OnnxBuilder, nodes: Any, opset: int) -> None:
    builder.budget.spend(Cost.OPERATORS, len(nodes), "The graph")
    for i, given in enumerate(nodes):
        name = given.name or (given.output[0] if given.output else f"node {i}")
        with reading(f"Node `{name}` ({given.op_type})", hint=DAMAGED):
            _append(builder, given, name, opset)


def _append(builder: OnnxBuilder, given: Any, name: str, opset: int) -> None:
    import onnx

    kind = given.op_type if given.domain in ("", "ai.onnx") else f"{given.domain}.{given.op_type}"
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in given.attribute}
    node = OnnxNode(builder, kind, name, tuple(given.input), tuple(given.output), attributes, opset)
    if kind == "Constant":
        builder.values[node.outputs[0]] = _constant(node)
    elif kind == "If":
        chosen = attributes["then_branch" if bool(node.constant(0)) else "else_branch"]
        for initializer in chosen.initializer:
            builder.values[initializer.name] = constant_of(initializer, initializer.name, builder.path, builder.budget)
        _walk(builder, chosen.node, opset)
        for made, result in zip(node.outputs, chosen.output, strict=True):
            builder.values[made] = builder.value(node, result.name)
    elif kind in LOWERINGS:
        LOWERINGS[kind](node)
    else:
        raise node.error(
            "is of an operator that is not read from ONNX files",
            "a model without it; or the model in PyTorch, with a function for that part",
        )


def _constant(node: OnnxNode) -> torch.Tensor:
    for key, value in node.attributes.items():
        if key == "value":
            return constant_of(value, node.name, node.builder.path, node.builder.budget)
        if key in ("value_float", "value_floats", "value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.float32 if "float" in key else torch.int64)
    raise node.error(f"holds {', '.join(node.attributes)}", "numbers")


def _inputs(builder: OnnxBuilder, given: Sequence[Any], shapes: Shapes, path: Path) -> None:
    names = [i.name for i in given]
    if not isinstance(shapes, Mapping):
        if len(shapes) not in (0, len(given)):
            raise ModelError(
                f"{path} has {len(given)} inputs ({', '.join(names)}), and {len(shapes)} shapes are given.",
                hint="a shape for each",
            )
        shapes = dict(zip(names, shapes, strict=False))
    if unknown := [name for name in shapes if name not in names]:
        raise ModelError(f"{path} has no input `{unknown[0]}`.", hint=f"one of {', '.join(names)}")
    named: dict[str, int] = {}  # sizes by their name in the file, which several inputs may share
    for one in given:
        dimensions = one.type.tensor_type.shape.dim
        batch = [1 if i == 0 else None for i in range(len(dimensions))]
        sizes = zip(dimensions, shapes.get(one.name) or batch, strict=False)
        named.update({d.dim_param: size for d, size in sizes if d.dim_param and size is not None})
    for one in given:
        builder.values[one.name] = builder.input(one.name, _sizes(one, shapes, named, path), _input_type(one, path))


def _sizes(given: Any, shapes: Mapping[str, Sequence[int]], named: Mapping[str, int], path: Path) -> list[int]:
    """Return the shape of an input; the first size that a file leaves open is the batch size, 1."""
    dimensions = given.type.tensor_type.shape.dim
    declared = [d.dim_value if d.dim_value > 0 else None for d in dimensions]
    usual = [named.get(d.dim_param, 1 if i == 0 else None) for i, d in enumerate(dimensions)]
    known = [n if n is not None else u for n, u in zip(declared, usual, strict=True)]
    wanted: list[int | None] = list(shapes.get(given.name, ())) or known
    if len(wanted) != len(declared) or any(n not in (w, None) for n, w in zip(declared, wanted, strict=True)):
        raise ModelError(
            f"The input `{given.name}` of {path} cannot have the shape {wanted}; it is {declared} there.",
            hint="sizes where the file has None",
        )
    for dimension, size, declares in zip(count(), wanted, dimensions):
        if size is None:
            name = f" ({declares.dim_param})" if declares.dim_param else ""
            example = "x".join(str(n or 64) for n in wanted)
            raise ModelError(
                f"Dimension {dimension} of the input `{given.name}` of {path} is open{name}, and a program has fixed "
                "sizes.",
                hint=f"example inputs of the right shape; on the command line {path.name}:{given.name}={example}",
            )
    return [n for n in wanted if n is not None]


def _input_type(given: Any, path: Path) -> torch.dtype:
    import onnx

    kinds, number = onnx.TensorProto, given.type.tensor_type.elem_type
    floats = (kinds.FLOAT, kinds.FLOAT16, kinds.DOUBLE)
    dtype = {kinds.INT32: torch.int32, kinds.INT64: torch.int64, kinds.BOOL: torch.bool}.get(number)
    if dtype is None and number not in floats:
        name = kinds.DataType.Name(number)
        raise UnsupportedError(f"The input `{given.name}` of {path} is {name}.", hint="float32 inputs")
    return dtype or torch.float32
