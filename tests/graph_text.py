"""Read and write graphs as text, one node a line.

    graph(%x: int8[1,4,4,3, 0.05*(q+3)]) {
      %y: int8[1,4,4,8, 0.1*(q-2)] = conv2d{stride=(2, 2)}(%x, %w: int8[8,3,3,3, per-channel[8]@0], %b: int32[8, ...])
      return %y
    }

The text contains everything but the data of constants and their per-channel scales. `constants_of` returns those, by
the names in the text.
"""

from __future__ import annotations

import ast
import re
import types
import typing
import zlib
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from micronpu.base.arguments import is_class
from micronpu.base.errors import MicroNpuError, ModelError, one_of
from micronpu.ir.graph import Graph, Node, Origin, Tensor, names_of
from micronpu.ir.op import Op
from micronpu.ir.registry import OPERATORS
from micronpu.ir.types import DType, QParams, TensorType

Array = npt.NDArray[Any]


def constants_of(graph: Graph) -> dict[str, Tensor]:
    """The constants of a graph by their names in the text."""
    return {name: tensor for tensor, name in names_of(graph).items() if tensor.is_constant}


def parse_graph(text: str, constants: Mapping[str, Tensor | Array] | None = None) -> Graph:
    """Parse a printed graph, or one written by hand.

    Args:
        text: one statement a line; empty lines and text after ``#`` are ignored, except that the comment of a node
            becomes its origin.
        constants: data of the constants by name: an array, or a tensor to set per-channel scales too. Missing constants
            get generated elements, equal for equal names and types.

    Raises:
        ModelError: the text is not such a graph; the message names the line.
    """
    return _Parser(text, constants or {}).parse()


_NAME = re.compile(r"%([^\s,:()=%]+(?::\d+)?)")
_TYPE = re.compile(r"(\w+)\[(.*)\]")
_PER_TENSOR = re.compile(r"([-+.\deE]+|inf|nan)\*\(q([+-]\d+)\)")
_PER_CHANNEL = re.compile(r"per-channel\[(\d+)\]@(\d+)")
_OPERATION = re.compile(r"(\w+)(?:\{(.*)\})?\((.*)\)")
_SOURCE = re.compile(r"\S.*:\d+")


class _Parser:
    def __init__(self, text: str, constants: Mapping[str, Tensor | Array]) -> None:
        self.lines = text.splitlines()
        self.number = 0
        self.given = constants
        self.known: dict[str, Tensor] = {}
        self.graph = Graph()

    def fail(self, what: str, hint: str = "") -> NoReturn:
        raise ModelError(f"Line {self.number} of the graph: {what}", hint=hint)

    def parse(self) -> Graph:
        state = "head"
        for number, line in enumerate(self.lines, 1):
            self.number = number
            statement, _, comment = line.partition("#")
            statement = statement.strip()
            if not statement:
                continue
            if state == "head":
                self._head(statement)
                state = "body"
            elif state == "body" and (statement == "return" or statement.startswith("return ")):
                self.graph.outputs = [self._operand(p) for p in _split(statement.removeprefix("return"))]
                state = "tail"
            elif state == "body":
                self._node(statement, comment.strip())
            elif state == "tail" and statement == "}":
                state = "end"
            else:
                self.fail(f"`{statement}` stands where {'`}`' if state == 'tail' else 'nothing more'} is expected.")
        if state != "end":
            missing = {"head": "`graph(...) {`", "body": "`return`", "tail": "`}`"}[state]
            self.number = len(self.lines)
            self.fail(f"the text ends before {missing}.")
        unused = sorted(set(self.given) - {n for n, t in self.known.items() if t.is_constant})
        if unused:
            raise ModelError(f"The graph has no constant {', '.join(unused)}.", hint="constants of the graph alone")
        return self.graph

    def _head(self, statement: str) -> None:
        match = re.fullmatch(r"graph\((.*)\)\s*\{", statement)
        if match is None:
            self.fail(f"`{statement}` is not the head of a graph.", "graph(%x: int8[1,4, 0.1*(q+0)]) {")
        for part in _split(match[1]):
            name, type = self._declaration(part)
            self.graph.inputs.append(self._define(Tensor(name, type), name))

    def _node(self, statement: str, comment: str) -> None:
        left, equals, right = _partition(statement)
        match = _OPERATION.fullmatch(right.strip())
        if not equals or match is None:
            self.fail(f"`{statement}` is not an operator.", "%y: type = operator{attribute=value}(%x)")
        op = self._operator(match[1], match[2] or "")
        inputs: list[Tensor] = []
        for position, part in enumerate(_split(match[3])):
            inputs.append(self._operand(part, op, position, inputs))
        outputs = []
        for part in _split(left):
            name, type = self._declaration(part)
            outputs.append(Tensor(name, type))
        self._check(op, inputs, outputs)
        for tensor in outputs:
            self._define(tensor, tensor.name)
        origin = Origin()
        if comment:
            is_source = _SOURCE.fullmatch(comment) is not None
            origin = Origin(source=comment) if is_source else Origin(nodes=tuple(comment.split(", ")))
        self.graph.nodes.append(Node(op, inputs, outputs, origin))

    def _check(self, op: Op, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Check that the declared result types are those that the operator infers."""
        names = ", ".join(op.operand_names)
        if not inputs or (names != "tensors" and len(inputs) != len(op.operand_names)):
            self.fail(f"`{op}` takes {names}, not {len(inputs)} operands.")
        try:
            made = op.infer(*(t.type for t in inputs))
        except MicroNpuError as error:
            self.fail(f"`{op}` does not take these operands: {error.what}")
        except (ArithmeticError, IndexError, TypeError, ValueError):
            self.fail(f"`{op}` does not take operands of these shapes; they are {names}.")
        for tensor in outputs[:1]:
            declared = tensor.type
            if made.qparams is None:
                made = made.with_qparams(declared.qparams)
            if made != declared:
                self.fail(f"`{op}` makes {made}, but %{tensor.name} is declared {declared}.")

    # -- parts of a statement

    def _declaration(self, text: str) -> tuple[str, TensorType]:
        """``%name: type``."""
        name, colon, type = text.partition(": ")
        match = _NAME.fullmatch(name.strip())
        if match is None or not colon:
            self.fail(f"`{text.strip()}` does not declare a tensor.", "%name: int8[1,4, 0.1*(q+0)]")
        return match[1], self._type(type.strip())

    def _type(self, text: str) -> TensorType:
        match = _TYPE.fullmatch(text)
        parts = _split(match[2]) if match else []
        quantization = parts.pop() if parts and not parts[-1].isdigit() else ""
        if match is None or match[1] not in {d.value for d in DType} or not all(p.isdigit() for p in parts):
            self.fail(f"`{text}` is not a type.", "int8[1,4, 0.1*(q+0)] or int32[8]")
        qparams = self._qparams(quantization, text) if quantization else None
        return TensorType(tuple(map(int, parts)), DType(match[1]), qparams)

    def _qparams(self, text: str, where: str) -> QParams:
        try:
            if match := _PER_TENSOR.fullmatch(text):
                return QParams.per_tensor(float(match[1]), -int(match[2]))
            if match := _PER_CHANNEL.fullmatch(text):
                count = int(match[1])
                return QParams.per_channel([0.02 * (1 + i / count) for i in range(count)], int(match[2]))
        except (MicroNpuError, ValueError) as error:
            self.fail(f"`{text}` in `{where}` is no quantization: {error}")
        self.fail(f"`{text}` in `{where}` is no quantization.", "0.1*(q-3) or per-channel[8]@0")

    def _operator(self, name: str, attributes: str) -> Op:
        cls = OPERATORS.get(name)
        if cls is None:
            self.fail(f"there is no operator `{name}`.", one_of(sorted(OPERATORS), name, "`micronpu.ir.registry`"))
        hints = typing.get_type_hints(cls)
        known = {f.name: hints[f.name] for f in fields(cls)}  # type: ignore[arg-type]
        values: dict[str, Any] = {}
        for part in _split(attributes):
            key, equals, value = (p.strip() for p in part.partition("="))
            if not equals or key not in known:
                self.fail(f"`{name}` has no attribute `{key}`.", f"one of {', '.join(known) or 'none'}")
            try:
                values[key] = _value(value, known[key])
            except (KeyError, SyntaxError, TypeError, ValueError):
                self.fail(f"`{value}` is no value of the attribute `{key}` of `{name}`.")
        try:
            return cls(**values)
        except TypeError:
            missing = [f for f in known if f not in values]
            self.fail(f"`{name}` needs its attributes, and {', '.join(missing)} is not given.")

    def _operand(
        self, text: str, op: Op | None = None, position: int = 0, before: list[Tensor] | None = None
    ) -> Tensor:
        """Return a known tensor, or declare a constant."""
        text = text.strip()
        if ": " not in text:
            match = _NAME.fullmatch(text)
            if match is None or match[1] not in self.known:
                self.fail(f"{text or 'an operand'} is read before it is computed.")
            return self.known[match[1]]
        name, type = self._declaration(text)
        if name in self.known:
            return self.known[name]
        given = self.given.get(name)
        if isinstance(given, Tensor):
            if str(given.type) != str(type):
                self.fail(f"the constant %{name} is declared {type}, but {given.type} is given.")
            return self._define(Tensor(name, given.type, given.data), name)
        type = _with_bias_scales(type, op, position, before or [])
        data = _made_up(name, type) if given is None else np.asarray(given, order="C")
        if data.shape != type.shape or data.dtype != type.dtype.numpy:
            self.fail(f"the constant %{name} is declared {type}, but {data.dtype}{list(data.shape)} is given.")
        return self._define(Tensor(name, type, data), name)

    def _define(self, tensor: Tensor, name: str) -> Tensor:
        if name in self.known:
            self.fail(f"%{name} exists already.")
        self.known[name] = tensor
        return tensor


def _split(text: str) -> list[str]:
    """Split at the commas outside of all brackets."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [p.strip() for p in (*parts, text[start:]) if p.strip()]


def _partition(statement: str) -> tuple[str, str, str]:
    """Split at the first `` = ``; the ``=`` of an attribute has no spaces around it."""
    return statement.partition(" = ")


def _value(text: str, hint: Any) -> Any:
    """Parse an attribute's value according to its type."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        if text == "None":
            return None
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    if is_class(hint, Enum):
        return hint[text.upper()]
    if hint is float:
        return float(text)
    if hint is str:
        return text
    value = ast.literal_eval(text)
    if is_class(hint) and hint not in (int, bool) and not isinstance(value, hint):
        return hint(*value)  # such as Padding2d, which is printed as its numbers
    return value


def _with_bias_scales(type: TensorType, op: Op | None, position: int, before: list[Tensor]) -> TensorType:
    """Give a generated bias its required scales: input scale times weight scales."""
    if op is None or type.qparams is None or type.qparams.is_per_tensor or position >= len(op.operand_names):
        return type
    rule = op.quantization
    if not rule.bias or op.operand_names[position] != rule.bias or rule.weight not in op.operand_names:
        return type
    weight = op.operand_names.index(rule.weight)
    if weight >= len(before) or before[weight].type.qparams is None:
        return type
    scales = before[weight].type.qparams.scale  # type: ignore[union-attr]
    if len(scales) != len(type.qparams.scale):
        return type
    return type.with_qparams(QParams.per_channel([before[0].type.scale * s for s in scales], type.qparams.axis or 0))


def _made_up(name: str, type: TensorType) -> Array:
    """Generate elements from the name and the type alone."""
    random = np.random.default_rng(zlib.crc32(f"{name}: {type}".encode()))
    if type.dtype is DType.FLOAT32:
        return random.standard_normal(type.shape).astype(np.float32)
    if type.dtype is DType.BOOL:
        return random.integers(0, 2, type.shape).astype(np.bool_)
    low, high = type.dtype.limits
    largest = min(high, 1000)
    return random.integers(max(low, -largest), largest + 1, type.shape).astype(type.dtype.numpy)
