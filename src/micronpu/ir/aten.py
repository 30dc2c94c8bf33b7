"""The importer's view of a node of the exported program.

Operators know ATen only through this interface, so that they can be read, tested and listed without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.base.texts import plural
from micronpu.ir.graph import Tensor
from micronpu.ir.op import Op
from micronpu.ir.types import DType, QParams, TensorType


class AtenArguments(Protocol):
    """Arguments of one call of an ATen operator that are not tensors."""

    @property
    def overload(self) -> str:
        """Name with overload, such as ``conv2d.default``; for an edge operator, the name of its ATen operator."""

    def value(self, argument: str) -> Any:
        """A plain argument (number, list, bool, string), with the schema's default."""


class AtenNode(AtenArguments, Protocol):
    """One call of an ATen operator whose tensors are quantized.

    Operands are named by the operator's own names (``x``, ``weight``); other arguments by the ATen schema's.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result, in the order of the program."""

    @property
    def output(self) -> QParams:
        """Quantization parameters of the result, after a fused activation."""

    @property
    def output_dtype(self) -> DType:
        """Element type of the result, after a fused activation."""

    @property
    def activation(self) -> str:
        """Name of a clamp that follows directly, without requantization: "relu", "relu6", "relu_n1_to_1" or ""."""

    @property
    def keeps_integers(self) -> bool:
        """True for an operator of a quantized file, whose own runtime defines the integers of the result."""

    def tensor(self, operand: str) -> Tensor:
        """An activation, quantized per tensor."""

    def tensors(self, operand: str) -> list[Tensor]:
        """The elements of a list operand."""

    def has(self, operand: str) -> bool:
        """True if the operand is given and is not None."""

    def is_constant(self, operand: str) -> bool:
        """True if the operand's value is known at compile time."""

    def is_quantized(self, operand: str) -> bool:
        """True if the operand is an integer tensor with its own qparams; False for a float constant."""

    def integers(self, operand: str) -> Tensor:
        """An int32 operand, such as an index."""

    def weight(self, operand: str) -> tuple[Array, QParams]:
        """A quantized int8 constant, with parameters per tensor or per channel."""

    def float_constant(self, operand: str) -> Array:
        """A constant as float32, dequantized if necessary."""

    def emit(self, op: Op, *inputs: Tensor, qparams: QParams | None = None) -> Tensor:
        """Append an operator that implements this node."""

    def constant(self, data: npt.ArrayLike, type: TensorType) -> Tensor:
        """A constant operand."""


def one_each(given: int | Sequence[int], count: int) -> list[int]:
    """Return a number for each of several axes; a single number is for all of them."""
    sizes = [int(given)] if isinstance(given, int) else [int(v) for v in given]
    return sizes * count if len(sizes) == 1 else sizes


def sizes_of(node: AtenArguments, argument: str, count: int) -> tuple[int, ...]:
    """Return a size argument of an operator with ``count`` spatial axes; one number is for all of them."""
    sizes = one_each(node.value(argument), count)
    if len(sizes) != count:
        expected = f"{count} {'is' if count == 1 else 'are'} expected"
        raise UnsupportedError(f"`{argument}` of {node.overload} has {plural(len(sizes), 'number')} where {expected}.")
    return tuple(sizes)


def pair(node: AtenArguments, argument: str) -> tuple[int, int]:
    """Return `sizes_of` for height and width."""
    height, width = sizes_of(node, argument, 2)
    return height, width


def spatial_pair(node: AtenArguments, argument: str, spatial: int, height: int) -> tuple[int, int]:
    """Return `pair` of an operator with 1 or 2 spatial axes; with one, ``height`` fills the missing axis."""
    return pair(node, argument) if spatial == 2 else (height, sizes_of(node, argument, 1)[0])


def axis_of(node: AtenNode, argument: str, rank: int) -> int:
    """An axis argument as a number from 0 to rank - 1."""
    return int(node.value(argument)) % rank
