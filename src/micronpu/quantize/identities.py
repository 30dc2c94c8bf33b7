"""Rewrites of functions: spelled-out ones by the operator that computes them, and functions of masked values.

1 / (1 + exp(-x)) in int8 is rounded three times, once as an exponential of any size; sigmoid(x) is rounded once.  On
devices with tables any operators that compute a function of one element become one value with its own qparams.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from micronpu.base.order import reachable
from micronpu.frontend.facts import DECIDED, IN_FLOAT, KEPT_OR_ZERO, QPARAMS, SETTING, SIGN_COUNTS
from micronpu.frontend.graphs import GraphModule, Node, findings, nodes_where, operand
from micronpu.frontend.importer import can_fuse, clamp_behind, known_import
from micronpu.frontend.program import arguments, is_float32, is_getitem, is_random, overload_name, value_of
from micronpu.frontend.run import Function, Steps, called, elementwise, is_pointwise, steps_of
from micronpu.frontend.tensors import attribute, clean, constant_nodes, is_trained, number, replace_each
from micronpu.ir.facts import Form
from micronpu.ir.lowering import Capabilities, facts_of
from micronpu.ops.comparisons import CHOICES, FILLS
from micronpu.ops.elementwise import EXTREMA, MAXIMA
from micronpu.ops.facts import HANDING_ON, is_sum
from micronpu.ops.softmax import SOFTMAX
from micronpu.ops.tiling import PADS
from micronpu.quantize.nodes import form_of, line_of, power_of, takes_clamp
from micronpu.quantize.thresholds import EQUAL_DEPTH, INFINITE, PROJECTION_GAIN, SATURATING
from micronpu.quantize.writer import GraphWriter, switchable

Identity = Callable[[GraphModule, Node, GraphWriter], "Node | None"]


@switchable
def spelled_out(model: GraphModule, able: Capabilities) -> bool:
    """1 / (1 + exp(-x)) -> sigmoid(x), log(1 + exp(x)) -> softplus(x), log(softmax(x)) -> log_softmax(x) and the like

    Exact up to float rounding: 1 / exp(x) and z / exp(x) as exp(-x), exp(x) / sum(exp(x)) as softmax(x),
    log(sigmoid(x)) as log_sigmoid(x), sqrt(x * x) as abs(x), max(x) + log(sum(exp(x - max(x)))) as logsumexp(x).
    """

    def known(node: Node) -> Node | None:
        identity = _IDENTITIES.get(form_of(node)) if is_float32(node) else None
        return None if identity is None else identity(model, node, GraphWriter(model, node, able, {}))

    return replace_each(model, known)


def _of_log(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x: Any = node.args[0]
    if isinstance(x, Node) and overload_name(x) in SOFTMAX and is_float32(x):
        given = arguments(x)
        return write("log_softmax.int", given["self"], given["dim"])
    if form_of(x) is Form.SIGMOID:
        return write("log_sigmoid.default", x.args[0])
    z = _exponent_beside_one(model, x)
    return None if z is None else write("softplus.default", z)


def _of_log1p(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x: Any = node.args[0]
    return write("softplus.default", x.args[0]) if form_of(x) is Form.EXPONENTIAL else None


def _of_division(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x, divisor = arguments(node)["self"], arguments(node)["other"]
    is_share = form_of(x) is Form.EXPONENTIAL and form_of(divisor) is Form.ROW_SUM and _is_same(divisor.args[0], x)
    if is_share and (axis := _only_axis(divisor)) is not None:
        z = x.args[0]
        inside = form_of(z) is Form.DIFFERENCE and _is_largest_of(z.args[1], z.args[0], axis)
        return write("softmax.int", z.args[0] if inside else z, axis)
    inverse = _inverse(model, divisor, write)
    if inverse is None:
        return None
    return inverse if _fixed(model, x) == 1 else write("mul.Tensor", inverse, x)


def _of_sum(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    """Return logsumexp for the largest element of a row plus the logarithm of the sum, if both have the same axes."""
    for largest, log in (node.args[:2], node.args[1::-1]):
        total = _inside(log, Form.LOGARITHM)
        z = _inside(_inside(total, Form.ROW_SUM), Form.EXPONENTIAL)
        if form_of(z) is not Form.DIFFERENCE:
            continue
        x, top = z.args
        axis = _axis_of_largest(top)
        if axis is None or not _is_largest_of(top, x, axis):
            continue
        rank = value_of(top).dim()
        keeps = bool(arguments(total)["keepdim"])
        summed = [a % rank for a in arguments(total)["dim"] or ()]
        if summed == [axis % rank] and _is_same(largest if keeps else _before_squeeze(largest, axis % rank), top):
            return write("logsumexp.default", x, [axis], keeps)
    return None


def _inside(x: Any, form: Form) -> Any:
    """Return the first operand of a function; None if a value is none of it."""
    return x.args[0] if form_of(x) is form else None


def _before_squeeze(x: object, axis: int) -> object:
    """Return the operand of a view without an axis of size 1; any other value unchanged."""
    if not isinstance(x, Node) or overload_name(x) not in HANDING_ON:
        return x
    before: Any = x.args[0]
    shape = tuple(value_of(before).shape)
    is_squeezed = shape[axis : axis + 1] == (1,) and shape[:axis] + shape[axis + 1 :] == tuple(value_of(x).shape)
    return before if is_squeezed else x


def _of_root(model: GraphModule, node: Node, write: GraphWriter) -> Node | None:
    x = node.args[0]
    return write("abs.default", arguments(x)["self"]) if isinstance(x, Node) and power_of(x) == 2 else None


_IDENTITIES: dict[Form | None, Identity] = {
    Form.LOGARITHM: _of_log,
    Form.LOGARITHM_OF_MORE: _of_log1p,
    Form.RECIPROCAL: lambda model, node, write: _inverse(model, node.args[0], write),
    Form.QUOTIENT: _of_division,
    Form.ROOT: _of_root,
    Form.SUM: _of_sum,
}


def _inverse(model: GraphModule, x: Any, write: GraphWriter) -> Node | None:
    """Return 1 / x if x is exp(z) or 1 + exp(z)."""
    if form_of(x) is Form.EXPONENTIAL:
        return write("exp.default", _negated(model, x.args[0], write))
    z = _exponent_beside_one(model, x)
    return None if z is None else write("sigmoid.default", _negated(model, z, write))


def _exponent_beside_one(model: GraphModule, x: Any) -> object:
    """Return z of 1 + exp(z), or None."""
    if form_of(x) is not Form.SUM:
        return None
    for one, power in (x.args[:2], x.args[1::-1]):
        if form_of(power) is Form.EXPONENTIAL and _fixed(model, one) == 1:
            return power.args[0]
    return None


def _negated(model: GraphModule, z: Any, write: GraphWriter) -> Node:
    """Return -z, with the sign merged into an existing operator if possible."""
    if form_of(z) is Form.NEGATIVE:
        return operand(z)
    if form_of(z) in (Form.PRODUCT, Form.QUOTIENT) and (factor := _fixed(model, z.args[1])) is not None:
        return write(overload_name(z), z.args[0], -factor)
    return write("neg.default", z)


def _is_largest_of(x: Any, of: object, axis: int) -> bool:
    """Return True if x is the largest of a value along an axis."""
    return _axis_of_largest(x) == axis and _is_same((x.args[0] if is_getitem(x) else x).args[0], of)


def _axis_of_largest(x: Any) -> int | None:
    """Return the axis along which x is the largest of a value, kept with size 1, or None."""
    if isinstance(x, Node) and is_getitem(x) and x.args[1] == 0 and form_of(x.args[0]) is Form.MAXIMUM_AND_POSITION:
        given = arguments(cast(Node, x.args[0]))
        return int(given["dim"]) % value_of(x).dim() - value_of(x).dim() if given["keepdim"] else None
    return _only_axis(x) if form_of(x) is Form.ROW_MAXIMUM else None


def _is_same(a: object, b: object, depth: int = EQUAL_DEPTH) -> bool:
    if not isinstance(a, Node) or not isinstance(b, Node):
        return type(a) is type(b) and bool(a == b)
    if a is b or not depth or a.op != "call_function" or a.target is not b.target or a.kwargs or b.kwargs:
        return a is b
    if is_random(a):
        return False
    return len(a.args) == len(b.args) and all(_is_same(x, y, depth - 1) for x, y in zip(a.args, b.args, strict=True))


def _only_axis(node: Node) -> int | None:
    """Return the one axis that is reduced and kept with a size of 1, counted from the end."""
    given, shape = arguments(node), value_of(node).shape
    axes = given["dim"]
    axes = list(axes) if isinstance(axes, (list, tuple)) else [axes]
    if len(axes) != 1 or not given["keepdim"] or not isinstance(axes[0], int):
        return None
    return axes[0] if axes[0] < 0 else axes[0] - len(shape)


def _fixed(model: GraphModule, x: object) -> float | None:
    """Return the number that a value is, unless it is trained; None for others."""
    return None if is_trained(model, x) else number(model, x)


class _Fill(NamedTuple):
    """A masked fill: operand, fill value, and a function that writes a similar fill."""

    x: Node
    value: float
    write: Callable[[GraphWriter, Node, float], Node]


@switchable
def function_before_fill(model: GraphModule, able: Capabilities) -> bool:
    """f(masked_fill(x, mask, -1e9)) -> masked_fill(f(x), mask, f(-1e9)), where f(-1e9) is a number like others

    Exact, and the same of `where` with a constant, of infinity, and of a scale between fill and function.
    """
    changed = False
    for node in list(model.graph.nodes):
        changed |= _fill_behind(model, node, able) or _infinite_bound(model, node) or _infinite_pad(node)
    return changed


def _fill_behind(model: GraphModule, node: Node, able: Capabilities) -> bool:
    if not _is_function(model, node):
        return False
    fill = _fill_of(model, node.all_input_nodes[0])
    if fill is None or fill.x is node:
        return False
    end = float(called(node, dict.fromkeys(node.all_input_nodes, torch.tensor(fill.value))))
    if math.isnan(end) or (abs(end) >= INFINITE and line_of(model, node) is None):
        return False
    write = GraphWriter(model, node, able, {})
    computed = write.again(fill.x)
    made = fill.write(write, computed, end)
    node.replace_all_uses_with(made)
    model.graph.erase_node(node)
    return True


def _infinite_bound(model: GraphModule, node: Node) -> bool:
    """maximum(x, -inf) -> x, and the same of minimum(x, inf)"""
    name = overload_name(node)
    if name not in EXTREMA:
        return False
    for x, bound in (node.args[:2], node.args[1::-1]):
        has_effect = _uniform(model, bound) != (-math.inf if name in MAXIMA else math.inf)
        if isinstance(x, Node) and not has_effect and value_of(x).shape == value_of(node).shape:
            node.replace_all_uses_with(x)
            model.graph.erase_node(node)
            return True
    return False


def _infinite_pad(node: Node) -> bool:
    """pad(x, value=-inf) -> pad(x, value=-1e9), which saturates where it changes no result"""
    if overload_name(node) not in PADS:
        return False
    infinite = {place: x for place, x in enumerate(node.args) if isinstance(x, float) and math.isinf(x)}
    for place, x in infinite.items():
        node.update_arg(place, math.copysign(SATURATING, x))
    return bool(infinite)


def _is_function(model: GraphModule, node: Node) -> bool:
    """Return True if a node is a function of one float, with numbers as further operands."""
    is_one = node.target is elementwise or facts_of(overload_name(node)).elementwise or line_of(model, node) is not None
    return is_one and is_float32(node) and len(node.all_input_nodes) == 1


def _fill_of(model: GraphModule, node: Any) -> _Fill | None:
    """Return the parts of a fill with a number far from others, or None."""
    name = overload_name(node)
    given = arguments(node) if name in (*FILLS, *CHOICES) else {}
    if name in FILLS:
        x, mask, value = given["self"], given["mask"], _uniform(model, given["value"])

        def again(write: GraphWriter, made: Node, number: float) -> Node:
            return write("masked_fill.Scalar", made, mask, number)

    elif name in CHOICES:
        hidden = _uniform(model, given["self"])
        x, value = (given["self"], _uniform(model, given["other"])) if hidden is None else (given["other"], hidden)
        condition = given["condition"]

        def again(write: GraphWriter, made: Node, number: float) -> Node:
            if hidden is None:
                return write("where.ScalarOther", condition, made, number)
            return write("where.ScalarSelf", condition, number, made)

    else:
        return None
    is_far = value is not None and abs(value) >= INFINITE and isinstance(x, Node)
    return _Fill(x, value, again) if is_far and value is not None else None


def _uniform(model: GraphModule, x: object) -> float | None:
    """Return a number, or the one that all elements of a constant are."""
    if isinstance(x, (int, float)):
        return float(x)
    known = attribute(model, x)
    if known is None or not known.numel() or not known.is_floating_point() or isinstance(known, torch.nn.Parameter):
        return None
    first = known.flatten()[0]
    return float(first) if bool((known == first).all()) else None


# ---------------------------------------------------------------- functions of one element


@switchable
def functions_to_tables(model: GraphModule, able: Capabilities) -> bool:
    """x * sigmoid(x), x * relu6(x + 3) / 6, x * x * x and the like -> one function of an element, so one table

    For any operators that compute each element from one element of a tensor and from numbers, on devices with tables.
    Functions with jumps, or without finite values, stay: qparams of their intermediate values depend on where.  So do
    those in int16 of which a table, which is interpolated, is less accurate.
    """
    return able.tables and _Functions(model).write()


class _Functions:
    """The functions of a program."""

    def __init__(self, model: GraphModule) -> None:
        self._model = model
        self.sources: dict[Node, Node] = {}  # the tensor that each member of a function is computed from
        self._constants = constant_nodes(model)
        for node in model.graph.nodes:
            if (source := self._source(node)) is not None:
                self.sources[node] = source

    def _source(self, node: Node) -> Node | None:
        """Return the tensor of which each result is a function of one element; None if there are several, or none."""
        if node in self._constants or not is_pointwise(node) or _is_marked(node):
            return None
        read = [n for n in node.all_input_nodes if _fixed(self._model, n) is None]
        found = {self.sources.get(n, n) for n in read}
        if len(found) != 1:
            return None
        (source,) = found
        value, own = source.meta.get("val"), node.meta["val"]
        if source in self._constants or not is_float32(source) or value is None or value.shape != own.shape:
            return None
        if any(n in self.sources and SETTING.of(n) != SETTING.of(node) for n in read):
            return None
        is_fused = source in read and takes_clamp(source) and can_fuse(node)
        return None if is_fused else source

    def write(self) -> bool:
        """Replace each member that others read by its function; return True if there is any."""
        found: dict[Node, Steps] = {}
        known: dict[str, bool] = {}
        for end, source in self.sources.items():
            is_read = any(self.sources.get(user) is not source for user in end.users)
            members = self._members(end) if is_read and is_float32(end) else []
            inside = set(members)
            costs = [n for n in members if not _is_free(n, inside)]
            # A table is better than several operators, of which one is not linear.
            if len(costs) > 1 and any(line_of(self._model, n) is None for n in costs):
                steps = steps_of([source], members, partial(_fixed, self._model))
                is_wide = any(c is not None and c.activations == "int16" for c in SETTING.of(end))
                if (key := f"{is_wide}{steps}") not in known:
                    function = Function(steps)
                    known[key] = function.is_smooth() and (not is_wide or function.is_smooth_in_int16())
                if known[key]:
                    found[end] = steps
        for end, steps in found.items():
            end.target, end.args, end.kwargs = elementwise, (self.sources[end], steps), {}
        return bool(found)

    def _members(self, end: Node) -> list[Node]:
        read = self.sources
        return sorted(reachable([end], lambda n: [x for x in n.all_input_nodes if x is not read[n] and x in read]))


def _is_marked(node: Node) -> bool:
    """Return True for an operator that stays in float, or whose result a rewrite gave a meaning."""
    marks = (QPARAMS.of(node)[0], KEPT_OR_ZERO.of(node), SIGN_COUNTS.of(node), DECIDED.of(node))
    return IN_FLOAT.of(node) or SETTING.of(node) == (None,) or node.name in marks


def _is_free(node: Node, inside: set[Node]) -> bool:
    """Return True for an operator that returns its operand, or is fused into another one of a function."""
    entry, before = known_import(node), node.args[0]
    is_fused = isinstance(before, Node) and before in inside and clamp_behind(before) is node and can_fuse(node)
    return is_fused or (entry is not None and entry.moves_only)


# ---------------------------------------------------------------- magnitudes


def project_magnitudes(model: GraphModule, able: Capabilities) -> int:
    """Replace each magnitude of a pair in a float program by projections, in place; return how many there were.

        sqrt(a^2 + b^2)  ->  gain * max(|a|, |b|, (|a| + |b|) / sqrt(2))

    Values that differ 20 times have squares that differ 400 times: with 255 LSBs the smaller ones become 0.  The
    largest of the projections on four directions is between cos(pi / 8) of the magnitude and all of it; the gain halves
    the error, which is 3.96 % of the magnitude at most.
    """
    pairs = findings(model, _pair)
    for node, (a, b) in pairs.items():
        write = GraphWriter(model, node, able, {})
        a, b = write("abs.default", a), write("abs.default", b)
        diagonal = write("mul.Tensor", write("add.Tensor", a, b), write.constant(math.sqrt(0.5)))
        largest = write("maximum.default", write("maximum.default", a, b), diagonal)
        node.replace_all_uses_with(write("mul.Tensor", largest, write.constant(PROJECTION_GAIN)))
        model.graph.erase_node(node)
    clean(model, bool(pairs))
    return len(pairs)


def has_magnitudes(model: GraphModule) -> bool:
    """Return whether `project_magnitudes` would replace anything."""
    return bool(findings(model, _pair))


def front_end(model: GraphModule) -> tuple[frozenset[str], frozenset[str]]:
    """Return the operators from squares, or products before these, to logarithms, and all operators before them.

    Only of logarithms that read nothing but squares.  Powers of a spectrum span 100 dB: in int8, and in tables of
    int16, most of them are 0.
    """
    nodes = nodes_where(model, overload_name)
    squares, inside, before = {n for n in nodes if power_of(n) == 2}, set[Node](), set[Node]()
    for log in (n for n in nodes if facts_of(overload_name(n)).singular):
        behind = reachable([log], lambda n: () if n in squares else n.all_input_nodes)
        if not any(n.op == "placeholder" for n in behind):
            every = set(reachable([log], lambda n: n.all_input_nodes))
            first: set[Node] = squares & every
            first |= {x for n in first for x in n.all_input_nodes if form_of(x) is Form.PRODUCT}
            behind = reachable(first, lambda n: n.users)
            inside |= every.intersection(behind)
            before |= every
    found = (frozenset(n.name for n in nodes if n in own) for own in (inside, before - inside))
    return next(found), next(found)


def _pair(node: Node) -> tuple[object, object] | None:
    name = overload_name(node)
    if not name or not is_float32(node):
        return None
    given = arguments(node)
    total = given.get("self")
    if form_of(node) is Form.MAGNITUDE:
        return given["self"], given["other"]
    if power_of(node) != 0.5 or not isinstance(total, Node):
        return None
    terms = arguments(total) if overload_name(total) else {}
    if not is_sum(overload_name(total), terms):
        return None
    a, b = _root_of(terms["self"]), _root_of(terms["other"])
    return (a, b) if a is not None and b is not None and a is not b else None


def _root_of(square: object) -> object:
    """Return x of x * x, x ** 2 and square(x), or None."""
    return arguments(square)["self"] if isinstance(square, Node) and power_of(square) == 2 else None
