"""torchao's flow: for training, for quantizers of other packages, and for direct calls of `prepare_pt2e`.

Only this module, and modules that import it, import torchao.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from micronpu.quantize.concat_groups import concat_results
from micronpu.quantize.observers import observer_for
from micronpu.quantize.observing import FixedObserver, RangeObserver
from micronpu.quantize.recorder import Recorder
from micronpu.quantize.specs import FixedQParamsQuantizationSpec, QuantizationSpec, SharedQuantizationSpec, noted
from micronpu.upstream import torchao as upstream

upstream.import_torchao()

from torchao.quantization.pt2e import FakeQuantize, FakeQuantizeBase, ObserverBase, quantizer  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e  # noqa: E402

__all__ = [
    "FakeQuantize",
    "FakeQuantizeBase",
    "ObserverBase",
    "annotated_by_others",
    "convert_pt2e",
    "hand_over",
    "prepare_pt2e",
    "prepare_qat_pt2e",
]

upstream.accept_as_observer(RangeObserver)
upstream.accept_as_observer(Recorder)


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
