"""Allocations of ExecuTorch's runtime on a 32-bit core, computed from the `.pte` alone.

The method allocator is simulated in the order of `Method::init` of ExecuTorch 1.5, with the sizes of its structures on
the core; `tests` compile the same headers for Cortex-M to compare them, and measure a real runtime on the host with the
host's sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from micronpu.program.data import needs_data
from micronpu.program.plan import Plan, PlanValue
from micronpu.targets.registry import BACKENDS, firmware_of


@dataclass(frozen=True)
class Sizes:
    """Bytes of ExecuTorch's structures in a build.

    Attributes:
        pointer: size of an address, and of `size_t`.
        evalue: `EValue`.
        tensor_impl: `TensorImpl`.
        list: `BoxedEvalueList`.
        optional_tensor: `std::optional<Tensor>`.
        chain: `Chain`.
        delegate: `BackendDelegate`.
        spec: `CompileSpec`.
        span: `Span` and `ArrayRef`.
        tensor_meta: `TensorMeta`, the key for looking up a kernel.
        named: `NamedData`, one for each external constant.
        merged: `MergedDataMap`, for data in the program and in files beside it.
        buffer_alignment: alignment of `FreeableBuffer`, a member of `BackendDelegate` and `NamedData`.
        wide: alignment of 64-bit numbers.
    """

    pointer: int
    evalue: int
    tensor_impl: int
    list: int
    optional_tensor: int
    chain: int
    delegate: int
    spec: int
    span: int
    tensor_meta: int
    named: int
    merged: int
    buffer_alignment: int = 8
    wide: int = 8


ON_CORE = Sizes(
    pointer=4,
    evalue=16,
    tensor_impl=32,
    list=12,
    optional_tensor=8,
    chain=16,
    delegate=40,
    spec=12,
    span=8,
    tensor_meta=12,
    named=40,
    merged=12,
)
"""ExecuTorch 1.5 on any 32-bit Arm core with the EABI."""
_MOST_AXES = 16
"""`kTensorDimensionLimit` of ExecuTorch; an axis takes a byte."""
HANDLES = {backend.backend_id: backend.firmware().handle_bytes for backend in BACKENDS.values() if backend.backend_id}
"""Bytes of a delegate's own handle, by backend."""


@dataclass(frozen=True)
class Pools:
    """Memory that a program needs at run time in addition to its own bytes.

    Attributes:
        planned: bytes of each planned memory: activations, and scratch of the core's kernels.
        method: bytes of the method allocator.
        temporary: bytes of the temporary allocator, with the largest scratch of a delegate.
        scratch: scratch of the delegates that need one, in order, within `temporary`.
        alignment: alignment of each pool: a line of the data cache.
        hot: numbers of the planned memories in a faster memory than the others, from 1.
        open: unknown figures, a sentence each.
        inside: minimum bytes for tensors inside of the NPU's partitions that are in no pool.
    """

    planned: tuple[int, ...]
    method: int
    temporary: int
    scratch: tuple[int, ...] = ()
    alignment: int = 32
    open: tuple[str, ...] = ()
    hot: tuple[int, ...] = ()
    inside: int = 0

    @property
    def total(self) -> int:
        return sum(self.planned) + self.method + self.temporary


def pools_of(plan: Plan, sizes: Sizes = ON_CORE) -> Pools:
    """Return the pools of a method.

    Raises:
        PayloadError: a delegate's payload cannot be read.
    """
    scratch, unknown, inside = [], [], 0
    temporary = max((lookup_bytes(call.arguments, sizes) for call in plan.calls if call.operator), default=0)
    for delegate in plan.delegates:
        firmware = firmware_of(delegate.backend)
        if firmware is None:
            unknown.append(f"micronpu does not know what the delegate {delegate.backend} allocates.")
            continue
        need, sentence = firmware.temporary(delegate.payload)
        scratch.append(need)
        inside = max(inside, firmware.inside(delegate.payload))
        temporary = max(temporary, need)
        unknown += [sentence] if sentence else []
    return Pools(
        planned=plan.memories,
        method=method_bytes(plan, sizes),
        temporary=temporary,
        scratch=tuple(scratch),
        open=tuple(dict.fromkeys(unknown)),
        inside=inside,
    )


def pools_of_all(plans: Sequence[Plan], sizes: Sizes = ON_CORE) -> Pools:
    """Return the pools of all methods of a program, which share allocators and run one at a time.

    Raises:
        PayloadError: a delegate's payload cannot be read.
    """
    every = [pools_of(plan, sizes) for plan in plans]
    return Pools(
        planned=tuple(max(row) for row in zip_longest(*(own.planned for own in every), fillvalue=0)),
        method=methods_bytes(plans, sizes),
        temporary=max(own.temporary for own in every),
        scratch=tuple(size for own in every for size in own.scratch),
        open=tuple(dict.fromkeys(line for own in every for line in own.open)),
        inside=max(own.inside for own in every),
    )


def methods_bytes(plans: Sequence[Plan], sizes: Sizes = ON_CORE, handles: Mapping[str, int] = HANDLES) -> int:
    """Return the bytes that one method allocator needs for several methods, in order."""
    used = 0
    for plan in plans:
        used = method_bytes(plan, sizes, handles, used)
    return used


def method_bytes(plan: Plan, sizes: Sizes = ON_CORE, handles: Mapping[str, int] = HANDLES, used: int = 0) -> int:
    """Return the bytes that the method allocator has allocated after a method is loaded.

    Args:
        handles: bytes that a delegate allocates when it is loaded, by backend.
        used: bytes allocated before.
    """

    def take(size: int, alignment: int) -> None:
        nonlocal used
        used = -(-used // alignment) * alignment + size

    word = sizes.pointer
    take(sizes.evalue * len(plan.values), sizes.wide)
    take(len(plan.inputs), 1)
    external = sum(v.external for v in plan.values)
    if external:
        take(sizes.named * external, sizes.buffer_alignment)
    for value in plan.values:
        for size, alignment in _value_bytes(value, sizes):
            take(size, alignment)
    take(sizes.delegate * len(plan.delegates), sizes.buffer_alignment)  # aligned even without delegates
    if needs_data(plan) and plan.named_data:
        take(sizes.merged, word)
    for delegate in plan.delegates:
        take(sizes.spec * len(delegate.specs), word)
        take(handles.get(delegate.backend, 0), word)
    take(sizes.chain * len(plan.chains), word)
    for chain in plan.chains:
        take(word * len(chain), word)
        take(sizes.span * len(chain), word)
        for call in chain:
            if call.arguments or call.kind in ("KernelCall", "DelegateCall"):
                take(word * len(call.arguments), word)
    return used


def _value_bytes(value: PlanValue, sizes: Sizes) -> list[tuple[int, int]]:
    """Return size and alignment of a value's allocations besides its `EValue`."""
    word = sizes.pointer
    if value.tensor is not None:
        rank = len(value.tensor.shape)
        own = [(4 * rank, 4), (rank, 1)] if value.tensor.dynamic else []
        return [*own, (4 * rank, 4), (sizes.tensor_impl, word)]
    if value.kind == "IntList":
        return [(word * value.length, word), (8 * value.length, sizes.wide), (sizes.list, word)]
    if value.kind in ("TensorList", "OptionalTensorList"):
        element = word if value.kind == "TensorList" else sizes.optional_tensor
        return [(element * value.length, word), (word * value.length, word), (sizes.list, word)]
    if value.kind in ("BoolList", "DoubleList", "String"):
        return [(sizes.span, word)]
    return []


def lookup_bytes(arguments: Sequence[int], sizes: Sizes = ON_CORE) -> int:
    """Return the bytes that the temporary pool must have to look up a kernel.

    `Method::resolve_operator` needs types and orders of axes of the arguments. It uses the temporary allocator only if
    that has space for the maximum rank of each, and otherwise, permanently, the method allocator.
    """
    return (sizes.tensor_meta + _MOST_AXES) * len(arguments)
