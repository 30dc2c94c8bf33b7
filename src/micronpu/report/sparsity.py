"""Result for each layer of a network that was made sparse; table, JSON and plot are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from micronpu.base.parsing import JsonObject
from micronpu.report.codec import encode
from micronpu.report.shown import JsonReport, shown


@dataclass(frozen=True)
class SparseLayer:
    """A layer with weights.

    Attributes:
        name: path of the submodule, or the operator's name.
        source: ``file:line`` of the user's model, or "".
        shape: of its weights.
        sparse: True if two in four of its weights are zero, and the NPU skips them.
        cycles_dense: of the NPU in the dense network; 0 if unknown.
        cycles_sparse: in the network with all possible layers sparse; 0 if not tried.
        sensitivity: loss of the network's results if only this layer is sparse and later layers compensate, before
            training: the divergence of class scores, or the lost part of the variance of other results.
        why: reason why it is dense, or another remark; "" for none.
        cycles: of the NPU in the chosen network; 0 if unknown.
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
    """A network between the dense one and the sparsest.

    Attributes:
        layers: names of the layers that are sparse.
        cycles: of the NPU for the whole network, as its compiler estimates them.
        bytes: of weights and tables as the NPU reads them.
        agreement: top-1 agreement of the integer network with the float network on held-out samples, 0 to 1; for
            results that are no class scores, 1 minus the lost part of their variance.
        loss: loss against the float network: 1 minus the agreement, or the difference of the user's score.
        corrections: of quantization that gave the most accurate integer network; see ``quantization`` of
            `micronpu.compile`.
    """

    layers: tuple[str, ...]
    cycles: int
    bytes: int
    agreement: float
    loss: float
    corrections: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class SparsityReport(JsonReport):
    """Result for a network that was made sparse.

    Attributes:
        target: name of the target.
        pattern: "2:4".
        layers: in execution order.
        points: the first is the dense network, and each has more sparse layers than the one before.
        chosen: index of the chosen point.
        rows: number of samples that the points were evaluated on.
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
        """Return indices of the points that no other beats in both cycles and loss."""
        return tuple(i for i, p in enumerate(self.points) if not any(_better(q, p) for q in self.points))

    def summary(self) -> str:
        """Return one sentence with the figures."""
        dense, point = self.points[0], self.point
        count = sum(layer.sparse for layer in self.layers)
        quantized = f", quantized with {', '.join(point.corrections)}" if point.corrections else ""
        if not dense.cycles:
            return f"{count} of {len(self.layers)} layers are {self.pattern} sparse."
        return (
            f"{count} of {len(self.layers)} layers are {self.pattern} sparse: {dense.cycles:,} -> {point.cycles:,} "
            f"cycles ({point.cycles / dense.cycles:.2f}), {dense.bytes:,} -> {point.bytes:,} bytes of weights; "
            f"agreement with float {dense.agreement:.1%} -> {point.agreement:.1%} on {self.rows} held-out inputs"
            f"{quantized}."
        )

    def to_dict(self) -> JsonObject:
        """Return the content of `to_json`."""
        return dict(encode(self))

    def to_svg(self) -> str:
        """Return the points as a picture: cycles to the right, loss upwards."""
        return str(shown(self, "plot"))


def _better(q: SparsePoint, p: SparsePoint) -> bool:
    """Return True if a point is nowhere worse than another one, and somewhere better."""
    return q.cycles <= p.cycles and q.loss <= p.loss and (q.cycles, q.loss) != (p.cycles, p.loss)
