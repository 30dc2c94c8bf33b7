"""The program of a host part that only quantizes, calls the NPU and dequantizes, without ExecuTorch's compiler.

Its passes have nothing to do there, and to import them takes longer than to compile a small network.  The same bytes
come out, which tests compare; whatever else is in a host part goes through `micronpu.partition.lower`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch.fx import GraphModule, Node

from micronpu.container import digest
from micronpu.emit.executorch_file import ALIGNMENT, Call, Delegate, Plan, PlannedTensor, Value, to_bytes
from micronpu.frontend.program import arguments, axes_in_memory, is_dequantize, is_quantize
from micronpu.partition.memory import Lifetime, place
from micronpu.partition.outline import DelegateCall
from micronpu.upstream.torch import (
    OpOverload,
    codegen_of,
    overload_part,
    schema_of,
    tree_leaves,
    tree_map,
    tree_structure,
    treespec_dumps,
)

_SCALAR_TYPES = {torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float32: 6, torch.bool: 11}
_OUT = "out"


@dataclass(eq=False)
class _Tensor:
    """A tensor of the program.

    Attributes:
        value: on the meta device, with the shape, dtype and strides.
        steps: of the first and the last instruction that touch it, as ExecuTorch counts its nodes.
    """

    value: torch.Tensor
    steps: tuple[int, int]

    def touch(self, step: int) -> None:
        self.steps = self.steps[0], max(self.steps[1], step)

    @property
    def size(self) -> int:
        """Bytes that are planned for it."""
        return math.ceil(self.value.numel() * self.value.element_size() / ALIGNMENT) * ALIGNMENT


def program_of(
    module: GraphModule, examples: Sequence[torch.Tensor], named_data: Mapping[str, bytes] | None = None
) -> bytes | None:
    """The bytes of the program, or None where it takes ExecuTorch's compiler.

    Args:
        module: with a `DelegateCall` for each call of the NPU.
        named_data: what the program carries beside what its partitions bring along.
    """
    if not _is_plain(module, examples):
        return None
    beside = _named_data(module, named_data or {})
    return None if beside is None else to_bytes(_Writer(module, examples).plan(beside))


def _is_plain(module: GraphModule, examples: Sequence[torch.Tensor]) -> bool:
    """Whether the program does nothing but quantize, call the NPU and dequantize, tensors of plain kinds."""
    if not all(e.dtype in _SCALAR_TYPES and e.numel() and 0 not in e.stride() for e in examples):
        return False
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    results = tree_leaves(output.args[0])
    if not all(isinstance(r, Node) and r.op != "placeholder" for r in results):
        return False
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if not node.users or not (_is_call(module, node) or _is_result(module, node) or _is_step(node)):
            return False
    return True


def _is_call(module: GraphModule, node: Node) -> bool:
    if node.op != "call_module":
        return False
    call = module.get_submodule(str(node.target))
    if not isinstance(call, DelegateCall):
        return False
    known = all(dtype in _SCALAR_TYPES and math.prod(shape) for shape, dtype, _ in call.types)
    return known and all(not named.file for named in call.part.named_data.values())


def _is_result(module: GraphModule, node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], Node) and _is_call(module, node.args[0])


def _is_step(node: Node) -> bool:
    if not (is_quantize(node) or is_dequantize(node)) or not isinstance(node.target, OpOverload):
        return False
    if overload_part(node.target) != "default":
        return False
    given = arguments(node)
    first = given.pop("input")
    plain = isinstance(given["scale"], float) and all(isinstance(given[k], int) for k in _NUMBERS)
    return isinstance(first, Node) and plain and given["dtype"] in _SCALAR_TYPES and given.get("out_dtype") is None


_NUMBERS = ("zero_point", "quant_min", "quant_max")


def _named_data(module: GraphModule, further: Mapping[str, bytes]) -> dict[str, bytes] | None:
    """Named data in ExecuTorch's order: partition by partition; None where one name means two things."""
    found: dict[str, bytes] = {}
    for node in module.graph.nodes:
        if node.op == "call_module":
            call = module.get_submodule(str(node.target))
            assert isinstance(call, DelegateCall)
            own = {key: named.data for key, named in call.part.named_data.items()} | {digest.KEY: digest.EMPTY}
            for key, data in own.items():
                if found.setdefault(key, data) != data:
                    return None
    for key, data in {**further, digest.KEY: digest.EMPTY}.items():
        if found.setdefault(key, data) != data:
            return None
    return found


class _Writer:
    """Writes one program.  Steps are counted as ExecuTorch counts nodes: the memory of a result is one of its own."""

    def __init__(self, module: GraphModule, examples: Sequence[torch.Tensor]) -> None:
        self._module = module
        self._examples = examples
        self._plan = Plan()
        self._tensors: dict[int, _Tensor] = {}  # by the place of their value
        self._places: dict[Node, int] = {}
        self._calls: dict[Node, list[int]] = {}
        self._payloads: dict[bytes, int] = {}

    def plan(self, named_data: Mapping[str, bytes]) -> Plan:
        """The finished plan."""
        plan, step = self._plan, count()
        inputs = [n for n in self._module.graph.nodes if n.op == "placeholder"]
        for node, example in zip(inputs, self._examples, strict=True):
            next(step)
            meta = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device="meta")
            self._places[node] = self._new(meta, 0)
            plan.inputs.append(self._places[node])
        for node in self._module.graph.nodes:
            if node.op == "call_module":
                self._call(node, step)
            elif node.op == "call_function" and node.target is not operator.getitem:
                self._step(node, step)
        self._finish(next(step))
        plan.named_data = named_data
        return plan

    def _new(self, value: torch.Tensor, step: int) -> int:
        self._tensors[len(self._plan.values)] = _Tensor(value, (step, step))
        return self._constant(None)  # its place in memory follows

    def _constant(self, value: Value) -> int:
        self._plan.values.append(value)
        return len(self._plan.values) - 1

    def _place_of(self, node: Node) -> int:
        if node.target is operator.getitem:
            call, index = node.args
            assert isinstance(call, Node) and isinstance(index, int)
            return self._calls[call][index]
        return self._places[node]

    def _call(self, node: Node, step: Iterator[int]) -> None:
        call = self._module.get_submodule(str(node.target))
        assert isinstance(call, DelegateCall)
        next(step)  # the delegate's own node
        now = next(step)
        outputs = [
            self._new(torch.empty(shape, dtype=dtype, device="meta").to(memory_format=layout), now)
            for shape, dtype, layout in call.types
        ]
        self._calls[node] = outputs
        plan, payload = self._plan, call.part.payload
        if payload not in self._payloads:
            self._payloads[payload] = len(plan.payloads)
            plan.payloads.append(payload)
        inputs = [self._place_of(source) for source in node.args if isinstance(source, Node)]
        for place_ in inputs:
            self._tensors[place_].touch(now)
        plan.calls.append(Call(len(plan.delegates), (*inputs, *outputs), is_delegate=True))
        plan.delegates.append(Delegate(call.backend, self._payloads[payload], call.specs))
        for _ in {user.args[1] for user in node.users}:
            now = next(step)  # a node that takes one result, and touches all
            for place_ in outputs:
                self._tensors[place_].touch(now)

    def _step(self, node: Node, step: Iterator[int]) -> None:
        given = arguments(node)
        source = self._place_of(given["input"])
        x = self._tensors[source].value
        dtype = given["dtype"] if is_quantize(node) else torch.float32
        result = self._new(torch.empty_like(x, dtype=dtype), next(step))
        now = next(step)
        for place_ in (source, result):
            self._tensors[place_].touch(now)
        self._places[node] = result
        numbers: list[Value] = [given["scale"], *(given[k] for k in _NUMBERS), _SCALAR_TYPES[given["dtype"]]]
        if is_dequantize(node):
            numbers.append(None)  # the default dtype of the result
        operands = [self._constant(value) for value in numbers]
        name = (str(schema_of(node.target).name), _OUT)
        if name not in self._plan.operators:
            self._plan.operators.append(name)
        index = self._plan.operators.index(name)
        self._plan.calls.append(Call(index, (source, *operands, result, result)))

    def _finish(self, last: int) -> None:
        """Outputs, containers, and where in memory everything lies."""
        plan = self._plan
        output = self._module.graph.output_node()
        plan.outputs = [self._place_of(r) for r in tree_leaves(output.args[0]) if isinstance(r, Node)]
        for place_ in plan.outputs:
            self._tensors[place_].touch(last)
        codegen = codegen_of(self._module.graph)
        info = getattr(codegen, "pytree_info", None)
        results = info.out_spec if info is not None else None
        if results is None:
            results = tree_structure(tree_map(lambda _: 0, output.args[0]))
        given = tree_structure((tuple(0 for _ in plan.inputs), {}))
        plan.containers = treespec_dumps(given), treespec_dumps(results)
        tensors = list(self._tensors.items())
        placement = place([Lifetime(tensor.size, *tensor.steps) for _, tensor in tensors])
        plan.memory = placement.size
        for (place_, tensor), offset in zip(tensors, placement.offsets, strict=True):
            plan.values[place_] = PlannedTensor(
                _SCALAR_TYPES[tensor.value.dtype], tuple(tensor.value.shape), axes_in_memory(tensor.value), offset
            )
