"""Repairs of torchao 0.18, made when quantization starts and left in place: results stay what torchao promises.

* `convert_pt2e` exports about a hundred patterns, 17 s, as soon as one batch norm is left in the graph, whether any
  pattern can fit or not.  Where no layer is followed by a batch norm, nothing can.
* `move_exported_model_to_eval` and `..._train` put their own patterns in place of dropouts and batch norms, with a
  probability of 0.5, a momentum of 0.1 and an epsilon of 1e-5 whatever the model says.  Only the flag should change.
* `ComposableQuantizer`, which ExecuTorch's recipes wrap every quantizer in, does not pass on what torchao asks a
  quantizer when the observers are in place.

Another version of torchao is left as it is: slower, and to be looked at anew.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import arguments, overload_name

_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
_FUSABLE = (
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv1d.padding,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv2d.padding,
    torch.ops.aten.conv_transpose1d.default,
    torch.ops.aten.conv_transpose2d.input,
)
# Between a convolution and its batch norm torchao's own rewrite puts these.
_BETWEEN = (torch.ops.aten.div.Tensor, torch.ops.aten.add.Tensor)


def is_dropout(node: Node) -> bool:
    """Whether a node is one of ATen's dropouts."""
    return overload_name(node).split(".")[0].rstrip("_") in _DROPOUTS


def set_training(model: GraphModule, training: bool, dropouts: bool = True, batch_norms: bool = True) -> None:
    """Switches dropouts and batch norms of an exported module, and nothing else about them."""
    for node in model.graph.nodes:
        if dropouts and is_dropout(node):
            _set_argument(node, "train", training)
        elif (
            batch_norms and overload_name(node) == "batch_norm.default" and arguments(node)["running_mean"] is not None
        ):
            _set_argument(node, "training", training)
    if dropouts:
        for module in model.modules():
            if "in_training" in vars(module):
                vars(module)["in_training"] = training
    model.recompile()


def _set_argument(node: Node, name: str, value: bool) -> None:
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    position = next(i for i, a in enumerate(schema) if a.name == name)
    if len(node.args) > position:
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)


def _replace_dropout(m: GraphModule, train_to_eval: bool) -> None:
    set_training(m, not train_to_eval, batch_norms=False)


def _replace_batchnorm(m: GraphModule, train_to_eval: bool) -> None:
    set_training(m, not train_to_eval, dropouts=False)


def _ask_each(self: Any, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
    for quantizer in self.quantizers:
        quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)


def can_match(model: GraphModule) -> bool:
    """Whether a convolution is followed by a batch norm, as far as torchao's patterns go."""
    for node in model.graph.nodes:
        if "batch_norm" not in overload_name(node):
            continue
        before = node.args[0]
        for _ in _BETWEEN:
            if isinstance(before, Node) and before.target in _BETWEEN:
                before = before.args[0]
        if isinstance(before, Node) and before.target in _FUSABLE:
            return True
    return False


def _only_where_it_can_match(original: Callable[[GraphModule], GraphModule]) -> Callable[[GraphModule], GraphModule]:
    @functools.wraps(original)
    def guarded(m: GraphModule) -> GraphModule:
        return original(m) if can_match(m) else m

    return guarded


@functools.lru_cache(maxsize=1)
def apply() -> bool:
    """Makes the repairs, once; False where torchao is not the version that they are for."""
    from torchao.quantization.pt2e import export_utils, quantize_pt2e
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    wanted: list[tuple[Any, str, list[str]]] = [
        (export_utils, "_replace_dropout", ["m", "train_to_eval"]),
        (export_utils, "_replace_batchnorm", ["m", "train_to_eval"]),
        (quantize_pt2e, "_fuse_conv_bn_qat", ["m"]),
        (quantize_pt2e, "_fold_conv_bn_qat", ["m"]),
    ]
    if not importlib.metadata.version("torchao").startswith("0.18."):
        return False
    for module, name, parameters in wanted:
        function = getattr(module, name, None)
        if function is None or list(inspect.signature(function).parameters) != parameters:
            return False
    for name, repair in (("_replace_dropout", _replace_dropout), ("_replace_batchnorm", _replace_batchnorm)):
        setattr(export_utils, name, repair)
    for name in ("_fuse_conv_bn_qat", "_fold_conv_bn_qat"):
        setattr(quantize_pt2e, name, _only_where_it_can_match(getattr(quantize_pt2e, name)))
    if "prepare_obs_or_fq_callback" not in vars(ComposableQuantizer):
        ComposableQuantizer.prepare_obs_or_fq_callback = _ask_each
    return True
