"""torchao's flow: for training, for quantizers of other packages, and for direct calls of `prepare_pt2e`.

Only this module, and modules that import it, import torchao.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from micronpu.quantize.observers import observer_for
from micronpu.quantize.observing import FixedObserver, RangeObserver
from micronpu.quantize.recorder import Recorder
from micronpu.quantize.solver.groups import concat_results
from micronpu.quantize.specs import FixedQParamsQuantizationSpec, QuantizationSpec, SharedQuantizationSpec, noted
from micronpu.upstream import torchao as upstream

upstream.import_torchao()

from torchao.quantization import pt2e  # noqa: E402
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase, quantizer  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e  # noqa: E402

__all__ = [
    "FakeQuantize",
    "FakeQuantizeBase",
    "ObserverBase",
    "annotated_by_others",
    "convert_pt2e",
    "fake_quantized",
    "hand_over",
    "prepare_pt2e",
    "prepare_qat_pt2e",
]

upstream.accept_as_observer(RangeObserver)
upstream.accept_as_observer(Recorder)


def fake_quantized(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Return `torch.fake_quantize_per_tensor_affine` and its gradient in a fraction of the time."""
    zero, step = int(zero_point), float(scale)
    y = F.hardtanh(x, (low - zero - 0.5) * step, (high - zero + 0.5) * step)  # its gradient depends on x alone
    rounded = (x.detach() * (1 / scale)).round_().clamp_(low - zero, high - zero).mul_(scale)
    y.detach().copy_(rounded)
    return y


class FakeQuantize(pt2e.FakeQuantize):
    """torchao's fake quantization, faster for activations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_per_channel or not self.fake_quant_enabled[0]:
            return super().forward(x)  # type: ignore[no-any-return]
        self.disable_fake_quant()
        try:
            super().forward(x)  # the observer alone
        finally:
            self.enable_fake_quant()
        return fake_quantized(x, self.scale, self.zero_point, self.quant_min, self.quant_max)


class _Maker:
    """Makes the observer of an annotation, without torchao's additional arguments."""

    def __init__(self, spec: QuantizationSpec) -> None:
        self._spec = spec
        self.__name__ = spec.observer  # torchao looks for "PerChannel" in it, to decide whether to pass the axis

    def with_args(self, **more: Any) -> _Maker:
        """Return itself."""
        return self

    def __call__(self, **more: Any) -> RangeObserver | FixedObserver:
        return observer_for(self._spec)


def annotated_by_others(model: GraphModule) -> list[Node]:
    """Return nodes that another quantizer has annotated."""
    return [node for node in model.graph.nodes if upstream.is_annotated(node)]


def hand_over(model: GraphModule) -> None:
    """Write the annotations of a model in torchao's form, in place."""
    notes = noted(model.graph.nodes)
    joined = concat_results(notes)
    for node, own in notes.items():
        inputs = {operand: _spec(spec) for operand, spec in own.input_qspec_map.items()}
        output = joined.get(node, own.output_qspec)
        node.meta["quantization_annotation"] = upstream.annotation(inputs, _spec(output))


def _spec(spec: Any) -> Any:
    if isinstance(spec, SharedQuantizationSpec):
        return quantizer.SharedQuantizationSpec(spec.edge_or_node)
    if not isinstance(spec, FixedQParamsQuantizationSpec | QuantizationSpec):
        return spec
    given = {name: getattr(spec, name) for name in ("dtype", "quant_min", "quant_max", "qscheme")}
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return quantizer.FixedQParamsQuantizationSpec(**given, scale=spec.scale, zero_point=spec.zero_point)
    made = FakeQuantize.with_args(observer=_Maker(spec)) if spec.is_fake else _Maker(spec)
    made = made if spec.maker is None else spec.maker
    return quantizer.QuantizationSpec(
        **given, ch_axis=spec.ch_axis, is_dynamic=spec.is_dynamic, observer_or_fake_quant_ctr=made
    )
