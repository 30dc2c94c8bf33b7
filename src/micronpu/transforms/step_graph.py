"""The graph of a step of a stream: time properties of its values, and the states kept between calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from micronpu.base.errors import ModelError
from micronpu.base.order import operands_first
from micronpu.frontend.graphs import Graph, GraphModule, Node
from micronpu.frontend.program import add_dequantize, add_quantize, calls_into, is_dequantize, origin_of, overload_name
from micronpu.frontend.run import evaluate
from micronpu.frontend.tensors import attribute, read
from micronpu.ops.calls import CONCATENATION, CUT


@dataclass(frozen=True)
class Flow:
    """A value of which a call processes some frames.

    Attributes:
        node: in the new graph.
        axis: of time.
        frames: per call.
        over: frames at the end of the whole sequence that result from padding and must be cut off.
        padded: frames added before the first one by a padding; the next operator makes them its initial state.
        value: of this padding.
        lag: number of results before the model's first frame; they depend on frames before the start.
    """

    node: Node
    axis: int
    frames: int
    over: int = 0
    padded: int = 0
    value: float = 0.0
    lag: int = 0


class StepGraph:
    """A graph under construction, with the frames that a call processes of each value.

    Attributes:
        lag: number of results before the program's first one.
        windows: a message for each operator that gets all frames of a window in each call.
    """

    def __init__(self, module: GraphModule, axis: int, step: int) -> None:
        self._module = module
        self._axis, self._step = axis, step
        (x,) = (n.meta["val"] for n in module.graph.find_nodes(op="placeholder"))
        self._frames = int(x.shape[axis])
        self._graph = Graph()
        self._aten = calls_into(self._graph)
        self._root = nn.Module()
        self._flows: dict[Node, Flow] = {}
        self._nodes: dict[Node, Any] = {}
        self._writes: list[tuple[Node, Node]] = []
        self._count = 0
        self._apart: set[Node] = set()
        self.lag = 0
        self.windows: list[str] = []

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self._graph.call_function(target, args, kwargs)

    def _copy(self, node: Node) -> Node:
        """Copy an operator, applied to the frames of a call."""
        return self._graph.node_copy(node, lambda n: self._flows[n].node if n in self._flows else self._nodes[n])

    def _share(self, node: Node) -> None:
        value = read(self._module, node)
        name = str(node.target).replace(".", "_")
        if not hasattr(self._root, name):
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self._root.register_buffer(name, value)
            else:
                setattr(self._root, name, value)  # a parameter, or a graph of control flow
        self._nodes[node] = self._graph.get_attr(name)

    def _refuse(self, node: Node, what: str, hint: str) -> ModelError:
        source = origin_of(node).source
        return ModelError(f"`{overload_name(node) or node.name}`{f' ({source})' if source else ''} {what}.", hint=hint)

    def _flow(self, node: Node, source: Node, *, pads: bool = False) -> Flow:
        """Return a value that does not depend on future frames, and without padding before it unless ``pads``."""
        flow = self._flows[source]
        if flow.over:
            raise self._refuse(
                node,
                f"follows an operator that pads the end of time by {flow.over} frames: its last results would have to "
                "know the future",
                f"padding at the beginning alone, as by F.pad(x, (p, 0)), or x[..., :-{flow.over}] behind it",
            )
        if flow.padded and not pads:
            raise self._refuse(
                node, "reads frames that are padded in front, which only a convolution or a pool can", "padding=.."
            )
        return flow

    def _past(self, shape: Sequence[int], dtype: torch.dtype, value: float = 0.0) -> Node:
        """A state, filled with a value before the first frame."""
        name = f"past_{self._count}"
        self._count += 1
        self._root.register_buffer(name, torch.full(tuple(shape), value, dtype=dtype))
        return self._graph.get_attr(name)

    def _with_past(self, node: Node, source: Node, flow: Flow, length: int) -> Node:
        """The frames of a call, preceded by the last ``length`` frames of earlier calls."""
        if not length:
            return flow.node
        shape = list(source.meta["val"].shape)
        shape[flow.axis] = length
        past = self._past(shape, source.meta["val"].dtype, flow.value)
        parts = [self._requantized(source, past), flow.node]
        whole = self._requantized(source, self._aten(CONCATENATION, parts, flow.axis))
        kept = self._aten(CUT, whole, flow.axis, flow.frames, flow.frames + length)
        self._writes.append((past, self._requantized(source, kept)))
        return whole

    def _requantized(self, source: Node, x: Node) -> Node:
        """Requantize x to the qparams of a value in a quantized model; x itself in a float one."""
        if not is_dequantize(source):
            return x
        return add_dequantize(add_quantize(x, source.args[1:]), source.args[1:])

    def _window(self, node: Node, source: Node) -> Node:
        """The last frames, as many as in the whole program's input."""
        flow = self._flow(node, source)
        frames = int(source.meta["val"].shape[flow.axis])
        total = self._frames * flow.frames // self._step
        if frames + flow.lag != total:
            raise self._refuse(
                node,
                f"looks at {frames} frames that do not end with the {total} that have come",
                "an example input of another length, whose last frame is in the last window of each layer",
            )
        return self._with_past(node, source, flow, max(frames - flow.frames, 0))

    def _windows(self, node: Node, source: Node, flow: Flow, reach: int, stride: int, left: int) -> Flow:
        """Return the frames covered by the windows of a call, and the number of windows.

        Args:
            reach: frames between the first and the last frame of a window.
        """
        if flow.frames % stride:
            raise self._refuse(
                node, f"goes over time in steps of {stride}, and gets {flow.frames} new frames in a call",
                f"step={self._step * stride}",
            )  # fmt: skip
        padded = left + flow.padded
        if padded > reach:
            raise self._refuse(
                node, f"pads the beginning of time by {padded} frames, and looks back only {reach}", f"at most {reach}"
            )
        if padded and flow.lag:
            raise self._refuse(
                node,
                "pads the beginning of time after an operator that does not, so that its padding is where the stream "
                "has earlier frames",
                "padding before every operator over time, or before none",
            )
        # Keep the smallest number of past frames that aligns the windows with the model's.
        length = reach - (reach - padded + flow.lag) % stride
        whole = self._with_past(node, source, flow, max(length, 0))
        if length < 0:
            whole = self._aten(CUT, whole, flow.axis, -length, flow.frames)
        lag = (length - padded + flow.lag) // stride
        return Flow(whole, flow.axis, flow.frames // stride, lag=lag)

    def _result(self, node: Node) -> Any:
        if node in self._nodes:
            return self._nodes[node]
        flow = self._flow(node, node)
        self.lag = max(self.lag, flow.lag)
        return flow.node

    def _whole(self, node: Node) -> Node:
        """Give an operator that needs all frames at once the last ones; later operators are as in the model."""
        windows = {n: self._window(node, n) for n in node.all_input_nodes if n in self._flows}
        source = origin_of(node).source
        self.windows.append(
            f"`{overload_name(node)}`{f' ({source})' if source else ''} looks at frames of different times, or is not "
            f"known frame by frame: in each call it gets the last {self._frames} frames, and all operators after it "
            "compute them again."
        )
        return self._graph.node_copy(node, lambda n: windows[n] if n in windows else self._nodes[n])

    def _optional(self, node: object) -> object:
        return self._nodes[node] if isinstance(node, Node) else node

    def _constant(self, node: Node) -> torch.Tensor | None:
        """The value of a node that depends on no input."""
        for part in operands_first(node, lambda n: () if n in self._flows else n.all_input_nodes):
            if part in self._flows or part not in self._nodes or part.op not in ("get_attr", "call_function"):
                return None
            if part.op == "get_attr" and attribute(self._module, part) is None:
                return None
        result: torch.Tensor = evaluate(self._module, node)
        return result
