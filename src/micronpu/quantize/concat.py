"""A rewrite of the float program about concatenations, which `micronpu.quantize.decompose` applies."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.importer import fused_kind, known_import
from micronpu.frontend.program import overload_name
from micronpu.ops import ATEN_IMPORTS
from micronpu.ops.concat import CONCATENATIONS
from micronpu.quantize.folded_norms import batch_norm_behind, folded_batch_norm
from micronpu.quantize.switches import switchable
from micronpu.quantize.writer import GraphWriter

CLAMPS = frozenset(n for n, e in ATEN_IMPORTS.items() if e.is_activation and not n.endswith("_.default"))


@switchable
def activation_before_concat(write: GraphWriter) -> Any:
    """relu(cat(conv(x), conv(z))) -> cat(relu(conv(x)), relu(conv(z))): a clamp goes into the layers before a cat.

    Exact.  The layers and their clamps are quantized once each, and the parts share qparams without the values that the
    clamp cuts off.  Applied if at most one part keeps a separate clamp; the pass of the same name does it in programs
    that were quantized elsewhere.
    """
    node = write.node
    concat = node.args[0]
    if not isinstance(concat, Node) or overload_name(concat) not in CONCATENATIONS or len(concat.users) != 1:
        return None
    parts, rest = concat.args[0], concat.args[1:]
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, Node) for p in parts) or not _fuses(node):
        return None
    fusing = [_takes_clamp(part) for part in parts]
    if not any(fusing) or fusing.count(False) > 1:
        return None
    bounds = node.args[1:]
    made = {part: write(overload_name(node), part, *bounds, **node.kwargs) for part in dict.fromkeys(parts)}
    result = write(overload_name(concat), [made[part] for part in parts], *rest, **concat.kwargs)
    result.meta = dict(concat.meta)
    return result


def _fuses(clamp: Node) -> bool:
    """Return True if the clamp can be fused into operators."""
    try:
        fused_kind(clamp)
    except UnsupportedError:
        return False
    return True


def _takes_clamp(part: Any) -> bool:
    """Return True if a clamp can be fused into the operator that computes a part."""
    layer = part
    if part.target is folded_batch_norm:  # in training, layer -> unfold -> batch norm
        layer = part.args[0].args[0]
        assert batch_norm_behind(layer) is part
    entry = known_import(layer)
    return entry is not None and entry.fuses and len(part.users) == 1
