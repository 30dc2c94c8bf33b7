"""Legalize graphs for an Ethos-U, before plans are compared, and write them for Vela.

Operators for which Vela 5.2 emits a wrong command stream are not written. Vela accepts them silently, so no rule
refuses them; they were found by simulating their streams (docs/ethosu-simulator.md). An operator that is wrong in one
format is written in the other; if both are wrong, it is not delegated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from micronpu.base.errors import UnsupportedError
from micronpu.emit.litert import to_litert
from micronpu.emit.tosa import MAX_RANK, TosaEmitter
from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Op, Rescaling
from micronpu.ir.types import DType
from micronpu.ops.convolution import Conv2d, TransposeConv2d
from micronpu.ops.indices import GatherRows, ScatterRows
from micronpu.ops.matmul import BatchMatmul, FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.slicing import Slice
from micronpu.ops.tables.table import LookupTable
from micronpu.ops.tiling import ReflectPad
from micronpu.passes import run_passes
from micronpu.passes.base import Walk
from micronpu.passes.fusion import MergeReshapes
from micronpu.passes.legalize import LEGALIZE_TOSA
from micronpu.passes.pipeline import DEFAULT, Pipeline
from micronpu.passes.rewrite import Chain, Choice, choose, no_cost, rewritten
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import TO_BE_SOUND, TO_SPARE
from micronpu.targets.ethosu.rewrites.conversions import FuseConversions, converts
from micronpu.targets.ethosu.rewrites.sound import pool_of_mean
from micronpu.targets.ethosu.rewrites.spare import DENSE_RANK, LARGEST_STRIDE, has_plain_axes


def legalize(
    graph: Graph,
    spec: EthosUOptions,
    pipeline: Pipeline = DEFAULT,
    accepts: Callable[[Node], bool] = lambda node: False,
) -> Graph:
    """Simplify a graph and rewrite operators that Vela accepts but handles badly, in place; return it.

    ``accepts`` is that of `FuseConversions`; the default leaves conversions as they are.
    """
    run_passes(graph, disabled=spec.disabled_graph_passes, pipeline=pipeline)
    count: float = math.inf
    while (left := sum(map(converts, graph.nodes))) < count and FuseConversions(accepts).run(graph):
        count = left  # until there are no fewer: other passes may move back one that has only moved
        run_passes(graph, disabled=spec.disabled_graph_passes, pipeline=pipeline)
    flatten_pads(graph)
    if spec.accelerator.family != "u85":
        copy_slices(graph)
    if rewritten(graph, lambda node: choose_sound(node, spec)):
        if any(t.type.rank > MAX_RANK for node in graph.nodes for t in node.outputs):
            # Splitting windows leaves a transpose with fewer axes and a reshape that restores them.
            MergeReshapes().run(graph)
            graph.remove_dead()
        graph.rename()
    return graph


def choose_sound(node: Node, spec: EthosUOptions) -> Choice | None:
    """Return nodes that Vela compiles correctly and efficiently; None if there are none."""
    return choose(node, _is_sound, no_cost, (*TO_BE_SOUND, *TO_SPARE), disabled=spec.disabled_node_rewrites)


def _is_sound(node: Node) -> bool:
    if isinstance(node.op, (FullyConnected, Amax, Amin, ReflectPad)):
        return False
    if isinstance(node.op, Mean):
        return pool_of_mean(node) is None
    if isinstance(node.op, Slice):
        return node.inputs[0].type.rank <= DENSE_RANK
    if isinstance(node.op, Transpose):
        return has_plain_axes(node)
    return not isinstance(node.op, Conv2d) or max(node.op.stride) <= LARGEST_STRIDE


def _behind(tensor: Tensor, producers: Mapping[Tensor, Node], kinds: tuple[type[Op], ...] = (Reshape,)) -> Tensor:
    while tensor in producers and isinstance(producers[tensor].op, kinds):
        tensor = producers[tensor].inputs[0]
    return tensor


def flatten_pads(graph: Graph) -> None:
    """Reduce the rank of a pad after a matrix product, in place.

    x @ z [4, 6, 8] -> reshape [1, 4, 6, 8] -> pad(axis 3)        x @ z -> reshape [24, 8] -> pad(axis 1) -> reshape

    U55 and U65 compute such products matrix by matrix. If the matrices are along the height of the padded tensor,
    Vela's stream writes them to wrong addresses; found in the relative positions of a Conformer.
    """
    producers = graph.producers()
    nodes: list[Node] = []
    for node in graph.nodes:
        source = _behind(node.inputs[0], producers)
        product = source in producers and isinstance(producers[source].op, BatchMatmul)
        nodes += _flat(node, source) if isinstance(node.op, Pad) and product else [node]
    if len(nodes) > len(graph.nodes):
        graph.nodes = nodes
        graph.remove_dead()
        graph.rename()


def copy_slices(graph: Graph) -> None:
    """Copy the first factor of a matrix product if it is a slice, in place.

    x [4, 8] -> slice(0:1) -> [1, 8] @ z        x -> slice(0:1) -> max_pool2d{1x1} -> [1, 8] @ z

    U55 and U65 compute such products element by element, and Vela's stream reads the factor from the start of the
    slice, but with the shape of the sliced tensor: it reads wrong rows, and writes results out of bounds.
    """
    walk = Walk(graph)
    for node in walk:
        source = _behind(node.inputs[0], walk.producer)
        if isinstance(node.op, BatchMatmul) and source in walk.producer and _cuts_matrices(walk.producer[source]):
            chain, x = Chain("copy_slices", node), node.inputs[0]
            copied = chain.add(MaxPool2d((1, 1), (1, 1)), chain.reshape(x, 1, *x.shape))
            node.inputs[0] = chain.reshape(copied, *x.shape)
            for made in chain.nodes:
                walk.insert(made)
    if walk.changed:
        graph.rename()


def copy_returned(graph: Graph) -> bool:
    """Copy outputs that are otherwise only transposed, in place; return True if there were any.

    x -> add -> y, returned, -> transpose -> @        x -> add -> y, returned, -> max_pool2d{1x1} -> transpose -> @

    If Vela fuses the transpose with the matrix product or the previous operator, it drops the output y (5.2), for
    example a cache of keys that a step returns and multiplies by.
    """
    users, producers, changed = graph.users(), graph.producers(), False
    for y in graph.outputs:
        readers = [node for tensor in _reshaped(y, users) for node in users.get(tensor, ())]
        moved = [node.op for node in readers if not isinstance(node.op, Reshape)]
        if y.type.dtype not in _POOLED or not moved or not all(isinstance(op, Transpose) for op in moved):
            continue
        chain = Chain("copy_returned", producers[y])
        image = chain.reshape(y, 1, 1, y.type.size // y.shape[-1], y.shape[-1])
        copy = chain.reshape(chain.add(MaxPool2d((1, 1), (1, 1)), image), *y.shape)
        for node in users[y]:
            node.inputs[:] = [copy if tensor is y else tensor for tensor in node.inputs]
        place = graph.nodes.index(producers[y]) + 1
        graph.nodes[place:place] = chain.nodes
        changed = True
    if changed:
        graph.rename()
    return changed


_POOLED = (DType.INT8, DType.INT16)


def _reshaped(tensor: Tensor, users: Mapping[Tensor, list[Node]]) -> list[Tensor]:
    """A tensor and all its transitive reshapes."""
    found = [tensor]
    for made in found:  # which becomes longer
        found += [node.output for node in users.get(made, ()) if isinstance(node.op, Reshape)]
    return found


def _cuts_matrices(node: Node) -> bool:
    """True if a node slices the last two axes, or several matrices of more; a single matrix is read correctly."""
    if not isinstance(node.op, Slice):
        return False
    whole, part = node.inputs[0].shape, node.output.shape
    return whole[-2:] != part[-2:] or (len(whole) == 3 and 1 < part[0] < whole[0])


def _flat(node: Node, source: Tensor) -> list[Node]:
    """Replace a pad by one without the axes between the padded ones; return the pad itself if there are none."""
    assert isinstance(node.op, Pad)
    axes: list[tuple[int, int, int]] = []  # size, before, behind
    for size, before, behind in zip(node.inputs[0].shape, node.op.before, node.op.after, strict=True):
        if not (before or behind) and axes and axes[-1][1:] == (0, 0):
            axes[-1] = (axes[-1][0] * size, 0, 0)
        else:
            axes.append((size, before, behind))
    if len(axes) == node.inputs[0].type.rank:
        return [node]
    chain = Chain("flatten_pads", node)
    pad = replace(node.op, before=tuple(a[1] for a in axes), after=tuple(a[2] for a in axes))
    padded = chain.add(pad, chain.reshape(source, *(size for size, _, _ in axes)))
    return chain.result(padded, node.output)


Emit = Callable[[Graph], WrittenModel]

_MOST_ROWS = 65_535
"""Maximum rows of a gather or scatter: Vela writes their number to a 16-bit register."""
_WRONG = "Vela miscompiles it"


def to_tosa(graph: Graph) -> WrittenModel:
    """Write a graph that `run_passes` has legalised as a TOSA model; the graph is unchanged."""
    legal = graph.clone()
    numbers = {node: index for index, node in enumerate(legal.nodes)}
    for step in LEGALIZE_TOSA:
        step.run(legal)
    legal.remove_dead()
    return TosaEmitter().write(legal, _original_nodes(legal, numbers))


def _original_nodes(graph: Graph, numbers: dict[Node, int]) -> list[int]:
    """Node numbers before the passes; a node added by a pass has the smallest number of its readers."""
    users = graph.users()
    found: list[int] = []
    for node in reversed(graph.nodes):
        if node not in numbers:
            numbers[node] = min(numbers[reader] for reader in users[node.output])
        found.append(numbers[node])
    return found[::-1]


def emitters_of(spec: EthosUOptions) -> dict[str, Emit]:
    """Return writers per format; they raise UnsupportedError if the stream would be wrong.

    The format that costs the fewest cycles for most programs is first.
    """
    family = spec.accelerator.family

    def litert(graph: Graph) -> WrittenModel:
        _refuse(graph, "litert", family)
        return to_litert(graph)

    def tosa(graph: Graph) -> WrittenModel:
        _refuse(graph, "tosa", family)
        # Usually right; wrong streams are detected by verification, so refuse it only if that is disabled.
        if not spec.verify_streams and (name := _convolves_slices(graph)):
            raise UnsupportedError(f"`{name}`: {_WRONG} where several convolutions read slices of one value.")
        return to_tosa(graph)

    return {"litert": litert, "tosa": tosa}


def _refuse(graph: Graph, via: str, family: str) -> None:
    for node in graph.nodes:
        if why := objection(node, via, family):
            raise UnsupportedError(f"`{node.op.name}`: {why}.")


def _convolves_slices(graph: Graph) -> str:
    """Name of one of several convolutions that read slices of a computed value; "" if there are none.

    Grouped convolutions are written like this. Many such programs are right; wrong ones were seen if the value is also
    an output in another layout, on U55 and U85 (random networks 159 and 170).
    """
    producer = graph.producers()
    seen: set[Tensor] = set()
    for node, _ in graph.of(Conv2d, TransposeConv2d):
        before = producer.get(_behind(node.inputs[0], producer, (Pad, Reshape, Transpose)))
        if before is None or not isinstance(before.op, Slice) or before.inputs[0] not in producer:
            continue
        if before.inputs[0] in seen:
            return node.op.name
        seen.add(before.inputs[0])
    return ""


def objection(node: Node, via: str, family: str) -> str:
    """Reason why the stream of an operator is wrong, or ""."""
    op, litert = node.op, via == "litert"
    if litert and isinstance(op, Rescaling) and op.dtype is not None:
        return f"LiteRT has none that reads {node.inputs[0].type.dtype.value} and writes {op.dtype.value}"
    if isinstance(op, LookupTable) and litert:
        # A gather takes eight times the cycles of a table, and Vela ignores three of four bytes of the indices when it
        # computes the dependencies on their transfer.
        return f"{_WRONG}: the indices of its gather may be overwritten before they are read"
    if isinstance(op, (GatherRows, ScatterRows)):
        count, most = math.prod(node.inputs[op.operand_names.index("indices")].shape), _MOST_ROWS
        return f"{_WRONG}: of {count:,} rows only {count % (most + 1):,} are moved" if count > most else ""
    if isinstance(op, ResizeNearest) and litert and not (op.align_corners or op.half_pixel_centers):
        before, after = node.inputs[0].shape[1:3], op.size
        if any(n % m for n, m in zip(after, before, strict=True)):
            return f"{_WRONG} with half-pixel centres"
    if isinstance(op, Amin) and node.output.type.dtype is DType.INT16 and (litert or family != "u85"):
        return f"{_WRONG}: only one row is read"
    return ""
