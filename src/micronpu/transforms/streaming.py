"""Convert a network over a whole recording to one that takes the newest frames and keeps earlier ones as state.

A rule per kind of operators defines its streaming form: a convolution keeps the frames that its next window needs, a
recurrent layer its states, and an operator over all frames, such as a global average, a window of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import nn

from micronpu.base.callers import warn
from micronpu.base.errors import ModelError, OptionError
from micronpu.base.texts import plural
from micronpu.frontend.control_flow import compute_both_branches, write_out_loops
from micronpu.frontend.export import as_inputs, check_static, export
from micronpu.frontend.exported import graph_module
from micronpu.frontend.graphs import GraphModule, Node, map_arg, operand
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import Edge, arguments, is_conversion, is_dequantize, overload_name
from micronpu.frontend.tensors import copied, is_write
from micronpu.ir.aten import one_each
from micronpu.ops.calls import PADDING, SQUEEZED
from micronpu.ops.convolution import CONVOLUTIONS
from micronpu.ops.facts import SAME_AXES, WRITE, axis_behind
from micronpu.ops.movement import RESHAPE, SQUEEZES, VIEWS
from micronpu.ops.pooling import POOLS
from micronpu.ops.recurrent import RECURRENT
from micronpu.ops.slicing import CONCATENATIONS, SELECTIONS, SLICES
from micronpu.ops.tiling import PADS
from micronpu.transforms.step_graph import Flow, StepGraph
from micronpu.upstream.session import exclusive
from micronpu.upstream.torch import OpOverload, codegen_of


class WindowWarning(UserWarning):
    """An operator of a stream gets a whole window of frames in each call: correct, but more work than by frames."""


class Streaming(nn.Module):
    """Result of `streaming`: takes the newest frames and returns the result for all frames so far.

    Attributes:
        network: the graph; its buffers are the states.
        step: frames per call.
        offline_frames: frames of the example input: length of the windows.
        lag: number of results before the model's first one, if it pads less than its windows look back.
        windows: a message for each operator that gets a whole window in each call instead of the new frames alone.
    """

    def __init__(
        self, network: GraphModule, step: int, offline_frames: int, lag: int, windows: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.network = network
        self.step = step
        self.offline_frames = offline_frames
        self.lag = lag
        self.windows = tuple(windows)
        self._first = {name: buffer.clone() for name, buffer in network.named_buffers() if name.startswith("past_")}
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        return self.network(x)

    def reset(self) -> None:
        """Forget all frames.

        Raises:
            ModelError: the network keeps none.
        """
        if not self._first:
            raise ModelError("The network keeps no frames, so there is nothing to reset.", hint="call it as it is")
        with torch.no_grad():
            for name, value in self._first.items():
                self.network.get_buffer(name).copy_(value)


@exclusive()
def streaming(model: nn.Module, example_inputs: object, *, dim: int = -1, step: int = 1) -> Streaming:
    """Return a network that takes ``step`` new frames per call and keeps the required earlier ones as state.

    Each call returns the model's results for these frames after all earlier ones, with the same floats; operators over
    all frames (a global average, attention, a flattening) return the model's results for the last frames, as many as in
    the example input, once that many have arrived. Frames before the first one have the value of the model's padding,
    usually zero. Each operator that gets such a window is named, with its source line, by a `WindowWarning` and in
    `windows` of the result.

    Args:
        model: in evaluation mode, with one input; it must not look ahead in time. For `CompiledProgram.quantized` the
            stream has the same operators with the same qparams: each call returns the integers of the whole program.
        example_inputs: a whole recording.
        dim: axis of time in it.
        step: frames per call.

    Returns:
        A module with buffers, for `micronpu.compile` with sequences of frames as calibration data.

    Raises:
        ModelError: an operator looks ahead, or has a larger stride over time than ``step``; names it with its line.
        OptionError: ``dim`` or ``step`` is invalid for the input.
    """
    examples = as_inputs(example_inputs)
    if len(examples) != 1:
        raise ModelError(f"The model has {plural(len(examples), 'input')}, not one.", hint="a model of one input")
    (x,) = examples
    if isinstance(dim, bool) or not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        raise OptionError(f"`dim` is {dim!r}, which is no axis of an input of shape {list(x.shape)}.", hint="dim=-1")
    axis = dim % x.dim()
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise OptionError(f"`step` is {step!r}; it is a number of frames.", hint="step=1")
    if step > x.shape[axis]:
        raise OptionError(
            f"A call takes {step} frames, but the example has {x.shape[axis]} along axis {axis}: the sequence is "
            "shorter than one step.",
            hint="a longer example input, or a smaller step",
        )
    module = graph_module(export(_without_training(model), examples), convert_floats=False)
    write_out_loops(module)
    compute_both_branches(module)
    check_static(module)
    rewriter = _Rewriter(module, axis, step)
    network = rewriter.run()
    for sentence in rewriter.windows:
        warn(WindowWarning(sentence))
    return Streaming(network, step, int(x.shape[axis]), rewriter.lag, rewriter.windows)


def _without_training(model: nn.Module) -> nn.Module:
    """Set the parts of the model in a converted module to evaluation mode, which torch does not."""
    if not isinstance(model, GraphModule) or not any(map(is_dequantize, model.graph.nodes)):
        return model
    own = copied(model)
    for part in own.modules():
        part.training = False
    return own


class _Rewriter(StepGraph):
    """Writes the graph of a step, operator by operator."""

    def run(self) -> GraphModule:
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._flows[node] = Flow(self._graph.placeholder(node.name), self._axis, self._step)
            elif node.op == "get_attr":
                self._share(node)
            elif is_write(node):
                what = f"computes the state `{node.args[0].target}`, which a stream would change in each step"
                hint = "micronpu.compile(model, ..) if each call of it takes the next frames; else no such state"
                raise self._refuse(node.args[1], what, hint)
            elif node.op == "output":
                results = map_arg(node.args[0], self._result)
                for state, value in self._writes:
                    self._aten(WRITE, state, value)
                self._graph.output(results)
            elif node.meta["val"] is not None:  # an operator without a result only checks
                self._rewrite(node)
        self._graph.set_codegen(codegen_of(self._module.graph))
        return GraphModule(self._root, self._graph)

    def _rewrite(self, node: Node) -> None:
        sources = [n for n in node.all_input_nodes if n in self._flows]
        if not sources:
            self._nodes[node] = self._graph.node_copy(node, lambda n: self._nodes[n])
            return
        rule = self._rule(node, sources)
        before = len(self._graph.nodes)
        made = rule(node)
        for new in list(self._graph.nodes)[before:]:
            if "stack_trace" not in new.meta and new.op == "call_function":
                new.meta |= {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack")}
        if isinstance(made, Flow):
            self._flows[node] = made
        else:
            self._nodes[node] = made

    def _rule(self, node: Node, sources: Sequence[Node]) -> Callable[[Node], Flow | Node]:
        name = overload_name(node)
        rules = (
            (CONVOLUTIONS, self._convolution),
            (POOLS, self._pool),
            (RECURRENT, self._recurrent),
            (PADS, self._pad),
            (SLICES, self._slice),
            (SELECTIONS, self._select),
            (CONCATENATIONS, self._cat),
            (SQUEEZES, self._squeeze),
            (VIEWS, self._view),
        )
        for names, rule in rules:
            if name in names:
                return rule
        if node.target is operator.getitem:
            return self._unpacked
        if is_conversion(node):
            return self._with_qparams
        pointwise = isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
        return self._pointwise if pointwise or name in SAME_AXES else self._by_frame

    # -- rules

    def _pointwise(self, node: Node) -> Flow | Node:
        sources = [n for n in node.all_input_nodes if n in self._flows]
        flows = [self._flows[n] for n in sources]
        rank = node.meta["val"].dim()
        axes = {f.axis + rank - n.meta["val"].dim() for f, n in zip(flows, sources, strict=True)}
        if len({(f.frames, f.over) for f in flows}) > 1 or len(axes) > 1:
            return self._whole(node)
        if len({f.lag for f in flows}) > 1:
            raise self._refuse(node, "joins frames of different times", "slices that leave out the first frames")
        for n in node.all_input_nodes:
            value = n.meta.get("val")
            if n in self._nodes and isinstance(value, torch.Tensor):
                place = next(iter(axes)) - rank + value.dim()
                if place >= 0 and value.shape[place] != 1:
                    return self._whole(node)  # differs for each frame of the sequence
        if any(f.padded for f in flows):
            self._flow(node, sources[0])
        return replace(flows[0], node=self._copy(node), axis=next(iter(axes)))

    def _by_frame(self, node: Node) -> Flow | Node:
        """Operator along axes other than time; any other gets a window."""
        sources = [n for n in node.all_input_nodes if n in self._flows]
        flow, value = self._same(sources), node.meta["val"]
        several = isinstance(value, (tuple, list))
        shape = list((value[0] if several else value).shape)
        name, given = overload_name(node), arguments(node)
        axis = None if flow is None else axis_behind(name, given, sources, flow.axis, shape, _shape)
        if flow is None or axis is None:
            return self._whole(node)
        entry = known_import(node)
        if entry is None or not entry.moves_only:
            self._flow(node, sources[0])
        made = self._copy(node)
        if several:
            self._apart.add(node)  # `getitem` unpacks the parts, which have the same properties
        else:
            self._resize(node, made, axis, flow.frames)
        return replace(flow, node=made, axis=axis)

    def _same(self, parts: Sequence[Node]) -> Flow | None:
        """The common time properties of several values; None if they differ."""
        flows = [self._flows[p] for p in parts]
        return flows[0] if len({replace(f, node=flows[0].node) for f in flows}) == 1 else None

    def _resize(self, node: Node, made: Node, axis: int, frames: int) -> None:
        """Replace the number of frames in the arguments of a copy that are the size of the result."""
        sizes: list[int] = list(node.meta["val"].shape)
        sizes[axis] = frames
        new = {"size": sizes} | ({"output_size": sizes[2:], "scale_factors": None} if axis >= 2 else {})
        made.args = tuple(new.get(n, given) for n, given in zip(arguments(node), made.args, strict=False))

    def _with_qparams(self, node: Node) -> Flow:
        """Quantize or dequantize each element; leading padding is rounded too, zeros stay zeros."""
        flow = self._flows[node.all_input_nodes[0]]
        value = flow.value
        if value and (edge := Edge.of(node)) is not None:
            low, high = edge.limits
            value = (min(max(round(value / edge.scale) + edge.zero_point, low), high) - edge.zero_point) * edge.scale
        return replace(flow, node=self._copy(node), value=value)

    def _convolution(self, node: Node) -> Flow:
        given = arguments(node)
        source = given["input"]
        flow, rank = self._flow(node, source, pads=True), node.meta["val"].dim()
        place = flow.axis - 2
        if place < 0:
            raise self._refuse(node, "has time as its batch or its channels", "dim=.. with the axis of time")
        kernel = given["weight"].meta["val"].shape[flow.axis]
        sides = rank - 2
        stride, dilation = (one_each(given[k], sides) for k in ("stride", "dilation"))
        if isinstance(given["padding"], str):
            total = dilation[place] * (kernel - 1) if given["padding"] == "same" else 0
            if any(
                given["weight"].meta["val"].shape[2 + i] != 1 and given["padding"] == "same"
                for i in range(sides)
                if i != place
            ):
                raise self._refuse(node, "pads by name along time and another axis", "padding=(..) in numbers")
            padding, left = [0] * sides, total // 2
            right = total - left
        else:
            padding = one_each(given["padding"], sides)
            left = right = padding[place]
            padding[place] = 0
        reach = dilation[place] * (kernel - 1)
        windows = self._windows(node, source, flow, reach, stride[place], left)
        weight, bias = self._nodes[given["weight"]], self._optional(given["bias"])
        plain = f"{overload_name(node).split('.')[0]}.default"
        made = self._aten(plain, windows.node, weight, bias, stride, padding, dilation, given["groups"])
        return replace(windows, node=made, over=-(-right // stride[place]))

    def _pool(self, node: Node) -> Flow | Node:
        given = arguments(node)
        source = given["self"]
        flow = self._flow(node, source, pads=True)
        sides = 1 if "1d" in overload_name(node) else 2
        place = flow.axis - (source.meta["val"].dim() - sides)
        if place < 0:
            return replace(self._flow(node, source), node=self._copy(node))
        kernel = one_each(given["kernel_size"], sides)
        stride = one_each(given["stride"] or kernel, sides)
        padding, dilation = one_each(given["padding"], sides), one_each(given.get("dilation", 1), sides)
        if kernel[place] == source.meta["val"].shape[flow.axis] and node.meta["val"].shape[flow.axis] == 1:
            return self._whole(node)
        if padding[place] or given.get("ceil_mode"):
            raise self._refuse(
                node, "pads time on both sides: its last results would have to know the future", "padding=0 along time"
            )
        reach = dilation[place] * (kernel[place] - 1)
        windows = self._windows(node, source, flow, reach, stride[place], 0)
        made = self._graph.node_copy(node, lambda n: windows.node if n is source else self._nodes[n])
        return replace(windows, node=made)

    def _recurrent(self, node: Node) -> Flow | Node:
        given = arguments(node)
        source = given["input"]
        flow = self._flow(node, source)
        if given["bidirectional"]:
            raise self._refuse(node, "goes through time backwards, too", "bidirectional=False")
        if flow.axis != (1 if given["batch_first"] else 0):
            raise self._refuse(node, "does not go along the axis of time", "dim=.. with the axis of time")
        if flow.lag:
            raise self._refuse(
                node,
                "would read frames before the first one, because an operator over time before it pads nothing",
                "F.pad(x, (p, 0)) before that operator",
            )
        states = given["hx"] if isinstance(given["hx"], (list, tuple)) else [given["hx"]]
        past = []
        for state in states:
            value = state.meta["val"]
            past.append(self._past(value.shape, value.dtype))
            first = self._constant(state)
            if first is None:
                raise self._refuse(node, "begins with a state that the model computes", "no initial state")
            self._root.get_buffer(f"past_{self._count - 1}").copy_(first)
        hx: object = past if isinstance(given["hx"], (list, tuple)) else past[0]
        params = [self._nodes[p] for p in given["params"]]
        options = [given[k] for k in ("has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")]
        made = self._call(node.target, flow.node, hx, params, *options)
        for number, state in enumerate(past, 1):
            self._writes.append((state, self._call(operator.getitem, made, number)))
        return replace(flow, node=made)

    def _unpacked(self, node: Node) -> Flow | Node:
        source, index = operand(node), node.args[1]
        made = self._call(operator.getitem, self._flows[source].node, index)
        return replace(self._flows[source], node=made) if index == 0 or source in self._apart else made

    def _pad(self, node: Node) -> Flow | Node:
        given = arguments(node)
        source = given["self"]
        flow, rank = self._flows[source], source.meta["val"].dim()
        if given.get("mode", "constant") != "constant":
            raise self._refuse(node, "pads with values of the input", "padding with a constant")
        pad = list(given["pad"])
        place = 2 * (rank - 1 - flow.axis)
        left, right = (pad[place], pad[place + 1]) if place + 1 < len(pad) else (0, 0)
        if left < 0 or right < 0 or flow.padded:
            raise self._refuse(node, "pads and cuts time at once", "slices and one padding")
        value = float(given["value"] or 0.0)
        rest = [p if not place <= i <= place + 1 else 0 for i, p in enumerate(pad)]
        made = self._aten(PADDING, flow.node, rest, value) if any(rest) else flow.node
        return replace(flow, node=made, over=flow.over + right, padded=left, value=value)

    def _slice(self, node: Node) -> Flow | Node:
        given = arguments(node)
        source = given["self"]
        flow, value = self._flows[source], source.meta["val"]
        if given["dim"] % value.dim() != flow.axis:
            return replace(flow, node=self._copy(node))
        size = value.shape[flow.axis]
        start, stop, stride = slice(given["start"], given["end"], given["step"]).indices(size)
        cut = size - stop
        if stride != 1 or cut > flow.over or flow.padded:
            raise self._refuse(
                node, "leaves out the newest frames, or some between", "slices that begin later and end at the end"
            )
        return replace(flow, over=flow.over - cut, lag=flow.lag + start)

    def _select(self, node: Node) -> Flow | Node:
        given = arguments(node)
        source = given["self"]
        flow, value = self._flows[source], source.meta["val"]
        dim = given["dim"] % value.dim()
        if dim != flow.axis:
            return replace(flow, node=self._copy(node), axis=flow.axis - (dim < flow.axis))
        self._flow(node, source)
        if given["index"] in (-1, value.shape[dim] - 1):
            return self._call(node.target, flow.node, dim, -1)
        if is_dequantize(source):
            raise self._refuse(
                node,
                "takes one frame out of a quantized model, in which each step of a recurrent layer has its own qparams",
                "the float model, and sequences of frames as calibration data",
            )
        return self._whole(node)

    def _cat(self, node: Node) -> Flow | Node:
        given = arguments(node)
        parts = list(given["tensors"])
        flows = [self._flows[p] for p in parts if p in self._flows]
        dim = given["dim"] % node.meta["val"].dim()
        same = len(flows) == len(parts) and len({(f.frames, f.over, f.padded, f.axis, f.lag) for f in flows}) == 1
        if dim != flows[0].axis:
            return replace(flows[0], node=self._copy(node)) if same else self._whole(node)
        known = self._constant(parts[0]) if len(parts) == 2 and parts[1] in self._flows else None
        if known is None or bool((known != known.flatten()[0]).any()):
            raise self._refuse(node, "puts other frames beside those of the input", "F.pad(x, (p, 0))")
        size = parts[0].meta["val"].shape[dim]
        return replace(self._flow(node, parts[1]), padded=size, value=float(known.flatten()[0]))

    def _squeeze(self, node: Node) -> Flow | Node:
        source = node.all_input_nodes[0]
        flow, shape = self._flows[source], source.meta["val"].shape
        given = arguments(node).get("dim", range(len(shape)))
        dims = [d % len(shape) for d in ([given] if isinstance(given, int) else given)]
        if flow.axis in dims and shape[flow.axis] == 1:
            return self._whole(node)
        gone = sum(1 for d in dims if d < flow.axis and shape[d] == 1)
        dims = [d for d in dims if d != flow.axis]
        made = self._aten(SQUEEZED, flow.node, dims) if dims else flow.node
        return replace(flow, node=made, axis=flow.axis - gone)

    def _view(self, node: Node) -> Flow | Node:
        """A reshape that keeps the time axis; any other reshape gets the last frames."""
        source = node.all_input_nodes[0]
        flow, before, after = self._flows[source], list(source.meta["val"].shape), list(node.meta["val"].shape)
        for axis in range(len(after)):
            if after[axis] == before[flow.axis] and prod(after[:axis]) == prod(before[: flow.axis]):
                self._flow(node, source)
                after[axis] = flow.frames
                return replace(flow, node=self._aten(RESHAPE, flow.node, after), axis=axis)
        return self._whole(node)


def _shape(node: Node) -> Sequence[int]:
    return tuple(node.meta["val"].shape)
