"""Writer of decompositions for one node of a float program, and the names by which rewrites can be disabled.

These rewrites are the decompositions of `micronpu.ops`, and the rewrites of whole programs in this package.  A rewrite
is a function; its name without the leading underscore is the name of the switch, and the first paragraph of its
docstring is shown by `micronpu passes`.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import numpy as np
import torch

from micronpu.base.arguments import strings
from micronpu.base.arrays import Array
from micronpu.base.docstrings import docstring
from micronpu.base.errors import OptionError, one_of
from micronpu.frontend import facts, program
from micronpu.frontend.graphs import GraphModule, Node, map_arg, place_of
from micronpu.frontend.importer import NodeArguments
from micronpu.frontend.run import evaluate
from micronpu.frontend.tensors import add_constant, attribute, clean, is_constant, is_trained
from micronpu.ir.facts import Given
from micronpu.ir.lowering import Capabilities, Float, FloatCall, Step, decompositions
from micronpu.ir.types import DType
from micronpu.ops.calls import CONVERSION, PRODUCT
from micronpu.ops.facts import addends_of
from micronpu.ops.movement import TRANSPOSES
from micronpu.quantize.loops import Loop, loops_of, step_body
from micronpu.quantize.nodes import moves


class GraphWriter(NodeArguments):
    """`micronpu.ir.lowering.Writer` for a node of a float program: written nodes inherit the node's place in the model.

    Args:
        node: the operator to replace.
        shared: nodes written by `beside` in the same traversal, by their arguments.
    """

    def __init__(
        self,
        model: GraphModule,
        node: Node,
        capabilities: Capabilities,
        shared: dict[Hashable, Node] | None = None,
    ) -> None:
        super().__init__(node)
        self.model = model
        self.made: list[Node] = []
        self._place = node
        self._shared = {} if shared is None else shared
        self.capabilities = capabilities
        modes = (getattr(program.value_of(n), "fake_mode", None) for n in (node, *node.all_input_nodes))
        self._mode: Any = next((m for m in modes if m is not None), None) or contextlib.nullcontext()

    @property
    def given(self) -> Given:
        return self.arguments

    @property
    def unevenness(self) -> float:
        return float(facts.UNEVEN.of(self.node))

    @property
    def row_size(self) -> float:
        return float(facts.ROW_SIZE.of(self.node))

    def __call__(self, overload: str, *given: object, **named: object) -> Node:
        return self._write(*_called(overload, given), named, self._place, self.node)

    def _write(self, target: Any, args: tuple[Any, ...], named: dict[str, Any], before: Node, like: Node) -> Node:
        with self.model.graph.inserting_before(before):
            new = self.model.graph.call_function(target, args, named)
        with self._mode:
            value = target(*map_arg(args, lambda n: n.meta["val"]), **named)
        new.meta = dict(like.meta) | {"val": value}
        self.made.append(new)
        return new

    def constant(self, value: float | Array, before: Any = None) -> Node:
        shape = () if getattr(program.value_of(self.node), "shape", None) == () else (1,)  # adds no axis
        data = value if isinstance(value, np.ndarray) else np.full(shape, value, np.float32)
        return add_constant(self.model, before or self.node, _tensor(data), "constant")

    def again(self, x: Node) -> Node:
        """Append the call of the operator to replace for another operand."""
        args = map_arg(self.node.args, lambda _: x)
        return self._write(self.node.target, args, dict(self.node.kwargs), self._place, self.node)

    def copy(self, x: Node, operands: Mapping[Node, Node | None]) -> Node:
        """Append the call of an operator for other operands."""
        args, named = map_arg((x.args, dict(x.kwargs)), lambda n: operands.get(n, n))
        return self._write(x.target, args, named, self._place, x)

    def kept(self) -> Node:
        self._place = self.node.next
        return self.node

    def beside(self, x: Float, overload: str, *given: object) -> Node:
        key = (x, overload, *(tuple(g) if isinstance(g, list) else g for g in given))
        if key not in self._shared:
            target, args = _called(overload, given)
            self._shared[key] = self._write(target, args, {}, program.place_behind(x) if x in args else x, x)
        return self._shared[key]

    def behind(self, x: Node, overload: str, *given: object) -> Node:
        """Write a new operator directly after its last operand, x."""
        target, args = _called(overload, given)
        return self._write(target, args, {}, x.next, self.node)

    def once(self, x: object, make: Callable[[], Node | None]) -> Node | None:
        if (x,) not in self._shared:
            made = make()
            if made is None:
                return None
            self._shared[(x,)] = made
        return self._shared[(x,)]

    def change(self, x: Float, **given: object) -> Float:
        values = program.arguments(x)
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

    def decided(self, number: object) -> Node:
        made = self(CONVERSION, number, self.dtype())
        facts.DECIDED.say(made, made.name)  # the name, since replacements of a node inherit its meta
        return made

    def only_sign(self, x: Node) -> Node:
        facts.SIGN_COUNTS.say(x, x.name)
        return x

    def kept_or_zero(self, number: object, x: object) -> Node:
        made = self(PRODUCT, number, x)
        facts.KEPT_OR_ZERO.say(made, made.name)
        return made

    def with_qparams(self, x: Float, quantization: object) -> Float:
        facts.QPARAMS.say(x, (x.name, quantization))
        return x

    def number(self, x: object) -> Node | None:
        if not isinstance(x, Node) or facts.DECIDED.of(x) != x.name:
            return None
        (number,) = x.all_input_nodes
        return number

    def loop(self, x: Float, states: Sequence[Float], step: Step) -> list[Float] | None:
        if not facts.LOOPS_ALLOWED.of(self.model) or facts.SETTING.of(self.node) == (None,):
            return None
        with self._mode:
            row, values = x.meta["val"][0], [s.meta["val"] for s in states]
        body, inputs = step_body(row, values)
        output = body.graph.output_node()
        output.meta = {k: v for k, v in self.node.meta.items() if k not in ("val", "tensor_meta")}
        write = GraphWriter(body, output, self.capabilities)
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

    def shape(self, x: Float = None) -> tuple[int, ...]:
        return tuple(program.value_of(self.node if x is None else x).shape)

    def shapes(self) -> list[tuple[int, ...]]:
        value = self.node.meta["val"]
        return [tuple(v.shape) for v in (value if isinstance(value, (tuple, list)) else (value,))]

    def dtype(self, x: Float = None) -> DType | None:
        name = str(getattr(program.value_of(self.node if x is None else x), "dtype", "")).removeprefix("torch.")
        return DType(name) if name in {d.value for d in DType} else None

    def known(self, x: object) -> Array | None:
        if isinstance(x, (int, float)):
            return np.array([x], np.float64)
        value = None if is_trained(self.model, x) else self._computed(x)
        return None if value is None else value.detach().cpu().double().numpy()

    def _computed(self, x: object) -> torch.Tensor | None:
        """Return the value of a constant or of a transpose of one."""
        source = x
        while isinstance(source, Node) and program.overload_name(source) in TRANSPOSES:
            source = source.args[0]
        value: torch.Tensor | None = attribute(self.model, source)
        return value if value is None or source is x else evaluate(self.model, x)

    def stored(self, x: object) -> Array | None:
        value = attribute(self.model, x)
        if value is None:
            return None
        plain = value.detach().cpu()
        return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()

    def is_constant(self, x: object) -> bool:
        return is_constant(x)

    def is_parameter(self, x: object) -> bool:
        return isinstance(attribute(self.model, x), torch.nn.Parameter)

    def is_trained(self, x: object) -> bool:
        return is_trained(self.model, x)

    def call(self, x: object) -> FloatCall | None:
        if not isinstance(x, Node) or not program.overload_name(x):
            return None
        return FloatCall(program.overload_name(x), program.arguments(x), len(x.users))

    def readers(self, x: Float = None) -> list[Float]:
        return list((self.node if x is None else x).users)

    def ends(self, *, added: bool = True) -> frozenset[str]:
        found: set[str] = set()
        seen: set[Node] = {self.node}
        waiting = list(self.node.users)
        while waiting:
            user = waiting.pop()
            name = program.overload_name(user)
            if user in seen:
                continue
            seen.add(user)
            adds = name and not seen.isdisjoint(addends_of(name, program.arguments(user)))
            if (adds and added) or moves(user):
                waiting += user.users
            else:
                found.add(name)
        return frozenset(found)

    def read(self) -> frozenset[int] | None:
        users = list(self.node.users)
        if not all(program.is_getitem(user) for user in users):
            return None
        return frozenset(place_of(user) for user in users if user.users)


def _called(overload: str, given: Sequence[object]) -> tuple[Any, tuple[Any, ...]]:
    return program.overload_of(overload), tuple(map(program.in_torch, given))


def _tensor(data: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(data).reshape(data.shape))


# ---------------------------------------------------------------- switches of rewrites


_MODULES = ("decompose", "identities", "norms", "positions", "powers")
_SENTENCES: dict[str, str] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def switch_of(rewrite: Callable[..., object]) -> str:
    """Return the name by which a rewrite is disabled."""
    return rewrite.__name__.lstrip("_")


def switchable(rewrite: Function) -> Function:
    text = docstring(rewrite)
    assert text, "a rewrite's doc-string is what users read"
    _SENTENCES[switch_of(rewrite)] = " ".join(text.split("\n\n")[0].split())
    return rewrite


def float_rewrites() -> dict[str, str]:
    """Return descriptions of the rewrites of the float program, by name."""
    for module in _MODULES:
        importlib.import_module(f"micronpu.quantize.{module}")
    return dict(sorted((decompositions() | _SENTENCES).items()))


def is_on(rewrite: Callable[..., object], disabled: Collection[str]) -> bool:
    return switch_of(rewrite) not in disabled


def apply(rewrite: Callable[..., bool], disabled: Collection[str], model: GraphModule, *more: object) -> None:
    """Apply a rewrite of a whole program, which returns whether anything changed, unless it is disabled."""
    clean(model, is_on(rewrite, disabled) and rewrite(model, *more))


def check_rewrites(disabled: Iterable[str]) -> frozenset[str]:
    """Return names, all of which must be rewrites of the float program; raise `OptionError` otherwise."""
    if isinstance(disabled, str):
        what = f"The rewrites to leave out are {disabled!r}; they are a list of names."
        raise OptionError(what, hint=f"[{disabled!r}]")
    names = frozenset(strings("disabled_rewrites", sorted(disabled) if isinstance(disabled, Set) else disabled))
    for name in sorted(names - set(float_rewrites())) if names else ():
        hint = one_of(float_rewrites(), name, "`micronpu passes`")
        raise OptionError(f"There is no rewrite {name!r} of the float program.", hint=hint)
    return names
