"""Nodes of ONNX files, as steps of a network.

The nodes become the steps of a `Network` in PyTorch's operators, in their order and with their names.  Constant
expressions, such as the arithmetic on shapes that exporters write, are computed while the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.model_files.network import Function, NetworkBuilder, Operand, Rounding

DAMAGED = "copy the file again; onnx.checker.check_model(path) lists what is wrong with it"


@dataclass(frozen=True)
class OnnxNode:
    """A node of the file.

    Attributes:
        attributes: by name, as Python and NumPy values.
        opset: version of the default operator set.
    """

    builder: OnnxBuilder
    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int

    def __str__(self) -> str:
        return f"Node `{self.name}` ({self.kind})"

    def error(self, what: str, hint: str) -> UnsupportedError:
        """An error about this node."""
        return UnsupportedError(f"{self} {what}.", hint=hint)

    def has(self, i: int) -> bool:
        """True if the operand is given."""
        return i < len(self.inputs) and bool(self.inputs[i])

    def operand(self, i: int) -> Operand:
        """Return the number of a tensor, or a constant."""
        if not self.has(i):
            raise self.error(f"has no operand {i}", DAMAGED)
        return self.builder.value(self, self.inputs[i])

    def operands(self) -> list[Operand]:
        """Return all operands."""
        return [self.operand(i) for i in range(len(self.inputs)) if self.has(i)]

    def meta(self, i: int) -> torch.Tensor:
        """Return shape and dtype of an operand."""
        value = self.operand(i)
        return value if isinstance(value, torch.Tensor) else self.builder.meta[value]

    def constant(self, i: int) -> torch.Tensor | None:
        """Return a constant operand; None if it is not given.

        Raises:
            UnsupportedError: it depends on the inputs.
        """
        if not self.has(i):
            return None
        value = self.operand(i)
        if not isinstance(value, torch.Tensor):
            raise self.error(
                f"computes its operand {i} `{self.inputs[i]}` from the inputs, and it has to be a constant",
                "a model whose shapes do not depend on data",
            )
        return value

    def integers(self, i: int, attribute: str = "") -> list[int] | None:
        """Return the numbers of an operand, or in older files of an attribute; None without either."""
        value = self.constant(i)
        if value is not None:
            return [int(n) for n in value.reshape(-1).tolist()]
        given = self.attributes.get(attribute)
        return None if given is None else [int(n) for n in np.reshape(given, -1)]

    def emit(
        self, function: Function, operands: Sequence[Operand] | None = None, rounding: Rounding | None = None
    ) -> None:
        """Append the node as a function of PyTorch; it is computed now if all its operands are constants."""
        self.builder.emit(self, function, self.operands() if operands is None else operands, rounding)


class OnnxBuilder(NetworkBuilder):
    """Builds the steps of a file; `onnx_operators` defines the lowering of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Operand] = {}
        self.rounded: set[str] = set()  # results of QuantizeLinear

    def value(self, node: OnnxNode, name: str) -> Operand:
        """Return a value by its name."""
        if name not in self.values:
            raise node.error(f"reads `{name}`, which no node before it makes", DAMAGED)
        return self.values[name]

    def emit(self, node: OnnxNode, function: Function, operands: Sequence[Operand], rounding: Rounding | None) -> None:
        """Append a node, see `OnnxNode.emit`; results that the node does not name are dropped."""
        if all(isinstance(o, torch.Tensor) for o in operands) and rounding is None:
            with torch.no_grad():
                made = function(*operands)
            self.values.update(zip(node.outputs, made if isinstance(made, (tuple, list)) else (made,), strict=False))
            return
        named = node.outputs

        def first(*given: torch.Tensor) -> Any:
            results = function(*given)
            return tuple(results[: len(named)]) if isinstance(results, (tuple, list)) else results

        whole = function if isinstance(function, torch.nn.Module) else first
        numbers = self.add(node.name, whole, operands, [rounding] * len(named))
        self.values.update(zip(named, numbers, strict=True))
