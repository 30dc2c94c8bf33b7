"""Writes the compositions of `micronpu.ops` into the float program: the one walker.

It runs before annotation, so that every intermediate value gets an observer, and thus a grid, of its own.  What int8
makes of the intermediate values is tested in `tests/compile/ops/test_operators_elementwise.py`.
"""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.fx import GraphModule, Node

from micronpu.base.errors import ModelError
from micronpu.frontend.constants import add_constant
from micronpu.frontend.importer import NodeArguments, known_import
from micronpu.frontend.program import arguments, is_getitem, overload_name
from micronpu.ir.types import DType
from micronpu.ir.way import Call, Capabilities, Results, Step
from micronpu.ops.movement import TRANSPOSES
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.quantize.config import STAMP
from micronpu.quantize.loops import ALLOWED, Loop, loops_of, step_body
from micronpu.quantize.specs import GRID, IS_KEPT_OR_ZERO
from micronpu.quantize.switches import is_on, switchable
from micronpu.quantize.transforms import IN_TRAINING, attribute, is_constant, is_trained

aten = torch.ops.aten


class GraphWriter(NodeArguments):
    """`micronpu.ir.way.Writer` for a node of a float program: what it writes has the node's place in the model.

    Args:
        node: the operator that shall be replaced.
        shared: what was written `beside` others, by what was asked for, in the same walk.
    """

    def __init__(
        self,
        model: GraphModule,
        node: Node,
        capabilities: Capabilities,
        shared: dict[tuple[Any, ...], Node] | None = None,
    ) -> None:
        super().__init__(node)
        self.model = model
        self.made: list[Node] = []
        self._place = node
        self._shared = {} if shared is None else shared
        self._capabilities = capabilities
        near = (_first(n.meta.get("val")) for n in (node, *node.all_input_nodes))
        modes = (getattr(value, "fake_mode", None) for value in near)
        self._mode: Any = next((m for m in modes if m is not None), None) or contextlib.nullcontext()

    @property
    def given(self) -> Mapping[str, Any]:
        return self.arguments

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def __call__(self, overload: str, *given: Any, **named: Any) -> Node:
        return self._write(*_called(overload, given), named, self._place, self.node)

    def _write(self, target: Any, args: tuple[Any, ...], named: dict[str, Any], before: Node, like: Node) -> Node:
        with self.model.graph.inserting_before(before):
            new = self.model.graph.call_function(target, args, named)
        with self._mode:
            value = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]), **named)
        new.meta = dict(like.meta) | {"val": value}
        self.made.append(new)
        return new

    def constant(self, value: float | npt.NDArray[Any], before: Any = None) -> Node:
        shape = () if getattr(_first(self.node.meta.get("val")), "shape", None) == () else (1,)  # adds no axis
        data = value if isinstance(value, np.ndarray) else np.full(shape, value, np.float32)
        return add_constant(self.model, before or self.node, _tensor(data), "constant")

    def kept(self) -> Node:
        self._place = self.node.next
        return self.node

    def beside(self, x: Any, overload: str, *given: Any) -> Node:
        key = (x, overload, *(tuple(g) if isinstance(g, list) else g for g in given))
        if key not in self._shared:
            target, args = _called(overload, given)
            place = x
            while place is x or place.op == "placeholder":  # inputs come first
                place = place.next
            self._shared[key] = self._write(target, args, {}, place if x in args else x, x)
        return self._shared[key]

    def once(self, x: Any, make: Callable[[], Node | None]) -> Node | None:
        if (x,) not in self._shared:
            made = make()
            if made is None:
                return None
            self._shared[(x,)] = made
        return self._shared[(x,)]

    def change(self, x: Any, **given: Any) -> Any:
        values = arguments(x)
        for name, value in given.items():
            new = value
            if isinstance(value, np.ndarray):
                new = add_constant(self.model, x, _tensor(value), f"folded_{name}")
            values[name] = new
        last = max(list(values).index(name) for name in given)
        first = list(values)[: max(last + 1, len(x.args))]
        x.args = tuple(values[name] for name in first)
        x.kwargs = {name: value for name, value in x.kwargs.items() if name not in first}
        return x

    def decided(self, number: Any) -> Node:
        made = self("to.dtype", number, self.dtype())
        made.meta[_DECIDED] = made.name  # the name, since meta is handed on to what is written for a node
        return made

    def kept_or_zero(self, number: Any, x: Any) -> Node:
        made = self("mul.Tensor", number, x)
        made.meta[IS_KEPT_OR_ZERO] = made.name
        return made

    def on_grid(self, x: Any, quantization: Any) -> Any:
        x.meta[GRID] = (x.name, quantization)
        return x

    def number(self, x: Any) -> Node | None:
        if not isinstance(x, Node) or x.meta.get(_DECIDED) != x.name:
            return None
        (number,) = x.all_input_nodes
        return number

    def loop(self, x: Any, states: Sequence[Any], step: Step) -> list[Any] | None:
        if not self.model.meta.get(ALLOWED) or self.node.meta.get(STAMP) == (None,):
            return None
        with self._mode:
            row, values = x.meta["val"][0], [s.meta["val"] for s in states]
        body, inputs = step_body(row, values, self._mode)
        output = body.graph.output_node()
        output.meta = {k: v for k, v in self.node.meta.items() if k not in ("val", "tensor_meta")}
        write = GraphWriter(body, output, self._capabilities)
        write._mode = self._mode
        new = step(write, inputs[0], inputs[1:])
        output.args = ((new[0], *new),)
        body.recompile()
        number = sum(1 for _ in loops_of(self.model))
        self.model.add_submodule(f"loop_{number}", Loop(body))
        with self.model.graph.inserting_before(self.node):
            call = self.model.graph.call_module(f"loop_{number}", (x, *states))
            made = [self.model.graph.call_function(operator.getitem, (call, i)) for i in range(len(states) + 1)]
        with self._mode:
            whole = torch.empty((x.meta["val"].shape[0], *values[0].shape))
        for node, value in zip([call, *made], [(whole, *values), whole, *values], strict=True):
            node.meta = dict(self.node.meta) | {"val": value}
        return made

    def shape(self, x: Any = None) -> tuple[int, ...]:
        return tuple(_first((self.node if x is None else x).meta["val"]).shape)

    def shapes(self) -> list[tuple[int, ...]]:
        value = self.node.meta["val"]
        return [tuple(v.shape) for v in (value if isinstance(value, (tuple, list)) else (value,))]

    def dtype(self, x: Any = None) -> DType | None:
        value = _first((self.node if x is None else x).meta.get("val"))
        name = str(getattr(value, "dtype", "")).removeprefix("torch.")
        return DType(name) if name in {d.value for d in DType} else None

    def known(self, x: Any) -> npt.NDArray[Any] | None:
        if isinstance(x, (int, float)):
            return np.array([x], np.float64)
        value = None if is_trained(self.model, x) else self._computed(x)
        return None if value is None else value.detach().cpu().double().numpy()

    def _computed(self, x: Any) -> torch.Tensor | None:
        """The value of a constant or of a transpose of one."""
        if isinstance(x, Node) and overload_name(x) in TRANSPOSES:
            value = self._computed(x.args[0])
            return None if value is None else x.target(value, *x.args[1:])  # type: ignore[operator]
        return attribute(self.model, x)

    def stored(self, x: Any) -> npt.NDArray[Any] | None:
        value = attribute(self.model, x)
        if value is None:
            return None
        plain = value.detach().cpu()
        return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()

    def is_constant(self, x: Any) -> bool:
        return is_constant(x)

    def is_parameter(self, x: Any) -> bool:
        return isinstance(attribute(self.model, x), torch.nn.Parameter)

    def is_trained(self, x: Any) -> bool:
        return is_trained(self.model, x)

    def call(self, x: Any) -> Call | None:
        if not isinstance(x, Node) or not overload_name(x):
            return None
        return Call(overload_name(x), arguments(x), len(x.users))

    def readers(self) -> list[Any]:
        return list(self.node.users)

    def ends(self) -> frozenset[str]:
        found: set[str] = set()
        seen: set[Node] = set()
        waiting = list(self.node.users)
        while waiting:
            user = waiting.pop()
            name = overload_name(user)
            entry = known_import(user)
            if user in seen:
                continue
            seen.add(user)
            adds = name == "add.Tensor" or (name == "baddbmm.default" and user.args[0] in (self.node, *seen))
            if adds or (entry is not None and entry.moves_only):
                waiting += user.users
            else:
                found.add(name)
        return frozenset(found)

    def read(self) -> frozenset[int] | None:
        users = list(self.node.users)
        if not all(is_getitem(user) for user in users):
            return None
        return frozenset(int(user.args[1]) for user in users if user.users)  # type: ignore[arg-type]


_DECIDED = "micronpu_decided"
"""Key of a node's meta: its own name, where it is a decision made of a number that is one."""


def _called(overload: str, given: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Operator and arguments of a call."""
    packet, _, name = overload.partition(".")
    args = tuple(getattr(torch, a.value) if isinstance(a, DType) else a for a in given)
    return getattr(getattr(aten, packet), name), args


def _tensor(data: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(data).reshape(data.shape))


def _is_empty(node: Node) -> bool:
    """Whether there are no elements in its result, of which nothing can be put together."""
    shape = getattr(_first(node.meta.get("val")), "shape", ())
    return any(isinstance(size, int) and size == 0 for size in shape)  # and not one that is known at run time only


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) and value else value


def compose(model: GraphModule, capabilities: Capabilities, disabled: Collection[str] = ()) -> bool:
    """Writes every composition that a device needs, also for what compositions write, in place.

    Args:
        capabilities: of the device.
        disabled: names of rewrites to leave out.

    Returns:
        Whether anything changed.
    """
    from micronpu.quantize.concat import CLAMPS, activation_before_concat

    changed = is_on(make_functional, disabled) and make_functional(model)  # first: compositions know no names in place
    changed |= _walk(model, capabilities, disabled, early=True)
    changed |= is_on(fold_constants, disabled) and fold_constants(model)
    clamps = CLAMPS if is_on(activation_before_concat, disabled) else frozenset[str]()
    changed |= _walk(model, capabilities, disabled, clamps)
    if changed:
        model.graph.eliminate_dead_code()
        model.recompile()
    return changed


def fold_batch_norms(model: GraphModule) -> bool:
    """Writes the compositions of batch norms alone, in place, for those who need them gone before anything else.

    Returns:
        Whether anything changed.
    """
    changed = _walk(model, Capabilities(), (), early=True, only=BATCH_NORMS)
    if changed:
        model.graph.eliminate_dead_code()
        model.recompile()
    return changed


def norms_into_parameters(model: GraphModule) -> None:
    """Folds the batch norms of a float model in place, the new weights as parameters, which can be trained.

    Raises:
        ModelError: the statistics of a batch norm are no numbers to compute with.
    """
    with torch.no_grad():
        fold_batch_norms(model)
    for name in [n for n in model._buffers if n.startswith("folded_")]:
        value = model._buffers.pop(name)
        assert value is not None
        if not torch.isfinite(value).all():
            raise ModelError(
                "A batch norm of the model holds NaN or infinity, or a variance that is negative.",
                hint="look for a training that diverged, or for a checkpoint that was loaded in part",
            )
        model.register_parameter(name, nn.Parameter(value))
    model.recompile()


def _walk(
    model: GraphModule,
    capabilities: Capabilities,
    disabled: Collection[str],
    clamps: Collection[str] = (),
    *,
    early: bool = False,
    only: Collection[str] = (),
) -> bool:
    """One walk over the program.

    Args:
        clamps: overloads that are moved before a concatenation.
        early: the compositions that say so, and not the others.
        only: overloads; all unless given.
    """
    from micronpu.quantize.concat import activation_before_concat

    changed = False
    shared: dict[tuple[Any, ...], Node] = {}
    pending = deque(model.graph.nodes)
    while pending:
        node = pending.popleft()
        name = overload_name(node)
        if _is_empty(node) or (only and name not in only):
            continue
        ways = [w for w in capabilities.compositions(name) if w.early == early and w.name not in disabled]
        tries: list[Callable[[GraphWriter], Any]] = [w.compose for w in ways if early or w.decides or _is_float(node)]
        if name in clamps and _is_float(node):
            tries.append(activation_before_concat)
        for compose in tries:
            write = GraphWriter(model, node, capabilities, shared)
            made: Any = compose(write)
            if made is not None and made is not node:
                _replace(model, node, made, write.made)
                shared.update({key: made for key, value in shared.items() if value is node})
                pending.extendleft(reversed(write.made))
                changed = True
                break
    return changed


def _is_float(node: Node) -> bool:
    value = _first(node.meta.get("val"))
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _replace(model: GraphModule, node: Node, made: Any, written: Collection[Node]) -> None:
    """Puts what was made in the place of a node; what was written of the node itself goes on to read it."""
    if isinstance(made, Results):
        for index, reader in list(_unpacked(node)):
            if index in made.values:
                reader.replace_all_uses_with(made.values[index])
            if not reader.users:
                model.graph.erase_node(reader)
    else:
        node.replace_all_uses_with(made, lambda user: user not in written)
        name, rule = node.meta.get(GRID, ("", None))
        if name == node.name and made in written:  # whoever gave the value its grid gave it to what stands for it
            made.meta.setdefault(GRID, ("", None))
            if made.meta[GRID][0] != made.name:
                made.meta[GRID] = (made.name, rule)
    if not node.users:
        model.graph.erase_node(node)


def _unpacked(node: Node) -> Iterator[tuple[int, Node]]:
    """The nodes that unpack a tuple, with the index of what each takes."""
    return ((int(user.args[1]), user) for user in list(node.users) if is_getitem(user))  # type: ignore[arg-type]


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
_KEPT_RANDOM = ("rand", "randn", "randint", "randperm", "bernoulli", "normal", "multinomial", "empty")


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
        if not name or not isinstance(value, torch.Tensor) or value.numel() > _LARGEST_FOLDED:
            continue
        if name in _KEPT_RANDOM or (name == "dropout" and (arguments(node)["train"] or model.meta.get(IN_TRAINING))):
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
