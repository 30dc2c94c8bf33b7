"""A comparator for `Inspector.calculate_numeric_gap` that supports the layouts of NPUs and of kernels on the core.

ExecuTorch's own comparators subtract recorded values from reference values. An NPU's values are integers, in [N, H, W,
C] instead of [N, C, H, W], and an operator of the model may become several NPU operations, of which one writes the
result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from executorch.devtools.inspector.numerical_comparator import NumericalComparatorBase

from micronpu.base.errors import OptionError
from micronpu.frontend.graphs import GraphModule, Node, findings
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import Edge, ProgramView, is_conversion, quantizes_of, static_shape
from micronpu.report.accuracy import decibels
from micronpu.upstream.executorch import reference_graph

Measure = Literal["SNR", "MSE", "L1", "steps"]
TO_FIRST = (0, 3, 1, 2)
"""[N, H, W, C] to [N, C, H, W]."""


class NumericGap(NumericalComparatorBase):
    """Compares values written by an NPU or a core's kernels with those of the quantized model, operator by operator.

        inspector.calculate_numeric_gap(NumericGap("SNR"))

    Operators whose values the NPU does not write completely, such as those that Vela splits into stripes, have no row.

    Args:
        measure: "SNR" in dB, "MSE" and "L1" in the unit of the value, or "steps": the largest difference in LSB.

    Raises:
        OptionError: there is no such measure; or, on use, the Inspector was made without `debug_buffer_path`.
    """

    def __init__(self, measure: Measure = "SNR") -> None:
        super().__init__()
        if measure not in get_args(Measure):
            raise OptionError(f"`measure` is {measure!r}.", hint=f"one of {', '.join(get_args(Measure))}")
        self.measure = measure
        self._steps: dict[int, float] = {}

    def preprocessing(self, mapping: Mapping[Any, Any]) -> dict[Any, object]:
        """Return the pairs that can be compared: real numbers in the reference's layout on both sides."""
        assert self.inspector is not None
        _check_recorded(value for _, value in mapping.values())
        graph = reference_graph(self.inspector)
        written, edges, images = self._written(), _edges(graph), _images(graph)
        found: dict[Any, object] = {}
        for (handles, wanted), (own, value) in mapping.items():
            if not isinstance(wanted, torch.Tensor) or not wanted.is_floating_point():
                continue
            edge = next((edges[h] for h in reversed(handles) if h in edges), None)
            candidates = written.get(tuple(handles)) or written.get(tuple(own)) or [value]
            image = next((images[h] for h in reversed(handles) if h in images), None)
            best = _closest(candidates, wanted, edge, image)
            if best is not None:
                if edge is not None:
                    self._steps[id(best)] = edge.scale
                found[handles, wanted] = (own, best)
        return found

    def element_compare(self, a: Any, b: Any) -> float:
        """Return the measure of a reference value ``a`` and a value ``b`` written by the NPU."""
        error = b.double() - a.double()
        if self.measure == "MSE":
            return float(error.square().mean())
        if self.measure == "L1":
            return float(error.abs().sum())
        if self.measure == "steps":
            step = self._steps.get(id(b), 0.0)
            return float(error.abs().max()) / step if step else math.nan
        return decibels(float(a.double().square().sum()), float(error.square().sum()))

    def _written(self) -> dict[tuple[int, ...], list[torch.Tensor]]:
        """Values written by NPU operations and kernels, in order, by the debug handles of their operator."""
        found: dict[tuple[int, ...], list[torch.Tensor]] = {}
        assert self.inspector is not None
        for block in self.inspector.event_blocks:
            for event in block.events:
                is_operation = event.delegate_debug_identifier is not None or "::" in event.name
                if is_operation and event.debug_handles:
                    handles = event.debug_handles
                    handles = (handles,) if isinstance(handles, int) else tuple(handles)
                    values = [v for v in event.debug_data if isinstance(v, torch.Tensor)]
                    found.setdefault(handles, []).extend(values)
        return found


def _check_recorded(values: Iterable[object]) -> None:
    """Refuse the zeros that an Inspector without debug buffer has instead of values, which may be zeros, too."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.numel()]
    if tensors and all(tensor.untyped_storage().resizable() and not tensor.any() for tensor in tensors):
        raise OptionError(
            "The Inspector has no debug buffer, and so no value that was computed.",
            hint="Inspector(..., debug_buffer_path=...) with PATH.values of `micronpu run --profile PATH`",
        )


def _edges(graph: GraphModule) -> dict[int, Edge]:
    """Return the qparams of the quantized result of an operator, by its debug handle."""
    view = ProgramView(graph)

    def edge(node: Node) -> Edge | None:
        return next(filter(None, map(view.edge, quantizes_of(node))), None) or view.edge(node)

    known = findings(graph, edge)
    return {node.meta["debug_handle"]: found for node, found in known.items() if "debug_handle" in node.meta}


def _images(graph: GraphModule) -> dict[int, tuple[int, ...]]:
    """Sizes [N, C, H, W] of the image that a value of another rank is a reshape of, by its debug handle.

    The NPU may write such a value in the order of the image in its memory, [N, H, W, C].
    """
    found: dict[Node, tuple[int, ...]] = {}
    for node in graph.graph.nodes:
        shape, sources = static_shape(node), node.all_input_nodes
        entry = known_import(node) if node.op == "call_function" else None
        moves = is_conversion(node) or (entry is not None and entry.moves_only)
        image = found.get(sources[0]) if moves and len(sources) == 1 else None
        if shape is not None and len(shape) == 4:
            found[node] = shape
        elif image is not None and math.prod(shape or ()) == math.prod(image):
            found[node] = image
    return {node.meta["debug_handle"]: image for node, image in found.items() if "debug_handle" in node.meta}


def _closest(
    values: Iterable[torch.Tensor], wanted: torch.Tensor, edge: Edge | None, image: tuple[int, ...] | None = None
) -> torch.Tensor | None:
    """Return the last value that covers the whole reference value, as real numbers in its layout; None if there is
    none.

    If a shape fits both layouts, such as [1, 8, 8, 8] or a flattened one, the closer value is used.

    Args:
        image: sizes [N, C, H, W] of the image that the value is a reshape of.
    """
    fitting = [v for v in values if v.numel() == wanted.numel()]
    for value in reversed(fitting):
        forms = [value] if value.shape == wanted.shape else []
        if value.dim() == 4 and value.permute(TO_FIRST).shape == wanted.shape:
            forms.append(value.permute(TO_FIRST))
        if forms and image is not None and wanted.dim() != 4:
            n, c, h, w = image
            forms.append(value.reshape(n, h, w, c).permute(TO_FIRST).reshape(wanted.shape))
        if forms:
            break
    else:
        if wanted.dim() == 4 or not fitting:
            return None
        last = fitting[-1]
        forms = [f.reshape(wanted.shape) for f in (last, *([last.permute(TO_FIRST)] if last.dim() == 4 else []))]
    exact = wanted.double()
    reals = forms if edge is None else map(edge.dequantized, forms)
    return min(reals, key=lambda f: float((f.double() - exact).square().sum()))
