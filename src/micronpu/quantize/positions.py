"""Functions of a position, as rows of tables; writes at a position, as a blend.

A language model has cosines, masks and comparisons that depend only on the position in the text: for a known maximum
length they are constants, from which the NPU looks up a row.  Writing into its cache at a position is `cache * (1 - e)
+ new * e` with a one-hot row e, which keeps the cache in the order in which it is read, whereas the NPU's operator for
replacing rows needs a matrix.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable

import numpy as np
import torch

from micronpu.base.errors import attempted
from micronpu.frontend.facts import KEPT_OR_ZERO
from micronpu.frontend.graphs import GraphModule, Node, calls, operand
from micronpu.frontend.positions import indexed, is_position, not_negative, root_of
from micronpu.frontend.program import arguments, is_random, overload_name, place_behind
from micronpu.frontend.run import Run
from micronpu.frontend.tensors import add_constant, attribute, replace_each
from micronpu.ir.lowering import Capabilities
from micronpu.ir.types import DType
from micronpu.ops.facts import EMBEDDING, MOVES, replaced_in
from micronpu.ops.softmax import HIDDEN, MASKED
from micronpu.ops.truths import TRUTH
from micronpu.quantize.thresholds import MOST_FOLDED, TABLE_COMPUTED, TABLE_POSITIONS, TABLE_TRIES
from micronpu.quantize.writer import GraphWriter, switchable
from micronpu.upstream.torch import OpOverload, schema_of

Shared = dict[Hashable, Node]
"""Shared nodes, each written once; see `GraphWriter`."""


@switchable
def tables_by_position(model: GraphModule, capabilities: Capabilities, shared: Shared) -> bool:
    """A function of a position becomes a row of a table, for positions that are inputs or states of the program.

    cos(p * f), p <= [0, 1, ..]        rows p of two tables

    The longest axis of the position gives the number of rows.  Exact.
    """
    found = list(roots(model))
    if not found or not capabilities.lookups:
        return False
    changed, known = False, dict[bytes, Node]()
    for root in found:
        changed |= _Tables(model, root, capabilities, known, shared).replace()
    return changed


def roots(model: GraphModule) -> dict[Node, int]:
    """Return positions that are never negative, each with the size of its shortest axis."""
    sure = not_negative(model)
    found: dict[Node, int] = {}
    for node in model.graph.nodes:
        for index, size in indexed(node):
            root = root_of(index)
            if root in sure and root.op != "get_attr":
                found[root] = min(size, found.get(root, size))
    return found


def numbers(write: GraphWriter, root: Node) -> Node:
    """Return a position as a list of int32 numbers, cast once for all lookups."""
    count = math.prod(write.shape(root))
    flat = root if len(write.shape(root)) == 1 else write.beside(root, "reshape.default", root, [count])
    return flat if write.dtype(root) is DType.INT32 else write.beside(flat, "to.dtype", flat, DType.INT32)


@switchable
def blend_at_positions(model: GraphModule, capabilities: Capabilities, shared: Shared) -> bool:
    """Replacing at a position that is only known at run time becomes a blend with a one-hot row.

    x[:, p] = z        x * (1 - e) + z * e, with e = 1 where [0, 1, ..] is p

    For positions of one axis that are never negative, no two of which are equal.
    """
    replacing = {n for n in calls(model) if overload_name(n) and replaced_in(overload_name(n), arguments(n))}
    if not replacing or not capabilities.lookups:
        return False
    known = roots(model)

    def blended(node: Node) -> Node | None:
        return _blended(GraphWriter(model, node, capabilities, shared), known) if node in replacing else None

    return replace_each(model, blended)


def _blended(write: GraphWriter, known: dict[Node, int]) -> Node | None:
    replaced = replaced_in(write.overload, write.given)
    if replaced is None or len(replaced[0]) != 1 or write.dtype() is not DType.FLOAT32:
        return None
    ((axis, index),), new = replaced
    root, node = root_of(index), write.node
    x, shape = write.given["self"], write.shape()
    axis %= len(shape)
    size, count = shape[axis], math.prod(write.shape(index))
    if root not in known or size > TABLE_POSITIONS or count != math.prod(write.shape(root)) or size == 1:
        return None
    rows = (*shape[:axis], count, *shape[axis + 1 :])
    new = new if write.shape(new) == rows else write("expand.default", new, list(rows))
    ones = _one_hot(write, root, size, node)
    single = [size if a == axis else 1 for a in range(len(shape))]
    if count == 1:
        hit = write("reshape.default", ones, single)
        spread = write.kept_or_zero(hit, new)
    else:
        hit = write("reshape.default", write.with_qparams(write("sum.dim_IntList", ones, [0]), TRUTH), single)
        spread = _spread(write, ones, new, axis)
    rest = write.with_qparams(write("rsub.Scalar", hit, 1.0), TRUTH)
    return write("add.Tensor", write.kept_or_zero(rest, x), spread)


def _one_hot(write: GraphWriter, root: Node, size: int, node: Node) -> Node:
    """Return the one-hot rows of positions, [n, size]."""

    def make() -> Node:
        positions = numbers(write, root)
        constant = write.constant(np.eye(size, dtype=np.float32), place_behind(positions))
        rows = write.behind(constant, EMBEDDING, constant, positions)
        write.with_qparams(rows, TRUTH)
        return rows

    made = write.once((root, size), make)
    assert made is not None
    return made


def _spread(write: GraphWriter, ones: Node, new: Node, axis: int) -> Node:
    """Return [.., size, ..] from [.., n, ..]: the rows of an axis at their positions among zeros."""
    shape = write.shape(new)
    last = len(shape) - 2
    order = list(range(len(shape)))
    if axis != last:
        order = [a for a in range(len(shape)) if a != axis]
        order.insert(last, axis)
        new = write("permute.default", new, order)
    places = write("transpose.int", ones, 0, 1)
    made = write("matmul.default", places, new)
    KEPT_OR_ZERO.say(made, made.name)  # otherwise prefill and decode would have different qparams for rows
    if axis != last:
        back = [order.index(a) for a in range(len(shape))]
        made = write("permute.default", made, back)
    return made


class _Tables:
    """Values that depend only on one position."""

    def __init__(
        self, model: GraphModule, root: Node, capabilities: Capabilities, known: dict[bytes, Node], shared: Shared
    ) -> None:
        self._model, self._root, self._capabilities = model, root, capabilities
        self._known, self._shared = known, shared
        self._inside: list[Node] = []
        self._find()

    def _find(self) -> None:
        """Find the operators that read the position, constants, and each other."""
        free: set[Node] = set()  # depends on no input
        inside = {self._root}
        for node in self._model.graph.nodes:
            if node.op == "get_attr":
                value = attribute(self._model, node)
                if value is not None and not isinstance(value, torch.nn.Parameter):  # rows of weights are rows already
                    free.add(node)
            elif node not in inside and _is_plain(node):
                sources = set(node.all_input_nodes)
                if sources <= free:
                    free.add(node)
                elif sources <= free | inside:
                    inside.add(node)
                    self._inside.append(node)
        self._free = free

    def replace(self) -> bool:
        """Replace values with other readers by rows of tables."""
        size = roots(self._model).get(self._root, TABLE_POSITIONS + 1)
        ends = [end for end in self._ends() if size * math.prod(end.meta["val"].shape) <= TABLE_COMPUTED]
        if size > TABLE_POSITIONS or not ends:
            return False
        with torch.no_grad():
            rows = self._rows(size, ends)
        if rows is None:
            return False
        changed = False
        for end, (axis, table) in rows.items():
            if table.numel() <= MOST_FOLDED:
                self._write(end, axis, table)
                changed = True
        return changed

    def _ends(self) -> list[Node]:
        """Return floats and booleans with other readers, before operators that only move or repeat them."""
        inside = set(self._inside)
        found: dict[Node, None] = {}
        for node in self._inside:
            if all(user in inside for user in node.users):
                continue
            while overload_name(node) in MOVES and node.args[0] in inside:
                node = operand(node)
            value = node.meta["val"]
            kept = is_position(node) or (overload_name(node) == EMBEDDING and node.args[0] in self._free)
            if isinstance(value, torch.Tensor) and not kept and value.dtype in (torch.float32, torch.bool):
                found[node] = None
        return list(found)

    def _rows(self, size: int, ends: list[Node]) -> dict[Node, tuple[int | None, torch.Tensor]] | None:
        """Return for each end the axis of the positions, if there are several, and its value for every position."""
        shape, dtype = tuple(self._root.meta["val"].shape), self._root.meta["val"].dtype
        count = math.prod(shape)
        run = Run(self._model, wanted=ends, known=[self._root], once=self._free)
        every = attempted(lambda: [self._values(run, torch.full(shape, p, dtype=dtype)) for p in range(size)])
        if every is None:  # the unchanged program fails alike
            return None
        if count == 1:
            return {end: (None, torch.stack([v[end] for v in every])) for end in ends}
        dice = random.Random(0)
        tried = [[dice.randrange(size) for _ in range(count)] for _ in range(TABLE_TRIES)]
        seen = [self._values(run, torch.tensor(p, dtype=dtype).reshape(shape)) for p in tried]
        found: dict[Node, tuple[int | None, torch.Tensor]] = {}
        for end in ends:
            whole = torch.stack([v[end] for v in every])
            for axis, length in enumerate(whole.shape[1:]):
                if length != count:
                    continue
                table = whole.select(axis + 1, 0)
                rows = [torch.stack([table[p] for p in places], axis) for places in tried]
                if all(torch.equal(row, v[end]) for row, v in zip(rows, seen, strict=True)):
                    found[end] = axis, table
                    break
        return found

    def _values(self, run: Run, position: torch.Tensor) -> dict[Node, torch.Tensor]:
        return {end: value.clone() for end, value in run.values({self._root: position}).items()}

    def _write(self, end: Node, axis: int | None, table: torch.Tensor) -> None:
        """end        reshape(embedding(table, positions))"""
        write = GraphWriter(self._model, end, self._capabilities, self._shared)
        shape = write.shape()
        rest = list(table.shape[1:])
        flat = table.reshape(table.shape[0], -1)
        truth = flat.dtype is torch.bool
        values = flat.float()
        far = values < MASKED
        values = values.clamp(min=MASKED)
        rows = self._looked_up(write, values.contiguous())
        if truth:
            write.with_qparams(rows, TRUTH)
        elif bool(far.any()) and bool((far | (values == 0)).all()):
            write.with_qparams(rows, HIDDEN)
        if axis is None:
            made = write("reshape.default", rows, list(shape))
        else:
            made = write("reshape.default", rows, [shape[axis], *rest])
            order = list(range(1, len(shape)))
            order.insert(axis, 0)
            if order != sorted(order):
                made = write("permute.default", made, order)
        if truth:
            made = write.decided(made)
        end.replace_all_uses_with(made, lambda user: user not in write.made)

    def _looked_up(self, write: GraphWriter, values: torch.Tensor) -> Node:
        """Look up rows of a table, shared by equal lookups."""
        key = repr((self._root.name, tuple(values.shape))).encode() + values.numpy().tobytes()
        if key not in self._known:
            positions = numbers(write, self._root)
            constant = add_constant(self._model, place_behind(positions), values, "table")
            self._known[key] = write.behind(constant, EMBEDDING, constant, positions)
        return self._known[key]


def _is_plain(node: Node) -> bool:
    """Return True if an operator computes one tensor from its operands, deterministically."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or schema_of(node.target).is_mutable:
        return False
    return bool(overload_name(node)) and not is_random(node) and isinstance(node.meta.get("val"), torch.Tensor)
