"""Streaming rules for operators over axes other than time, which process the frames of a call like a whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.transforms.step_graph import Flow, StepGraph

aten = torch.ops.aten
_SEVERAL = ("chunk.default", "split.Tensor", "split_with_sizes.default", "tensor_split.sections", "unbind.int")
_ALONG_ONE = ("glu.default", "cumsum.default", "roll.default", "flip.default", "log_softmax.int", "prelu.default")
_REDUCTIONS = (
    "mean.dim", "sum.dim_IntList", "amax.default", "amin.default", "prod.dim_int", "argmax.default", "argmin.default",
    "var.dim", "var.correction", "std.dim", "std.correction", "logsumexp.default", "linalg_vector_norm.default",
    "norm.ScalarOpt_dim", "any.dim", "all.dim",
)  # fmt: skip
_EXTREMA = ("max.dim", "min.dim", "topk.default", "sort.default")
"""Operators that return values and indices as several results."""
_RESIZES = tuple(f"upsample_{kind}2d.{form}" for kind in ("nearest", "bilinear") for form in ("vec", "default"))


class OtherAxes(StepGraph):
    """Rules for operators over other axes; one that works along time after all gets a window."""

    def other_axes(self, name: str) -> Callable[[Node], Any] | None:
        """Return the rule for an overload, or None."""
        rules: dict[str, Callable[[Node], Any]] = {
            **dict.fromkeys((*_SEVERAL, *_EXTREMA), self._several),
            **dict.fromkeys(_ALONG_ONE, self._along_one),
            **dict.fromkeys(_REDUCTIONS, self._reduced),
            **dict.fromkeys(_RESIZES, self._resized),
            **dict.fromkeys(("matmul.default", "mm.default", "bmm.default"), self._product),
            **dict.fromkeys(("conv_transpose1d.default", "conv_transpose2d.input"), self._transposed),
            "stack.default": self._stacked,
            "einsum.default": self._einsum,
            "expand.default": self._expanded,
            "repeat.default": self._repeated,
        }
        return rules.get(name)

    def _axes(self, node: Node, source: Node) -> set[int]:
        """The axes that an operator works along; all if it does not name any."""
        given, rank = arguments(node), source.meta["val"].dim()
        if overload_name(node) == "prelu.default":
            return {1} if given["weight"].meta["val"].numel() > 1 else set()
        found = given["dim"] if "dim" in given else given["dims"]
        if found is None or (isinstance(found, (list, tuple)) and not found):
            return set(range(rank))
        return {int(d) % rank for d in (found if isinstance(found, (list, tuple)) else [found])}

    def _along_one(self, node: Node) -> Any:
        source = node.all_input_nodes[0]
        flow = self._flow(node, source)
        return self._whole(node) if flow.axis in self._axes(node, source) else replace(flow, node=self._copy(node))

    def _reduced(self, node: Node) -> Any:
        source = node.all_input_nodes[0]
        flow, axes = self._flow(node, source), self._axes(node, source)
        if flow.axis in axes:
            return self._whole(node)
        gone = 0 if arguments(node).get("keepdim") else sum(axis < flow.axis for axis in axes)
        return replace(flow, node=self._copy(node), axis=flow.axis - gone)

    def _several(self, node: Node) -> Any:
        """Return a tuple of parts with the same properties; `getitem` unpacks it."""
        source, name = node.all_input_nodes[0], overload_name(node)
        flow, axes = self._flow(node, source), self._axes(node, source)
        if flow.axis in axes:
            return self._whole(node)
        drops = name == "unbind.int" or (name in ("max.dim", "min.dim") and not arguments(node)["keepdim"])
        gone = sum(axis < flow.axis for axis in axes) if drops else 0
        self._apart.add(node)
        return replace(flow, node=self._copy(node), axis=flow.axis - gone)

    def _stacked(self, node: Node) -> Any:
        parts = list(arguments(node)["tensors"])
        flow = self._same(parts)
        if flow is None:
            return self._whole(node)
        dim = arguments(node)["dim"] % node.meta["val"].dim()
        return replace(flow, node=self._copy(node), axis=flow.axis + (dim <= flow.axis))

    def _same(self, parts: Sequence[Node]) -> Flow | None:
        """The common time properties of several values; None if they differ."""
        flows = [self._flows[p] for p in parts if p in self._flows]
        known = {(f.frames, f.over, f.padded, f.value, f.axis, f.lag) for f in flows}
        return flows[0] if len(flows) == len(parts) and len(known) == 1 else None

    def _product(self, node: Node) -> Any:
        """Product with a matrix that depends on no input, and is the same for all frames."""
        one, other = node.all_input_nodes if len(node.all_input_nodes) == 2 else (node, node)
        given = list(arguments(node).values())[:2]
        source = next((n for n in given if n in self._flows), None)
        if source is None or all(n in self._flows for n in (one, other)):
            return self._whole(node)
        matrix = given[1] if given[0] is source else given[0]
        shape, rank = matrix.meta["val"].shape, source.meta["val"].dim()
        flow = self._flow(node, source)
        summed = rank - (1 if given[0] is source else 2)
        shared = all(n == 1 for n in shape[:-2]) and len(shape) <= rank and len(shape) >= 2
        if not shared or flow.axis == summed or node.meta["val"].dim() != rank:
            return self._whole(node)
        return replace(flow, node=self._copy(node))

    def _einsum(self, node: Node) -> Any:
        given = arguments(node)
        operands = list(given["tensors"])
        flows = [n for n in operands if n in self._flows]
        before, _, after = str(given["equation"]).replace(" ", "").partition("->")
        names = before.split(",")
        if len(flows) != 1 or not after or "." in before:
            return self._whole(node)
        flow, place = self._flow(node, flows[0]), operands.index(flows[0])
        letter = names[place][flow.axis]
        if letter not in after or any(letter in name for i, name in enumerate(names) if i != place):
            return self._whole(node)
        return replace(flow, node=self._copy(node), axis=after.index(letter))

    def _resized(self, node: Node) -> Any:
        """An image resize that keeps the size of the time axis."""
        source = node.all_input_nodes[0]
        flow, size = self._flow(node, source), source.meta["val"].shape
        if flow.axis < 2:
            return replace(flow, node=self._copy(node))
        if node.meta["val"].shape[flow.axis] != size[flow.axis]:
            return self._whole(node)
        made, place = self._copy(node), flow.axis - 2
        sizes = list(node.meta["val"].shape[2:])
        sizes[place] = flow.frames
        values = arguments(node) | {"output_size": sizes}
        if "scale_factors" in values:
            values["scale_factors"] = None
        inner = {n: self._flows[n].node for n in node.all_input_nodes}
        made.args = tuple(inner.get(v, v) if isinstance(v, Node) else v for v in values.values())
        made.kwargs = {}
        return replace(flow, node=made)

    def _transposed(self, node: Node) -> Any:
        """A transposed convolution with one output frame per input frame."""
        given = arguments(node)
        source = given["input"]
        flow = self._flow(node, source)
        place, sides = flow.axis - 2, node.meta["val"].dim() - 2

        def along(name: str) -> int:
            value = given[name]
            values = list(value) if isinstance(value, (list, tuple)) else [value]
            return int(values[place] if len(values) == sides else values[0])

        kernel = given["weight"].meta["val"].shape[flow.axis] if place >= 0 else 0
        if kernel != 1 or along("stride") != 1 or along("padding") or along("output_padding"):
            return self._whole(node)
        return replace(flow, node=self._copy(node))

    def _expanded(self, node: Node) -> Any:
        source = node.all_input_nodes[0]
        flow = self._flow(node, source)
        axis = flow.axis + node.meta["val"].dim() - source.meta["val"].dim()
        if source.meta["val"].shape[flow.axis] != node.meta["val"].shape[axis]:
            return self._whole(node)
        sizes = [flow.frames if i == axis else n for i, n in enumerate(node.meta["val"].shape)]
        return replace(flow, node=self._call(aten.expand.default, flow.node, sizes), axis=axis)

    def _repeated(self, node: Node) -> Any:
        source = node.all_input_nodes[0]
        flow, times = self._flow(node, source), list(arguments(node)["repeats"])
        axis = flow.axis + len(times) - source.meta["val"].dim()
        return self._whole(node) if times[axis] != 1 else replace(flow, node=self._copy(node), axis=axis)
