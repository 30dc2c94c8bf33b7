"""What an Ethos-U can do: Vela is the judge.

Vela compiles one operator in about a millisecond, so instead of copying its list of limits every operator is shown to
it, alone and in the form in which it would be emitted.  Equal operators are judged once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from micronpu.emit.litert import to_litert
from micronpu.emit.tosa import to_tosa
from micronpu.errors import InternalError, UnsupportedError
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.vela import VelaError, compile_flatbuffer
from micronpu.ir.graph import Graph, GraphBuilder, Node, Tensor
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Reshape, Transpose
from micronpu.partition.verdict import Reason
from micronpu.passes import run_passes

RULE = "vela_accepts"
SENTENCE = "Vela compiles the operator for this accelerator."

_Key = tuple[object, ...]

_EMITTERS: dict[str, Callable[[Graph], bytes]] = {
    "tosa": lambda graph: to_tosa(graph).data,
    "litert": lambda graph: to_litert(graph).data,
}


class Judge:
    """Asks Vela about operators, each kind once."""

    def __init__(self, spec: EthosUCompileSpec) -> None:
        self.spec = spec
        self._verdicts: dict[_Key, str] = {}

    def __call__(self, node: Node) -> list[Reason]:
        """Why the operator cannot run, empty where it can."""
        if isinstance(node.op, Transpose | Reshape):
            return []  # most of them vanish, and Vela moves what is left in some way
        key: _Key = (node.op, *(_kind(t) for t in (*node.inputs, *node.outputs)))
        if key not in self._verdicts:
            self._verdicts[key] = self._ask(node)
        message = self._verdicts[key]
        if not message:
            return []
        name = node.origin.nodes[0] if node.origin.nodes else node.output.name
        return [
            Reason(RULE, SENTENCE, message, name, node.origin.source, "another Ethos-U, or another form of the model")
        ]

    def _ask(self, node: Node) -> str:
        """Vela's objection, or ""."""
        objection = self._tried(_alone(node, channels_last=False))
        if objection and any(len(t.shape) == 4 and not t.is_constant for t in node.inputs):
            # In a network its operands mostly come channels last, and their transposes move behind it.
            return self._tried(_alone(node, channels_last=True)) and objection
        return objection

    def _tried(self, graph: Graph) -> str:
        try:
            legal = run_passes(graph)
        except UnsupportedError as error:
            return error.what
        objections = []
        for form in _EMITTERS if self.spec.via == "auto" else (self.spec.via,):
            try:
                compile_flatbuffer(_EMITTERS[form](legal), self.spec)
                return ""
            except VelaError as error:
                objections.append(error.what)
            except (InternalError, UnsupportedError) as error:
                objections.append(f"it cannot be emitted: {error.what}")
        return objections[0]


def _alone(node: Node, *, channels_last: bool) -> Graph:
    """A graph of one operator.

    Args:
        channels_last: images come as [N, H, W, C] and are transposed to the form that the operator reads.
    """
    builder = GraphBuilder()
    operands = []
    for tensor in node.inputs:
        if tensor.is_constant:
            operands.append(Tensor(tensor.name, tensor.type, tensor.data))
        elif channels_last and len(tensor.shape) == 4:
            shape = tuple(tensor.shape[i] for i in TO_CHANNELS_LAST)
            operands.append(builder.emit(Transpose(TO_CHANNELS_FIRST), builder.input(tensor.type.with_shape(shape))))
        else:
            operands.append(builder.input(tensor.type))
    output = Tensor(node.output.name, node.output.type)
    builder.graph.nodes.append(Node(node.op, operands, [output]))
    return builder.finish(output)


def judge_of(spec: EthosUCompileSpec) -> Judge:
    """The judge of an accelerator and its options, who remembers what it was asked."""
    return _judge(spec, spec.ini)


@functools.lru_cache(maxsize=8)
def _judge(spec: EthosUCompileSpec, ini: str) -> Judge:
    return Judge(spec)


def _kind(tensor: Tensor) -> object:
    """What Vela's answer depends on: everything but the values of weights."""
    type: TensorType = tensor.type
    qparams: QParams | None = type.qparams
    if (
        tensor.is_constant
        and type.dtype in (DType.INT8, DType.INT32)
        and qparams is not None
        and qparams.axis is not None
    ):
        return type.shape, type.dtype, qparams.axis, "constant"
    return type, tensor.is_constant
