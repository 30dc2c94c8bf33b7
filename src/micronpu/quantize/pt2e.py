"""torchao: for training, for quantizers of others, and for those who call `prepare_pt2e` themselves.

The only module that imports it, and whatever imports this one.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from micronpu.quantize import shims
from micronpu.quantize.observers import (
    ChannelSearch,
    LeastErrorSearch,
    PercentileSearch,
    RangeSearch,
    SharesSearch,
    WeightSearch,
)
from micronpu.quantize.specs import FixedQParamsQuantizationSpec, QuantizationSpec, SharedQuantizationSpec, noted

shims.import_torchao()

from torchao.quantization import pt2e as theirs  # noqa: E402
from torchao.quantization.pt2e import (  # noqa: E402
    FakeQuantize,
    FakeQuantizeBase,
    MovingAverageMinMaxObserver,
    ObserverBase,
    quantizer,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e  # noqa: E402

__all__ = [
    "FakeQuantize",
    "FakeQuantizeBase",
    "MovingAverageMinMaxObserver",
    "ObserverBase",
    "annotated_by_others",
    "convert_pt2e",
    "hand_over",
    "prepare_pt2e",
    "prepare_qat_pt2e",
]


class RangeObserver(RangeSearch, theirs.HistogramObserver):
    """torchao's histogram with `RangeSearch`."""


class LeastErrorObserver(LeastErrorSearch, theirs.HistogramObserver):
    """torchao's histogram with `LeastErrorSearch`."""


class PercentileObserver(PercentileSearch, theirs.HistogramObserver):
    """torchao's histogram with `PercentileSearch`."""


class SharesObserver(SharesSearch, theirs.MinMaxObserver):
    """The largest value with `SharesSearch`."""


class LeastErrorWeights(WeightSearch, theirs.MinMaxObserver):
    """One range with `WeightSearch`."""


class LeastErrorWeightsPerChannel(ChannelSearch, theirs.PerChannelMinMaxObserver):
    """A range for each channel with `ChannelSearch`."""


_OBSERVERS = {
    "histogram": RangeObserver,
    "mse": LeastErrorObserver,
    "percentile": PercentileObserver,
    "shares": SharesObserver,
    "mse_weights": LeastErrorWeights,
    "mse_weights_per_channel": LeastErrorWeightsPerChannel,
    "minmax": theirs.MinMaxObserver,
    "moving_average": theirs.MovingAverageMinMaxObserver,
    "minmax_per_channel": theirs.PerChannelMinMaxObserver,
    "moving_average_per_channel": theirs.MovingAveragePerChannelMinMaxObserver,
}


def annotated_by_others(model: GraphModule) -> list[Node]:
    """Nodes that another quantizer has annotated."""
    annotations = ((node, node.meta.get("quantization_annotation")) for node in model.graph.nodes)
    return [node for node, found in annotations if found is not None and found._annotated]


def hand_over(model: GraphModule) -> None:
    """Writes the annotations of a model as torchao reads them, in place."""
    for node, own in noted(model.graph.nodes).items():
        node.meta["quantization_annotation"] = quantizer.QuantizationAnnotation(
            input_qspec_map={operand: _spec(spec) for operand, spec in own.input_qspec_map.items()},
            output_qspec=_spec(own.output_qspec),
            _annotated=True,
        )


def _spec(spec: Any) -> Any:
    if isinstance(spec, SharedQuantizationSpec):
        return quantizer.SharedQuantizationSpec(spec.edge_or_node)
    if not isinstance(spec, FixedQParamsQuantizationSpec | QuantizationSpec):
        return spec
    grid = {name: getattr(spec, name) for name in ("dtype", "quant_min", "quant_max", "qscheme")}
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return quantizer.FixedQParamsQuantizationSpec(**grid, scale=spec.scale, zero_point=spec.zero_point)
    kind, options = _OBSERVERS[spec.observer], dict(spec.options)
    made = (
        FakeQuantize.with_args(observer=kind, eps=spec.eps, **options)
        if spec.is_fake
        else kind.with_args(eps=spec.eps, **options)
    )
    return quantizer.QuantizationSpec(
        **grid, ch_axis=spec.ch_axis, is_dynamic=spec.is_dynamic, observer_or_fake_quant_ctr=made
    )
