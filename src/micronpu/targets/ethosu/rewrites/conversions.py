"""Conversions between int8 and int16 that operators do themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Rescaling
from micronpu.ir.types import DType, TensorType
from micronpu.ops.convolution import TransposeConv2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.slicing import Concat
from micronpu.passes.base import Pass, Walk


class FuseConversions(Pass):
    """Fuses conversions between int8 and int16 into operators that rescale sums.

        x int8 -> requantize int16 -> conv2d -> y       x -> conv2d{dtype=int16} -> y
        x int16 -> conv2d -> requantize int8 -> y       x -> conv2d{dtype=int8} -> y
        x int16 -> reshape -> requantize int8 -> y      x -> requantize int8 -> reshape -> y
        x int8 -> requantize int16 -> reshape -> y      x -> reshape -> requantize int16 -> y

    Not exact, but nearer to the real result: a sum is rounded once instead of twice, which changes an int8 result by at
    most 1 LSB, and an operator that reads int8 has the values before their conversion, and a bias in the new scale.
    ``accepts`` returns True if an operator can be written in TOSA: LiteRT has no operators of two types.
    """

    name = "fuse_conversions"

    def __init__(self, accepts: Callable[[Node], bool]) -> None:
        self._accepts = accepts

    def run(self, graph: Graph) -> bool:
        changed = False
        for instead in (self._reading, self._writing):  # int8 is read faster than int16 is written for it
            goes_on = any(map(converts, graph.nodes))
            while goes_on and all(map(self._accepts, graph.nodes)):
                walk = Walk(graph)
                for node in walk:
                    before = walk.producer.get(node.inputs[0])
                    if before is not None and (made := instead(before, node, walk)) is not None:
                        walk.replace(node.output, made)
                goes_on = walk.changed
                changed |= goes_on
                graph.remove_dead()
        return changed

    def _reading(self, conversion: Node, node: Node, walk: Walk) -> Tensor | None:
        """Return the result of a node that reads the int8 operand of a conversion instead; None if it cannot."""
        if not converts(conversion) or conversion.output.type.dtype is DType.INT8:
            return None
        (x,), origin = conversion.inputs, node.origin.joined(conversion.origin)
        if isinstance(node.op, Rescaling) and (operands := _with_operand(node, x)) is not None:
            made = self.make(replace(node.op, dtype=node.output.type.dtype), operands, origin, node.output.type.qparams)
            return walk.insert(made) if self._accepts(made) else None
        if len(node.inputs) > 1 or not _moves(node) or not walk.read_once(conversion.output):
            return None
        moved = walk.insert(self.make(node.op, [x], node.origin))
        return walk.insert(self.make(conversion.op, [moved], conversion.origin, node.output.type.qparams))

    def _writing(self, node: Node, conversion: Node, walk: Walk) -> Tensor | None:
        """Return the result of a node that writes what all its readers convert to; None if it cannot.

        A transposed convolution does not write int16 for int8: it copies its results, which takes more than converting.
        It does for a concatenation, to which Vela writes the rows of converted copies in the wrong places.
        """
        y, type, op = node.outputs[0], conversion.outputs[0].type, node.op
        readers = walk.users.get(y, [])  # none of a new node
        alike = all(converts(reader) and reader.output.type == type for reader in readers)
        if readers[:1] != [conversion] or y in walk.outputs or not alike:
            return None
        narrows = type.dtype is DType.INT8
        joins = any(isinstance(n.op, Concat) for r in readers for n in walk.users.get(r.output, []))
        if isinstance(op, Rescaling) and (narrows or joins or not isinstance(op, TransposeConv2d)):
            op = replace(op, dtype=None if type.dtype is node.inputs[0].type.dtype else type.dtype)
            made = self.make(op, node.inputs, node.origin.joined(conversion.origin), type.qparams)
        elif narrows and _moves(node) and all(map(walk.read_once, node.inputs)):
            parts = [walk.insert(self.make(conversion.op, [x], conversion.origin, type.qparams)) for x in node.inputs]
            made = self.make(op, parts, node.origin)
        else:
            return None
        if not self._accepts(made):
            return None
        result = walk.insert(made)
        for other in readers[1:]:
            walk.replace(other.output, result)
        return result


def _with_operand(node: Node, x: Tensor) -> list[Tensor] | None:
    """The operands of an operator that reads an int8 value instead of its conversion; None if its bias does not fit."""
    wide, weight, bias = node.inputs
    ratio = x.type.scale / wide.type.scale
    if bias.data is None or bias.type.qparams is None or np.abs(bias.data).max() > DType.INT32.limits[1] * ratio:
        return None
    qparams = replace(bias.type.qparams, scale=tuple(scale * ratio for scale in bias.type.qparams.scale))
    sums = np.rint(bias.data / ratio).astype(np.int32)
    return [x, weight, Tensor(bias.name, TensorType(bias.shape, DType.INT32, qparams), sums)]


def converts(node: Node) -> bool:
    """True if a node converts between int8 and int16."""
    types = {node.inputs[0].type.dtype, node.outputs[0].type.dtype}
    return isinstance(node.op, Requantize) and types == {DType.INT8, DType.INT16}


def _moves(node: Node) -> bool:
    """True if an operator returns elements of its operands, selected by place or by order."""
    rule, y = node.op.quantization, node.outputs[0].type
    alike = all(x.data is None and x.type == y.with_shape(x.shape) for x in node.inputs)
    return alike and rule.selects and not rule.padding
