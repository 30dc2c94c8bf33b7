"""Rewrites of the float program before annotation.  All keep its result up to float rounding."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import GraphModule

from micronpu.frontend.constants import add_constant
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.lowering import Capabilities
from micronpu.quantize.decompose import decompose
from micronpu.quantize.positions import Shared, blend_at_positions, tables_by_position
from micronpu.quantize.rows import scale_rows
from micronpu.quantize.switches import apply, switchable

_SCALAR_OPERATORS = ("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "mul.Tensor", "mul_.Tensor")


def prepare_for_annotation(
    model: GraphModule, disabled: Collection[str] = (), capabilities: Capabilities | None = None
) -> GraphModule:
    """Apply all rewrites of the float program, in place.

    Args:
        disabled: names of rewrites to leave out, of those that `micronpu.quantize.switches.float_rewrites` knows.
        capabilities: of the device; default: those that every device has.
    """
    known, shared = capabilities or Capabilities(), Shared()
    apply(tables_by_position, disabled, model, known, shared)
    apply(blend_at_positions, disabled, model, known, shared)
    apply(scale_rows, disabled, model, known)
    decompose(model, known, disabled)
    apply(scalars_to_constants, disabled, model)
    return model


@switchable
def scalars_to_constants(model: GraphModule) -> bool:
    """A number as an operand becomes a constant tensor, which can be quantized.

    x + 3.0 -> y        x + constant(3.0) -> y
    """
    changed = False
    for node in list(model.graph.nodes):
        if overload_name(node) not in _SCALAR_OPERATORS:
            continue
        given, value = arguments(node), node.meta.get("val")
        other = given["other"]
        if isinstance(other, (int, float)) and isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            number = torch.full((1,) if value.ndim else (), float(other))  # must not add an axis
            constant = add_constant(model, node, number, "scalar")
            node.args = (given["self"], constant)
            node.kwargs = {} if given.get("alpha", 1) == 1 else {"alpha": given["alpha"]}
            changed = True
    return changed
