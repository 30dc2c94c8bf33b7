"""Rewrites of the float program into operators that an NPU has.

They run before annotation, so that every intermediate value gets an observer, and thus a grid, of its own.  All of them
keep the result up to float rounding except `gelu`, whose error is stated there; what int8 makes of the intermediate
values is tested in `tests/compile/test_operators_elementwise.py`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, overload_name
from micronpu.ops import ATEN_IMPORTS
from micronpu.quantize.signs import never_negative
from micronpu.quantize.switches import is_on, switchable
from micronpu.quantize.transforms import add_constant, attribute, is_constant, is_trained

aten = torch.ops.aten

SMALLEST = 2.0**-16
"""Positive numbers below this count as this where a logarithm is taken; no grid of activations has smaller steps."""

GELU_SLOPE = 1.702
"""x * sigmoid(1.702 x) differs from x * Phi(x) by at most 0.0204 (Hendrycks and Gimpel, 2016)."""

_TRANSPOSES = ("t.default", "transpose.int", "permute.default")

Rewrite = Callable[["Writer", Node, dict[str, Any]], Any]
_REWRITES: dict[str, Rewrite] = {}


def rewrites(*overloads: str) -> Callable[[Rewrite], Rewrite]:
    """Registers ``rewrite(write, node, arguments)`` for ATen overloads; it returns the new result, or None to pass.

    The name of the function is that of the switch, see `micronpu.quantize.switches`.
    """

    def register(rewrite: Rewrite) -> Rewrite:
        for name in overloads:
            _REWRITES[name] = rewrite
        return switchable(rewrite)

    return register


class Writer:
    """Appends operators in front of a node, with the shapes of their results and the node's place in the model."""

    def __init__(self, model: GraphModule, node: Node) -> None:
        self.model, self.node = model, node
        self.made: list[Node] = []
        self.tables = False
        self._mode = node.meta["val"].fake_mode

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with self.model.graph.inserting_before(self.node):
            new = self.model.graph.call_function(target, args, kwargs)
        with self._mode:
            value = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]), **kwargs)
        new.meta = dict(self.node.meta) | {"val": value}
        self.made.append(new)
        return new

    def constant(self, value: float | torch.Tensor) -> Node:
        """A constant operand; a number becomes a tensor of one element."""
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor([float(value)])
        return add_constant(self.model, self.node, tensor, "constant")

    def known(self, operand: Any) -> torch.Tensor | None:
        """The value of an operand that is a number or a constant, in float64."""
        if isinstance(operand, (int, float)):
            return torch.tensor([float(operand)], dtype=torch.float64)
        if is_trained(self.model, operand):
            return None
        value = self._computed(operand)
        return None if value is None else value.detach().double()

    def _computed(self, operand: Any) -> torch.Tensor | None:
        """The value of a constant or of a transpose of one."""
        if isinstance(operand, Node) and overload_name(operand) in _TRANSPOSES:
            value = self._computed(operand.args[0])
            return None if value is None else operand.target(value, *operand.args[1:])  # type: ignore[operator]
        return attribute(self.model, operand)

    def transposed(self, weight: Node, factor: float) -> Node:
        """A constant matrix the other way round; a parameter stays one, so that it can be trained."""
        if factor == 1 and overload_name(weight) in _TRANSPOSES:
            source = weight.args[0]
            assert isinstance(source, Node)
            return source
        value = self.known(weight)
        assert value is not None
        if factor == 1 and isinstance(attribute(self.model, weight), torch.nn.Parameter):
            return self(aten.t.default, weight)
        return self.constant((factor * value).float().T.contiguous())

    def scaled(self, x: Any, factor: float) -> Any:
        """``x * factor``."""
        if factor == 1:
            return x
        return x * factor if isinstance(x, (int, float)) else self(aten.mul.Tensor, x, self.constant(factor))

    def power(self, x: Node, exponent: float) -> Node:
        """x to a power, for x >= 0: exp(exponent * log(x)), whose relative error is the same at any magnitude."""
        if self.tables:
            return self(aten.pow.Tensor_Scalar, x, exponent)
        logarithm = self(aten.log.default, self(aten.clamp.default, x, SMALLEST))
        return self(aten.exp.default, self.scaled(logarithm, exponent))


def decompose(model: GraphModule, disabled: Collection[str] = (), *, tables: bool = False) -> bool:
    """Applies every rewrite, also to what the rewrites make, in place.  Returns whether anything changed.

    Args:
        disabled: names of rewrites to leave out.
        tables: keep functions that are tables, see `StaticQuantizer.tables`, and make numbers of truth values.
    """
    # These modules register their rewrites; they use this one.
    import micronpu.quantize.attention
    import micronpu.quantize.concat
    import micronpu.quantize.indices
    import micronpu.quantize.recurrent  # noqa: F401

    changed = is_on(fold_constants, disabled) and fold_constants(model)
    changed |= is_on(make_functional, disabled) and make_functional(model)
    if tables:
        from micronpu.quantize.decisions import decisions_to_numbers

        changed |= is_on(decisions_to_numbers, disabled) and decisions_to_numbers(model)
    pending = deque(model.graph.nodes)
    while pending:
        node = pending.popleft()
        rewrite = _REWRITES.get(overload_name(node))
        value = node.meta.get("val")
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        if rewrite is None or not isinstance(first, torch.Tensor) or first.dtype != torch.float32:
            continue
        if not is_on(rewrite, disabled) or (tables and is_table(node)):
            continue
        write = Writer(model, node) if first is value else _TupleWriter(model, node, first)
        write.tables = tables
        new = rewrite(write, node, arguments(node))
        if new is None or new is node:
            continue
        node.replace_all_uses_with(new)
        model.graph.erase_node(node)
        pending.extendleft(reversed(write.made))
        changed = True
    if changed:
        model.graph.eliminate_dead_code()
        model.recompile()
    return changed


class _TupleWriter(Writer):
    """A writer for a node with several results, of which the first is replaced."""

    def __init__(self, model: GraphModule, node: Node, first: Any) -> None:
        self.model, self.node = model, node
        self.made = []
        self._mode = first.fake_mode


def is_table(node: Node) -> bool:
    """Whether a node is imported as a table."""
    entry = ATEN_IMPORTS.get(overload_name(node))
    return entry is not None and entry.is_table


_VIEWS = (
    "view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "select",
    "slice",
    "squeeze",
    "unsqueeze",
    "expand",
    "flatten",
)


@switchable
def make_functional(model: GraphModule) -> bool:
    """x.relu_() -> relu(x), so that running the quantized program in eager mode changes no value that others read.

    The traced program reads the result of an operator in place wherever it meant the operand afterwards.  One on a view
    with other readers stays, since those may see the change.  An input of the program keeps its value: inputs of a
    delegate are never written.
    """
    changed = False
    for node in model.graph.nodes:
        name, _, form = overload_name(node).partition(".")
        if not name.endswith("_") or name.startswith("_") or not node.args or not isinstance(node.args[0], Node):
            continue
        operand = node.args[0]
        plain = getattr(getattr(aten, name[:-1], None), form, None)
        is_view = overload_name(operand).split(".")[0] in _VIEWS
        if plain is not None and not (is_view and len(operand.users) > 1):
            node.target = plain
            changed = True
    return changed


_LARGEST_FOLDED = 1 << 22  # elements
_KEPT_RANDOM = ("rand", "randn", "randint", "randperm", "bernoulli", "normal", "multinomial", "dropout", "empty")


@switchable
def fold_constants(model: GraphModule) -> bool:
    """Computes what depends on no input.  Parameters that are going to be trained stay as they are.

    ones(8) -> expand(2, 8) -> y        y is a constant
    weight -> slice(0:8) -> y           y is a constant, as the projections of `torch.nn.MultiheadAttention` are
    """
    changed = False
    for node in list(model.graph.nodes):
        value = node.meta.get("val")
        name = overload_name(node).split(".")[0].rstrip("_")
        if not name or not isinstance(value, torch.Tensor) or value.numel() > _LARGEST_FOLDED or name in _KEPT_RANDOM:
            continue
        operands = [attribute(model, n) for n in node.all_input_nodes]
        if any(o is None for o in operands) or any(is_trained(model, n) for n in node.all_input_nodes):
            continue
        if not node.users or any(isinstance(o, torch.Tensor) and o.is_meta for o in operands):
            continue
        known = dict(zip(node.all_input_nodes, operands, strict=True))
        with torch.no_grad():
            args, kwargs = (torch.fx.map_arg(a, lambda n: known[n].detach().clone()) for a in (node.args, node.kwargs))  # noqa: B023
            result = node.target(*args, **kwargs)
        node.replace_all_uses_with(add_constant(model, node, result.contiguous(), "folded"))
        model.graph.erase_node(node)
        changed = True
    return changed


# ---------------------------------------------------------------- sums, products, quotients


@rewrites("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "add.Scalar", "sub.Scalar")
def _sum(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """x + alpha z -> x + (alpha z); integers become floats; a constant behind a linear layer goes into its bias."""
    target = aten.add.Tensor if overload_name(node).startswith("add") else aten.sub.Tensor
    z, alpha = given["other"], given["alpha"]
    sign = 1 if target is aten.add.Tensor else -1
    folded = _into_bias(write, given["self"], z, sign * alpha)
    if folded is not None:
        return folded
    if alpha == 1 and not overload_name(node).endswith("Scalar") and not _is_integer(write, z):
        return None
    return write(target, given["self"], write.scaled(_as_float(write, z), alpha))


def _is_integer(write: Writer, z: Any) -> bool:
    value = attribute(write.model, z)
    return value is not None and not value.is_floating_point()


def _as_float(write: Writer, z: Any) -> Any:
    """An integer constant as float32, so that it can be quantized."""
    value = attribute(write.model, z)
    return z if value is None or value.is_floating_point() else write.constant(value.float())


def _into_bias(write: Writer, x: Any, z: Any, factor: float) -> Node | None:
    """linear(x, w, b) + z -> linear(x, w, b + z), where z is constant and nobody else reads the layer."""
    if not isinstance(x, Node) or overload_name(x) != "linear.default" or len(x.users) != 1:
        return None
    addend, given = write.known(z), arguments(x)
    weight, bias = (write.known(given[name]) if given[name] is not None else None for name in ("weight", "bias"))
    if addend is None or weight is None or (given["bias"] is not None and bias is None):
        return None
    outputs = weight.shape[0]
    if addend.numel() not in (1, outputs) or not _is_row(addend):
        return None
    total = torch.zeros(outputs, dtype=torch.float64) if bias is None else bias
    total = total + factor * addend.reshape(-1)
    return write(aten.linear.default, given["input"], given["weight"], write.constant(total.float()))


@rewrites("rsub.Scalar", "rsub.Tensor")
def _reversed_difference(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """rsub(x, z) -> z - x"""
    z = given["other"]
    minuend = write.constant(z) if isinstance(z, (int, float)) else z
    return write(aten.sub.Tensor, minuend, write.scaled(given["self"], given["alpha"]))


@rewrites("mul.Scalar", "mul.Tensor", "mul_.Tensor")
def _product(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """Integer factors become floats; a factor of 1 vanishes."""
    z = given["other"]
    if isinstance(z, (int, float)) and z == 1:
        return given["self"]
    if overload_name(node) != "mul.Scalar" and not _is_integer(write, z):
        return None
    return write(aten.mul.Tensor, given["self"], _as_float(write, z))


@rewrites("div.Tensor", "div_.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "true_divide.Tensor")
def _quotient(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """x / 3 -> x * (1/3);  x / z -> x * reciprocal(z) where z is never negative."""
    x, z = given["self"], given["other"]
    if given.get("rounding_mode") is not None:
        return None
    divisor = write.known(z)
    if divisor is not None:
        if not bool((divisor != 0).all()):
            return None
        reciprocal = (1.0 / divisor).float()
        return write(aten.mul.Tensor, x, write.constant(reciprocal))
    inverted = write.tables or never_negative(write.model, z)
    return write(aten.mul.Tensor, x, write.power(z, -1.0)) if inverted else None


@rewrites("reciprocal.default", "reciprocal_.default")
def _reciprocal(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """1 / x -> exp(-log(x)), where x is never negative."""
    return write.power(given["self"], -1.0) if never_negative(write.model, given["self"]) else None


@rewrites("sqrt.default", "sqrt_.default")
def _root(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """sqrt(x) -> exp(log(x) / 2)"""
    return write.power(given["self"], 0.5)


@rewrites("square.default", "square_.default")
def _square(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """square(x) -> x * x"""
    return write(aten.mul.Tensor, given["self"], given["self"])


@rewrites("pow.Tensor_Scalar", "pow_.Scalar")
def _power(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """Whole powers up to 4 by multiplication, 1/2 and -1/2 by the roots, others by exp and log for x >= 0."""
    x, exponent = given["self"], float(given["exponent"])
    if exponent == 1:
        return x
    if exponent in (2, 3, 4):
        square = write(aten.mul.Tensor, x, x)
        return square if exponent == 2 else write(aten.mul.Tensor, square, x if exponent == 3 else square)
    if exponent == -0.5:
        return write(aten.rsqrt.default, x)
    if exponent == -2:
        return write.power(write(aten.mul.Tensor, x, x), -1.0)
    return write.power(x, exponent) if exponent == 0.5 or never_negative(write.model, x) else None


@rewrites("expm1.default")
def _exp_minus_one(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """expm1(x) -> exp(x) - 1"""
    return write(aten.sub.Tensor, write(aten.exp.default, given["self"]), write.constant(1.0))


@rewrites("log1p.default")
def _log_of_one_plus(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """log1p(x) -> log(x + 1)"""
    return write(aten.log.default, write(aten.add.Tensor, given["self"], write.constant(1.0)))


# ---------------------------------------------------------------- activation functions


@rewrites("silu.default", "silu_.default")
def _silu(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """silu(x) -> x * sigmoid(x)"""
    return write(aten.mul.Tensor, given["self"], write(aten.sigmoid.default, given["self"]))


@rewrites("gelu.default", "gelu_.default")
def _gelu(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """gelu(x) -> x * sigmoid(1.702 x), for either form; off by at most 0.0204 (see `GELU_SLOPE`)."""
    x = given["self"]
    return write(aten.mul.Tensor, x, write(aten.sigmoid.default, write.scaled(x, GELU_SLOPE)))


@rewrites("hardsigmoid.default", "hardsigmoid_.default")
def _hard_sigmoid(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """clamp(x / 6 + 1/2, 0, 1) -> relu6(x + 3) / 6: the clamp goes into the addition."""
    shifted = write(aten.add.Tensor, given["self"], write.constant(3.0))
    return write.scaled(write(aten.hardtanh.default, shifted, 0.0, 6.0), 1.0 / 6.0)


@rewrites("elu.default", "elu_.default", "celu.default", "celu_.default", "selu.default", "selu_.default")
def _exponential_rectifier(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """elu(x) -> relu(x) + alpha * (exp(min(x, 0)) - 1), scaled where the variant is"""
    name = overload_name(node).split(".")[0].rstrip("_")
    alpha, scale, inner = (
        float(given.get("alpha", 1.0)),
        float(given.get("scale", 1.0)),
        float(given.get("input_scale", 1.0)),
    )
    if name == "celu":
        inner = 1.0 / alpha
    elif name == "selu":
        alpha, scale = 1.6732632423543772, 1.0507009873554805
    x = given["self"]
    below = write(aten.exp.default, write.scaled(write(aten.clamp.default, x, None, 0.0), inner))
    below = write(aten.sub.Tensor, write.scaled(below, alpha * scale), write.constant(alpha * scale))
    return write(aten.add.Tensor, write.scaled(write(aten.relu.default, x), scale), below)


def _minus_log_sigmoid(write: Writer, x: Node) -> Node:
    """log(sigmoid(|x|)), which is in [-log 2, 0]: minus the distance of softplus to relu."""
    return write(aten.log.default, write(aten.sigmoid.default, write(aten.abs.default, x)))


def _soft_rectifier(write: Writer, x: Node) -> Node:
    return write(aten.sub.Tensor, write(aten.relu.default, x), _minus_log_sigmoid(write, x))


@rewrites("softplus.default")
def _softplus(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """softplus(x) -> relu(x) - log(sigmoid(|x|))"""
    beta = float(given["beta"])
    return write.scaled(_soft_rectifier(write, write.scaled(given["self"], beta)), 1.0 / beta)


@rewrites("mish.default", "mish_.default")
def _mish(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """mish(x) -> x * tanh(softplus(x)); tanh does not tell 6 from more, which keeps the grid of softplus fine"""
    x = given["self"]
    soft = write(aten.hardtanh.default, _soft_rectifier(write, x), 0.0, 6.0)
    return write(aten.mul.Tensor, x, write(aten.tanh.default, soft))


@rewrites("log_sigmoid.default")
def _log_sigmoid(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """log_sigmoid(x) -> min(x, 0) + log(sigmoid(|x|))"""
    x = given["self"]
    return write(aten.add.Tensor, write(aten.clamp.default, x, None, 0.0), _minus_log_sigmoid(write, x))


@rewrites("glu.default")
def _gated_linear(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """glu(x) -> first half * sigmoid(second half)"""
    x, axis = given["self"], given["dim"]
    size = x.meta["val"].shape[axis]
    value, gate = (write(aten.slice.Tensor, x, axis, a, b) for a, b in ((0, size // 2), (size // 2, size)))
    return write(aten.mul.Tensor, value, write(aten.sigmoid.default, gate))


@rewrites("log_softmax.int", "_log_softmax.default")
def _log_softmax(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """log_softmax(x) -> z - log(sum(exp(z))), z = x - max(x)"""
    x, axis = given["self"], given["dim"]
    z = write(aten.sub.Tensor, x, write(aten.amax.default, x, [axis], True))
    total = write(aten.sum.dim_IntList, write(aten.exp.default, z), [axis], True)
    return write(aten.sub.Tensor, z, write(aten.log.default, total))


# ---------------------------------------------------------------- reductions


@rewrites("max.default", "min.default", "max.dim", "min.dim")
def _extremum(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """max(x), max(x, dim)[0] -> amax; where the index is read, too, the operator stays."""
    target = aten.amax.default if overload_name(node).startswith("max") else aten.amin.default
    if overload_name(node).endswith(".default"):
        return write(target, given["self"], [])
    readers = list(node.users)
    if any(r.args[1] != 0 and r.users for r in readers):
        return None
    new = write(target, given["self"], [given["dim"]], given["keepdim"])
    for reader in readers:
        if reader.args[1] == 0:
            reader.replace_all_uses_with(new)
        write.model.graph.erase_node(reader)
    return new


@rewrites("var.dim", "var.correction", "var.default", "std.dim", "std.correction", "std.default")
def _variance(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """var(x) -> sum((x - mean(x))^2) / (n - 1); std is its root"""
    x, shape = given["self"], given["self"].meta["val"].shape
    axes = given.get("dim") or list(range(len(shape)))
    count = math.prod(shape[a] for a in axes)
    correction = given.get("correction", 1.0 if given.get("unbiased", True) else 0.0)
    correction = 1.0 if correction is None else float(correction)
    if count <= correction:
        return None
    centered = write(aten.sub.Tensor, x, write(aten.mean.dim, x, axes, True))
    square = write(aten.mul.Tensor, centered, centered)
    # A sum has a grid of its own where a mean has that of the squares, the largest of which nobody wants to know.
    total = write(aten.sum.dim_IntList, square, axes, bool(given.get("keepdim")))
    variance = write.scaled(total, 1.0 / (count - correction))
    return write.power(variance, 0.5) if overload_name(node).startswith("std") else variance


@rewrites("linalg_vector_norm.default")
def _norm(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """Of order 2: sqrt(sum(x * x)); of order 1: sum(|x|)"""
    x, order = given["self"], given["ord"]
    if order not in (1, 2):
        return None
    terms = write(aten.abs.default, x) if order == 1 else write(aten.mul.Tensor, x, x)
    total = write(aten.sum.dim_IntList, terms, given["dim"], given["keepdim"])
    return total if order == 1 else write.power(total, 0.5)


# ---------------------------------------------------------------- products of matrices


@rewrites("matmul.default", "mm.default", "linear.default", "addmm.default", "baddbmm.default", "baddbmm_.default")
def _matrix_product(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """The form with constant weights becomes `linear`, any other `matmul` and an addition.

    x @ w -> linear(x, w')                          w [K, N] constant, w' [N, K]
    linear(x, z, b) -> matmul(x, z') + b            z computed
    addmm(b, x, z) -> beta b + alpha (x @ z)
    """
    name = overload_name(node).split(".")[0].rstrip("_")
    if name == "linear":
        return _computed_weights(write, given)
    x = given.get("batch1", given.get("mat1", given["self"]))
    z: Any = given.get("batch2", given.get("mat2", given.get("other")))
    alpha, beta = float(given.get("alpha", 1)), float(given.get("beta", 1))
    weight, bias = write.known(z), None
    if "mm" in name and name != "mm":
        bias = given["self"]
    vector = write.known(bias) if bias is not None else None
    if weight is not None and weight.dim() == 2 and write.known(x) is None and (bias is None or _is_row(vector)):
        if bias is not None and vector is not None and (beta != 1 or bias.meta["val"].shape != weight.shape[1:]):
            bias = write.constant((beta * vector).float().reshape(-1).expand(weight.shape[1]).contiguous())
        return write(aten.linear.default, x, write.transposed(z, alpha), bias)
    if name == "matmul":
        return None
    product = write.scaled(write(aten.matmul.default, x, z), alpha)
    return product if bias is None else write(aten.add.Tensor, product, write.scaled(bias, beta))


def _is_row(bias: torch.Tensor | None) -> bool:
    return bias is not None and (bias.dim() <= 1 or bias.shape[-1] == bias.numel())


def _computed_weights(write: Writer, given: dict[str, Any]) -> Node | None:
    """`linear` whose weights are computed by the program."""
    weight = given["weight"]
    if is_constant(weight):
        return None
    product = write(aten.matmul.default, given["input"], write(aten.transpose.int, weight, -1, -2))
    return product if given["bias"] is None else write(aten.add.Tensor, product, given["bias"])
