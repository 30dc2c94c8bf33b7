"""Runs an edge program with the integer reference in place of ExecuTorch's eager `cortex_m::*` operators.

The result is what the board's kernels give, bit for bit: see `tests.cortexm_reference`. Operators of other
namespaces run as torch has them. Imports torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.fx
from torch.export import ExportedProgram

from micronpu.base.errors import ModelError
from micronpu.base.texts import plural
from tests.cortexm_reference import REFERENCES

NAMESPACE = "cortex_m"


def reference_name(target: Any) -> str | None:
    """Name in `REFERENCES` of an operator of the namespace `cortex_m`; None for any other call.

    Args:
        target: an ATen or edge overload, such as `torch.ops.cortex_m.quantized_add.default`.
    """
    overload = getattr(target, "_op", target)
    schema = getattr(overload, "_schema", None)
    namespace, _, name = getattr(schema, "name", "").partition("::")
    return name if namespace == NAMESPACE else None


def call_reference(name: str, arguments: tuple[Any, ...]) -> torch.Tensor:
    """One operator by its reference.

    Args:
        name: without the namespace, such as "quantized_add".
        arguments: in the order of the schema.

    Raises:
        ModelError: there is no reference of that name, or it refuses the arguments.
    """
    function = REFERENCES.get(name)
    if function is None:
        raise ModelError(
            f"The operator {NAMESPACE}::{name} has no integer reference.", hint="the ExecuTorch version that is pinned"
        )
    options = {}
    if name == "pad":
        # The padding counts axes as they lie in memory. ExecuTorch's compiler decides it by this very function.
        from executorch.backends.cortex_m.passes.passes_utils import is_channels_last

        options["channels_last"] = is_channels_last(arguments[0])
    result = function(*map(_to_numpy, arguments), **options)
    return torch.from_numpy(np.ascontiguousarray(result))


class ReferenceInterpreter(torch.fx.Interpreter):
    """Interprets a graph of the edge dialect; its placeholders must be given, weights and all: see `run_reference`."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """One node; a result has the memory layout that the graph says it has."""
        result = super().run_node(n)
        expected = n.meta.get("val")
        if n.op == "call_function" and isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor):
            order = expected.dim_order()
            inverse = sorted(range(len(order)), key=order.__getitem__)
            result = result.permute(order).contiguous().permute(inverse)
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The reference of a `cortex_m` operator, and any other function as it is."""
        name = reference_name(target)
        if name is None:
            return super().call_function(target, args, kwargs)
        schema = getattr(target, "_op", target)._schema
        names = [argument.name for argument in schema.arguments]
        return call_reference(name, args + tuple(kwargs[name] for name in names[len(args) :]))


def run_reference(program: ExportedProgram, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs of an edge program whose `cortex_m` operators compute with integers.

    Args:
        program: `edge.exported_program()` after ExecuTorch's `CortexMPassManager`, without delegate calls, which would
            run their original graph.
        inputs: the user's inputs, in order.

    Raises:
        ModelError: the number of inputs is wrong, or an operator has no reference.
    """
    signature = program.graph_signature
    user_inputs = list(signature.user_inputs)
    if len(inputs) != len(user_inputs):
        raise ModelError(
            f"The program takes {plural(len(user_inputs), 'input')}, but got {len(inputs)}.",
            hint="one per input",
        )
    named = dict(zip(user_inputs, inputs, strict=True))
    lifted = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = signature.inputs_to_lifted_tensor_constants
    values = []
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        if node.name in named:
            values.append(named[node.name])
        elif node.name in constants:
            values.append(program.constants[constants[node.name]])
        else:
            name = lifted[node.name]
            values.append(program.state_dict[name] if name in program.state_dict else program.constants[name])
    with torch.no_grad():
        outputs = ReferenceInterpreter(program.graph_module).run(*values)
    return tuple(outputs)


def _to_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    if isinstance(value, torch.dtype):
        return torch.empty(0, dtype=value).numpy().dtype
    return value
