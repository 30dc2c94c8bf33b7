"""Writer of core parts as the bytes of a program: values, instructions, memory.

The layout follows ExecuTorch's emitter.  As there, a tensor has memory from the step before the one that writes it to
the last step that reads it; the tensors of a loop's block have memory while the loop runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from micronpu.base.errors import UnsupportedError
from micronpu.emit import executorch_file as pte
from micronpu.frontend.export import results_by_name
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.program import axes_in_memory
from micronpu.partition.host_block import (
    DelegateStep,
    HostBlock,
    KernelCall,
    LoopStep,
    Tensor,
    WriteStep,
    block_of,
    tensors_of,
)
from micronpu.partition.kernels import portable_kernels
from micronpu.partition.memory import Lifetime, place
from micronpu.partition.outline import DelegateCall
from micronpu.program.pte import DIGEST_KEY, ELEMENT_TYPES, EMPTY_DIGEST
from micronpu.upstream.pte import CORE_KERNELS
from micronpu.upstream.torch import codegen_of, tree_leaves, tree_map, tree_structure, treespec_dumps

FOR_COMPLEX = " for complex numbers"  # added to the name of an operator whose portable kernel takes real ones alone
_SCALAR_TYPES = {getattr(torch, name): number for number, name in ELEMENT_TYPES.items()}
_MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1}
_OWN, _SHARED = 1, 2
"""Index of the memory of a method, and of the memory that all methods share."""


class MethodInput(NamedTuple):
    """Input of a method."""

    module: GraphModule
    examples: Sequence[torch.Tensor]
    names: Sequence[str] = ()  # of the inputs, if the model was called with a dictionary


class Written(NamedTuple):
    """A program."""

    buffer: bytes  # the bytes of the `.pte`
    data_files: Mapping[str, bytes]  # `.ptd` files by name
    # The first node of each method's core part that calls an operator, by the operator's name.
    callers: Mapping[str, Mapping[str, Node]]
    # The debug handles of each method's instructions by index.
    handles: Mapping[str, Mapping[int, tuple[int, ...]]]


def written(parts: Mapping[str, MethodInput], named_data: Mapping[str, bytes] | None = None) -> Written:
    """Write core parts as a program.

    Args:
        parts: by the name of the method. Several methods share buffers of the same name as one state.
        named_data: named data of the program, in addition to its partitions'.
    """
    program = pte.Program()
    shared = _Shared(program, _SHARED if len(parts) > 1 else _OWN)
    writers = {}
    for name, part in sorted(parts.items()):
        writers[name] = _Writer(shared, name)
        writers[name].write(part)
        program.methods.append(writers[name].method)
    if len(parts) > 1:
        for writer in writers.values():
            writer.method.memories.append(shared.size)
    program.named_data, beside = _named_data([part.module for part in parts.values()], named_data or {})
    files = {f"{name}.ptd": pte.data_file(data) for name, data in beside.items()}
    callers = {name: writer.callers for name, writer in writers.items()}
    return Written(pte.to_bytes(program), files, callers, {name: writer.handles for name, writer in writers.items()})


_PRIMITIVES = ("executorch_prim::", "aten::sym_", CORE_KERNELS)
"""Prefixes of operators that the runtime has built in, and of CMSIS-NN's operators, which come with the core."""


def without_kernel(callers: Mapping[str, Node]) -> list[str]:
    """Return operators without a portable kernel in ExecuTorch, such as ``aten::erfinv.out``."""
    return sorted(n for n in callers.keys() - portable_kernels() if not n.startswith(_PRIMITIVES))


def _named_data(
    modules: Iterable[GraphModule], further: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, dict[str, bytes]]]:
    """Return named data of the program, partition by partition, and that of each file beside it."""
    own: dict[str, bytes] = {}
    files: dict[str, dict[str, bytes]] = {}
    for module in modules:
        for call in module.modules():
            if isinstance(call, DelegateCall):
                for key, named in call.part.named_data.items():
                    _put(files.setdefault(named.file, {}) if named.file else own, key, named.data)
                _put(own, DIGEST_KEY, EMPTY_DIGEST)
    for key, data in {**further, DIGEST_KEY: EMPTY_DIGEST}.items():
        _put(own, key, data)
    return own, files


def _put(found: dict[str, bytes], key: str, data: bytes) -> None:
    if found.setdefault(key, data) != data:
        raise UnsupportedError(f"Two parts of the program carry different data under the name `{key}`.")


class _Pool:
    """Data of a program, each stored once."""

    def __init__(self, found: list[bytes]) -> None:
        self._found = found
        self._numbers: dict[bytes, int] = {}

    def number(self, data: bytes) -> int:
        """Return the index of data, which are added if they are new."""
        if data not in self._numbers:
            self._numbers[data] = len(self._found)
            self._found.append(data)
        return self._numbers[data]


class _Shared:
    """State shared by all methods of a program.

    Args:
        memory: of the states.

    Attributes:
        size: bytes of states in this memory, if it holds only states.
    """

    def __init__(self, program: pte.Program, memory: int) -> None:
        self.memory, self.size = memory, 0
        self.payloads, self.constants, self.states = map(_Pool, (program.payloads, program.constants, program.states))
        self._offsets: dict[str, int] = {}

    def offset(self, state: Tensor) -> int:
        """Return the offset of a state in the memory that holds only states."""
        if state.state not in self._offsets:
            self._offsets[state.state] = self.size
            self.size += _size(state)
        return self._offsets[state.state]


@dataclass(eq=False)
class _Frame:
    """Tensors of a method, or of a loop's block, which are placed together."""

    spans: dict[int, list[int]] = field(default_factory=dict)  # first and last step of each tensor's lifetime
    tensors: dict[int, Tensor] = field(default_factory=dict)
    blocks: list[tuple[int, _Frame]] = field(default_factory=list)  # inner frames, with the step that needs them
    offsets: dict[int, int] = field(default_factory=dict)
    size: int = 0
    known: set[int] = field(default_factory=set)  # tensors of this frame, and of outer ones

    def begin(self, tensor: Tensor, step: int) -> None:
        self.known.add(id(tensor))
        self.spans[id(tensor)], self.tensors[id(tensor)] = [step, step], tensor

    def touch(self, tensor: Tensor, step: int) -> None:
        root = tensor.root
        if root.data is None and id(root) not in self.known:
            self.begin(root, step)  # memory without a previous write, such as a kernel's scratch memory
        if id(root) in self.spans:
            self.spans[id(root)][1] = max(self.spans[id(root)][1], step)

    def place(self) -> None:
        """Choose the offset of each tensor."""
        for _, inner in self.blocks:
            inner.place()
        lifetimes = [Lifetime(_size(self.tensors[key]), first, last) for key, (first, last) in self.spans.items()]
        lifetimes += [Lifetime(inner.size, step, step) for step, inner in self.blocks]
        placement = place(lifetimes)
        self.size = placement.size
        self.offsets = dict(zip(self.spans, placement.offsets, strict=False))
        for (_, inner), start in zip(self.blocks, placement.offsets[len(self.spans) :], strict=True):
            self.offsets |= {key: start + offset for key, offset in inner.offsets.items()}


class _Writer:
    """Writes one method."""

    def __init__(self, shared: _Shared, name: str) -> None:
        self.method = pte.Method(name)
        self.callers: dict[str, Node] = {}
        self.handles: dict[int, tuple[int, ...]] = {}
        self._shared = shared
        self._places: dict[int, int] = {}  # of the values of tensors
        self._tensors: dict[int, Tensor] = {}  # by the place of their value
        self._now = 0
        self._frame = _Frame()

    def write(self, part: MethodInput) -> None:
        """Writes the method."""
        method, block = self.method, block_of(part.module, part.examples)
        for tensor in block.inputs:
            self._frame.begin(tensor, 0)
            method.inputs.append(self._place(tensor))
            self._now += 1
        held = {t.root.state: t.root for step in block.steps for t in tensors_of(step) if t.root.state}
        # Order of the module, by which the names and scales of the states are recorded.
        held = {name: held[name] for name, _ in part.module.named_buffers(remove_duplicate=False) if name in held}
        for state in held.values():
            if self._shared.memory == _OWN:
                self._frame.begin(state, 0)
            self._place(state)
            self._now += 1
        self._steps(block)
        outputs = tree_leaves(block.outputs)
        self._touch(*(value for value in outputs if isinstance(value, Tensor)), *held.values())
        method.outputs = [self._operand(value, None) for value in outputs]
        info = getattr(codegen_of(part.module.graph), "pytree_info", None)
        results = info.out_spec if info is not None else None
        given = ((), dict.fromkeys(part.names, 0)) if part.names else (tuple(0 for _ in block.inputs), {})
        known = tree_map(lambda _: 0, block.outputs) if results is None else results.unflatten(range(len(outputs)))
        try:
            written_results = treespec_dumps(tree_structure(results_by_name(known)))
        except NotImplementedError:  # a container that the model registers and whose name torch does not know
            written_results = treespec_dumps(tree_structure(tuple(tree_leaves(known))))
        method.containers = treespec_dumps(tree_structure(given)), written_results
        self._frame.place()
        method.memories = [self._frame.size]
        for place_, tensor in self._tensors.items():
            method.values[place_] = self._tensor(tensor)

    # ---------------------------------------------------------------- values

    def _new(self, value: pte.Table | float | str | None) -> int:
        self.method.values.append(value if isinstance(value, tuple) else pte.plain(value))
        return len(self.method.values) - 1

    def _place(self, tensor: Tensor) -> int:
        """Return the index of a tensor's value, which is filled in after placement."""
        if id(tensor) not in self._places:
            self._places[id(tensor)] = self._new(None)
            self._tensors[self._places[id(tensor)]] = tensor
        return self._places[id(tensor)]

    def _tensor(self, tensor: Tensor) -> pte.Table:
        meta, root = tensor.meta, tensor.root
        if meta.dtype not in _SCALAR_TYPES:
            raise UnsupportedError(f"ExecuTorch has no tensors of {meta.dtype}, which the host part has.")
        memory, offset, data = _OWN, self._frame.offsets.get(id(root), 0), 0
        if root.state and root.data is not None:
            data = 1 + self._shared.states.number(_bytes(root.data)) if root is tensor else 0
            if self._shared.memory != _OWN:
                memory, offset = self._shared.memory, self._shared.offset(root)
        elif root.data is not None:
            memory, data = 0, 1 + self._shared.constants.number(_bytes(root.data))
        order = axes_in_memory(meta)
        number = _SCALAR_TYPES[meta.dtype]
        return pte.tensor(number, tuple(meta.shape), order, memory, offset, data, tensor.is_bounded)

    def _operand(self, value: Any, kind: object) -> int:
        """Return the index of a kernel's operand."""
        if isinstance(value, Tensor):
            return self._place(value)
        if isinstance(kind, torch.OptionalType):
            kind = kind.getElementType() if value is not None else None
        if isinstance(value, (list, tuple)):
            return self._new(self._list(value, kind))
        if value is None and isinstance(kind, torch.TensorType):
            return self._new(pte.tensor(0, (0,), (0,)))
        if isinstance(kind, torch.FloatType) and isinstance(value, int):
            value = float(value)
        if isinstance(value, torch.dtype):
            value = _SCALAR_TYPES[value]
        elif isinstance(value, torch.memory_format):
            value = _MEMORY_FORMATS[value]
        elif isinstance(value, torch.layout):
            value = 0
        return self._new(value)

    def _list(self, value: Sequence[Any], kind: object) -> pte.Table:
        element = kind.getElementType() if isinstance(kind, torch.ListType) else None
        if isinstance(element, torch.OptionalType):
            return pte.listed("OptionalTensorList", tuple(-1 if v is None else self._operand(v, None) for v in value))
        if isinstance(element, torch.BoolType):
            return pte.listed("BoolList", tuple(map(bool, value)))
        if isinstance(element, torch.FloatType):
            return pte.listed("DoubleList", tuple(map(float, value)))
        is_of_tensors = isinstance(element, torch.TensorType)
        return pte.listed("TensorList" if is_of_tensors else "IntList", tuple(self._operand(v, None) for v in value))

    def _operator(self, name: str, overload: str) -> int:
        if (name, overload) not in self.method.operators:
            self.method.operators.append((name, overload))
        return self.method.operators.index((name, overload))

    def _call(self, name: str, overload: str, *arguments: int) -> None:
        self.method.instructions.append(pte.kernel_call(self._operator(name, overload), arguments))

    # ---------------------------------------------------------------- steps

    def _touch(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self._frame.touch(tensor, self._now)

    def _steps(self, block: HostBlock) -> None:
        for step in block.steps:
            if isinstance(step, KernelCall):
                self._kernel(step)
            elif isinstance(step, DelegateStep):
                self._delegate(step)
            elif isinstance(step, LoopStep):
                self._loop(step)
            else:
                self._write(step)

    def _kernel(self, step: KernelCall) -> None:
        for result in step.results:
            self._frame.begin(result, self._now)
            self._now += 1
        results = [self._place(result) for result in step.results]
        self._touch(*tensors_of(step), *step.results)
        index, name = self._operator(step.name, step.overload), f"{step.name}.{step.overload}".rstrip(".")
        if any(t.meta.is_complex() for t in step.results) and name in portable_kernels():
            name += FOR_COMPLEX
        self.callers.setdefault(name, step.node)
        operands = [self._operand(value, kind) for value, kind in step.operands]
        if step.is_list:
            together = self._new(pte.listed("TensorList", tuple(results)))
            arguments = (*operands, together, together)
        elif len(results) == 1:
            arguments = (*operands, results[0], results[0])
        else:
            arguments = (*operands, *results, self._new(pte.listed("TensorList", tuple(results))))
        if step.handles:
            self.handles[len(self.method.instructions)] = step.handles
        self.method.instructions.append(pte.kernel_call(index, arguments))
        self._now += 1

    def _delegate(self, step: DelegateStep) -> None:
        self._now += 1  # the delegate's own node
        for result in step.results:
            self._frame.begin(result, self._now)
        self._touch(*step.operands)
        results = [self._place(result) for result in step.results]
        method, call = self.method, step.call
        payload = self._shared.payloads.number(call.part.payload)
        operands = [self._place(tensor) for tensor in step.operands]
        method.instructions.append(pte.delegate_call(len(method.delegates), (*operands, *results)))
        method.delegates.append(pte.delegate(call.backend, payload, call.specs))
        self._now += 1
        for _ in range(step.read):  # nodes that take one result, and touch all
            self._touch(*step.results)
            self._now += 1

    def _write(self, step: WriteStep) -> None:
        self._touch(step.state, step.value)
        state, value = self._place(step.state), self._place(step.value)
        self._call("aten::copy_", "", state, value, self._new(False), state)
        self._now += 1

    def _loop(self, step: LoopStep) -> None:
        for tensor in (*step.states, *step.results):
            self._frame.begin(tensor, self._now)
        # Tensors of the block itself are not counted.
        self._touch(*(tensor for tensor in tensors_of(step) if id(tensor.root) in self._frame.known))
        states, results = ([self._place(t) for t in tensors] for tensors in (step.states, step.results))
        sequences = [self._place(t) for t in step.sequences]
        counter, size = self._new(0), self._new(0)
        self._call("aten::sym_size", "int", sequences[0], self._new(0), size)
        for tensor, state in zip(step.initial, states, strict=True):
            self._call("aten::copy_", "", state, self._place(tensor), self._new(False), state)
        first = len(self.method.instructions)
        frame, now = self._frame, self._now
        inner = _Frame(known=frame.known)
        frame.blocks.append((now, inner))
        self._frame, self._now = inner, 0
        for row in step.rows:
            inner.begin(row, 0)
        for sequence, row in zip(sequences, step.rows, strict=True):
            own = self._place(row)
            self._call("aten::select_copy", "int_out", sequence, self._new(0), counter, own, own)
        self._steps(step.body)
        self._touch(*step.body.outputs)
        given = [self._place(tensor) for tensor in step.body.outputs]
        for state, value in zip(states, given, strict=False):
            self._call("aten::copy_", "", state, value, self._new(False), state)
        for result, value in zip(results, given[len(states) :], strict=True):
            self._call("executorch_prim::et_copy_index", "tensor", result, value, counter)
        self._call("executorch_prim::add", "Scalar", counter, self._new(1), counter)
        ended = self._new(False)
        self._call("executorch_prim::eq", "Scalar", counter, size, ended)
        self.method.instructions.append(pte.jump(ended, first))
        self._call("executorch_prim::sub", "Scalar", counter, size, counter)
        self._frame, self._now = frame, now + 1


def _size(tensor: Tensor) -> int:
    """Return the number of bytes that are planned for a tensor."""
    return math.ceil(tensor.meta.numel() * tensor.meta.element_size() / pte.ALIGNMENT) * pte.ALIGNMENT


def _bytes(data: torch.Tensor) -> bytes:
    """Return the bytes of a tensor in the order of its memory."""
    order = axes_in_memory(data)
    return bytes(data.permute(order).contiguous().flatten().view(torch.uint8).numpy()) if data.numel() else b""
