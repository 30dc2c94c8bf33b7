"""Matrix products with constant weights, rounded as the chip rounds them."""

from __future__ import annotations

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ops.convolution import Conv2d
from micronpu.ops.linear import FullyConnected
from micronpu.passes.base import Pass
from micronpu.passes.rewrite import Chain


class LinearAsConvolution(Pass):
    """A fully connected layer is the convolution of one pixel that the chip computes.

    x [N, I] -> fully_connected(w [O, I]) -> y [N, O]
    x -> reshape [1, 1, N, I] -> conv2d(w [O, 1, 1, I]) -> reshape [N, O] -> y

    LiteRT rounds a fully connected layer once and a convolution twice, and so do the two forms in TOSA.  The chip has
    convolutions only: the command stream that Vela makes of either operator rounds twice.  Written as what it is, the
    layer has one arithmetic in the graph, on the host and on the chip.  Not exact: a sum whose scaled value is within
    2**-30 of itself of a tie moves by one step, to where the chip has it.
    """

    name = "linear_as_convolution"

    def run(self, graph: Graph) -> bool:
        nodes: list[Node] = []
        for node in graph.nodes:
            nodes += self._convolution(node) if isinstance(node.op, FullyConnected) else [node]
        changed = len(nodes) > len(graph.nodes) or nodes != graph.nodes
        graph.nodes = nodes
        return changed

    def _convolution(self, node: Node) -> list[Node]:
        assert isinstance(node.op, FullyConnected)
        x, weight, bias = node.inputs
        outputs, inputs = weight.shape
        assert weight.data is not None
        chain = Chain(self.name, node)
        kernel = Tensor(
            weight.name,
            weight.type.with_shape((outputs, 1, 1, inputs)),
            weight.data.reshape(outputs, 1, 1, inputs),
        )
        rows = chain.reshape(x, 1, 1, x.type.size // inputs, inputs)
        op = Conv2d(activation=node.op.activation)
        return chain.result(chain.add(op, rows, kernel, bias, qparams=node.output.type.qparams), node.output)
