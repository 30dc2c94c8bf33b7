"""Annotations of tensors in PT2E's terms, which `micronpu.quantize.pt2e` converts for torchao.

The default flow needs no torchao, whose import takes as long as compiling a small network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from micronpu.base.arguments import described
from micronpu.base.errors import OptionError

KEY = "quantization_annotation"
"""Key of a node's meta, the same as torchao's."""


@dataclass(frozen=True)
class QuantizationSpec:
    """Qparams that calibration finds."""

    dtype: torch.dtype
    quant_min: int
    quant_max: int
    qscheme: torch.qscheme
    observer: str  # name of one of `micronpu.quantize.observers.OBSERVERS`
    eps: float  # the smallest scale
    ch_axis: int | None = None  # axis of the channels, for weights with a scale each
    of_weights: bool = False  # use the observer's variant for weights
    is_fake: bool = False  # wrap the observer in fake quantization, for training
    options: tuple[tuple[str, Any], ...] = ()  # further arguments of the observer
    is_dynamic: bool = False
    maker: Any = None  # factory of a custom observer, from torchao's `QuantizationSpec`; None for this package's


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
    """Qparams of another tensor: that of a node or value, or of a pair of one that is read and its reader."""

    edge_or_node: Any


Spec = QuantizationSpec | FixedQParamsQuantizationSpec | SharedQuantizationSpec


@dataclass
class QuantizationAnnotation:
    """Quantization of a node's operands and result; None leaves the result to its readers."""

    input_qspec_map: dict[Any, Spec] = field(default_factory=dict)
    output_qspec: Spec | None = None


def noted(nodes: Any) -> Mapping[Any, QuantizationAnnotation]:
    """Return the annotations of nodes, in their order."""
    return {node: node.meta[KEY] for node in nodes if isinstance(node.meta.get(KEY), QuantizationAnnotation)}


_PARTS = ("dtype", "observer_or_fake_quant_ctr", "quant_min", "quant_max", "qscheme", "ch_axis")
_SCHEMES = {
    torch.int8: (torch.per_tensor_affine, torch.per_tensor_symmetric),
    torch.int16: (torch.per_tensor_symmetric,),
}
_OF_WEIGHTS = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


def with_spec(usual: QuantizationSpec, spec: Any) -> QuantizationSpec:
    """Return the annotation with the user's observer and scheme; ``usual`` without a spec."""
    if spec is None:
        return usual
    return replace(usual, maker=spec.observer_or_fake_quant_ctr, qscheme=spec.qscheme)


def check_specs(specs: Mapping[str, object], activations: str, per_channel: bool, weight_bits: int) -> None:
    """Refuse specs that no NPU supports."""
    dtype, limit = (torch.int16 if activations == "int16" else torch.int8), 2 ** (weight_bits - 1) - 1
    for name, spec in specs.items():
        if spec is not None and name == "weight_spec":
            how = f"per_channel={per_channel}, weight_bits={weight_bits}"
            _check(name, spec, torch.int8, (-limit, limit), (_OF_WEIGHTS[per_channel],), how)
        elif spec is not None:
            limits = torch.iinfo(dtype)
            _check(name, spec, dtype, (limits.min, limits.max), _SCHEMES[dtype], f'activations="{activations}"')


def _check(
    name: str, spec: Any, dtype: torch.dtype, limits: tuple[int, int], schemes: tuple[torch.qscheme, ...], how: str
) -> None:
    if isinstance(spec, type) or not all(hasattr(spec, part) for part in _PARTS):
        what = f"`{name}` is {described(spec)}."
        raise OptionError(what, hint="a QuantizationSpec of torchao.quantization.pt2e.quantizer, or None")
    if not callable(spec.observer_or_fake_quant_ctr):
        raise OptionError(f"`{name}` has no observer.", hint="observer_or_fake_quant_ctr=MinMaxObserver")
    low = limits[0] if spec.quant_min is None else spec.quant_min
    high = limits[1] if spec.quant_max is None else spec.quant_max
    fits = spec.dtype is dtype and (low, high) == limits and spec.qscheme in schemes
    if not fits or getattr(spec, "is_dynamic", False):
        raise OptionError(
            f"`{name}` is {spec.dtype} in [{low}, {high}], {spec.qscheme}, which an NPU with {how} does not support.",
            hint=f"{dtype} in [{limits[0]}, {limits[1]}], {' or '.join(map(str, schemes))}, not dynamic",
        )
