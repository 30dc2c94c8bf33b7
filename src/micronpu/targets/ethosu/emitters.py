"""Write graphs for Vela, except operators for which Vela 5.2 emits a wrong command stream.

Vela accepts these operators silently, so no rule refuses them; they were found by simulating their streams
(docs/ethosu-simulator.md). An operator that is wrong in one format is written in the other; if both are wrong, it is
not delegated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from micronpu.base.errors import UnsupportedError
from micronpu.emit.litert import LiteRtModel, to_litert
from micronpu.emit.tosa import TosaEmitter, TosaModel
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Rescaling
from micronpu.ir.types import DType
from micronpu.ops.convolution import Conv2d
from micronpu.ops.indices import GatherRows
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.reduction import Amin
from micronpu.ops.resize import ResizeNearest
from micronpu.ops.slicing import Slice
from micronpu.ops.tables.lookups import ScatterRows
from micronpu.ops.tables.table import LookupTable
from micronpu.ops.transposed import TransposeConv2d
from micronpu.passes.tosa import LEGALIZE_TOSA
from micronpu.targets.ethosu.options import EthosUOptions

Emitted = LiteRtModel | TosaModel
"""A written model: its flatbuffer, and the index of the graph's node for each of its operators."""
Emit = Callable[[Graph], Emitted]

_MOST_ROWS = 65_535
"""Maximum rows of a gather or scatter: Vela writes their number to a 16-bit register."""
_WRONG = "Vela miscompiles it"


def to_tosa(graph: Graph) -> TosaModel:
    """Write a graph that `run_passes` has legalised as a TOSA model; the graph is unchanged.

    Raises:
        UnsupportedError: an operator has no TOSA form.
    """
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

    def litert(graph: Graph) -> LiteRtModel:
        _refuse(graph, "litert", family)
        return to_litert(graph)

    def tosa(graph: Graph) -> TosaModel:
        _refuse(graph, "tosa", family)
        # Usually right; wrong streams are detected by verification, so refuse it only if that is disabled.
        if not spec.verify_streams and (name := _convolves_slices(graph)):
            raise UnsupportedError(f"`{name}`: {_WRONG} where several convolutions read slices of one value.")
        return to_tosa(graph)

    return {"litert": litert, "tosa": tosa}


def _refuse(graph: Graph, via: str, family: str) -> None:
    for node in graph.nodes:
        why = objection(node, via, family)
        if why:
            raise UnsupportedError(f"`{node.op.name}`: {why}.")


def _convolves_slices(graph: Graph) -> str:
    """Name of one of several convolutions that read slices of a computed value; "" if there are none.

    Grouped convolutions are written like this. Many such programs are right; wrong ones were seen if the value is also
    an output in another layout, on U55 and U85 (random networks 159 and 170).
    """
    producer = {t: node for node in graph.nodes for t in node.outputs}
    seen: set[Tensor] = set()
    for node in graph.nodes:
        if not isinstance(node.op, (Conv2d, TransposeConv2d)):
            continue
        before = producer.get(node.inputs[0])
        while before is not None and isinstance(before.op, (Pad, Reshape, Transpose)):
            before = producer.get(before.inputs[0])
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
        return _too_many_rows(math.prod(node.inputs[op.operand_names.index("indices")].shape))
    if isinstance(op, ResizeNearest) and litert and not (op.align_corners or op.half_pixel_centers):
        before, after = node.inputs[0].shape[1:3], op.size
        if any(n % m for n, m in zip(after, before, strict=True)):
            return f"{_WRONG} with half-pixel centres"
    if isinstance(op, Amin) and node.output.type.dtype is DType.INT16 and (litert or family != "u85"):
        return f"{_WRONG}: only one row is read"
    return ""


def _too_many_rows(count: int) -> str:
    return f"{_WRONG}: of {count:,} rows only {count % (_MOST_ROWS + 1):,} are moved" if count > _MOST_ROWS else ""
