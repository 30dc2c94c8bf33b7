"""What an Ethos-U can do: Vela is the judge.

Vela compiles one operator in about a millisecond, so instead of copying its list of limits every operator is shown to
it, alone and in the form in which it would be emitted.  Equal operators are judged once.
"""

from __future__ import annotations

from collections.abc import Callable

from micronpu.emit.litert import to_litert
from micronpu.emit.tosa import to_tosa
from micronpu.errors import InternalError, UnsupportedError
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.vela import VelaError, compile_flatbuffer
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.movement import Reshape, Transpose
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
        inputs = [Tensor(t.name, t.type, t.data) for t in node.inputs]
        output = Tensor(node.output.name, node.output.type)
        graph = Graph([t for t in inputs if not t.is_constant], [output], [Node(node.op, inputs, [output])])
        legal = run_passes(graph)
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
