"""The evaluator of torch graphs: a plan of calls, made once, and followed for each input.

    Run(module).run(x)                           what module(x) returns; a value is freed after its last read
    Run(module, wanted=nodes).values({n: v})     the values of some nodes, computed from those that are known
    Run(module).run(x, behind=hook)              the hook sees each value, and what it returns is read instead

A step computes a node from the values of its operands.  Other steps than those of `step_of` give the same graph another
arithmetic: without observers, without rounding, or with values that are not known.

Several operators that read one tensor and numbers, each element alone, are a function of one element, which a table
computes at once.  What the function is, is evaluated: no operator is known by name.

    x ── sigmoid ── mul ── y        x ── elementwise ── y
    └────────────────┘
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError
from micronpu.base.order import reachable
from micronpu.frontend import program
from micronpu.frontend.graphs import Argument, GraphModule, Node, map_arg
from micronpu.frontend.tensors import add_constant, read
from micronpu.ir.lowering import facts_of
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops import facts
from micronpu.ops.tables.table import is_near, wide_table_entries
from micronpu.upstream.torch import FakeTensor, OpOverload, schema_of, tree_map

Values: TypeAlias = dict[Node, Any]
Known: TypeAlias = Mapping[Node, Any]
"""Values that were computed; only the step of a node knows what kind of value they are."""
Step: TypeAlias = Callable[[Known], Any]
Value = TypeVar("Value")
Hook: TypeAlias = Callable[[Node, Any, Known], Any]
"""Gets a node, its value, and the values of its operands; returns the value that is read instead."""
_NOTHING: Known = MappingProxyType({})


def step_of(module: GraphModule, node: Node, function: Callable[..., object] | None = None) -> Step:
    """Return the function that computes a node, which is no input: by ``function`` if given, or else by its own."""
    # Partial functions, as the cells of a closure per node make Python's garbage collector slow.
    if node.op == "get_attr":
        return functools.partial(_attribute, module, node)
    if node.op == "output":
        return functools.partial(_called, same, node.args[:1], {})
    if function is None:
        target: Any = node.target
        function = module.get_submodule(target) if node.op == "call_module" else _function(node)
    if node.op not in ("call_function", "call_module") or not callable(function):
        raise InternalError(f"`{node.name}` is no call of a function.")
    return functools.partial(_called, function, node.args, node.kwargs)


def copying_step(module: GraphModule, node: Node) -> Step:
    """Return the step of a node; an operand that it writes into is copied, since it may have other readers."""
    return step_of(module, node, functools.partial(_copying, node.target) if is_mutable(node) else None)


def called(node: Node, values: Known) -> Any:
    """Return the result of a call for values of its operands; one that it writes into is copied."""
    function = functools.partial(_copying, node.target) if is_mutable(node) else _function(node)
    return _called(function, node.args, node.kwargs, values)


def _function(node: Node) -> Any:
    """Return the function that a node calls, with a division that does not end the process."""
    return truncated_quotient if node.kwargs.get("rounding_mode") == "trunc" and not is_mutable(node) else node.target


def is_mutable(node: Node) -> bool:
    """Return True for a call of an operator that writes into an operand."""
    overload = program.aten_overload(node)
    return overload is not None and schema_of(overload).is_mutable


def truncated_quotient(x: Any, divisor: Any, rounding_mode: str = "trunc") -> torch.Tensor:
    """Return `torch.div` towards zero; the smallest integer divided by -1, which ends a process, is itself."""
    if torch.result_type(x, divisor).is_floating_point:
        return torch.div(x, divisor, rounding_mode=rounding_mode)
    negates = torch.as_tensor(divisor == -1)
    quotient = torch.div(x, torch.where(negates, 1, divisor), rounding_mode=rounding_mode)
    return torch.where(negates, -quotient, quotient)


def _attribute(module: GraphModule, node: Node, _: Known) -> object:
    return read(module, node)


def _called(function: Callable[..., Any], args: Any, kwargs: Any, values: Known) -> Any:
    given: Any = map_arg(args, values.__getitem__)
    return function(*given, **map_arg(kwargs, values.__getitem__)) if kwargs else function(*given)


def _copying(function: Any, first: Any, *args: object, **kwargs: object) -> object:
    return function(first.clone() if isinstance(first, torch.Tensor) else first, *args, **kwargs)


def same(value: Value) -> Value:
    return value


class Run:
    """Runs a module.

    Args:
        step: returns the step of a node that is no input; default: `step_of`.
        wanted: nodes whose values are returned; what they do not need is not computed. Default: the whole graph runs.
        known: nodes whose values are given to `values`.
        once: nodes that depend on no input, whose values are computed in the first call only.
        late: nodes that depend on no input, and are computed right before their first reader.
    """

    def __init__(
        self,
        module: GraphModule,
        step: Callable[[Node], Step] | None = None,
        *,
        wanted: Iterable[Node] | None = None,
        known: Collection[Node] = (),
        once: Collection[Node] = (),
        late: Collection[Node] = (),
    ) -> None:
        self._graph = module.graph
        self._wanted = (module.graph.output_node(),) if wanted is None else tuple(wanted)
        step, kept = step or functools.partial(step_of, module), {*self._wanted, *once}
        nodes = list(module.graph.nodes) if wanted is None else _needed(self._wanted, known)
        if late:
            nodes = list(dict.fromkeys(n for node in nodes if node not in late for n in _with_late(node, late)))
        last = {operand: node for node in nodes for operand in node.all_input_nodes if operand.op != "get_attr"}
        frees: dict[Node, list[Node]] = {}
        for operand, node in last.items():
            if operand not in kept:
                frees.setdefault(node, []).append(operand)
        self._plan = [(n, None if n.op == "placeholder" else step(n), n in once, frees.get(n, ())) for n in nodes]
        self._fixed: Values = {}

    def run(self, *inputs: object, behind: Hook | None = None) -> Any:
        values = dict(self._fixed)
        for _ in self.each(values, *self._graph.process_inputs(*inputs), behind=behind):
            pass
        return self._graph.process_outputs(values[self._wanted[0]])

    def values(self, known: Known = _NOTHING, *inputs: object, behind: Hook | None = None) -> Values:
        """Return the values of the wanted nodes."""
        values = {**self._fixed, **known}
        for _ in self.each(values, *inputs, behind=behind):
            pass
        return {node: values[node] for node in self._wanted}

    def each(self, values: Values, *inputs: object, behind: Hook | None = None) -> Iterator[Node]:
        """Compute values in place, and yield each node before its operands are freed."""
        given = iter(inputs)
        for node, step, is_fixed, frees in self._plan:
            if node not in values:
                value = next(given) if step is None else step(values)
                values[node] = value if behind is None else behind(node, value, values)
                if is_fixed:
                    self._fixed[node] = values[node]
                yield node
            for operand in frees:
                del values[operand]


def _with_late(node: Node, late: Collection[Node]) -> Iterator[Node]:
    yield from (operand for operand in node.all_input_nodes if operand in late)
    yield node


def _needed(wanted: Iterable[Node], known: Collection[Node]) -> list[Node]:
    """Return the wanted nodes and those that they depend on, in the order of the graph."""

    def unknown(nodes: Iterable[Node]) -> list[Node]:
        return [node for node in nodes if node not in known]

    return sorted(reachable(unknown(wanted), lambda node: unknown(node.all_input_nodes)))


@torch.no_grad()
def evaluate(module: GraphModule, value: Any) -> Any:
    """Return the value of an argument that depends on constants alone."""
    nodes: dict[Node, None] = {}
    map_arg(value, lambda n: nodes.setdefault(n))
    for node in _needed(nodes, ()):
        if node.op not in ("get_attr", "call_function"):
            raise InternalError(f"`{node.name}` is no constant.")
    values = Run(module, wanted=nodes).values(behind=_detached)
    return map_arg(value, values.__getitem__)


def _detached(node: Node, value: Value, _: Known) -> Value | torch.Tensor:
    return value.detach() if node.op == "get_attr" and isinstance(value, torch.Tensor) else value


# ---------------------------------------------------------------- functions of one element

Steps: TypeAlias = tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]
"""Overload, arguments and keyword arguments of each operator; "%0" is the operand, "%n" the result of the n-th."""

_GRID, _FARTHEST, _HALVINGS = 4096, 64.0, 44
"""Elements at which a function is examined on each side of 0, least magnitude of the last one, and halvings of their
distances, which are then near the resolution of float64."""
_ROUNDS = 4
"""Rows of elements, each between two elements of the one before it, that find an end of a function."""
_NUMBERS = torch.float32, torch.bool, torch.int32, torch.int64
"""Types of results that a function in a quantized program may have inside."""
_JUMP = 1e-6
"""Least difference of two elements at almost no distance, relative to the results, that is a jump."""
_LSB_INT16, _STEEP = 3, 1.6
"""Largest error in LSB of an interpolated table, 2 for a line, and largest slope in LSB per LSB, 1 for a line."""


def computed(x: object, steps: Steps, call: Callable[..., object], tensor: Callable[[float], object]) -> Any:
    """Return the result of a function; numbers in place of tensors become tensors."""
    values = {"%0": x}
    for index, (name, args, kwargs) in enumerate(steps, 1):
        overload = program.overload_of(name)
        types = [str(argument.type) for argument in schema_of(overload).arguments]
        known = tree_map(lambda a: values.get(a, a) if isinstance(a, str) else a, args)
        given = [
            tensor(a) if type(a) in (int, float) and t == "Tensor" else a for a, t in zip(known, types, strict=False)
        ]
        values[f"%{index}"] = call(overload, given, kwargs)
    return values[f"%{len(steps)}"]


def elementwise(x: torch.Tensor, steps: Steps) -> torch.Tensor:
    """Compute a function; the target of a node that is observed as one operator."""

    def tensor(number: float) -> torch.Tensor:  # whole numbers keep the type of integers
        return torch.tensor(number, dtype=x.dtype if isinstance(number, float) else None)

    result: torch.Tensor = computed(x, steps, lambda overload, args, kwargs: overload(*args, **kwargs), tensor)
    return result


def reveal_functions(model: GraphModule) -> None:
    """Write the operators of all functions again, in place; the last one keeps name and place of the function."""
    found: list[Any] = model.graph.find_nodes(op="call_function", target=elementwise)
    for node in found:
        x, steps = node.args
        last = computed(x, steps, functools.partial(_written, model, node), functools.partial(_stored, model, node))
        node.target, node.args, node.kwargs = last.target, last.args, last.kwargs
        model.graph.erase_node(last)
    if found:
        model.recompile()


def _stored(model: GraphModule, node: Node, number: float) -> Node:
    # An integer would be cast to float at run time, where ExecuTorch's own entry finds no constant.
    return add_constant(model, node, torch.tensor(float(number)), "number")


def _written(
    model: GraphModule, node: Node, overload: OpOverload, args: Sequence[Argument], kwargs: dict[str, Argument]
) -> Node:
    with model.graph.inserting_before(node):
        made = model.graph.call_function(overload, tuple(args), dict(kwargs))
    made.meta = {key: known for key, known in node.meta.items() if key not in ("val", "from_node")}
    if isinstance(value := node.meta.get("val"), FakeTensor):
        with value.fake_mode:
            made.meta["val"] = overload(*map_arg(args, program.value_of), **kwargs)
    return made


def is_pointwise(node: Node, dtypes: Container[torch.dtype] = (torch.float32, torch.bool)) -> bool:
    """Return True if each result of an operator is a function of one element of each operand, for all that is known.

    Args:
        dtypes: those that the result may have.
    """
    overload, value, name = program.aten_overload(node), program.value_of(node), program.overload_name(node)
    if overload is None or not isinstance(value, torch.Tensor) or value.dtype not in dtypes:
        return False
    is_one = torch.Tag.pointwise in overload.tags or facts_of(name).elementwise or name in program.CASTS
    return is_one and not schema_of(overload).is_mutable and not program.is_random(node)


def steps_of(operands: Sequence[Node], members: Sequence[Node], number: Callable[[Node], Any]) -> Steps:
    """Return the steps from operands, which all are the same tensor, to the last member."""
    places = dict.fromkeys(operands, "%0") | {node: f"%{index}" for index, node in enumerate(members, 1)}

    def place(node: Node) -> Argument:
        found: Argument = places.get(node, number(node))
        return found

    args = [map_arg(node.args, place) for node in members]
    return tuple(
        (program.overload_name(node), given, dict(node.kwargs)) for node, given in zip(members, args, strict=True)
    )


@dataclass(frozen=True)
class Function:
    """A function of one element, computed in float64."""

    steps: Steps

    def __call__(self, reals: npt.ArrayLike) -> Array:
        with torch.no_grad():
            result = elementwise(torch.from_numpy(np.array(reals, np.float64)), self.steps)
        return result.numpy()

    def _grid(self) -> Array:
        """Return elements from the lowest to the highest one at which it is examined."""
        numbers = [4 * abs(float(a)) for _, args, _ in self.steps for a in args if isinstance(a, (int, float))]
        side = np.linspace(1.0, max(_FARTHEST, *numbers, 0.0), _GRID)
        side = np.concatenate([np.geomspace(1e-9, 1.0, _GRID // 4)[:-1], side])
        return np.concatenate([-side[::-1], [0.0], side])

    def reads_within(self) -> tuple[float, float]:
        """Return the ends beyond which the result is constant, as behind a clamp; infinite if it changes there."""
        ends = list[float]()
        with np.errstate(all="ignore"):
            for x in (self._grid()[::-1], self._grid()):
                far = self(64 * x[-1:])
                for _ in range(_ROUNDS):
                    changes = np.flatnonzero(self(x) != far)
                    last = int(changes[-1]) if len(changes) else len(x) // 2
                    x = np.linspace(x[last], x[min(last + 1, len(x) - 1)], _GRID)
                ends.append(float(x[-1] if self(x[-1:]) == far else np.copysign(np.inf, x[-1])))
        return ends[0], ends[1]

    def saturates_from(self, margin: float) -> float | None:
        """Return the magnitude of operands from which what reads them, and the result, are constant within a margin.

        Args:
            margin: share of the range of results.
        """
        ends = [facts_of(name).tail_of(margin) for name, args, _ in self.steps if "%0" in args]
        found = [end for end in ends if end is not None]
        if len(found) < len(ends):
            return None
        with np.errstate(all="ignore"):
            results, far = self(self._grid()), self(64 * self._grid()[[0, -1]])
            change = np.abs(self([-max(found), max(found)]) - far).max()
        return max(found) if change <= 2 * margin * np.ptp(results) else None

    def is_smooth(self) -> bool:
        """Return True if the function is finite and has no jumps, so that qparams need not know where they are."""
        every = self._grid()
        low, high = every[:-1], every[1:]
        with np.errstate(all="ignore"):
            first, last = self(low), self(high)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                value = self(middle)
                is_left = np.abs(value - first) >= np.abs(last - value)
                high, last = np.where(is_left, middle, high), np.where(is_left, value, last)
                low, first = np.where(is_left, low, middle), np.where(is_left, first, value)
            return bool((np.abs(last - first) < _JUMP * (1.0 + np.abs(first) + np.abs(last))).all())

    def is_smooth_in_int16(self) -> bool:
        """Return True if a table of int16 numbers, which is interpolated, is as near as operators, in ranges to 16."""
        # If calibration sees less of a steep function than the table has, it is steeper in LSB, and less accurate.
        for reach in 2.0 ** np.arange(-3, 5):
            results = self(np.linspace(-reach, reach, _GRID))
            scale, step = reach / 2**15, float(np.abs(results).max()) / 2**15
            if not np.abs(np.diff(results)).max() <= _STEEP * step * 2**16 / _GRID or not step:
                return False
            x, y = TensorType((1,), DType.INT16, QParams.per_tensor(scale, 0)), QParams.per_tensor(step, 0)
            in_lsb = functools.partial(self._in_lsb, scale, step)
            if not is_near(in_lsb, wide_table_entries(self, x, y), _LSB_INT16):
                return False
        return True

    def _in_lsb(self, scale: float, step: float, numbers: Array) -> Array:
        return np.asarray(self(numbers * scale) / step)


class WrittenFunction(NamedTuple):
    """A function in a quantized program: nodes that dequantize its operand, its operators, and what they compute."""

    reads: Sequence[Node]
    nodes: Sequence[Node]
    function: Function


def written_function(view: program.ProgramView, end: Node, head: Node) -> WrittenFunction | None:
    """Return the function from one dequantized tensor to a float; None if it is none, or if one operator computes it.

    Args:
        head: the operator, of which ``end`` is the result or a fused clamp.
    """

    def is_read(node: Node) -> bool:
        return (integers := program.integers_behind(node)) is not node and view.constant(integers) is None

    def number(node: Node) -> float | torch.Tensor | None:
        known = view.constant(node)
        is_table = known is not None and known.ndim == 1 and all(table_of(n) is node for n in node.users)
        return known if known is None or is_table else known.item() if known.numel() == 1 else None

    def table_of(node: Node) -> object:
        """Return the constant whose elements an operator looks up, in its form table[i]."""
        return facts.table_of(program.overload_name(node), node.args)

    if all(is_read(n) or view.constant(n) is not None for n in head.all_input_nodes):
        return None
    reads, found, waiting = set[Node](), set[Node](), [end]
    while waiting:
        node = waiting.pop()
        if node in found or node in reads or number(node) is not None:
            continue
        value, result = program.value_of(node), program.value_of(end)
        if not hasattr(value, "shape") or value.shape != result.shape:  # SymInt has none
            return None
        if is_read(node):
            reads.add(node)
        elif is_pointwise(node, _NUMBERS) or view.constant(table_of(node)) is not None:
            found.add(node)
            waiting += node.all_input_nodes
        else:
            return None
    if len({n.args for n in reads}) != 1:
        return None
    nodes = sorted(found)
    return WrittenFunction(sorted(reads), nodes, Function(steps_of([*reads], nodes, number)))
