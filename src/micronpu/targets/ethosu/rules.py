"""Operators that an Ethos-U supports, as decided by Vela, and the partitioning policy that follows.

Vela compiles one operator in about a millisecond, so instead of a copy of its limits, every operator is compiled alone,
as it would be emitted. Equal operators are compiled once.
"""

from __future__ import annotations

import functools
import json

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.base.parsing import parse_json
from micronpu.ir.graph import Graph, GraphBuilder, Node, Tensor
from micronpu.ir.lowering import Capabilities
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ops.indices import GatherRows, ScatterRows
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Reshape, Transpose
from micronpu.partition.partition import Policy
from micronpu.passes.fusion import returned_operand
from micronpu.passes.rewrite import Choice, choose, no_cost
from micronpu.report.verdict import Reason
from micronpu.targets.ethosu.legalize import emitters_of, legalize
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import TO_FIT
from micronpu.targets.ethosu.vela.compiler import VelaEndedError, compile_flatbuffer, entry_of, options_of
from micronpu.targets.options import Checks, name_of, refusal

RULE = "vela_accepts"
SENTENCE = "Vela compiles the operator for this accelerator."
HINT = "another form of the model"
_LARGEST = "ethos-u85-256"
"""The accelerator variant that supports the most operators."""
_LOOKUP_HINT = "an Ethos-U85, which looks rows up, or positions that are constants"

_Key = tuple[object, ...]

_UNBUFFERED = {("scheduler", "disable_feature"): "WeightBuffering"}
"""Weight buffering of a single operator takes long to compute and does not affect whether it is accepted."""
_FORMATS = ("tosa", "litert")
"""Formats, the one in which Vela accepts most operators first."""


def capabilities_of(spec: EthosUOptions) -> Capabilities:
    """Features of an accelerator; U85 also has arbitrary resizes and row lookups."""
    is_u85 = spec.accelerator.family == "u85"
    return Capabilities(
        tables=True,
        activations=(DType.INT8, DType.INT16),
        index_types=(DType.INT32,),
        lookups=is_u85,
        positions=True,
        resizes=is_u85,
        zero_points=True,
    )


class VelaJudge:
    """Checks operators with Vela, each kind once."""

    def __init__(self, spec: EthosUOptions) -> None:
        self.spec = spec
        self._emitters = emitters_of(spec)
        self.formats = tuple(f for f in _FORMATS if f in self._emitters) if spec.via == "auto" else (spec.via,)
        self._objections: dict[_Key, dict[str, str]] = {}
        self._ended = False

    def __call__(self, node: Node) -> list[Reason]:
        """Reasons why the operator is unsupported; empty if it is supported."""
        objections = self._ask(node)
        if len(objections) < len(self.formats):
            return []
        message = next((o for o in objections.values() if _names_a_limit(o)), next(iter(objections.values())))
        name = name_of(node)
        hint = f"an Ethos-U85, which takes it, or {HINT}" if self._is_taken_by_largest(node) else HINT
        if isinstance(node.op, GatherRows | ScatterRows):
            hint = _LOOKUP_HINT
        if node.output.type.dtype is DType.INT16:
            hint = f'int8 for this operator, quantizer.set_node_name("{name}", QuantizationConfig()), or {hint}'
        return [Reason(RULE, SENTENCE, message, name, node.origin.source, hint)]

    def prefers(self, node: Node) -> bool:
        """True if it is supported in the format of most operators, so that it can be in the same partition."""
        return self.formats[0] not in self._ask(node)

    def _is_taken_by_largest(self, node: Node) -> bool:
        if self.spec.accelerator.family == "u85":
            return False
        other = judge_of(EthosUOptions(_LARGEST))
        return len(other._ask(node)) < len(other.formats)

    def _ask(self, node: Node) -> dict[str, str]:
        """Vela's errors by format, up to the first format that it accepts."""
        if isinstance(node.op, Transpose | Reshape) or returned_operand(node) is not None:
            return {}  # most of them cancel, and Vela supports the remaining ones in some form
        key: _Key = (node.op, *(_kind(t) for t in (*node.inputs, *node.outputs)))
        if key not in self._objections:
            values = [t.data for t in node.inputs if t.is_constant and not _is_any(t)]
            entry = entry_of("verdict", options_of(self.spec), key, values)
            if (data := entry.read()) is not None:
                self._objections[key] = parse_json(data)
            else:
                self._ended = False
                self._objections[key] = self._asked(node)
                if not self._ended:
                    entry.write(json.dumps(self._objections[key]).encode())
        return self._objections[key]

    def _asked(self, node: Node) -> dict[str, str]:
        found = self._tried(_alone(node, channels_last=False))
        if found and any(len(t.shape) == 4 and not t.is_constant for t in node.inputs):
            # Operands in a network are mostly channels last, and their transposes move behind it.
            again = self._tried(_alone(node, channels_last=True))
            found = {f: objection for f, objection in found.items() if f in again}
        return found

    def _tried(self, graph: Graph) -> dict[str, str]:
        try:
            legal = legalize(graph, self.spec)
        except UnsupportedError as error:
            return dict.fromkeys(self.formats, error.what)
        objections = {}
        for format in self.formats:
            try:
                compile_flatbuffer(self._emitters[format](legal).data, self.spec, _UNBUFFERED)
            except (InternalError, UnsupportedError) as error:
                self._ended |= isinstance(error, VelaEndedError)
                objections[format] = error.what
            else:
                break
        return objections


def _names_a_limit(objection: str) -> bool:
    """Vela's messages for LiteRT often state a limit; those for TOSA only name the operator."""
    return objection.startswith("Vela: ") and "Unsupported opType" not in objection


def _alone(node: Node, *, channels_last: bool) -> Graph:
    """Return a graph of one operator, whose images may be [N, H, W, C] inputs that are transposed to the operator's
    layout."""
    builder = GraphBuilder()
    operands = []
    for tensor in node.inputs:
        if tensor.is_constant:
            operands.append(Tensor(tensor.name, tensor.type, _quick(tensor.type) if _is_any(tensor) else tensor.data))
        elif channels_last and len(tensor.shape) == 4:
            shape = tuple(tensor.shape[i] for i in TO_CHANNELS_LAST)
            operands.append(builder.emit(Transpose(TO_CHANNELS_FIRST), builder.input(tensor.type.with_shape(shape))))
        else:
            operands.append(builder.input(tensor.type))
    output = Tensor(node.output.name, node.output.type)
    builder.graph.nodes.append(Node(node.op, operands, [output]))
    return builder.finish(output)


def _quick(type: TensorType) -> Array:
    """Numbers that Vela encodes fastest, since encoding takes most of its time: zeros, and a one."""
    values = np.zeros(type.shape, type.dtype.numpy)
    values.flat[:1] = 1
    return values


def judge_of(spec: EthosUOptions) -> VelaJudge:
    """Return the cached judge of an accelerator and its options."""
    return _judge(spec, spec.ini)


@functools.lru_cache(maxsize=8)
def _judge(spec: EthosUOptions, ini: str) -> VelaJudge:
    return VelaJudge(spec)


def _is_any(tensor: Tensor) -> bool:
    """True if Vela's result depends neither on a constant's values nor on its scales: weights and biases."""
    qparams: QParams | None = tensor.type.qparams
    numbers = tensor.type.dtype in (DType.INT8, DType.INT32, DType.INT64)
    return tensor.is_constant and numbers and qparams is not None and qparams.axis is not None


def _kind(tensor: Tensor) -> object:
    type: TensorType = tensor.type
    if _is_any(tensor):
        assert type.qparams is not None
        return type.shape, type.dtype, type.qparams.axis, "constant"
    return type, tensor.is_constant


def ethosu_policy(spec: EthosUOptions, name: str = "", checks: Checks = ()) -> Policy:
    """Return the partitioning policy of an Ethos-U, by default under the accelerator's name; what one of the user's
    checks refuses is not delegated."""
    judge = judge_of(spec)

    def decide(node: Node) -> Choice | list[Reason]:
        # Prefer the format in which Vela accepts most operators, since a partition has a single format.
        found = choose(node, judge.prefers, no_cost, TO_FIT, disabled=spec.disabled_node_rewrites)
        return found or judge(node) or Choice((node,))

    return Policy(
        name=name or spec.silicon,
        decide=decide,
        exclude=lambda node: refusal(node, checks),
        finish=lambda graph, pipeline: legalize(graph, spec, pipeline, judge.prefers),
        allow_no_op_partitions=True,
        free=(Reshape,),
        notes=spec.notes,
    )
