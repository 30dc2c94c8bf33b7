"""Which rewrite makes an operator fit for an Ethos-U that Vela refuses it for.  All are exact on the int8 grid."""

from __future__ import annotations

import math
from dataclasses import replace

from micronpu.ir.graph import Graph, Node
from micronpu.ir.types import DType
from micronpu.ops.convolution import DepthwiseConv2d
from micronpu.ops.movement import Reshape
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.resize import ResizeBilinear
from micronpu.ops.resize_products import BilinearProducts
from micronpu.ops.slicing import Slice
from micronpu.passes.base import Pass, Walk
from micronpu.passes.rewrite import Chain, Rewrite
from micronpu.targets.ethosu.rules import Judge


class MultiplyBilinear(Rewrite):
    """A bilinear resize to 2 or 4 times the size as a depthwise convolution whose channels are phases of the result.

    x -> resize_bilinear{2H, 2W} -> y        x -> resize_bilinear_products{2H, 2W} -> y
    """

    name = "multiply_bilinear"

    def apply(self, node: Node, lanes: int) -> list[Node] | None:
        op, x, y = node.op, node.inputs[0], node.output
        if not isinstance(op, ResizeBilinear) or isinstance(op, BilinearProducts) or x.type.dtype is not DType.INT8:
            return None
        products = BilinearProducts(op.size, op.align_corners, op.half_pixel_centers)
        if not products.factor(x.shape[1], x.shape[2]):
            return None
        return Chain(self.name, node).finish(products, x, y)


class PickFromDepthwise(Rewrite):
    """A depthwise convolution with large strides as one with stride 1, of whose results the wanted ones are picked.

        x -> depthwise_conv2d{stride 4} -> y        x -> depthwise_conv2d{stride 1} -> max_pool2d{1x1, stride 4} -> y

    Costs as many products as there are elements in a block of the strides for each that was needed.
    """

    name = "pick_from_depthwise"

    def apply(self, node: Node, lanes: int) -> list[Node] | None:
        op, y = node.op, node.output
        if not isinstance(op, DepthwiseConv2d) or op.stride == (1, 1):
            return None
        chain = Chain(self.name, node)
        dense = chain.add(replace(op, stride=(1, 1)), *node.inputs, qparams=y.type.qparams)
        # Windows that no step reaches stand behind the last one that is wanted.
        size = [(n - 1) * s + 1 for n, s in zip(y.shape[1:3], op.stride, strict=True)]
        if dense.shape[1:3] != tuple(size):
            dense = chain.add(Slice((0, 0, 0, 0), (dense.shape[0], *size, dense.shape[3])), dense)
        return chain.finish(MaxPool2d((1, 1), op.stride), dense, y)


_DENSE_RANK = 4


class FlattenSlices(Pass):
    """A slice of a tensor of rank 5 or 6 as slices of rank 3, one per axis that is cut.

        x [1, 6, 8, 8, 4] -> slice(1:5 of axis 1) -> y
        x -> reshape [1, 6, 256] -> slice(1:5 of axis 1) -> reshape [1, 4, 8, 8, 4] -> y

    Vela 5.2 ends the process on some programs with slices of higher rank for U55 and U65, reshaped and joined again.
    """

    name = "flatten_slices"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            op, x = node.op, node.inputs[0] if node.inputs else None
            if not isinstance(op, Slice) or x is None or x.type.rank <= _DENSE_RANK:
                continue
            for axis, (begin, size) in enumerate(zip(op.begin, op.size, strict=True)):
                shape = x.shape
                if size == shape[axis]:
                    continue
                flat = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
                cut = (*shape[:axis], size, *shape[axis + 1 :])
                steps = (Reshape(flat), Slice((0, begin, 0), (flat[0], size, flat[2])), Reshape(cut))
                for step in steps:
                    x = walk.insert(self.make(step, [x], node.origin))
            walk.replace(node.output, x)
        if walk.changed:
            graph.remove_dead()
        return walk.changed


CURES: tuple[Rewrite, ...] = (MultiplyBilinear(), PickFromDepthwise())


def cure(node: Node, judge: Judge) -> list[Node] | None:
    """What stands in an operator's stead after the first rewrite after which Vela takes all of it, or None.

    In the form that it takes most operators in, since a partition is of one form.
    """
    for rewrite in CURES:
        nodes = rewrite.apply(node, 1)
        if nodes and all(judge.prefers(n) for n in nodes):
            return nodes
    return None


def cure_name(node: Node, judge: Judge) -> str | None:
    """Name of the rewrite that makes an operator fit, or None."""
    nodes = cure(node, judge)
    return nodes[0].origin.passes[-1] if nodes else None


def cure_graph(graph: Graph, judge: Judge) -> None:
    """Puts cures in the place of the operators that Vela refuses, in an imported graph."""
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += (None if judge.prefers(node) else cure(node, judge)) or [node]
    graph.nodes = nodes
