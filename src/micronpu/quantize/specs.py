"""What an annotation says of a tensor, as values: PT2E's terms, which `micronpu.quantize.pt2e` hands to torchao.

The default way to a quantized program needs no more of it, and torchao takes as long to import as a small network to
compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

KEY = "quantization_annotation"
"""Of a node's meta, as torchao has it."""

Place = Node | tuple[Node, Node]
"""The result of a node, or what a node (second) reads of another (first)."""


@dataclass(frozen=True)
class QuantizationSpec:
    """A grid that is learnt.

    Attributes:
        observer: name of one of `micronpu.quantize.observers.observers`.
        eps: the smallest scale.
        ch_axis: axis of the channels, of weights with a scale each.
        of_weights: the observer's way with weights.
        is_fake: fake quantization, for training, round the observer.
        options: further arguments of the observer.
        maker: what makes the user's own observer in its place, as torchao's `QuantizationSpec` has it; None for ours.
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
    """A grid that is dictated."""

    dtype: torch.dtype
    scale: float
    zero_point: int
    quant_min: int
    quant_max: int
    qscheme: torch.qscheme
    is_dynamic: bool = False


@dataclass(frozen=True)
class SharedQuantizationSpec:
    """The grid of another tensor."""

    edge_or_node: Place


Spec = QuantizationSpec | FixedQParamsQuantizationSpec | SharedQuantizationSpec


@dataclass
class QuantizationAnnotation:
    """How what a node reads and gives is quantized; None leaves the result to its readers."""

    input_qspec_map: dict[Node, Spec] = field(default_factory=dict)
    output_qspec: Spec | None = None


def noted(nodes: Any) -> Mapping[Node, QuantizationAnnotation]:
    """The annotations of nodes, in their order."""
    return {node: node.meta[KEY] for node in nodes if isinstance(node.meta.get(KEY), QuantizationAnnotation)}
