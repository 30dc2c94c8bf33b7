"""torchao's `QuantizationSpec`s of a user, and the checks that an NPU supports them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch

from micronpu.base.arguments import described
from micronpu.base.errors import OptionError
from micronpu.quantize.specs import QuantizationSpec

_PARTS = ("dtype", "observer_or_fake_quant_ctr", "quant_min", "quant_max", "qscheme", "ch_axis")
_SCHEMES = {
    torch.int8: (torch.per_tensor_affine, torch.per_tensor_symmetric),
    torch.int16: (torch.per_tensor_symmetric,),
}
_OF_WEIGHTS = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


class HasSpecs(Protocol):
    """A configuration with custom specs."""

    @property
    def activations(self) -> str: ...
    @property
    def per_channel(self) -> bool: ...
    @property
    def weight_bits(self) -> int: ...
    @property
    def input_spec(self) -> Any: ...
    @property
    def output_spec(self) -> Any: ...
    @property
    def weight_spec(self) -> Any: ...


def with_spec(usual: QuantizationSpec, spec: Any) -> QuantizationSpec:
    """Return the annotation with the user's observer and scheme; ``usual`` without a spec."""
    if spec is None:
        return usual
    return replace(usual, maker=spec.observer_or_fake_quant_ctr, qscheme=spec.qscheme)


def check_specs(config: HasSpecs) -> None:
    """Refuse specs that no NPU supports.

    Raises:
        OptionError: the spec, and what is supported.
    """
    dtype = torch.int16 if config.activations == "int16" else torch.int8
    for name in ("input_spec", "output_spec"):
        spec = getattr(config, name)
        if spec is None:
            continue
        _check_kind(name, spec)
        limits = torch.iinfo(dtype)
        _check_qparams(
            name, spec, dtype, (limits.min, limits.max), _SCHEMES[dtype], f'activations="{config.activations}"'
        )
    spec = config.weight_spec
    if spec is not None:
        _check_kind("weight_spec", spec)
        limit = 2 ** (config.weight_bits - 1) - 1
        scheme = _OF_WEIGHTS[config.per_channel]
        how = f"per_channel={config.per_channel}, weight_bits={config.weight_bits}"
        _check_qparams("weight_spec", spec, torch.int8, (-limit, limit), (scheme,), how)


def _check_kind(name: str, spec: Any) -> None:
    if isinstance(spec, type) or not all(hasattr(spec, part) for part in _PARTS):
        raise OptionError(
            f"`{name}` is {described(spec)}.", hint="a QuantizationSpec of torchao.quantization.pt2e.quantizer, or None"
        )
    if not callable(spec.observer_or_fake_quant_ctr):
        raise OptionError(f"`{name}` has no observer.", hint="observer_or_fake_quant_ctr=MinMaxObserver")


def _check_qparams(
    name: str, spec: Any, dtype: torch.dtype, limits: tuple[int, int], schemes: tuple[torch.qscheme, ...], how: str
) -> None:
    low = limits[0] if spec.quant_min is None else spec.quant_min
    high = limits[1] if spec.quant_max is None else spec.quant_max
    fits = spec.dtype is dtype and (low, high) == limits and spec.qscheme in schemes
    if not fits or getattr(spec, "is_dynamic", False):
        raise OptionError(
            f"`{name}` is {spec.dtype} in [{low}, {high}], {spec.qscheme}, which an NPU with {how} does not support.",
            hint=f"{dtype} in [{limits[0]}, {limits[1]}], {' or '.join(map(str, schemes))}, not dynamic",
        )
