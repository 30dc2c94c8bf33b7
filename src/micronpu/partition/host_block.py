"""The core part of a program as steps of ExecuTorch's runtime: one list, in which every tensor has a fixed shape.

Called graphs are inlined, operators are decomposed into those with kernels, and views take no step.  The rules are
those of ExecuTorch's own lowering.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx.node import map_aggregate

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.facts import HANDLES
from micronpu.frontend.graphs import Graph, GraphModule, Node
from micronpu.frontend.program import axes_in_memory, named, only_checks, overload_of, short_name
from micronpu.frontend.tensors import is_write, written
from micronpu.ops.calls import UNINITIALIZED
from micronpu.ops.facts import CONTIGUOUS, RESHAPED
from micronpu.ops.movement import COPIES, VIEW_COPY
from micronpu.ops.slicing import CONCATENATIONS
from micronpu.partition.kernels import CoreKernel, decomposed, is_composite, is_decomposed, kernel_of, promotes
from micronpu.partition.outline import DelegateCall
from micronpu.upstream.torch import FakeTensorMode, OpOverload, cast, schema_of, tree_leaves, tree_map


@dataclass(eq=False)
class Tensor:
    """A tensor of the core part."""

    meta: torch.Tensor  # its shape, dtype and strides; a tensor without data
    base: Tensor | None = None  # the tensor whose memory it shares
    data: torch.Tensor | None = None  # value of a constant
    state: str = ""  # name of the buffer of a tensor that persists from call to call; ``data`` is its initial value
    is_bounded: bool = False  # True if its size grows during a run
    source: tuple[Tensor, tuple[object, ...]] | None = (
        None  # the integers that it was dequantized from, and their qparams
    )

    @property
    def root(self) -> Tensor:
        """The tensor that has the memory."""
        return self if self.base is None else self.base.root


@dataclass(eq=False)
class KernelCall:
    """A call of a kernel."""

    name: str
    overload: str
    operands: list[tuple[Any, Any]]  # in the kernel's order, with their types in its schema
    results: list[Tensor]  # tensors that it writes
    node: Node  # of the core part
    is_list: bool = False  # True if the results are one list
    is_view: bool = False  # True for a view, which takes no step unless its result is a program output
    handles: tuple[int, ...] = ()  # debug handles of its operators


@dataclass(eq=False)
class DelegateStep:
    """A call of a delegate; ``read`` is the number of results that are read."""

    call: DelegateCall
    operands: list[Tensor]
    results: list[Tensor]
    read: int = 0


@dataclass(eq=False)
class WriteStep:
    """A new value of a state."""

    state: Tensor
    value: Tensor


@dataclass(eq=False)
class LoopStep:
    """A block that is repeated for each row of sequences."""

    initial: list[Tensor]  # initial values of ``states``
    sequences: list[Tensor]  # tensors whose rows the block reads, as ``rows``
    states: list[Tensor]
    rows: list[Tensor]
    results: list[Tensor]
    body: HostBlock  # returns the next values of the states, and a row of each of ``results``


@dataclass(eq=False)
class HostBlock:
    """Steps in order, and their outputs."""

    inputs: list[Tensor]
    steps: list[KernelCall | DelegateStep | WriteStep | LoopStep] = field(default_factory=list)
    outputs: Any = None


def block_of(module: GraphModule, examples: Sequence[torch.Tensor]) -> HostBlock:
    """Return the steps of a core part."""
    shapes = _Shapes()
    block = HostBlock([Tensor(shapes.like(example)) for example in examples])
    with torch.no_grad():
        block.outputs = _Builder(block, shapes).run(module, block.inputs)
    _leave_out_unread(block)
    return block


class _Shapes:
    """Tensors without data, with shapes as torch computes them on the CPU.

    Calls with operands of the same shapes and strides are computed once: the blocks of a network repeat them, and
    torch takes 0.3 ms for each.
    """

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known: dict[Hashable, Any] = {}

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._once(torch.empty_strided, tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
        return found

    def of(
        self, shape: Sequence[int], dtype: torch.dtype, layout: torch.memory_format = torch.contiguous_format
    ) -> torch.Tensor:
        """Return a tensor with this shape and order in memory."""
        found: torch.Tensor = self._once(_empty, tuple(shape), dtype, layout)
        return found

    def computed(self, node: Node, function: Callable[..., object], *args: object, **kwargs: object) -> Any:
        """Return the result of a function of a node of the core part on tensors without data."""
        try:
            return self._once(function, *args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            what = f"The shape of what {named(node)} gives on the host is not known before it runs."
            raise UnsupportedError(what, hint="operators whose results have a fixed shape") from error

    def _once(self, function: Callable[..., object], *args: object, **kwargs: object) -> Any:
        key = _key((function, args, kwargs))
        try:
            return self._known[key]
        except (KeyError, TypeError) as error:  # TypeError: an operand that cannot be hashed
            args, kwargs = tree_map(lambda v: v.meta if isinstance(v, Tensor) else v, (args, kwargs))
            with self._mode:
                found = function(*args, **kwargs)
            if isinstance(error, KeyError):
                self._known[key] = found
            return found


def _empty(shape: Sequence[int], dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype).to(memory_format=layout)


def _key(value: object) -> object:
    """Return what decides shape, strides and dtype of a result, of an operand or a collection of operands."""
    value = value.meta if isinstance(value, Tensor) else value
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    if isinstance(value, dict):
        return tuple((name, _key(part)) for name, part in value.items())
    return tuple(map(_key, value)) if isinstance(value, (tuple, list)) else (type(value), value)


def missing_variant(name: str, node: Node) -> UnsupportedError:
    """Return the error for an operator without an out variant."""
    return UnsupportedError(
        f"ExecuTorch cannot call {name}, as {named(node)} does on the host: there is no variant of it that writes "
        "into memory planned before.",
        hint="other operators for it, or register its out variant with torch.library",
    )


def _walked(
    graph: Graph, inputs: Iterable[object], attribute: Callable[[str], object], call: Callable[[Node, Any, Any], object]
) -> object:
    """Return the outputs of a graph, where ``call`` gives the value of a call from its operands."""
    own: dict[Any, Any] = {}
    given = iter(inputs)
    for node in graph.nodes:
        args, kwargs = map_aggregate((node.args, node.kwargs), lambda value: own.get(value, value))
        if node.op == "output":
            return args[0]
        if node.op == "placeholder":
            own[node] = next(given)
        else:
            own[node] = attribute(str(node.target)) if node.op == "get_attr" else call(node, args, kwargs)
    raise AssertionError("a graph without an output")


class _Builder:
    """Writes the steps of one block, and of the graphs that it calls."""

    def __init__(self, block: HostBlock, shapes: _Shapes, known: dict[int, Tensor] | None = None) -> None:
        self._block, self._shapes = block, shapes
        self._known = known if known is not None else {}  # constants and states
        self._node: Node
        self._handles: tuple[int, ...] = ()

    def run(self, module: GraphModule, inputs: Sequence[object]) -> Any:
        """Append the steps of a graph, and return its outputs."""
        states = written(module)

        def call(node: Node, args: Any, kwargs: object) -> Any:
            if node.op == "call_module":
                return self._module(module.get_submodule(str(node.target)), args)
            return self._function(node, args, kwargs)

        return _walked(module.graph, inputs, lambda path: self._attribute(module, path, states), call)

    def _attribute(self, module: GraphModule, path: str, states: Collection[str]) -> object:
        home, _, name = path.rpartition(".")
        value = getattr(module.get_submodule(home), name)
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._known:
            self._known[id(value)] = self._constant(value.detach(), path if path in states else "")
        return self._known[id(value)]

    def _constant(self, data: torch.Tensor, state: str = "") -> Tensor:
        if not (data.is_contiguous() or data.is_contiguous(memory_format=torch.channels_last)):
            data = data.contiguous()
        return Tensor(self._shapes.like(data), data=data, state=state)

    def _module(self, module: nn.Module, args: Sequence[Any]) -> Any:
        if isinstance(module, GraphModule):
            return self.run(module, args)
        assert isinstance(module, DelegateCall)
        results = [Tensor(self._shapes.of(*boundary)) for boundary in module.types]
        self._block.steps.append(DelegateStep(module, list(args), results))
        return results

    def _function(self, node: Node, args: Any, kwargs: Any) -> Any:
        target: object = node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if target is torch.ops.higher_order.scan:
            return self._loop(*args)
        self._node, self._handles = node, tuple(HANDLES.of(node))
        if isinstance(target, CoreKernel):
            signature = [(value, None) for value in args]
            value = node.meta["val"]
            if target.keeps_order:  # the operand may be a copy, which is contiguous where the view was not
                result = Tensor(self._shapes.computed(node, torch.empty_like, args[0], dtype=value.dtype))
            else:
                result = Tensor(self._shapes.like(value))
            self._add(KernelCall(target.qualified, "out", signature, [result], node))
            return result
        if is_write(node):
            self._block.steps.append(WriteStep(args[0], args[1]))
            return args[0]
        if not isinstance(target, OpOverload):
            raise missing_variant(str(target), node)
        return self.call(target, args, kwargs)

    def _loop(self, body: GraphModule, initial: Any, sequences: Any, constants: Any) -> list[Tensor]:
        shapes = self._shapes
        states = [Tensor(shapes.like(state.meta)) for state in initial]
        rows = [Tensor(shapes.of(x.meta.shape[1:], x.meta.dtype)) for x in sequences]
        inner = HostBlock([*states, *rows, *constants])
        inner.outputs = list(_Builder(inner, shapes, self._known).run(body, inner.inputs))
        count = len(sequences[0].meta) if sequences else 0
        results = [
            Tensor(shapes.of((count, *y.meta.shape), y.meta.dtype), is_bounded=True)
            for y in inner.outputs[len(states) :]
        ]
        self._block.steps.append(LoopStep(list(initial), list(sequences), states, rows, results, inner))
        return [*states, *results]

    def _add(self, step: KernelCall) -> None:
        step.handles = self._handles
        self._block.steps.append(step)

    # ---------------------------------------------------------------- operators

    def call(self, target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, object]) -> Any:
        """Append an operator of ATen, or of any other library."""
        schema = schema_of(target)
        if schema.is_mutable and schema.name.endswith("_"):  # in place; its operand has no other readers at this stage
            target = _sibling(target, schema.name.partition("::")[2].removesuffix("_")) or target
        if target.namespace == "aten" and short_name(target) in RESHAPED:
            return self._reshaped(args[0], args[1])
        if (is_composite(target) or not target.is_view) and is_decomposed(target):
            return self._in_parts(target, args, kwargs)
        return self._core(target, list(args), dict(kwargs))

    def _in_parts(self, target: OpOverload, args: Any, kwargs: Any) -> object:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        graph, constants = decomposed(target, *tree_map(_example, (args, kwargs)))

        def call(node: Node, args: Any, kwargs: Any) -> Any:
            target: Any = node.target
            return args[0][args[1]] if target is operator.getitem else self._core(target, list(args), dict(kwargs))

        return _walked(graph, tensors, lambda path: self._constant(constants[path]), call)

    def _core(self, target: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
        schema = schema_of(target)
        if only_checks(target):
            return None
        if schema.is_mutable:
            raise missing_variant(schema.name, self._node)
        if target.is_view:
            return self._viewed(target, args, kwargs)
        name = short_name(target) if target.namespace == "aten" else ""
        if name == UNINITIALIZED:
            return Tensor(self._shapes.computed(self._node, target, *args, **kwargs))
        if schema.name == "quantized_decomposed::quantize_per_tensor" and isinstance(args[0], Tensor):
            source, qparams = args[0].source or (None, ())
            if source is not None and qparams == tuple(args[1:]):
                return source
        for number, argument in enumerate(schema.arguments):
            given = args[number] if number < len(args) else None
            if isinstance(argument.type, torch.TensorType) and isinstance(given, (float, int, bool)):
                args[number] = self._constant(torch.tensor(given))
        if promotes(target):
            args = self._of_one_type(target, args, kwargs)
        if name in CONTIGUOUS and axes_in_memory(args[0].meta) != tuple(range(args[0].meta.dim())):
            args[0] = self._copied(args[0], torch.contiguous_format)
        if target is cast() or name in COPIES:
            return self._copied(args[0], kwargs.get("memory_format"), kwargs.get("dtype"), target is cast())
        if name in CONCATENATIONS:
            args[0] = [part for part in args[0] if part.meta.numel()] or args[0][:1]
        return self._called(target, args, kwargs)

    def _called(self, target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, object]) -> Any:
        signature = kernel_of(target)
        schema = schema_of(target)
        if signature is None:
            raise missing_variant(schema.name, self._node)
        values = self._shapes.computed(self._node, target, *args, **kwargs)
        is_list = len(schema.returns) == 1 and isinstance(schema.returns[0].type, torch.ListType)
        results = [Tensor(value) for value in (values if isinstance(values, (tuple, list)) else [values])]
        bound = dict(zip((a.name for a in schema.arguments), args, strict=False)) | dict(kwargs)
        operands = [(bound.get(name, default), kind) for name, kind, default in signature.arguments]
        self._add(KernelCall(signature.name, signature.overload, operands, results, self._node, is_list))
        if schema.name == "quantized_decomposed::dequantize_per_tensor" and not kwargs.get("out_dtype"):
            results[0].source = (args[0], tuple(args[1:]))
        return results if is_list or len(results) > 1 else results[0]

    def _reshaped(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the tensor with another shape, as a view if it is contiguous in memory."""
        meta = self._shapes.computed(self._node, torch.empty_like, x, memory_format=torch.contiguous_format)
        meta = self._shapes.computed(self._node, _VIEW_COPY, meta, shape)
        if not x.meta.is_contiguous():
            x = self._copied(x, torch.contiguous_format)
        root = x.root
        if root.data is not None and not root.state:
            return self._constant(root.data.reshape(tuple(meta.shape)))
        result = Tensor(meta, base=root)
        signature = kernel_of(_VIEW_COPY)
        assert signature is not None
        kinds = [kind for _, kind, _ in signature.arguments]
        operands = list(zip((root, list(meta.shape)), kinds, strict=True))
        self._add(KernelCall(signature.name, signature.overload, operands, [result], self._node, is_view=True))
        return result

    def _viewed(self, target: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> object:
        """Return a view of a tensor: the tensor itself, another shape of it, or a copy."""
        x = args[0]
        seen = self._shapes.computed(self._node, target, *args, **kwargs)
        if isinstance(seen, torch.Tensor):
            if (seen.dtype, seen.shape, seen.stride()) == (x.meta.dtype, x.meta.shape, x.meta.stride()):
                return x
            is_whole = (x.meta.dtype, x.meta.numel()) == (seen.dtype, seen.numel())
            if is_whole and x.meta.is_contiguous() and seen.is_contiguous():
                return self._reshaped(x, list(seen.shape))
        name = schema_of(target).name
        copy = _sibling(target, f"{name.partition('::')[2]}_copy")
        if copy is None:
            raise missing_variant(name, self._node)
        return self._called(copy, args, kwargs)

    def _copied(
        self,
        x: Tensor,
        layout: torch.memory_format | None = None,
        dtype: torch.dtype | None = None,
        is_cast: bool = False,
    ) -> Tensor:
        """Return a copy of a tensor, optionally in another order or dtype."""
        how: dict[str, Any] = {
            "dtype": dtype or x.meta.dtype,
            "memory_format": layout or torch.preserve_format,
            "copy": True,
        }
        meta = self._shapes.computed(self._node, torch.Tensor.to, x, **how)
        if is_cast and (meta.dtype, meta.stride()) == (x.meta.dtype, x.meta.stride()):
            return x
        if x.data is not None and not x.state:
            return self._constant(x.data.to(**how))
        name = "_to_dim_order_copy" if is_cast else "_clone_dim_order"
        operands = [(x, None), (False, None), (list(axes_in_memory(meta)), None)]
        result = Tensor(meta)
        self._add(KernelCall(f"dim_order_ops::{name}", "out", operands, [result], self._node))
        return result

    def _of_one_type(self, target: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> list[object]:
        """Return operands converted to the dtype of the result, unless this is a truth value."""
        dtype = self._shapes.computed(self._node, target, *args, **kwargs).dtype
        if dtype is torch.bool:
            return args
        return [
            self._copied(value, dtype=dtype, is_cast=True) if isinstance(value, Tensor) else value for value in args
        ]


_VIEW_COPY = overload_of(VIEW_COPY)


def _example(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(tuple(value.meta.shape), value.meta.stride(), dtype=value.meta.dtype).zero_()


def _sibling(operator: OpOverload, name: str) -> OpOverload | None:
    """Return the overload of the same name of another operator of the library; None if there is none."""
    schema = schema_of(operator)
    packet = getattr(getattr(torch.ops, schema.name.partition("::")[0]), name, None)
    return getattr(packet, schema.overload_name or "default", None)


def tensors_of(step: KernelCall | DelegateStep | WriteStep | LoopStep) -> Iterator[Tensor]:
    """Yield the tensors that a step reads."""
    if isinstance(step, WriteStep):
        yield from (step.state, step.value)
    elif isinstance(step, LoopStep):
        yield from (*step.initial, *step.sequences)
        for inner in step.body.steps:
            yield from tensors_of(inner)
        yield from (value for value in step.body.outputs if isinstance(value, Tensor))
    elif isinstance(step, DelegateStep):
        yield from step.operands
    else:
        yield from (v for v in tree_leaves([value for value, _ in step.operands]) if isinstance(v, Tensor))


def _leave_out_unread(block: HostBlock) -> None:
    """Remove steps whose results are not read, and views that are no program output, in place."""
    outputs = {id(value) for value in tree_leaves(block.outputs) if isinstance(value, Tensor)}
    read = set(outputs)
    kept: list[KernelCall | DelegateStep | WriteStep | LoopStep] = []
    for step in reversed(block.steps):
        if isinstance(step, KernelCall) and step.is_view and id(step.results[0]) not in outputs and not _grows(step):
            if id(step.results[0]) in read:
                read.add(id(step.results[0].base))
            continue
        results = [] if isinstance(step, WriteStep) else list(step.results)
        if isinstance(step, LoopStep):
            results += step.states
        if isinstance(step, WriteStep) or any(id(result) in read for result in results):
            if isinstance(step, LoopStep):
                _leave_out_unread(step.body)
            if isinstance(step, DelegateStep):
                step.read = sum(id(result) in read for result in results)
            if isinstance(step, KernelCall) and step.is_view:
                step.results[0].base = None  # a copy
            read.update(id(tensor) for tensor in tensors_of(step))
            kept.append(step)
    block.steps = kept[::-1]


def _grows(step: KernelCall) -> bool:
    base = step.results[0].base
    return base is not None and base.is_bounded
