"""What became of a network's layers when it was made sparse, as values: table, JSON and plot are made from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from micronpu.report.codec import encode
from micronpu.report.shown import rendered, shown

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class SparseLayer:
    """A layer with weights.

    Attributes:
        name: path of the submodule, or the operator's name.
        source: ``file:line`` of the user's model, or "".
        shape: of its weights.
        sparse: whether two in four of its weights are zero, and the NPU skips them.
        cycles_dense: of the NPU in the dense network, 0 where that is not known.
        cycles_sparse: in the network with every layer sparse that can be, 0 where that was not tried.
        sensitivity: what the network's results lose where this layer alone is sparse and those behind make up for it,
            before anything is learnt: the divergence of class scores, and of others the part of their variance.
        why: why it is dense, or what else there is to say; "" for nothing.
        cycles: of the NPU as the layer is, in the network that was chosen; 0 where that is not known.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    sparse: bool
    cycles_dense: int = 0
    cycles_sparse: int = 0
    sensitivity: float = 0.0
    why: str = ""
    cycles: int = 0


@dataclass(frozen=True)
class SparsePoint:
    """A network on the way from the dense one to the sparsest.

    Attributes:
        layers: names of the layers that are sparse.
        cycles: of the NPU for the whole network, as its compiler estimates them.
        bytes: of weights and tables as the NPU reads them.
        agreement: share of the inputs kept back on which the integer network answers as the float network does; for
            results that are no scores of classes, 1 less the part of their variance that is lost.
        loss: what is lost against the float network: 1 less the agreement, or the difference of the user's score.
        corrections: of quantization, with which the integer network was nearest; see `micronpu.compile`'s
            ``quantization``.
    """

    layers: tuple[str, ...]
    cycles: int
    bytes: int
    agreement: float
    loss: float
    corrections: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparsityReport:
    """What became of a network that was made sparse.

    Attributes:
        target: name of the target.
        pattern: "2:4".
        layers: in execution order.
        points: the first is the dense network, and each has more sparse layers than the one before.
        chosen: which of them the network is.
        rows: how many inputs the points were judged with.
        notes: sentences about the whole.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("front",)

    target: str
    pattern: str
    layers: tuple[SparseLayer, ...]
    points: tuple[SparsePoint, ...]
    chosen: int
    rows: int = 0
    notes: tuple[str, ...] = ()

    @property
    def point(self) -> SparsePoint:
        return self.points[self.chosen]

    @property
    def front(self) -> tuple[int, ...]:
        """Those points than which no other has both fewer cycles and less loss."""
        return tuple(i for i, p in enumerate(self.points) if not any(_better(q, p) for q in self.points))

    def summary(self) -> str:
        """One sentence with the figures."""
        dense, point = self.points[0], self.point
        count = sum(layer.sparse for layer in self.layers)
        quantized = f", quantized with {', '.join(point.corrections)}" if point.corrections else ""
        if not dense.cycles:
            return f"{count} of {len(self.layers)} layers are {self.pattern} sparse."
        return (
            f"{count} of {len(self.layers)} layers are {self.pattern} sparse: {dense.cycles:,} -> {point.cycles:,} "
            f"cycles ({point.cycles / dense.cycles:.2f}), {dense.bytes:,} -> {point.bytes:,} bytes of weights; "
            f"agreement with float {dense.agreement:.1%} -> {point.agreement:.1%} on {self.rows} inputs kept back"
            f"{quantized}."
        )

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return dict(encode(self))

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def to_svg(self) -> str:
        """The points as a picture: cycles to the right, loss upwards."""
        return str(shown(self, "plot"))

    def __str__(self) -> str:
        lines = [self.summary()]
        for i, point in enumerate(self.points):
            mark = "*" if i == self.chosen else " "
            lines.append(
                f" {mark} {len(point.layers):3} sparse  {point.cycles:>12,} cycles  {point.bytes:>10,} bytes  "
                f"loss {point.loss:.4f}"
            )
        for layer in self.layers:
            state = "sparse" if layer.sparse else "dense"
            cycles = f" {layer.cycles_dense:,} -> {layer.cycles:,} cycles" if layer.cycles_dense else ""
            lines.append(f"  - {layer.name}: {state}{cycles}{f'; {layer.why}' if layer.why else ''}")
        return "\n".join([*lines, *self.notes])

    def __rich__(self) -> RenderableType:
        return rendered(self)


def _better(q: SparsePoint, p: SparsePoint) -> bool:
    """Whether a point is nowhere worse than another one, and somewhere better."""
    return q.cycles <= p.cycles and q.loss <= p.loss and (q.cycles, q.loss) != (p.cycles, p.loss)
