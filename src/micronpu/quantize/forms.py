"""Rewrites of the float program to operators with one result and one tensor to read.  All are exact.

The quantization of a value stands behind the node that computes it, so that a node with several results has to go
before the program is annotated.  Operators whose second operand only lends its shape lose that operand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, is_getitem, overload_name
from micronpu.ops.adaptive import MAX_PARTS, adaptive_windows, runs
from micronpu.quantize.switches import is_on, switchable

aten = torch.ops.aten

_SPLITS = (
    *(f"{name}.Tensor" for name in ("split", "split_copy", "unsafe_split")),
    "split.sizes",
    *(f"{name}.default" for name in ("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")),
    *(f"{name}.default" for name in ("chunk", "unsafe_chunk")),
    *(f"tensor_split.{form}" for form in ("sections", "indices")),
)
_UNBINDS = ("unbind.int", "unbind_copy.int")
_COPIES = ("lift_fresh_copy.default", "clone.default", "detach.default", "detach_.default", "alias.default")
_CHECKS = ("_assert_tensor_metadata.default",)


def one_result_each(model: GraphModule, disabled: Collection[str] = ()) -> bool:
    """All rewrites of this module but the disabled ones, in place.  Returns whether anything changed."""
    rewrites: dict[str, Callable[[GraphModule, Node], bool]] = {
        **dict.fromkeys(_SPLITS, split_to_slices),
        **dict.fromkeys(_UNBINDS, split_to_slices),
        **dict.fromkeys(_CHECKS, drop_check),
        **dict.fromkeys(
            ("expand_as.default", "view_as.default", "reshape_as.default", "type_as.default"), drop_pattern
        ),
        **dict.fromkeys((f"adaptive_max_pool{n}d.default" for n in (1, 2)), adaptive_max_to_pools),
        **dict.fromkeys(("index_select.default", "index.Tensor"), index_to_slices),
        **dict.fromkeys((f"max_pool{n}d_with_indices.default" for n in (1, 2)), drop_indices),
    }
    changed = False
    for node in list(model.graph.nodes):
        rewrite = rewrites.get(overload_name(node))
        changed |= rewrite is not None and is_on(rewrite, disabled) and rewrite(model, node)
    return changed


def call(model: GraphModule, before: Node, target: Any, *args: Any) -> Node:
    """A new node in front of ``before``, with the type that its result has and the origin of ``before``."""
    with model.graph.inserting_before(before):
        node = model.graph.call_function(target, args)
    node.meta = {k: v for k, v in before.meta.items() if k in ("stack_trace", "nn_module_stack", "source_fn_stack")}

    def value(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, Node) else argument

    values = torch.utils._pytree.tree_map(value, args)
    fake = next((n.meta["val"] for n in node.all_input_nodes if hasattr(n.meta.get("val"), "fake_mode")), None)
    if fake is None:
        node.meta["val"] = target(*values)
    else:
        with fake.fake_mode:
            node.meta["val"] = target(*values)
    return node


def results(node: Node) -> Iterator[tuple[int, Node]]:
    """The nodes that unpack a tuple, with the index of what each takes."""
    return ((int(user.args[1]), user) for user in list(node.users) if is_getitem(user))  # type: ignore[arg-type]


def _only_unpacked(node: Node) -> bool:
    return all(is_getitem(user) for user in node.users)


def _erase(model: GraphModule, node: Node) -> None:
    for _, user in results(node):
        if not user.users:
            model.graph.erase_node(user)
    if not node.users:
        model.graph.erase_node(node)


@switchable
def split_to_slices(model: GraphModule, node: Node) -> bool:
    """Every part that somebody reads becomes a slice; parts that nobody reads vanish.

    x -> split(sizes) -> a, b        x -> slice -> a;  x -> slice -> b
    x -> unbind -> a, b              x -> select -> a;  x -> select -> b
    """
    if not _only_unpacked(node):
        return False
    given = arguments(node)
    x, axis = given["self"], int(given["dim"])
    axis %= x.meta["val"].dim()
    parts = node.meta["val"]
    ends = [0]
    if overload_name(node) not in _UNBINDS:
        for part in parts:
            ends.append(ends[-1] + part.shape[axis])
    for index, user in results(node):
        if user.users:
            if overload_name(node) in _UNBINDS:
                new = call(model, node, aten.select.int, x, axis, index)
            else:
                new = call(model, node, aten.slice.Tensor, x, axis, ends[index], ends[index + 1])
            user.replace_all_uses_with(new)
    _erase(model, node)
    return True


@switchable
def drop_check(model: GraphModule, node: Node) -> bool:
    """Checks of shape and type, which hold for an exported program, would read a float value on the host."""
    model.graph.erase_node(node)
    return True


@switchable
def drop_pattern(model: GraphModule, node: Node) -> bool:
    """An operand that only lends its shape or type is replaced by it.

    x, pattern -> expand_as -> y        x -> expand(shape) -> y
    x, pattern -> type_as -> y          y = x, where both are float32
    """
    x, value = node.args[0], node.meta["val"]
    assert isinstance(x, Node)
    if overload_name(node) == "type_as.default":
        if x.meta["val"].dtype != value.dtype:
            return False
        new = x
    else:
        target = aten.expand.default if overload_name(node).startswith("expand") else aten.reshape.default
        new = call(model, node, target, x, list(value.shape))
    node.replace_all_uses_with(new)
    model.graph.erase_node(node)
    return True


def _values_only(node: Node) -> bool:
    """Whether nobody reads the indices of a pool."""
    return _only_unpacked(node) and all(index == 0 or not user.users for index, user in results(node))


def _replace_values(model: GraphModule, node: Node, new: Node) -> bool:
    for index, user in results(node):
        if index == 0:
            user.replace_all_uses_with(new)
    _erase(model, node)
    return True


@switchable
def drop_indices(model: GraphModule, node: Node) -> bool:
    """A max pool whose indices nobody reads.

    x -> max_pool2d_with_indices -> y, _        x -> max_pool2d -> y
    """
    if not _values_only(node):
        return False
    target = aten.max_pool1d.default if "pool1d" in overload_name(node) else aten.max_pool2d.default
    given = arguments(node)
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    return _replace_values(model, node, call(model, node, target, *(given[name] for name in names)))


@switchable
def adaptive_max_to_pools(model: GraphModule, node: Node) -> bool:
    """An adaptive max pool, which has indices for a second result, as ordinary ones.

    x -> adaptive_max_pool2d -> y, _        x -> max_pool2d -> y
                                            x -> slices -> max_pool2d each -> cat -> y, for windows of unequal size
    """
    x = arguments(node)["self"]
    spatial = 1 if "pool1d" in overload_name(node) else 2
    if not _values_only(node):
        return False
    shape, result = x.meta["val"].shape, node.meta["val"][0].shape
    plans = [runs(adaptive_windows(n, m)) for n, m in zip(shape[-spatial:], result[-spatial:], strict=True)]
    if len(plans[0]) * len(plans[-1]) > MAX_PARTS:
        return False
    pool = aten.max_pool1d.default if spatial == 1 else aten.max_pool2d.default

    def build(part: Node, axes: Sequence[int], kernel: list[int], stride: list[int]) -> Node:
        if not axes:
            return call(model, node, pool, part, kernel, stride)
        axis, rest = axes[0], axes[1:]
        pieces = []
        for run in plans[axis]:
            whole = (run.start, run.stop) == (0, shape[axis - spatial])
            cut = part if whole else call(model, node, aten.slice.Tensor, part, axis - spatial, run.start, run.stop)
            pieces.append(build(cut, rest, [*kernel, run.size], [*stride, run.stride]))
        return pieces[0] if len(pieces) == 1 else call(model, node, aten.cat.default, pieces, axis - spatial)

    return _replace_values(model, node, build(x, range(spatial), [], []))


def _constant(model: GraphModule, node: Any) -> torch.Tensor | None:
    """Value of a constant behind copies of it, or None."""
    while isinstance(node, Node) and overload_name(node) in _COPIES:
        node = node.args[0]
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value: Any = model
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def ranges(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Indices as few ranges (first, count, step), every step positive."""
    found: list[tuple[int, int, int]] = []
    position = 0
    while position < len(indices):
        last, step = position, 0
        while last + 1 < len(indices):
            difference = indices[last + 1] - indices[last]
            if difference < 1 or (step and difference != step):
                break
            step, last = difference, last + 1
        if last == position + 1 and step > 1:  # two elements apart are cheaper one by one than with a step
            last, step = position, 0
        found.append((indices[position], last - position + 1, step or 1))
        position = last + 1
    return found


@switchable
def index_to_slices(model: GraphModule, node: Node) -> bool:
    """Constant indices along one axis are slices.

    x, [0, 1, 2, 6] -> index_select -> y        x -> slice 0:3, x -> slice 6:7 -> cat -> y
    """
    given = arguments(node)
    x = given["self"]
    if overload_name(node) == "index.Tensor":
        places = [axis for axis, index in enumerate(given["indices"]) if index is not None]
        if len(places) != 1:
            return False
        axis, index = places[0], _constant(model, given["indices"][places[0]])
    else:
        axis, index = int(given["dim"]) % x.meta["val"].dim(), _constant(model, given["index"])
    if index is None or index.dim() != 1 or index.dtype not in (torch.int64, torch.int32) or not index.numel():
        return False
    size = x.meta["val"].shape[axis]
    runs_of_index = ranges([int(i) % size for i in index.tolist()])
    if len(runs_of_index) > MAX_PARTS:
        return False
    parts = [
        call(model, node, aten.slice.Tensor, x, axis, first, first + (count - 1) * step + 1, step)
        for first, count, step in runs_of_index
    ]
    new = parts[0] if len(parts) == 1 else call(model, node, aten.cat.default, parts, axis)
    node.replace_all_uses_with(new)
    model.graph.erase_node(node)
    return True
