"""Annotations of tensors in PT2E's terms, which `micronpu.quantize.pt2e` converts for torchao.

The default flow needs no torchao, whose import takes as long as compiling a small network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

KEY = "quantization_annotation"
"""Key of a node's meta, the same as torchao's."""

Place = Node | tuple[Node, Node]
"""The result of a node, or an edge: the node that is read (first) and its reader (second)."""


@dataclass(frozen=True)
class QuantizationSpec:
    """Qparams that calibration finds.

    Attributes:
        observer: name of one of `micronpu.quantize.observers.observers`.
        eps: the smallest scale.
        ch_axis: axis of the channels, for weights with a scale each.
        of_weights: use the observer's variant for weights.
        is_fake: wrap the observer in fake quantization, for training.
        options: further arguments of the observer.
        maker: factory of a custom observer, from torchao's `QuantizationSpec`; None for this package's.
    """

    dtype: torch.dtype
    quant_min: int
    quant_max: int
    qscheme: torch.qscheme
    observer: str
    eps: float
    ch_axis: int | None = None
    of_weights: bool = False
    is_fake: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    is_dynamic: bool = False
    maker: Any = None


@dataclass(frozen=True)
class FixedQParamsQuantizationSpec:
    """Fixed qparams."""

    dtype: torch.dtype
    scale: float
    zero_point: int
    quant_min: int
    quant_max: int
    qscheme: torch.qscheme
    is_dynamic: bool = False


@dataclass(frozen=True)
class SharedQuantizationSpec:
    """Qparams of another tensor."""

    edge_or_node: Place


Spec = QuantizationSpec | FixedQParamsQuantizationSpec | SharedQuantizationSpec


@dataclass
class QuantizationAnnotation:
    """Quantization of a node's operands and result; None leaves the result to its readers."""

    input_qspec_map: dict[Node, Spec] = field(default_factory=dict)
    output_qspec: Spec | None = None


def noted(nodes: Any) -> Mapping[Node, QuantizationAnnotation]:
    """Return the annotations of nodes, in their order."""
    return {node: node.meta[KEY] for node in nodes if isinstance(node.meta.get(KEY), QuantizationAnnotation)}
