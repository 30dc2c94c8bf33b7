"""Functions of ONNX files, and operators that the standard defines as functions: the nodes of their bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from micronpu.base.errors import ModelError
from micronpu.frontend.model_files.onnx_nodes import DAMAGED, DTYPES, LOWERINGS, OnnxNode, schema_of

DEFAULT_DOMAINS = ("", "ai.onnx")
Walk = Callable[[Any, Any, int], None]
"""Reads nodes with the names of their outputs, of a version of the default operator set."""


@dataclass
class Functions:
    """The functions of a file.

    Attributes:
        own: by domain and name.
        calls: functions that are being read, for an error about one that calls itself.
    """

    own: Mapping[tuple[str, str], Any]
    calls: list[Any] = field(default_factory=list)

    def body(self, node: OnnxNode, domain: str) -> Any:
        """Return the function of a node; None if it is none, or has a lowering."""
        import onnx

        if (domain, node.kind.rpartition(".")[2]) in self.own:
            return self.own[domain, node.kind.rpartition(".")[2]]
        schema = schema_of(node.kind, node.opset) if domain in DEFAULT_DOMAINS and node.kind not in LOWERINGS else None
        if schema is None:
            return None
        if schema.has_function:
            return schema.function_body
        if not schema.has_context_dependent_function:
            return None
        given = onnx.NodeProto(op_type=node.kind, input=node.inputs, output=node.outputs)
        given.attribute.extend(node.given.values())
        types = [_type_of(node, i) for i in range(len(node.inputs))]
        made = schema.get_context_dependent_function(given.SerializeToString(), types)
        return onnx.FunctionProto.FromString(made) if made else None

    def read(self, node: OnnxNode, body: Any, walk: Walk) -> None:
        """Read the nodes of a function in place of the node."""
        if any(body is outer for outer in self.calls):
            raise ModelError(f"{node} calls itself.", hint=DAMAGED)
        if len(node.inputs) > len(body.input) or len(node.outputs) > len(body.output):
            raise ModelError(f"{node} has more operands or results than its function.", hint=DAMAGED)
        defaults = {a.name: a for a in body.attribute_proto}
        schema = schema_of(node.kind, node.opset)
        if schema is not None:
            node.check_given()
            defaults |= {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
        elif unknown := node.given.keys() - defaults.keys() - set(body.attribute):
            raise ModelError(f"{node} has the attribute `{min(unknown)}`, which its function has not.", hint=DAMAGED)
        given = {**defaults, **node.given}
        missing = set(list(body.input)[len(node.inputs) :])
        builder, values = node.builder, {}
        for inner, outer in zip(body.input, node.inputs, strict=False):
            if outer:
                values[inner] = builder.value(node, outer)
            else:
                missing.add(inner)
        version = next((o.version for o in body.opset_import if o.domain in DEFAULT_DOMAINS), node.opset)
        self.calls.append(body)
        with builder.scope(values):
            walk([_with_attributes(n, given, missing, node.name) for n in body.node], body.output, version)
            made = [builder.value(node, name) for name in body.output][: len(node.outputs)]
        self.calls.pop()
        builder.values.update(zip(node.outputs, made, strict=True))


def _type_of(node: OnnxNode, i: int) -> bytes:
    import onnx

    if not node.has(i):
        return b""
    value = node.meta(i)
    number = next(n for n, dtype in DTYPES.items() if dtype is value.dtype)
    made: bytes = onnx.helper.make_tensor_type_proto(number, list(value.shape)).SerializeToString()
    return made


def _with_attributes(inner: Any, given: Mapping[str, object], missing: set[str], name: str) -> object:
    """Return a node of a function with the attributes and operands of the call."""
    import onnx

    made = onnx.NodeProto()
    made.CopyFrom(inner)
    made.name = name
    made.input[:] = ["" if i in missing else i for i in inner.input]
    del made.attribute[:]
    for attribute in inner.attribute:
        if not attribute.ref_attr_name:
            made.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            made.attribute.append(given[attribute.ref_attr_name])
            made.attribute[-1].name = attribute.name
        if attribute.HasField("g"):
            nodes = [_with_attributes(n, given, missing, name) for n in attribute.g.node]
            del made.attribute[-1].g.node[:]
            made.attribute[-1].g.node.extend(nodes)
    return made
