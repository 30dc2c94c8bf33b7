"""Removal of conversions around values that the core only moves or decides: integers stay integers."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.importer import known_import
from micronpu.frontend.program import (
    BYTE_SHIFT,
    CASTS,
    arguments,
    calls_into,
    is_dequantize,
    is_float_cast,
    is_quantize,
    overload_name,
    shifted_bytes,
    value_of,
)
from micronpu.ir.types import DType
from micronpu.ops.calls import CONVERSION, FLIPPED_BITS
from micronpu.ops.indices import MOST_POSITIONS, POSITIONS

QParams = tuple[Any, ...]


def move_integers(module: GraphModule) -> bool:
    """Move integers on the core instead of dequantizing, moving and quantizing with the same qparams, in place.

        c8 -> dequantize -> index_copy(x8 -> dequantize) -> quantize -> y8        index_copy(c8, x8) -> y8

    Returns:
        True if anything was changed.
    """
    chosen: dict[Node, QParams] = {}
    for node in reversed(module.graph.nodes):
        qparams = _read_on(node, chosen)
        if qparams is not None and _moves(node):
            chosen[node] = qparams
    while dropped := [
        n for n, qparams in chosen.items() if not _given_on(n, qparams, chosen) or _read_on(n, chosen) != qparams
    ]:
        for node in dropped:
            del chosen[node]
    for node, qparams in chosen.items():
        for operand in node.all_input_nodes:
            if operand not in chosen and is_dequantize(operand):
                node.replace_input_with(operand, operand.args[0])  # type: ignore[arg-type]
        node.meta["val"] = value_of(node).to(qparams[-1])
        for reader in [user for user in node.users if is_quantize(user)]:
            reader.replace_all_uses_with(node)
            module.graph.erase_node(reader)
    if chosen:
        module.graph.eliminate_dead_code()
        module.recompile()
    return bool(chosen)


def shift_bytes(module: GraphModule) -> None:
    """Shift uint8 inputs and outputs on the core instead of dequantizing and quantizing them, in place.

        xu8 -> dequantize -> quantize -> x8        xu8 -> to(int8) -> bitwise_xor(-128) -> x8
        y8 -> dequantize -> quantize -> yu8        y8 -> bitwise_xor(-128) -> to(uint8) -> yu8

    Exact: both have the same scale and zero points 128 apart, the cast keeps the bits, and adding 128 flips the highest
    bit.
    """
    changed = False
    graph = module.graph
    call = calls_into(graph)
    for node in list(graph.nodes):
        x = shifted_bytes(node)
        if x is None:
            continue
        y: torch.Tensor = value_of(node)
        is_signed = y.dtype is torch.int8
        with graph.inserting_before(node):
            first = call(CONVERSION, x, DType.INT8) if is_signed else call(FLIPPED_BITS, x, -BYTE_SHIFT)
            made = call(FLIPPED_BITS, first, -BYTE_SHIFT) if is_signed else call(CONVERSION, first, DType.UINT8)
        first.meta["val"], made.meta["val"] = y.to(torch.int8), y
        node.replace_all_uses_with(made)
        changed = True
    if changed:
        graph.eliminate_dead_code()
        module.recompile()


def undo_decisions(module: GraphModule) -> None:
    """Pass on a decision of the core directly if it was quantized only for the NPU, in place.

    x -> argmax -> to(float32) -> quantize -> dequantize -> to(int64) -> y        x -> argmax -> y
    """
    changed = False
    for node in list(module.graph.nodes):
        source = _decision(node)
        if source is not None:
            node.replace_all_uses_with(source)
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _decision(node: Node) -> Node | None:
    """Return the decision on the core that a node restores from a number; None for other nodes."""
    if overload_name(node) not in CASTS:
        return None
    steps = [node]
    for wanted in (is_dequantize, is_quantize, is_float_cast):
        operand = steps[-1].args[0]
        if not isinstance(operand, Node) or not wanted(operand):
            return None
        steps.append(operand)
    source = steps[-1].args[0]
    assert isinstance(source, Node)
    dtype, qparams = value_of(node).dtype, _qparams(steps[1])
    if value_of(source).dtype is not dtype or qparams is None or qparams != _qparams(steps[2]):
        return None
    scale, zero_point, low, high, _ = qparams
    largest = 1 if dtype is torch.bool else MOST_POSITIONS - 1
    if scale != 1.0 or not low <= zero_point <= high - largest:
        return None
    # Qparams for positions are only made for positions up to 255.
    return source if dtype is torch.bool or overload_name(source) in POSITIONS else None


def _moves(node: Node) -> bool:
    entry = known_import(node)
    if entry is None or not entry.moves_only or arguments(node).get("accumulate"):
        return False
    if any(isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values())):
        return False  # for integers, a cast to float32 would change the result
    return _is_float(node)


def _read_on(node: Node, chosen: dict[Node, QParams]) -> QParams | None:
    """Return the qparams that all readers of a value share, or None."""
    all_qparams = {_qparams(user) if is_quantize(user) else chosen.get(user) for user in node.users}
    return all_qparams.pop() if len(all_qparams) == 1 else None


def _given_on(node: Node, qparams: QParams, chosen: dict[Node, QParams]) -> bool:
    """Return True if all floats that a node reads are integers with these qparams; False if it reads none."""
    floats = [n for n in node.all_input_nodes if _is_float(n) or is_dequantize(n)]
    return bool(floats) and all(
        chosen.get(n) == qparams or (is_dequantize(n) and _qparams(n) == qparams) for n in floats
    )


def _qparams(node: Node) -> QParams | None:
    """Return scale, zero point, limits and dtype of a quantize or dequantize; None if they are computed."""
    given = arguments(node)
    qparams = tuple(given[name] for name in ("scale", "zero_point", "quant_min", "quant_max", "dtype"))
    return None if any(isinstance(value, Node) for value in qparams) else qparams


def _is_float(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.is_floating_point()
