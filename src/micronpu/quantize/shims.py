"""Replacements of torchao's functions, by the names of `micronpu.upstream.torchao.REPAIRS`, which has the reasons.

They are installed when a quantizer first sees a model, and stay: results are those that torchao documents.  Another
version of torchao is not changed, with a warning: it is slower, and must be examined first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from micronpu.frontend.program import overload_name
from micronpu.frontend.training import set_training
from micronpu.ops.convolution import CONVOLUTIONS
from micronpu.ops.facts import Form
from micronpu.ops.transposed import TRANSPOSED
from micronpu.quantize.nodes import form_of
from micronpu.upstream.torchao import Function, repair

_BETWEEN = (Form.QUOTIENT, Form.SUM)
"""Operators that torchao's own rewrite inserts between a convolution and its batch norm."""


def _own_switch(dropouts: bool) -> Callable[[Function], Function]:
    """Change only the flag of dropouts or of batch norms."""

    def switch(m: GraphModule, train_to_eval: bool) -> None:
        set_training(m, not train_to_eval, dropouts=dropouts, batch_norms=not dropouts)

    return lambda original: switch


def can_match(model: GraphModule) -> bool:
    """Return True if a convolution is followed by a batch norm that torchao's patterns match."""
    for node in model.graph.nodes:
        if "batch_norm" not in overload_name(node):
            continue
        before = node.args[0]
        for _ in _BETWEEN:
            if isinstance(before, Node) and form_of(before) in _BETWEEN:
                before = before.args[0]
        if isinstance(before, Node) and overload_name(before) in (*CONVOLUTIONS, *TRANSPOSED):
            return True
    return False


def _only_where_it_can_match(original: Function) -> Function:
    @functools.wraps(original)
    def guarded(m: GraphModule) -> GraphModule:
        fused: GraphModule = original(m) if can_match(m) else m
        return fused

    return guarded


def _ask_each(original: Function) -> Function:
    def prepare_obs_or_fq_callback(self: Any, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        for quantizer in self.quantizers:
            quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)

    return prepare_obs_or_fq_callback


def _tell_the_quantizer(original: Function) -> Function:
    @functools.wraps(original)
    def prepare(
        model: GraphModule, node_name_to_scope: Any, is_qat: bool, obs_or_fq_callback: Function | None = None
    ) -> GraphModule:
        given = getattr(obs_or_fq_callback, "__self__", None)
        # This package's quantizers check their use, and list their parts like torchao's composed one.
        parts: Sequence[Any] = [given] if hasattr(given, "check_use") else getattr(given, "quantizers", ())
        for quantizer in parts:
            if hasattr(quantizer, "check_use"):
                quantizer.check_use(is_qat)
        prepared: GraphModule = original(model, node_name_to_scope, is_qat, obs_or_fq_callback)
        return prepared

    return prepare


_REPAIRED: dict[str, Callable[[Function], Function]] = {
    "dropout": _own_switch(dropouts=True),
    "batch_norm": _own_switch(dropouts=False),
    "_fuse_conv_bn_qat": _only_where_it_can_match,
    "_fold_conv_bn_qat": _only_where_it_can_match,
    "ask_each": _ask_each,
    "prepare": _tell_the_quantizer,
}


def apply() -> bool:
    """Install the replacements, once; return False for another version of torchao."""
    return repair(_REPAIRED)
